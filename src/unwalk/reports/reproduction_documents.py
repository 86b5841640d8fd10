"""The reproduction's documents, read: one experiment on one task each.

A document is what ``unwalk reproduce`` writes: where it was run, and one row a seed.  Accuracies
stand there as fractions; here they are per cent, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from unwalk.core.errors import InvalidInput

FIGURE = "figure1"
EXPERIMENTS = (FIGURE, "table-p", "table-rho", "table-l", "table-epsilon", "table-delta")
TASKS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
"""The paper's datasets, as they are written."""

MEASURES = ("clean", "asr_paper", "asr")
"""Test accuracy; backdoor accuracy as the paper counts it; the same without the target class."""

RETRAIN = "retrain"
FIRST = ("rrdu", "paper-matched")


class EndPoint(Protocol):
    """What the paper reports for one line of the figure, in per cent."""

    @property
    def clean(self) -> float | None:
        """Test accuracy."""

    @property
    def asr(self) -> float | None:
        """Backdoor accuracy."""


Reported = Mapping[str, Mapping[str, EndPoint]]
"""The figure's end points by task and method."""


@dataclass(frozen=True)
class Reading:
    """One row of a document: ``row`` is a method or a value, ``hop`` is the figure's alone."""

    row: str
    preset: str
    seed: int
    hop: int | None
    values: Mapping[str, float]
    reported: Mapping[str, float]
    sigma: float | None


@dataclass(frozen=True)
class Source:
    """Where a document's numbers come from."""

    name: str
    machine: str
    commit: str
    command: str


@dataclass(frozen=True)
class Part:
    """One experiment on one task, from one document or several."""

    experiment: str
    task: str
    sources: tuple[Source, ...]
    readings: tuple[Reading, ...]
    train_hops: int | None

    @property
    def name(self) -> str:
        """As its document is named."""
        return f"{self.experiment}-{self.task}"

    @cached_property
    def presets(self) -> tuple[str, ...]:
        """In the order of the rows, the one that fits the paper first."""
        return _unique(r.preset for r in self.readings)

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Methods or values, in the order of the document."""
        return _unique(r.row for r in self.readings)

    def of(self, row: str, preset: str) -> list[Reading]:
        """The readings of one row with one preset."""
        return self._groups.get((row, preset), [])

    @cached_property
    def _groups(self) -> dict[tuple[str, str], list[Reading]]:
        found: dict[tuple[str, str], list[Reading]] = {}
        for r in self.readings:
            found.setdefault((r.row, r.preset), []).append(r)
        return found


def collect(documents: Mapping[str, Any], reported: Reported | None = None) -> list[Part]:
    """The documents by experiment and task, in the paper's order."""
    found: dict[tuple[str, str], Part] = {}
    for name, document in documents.items():
        part = _read(name, _object(name, document), reported or {})
        key = (part.experiment, part.task)
        found[key] = _merged(found[key], part) if key in found else part
    for part in found.values():
        _check_once(part)
    order = _order(task for _, task in found)
    keys = sorted(found, key=lambda k: (EXPERIMENTS.index(k[0]), order.index(k[1])))
    return [found[key] for key in keys]


def tasks(parts: Sequence[Part]) -> list[str]:
    """The tasks that are expected: the paper's, unless all parts are of others."""
    present = _order(p.task for p in parts)
    return _order([*TASKS, *present]) if not present or set(present) & set(TASKS) else present


def missing(parts: Sequence[Part]) -> list[str]:
    """The documents that the paper has and that were not given."""
    there = {p.name for p in parts}
    names = [f"{e}-{t}" for e in EXPERIMENTS for t in tasks(parts)]
    return [name for name in names if name not in there]


def _read(name: str, source: Mapping[str, Any], reported: Reported) -> Part:
    experiment = next((e for e in EXPERIMENTS if name == e or name.startswith(f"{e}-")), None)
    if experiment is None:
        raise InvalidInput(
            f"a document is named {name!r}; allowed: {', '.join(EXPERIMENTS)} and a task."
        )
    task = str(source.get("task") or name[len(experiment) + 1 :])
    rows = source.get("rows")
    if not task or not isinstance(rows, list | tuple) or not rows:
        lacks = "rows" if task else "task"
        raise InvalidInput(f"the document {name} has no {lacks}; allowed: a task and its rows.")
    told = reported.get(task, {}) if experiment == FIGURE else {}
    read = _figure_row if experiment == FIGURE else _table_row
    hops = _number(source.get("train_hops"))
    return Part(
        experiment,
        task,
        (Source(name, *(str(source.get(k) or "") for k in ("machine", "commit", "command"))),),
        tuple(read(f"{name}.rows[{i}]", _object(name, row), told) for i, row in enumerate(rows)),
        None if hops is None else int(hops),
    )


def _figure_row(place: str, row: Mapping[str, Any], told: Mapping[str, EndPoint]) -> Reading:
    method, hop = str(row.get("method") or ""), _number(row.get("hop"))
    if not method or hop is None:
        raise InvalidInput(f"{place} is {dict(row)!r}; allowed: a method at a hop.")
    end = told.get(method)
    reported = {} if end is None else _known({"clean": end.clean, "asr_paper": end.asr})
    return Reading(method, *_who(row), int(hop), _fractions(place, row), reported, None)


def _table_row(place: str, row: Mapping[str, Any], told: Mapping[str, EndPoint]) -> Reading:
    if row.get("row") is None:
        raise InvalidInput(f"{place} is {dict(row)!r}; allowed: the row of a table.")
    ends = {"clean": row.get("reported_clean"), "asr_paper": row.get("reported_asr")}
    values, sigma = _fractions(place, row), _number(row.get("sigma"))
    return Reading(str(row["row"]), *_who(row), None, values, _known(ends), sigma)


def _who(row: Mapping[str, Any]) -> tuple[str, int]:
    return str(row.get("preset") or ""), int(_number(row.get("seed")) or 0)


def _fractions(place: str, row: Mapping[str, Any]) -> dict[str, float]:
    found = _known({m: row.get(m) for m in MEASURES})
    for measure, value in found.items():
        if not 0.0 <= value <= 1.0:
            raise InvalidInput(f"{place}.{measure} is {value!r}; allowed: a fraction in [0, 1].")
    return {measure: 100 * value for measure, value in found.items()}


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    found = {key: _number(value) for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    return None if wrong or not math.isfinite(value) else value


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} holds a {type(value).__name__}; allowed: an object.")
    return value


def _merged(one: Part, other: Part) -> Part:
    hops = other.train_hops if one.train_hops is None else one.train_hops
    sources, readings = (*one.sources, *other.sources), (*one.readings, *other.readings)
    return Part(one.experiment, one.task, sources, readings, hops)


def _check_once(part: Part) -> None:
    seen = set()
    for r in part.readings:
        key = (r.row, r.preset, r.seed, r.hop)
        if key in seen:
            raise InvalidInput(
                f"{part.name} has seed {r.seed} of {r.row} (preset {r.preset or 'unnamed'}) twice; "
                "allowed: each seed once."
            )
        seen.add(key)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(names), key=lambda name: name not in FIRST))


def _order(names: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    return [t for t in TASKS if t in found] + [t for t in found if t not in TASKS]
