"""Runs that take a fraction of a second, for tests of settings, results and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unwalk.runs.assemble import resolve
from unwalk.runs.run import RunResult, run
from unwalk.settings.config import Config, Value

BLOBS: dict[str, Value] = {
    "task": "blobs",
    "peers": 4,
    "train.hops": 6,
    "unlearn.hops": 6,
    "train.batch": 32,
    "evaluate.every": 3,
    "data.records": 64,
    "performance.checkpoint": 0,
}
DIGITS: dict[str, Value] = {
    "task": "digits",
    "model.name": "mlp",
    "peers": 4,
    "train.hops": 6,
    "unlearn.hops": 6,
    "evaluate.every": 3,
}


def small(base: dict[str, Value] = BLOBS, **changes: Value) -> Config:
    """A configuration of a small run; ``train__hops=3`` sets ``train.hops``."""
    return resolve({**base, **{k.replace("__", "."): v for k, v in changes.items()}})


def small_run(base: dict[str, Value] = BLOBS, *, out: Path | None = None, **changes: Value) -> Any:
    """Such a run, carried out."""
    result: RunResult = run(small(base, **changes), out=out)
    return result


def options(settings: dict[str, Value]) -> list[str]:
    """The same settings for the command line."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def untimed(value: Any) -> Any:
    """A result without what the clock said and how it was called."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if "seconds" not in k and k != "command"}
    return [untimed(v) for v in value] if isinstance(value, list) else value
