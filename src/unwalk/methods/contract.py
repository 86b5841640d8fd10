"""What every method keeps to, ours and a user's own, checked visit by visit.

Certificates rest on what programs say of themselves: a batch of ``retained`` rows holds no record
to be forgotten.  Our methods are tested with these checks (``tests/methods/test_contract.py``).  A
user's own method (``package.module:method``) always runs with them, and claims nothing: whether its
settings, routes and step sizes depend on the forgotten records cannot be read off its events.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Method, Phase
from unwalk.core.program import (
    AddNoise,
    Dampen,
    Distil,
    Edit,
    Forget,
    Importance,
    Mask,
    NewtonStep,
    Op,
    Program,
    Project,
    Records,
    ReplaceSums,
    Rows,
    Steps,
    Visit,
)
from unwalk.methods.record import UNPROVED, Decided, MethodRecord, no_facts
from unwalk.settings.config import Config

OPS = (Steps, AddNoise, Project, Forget, ReplaceSums, Edit)


@dataclass(frozen=True)
class Wrapper:
    """Goes by the name of another ``method``, and takes the same moments along."""

    method: Method

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def travels(self) -> tuple[str, ...]:
        """Moment vectors that travel in the token."""
        return self.method.travels


@dataclass(frozen=True)
class Checked(Wrapper):
    """A method whose every program is checked before it is carried out."""

    def visit(self, visit: Visit) -> Program:
        twin = replace(visit, rng=copy.deepcopy(visit.rng))
        program = self.method.visit(visit)
        self._check(visit, program)
        if visit.phase_hop == 1 and not same(program, self.method.visit(twin)):
            raise InvalidInput(
                f"method {self.name!r} made two programs of one visit (hop {visit.hop}); allowed: "
                "a function of the visit, whose only randomness is visit.rng."
            )
        return program

    def _check(self, visit: Visit, program: Program) -> None:
        place = f"method {self.name!r} at hop {visit.hop}"
        if not isinstance(program, tuple) or not all(isinstance(op, OPS) for op in program):
            raise InvalidInput(
                f"{place} returned {type(program).__name__}; allowed: a tuple of operations of "
                "unwalk.core.program."
            )
        for op in program:
            for data, rows in _rows_of(op):
                _check_rows(place, visit.records, data, rows)


def _rows_of(op: Op) -> list[tuple[str, Rows]]:
    """The rows that an operation uses, each with the records that they are said to be of."""
    match op:
        case Steps():
            return [("all" if op.data == "mixed" else op.data, op.batches)]
        case Distil():
            return _rows_of(op.steps)
        case Importance():
            return [(op.data, op.batches)]
        case Dampen() | Mask():
            return [("forgotten", op.batches)]
        case NewtonStep():
            return [("forgotten", op.forgotten), ("retained", op.retained)]
        case _:
            return []


def _check_rows(place: str, records: Records, data: str, rows: Rows) -> None:
    strange = np.setdiff1d(rows[rows >= 0], records.rows(data))
    if strange.size:
        raise InvalidInput(
            f"{place} uses row {int(strange[0])} in a batch of {data!r} records; allowed there: "
            f"the {records.rows(data).size} rows of visit.records.rows({data!r})."
        )


def same(one: Any, other: Any) -> bool:
    """Whether two programs, or parts of them, say the same.

    >>> same((np.arange(2), 1.0), (np.arange(2), 1.0)), same(np.arange(2), np.arange(3))
    (True, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)


def checked(record: MethodRecord) -> MethodRecord:
    """The same method, with every program checked."""

    def phase(config: Config, decided: Decided) -> Phase:
        return _checked(record.phase(config, decided))

    training: Callable[[Config, Decided], tuple[Phase, ...]] | None = None
    if record.training is not None:
        given = record.training

        def training(config: Config, decided: Decided) -> tuple[Phase, ...]:
            return tuple(map(_checked, given(config, decided)))

    return replace(record, phase=phase, training=training)


def _checked(phase: Phase) -> Phase:
    return replace(phase, method=Checked(phase.method))


def own(record: MethodRecord, name: str) -> MethodRecord:
    """A user's method under its ``name``: checked, and without claims of its own."""
    return replace(
        checked(record),
        name=name,
        label=record.title,
        guarantee=UNPROVED,
        nominal=None,
        facts=no_facts,
        way_back=None,
        shard=None,
        beside_restart=False,
        line="",
    )
