"""A token walk as a cyclic job of NVFlare; runs in NVFlare's own environment.

    python nvflare_walk.py KIND OUT PEERS ROUNDS NUMBERS

KIND is "server" (the controller is at the server, through which the token goes) or "client" (sites
hand the token to each other).  Server and sites are processes of their own on loopback, with the
certificates that NVFlare's own provisioning makes.  The server's controller looks at its tasks
every 20 ms instead of every 500 ms, which is kinder to NVFlare; the rest is as it comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.ccwf.ccwf_job import CCWFJob, CyclicClientConfig, CyclicServerConfig
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.workflows.cyclic_ctl import CyclicController
from nvflare.job_config.api import FedJob
from nvflare.recipe.poc_env import PocEnv
from nvflare_visit import Visit


def server_job(out: str, peers: int, rounds: int, first: Path) -> FedJob:
    """The token goes back to the server after every visit."""
    job = FedJob("walk", min_clients=peers)
    job.to_server(NPModelPersistor(source_ckpt_file_full_name=str(first)), id="persistor")
    job.to_server(FullModelShareableGenerator(), id="shareable_generator")
    job.to_server(CyclicController(num_rounds=rounds, task_check_period=0.02))
    job.to_clients(Visit(out), tasks=["train"])
    return job


def client_job(out: str, peers: int, rounds: int, first: Path) -> FedJob:
    """Sites hand the token to each other."""
    job = CCWFJob("walk", min_clients=peers)
    job.add_cyclic(
        CyclicServerConfig(num_rounds=rounds),
        CyclicClientConfig(
            executor=Visit(out),
            persistor=NPModelPersistor(source_ckpt_file_full_name=str(first)),
            shareable_generator=FullModelShareableGenerator(),
        ),
    )
    return job


def main(kind: str, out: str, peers: int, rounds: int, numbers: int) -> None:
    """Run the job to its end."""
    first = Path(out).with_suffix(".npy")
    np.save(first, np.ones(numbers, np.float32))
    job = {"server": server_job, "client": client_job}[kind](out, peers, rounds, first)
    environment = PocEnv(num_clients=peers)
    try:
        name = environment.deploy(job)
        environment.get_job_result(name, timeout=900.0)
    finally:
        environment.stop(clean_up=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], *(int(word) for word in sys.argv[3:6]))
