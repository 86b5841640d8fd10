"""Repeats a run from its configuration, data and secrets, and compares hop by hop.

No new noise is drawn: the entry of each draw is looked up in the register of draws, and the noise
is computed again only if the entry exists.  The first difference ends the walk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unwalk.certificates.document import MODEL, model_of
from unwalk.core.noise import SecretNoise
from unwalk.core.plan import Outcome, Plan, Progress, Resume, Sink
from unwalk.core.token import Workspace
from unwalk.core.transcript import Transcript
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import Assembled, assemble
from unwalk.runs.releases import NotEntered, ReplayRegister, RunRegister
from unwalk.runs.run import Runner, carry
from unwalk.runs.store import settings_of
from unwalk.tasks.task import ShardedTask


class Differs(Exception):
    """A repeated hop differs from the recorded one."""


class Comparing:
    """The reference engine, which stops where a walk is no longer the recorded one."""

    together = False

    def __init__(self, recorded: Transcript) -> None:
        self.recorded = recorded
        self.sink: Sink | None = None

    def run(
        self, plans: Sequence[Plan], sink: Sink | None = None, resume: Resume | None = None
    ) -> Iterator[Outcome]:
        self.sink = sink
        for progress in (resume or {}).values():
            self.check(progress.transcript)
        return InProcess().run(plans, self, resume)

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        self.check(progress.transcript)
        if self.sink is not None:
            self.sink.after(index, progress, look)

    def check(self, again: Transcript) -> None:
        """Compare the hops walked so far with the recorded ones."""
        lines = again.lines
        known = self.recorded.lines[: len(lines)]
        if lines[-1:] != known[len(lines) - 1 :]:  # chained: all before it is the same too
            raise Differs(*compare_lines(known, lines))


def replay(
    run_dir: Path,
    recorded: Transcript,
    task: ShardedTask | None = None,
    *,
    certified: Mapping[str, Any] | None = None,
) -> list[str]:
    """The differences; empty if every line and the model's bytes are the same.

    ``certified`` is the certificate's entry for its model, which the repeated model must match.
    """
    config = settings_of(run_dir)
    assembled, method = _without_draws(assemble(config, task)), config.method
    runner = Runner(assembled)
    trained = runner.walk("train", assembled.training(), None)
    begun = runner.begin(method, assembled.unlearning(method, trained.outcome.transcript), trained)
    try:
        (again,) = carry([begun], Comparing(recorded))
    except (Differs, NotEntered) as difference:
        return [str(difference)]
    differences = compare_lines(recorded.lines, again.outcome.transcript.lines)
    model, made = run_dir / MODEL, again.saved()
    if not differences and model.is_file() and made != model.read_bytes():
        differences.append(f"{MODEL} is not the model that the run gives")
    if not differences and certified is not None and model_of(made) != certified:
        differences.append("the model that was certified is not the one that the run gives")
    return differences


def _without_draws(assembled: Assembled) -> Assembled:
    """The same assembly, with a register that is only read."""
    noise = assembled.noise
    if not isinstance(noise, SecretNoise):
        return assembled
    register = noise.register
    assert isinstance(register, RunRegister)
    reading = ReplayRegister(register.draws, register.marks)
    return replace(assembled, noise=replace(noise, register=reading))


def compare_lines(recorded: list[str], again: list[str]) -> list[str]:
    """The first line that differs, with the fields that do.

    >>> compare_lines(['{"hop":1,"chain":"a"}'], ['{"hop":2,"chain":"b"}'])
    ['transcript line 1 differs in hop when done again']
    """
    for number, (one, other) in enumerate(zip(recorded, again, strict=False), 1):
        if one != other:
            ours, theirs = json.loads(one), json.loads(other)
            keys = sorted(k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k))
            named = [k for k in keys if k != "chain"] or keys
            return [f"transcript line {number} differs in {', '.join(named)} when done again"]
    if len(recorded) != len(again):
        return [f"the transcript has {len(recorded)} lines; done again it has {len(again)}"]
    return []
