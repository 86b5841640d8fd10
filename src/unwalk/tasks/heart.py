"""``heart``: is a coronary artery narrowed?  920 patients of four hospitals, four natural peers.

The UCI heart disease data (Janosi, Steinbrunn, Pfisterer and Detrano, 1988): Cleveland 303,
Budapest 294, Zurich and Basel 123, Long Beach 200 patients, 13 attributes each.  The label is 1
where the diagnosis is any narrowing by more than half (``num`` from 1 to 4).

Many values are missing, whole columns in some hospitals.  Nothing is filled in or scaled with
numbers taken from these patients, since such numbers would carry every patient, also one who is to
be forgotten.  All constants below are limits of normal or of possible values in cardiology.

Every attribute becomes a block of features of Euclidean norm 1 at most:

* a measurement becomes ``clip((value - centre) / reach, -1, 1)`` and a flag for *missing*, with
  the measurement at 0 then;
* a category becomes one flag for each value and one for *missing*.

A constant feature 1 is put behind them, and all is divided by sqrt(14), for 13 attributes and that
constant, so that ||x|| <= 1 for every patient who could exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from unwalk.core.data import Held
from unwalk.core.errors import Corrupt
from unwalk.core.program import Rows
from unwalk.core.validation import check_number
from unwalk.tasks import official
from unwalk.tasks.sources import Holdings, Source, Table, split
from unwalk.tasks.task import Request

HOSPITALS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
"""The hospitals, in the order of the peers, and how many patients each has published."""
MISSING = "?"
DIAGNOSES = 4


@dataclass(frozen=True)
class Measurement:
    """A number that is about ``centre`` and seldom further from it than ``reach``."""

    name: str
    centre: float
    reach: float
    zero_is_missing: bool = False

    @property
    def width(self) -> int:
        """Features it becomes."""
        return 2

    def features(self, value: float | None) -> list[float]:
        """The value, and whether it is missing.

        >>> Measurement("chol", 200.0, 200.0).features(300.0)
        [0.5, 0.0]
        """
        if value is None or (self.zero_is_missing and value == 0.0):
            return [0.0, 1.0]
        return [min(max((value - self.centre) / self.reach, -1.0), 1.0), 0.0]


@dataclass(frozen=True)
class Category:
    """One of a few values."""

    name: str
    values: tuple[int, ...]

    @property
    def width(self) -> int:
        """Features it becomes."""
        return len(self.values) + 1

    def features(self, value: float | None) -> list[float]:
        """A flag for each value, and whether it is missing.

        >>> Category("thal", (3, 6, 7)).features(6.0)
        [0.0, 1.0, 0.0, 0.0]
        """
        if value is not None and value not in self.values:
            allowed = ", ".join(map(str, self.values))
            raise Corrupt(f"{self.name} is {value:g}; allowed: {allowed} or {MISSING}")
        return [*(float(value == v) for v in self.values), float(value is None)]


# In the order of the files.
ATTRIBUTES: Sequence[Measurement | Category] = (
    # Years: adults from 20 to 80.
    Measurement("age", 50.0, 30.0),
    # 1 male, 0 female: as -1 and +1 round the middle, like the other yes-or-no values.
    Measurement("sex", 0.5, 0.5),
    # Chest pain: typical angina, atypical angina, not anginal, none.
    Category("cp", (1, 2, 3, 4)),
    # Systolic blood pressure at rest, mm Hg: 120 is the limit of normal, 180 a crisis.  Nobody
    # alive has 0.
    Measurement("trestbps", 120.0, 60.0, zero_is_missing=True),
    # Serum cholesterol, mg/dl: 200 is the limit of desirable (National Cholesterol Education
    # Program, 1988).  Nobody alive has 0.
    Measurement("chol", 200.0, 200.0, zero_is_missing=True),
    # Fasting blood sugar above 120 mg/dl.
    Measurement("fbs", 0.5, 0.5),
    # Electrocardiogram at rest: normal, ST-T abnormal, left ventricular hypertrophy.
    Category("restecg", (0, 1, 2)),
    # Highest heart rate under exercise: 145 is 85 % of 220 - 50, the aim of an exercise test at
    # the age of 50; 220 is the most that this rule allows anybody.
    Measurement("thalach", 145.0, 75.0, zero_is_missing=True),
    # Angina under exercise.
    Measurement("exang", 0.5, 0.5),
    # Depression of the ST segment under exercise, mm: 1 is the limit of a positive test.
    Measurement("oldpeak", 1.0, 3.0),
    # ST segment at the height of exercise: rising, flat, falling.
    Category("slope", (1, 2, 3)),
    # Major vessels that fluoroscopy shows, 0 to 3.
    Measurement("ca", 1.5, 1.5),
    # Thallium scan: normal, fixed defect, reversible defect.
    Category("thal", (3, 6, 7)),
)
FEATURES = sum(attribute.width for attribute in ATTRIBUTES) + 1
SHRINK = 0.267261
"""1 / sqrt(14), rounded down, so that no rounding to float32 breaks ||x|| <= 1."""


def parse(data: bytes, hospital: str) -> Table:
    """The patients of one hospital; an id is the hospital and the line in its file."""
    name = f"processed.{hospital}.data"
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise Corrupt(f"{name} is not a text file: byte {error.start} is not ASCII.") from error
    rows, labels, ids = [], [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            *values, diagnosis = _numbers(line)
            parts = [a.features(v) for a, v in zip(ATTRIBUTES, values, strict=True)]
            labels.append(_label(diagnosis))
        except Corrupt as error:
            raise Corrupt(f"{name}, line {number}: {error}.") from error
        rows.append([feature for part in parts for feature in part] + [1.0])
        ids.append(f"{hospital}-{number}")
    if not rows:
        raise Corrupt(f"{name} holds no patient.")
    return Table(torch.tensor(rows).mul_(SHRINK), torch.tensor(labels), np.array(ids))


def _numbers(line: str) -> list[float | None]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(ATTRIBUTES) + 1:
        raise Corrupt(f"{len(cells)} values; allowed: {len(ATTRIBUTES) + 1}")
    return [None if cell == MISSING else _number(cell) for cell in cells]


def _number(cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Corrupt(f"{cell!r} is not a number; allowed: numbers and {MISSING}")
    return number


def _label(diagnosis: float | None) -> int:
    if diagnosis is None or diagnosis not in range(DIAGNOSES + 1):
        shown = MISSING if diagnosis is None else f"{diagnosis:g}"
        raise Corrupt(f"the diagnosis is {shown}; allowed: 0 to {DIAGNOSES}")
    return int(diagnosis > 0)


@lru_cache(maxsize=1)
def _read(root: Path) -> Table:
    files = official.read("heart", root)
    tables = [parse(files[f"processed.{hospital}.data"], hospital) for hospital in HOSPITALS]
    return Table(
        torch.cat([table.x for table in tables]),
        torch.cat([table.y for table in tables]),
        np.concatenate([table.ids for table in tables]),
        np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
    )


def held_out(hospitals: Rows, share: float, rng: np.random.Generator) -> Rows:
    """Rows of the test set: ``share`` of each hospital's patients, rounded, drawn by ``rng``."""
    chosen = []
    for hospital in np.unique(hospitals):
        rows = rng.permutation(np.flatnonzero(hospitals == hospital))
        chosen.append(rows[: tested(len(rows), share)])
    return np.sort(np.concatenate(chosen))


def tested(patients: int, share: float) -> int:
    """How many of a hospital's patients are held out: at least one, and not all.

    >>> [size - tested(size, 0.2) for size in HOSPITALS.values()]
    [242, 235, 98, 160]
    """
    return min(max(round(share * patients), 1), patients - 1)


def load(request: Request) -> tuple[Source, Holdings]:
    """The patients that are not held out; each seed holds others out."""
    everything = _read(official.data_root())
    share = check_number("holdout", request.options["holdout"], above=0.0, below=1.0)
    groups = everything.groups
    assert groups is not None
    test_rows = held_out(groups, share, request.seeds.numpy("task", "heart", "test"))
    test = everything.take(test_rows)
    pool = everything.take(np.setdiff1d(np.arange(len(everything)), test_rows))
    held = Held(test.x, test.y)
    source = Source(
        "heart",
        2,
        held,
        ("healthy", "narrowed"),
        feature_norm=1.0,
        holdout="share",
        published=tuple(size - tested(size, share) for size in HOSPITALS.values()),
    )
    rng = request.seeds.numpy("task", "partition")
    return source, split(pool, request.partition, request.peers, rng)
