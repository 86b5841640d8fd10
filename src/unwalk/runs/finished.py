"""A finished run as a planner reads it: its settings with another request, and its log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.transcript import Transcript
from unwalk.methods import METHODS
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.planner import Budget, Log, Planned, Planner, Rates, free_readings
from unwalk.runs.store import CONFIG
from unwalk.settings.config import Config, Value, flatten, read_written
from unwalk.tasks import TASKS, ShardedTask, can_be_named

TRAINING = ("task", "seed", "streams", "peers", "graph.", "model.", "data.", "train.", "trigger.")
"""Settings by which a training run is what it is."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run's training, with what somebody wants forgotten of it."""

    planner: Planner
    log: Log

    def plan(self, grade: str, rates: Rates | None = None, budget: Budget | None = None) -> Planned:
        """All ways, and the cheapest that reaches ``grade``, by the times of the log."""
        rates = self.log.measured(rates or Rates())
        return self.planner.plan(grade, rates, budget).informed(self.log)

    @staticmethod
    def read(
        folder: Path, changes: Mapping[str, Value], task: ShardedTask | None = None
    ) -> FinishedRun:
        """The run in ``folder``; ``changes`` are settings of the request.

        A task that was brought along has to be brought again.
        """
        path = folder / CONFIG
        if not path.is_file() or not (folder / "transcript.jsonl").is_file():
            raise InvalidInput(
                f"{folder} has no {CONFIG} with a transcript.jsonl; allowed: the folder of a "
                "finished run."
            )
        written = read_written(path)
        before = resolve({}, written, file_name=str(path))
        if task is None and not can_be_named(before.task):
            raise InvalidInput(
                f"the run was made with the task {before.task!r}, which was brought along; call "
                "unwalk.plan(run_dir=..., task=...) with the same task."
            )
        config = resolve(changes, written, file_name=str(path))
        _check_same_training(before, config)
        assembled = assemble(config, task)
        if _asked(before) != _asked(config):
            _check_not_planted(before, assembled.task)
        walked = _training(folder, before)
        planner = Planner(assembled, walked)
        return FinishedRun(planner, _log(folder, planner, same=_asked(before) == _asked(config)))


def _asked(config: Config) -> dict[str, Value]:
    return {key: value for key, value in flatten(config).items() if key.startswith("forget.")}


def _check_same_training(before: Config, now: Config) -> None:
    """Refuse a request that is not about the training that happened."""
    old, new = flatten(before), flatten(now)
    for key in old:
        if old[key] != new[key] and key.startswith(TRAINING):
            raise InvalidInput(
                f"{key} is {new[key]!r}, but the run was trained with {old[key]!r}; a request may "
                "change what is forgotten (forget.) and how (unlearn., noise., seal.)."
            )


def _check_not_planted(before: Config, now: ShardedTask) -> None:
    """Refuse another request than that of a run with a backdoor."""
    recipe = TASKS.get(before.task)
    usual = None if recipe is None else recipe.forget.kind
    if "backdoor" in (before.forget.kind or usual, now.forget_kind):
        raise InvalidInput(
            "a backdoor is planted before training, so that other records are another training; "
            "allowed: the run's own forget. settings, or a run without a backdoor."
        )


def _training(folder: Path, config: Config) -> Transcript:
    """The hops of the training walk."""
    if METHODS[config.method].from_scratch:
        raise InvalidInput(
            f"{folder} is a run of {config.method}, whose log has no training; allowed: a run of "
            "a method that continues from training."
        )
    transcript = Transcript.read(folder / "transcript.jsonl")
    last = transcript.header["phases"][-1]["name"]
    return Transcript(transcript.header, [h for h in transcript.hops if h.phase != last])


def _log(folder: Path, planner: Planner, *, same: bool) -> Log:
    """Times of all hops, and accuracies of models that had not met the records.

    Those of retraining count where it was made without the ``same`` records.
    """
    assert planner.walked is not None
    name, contact = planner.config.method, planner.first_contact
    seconds = [
        float(line["seconds"])
        for line in map(json.loads, _lines(folder / "timing.jsonl"))
        if line["walk"] == name and line["hop"] <= len(planner.walked.hops)
    ]
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Corrupt(f"{folder / 'result.json'} cannot be read ({error}).") from error
    accuracies: dict[int, float] = {}
    for one in result["methods"]:
        points = [(p["hop"], p["phase"], p["clean"]) for p in one["series"]]
        if one["name"] != "retrain":
            accuracies |= dict(free_readings(points, contact))
        elif same:
            accuracies |= {hop: clean for hop, _, clean in points}
    return Log(seconds, [hop.gradients for hop in planner.walked.hops], sorted(accuracies.items()))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
