"""Where a peer's records come from: files of its organisation, each record with a stable id.

``data.json`` in the bundle says where they lie.  A source is a table (``.csv``, ``.tsv``,
``.parquet``, ``.npz``), a folder of tables, or a folder with a folder of pictures for each class.
Whatever cannot be read is refused with its place, before anything is taken in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_number
from unwalk.runs.store import write_file
from unwalk.tasks.declared import Declared
from unwalk.tasks.pictures import picture_files, read_pixels
from unwalk.tasks.tables import Records as Read
from unwalk.tasks.tables import read_csv, read_npz, read_parquet

SETTINGS = "data.json"
READERS = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet, ".npz": read_npz}
LONGEST_ID = 256


class SourceRefused(InvalidInput):
    """A source that cannot be read.  Its text may quote a record or an id: not for logs."""

    for_log = "the source of the records cannot be read; 'unwalk peer data BUNDLE' says why"


@dataclass(frozen=True)
class DataSettings:
    """What a peer says about its own records; nobody else gets to know it.

    ``hold_out`` is the share of records that is never trained on, to measure with.  With
    ``erase_source`` a forgotten record is taken out of the source as well.
    """

    path: Path
    id_column: str | None = None
    label_column: str | None = None
    hold_out: float = 0.1
    erase_source: bool = False

    def __post_init__(self) -> None:
        check_number("hold-out", self.hold_out, low=0.0, below=1.0)

    @staticmethod
    def over(
        before: DataSettings | None, path: Path | None, said: Mapping[str, Any]
    ) -> DataSettings:
        """Earlier settings, if there are any, with what is said now put over them."""
        if before is not None:
            return replace(before, path=before.path if path is None else path, **said)
        if path is None:
            raise InvalidInput("there are no records yet; say where they lie.")
        return DataSettings(path, **said)

    def write(self, bundle: Path) -> None:
        """Put the settings into a bundle."""
        record = {
            "path": str(self.path.absolute()),
            "id_column": self.id_column,
            "label_column": self.label_column,
            "hold_out": self.hold_out,
            "erase_source": self.erase_source,
        }
        write_file(bundle / SETTINGS, json.dumps(record, indent=1) + "\n")

    @staticmethod
    def read(bundle: Path) -> DataSettings:
        """The settings of a bundle; refused where there are none."""
        path = bundle / SETTINGS
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return DataSettings(**{**record, "path": Path(record["path"])})
        except FileNotFoundError as error:
            raise InvalidInput(
                f"{bundle} has no records yet; say where they lie: "
                f"unwalk peer data {bundle} --from PATH."
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} cannot be used: {error}.") from error


@dataclass(frozen=True, eq=False)
class Part:
    """The records of one file."""

    ids: Sequence[str]
    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]


def files_of(path: Path) -> list[Path]:
    """The files of a source, in a fixed order."""
    if not path.exists():
        raise SourceRefused(f"there is no file or folder {path}; the records have to lie there.")
    try:
        if not path.is_dir():
            _reader(path)
            return [path]
        inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
        tables = [p for p in inside if p.suffix.lower() in READERS and p.is_file()]
        if tables and tables != inside:
            odd = next(p for p in inside if p not in tables)
            raise SourceRefused(
                f"{odd} lies among tables; allowed in a folder of tables: "
                f"{', '.join(READERS)} files alone."
            )
        return tables or picture_files(path)
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read: {error.strerror or error}.") from error
    except SourceRefused:
        raise
    except InvalidInput as error:
        raise SourceRefused(str(error)) from error


def everything_in(folder: Path) -> Iterator[Path]:
    """All files and folders below one; unlike with ``rglob`` an unreadable one is an error."""

    def fail(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(folder, onerror=fail):
        yield from (Path(place, name) for name in (*folders, *files))


def is_picture(file: Path) -> bool:
    """Whether a file of a source is one record."""
    return file.suffix.lower() not in READERS


def name_of(file: Path) -> str:
    """What a file is called within its source; for a picture that is its record's id."""
    return f"{file.parent.name}/{file.name}" if is_picture(file) else file.name


def read_part(file: Path, settings: DataSettings, declared: Declared) -> Part:
    """The records of one file as the network declares them."""
    try:
        if is_picture(file):
            pixels = read_pixels(file)[None].astype(np.float32) / 255
            read = Read(pixels, [file.parent.name], [name_of(file)], place=lambda _: "the picture")
        else:
            columns = declared.at_peer(settings.id_column, settings.label_column)
            read = _reader(file)(file, columns)
            _check_arrays(file, read)
        ids = _ids(file, read)
        y = read.numbered(declared.labels, file, ", as the network declares")
        x = declared.inputs(np.asarray(read.x), file)
        _check_finite(file, read, x)
    except SourceRefused:
        raise
    except InvalidInput as error:
        raise SourceRefused(str(error)) from error
    except OSError as error:
        raise SourceRefused(f"{file} cannot be read: {error.strerror or error}.") from error
    return Part(ids, x, y)


def _reader(path: Path) -> Any:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise SourceRefused(
            f"{path} is not a kind of file that is read; allowed: {', '.join(READERS)}, or a "
            "folder of them or of pictures."
        )
    return reader


def _check_arrays(file: Path, read: Read) -> None:
    """What an archive of arrays may get wrong and a table cannot."""
    x = np.asarray(read.x)
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise SourceRefused(
            f"x in {file} has shape {x.shape} and type {x.dtype}; allowed: numbers, one row a "
            "record."
        )
    for name, values in (("y", read.y), ("id", read.ids)):
        if values is not None and np.shape(values) != (len(x),):
            raise SourceRefused(
                f"{name} in {file} has shape {np.shape(values)}; x has {len(x)} rows, and each "
                "needs one."
            )


def _ids(file: Path, read: Read) -> list[str]:
    if read.ids is None:
        raise SourceRefused(
            f"{file} has no array 'id'; allowed: one id a record that stays the same for good."
        )
    if isinstance(read.ids, np.ndarray) and read.ids.dtype.kind not in "iuU":
        raise SourceRefused(
            f"id in {file} has type {read.ids.dtype}; allowed: whole numbers or texts."
        )
    ids = [str(i).strip() for i in read.ids]
    seen: dict[str, int] = {}
    for row, name in enumerate(ids):
        if not 0 < len(name) <= LONGEST_ID or not name.isprintable():
            raise SourceRefused(
                f"{file}, {read.place(row)}, has the id {name[:80]!r}; allowed: a text of 1 to "
                f"{LONGEST_ID} printable characters."
            )
        if name in seen:
            raise SourceRefused(
                f"{file}, {read.place(row)}, has the id {name!r} of {read.place(seen[name])}; "
                "allowed: an id of its own for each record."
            )
        seen[name] = row
    return ids


def _check_finite(file: Path, read: Read, x: npt.NDArray[np.float32]) -> None:
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise SourceRefused(
            f"{file}, {read.place(row)}, holds NaN, infinity or a number too large for 32 bits; "
            "allowed: finite numbers."
        )
