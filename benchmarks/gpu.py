"""Speed of single walks on a CUDA device; ``benchmarks/fleet.py`` has those of fleets.

    python benchmarks/gpu.py walks [mnist] [cifar10]    seconds for 100 training hops

Walks need the official data (``unwalk data status``).  The first repeat of a walk captures and
compiles; the second is the number.  Exits with 1 when a number misses its limit; without a device
it says so and measures nothing.
"""

from __future__ import annotations

import json
import math
import sys
import time

import torch

from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.config import Value
from unwalk.runs.run import Runner

WALK_LIMITS = {"mnist": 1.5, "cifar10": 10.0}


def walk(task: str, every: int = 1000, repeats: int = 2) -> tuple[float, float]:
    """Seconds for 100 training hops, and with the measuring every so many hops and at the end."""
    changes: dict[str, Value] = {
        "task": task,
        "preset": "paper-matched",
        "device": "cuda",
        "performance.precision": "bfloat16",
        "performance.compiled": True,
        "evaluate.every": every,
    }
    made = assemble(resolve(changes))
    hops = whole = 0.0
    for _ in range(repeats):
        runner, start = Runner(made), time.perf_counter()
        hops = sum(runner.walk("train", made.training(), None).seconds)
        whole = time.perf_counter() - start
    return hops, whole


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("this machine shows no CUDA device; nothing measured")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rows = []
    for task in arguments[1:] or list(WALK_LIMITS):
        rows.append((f"100 hops {task}, s", walk(task)[0], WALK_LIMITS[task]))
        rows.append((f"100 hops {task}, measured 20 times, s", walk(task, 5, 1)[1], math.inf))
    print(torch.cuda.get_device_name(), torch.__version__)
    for name, took, limit in rows:
        print(f"{name:45s} {took:9.3f}  limit {limit:g}  {'ok' if took <= limit else 'missed'}")
    print(json.dumps({name: took for name, took, _ in rows}))
    return int(any(took > limit for _, took, limit in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
