"""Reads the documents of ``unwalk reproduce`` and sets their numbers beside the paper's.

A document is one experiment on one task: where it was run, and one row for each seed.  There
accuracies are fractions; here they are per cent, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers

FIGURE = "figure1"
EXPERIMENTS = (FIGURE, "table-p", "table-rho", "table-l", "table-epsilon", "table-delta")
TASKS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
"""The paper's datasets, as they are written."""

MEASURES = ("clean", "asr_paper", "asr")
"""Test accuracy; backdoor accuracy as the paper counts it; the same without the target class."""

RETRAIN = "retrain"
FIRST = ("rrdu", "paper-matched")

AGREE_POINTS = 2.0
AGREE_STDS = 2.0
NEAR_POINTS = 5.0

MARKS = {"agree": "✓", "spread": "✓±", "near": "≈", "differ": "✗"}
"""The sign of each kind of agreement."""

METHODS = {
    "rrdu": "RR-DU",
    "finetune": "Fine-tuning",
    "dpsgd": "DP-SGD",
    "ddp": "DDP",
    RETRAIN: "Retraining",
}
HEADS = {
    FIGURE: "Method",
    "table-p": "p",
    "table-rho": "ρ",
    "table-l": "L",
    "table-epsilon": "ε",
    "table-delta": "δ",
}
"""What the first column of each experiment holds."""


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
        groups: dict[tuple[str, str], list[Reading]] = {}
        for r in self.readings:
            groups.setdefault((r.row, r.preset), []).append(r)
        return groups


def collect(documents: Mapping[str, Any], reported: Reported | None = None) -> list[Part]:
    """The documents by experiment and task, in the paper's order."""
    parts: dict[tuple[str, str], Part] = {}
    for name, document in documents.items():
        part = _read(name, _object(name, document), reported or {})
        key = (part.experiment, part.task)
        parts[key] = _merged(parts[key], part) if key in parts else part
    for part in parts.values():
        _check_once(part)
    order = _order(task for _, task in parts)
    keys = sorted(parts, key=lambda k: (EXPERIMENTS.index(k[0]), order.index(k[1])))
    return [parts[key] for key in keys]


def tasks(parts: Sequence[Part]) -> list[str]:
    """The tasks that are expected: the paper's, unless all parts are of others."""
    present = _order(p.task for p in parts)
    return _order([*TASKS, *present]) if not present or set(present) & set(TASKS) else present


def missing(parts: Sequence[Part]) -> list[str]:
    """The documents that the paper has and that were not given."""
    present = {p.name for p in parts}
    names = [f"{e}-{t}" for e in EXPERIMENTS for t in tasks(parts)]
    return [name for name in names if name not in present]


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
    ends = reported.get(task, {}) if experiment == FIGURE else {}
    read = _figure_row if experiment == FIGURE else _table_row
    hops = _number(source.get("train_hops"))
    return Part(
        experiment,
        task,
        (Source(name, *(str(source.get(k) or "") for k in ("machine", "commit", "command"))),),
        tuple(read(f"{name}.rows[{i}]", _object(name, row), ends) for i, row in enumerate(rows)),
        None if hops is None else int(hops),
    )


def _figure_row(place: str, row: Mapping[str, Any], ends: Mapping[str, EndPoint]) -> Reading:
    method, hop = str(row.get("method") or ""), _number(row.get("hop"))
    if not method or hop is None:
        raise InvalidInput(f"{place} is {dict(row)!r}; allowed: a method at a hop.")
    end = ends.get(method)
    reported = {} if end is None else _known({"clean": end.clean, "asr_paper": end.asr})
    return Reading(method, *_who(row), int(hop), _fractions(place, row), reported, None)


def _table_row(place: str, row: Mapping[str, Any], ends: Mapping[str, EndPoint]) -> Reading:
    if row.get("row") is None:
        raise InvalidInput(f"{place} is {dict(row)!r}; allowed: the row of a table.")
    paper = {"clean": row.get("reported_clean"), "asr_paper": row.get("reported_asr")}
    values, sigma = _fractions(place, row), _number(row.get("sigma"))
    return Reading(str(row["row"]), *_who(row), None, values, _known(paper), sigma)


def _who(row: Mapping[str, Any]) -> tuple[str, int]:
    return str(row.get("preset") or ""), int(_number(row.get("seed")) or 0)


def _fractions(place: str, row: Mapping[str, Any]) -> dict[str, float]:
    fractions = _known({m: row.get(m) for m in MEASURES})
    for measure, value in fractions.items():
        if not 0.0 <= value <= 1.0:
            raise InvalidInput(f"{place}.{measure} is {value!r}; allowed: a fraction in [0, 1].")
    return {measure: 100 * value for measure, value in fractions.items()}


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    checked = {key: _number(value) for key, value in values.items()}
    return {key: value for key, value in checked.items() if value is not None}


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
    unique = list(dict.fromkeys(names))
    return [t for t in TASKS if t in unique] + [t for t in unique if t not in TASKS]


@dataclass(frozen=True)
class Compared:
    """One number of ours over seeds beside the paper's, in per cent."""

    experiment: str
    task: str
    row: str
    hop: int | None
    preset: str
    measure: str
    seeds: int
    mean: float | None
    std: float | None
    reported: float | None
    sigma: float | None
    final: bool = True
    """Whether this is the end of its row; retraining is also measured where training ended."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        if self.mean is None or self.reported is None:
            return None
        return self.mean - self.reported

    @property
    def agreement(self) -> str | None:
        """``agree``, ``spread``, ``near`` or ``differ``; None where there is nothing to compare."""
        return None if self.difference is None else agreement(self.difference, self.std)


def agreement(difference: float, std: float | None) -> str:
    """How well a difference in points agrees, given our standard deviation over seeds.

    ``spread`` means that only the spread of the seeds, two standard deviations, covers it.

    >>> [agreement(d, None) for d in (-2.0, 2.1, 5.0, 5.1)]
    ['agree', 'near', 'near', 'differ']
    >>> agreement(9.0, 4.5), agreement(9.0, 4.4)
    ('spread', 'differ')
    """
    size = round(abs(difference), 6)
    if size <= AGREE_POINTS:
        return "agree"
    if std is not None and size <= round(AGREE_STDS * std, 6):
        return "spread"
    return "near" if size <= NEAR_POINTS else "differ"


def compared(part: Part) -> list[Compared]:
    """Every number of a part, summed up over seeds; for the figure where its lines end."""
    comparisons = []
    for row in part.rows:
        for preset in part.presets:
            readings = part.of(row, preset)
            hops = [r.hop for r in readings if r.hop is not None]
            at: list[int | None] = [max(hops)] if hops else [None]
            if row == RETRAIN and (begun := start(part, preset)) in hops and begun not in at:
                at.append(begun)
            for hop in at:
                chosen = [r for r in readings if r.hop == hop]
                if chosen:
                    comparisons += [_summed(part, chosen, m, hop == at[0]) for m in MEASURES]
    return comparisons


def mean_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; no deviation of a single value.

    >>> mean_std([1.0, 3.0]), mean_std([2.0]), mean_std([])
    ((2.0, 1.4142135623730951), (2.0, None), (None, None))
    """
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def start(part: Part, preset: str) -> int | None:
    """The hop at which unlearning starts: as the document says, else where methods first differ."""
    return shared_until(part, preset) if part.train_hops is None else part.train_hops


def shared_until(part: Part, preset: str) -> int | None:
    """The last hop up to which methods agree in every number: the training that they share."""
    rows = sorted((r for r in part.rows if r != RETRAIN), key=lambda r: r not in FIRST)
    if part.experiment != FIGURE or len(rows) < 2:
        return None
    shared = [s for r in rows[1:] if (s := prefix(part, preset, rows[0], r)) is not None]
    ends = [r.hop for r in part.of(rows[0], preset) if r.hop is not None]
    return min(shared) if shared and min(shared) < max(ends, default=0) else None


def prefix(part: Part, preset: str, one: str, other: str) -> int | None:
    """The last hop up to which two methods agree in every number of every common seed."""
    first = {(r.hop, r.seed): r.values for r in part.of(one, preset) if r.hop is not None}
    second = {(r.hop, r.seed): r.values for r in part.of(other, preset) if r.hop is not None}
    common = sorted(first.keys() & second.keys())
    parted = next((key[0] for key in common if first[key] != second[key]), math.inf)
    return max((hop for hop, _ in common if hop < parted), default=None)


def reproduction_rows(
    documents: Mapping[str, Any], reported: Reported | None = None
) -> list[dict[str, Any]]:
    """Ours (mean, std, seeds), the paper's, difference and agreement of every number.

    >>> row = {"row": "5", "preset": "paper", "seed": 0, "clean": 0.9, "reported_clean": 91.0}
    >>> rows = reproduction_rows({"table-rho-mnist": {"task": "mnist", "rows": [row]}})
    >>> [(r["measure"], r["mean"], r["difference"], r["agreement"]) for r in rows][0]
    ('clean', 90.0, -1.0, 'agree')
    """
    return [
        {**asdict(c), "difference": c.difference, "agreement": c.agreement}
        for part in collect(documents, reported)
        for c in compared(part)
    ]


def _summed(part: Part, readings: Sequence[Reading], measure: str, final: bool) -> Compared:
    first = readings[0]
    values = [r.values[measure] for r in readings if measure in r.values]
    mean, std = mean_std(values)
    reported = [r.reported[measure] for r in readings if measure in r.reported]
    sigma = next((r.sigma for r in readings if r.sigma is not None), None)
    return Compared(
        part.experiment,
        part.task,
        first.row,
        first.hop,
        first.preset,
        measure,
        len(values),
        mean,
        std,
        reported[0] if reported else None,
        sigma,
        final,
    )


def task_title(task: str) -> str:
    """A task as it is written.

    >>> task_title("cifar10"), task_title("digits")
    ('CIFAR-10', 'digits')
    """
    return TASKS.get(task, task)


def value_title(row: str) -> str:
    """A value of a table's first column; small ones as powers of ten.

    >>> value_title("0.0001"), value_title("1e-06"), value_title("0.5"), value_title("baseline")
    ('10⁻⁴', '10⁻⁶', '0.5', 'baseline')
    """
    try:
        value = float(row)
    except ValueError:
        return row
    return numbers.raised(value) if 0 < value < 1e-3 else row


def method_title(method: str) -> str:
    """A method as it is written."""
    return METHODS.get(method, method)


def task_order(task: str) -> int:
    """The paper's datasets first, in its order."""
    return list(TASKS).index(task) if task in TASKS else len(TASKS)


def seeds_text(counts: Iterable[int]) -> str:
    """Numbers of seeds in words.

    >>> seeds_text([1, 1]), seeds_text([3, 5, 3]), seeds_text([])
    ('1 seed', '3 or 5 seeds', '')
    """
    seeds = sorted({count for count in counts if count})
    text = " or ".join(numbers.fixed(count, 0) for count in seeds)
    return f"{text} {'seed' if seeds == [1] else 'seeds'}" if seeds else ""


def commits(joined: str) -> str:
    """Commits from a list joined by semicolons, shortened, each once.

    >>> commits("0123456789abcdef; 0123456789abcdef; fedc")
    '0123456789 and fedc'
    """
    return numbers.joined(list(dict.fromkeys(c.strip()[:10] for c in joined.split(";"))))
