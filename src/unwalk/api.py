"""The functions most people call: :func:`run` and :func:`compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unwalk.runs import compare as comparing
from unwalk.runs.assemble import resolve
from unwalk.runs.config import Config, Value
from unwalk.runs.run import RunResult
from unwalk.runs.run import run as run_config
from unwalk.tasks import ShardedTask


def _configure(
    task: str | ShardedTask,
    method: str,
    preset: str,
    seed: int,
    settings: Mapping[str, Value] | None,
) -> tuple[Config, ShardedTask | None]:
    changes: dict[str, Value] = {"method": method, "preset": preset, "seed": seed}
    own = None if isinstance(task, str) else task
    if own is None:
        changes["task"] = str(task)
    else:
        changes |= {"task": own.name, "peers": own.peers, "forget.peer": own.unlearner}
    return resolve({**changes, **(settings or {})}), own


def run(
    task: str | ShardedTask = "digits",
    *,
    method: str = "rrdu",
    preset: str = "practical",
    seed: int = 0,
    settings: Mapping[str, Value] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> RunResult:
    """Train by token walk, forget, and measure.

    ``task`` is a name or a task of your own (:func:`unwalk.from_arrays`); ``settings`` holds any
    key that ``unwalk settings`` lists, such as ``{"train.hops": 50, "unlearn.p": 0.2}``.
    """
    config, own = _configure(task, method, preset, seed, settings)
    place = None if out is None else Path(out)
    return run_config(config, task=own, out=place, overwrite=overwrite)


def compare(
    task: str | ShardedTask = "digits",
    *,
    methods: Sequence[str] = ("rrdu", "finetune", "retrain"),
    preset: str = "practical",
    seeds: int = 5,
    settings: Mapping[str, Value] | None = None,
) -> comparing.Comparison:
    """Run several methods over several seeds; the result holds means and deviations."""
    main, *others = methods
    given: dict[str, Value] = {**(settings or {}), "compare": list(others)}
    config, own = _configure(task, main, preset, 0, given)
    return comparing.compare(config, seeds, task=own)
