"""Carries cells out in parts; a part that is on disk is not computed again.

Cells of one seed share the data and, where their training settings agree, the trained model.  Every
cell leaves one JSON file; a study that was stopped continues with the next cell.  Cells whose whole
configuration is the same are one run, which leaves a file for each of them.
"""

from __future__ import annotations

import json
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from unwalk.core.validation import check_count
from unwalk.engines.choose import goes_together
from unwalk.experiments.cells import Cell
from unwalk.methods import defaults
from unwalk.runs import sweep as sweeping
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import Runner, Tell, Walked, carry, silent
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Count, Failed, uncounted
from unwalk.settings.config import UNSAID, Config, Value, flatten, run_id
from unwalk.tasks.task import ShardedTask

DATA = ("task", "peers", "seed", "data.", "forget.", "trigger.", "model.")
COSTS = {"dpsgd": 2, "retrain": 2}
"""The cost of a cell in walks of 100 hops, where it is not 1; without the training before it."""
FLEET = 64
"""How many cells' walks are carried out together, where a fleet carries them out."""
UNSEEN = Failed(
    "its part is not in the folder; give an --out that all machines of the cluster can write to"
)
TRAINING = (*DATA, "streams", "train.", "graph.", "device", "evaluate.", "performance.")


@dataclass(frozen=True)
class Study:
    """Cells on one task with one preset; ``settings`` apply to every cell."""

    task: str
    preset: str
    cells: tuple[Cell, ...]
    settings: Mapping[str, Value]

    @cached_property
    def _known(self) -> dict[str, Config]:
        return {}

    def config(self, cell: Cell) -> Config:
        """The whole configuration of a cell."""
        if cell.name not in self._known:
            self._known[cell.name] = self._resolved(cell)
        return self._known[cell.name]

    def _resolved(self, cell: Cell) -> Config:
        base: dict[str, Value] = {
            "task": self.task,
            "preset": self.preset,
            "method": cell.method,
            "seed": cell.seed,
            "compare": [],
        }
        return resolve({**base, **self.settings, **cell.settings}, where=cell.name)

    @cached_property
    def _curves(self) -> set[str]:
        return {run_id(self.config(cell)) for cell in self.cells if cell.curve}

    def shows(self, cell: Cell) -> bool:
        """Whether a cell with this one's configuration shows all measurements of their run."""
        return run_id(self.config(cell)) in self._curves

    def path(self, cell: Cell, parts: Path) -> Path:
        """Where a cell leaves its part."""
        return parts / f"{self.task}-{self.preset}-{cell.name}.json"


Work = list[tuple[Cell, Path]]


def carry_out(
    study: Study,
    parts: Path,
    tell: Tell = silent,
    *,
    command: str = "",
    collect: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    count: Count = uncounted,
) -> list[dict[str, Any] | Failed | None]:
    """The part of every cell, in order of the cells; finished parts are read, not run.

    A cell that fails has its reason instead.  With ``collect`` nothing is run: a part that is not
    there is None.  ``jobs`` processes share the work; on one graphics card they gain most with
    CUDA's multi-process service.  All machines of a ``cluster`` must see the folder of parts.
    """
    check_count("jobs", jobs, low=1)
    todo = [] if collect else _todo(study, parts)
    failed: dict[str, Failed] = {}
    if todo:
        parts.mkdir(parents=True, exist_ok=True)
        with _Clock(study, todo, jobs, provenance(command), count) as clock:
            failed = _swept(study, todo, command, tell, clock, jobs, cluster)
    ends: list[dict[str, Any] | Failed | None] = []
    for cell in study.cells:
        path, why = study.path(cell, parts), failed.get(run_id(study.config(cell)))
        ends.append(json.loads(path.read_text(encoding="utf-8")) if path.exists() else why)
    return ends


def _swept(
    study: Study,
    todo: Work,
    command: str,
    tell: Tell,
    clock: _Clock,
    jobs: int,
    cluster: str | None,
) -> dict[str, Failed]:
    """Carry out what is to be done, a share for each process; returns failures by their run."""
    here = jobs == 1 and cluster is None
    shares = [todo] if here else [share for share in deal(todo, jobs) if share]
    told = (tell, clock.write) if here else ()
    cells = [
        sweeping.Cell(f"share {number}", _one_share, (study, share, command, *told))
        for number, share in enumerate(shares)
    ]
    ends = dict(sweeping.sweep(cells, jobs=jobs, cluster=cluster))
    failed: dict[str, Failed] = {}
    for share, end in zip(shares, (ends[cell.name] for cell in cells), strict=True):
        for cell, path in share:
            if not path.exists():
                why = end if isinstance(end, Failed) else end.get(cell.name, UNSEEN)
                failed[run_id(study.config(cell))] = why
    return failed


def _todo(study: Study, parts: Path) -> Work:
    """The cells to be run: each configuration once, and none that a finished part has."""
    ordered = sorted(study.cells, key=lambda cell: (cell.method == "dpsgd", cell.seed))
    missing: dict[str, list[Cell]] = {}
    done: dict[str, dict[str, Any]] = {}
    for cell in ordered:
        path, run = study.path(cell, parts), run_id(study.config(cell))
        if path.exists():
            part = json.loads(path.read_text(encoding="utf-8"))
            serves = part.get("run") == run and (part.get("curve", True) or not study.shows(cell))
            done |= {run: part} if serves else {}
        else:
            missing.setdefault(run, []).append(cell)
    for run in missing.keys() & done.keys():
        _write_parts(study, parts, done[run], missing.pop(run))
    return [(cells[0], study.path(cells[0], parts)) for cells in missing.values()]


def _write_parts(study: Study, parts: Path, part: dict[str, Any], cells: Iterable[Cell]) -> None:
    """Write the result of one run as the part of every cell that asks for this run."""
    for cell in cells:
        own = {**part, **_asked(cell)}
        write_file(study.path(cell, parts), json.dumps(own, allow_nan=False) + "\n")


class _Clock:
    """The time that one call has worked, written after every part, since the call may be killed.

    Parts of other processes are noticed within a second.
    """

    def __init__(
        self, study: Study, todo: Work, jobs: int, origin: Mapping[str, str], count: Count
    ) -> None:
        self.since, begun = time.perf_counter(), datetime.now(UTC)
        name = f"timing-{study.task}-{study.preset}-{begun:%Y%m%dT%H%M%S%f}.json"
        self.todo, self.path, self.origin = todo, todo[0][1].parent / name, origin
        self.count, self.before, self.over = count, 0, threading.Event()
        self.lock = threading.Lock()
        self.known = {
            "task": study.task,
            "preset": study.preset,
            "begun": begun.isoformat(timespec="seconds"),
            "jobs": jobs,
        }
        self.watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Clock:
        self.count(0, len(self.todo))
        self.watching.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.over.set()
        self.watching.join()
        self.write()

    def _watch(self) -> None:
        while not self.over.wait(1.0):
            self.write()

    def write(self) -> None:
        """Write the wall time so far and the parts that ended, if there is a new one."""
        with self.lock:
            ended = [cell.name for cell, path in self.todo if path.exists()]
            seconds = round(time.perf_counter() - self.since, 3)
            if len(ended) > self.before:
                self.before = len(ended)
                timing = {**self.known, "seconds": seconds, "cells": ended, **self.origin}
                write_file(self.path, json.dumps(timing, indent=1) + "\n")
                self.count(len(ended), len(self.todo))


def deal(todo: Work, jobs: int) -> list[Work]:
    """Divide cells among processes so that the longest share is as short as it can be.

    Neighbours stay together, since those of one seed share a training in each share.
    """
    most = 1
    while len(shares := _filled(todo, most)) > jobs:
        most += 1
    return shares


def _filled(todo: Work, most: int) -> list[Work]:
    """Shares one after the other, each as full as a cost of ``most`` lets it be."""
    shares: list[Work] = []
    cost, trained = most, None
    for cell, path in todo:
        key = (cell.method == "dpsgd", cell.seed)
        own = COSTS.get(cell.method, 1)
        training = int(cell.method != "retrain" and key != trained)
        if not shares or cost + own + training > most:
            shares.append([])
            cost, trained, training = 0, None, int(cell.method != "retrain")
        shares[-1].append((cell, path))
        cost += own + training
        trained = key if cell.method != "retrain" else trained
    return shares


def _one_share(
    study: Study,
    todo: Work,
    command: str,
    tell: Tell = silent,
    after: Callable[[], None] = lambda: None,
) -> dict[str, Failed]:
    """Leave the part of every cell of a share; returns those that failed, by name."""
    memory = _Memory()
    size = _at_once(study.config(todo[0][0]), memory)
    folder = todo[0][1].parent
    same: dict[str, list[Cell]] = {}
    for cell in study.cells:
        if not study.path(cell, folder).exists():
            same.setdefault(run_id(study.config(cell)), []).append(cell)
    failed: dict[str, Failed] = {}
    left = [cell for cell, path in todo if not path.exists()]  # of a share that is run once more
    for start in range(0, len(left), size):
        cells = left[start : start + size]
        for cell, part in zip(cells, _ends(study, cells, memory, tell), strict=True):
            if isinstance(part, Failed):
                failed[cell.name] = part
                continue
            whole = {**part, **provenance(command)}
            others = [c for c in same.get(part["run"], []) if c.name != cell.name]
            _write_parts(study, folder, whole, [cell, *others])
        after()
    return failed


def _at_once(config: Config, memory: _Memory) -> int:
    """How many cells are carried together: one, unless a fleet carries them."""
    if config.performance.engine == "inprocess":
        return 1
    assembled = assemble(config)
    memory.tasks = {_key(config, DATA): assembled.task}
    return FLEET if goes_together([assembled.training()] * 2, config.performance.engine) else 1


class _Memory:
    """A cache of what cells share; only what the latest cells needed is kept."""

    def __init__(self) -> None:
        self.tasks: dict[str, ShardedTask] = {}
        self.trained: dict[str, Walked] = {}

    def task(self, config: Config) -> ShardedTask | None:
        """The cached task for such a cell, or None."""
        return self.tasks.get(_key(config, DATA))


def _key(config: Config, prefixes: Iterable[str]) -> str:
    chosen = {k: v for k, v in flatten(config).items() if k.startswith(tuple(prefixes))}
    return json.dumps(chosen, sort_keys=True)


def _ends(
    study: Study, cells: list[Cell], memory: _Memory, tell: Tell
) -> list[dict[str, Any] | Failed]:
    """The parts of cells, carried out together, or one by one if that fails."""
    try:
        return list(_parts(study, cells, memory, tell))
    except Exception as error:
        if len(cells) == 1:
            return [Failed.by(error)]
    return [end for cell in cells for end in _ends(study, [cell], memory, tell)]


def _parts(study: Study, cells: list[Cell], memory: _Memory, tell: Tell) -> list[dict[str, Any]]:
    """The parts of cells whose walks are carried together: first all training, then the rest."""
    engine = study.config(cells[0]).performance.engine
    runners: list[Runner] = []
    tasks: dict[str, ShardedTask] = {}
    for cell in cells:
        config = study.config(cell)
        task = memory.task(config) or tasks.get(_key(config, DATA))
        runners.append(Runner(assemble(config, task), tell=_named(tell, cell, len(cells))))
        # Documents show test and backdoor accuracy alone.
        runners[-1].meter.forgotten = runners[-1].meter.retained = None
        tasks[_key(config, DATA)] = runners[-1].assembled.task
    memory.tasks = tasks
    plans = [r.assembled.unlearning(c.method) for r, c in zip(runners, cells, strict=True)]
    wanted = {
        _key(runner.config, TRAINING): runner
        for runner, plan in zip(runners, plans, strict=True)
        if len(plan.phases) > 1
    }
    missing = {key: runner for key, runner in wanted.items() if key not in memory.trained}
    if missing:
        training = [r.begin("train", r.assembled.training(), None) for r in missing.values()]
        kept = {key: walked for key, walked in memory.trained.items() if key in wanted}
        memory.trained = kept | dict(zip(missing, carry(training, engine), strict=True))
    begun = []
    for runner, cell, plan in zip(runners, cells, plans, strict=True):
        key = _key(runner.config, TRAINING)
        trained = memory.trained.get(key) if len(plan.phases) > 1 else None
        every = None if study.shows(cell) else plan.hops
        begun.append(runner.begin(cell.method, plan, trained, every))
    ended = carry(begun, engine)
    return [_part(study, *given) for given in zip(cells, runners, ended, strict=True)]


def _named(tell: Tell, cell: Cell, cells: int) -> Tell:
    """Report progress with the name of the cell in front, where several are under way."""
    if cells == 1:
        return tell
    return lambda walk, done, hops: tell(f"{cell.name} {walk}", done, hops)


def _asked(cell: Cell) -> dict[str, Any]:
    """The part's entries about its cell; the rest is common to all cells of the same run."""
    return {
        "experiment": cell.experiment,
        "row": cell.row,
        "method": cell.method,
        "seed": cell.seed,
        "settings": dict(cell.settings),
        "reported": asdict(cell.reported),
    }


def _part(study: Study, cell: Cell, runner: Runner, walked: Walked) -> dict[str, Any]:
    return {
        **_asked(cell),
        "preset": study.preset,
        "run": run_id(study.config(cell)),
        "run_as": cell.name,
        "curve": study.shows(cell),
        "configuration": changed(study.config(cell)),
        "series": [asdict(r) for r in walked.readings],
        "final": walked.readings[-1].values(),
        "seconds": round(sum(walked.seconds), 3),
        "sigma": runner.assembled.calibrated("rrdu").scale,
        "train_hops": runner.config.train.hops,
    }


def changed(config: Config) -> dict[str, Value]:
    """The settings that differ from the defaults, and the version of streams, which files name."""
    usual = flatten(defaults())
    return {
        key: value for key, value in flatten(config).items() if value != usual[key] or key in UNSAID
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
