"""A user's own methods, as ``package.module:name`` names them: a good one, and bad ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import Program, Steps, Visit
from unwalk.methods.network_sgd import Descending, unlearn_descent, unlearn_phase
from unwalk.methods.record import Decided, MethodRecord
from unwalk.methods.retrain import FRESH
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class TwiceSettings:
    """Go over retained records several times."""

    key: ClassVar[str] = "twice"
    times: int = setting(2, "passes per visit", low=1)


@dataclass(frozen=True)
class Twice(Descending):
    times: int
    name: str = field(default="twice", init=False)

    def visit(self, visit: Visit) -> Program:
        passes = [self.descent.program(visit, "retained") for _ in range(self.times)]
        return tuple(itertools.chain.from_iterable(passes))


def _phase(config: Config, decided: Decided) -> Phase:
    method = Twice(unlearn_descent(config), config.of(TwiceSettings).times)
    return unlearn_phase(config, method, walks.Uniform(), start="initial")


RECORD = MethodRecord(
    name="twice",
    label="twice over",
    description="a user's own",
    phase=_phase,
    settings=TwiceSettings,
    guarantee=FRESH,
)


def method() -> MethodRecord:
    return replace(RECORD, settings=None, phase=_plain)


def _plain(config: Config, decided: Decided) -> Phase:
    return unlearn_phase(config, Twice(unlearn_descent(config), 2), walks.Uniform())


@dataclass(frozen=True)
class Lying(Descending):
    """Says that its rows are retained ones, and takes all."""

    name: str = field(default="lying", init=False)

    def visit(self, visit: Visit) -> Program:
        program = self.descent.program(visit, "all")
        return tuple(replace(op, data="retained") for op in program if isinstance(op, Steps))


@dataclass(frozen=True)
class Moody(Descending):
    """Does something else at every call."""

    calls: list[int] = field(default_factory=list)
    name: str = field(default="moody", init=False)

    def visit(self, visit: Visit) -> Program:
        self.calls.append(1)
        return self.descent.program(visit, "retained") * len(self.calls)


def lying() -> MethodRecord:
    return replace(RECORD, settings=None, phase=_walking(Lying))


def moody() -> MethodRecord:
    return replace(RECORD, settings=None, phase=_walking(Moody))


@dataclass(frozen=True)
class Wordy(Descending):
    """Returns no program."""

    name: str = field(default="wordy", init=False)

    def visit(self, visit: Visit) -> Program:
        return ("descend",)  # type: ignore[return-value]


def wordy() -> MethodRecord:
    return replace(RECORD, settings=None, phase=_walking(Wordy))


def _walking(kind):  # type: ignore[no-untyped-def]
    def phase(config: Config, decided: Decided) -> Phase:
        return unlearn_phase(config, kind(unlearn_descent(config)), walks.Uniform())

    return phase


number = 3
