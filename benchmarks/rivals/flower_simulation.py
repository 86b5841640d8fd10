"""The walk of ``flower_walk`` in Flower's simulation; runs in Flower's own environment."""

from __future__ import annotations

import sys

from flower_walk import client, server
from flwr.simulation import run_simulation

if __name__ == "__main__":
    one = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=int(sys.argv[1]), backend_config=one)
