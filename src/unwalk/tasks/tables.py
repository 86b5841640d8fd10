"""Reads tables: CSV, Parquet and NumPy archives, one row per record.

What cannot be read is refused with its place in the file.  Nothing is computed from the records:
scales and the values of text columns are declared by the user.  A mean, or a list of the values
that occur, would carry every record, also one that is to be forgotten.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput, told
from unwalk.core.validation import check_number, near
from unwalk.tasks.sources import Cells

ARRAYS = ("x", "y", "id", "group")
DECLARED = ("categories", "scale", "missing")
ROLES = ("label", "id", "group")
LARGE = 10.0
"""Beyond this a network learns little from a column as it is."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean; those not named are features, in the table's order.

    Without ``id`` or ``group``, columns called so are taken where there are any.  ``categories``
    names the values of text columns, each of which becomes a feature; ``scale`` a centre and a
    reach, and a value becomes ``(value - centre) / reach``.  ``missing`` says what stands for cells
    that are empty, NA or NaN.  ``labels`` are the classes in order.
    The table of a ``test`` set needs no ids and groups.  Where ``features`` names columns, those
    alone are features, in that order, and what else the table holds is left out.  ``predicts`` says
    what the label is; where it is a number, it may have a scale as well.
    """

    label: str = "label"
    id: str | None = None
    group: str | None = None
    labels: Sequence[str] | None = None
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    test: bool = False
    features: Sequence[str] | None = None
    predicts: str = "class"
    missing: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (centre, reach) in self.scale.items():
            check_number(f"the centre of {name!r}", centre, above=-math.inf, below=math.inf)
            check_number(f"the reach of {name!r}", reach, above=0.0, below=math.inf)
        least = 1 if self.predicts == "labels" else 2
        if self.labels is not None and len(set(self.labels)) < max(len(self.labels), least):
            raise InvalidInput(
                f"labels is {', '.join(map(str, self.labels))}; allowed: two classes or more, each "
                "named once."
            )


@dataclass(frozen=True, eq=False)
class Records:
    """The content of a file: inputs, labels as written, ids, groups, names of the features.

    ``cells`` are all its values as written, where its columns have names, and ``unscaled`` those
    features that are large and have no scale.
    """

    x: Array
    y: Sequence[Any]
    ids: Sequence[Any] | Array | None = None
    groups: Sequence[Any] | Array | None = None
    features: tuple[str, ...] = ()
    place: Callable[[int], str] = "row {}".format
    cells: Cells | None = None
    unscaled: tuple[str, ...] = ()

    def numbered(self, names: Sequence[str], path: Path, whose: str = "") -> npt.NDArray[np.int64]:
        """The labels by their places in ``names``; ``whose`` tells the user who chose these."""
        number = {str(name): at for at, name in enumerate(names)}
        for row, label in enumerate(self.y):
            if str(label) not in number:
                raise InvalidInput(
                    f"{path}, {self.place(row)}, has label {str(label)!r}; "
                    f"allowed{whose}: {', '.join(number)}."
                )
        return np.array([number[str(label)] for label in self.y], np.int64)

    def quantities(self, columns: Columns, path: Path) -> npt.NDArray[np.float64]:
        """The labels as numbers, in their declared scale."""
        values = np.array([number_or_nan(label) for label in self.y])
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            row = int(bad[0])
            raise InvalidInput(
                f"{path}, {self.place(row)}, has label {self.y[row]!r}; allowed with "
                "data.predicts=number: a finite number."
            )
        centre, reach = columns.scale.get(columns.label, (0.0, 1.0))
        scaled: npt.NDArray[np.float64] = (values - centre) / reach
        return scaled

    def marked(self, names: Sequence[str], path: Path) -> npt.NDArray[np.float64]:
        """For each record a 0 or 1 for each of ``names``."""
        at = {str(name): place for place, name in enumerate(names)}
        made = np.zeros((len(self.y), len(at)))
        for row, label in enumerate(self.y):
            for one in marks_in(label):
                if one not in at:
                    raise InvalidInput(
                        f"{path}, {self.place(row)}, has label {one!r}; allowed: {', '.join(at)}."
                    )
                made[row, at[one]] = 1.0
        return made


def read_csv(path: Path, columns: Columns) -> Records:
    """A table of text in UTF-8, with a header; a record's id is its line where it has no other."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    lines, rows = [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise InvalidInput(
                        f"{path}, line {reader.line_num}, has {len(row)} values; the header names "
                        f"{len(header)} columns."
                    )
                lines.append(reader.line_num)
                rows.append(row)
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {reader.line_num}: {error}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error.reason}.") from error
    cells = list(zip(*rows, strict=True)) if rows else [() for _ in header]
    return _table(path, header, cells, lambda row: f"line {lines[row]}", columns, lines)


def read_parquet(path: Path, columns: Columns) -> Records:
    """A Parquet table."""
    try:
        # An extra.
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InvalidInput(
            f"{path} is read with pyarrow, which is not installed: pip install 'unwalk[files]'."
        ) from error
    try:
        with ParquetFile(path) as stored:
            table = stored.read()
    except ArrowException as error:
        raise InvalidInput(f"{path} is not a Parquet file: {told(error)}.") from error
    cells = [column.to_pylist() for column in table.columns]
    return _table(path, table.column_names, cells, "row {}".format, columns)


def read_npz(path: Path, columns: Columns) -> Records:
    """Arrays ``x`` and ``y``, with ``id`` and ``group`` if wanted; bytes are pixels of pictures."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except ValueError as error:
        raise InvalidInput(f"{path} is not an archive of plain arrays: {told(error)}.") from error
    except Exception as error:  # a broken archive raises any of zipfile's and zlib's errors
        if isinstance(error, OSError) and error.errno:
            raise
        raise InvalidInput(f"{path} is not a whole .npz file: {told(error)}.") from error
    for name in arrays:
        if name not in ARRAYS:
            raise InvalidInput(f"{path} has an array {name!r}; allowed: {', '.join(ARRAYS)}.")
    for name in ("x", "y"):
        if name not in arrays:
            raise InvalidInput(f"{path} has no array {name!r}; needed: x and y.")
    x, y = arrays["x"], arrays["y"]
    several, kinds = columns.predicts == "labels", {"number": "biuf", "labels": "biufU"}
    if y.ndim not in (1, 1 + several) or y.dtype.kind not in kinds.get(columns.predicts, "biuU"):
        allowed = {
            "number": "one number per record",
            "labels": "a 0 or 1 for each label of each record, or texts as in red|round",
        }.get(
            columns.predicts,
            "one whole number or text per record; for a regression set data.predicts=number",
        )
        raise InvalidInput(
            f"y in {path} has shape {y.shape} and type {y.dtype}; allowed: {allowed}."
        )
    if x.dtype == np.uint8 and x.ndim > 2:  # pictures
        x = x.astype(np.float32) / 255
    return Records(x, y.tolist(), arrays.get("id"), arrays.get("group"))


def _table(
    path: Path,
    header: Sequence[str],
    cells: Sequence[Sequence[Any]],
    place: Callable[[int], str],
    columns: Columns,
    ids: Sequence[Any] | None = None,
) -> Records:
    """A table's columns by their declared role; ``ids`` are used where it has no id column."""
    for name in header:
        if not name or header.count(name) > 1:
            raise InvalidInput(
                f"{path} has {'no name for a column' if not name else f'two columns {name!r}'}; "
                "allowed: a different name for each."
            )
    if not cells or not len(cells[0]):
        raise InvalidInput(f"{path} holds no record.")
    table = dict(zip(header, cells, strict=True))
    owned = {"label": columns.label, "id": columns.id or "id", "group": columns.group or "group"}
    _check_declared(path, table, owned.values(), columns)
    columns_by_role = {
        key: [_told(path, place(row), name, cell) for row, cell in enumerate(table[name])]
        for key, name in owned.items()
        if name in table and (key != "label" or columns.predicts != "labels")
    }
    if columns.predicts == "labels":  # a record may have none
        cells_of = table[columns.label]
        columns_by_role["label"] = ["" if cell is None else str(cell) for cell in cells_of]
    features = tuple(columns.features or (n for n in table if n not in owned.values()))
    if not features:
        raise InvalidInput(f"{path} has no column left to be a feature.")
    parts = {n: _feature(path, n, table[n], place, columns) for n in features}
    x = np.concatenate(list(parts.values()), axis=1)
    large = tuple(n for n, one in parts.items() if n not in columns.scale and large_in(one))
    kept = Cells(
        {name: _compact(values) for name, values in table.items()},
        np.arange(len(x)),
        frozenset({owned["id"].strip(), owned["group"].strip()}),
    )
    ids, groups = columns_by_role.get("id", ids), columns_by_role.get("group")
    return Records(x, columns_by_role["label"], ids, groups, features, place, kept, large)


def _compact(cells: Sequence[Any]) -> Sequence[Any] | Array:
    """A column as numbers where all its values are, to save memory; otherwise as it is."""
    try:
        array = np.array(cells, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return cells
    return array if array.ndim == 1 and np.isfinite(array).all() else cells


def _check_declared(
    path: Path, table: Mapping[str, Any], owned: Collection[str], columns: Columns
) -> None:
    """Refuse columns that are not there, or that are declared to be two things."""
    optional = {} if columns.test else {"id": columns.id, "group": columns.group}
    features = {f"{key} of {name!r}": name for key in DECLARED for name in getattr(columns, key)}
    features |= {f"feature {name!r}": name for name in columns.features or ()}
    for key, name in {"label": columns.label, **optional, **features}.items():
        if name is not None and name not in table:
            how = f"; set data.{key}_column (in Python: {key}) to one of them"
            raise InvalidInput(
                f"{path} has no column {name!r}{near(name, table)}, named as {key}; its columns "
                f"are {', '.join(table)}{how if key in ROLES else ''}."
            )
    for key, name in features.items():
        if name == columns.label and key.startswith("scale") and columns.predicts == "number":
            continue
        if name in owned:
            raise InvalidInput(f"{key} is given, but {name!r} is no feature of {path}.")
    for name in columns.categories:
        if name in columns.scale:
            raise InvalidInput(f"{name!r} has categories and a scale; allowed: one of them.")


def _feature(
    path: Path, name: str, cells: Sequence[Any], place: Callable[[int], str], columns: Columns
) -> Array:
    """One column as features: a number, or one for each declared value."""
    if name in columns.missing:
        cells = [columns.missing[name] if _missing(cell) else cell for cell in cells]
    values = columns.categories.get(name)
    if values is not None:
        number = {str(value): at for at, value in enumerate(values)}
        for row, cell in enumerate(cells):
            if _told(path, place(row), name, cell) not in number:
                raise InvalidInput(
                    f"{path}, {place(row)}, column {name!r}: {cell!r} is not one of its declared "
                    f"values, {', '.join(number)}."
                )
        return np.eye(len(number))[[number[str(cell).strip()] for cell in cells]]
    try:
        array = np.array(cells, dtype=np.float64)
    except (ValueError, TypeError):
        array = np.array([number_or_nan(cell) for cell in cells])
    wrong = np.flatnonzero(~np.isfinite(array))
    if wrong.size:
        row = int(wrong[0])
        _told(path, place(row), name, cells[row])
        where = f"{path}, {place(row)}, column {name!r}: {cells[row]!r}"
        if wrong.size == len(array):
            raise InvalidInput(
                f"{where} is text, as in every record; declare the column's values with "
                "data.categories, name it with data.id_column or data.group_column, or leave it "
                "out with data.columns."
            )
        others = f"one of {wrong.size} such values" if wrong.size > 1 else "the only such value"
        raise InvalidInput(
            f"{where} is not a finite number, {others}; put one there that does not come from the "
            "other records, or declare one for NA with data.missing, or the column's values with "
            "data.categories."
        )
    centre, reach = columns.scale.get(name, (0.0, 1.0))
    return ((array - centre) / reach)[:, None]


def marks_in(cell: Any) -> list[str]:
    """The labels that a cell names.

    >>> marks_in("red| round"), marks_in("")
    (['red', 'round'], [])
    """
    return [part.strip() for part in str(cell).split("|") if part.strip()]


def number_or_nan(cell: Any) -> float:
    """A cell as a number; NaN where it is none.

    >>> number_or_nan("2.5"), number_or_nan("two")
    (2.5, nan)
    """
    try:
        return float(cell)
    except (ValueError, TypeError):
        return math.nan


def large_in(values: Array) -> bool:
    """Whether there are values that want a scale."""
    return bool(np.abs(values).max(initial=0.0) > LARGE)


def _missing(cell: Any) -> bool:
    """Whether a cell says that there is no value.

    >>> [_missing(cell) for cell in (None, " ", "NA", float("nan"), "0", "name")]
    [True, True, True, True, False, False]
    """
    return cell is None or str(cell).strip().lower() in ("", "na", "nan")


def _told(path: Path, place: str, column: str, cell: Any) -> str:
    """A cell as text; an empty one is refused."""
    text = "" if cell is None else str(cell).strip()
    if not text:
        raise InvalidInput(
            f"{path}, {place}, column {column!r} is empty; put a value there that does not come "
            "from the other records, or declare one for the column with data.missing."
        )
    return text
