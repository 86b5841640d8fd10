"""``file``: a user's own file, one row per record, or a folder of pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.plan import PREDICTS
from unwalk.core.validation import check_choice
from unwalk.tasks.own import NO_CLASSES, OwnData, extraction, load_own, own_task
from unwalk.tasks.pictures import read_folder
from unwalk.tasks.sources import Holdings, Source
from unwalk.tasks.tables import (
    Columns,
    Records,
    large_in,
    marks_in,
    number_or_nan,
    read_csv,
    read_npz,
    read_parquet,
)
from unwalk.tasks.task import Options, Request, ShardedTask

HOLDOUT = 0.2
FEW = 20
"""Classes that a column may always have; more of them need twice as many records."""
READERS = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet, ".npz": read_npz}


def from_file(
    path: str | Path,
    *,
    label: str = "label",
    id: str | None = None,
    group: str | None = None,
    labels: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    scale: Mapping[str, tuple[float, float]] | None = None,
    missing: Mapping[str, Any] | None = None,
    features: Sequence[str] | None = None,
    test: str | Path | float = HOLDOUT,
    norm: float | None = None,
    predicts: str = "class",
    huber: float | None = None,
    **settings: Any,
) -> ShardedTask:
    """A task from a file or a folder of pictures; see :class:`Columns` for what is declared.

    ``test`` is a file like the first one, or the share of every peer's records that is held out.
    ``features`` names the columns that are inputs.  ``predicts`` says what the label is: ``class``,
    ``number``, or ``labels``, several of them in one cell as in red|round.  ``norm``, ``huber`` and
    ``settings`` are those of :func:`unwalk.tasks.from_arrays` (peers, partition, model, forget,
    trigger, loss, seed, unlearner, dtype, extractor).
    """
    columns = Columns(
        label,
        id,
        group,
        labels,
        categories or {},
        scale or {},
        features=features or None,
        predicts=predicts,
        missing=missing or {},
    )
    extractor = extraction(settings.pop("extractor", None), norm)
    data = read_file(Path(path), columns, test)
    if extractor is None:
        data = replace(data, norm=norm)
    data = replace(data, huber=huber)
    return own_task(data, **settings, features=extractor)


def read_file(path: Path, columns: Columns, test: str | Path | float = HOLDOUT) -> OwnData:
    """The records of a file, with their labels as numbers."""
    check_choice("data.predicts", columns.predicts, PREDICTS)
    records = _read(path, columns)
    sets = [(path, records)]
    if isinstance(test, str | Path):
        sets.append((Path(test), _read(Path(test), replace(columns, test=True))))
        if sets[1][1].features != records.features:
            raise InvalidInput(
                f"{test} has the features {', '.join(sets[1][1].features)}; {path} has "
                f"{', '.join(records.features)}, and both need the same in the same order."
            )
    names, answers = _answers(path, columns, sets)
    (_, y), *tested = [(table.x, answer) for (_, table), answer in zip(sets, answers, strict=True)]
    several, unscaled = columns.predicts == "labels", records.unscaled
    if columns.predicts == "number" and columns.label not in columns.scale and large_in(y):
        unscaled += (columns.label,)
    classes = max(len(names), 1 if several else 2)
    return OwnData(
        records.x,
        y,
        test=tested[0] if tested else test,  # type: ignore[arg-type]
        groups=records.groups,
        classes=None if columns.predicts == "number" else classes,
        ids=records.ids,
        labels=[str(name) for name in names] if len(names) > 1 or several else None,
        name=path.name,
        normalisation="declared",
        labels_from=None if columns.predicts == "number" or columns.labels else "as-they-occur",
        cells=records.cells,
        predicts=columns.predicts,
        unscaled=unscaled,
    )


def _answers(
    path: Path, columns: Columns, sets: Sequence[tuple[Path, Records]]
) -> tuple[Sequence[str], list[Any]]:
    """The names of what is predicted, and for each table what its records have of it."""
    if columns.predicts == "number":
        if columns.labels:
            raise InvalidInput(NO_CLASSES)
        return (), [table.quantities(columns, place) for place, table in sets]
    labels = [label for _, table in sets for label in table.y]
    if columns.predicts == "labels":
        if not isinstance(labels[0], str):  # an array has a column for each label
            names = columns.labels or [str(k) for k in range(len(labels[0]))]
            return names, [table.y for _, table in sets]
        names = columns.labels or sorted({one for label in labels for one in marks_in(label)})
        if not names:
            raise InvalidInput(f"column {columns.label!r} of {path} has no label in any record.")
        return names, [table.marked(names, place) for place, table in sets]
    names = columns.labels or _classes(f"column {columns.label!r} of {path}", labels)
    return names, [table.numbered(names, place) for place, table in sets]


def _read(path: Path, columns: Columns) -> Records:
    if not path.exists():
        raise InvalidInput(f"there is no file or folder {path}.")
    if path.is_dir():
        return Records(*read_folder(path))
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            f"{path} is not a kind of file that is read; allowed: {', '.join(READERS)}, or a "
            "folder of pictures."
        )
    try:
        return reader(path, columns)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error


def _classes(what: str, labels: Sequence[Any]) -> list[str]:
    """The labels that occur: whole numbers by size, texts by the alphabet.

    A quantity is no class: fractions, or other values in nearly every record, are refused.

    >>> _classes("y", ["10", "9", "9"]), _classes("y", ["b", "10", "a"])
    (['9', '10'], ['10', 'a', 'b'])
    """
    names = {str(label) for label in labels}
    fractions = sorted(name for name in names if number_or_nan(name) % 1 > 0)
    if fractions or len(names) > max(FEW, len(labels) / 2):
        raise InvalidInput(
            f"{what} has {len(names)} values in {len(labels)} records, such as "
            f"{(fractions or sorted(names))[0]}: it looks like a quantity, and each value would be "
            "a class. For a regression set data.predicts=number; otherwise name another column "
            "with data.label_column, or the classes with data.labels."
        )
    whole = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return sorted(names, key=lambda name: (int(name) if whole else 0, name))


def from_options(options: Options) -> OwnData:
    """The file that the settings ``data.*`` of task ``file`` describe."""
    path = options["path"]
    if not path:
        raise InvalidInput("task 'file' needs a path: set data.path.")
    columns = columns_of(options)
    data = read_file(Path(path), columns, options["test_path"] or options["holdout"])
    return replace(data, norm=options.get("norm"), huber=options.get("huber"))


def columns_of(options: Options) -> Columns:
    """What the settings ``data.*`` declare about the columns of a table."""
    return Columns(
        options["label_column"] or "label",
        options["id_column"],
        options.get("group_column"),
        _parts(options["labels"], "|") or None,
        {name: _parts(values, "|") for name, values in _pairs("categories", options).items()},
        {name: _scale(name, values) for name, values in _pairs("scale", options).items()},
        features=_parts(options["columns"], "|") or None,
        predicts=options.get("predicts") or "class",
        missing=_pairs("missing", options),
    )


def _parts(text: str | None, sign: str) -> list[str]:
    return [part.strip() for part in (text or "").split(sign) if part.strip()]


def _pairs(key: str, options: Options) -> dict[str, str]:
    """Columns and what is said of them, as in ``sex=f|m; ward=a|b``."""
    pairs = [part.partition("=") for part in _parts(options.get(key), ";")]
    for name, equals, value in pairs:
        if not (name.strip() and equals and value.strip()):
            raise InvalidInput(
                f"data.{key} has {(name + equals + value)!r}; allowed: column=..., "
                "separated by ';'."
            )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _scale(name: str, text: str) -> tuple[float, float]:
    centre, colon, reach = text.partition(":")
    numbers = number_or_nan(centre), number_or_nan(reach)
    if not colon or not all(map(math.isfinite, numbers)):
        raise InvalidInput(f"data.scale has {text!r} for {name!r}; allowed: centre:reach.")
    return numbers


def load(request: Request) -> tuple[Source, Holdings]:
    """The records of the file, dealt to peers."""
    return load_own(from_options(request.options), request.peers, request.partition, request.seeds)
