"""Further parts of the reproduction page: our own experiments, and how long the runs took.

Settings of the runs; readings of the paper that were tried; tuning; precision.  Documents are
named by what they hold and their task: ``readings-mnist``, ``tuning-mnist``, ``precision-mnist``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from scipy.special import stdtrit

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.reproduction import (
    EXPERIMENTS,
    FIGURE,
    FIRST,
    MARKS,
    TASKS,
    commits,
    mean_std,
    method_title,
    seeds_text,
    task_order,
    task_title,
)
from unwalk.reports.tables import Body, Cell, Head, Row, Table, plain_table

Documents = Mapping[str, Mapping[str, Any]]

FURTHER = ("tuning", "precision")
"""Experiments that the paper does not have."""

SETTINGS = (
    "What the runs of the figure set, where it is not the default, and the version of their "
    "streams; a dash is the default. Tables change what their first column names. DP-SGD clips "
    "every record's gradient, so its model has GroupNorm where the others have BatchNorm. The "
    "command unwalk settings explains every name."
)
READINGS = (
    "The paper leaves settings open. Each line is one complete reading, run with one seed; cells "
    "are test accuracy and backdoor accuracy at the last hop, in percent. The reading in bold was "
    "kept, and all numbers above were made with it."
)
WITHIN = 1.0
"""Differences of test and of backdoor accuracy, in points, that the rule treats as ties."""

TUNING = (
    "RR-DU and every baseline had the same number of settings to try: the preset's own, half and "
    "double its step size, and two more of what matters most to it, one change at a time. All go "
    "on from the same trained model, except DP-SGD, whose model has GroupNorm instead of "
    "BatchNorm. The rule is the same for all. Admitted are settings whose test accuracy is within "
    f"{WITHIN:g} point of the method's best; of these the best are those within {WITHIN:g} point "
    "of the lowest backdoor accuracy. The setting in bold is the preset's, with which the figure "
    "and the tables were made. One seed tells settings apart only where they differ by more than "
    "the seeds of the figure do."
)
PRECISION = (
    "On a CUDA device gradients can be computed in bfloat16, with fused kernels that keep pictures "
    "channels-last; the commands above say which runs did so. Parameters, noise and projections "
    "stay in float32. Here the same methods and seeds are run that way and in float32 with "
    "PyTorch's own kernels. The difference is bfloat16 "
    "minus float32 in percentage points, with Student's 95 % interval for two samples of equal "
    "variance. Where it holds 0, the change is no larger than what seeds do; its width is what "
    "these seeds cannot tell."
)
PATHS = ("float32", "bfloat16")
MEASURES = {"clean": "Test accuracy, %", "asr_paper": "Backdoor accuracy, %"}


class Set(NamedTuple):
    """One document's card: its table, what follows from it, and where it comes from."""

    table: Table
    title: str = ""
    small: str = ""
    text: str = ""
    verdicts: Sequence[tuple[str, str]] = ()
    source: str = ""


class Section(NamedTuple):
    """A section of the page; ``layout`` is the class of what holds its cards."""

    name: str
    title: str
    introduction: str
    layout: str
    sets: Sequence[Set]


def trial_sections(documents: Documents, tried: Documents) -> list[Section]:
    """Every section that has something to show."""
    cards: dict[str, list[Set]] = {"settings": settings(documents)}
    makers: dict[str, Callable[[str, Mapping[str, Any]], Set]] = {
        "readings": readings,
        "tuning": tuning,
        "precision": precision,
    }
    for kind, make in makers.items():
        names = [name for name in sorted(tried) if name.startswith(f"{kind}-")]
        names.sort(key=lambda name: [f"{kind}-{task}" in name for task in TASKS], reverse=True)
        cards[kind] = [make(name, tried[name]) for name in names]
    several = "sets" if len(cards["tuning"]) > 1 else "sets one"
    sections = [
        Section("settings", "Settings of the runs", SETTINGS, "sets stacked", cards["settings"]),
        Section("readings", "Readings that were tried", READINGS, "", cards["readings"]),
        Section("tuning", "Tuning", TUNING, several, cards["tuning"]),
        Section("precision", "Precision", PRECISION, "sets stacked", cards["precision"]),
    ]
    return [section for section in sections if section.sets]


def _source(document: Mapping[str, Any]) -> str:
    """Command, machine and commit of a document."""
    keys = ("command", "machine", "commit")
    command, machine, commit = (str(document.get(key) or "") for key in keys)
    where = ", ".join(filter(None, (machine, f"commit {commits(commit)}" if commit else "")))
    return "; ".join(filter(None, (command, where)))


def settings(documents: Documents) -> list[Set]:
    """A table with a column for each document of the figure that says its settings."""
    columns: dict[tuple[str, str], Mapping[str, Any]] = {}
    for name, document in documents.items():
        values = document.get("settings") if name.startswith(f"{FIGURE}-") else None
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise InvalidInput(f"{name}.settings is {values!r}; allowed: an object.")
        presets = dict.fromkeys(str(row.get("preset") or "") for row in document["rows"])
        columns[str(document.get("task") or ""), ", ".join(presets)] = values
    if not columns:
        return []
    order = sorted(columns, key=lambda c: (task_order(c[0]), c[1] not in FIRST, c[1]))
    heads = [Head(task_title(task), small=preset) for task, preset in order]
    keys = dict.fromkeys(key for column in order for key in columns[column])
    rows = [
        Row(Cell(key, code=True), [Cell(_setting(columns[column], key)) for column in order])
        for key in sorted(keys, key=lambda key: ("." in key, key))
    ]
    return [Set(Table("Settings", [Head("Setting"), *heads], [Body(rows)]))]


def _setting(column: Mapping[str, Any], key: str) -> str:
    if key not in column:
        return numbers.DASH
    value = column[key]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def readings(name: str, document: Mapping[str, Any]) -> Set:
    """The readings of the paper that were tried before one was chosen, with their results."""
    try:
        columns, task = list(document["columns"]), task_title(str(document["task"]))
        rows = [Row(Cell("Paper"), [_pair(c["clean"], c["asr"]) for c in columns])]
        for row in document["rows"]:
            changed = ", ".join(f"{key} = {value}" for key, value in row["settings"].items())
            head = Cell(str(row["reading"]), (changed,))
            cells = [_pair(clean, asr) for clean, asr in row["cells"]]
            rows.append(Row(head, cells, "is-main" if row["kept"] else ""))
        heads = ["Reading", *(str(c["title"]) for c in columns)]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not hold readings: {error!r}.") from error
    return Set(plain_table(f"Readings, {task}", heads, rows), task, source=_source(document))


def _pair(clean: float | None, asr: float | None) -> Cell:
    return Cell(" / ".join(numbers.fixed(None if v is None else float(v)) for v in (clean, asr)))


@dataclass(frozen=True)
class Tried:
    """One setting of one method: means over seeds, in per cent."""

    method: str
    setting: str
    used: bool
    seeds: int
    clean: float
    asr_paper: float
    asr: float

    @property
    def ends(self) -> str:
        """Test and backdoor accuracy."""
        return f"{numbers.fixed(self.clean, 2)} / {numbers.fixed(self.asr_paper, 2)}"


def tuned(name: str, document: Mapping[str, Any]) -> dict[str, list[Tried]]:
    """The settings of every method, in the order of the document."""
    groups: dict[tuple[str, str, bool], list[Mapping[str, Any]]] = {}
    try:
        for row in document["rows"]:
            key = str(row["method"]), str(row["setting"]), row["used"]
            groups.setdefault(key, []).append(row)
        methods: dict[str, list[Tried]] = {}
        for (method, setting, used), rows in groups.items():
            means = [
                mean_std([100 * float(r[key]) for r in rows])[0] or 0.0
                for key in ("clean", "asr_paper", "asr")
            ]
            methods.setdefault(method, []).append(Tried(method, setting, used, len(rows), *means))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not hold settings that were tried: {error!r}.") from error
    if not methods:
        raise InvalidInput(f"{name} does not hold settings that were tried: no rows.")
    return methods


def best(tried: Sequence[Tried]) -> list[Tried]:
    """The best settings of one method by the rule.

    >>> def tried(name, clean, asr):
    ...     return Tried("ddp", name, False, 1, clean, asr, asr)
    >>> several = [tried("a", 99.0, 30.0), tried("b", 98.2, 12.0), tried("c", 90.0, 1.0)]
    >>> [t.setting for t in best([*several, tried("d", 98.9, 12.9)])]
    ['b', 'd']
    """
    admitted = [t for t in tried if t.clean >= max(s.clean for s in tried) - WITHIN]
    lowest = min(t.asr_paper for t in admitted)
    return [t for t in admitted if t.asr_paper <= lowest + WITHIN]


def tuning(name: str, document: Mapping[str, Any]) -> Set:
    """Every setting that was tried, with the verdict of one rule for all methods."""
    methods = tuned(name, document)
    task = task_title(str(document.get("task") or ""))
    heads = ["Method and setting", *MEASURES.values(), "By the rule"]
    bodies = [Body(_tuned_rows(tried), method_title(m)) for m, tried in methods.items()]
    seeds = seeds_text(t.seeds for tried in methods.values() for t in tried)
    presets = dict.fromkeys(str(row.get("preset") or "") for row in document["rows"])
    small = "".join(f", {text}" for text in (*(f"preset {p}" for p in presets if p), seeds))
    table = Table(f"Tuning, {task}", [Head(text) for text in heads], bodies, kind="grouped")
    verdicts = [verdict for tried in methods.values() if (verdict := _verdict(tried))]
    return Set(table, task, small, verdicts=verdicts, source=_source(document))


def _tuned_rows(tried: Sequence[Tried]) -> list[Row]:
    chosen, top = best(tried), max(t.clean for t in tried)
    rows = []
    for t in tried:
        verdict = Cell("")
        if t in chosen:
            verdict = Cell(f"{MARKS['agree']} best", mark="verdict agree")
        elif t.clean < top - WITHIN:
            verdict = Cell("not admitted", mark="soft")
        backdoor = Cell(
            numbers.fixed(t.asr_paper, 2), (f"{numbers.fixed(t.asr, 2)} other classes",)
        )
        head = Cell(t.setting, ("the preset's own",) if t.used else ())
        cells = [Cell(numbers.fixed(t.clean, 2)), backdoor, verdict]
        rows.append(Row(head, cells, "is-main" if t.used else ""))
    return rows


def _verdict(tried: Sequence[Tried]) -> tuple[str, str] | None:
    """A sentence that says whether the preset's own setting is among the best."""
    used = next((t for t in tried if t.used), None)
    if used is None:
        return None
    chosen, name = best(tried), method_title(used.method)
    if used in chosen:
        alone = "the best" if len(chosen) == 1 else f"one of the {len(chosen)} best"
        return name, f": the preset's own setting is {alone} by this rule."
    other = min(chosen, key=lambda t: t.asr_paper)
    return name, (
        f": the preset's own setting is not the best by this rule. It ends at {used.ends}, "
        f"{other.setting} at {other.ends}."
    )


@dataclass(frozen=True)
class Change:
    """One measure of one method on either path, in per cent."""

    method: str
    measure: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Mean after minus mean before."""
        return math.fsum(self.after) / len(self.after) - math.fsum(self.before) / len(self.before)

    @property
    def reach(self) -> float | None:
        """Half the 95 % interval of the difference; None with fewer than two seeds per path."""
        if min(len(self.before), len(self.after)) < 2:
            return None
        free = len(self.before) + len(self.after) - 2
        squares = 0.0
        for values in (self.before, self.after):
            _, std = mean_std(values)
            squares += (len(values) - 1) * (std or 0.0) ** 2
        error = math.sqrt(squares / free * (1 / len(self.before) + 1 / len(self.after)))
        return float(stdtrit(free, 0.975)) * error

    @property
    def unchanged(self) -> bool | None:
        """Whether the interval holds 0; None where there is no interval."""
        return None if self.reach is None else abs(self.difference) <= self.reach + 1e-9


def changes(name: str, document: Mapping[str, Any]) -> list[Change]:
    """Every method and measure that was run on both paths.

    >>> def row(path, seed, clean):
    ...     same = {"method": "rrdu", "precision": path, "seed": seed}
    ...     return {**same, "clean": clean, "asr_paper": 0.1}
    >>> rows = [row("float32", 0, 0.90), row("float32", 1, 0.92)]
    >>> rows += [row("bfloat16", 0, 0.91), row("bfloat16", 1, 0.93)]
    >>> first = changes("precision-mnist", {"rows": rows})[0]
    >>> round(first.difference, 6), round(first.reach, 3), first.unchanged
    (1.0, 6.085, True)
    """
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    try:
        for row in document["rows"]:
            for measure in MEASURES:
                values = groups.setdefault((str(row["method"]), measure), {p: [] for p in PATHS})
                values[str(row["precision"])].append(100 * float(row[measure]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not hold runs in two precisions: {error!r}.") from error
    both = {key: values for key, values in groups.items() if all(values.values())}
    if not both:
        raise InvalidInput(f"{name} does not hold runs in two precisions: no method has both.")
    return [Change(*key, *(tuple(values[p]) for p in PATHS)) for key, values in both.items()]


def precision(name: str, document: Mapping[str, Any]) -> Set:
    """Both paths over the same seeds, and their difference."""
    changed = changes(name, document)
    task = task_title(str(document.get("task") or ""))
    heads = [Head("Method")]
    for _ in MEASURES:
        heads += [Head(PATHS[0], kind="from"), Head(PATHS[1]), Head("Difference, 95 % interval")]
    rows = [
        Row(
            Cell(method_title(method)),
            [
                cell
                for change in changed
                if change.method == method
                for cell in _change_cells(change)
            ],
        )
        for method in dict.fromkeys(change.method for change in changed)
    ]
    groups = [(text, 3) for text in MEASURES.values()]
    seeds = seeds_text(len(values) for c in changed for values in (c.before, c.after))
    table = Table(f"Precision, {task}", heads, [Body(rows)], groups)
    return Set(table, task, f", {seeds} per path", _summary(changed), source=_source(document))


def _change_cells(change: Change) -> list[Cell]:
    cells = []
    for kind, values in (("from", change.before), ("", change.after)):
        mean, std = mean_std(values)
        below = () if std is None else (f"± {numbers.fixed(std, 2)}",)
        cells.append(Cell(numbers.fixed(mean, 2), below, kind))
    text = numbers.signed(change.difference)
    if change.reach is None:
        return [*cells, Cell(text)]
    kind = "agree" if change.unchanged else "differ"
    text += f" ± {numbers.fixed(change.reach, 2)} {MARKS[kind]}"
    return [*cells, Cell(text, mark=f"verdict {kind}")]


def _summary(changed: Sequence[Change]) -> str:
    """How many differences are within the spread of the seeds."""
    known = [c for c in changed if c.unchanged is not None]
    if not known:
        return "One seed per path: there is no spread to judge the differences by."
    kept = sum(bool(c.unchanged) for c in known)
    moved = [
        f"{method_title(c.method)}, {MEASURES[c.measure].removesuffix(', %').lower()}"
        for c in known
        if not c.unchanged
    ]
    text = f"In {kept} of {numbers.counted(len(known), 'comparison')} the interval holds 0"
    return f"{text}; not so: {numbers.joined(moved)}." if moved else f"{text}."


@dataclass(frozen=True)
class Call:
    """One call of ``unwalk reproduce``: when it worked, on what, with how many processes."""

    task: str
    preset: str
    begun: float
    seconds: float
    jobs: int
    cells: tuple[str, ...]

    @property
    def experiments(self) -> tuple[str, ...]:
        """What was run, as experiments are named."""
        known = (*EXPERIMENTS, *FURTHER)
        return tuple(e for e in known if any(c.startswith(f"{e}-") for c in self.cells))

    @property
    def group(self) -> tuple[str, str, bool]:
        """Calls that are counted together: the paper's experiments apart from ours."""
        return self.task, self.preset, not set(self.experiments) - set(FURTHER)


def calls(records: Documents) -> list[Call]:
    """The records that calls leave, read."""
    read = []
    for name, record in sorted(records.items()):
        try:
            begun = datetime.fromisoformat(str(record["begun"])).timestamp()
            counted = float(record["seconds"]), int(record["jobs"])
            cells = tuple(map(str, record["cells"]))
            read.append(Call(str(record["task"]), str(record["preset"]), begun, *counted, cells))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{name} does not hold a time: {error!r}.") from error
    return read


def wall(timed: Sequence[Call]) -> float:
    """Seconds in which at least one call worked.

    >>> wall([Call("mnist", "", 0.0, 60.0, 1, ()), Call("mnist", "", 40.0, 50.0, 1, ())])
    90.0
    """
    total, until = 0.0, float("-inf")
    for call in sorted(timed, key=lambda c: c.begun):
        end = call.begun + call.seconds
        total += max(0.0, end - max(call.begun, until))
        until = max(until, end)
    return total


def duration(seconds: float) -> str:
    """Seconds, or minutes and seconds.

    >>> [duration(s).replace(numbers.SPACE, " ") for s in (9.34, 59.96, 754.0)]
    ['9.3 s', '1 min 0 s', '12 min 34 s']
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}{numbers.SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,}{numbers.SPACE}min {rest}{numbers.SPACE}s"


def times_table(records: Documents) -> Table | None:
    """The wall time of each dataset and preset; None where none is known."""
    timed = calls(records)
    if not timed:
        return None
    groups = sorted(
        dict.fromkeys(c.group for c in timed),
        key=lambda g: (g[2], task_order(g[0]), g[1] not in FIRST, g[1]),
    )
    rows = [_time_row([c for c in timed if c.group == group]) for group in groups]
    if len(rows) > 1:
        total = [*(Cell("") for _ in range(4)), Cell(duration(wall(timed)))]
        rows.append(Row(Cell("Together"), total, "is-main"))
    heads = ("Dataset", "Preset", "What", "Runs", "Processes", "Wall time")
    return plain_table("How long it took", heads, rows)


def _time_row(group: Sequence[Call]) -> Row:
    names = [e for e in (*EXPERIMENTS, *FURTHER) if any(e in c.experiments for c in group)]
    cells = [
        Cell(group[0].preset, code=True),
        Cell("all" if names == list(EXPERIMENTS) else ", ".join(names)),
        Cell(numbers.fixed(sum(len(c.cells) for c in group), 0)),
        Cell(" or ".join(str(jobs) for jobs in sorted({c.jobs for c in group}))),
        Cell(duration(wall(group))),
    ]
    return Row(Cell(task_title(group[0].task)), cells)
