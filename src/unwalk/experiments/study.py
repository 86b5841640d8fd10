"""Carries cells out, in parts: what is done is on disk and is not done again.

Cells of one seed share the data and, where their training settings agree, the trained model.
Every cell leaves one JSON file; a study that is stopped goes on with the next cell.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from unwalk.core.validation import check_count
from unwalk.experiments.cells import Cell
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.config import Config, Value, flatten
from unwalk.runs.run import Runner, Tell, Walked, silent
from unwalk.runs.store import write_file
from unwalk.tasks import ShardedTask

DATA = ("task", "peers", "seed", "data.", "forget.", "trigger.", "model.")
COSTS = {"dpsgd": 4, "retrain": 2}
"""Walks of 100 hops that a cell costs, where it is not one."""
TRAINING = (*DATA, "train.", "graph.", "device", "evaluate.", "performance.")


@dataclass(frozen=True)
class Study:
    """Cells on one task with one preset; ``settings`` apply to every cell."""

    task: str
    preset: str
    cells: tuple[Cell, ...]
    settings: Mapping[str, Value]

    def config(self, cell: Cell) -> Config:
        """The whole configuration of a cell."""
        base: dict[str, Value] = {
            "task": self.task,
            "preset": self.preset,
            "method": cell.method,
            "seed": cell.seed,
            "compare": [],
        }
        return resolve({**base, **self.settings, **cell.settings}, where=cell.name)


Work = list[tuple[Cell, Path]]


def carry_out(
    study: Study,
    parts: Path,
    tell: Tell = silent,
    *,
    command: str = "",
    collect: bool = False,
    jobs: int = 1,
) -> list[dict[str, Any] | None]:
    """The part of every cell, in order of the cells; finished parts are read, not run.

    With ``collect`` nothing is run: a part that is not there is None.  ``jobs`` processes share
    the work; on one graphics card they gain most with CUDA's multi-process service.
    """
    check_count("jobs", jobs, low=1)
    parts.mkdir(parents=True, exist_ok=True)
    paths = [parts / f"{study.task}-{study.preset}-{cell.name}.json" for cell in study.cells]
    pairs = list(zip(study.cells, paths, strict=True))
    todo = [] if collect else [(cell, path) for cell, path in pairs if not path.exists()]
    todo.sort(key=lambda pair: (pair[0].method == "dpsgd", pair[0].seed))
    shares = [share for share in deal(todo, jobs) if share]
    if len(shares) > 1:
        _together(study, shares, command, tell)
    elif todo:
        _one_share(study, todo, command, tell)
    return [
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else None for path in paths
    ]


def deal(todo: Work, jobs: int) -> list[Work]:
    """Neighbouring cells stay together, for they share data and training; shares cost alike."""
    costs = [COSTS.get(cell.method, 1) for cell, _ in todo]
    shares: list[Work] = [[] for _ in range(jobs)]
    done = 0
    for pair, cost in zip(todo, costs, strict=True):
        shares[min(jobs - 1, (2 * done + cost) * jobs // (2 * sum(costs)))].append(pair)
        done += cost
    return shares


def _one_share(study: Study, todo: Work, command: str, tell: Tell = silent) -> None:
    memory = _Memory()
    for cell, path in todo:
        part = {**_part(study, cell, memory, tell), **provenance(command)}
        write_file(path, json.dumps(part, allow_nan=False) + "\n")


def _together(study: Study, shares: list[Work], command: str, tell: Tell) -> None:
    """Every share in a process of its own; what is told is how many cells are done."""
    paths = [path for share in shares for _, path in share]
    with ProcessPoolExecutor(len(shares), mp_context=get_context("spawn")) as pool:
        left = {pool.submit(_one_share, study, share, command) for share in shares}
        while left:
            ended, left = wait(left, timeout=1.0, return_when=FIRST_COMPLETED)
            tell("cells", sum(path.exists() for path in paths), len(paths))
            for future in ended:
                future.result()


class _Memory:
    """What cells can share; only the latest of each kind is kept."""

    def __init__(self) -> None:
        self.tasks: dict[str, ShardedTask] = {}
        self.trained: dict[str, Walked] = {}


def _key(config: Config, prefixes: Iterable[str]) -> str:
    chosen = {k: v for k, v in flatten(config).items() if k.startswith(tuple(prefixes))}
    return json.dumps(chosen, sort_keys=True)


def _part(study: Study, cell: Cell, memory: _Memory, tell: Tell) -> dict[str, Any]:
    config = study.config(cell)
    data, training = _key(config, DATA), _key(config, TRAINING)
    assembled = assemble(config, memory.tasks.get(data))
    memory.tasks = {data: assembled.task}
    runner = Runner(assembled, tell=tell)
    needs_training = len(assembled.unlearning(cell.method).phases) > 1
    if needs_training and training not in memory.trained:
        memory.trained = {training: runner.walk("train", assembled.training(), None)}
    walked = runner.walk(
        cell.method,
        assembled.unlearning(cell.method),
        memory.trained[training] if needs_training else None,
    )
    return {
        "experiment": cell.experiment,
        "row": cell.row,
        "method": cell.method,
        "preset": study.preset,
        "seed": cell.seed,
        "settings": dict(cell.settings),
        "reported": asdict(cell.reported),
        "series": [asdict(r) for r in walked.readings],
        "final": walked.readings[-1].values(),
        "seconds": round(sum(walked.seconds), 3),
        "sigma": assembled.sigma,
        "train_hops": config.train.hops,
    }


def provenance(command: str) -> dict[str, str]:
    """Machine, commit and command: what a committed result must say about itself."""
    machine = platform.machine()
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {
        "machine": f"{machine}, torch {torch.__version__}",
        "commit": commit,
        "command": command,
    }
