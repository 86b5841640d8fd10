"""Erases records from the files that they came from.

A table is written anew without them under another name, flushed, and put in the old one's place;
all other lines of a CSV file stay as they are, byte for byte.  A picture is unlinked.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from unwalk.core.errors import InvalidInput, told
from unwalk.peers.records.sources import (
    DataSettings,
    SourceRefused,
    everything_in,
    files_of,
    is_picture,
    name_of,
)
from unwalk.peers.storage.integrity_mark import sync_folder
from unwalk.tasks.tables import Columns

ATTEMPTS = 5
Gone = Callable[[str], bool]


def erase_from_source(settings: DataSettings, columns: Columns, gone: Gone) -> int:
    """Take every record whose id is ``gone`` out of the source; how many there were."""
    erased = 0
    for file in _files(settings.path):
        try:
            if not is_picture(file):
                erased += _without(file, columns, gone)
            elif gone(name_of(file)):
                _unlink(file)
                erased += 1
        except SourceRefused:
            raise
        except Exception as error:  # a file that is no longer what it was may raise anything
            raise SourceRefused(
                f"{file} cannot be written anew without the forgotten records: {told(error)}."
            ) from error
    return erased


def check_erasable(settings: DataSettings) -> None:
    """Refuse a source from which nothing could be erased for good."""
    for path in (settings.path, *files_of(settings.path)):
        if path.is_symlink():
            raise InvalidInput(f"{path} is a link; to erase from the source, name the file itself.")
        if path.is_file() and path.stat().st_nlink > 1:
            raise InvalidInput(
                f"{path} has another name as well, under which its bytes would stay; to erase from "
                "the source, leave it one."
            )
        if not os.access(path.parent, os.W_OK):
            raise InvalidInput(f"{path.parent} cannot be written to; nothing could be erased.")


def _files(path: Path) -> list[Path]:
    try:
        return files_of(path)
    except SourceRefused:
        with suppress(OSError):
            if path.is_dir() and not any(p.is_file() for p in everything_in(path)):
                return []  # the last picture is gone
        raise


def _unlink(file: Path) -> None:
    file.resolve().unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    sync_folder(file.parent)


def _without(file: Path, columns: Columns, gone: Gone) -> int:
    """Write a table anew without some records; again, if somebody changes it meanwhile."""
    write = {".npz": _npz, ".parquet": _parquet}.get(file.suffix.lower(), _csv)
    for _ in range(ATTEMPTS):
        before = file.stat()
        data, count = write(file, columns, gone)
        now = file.stat()
        if (now.st_mtime_ns, now.st_size, now.st_ino) != (
            before.st_mtime_ns,
            before.st_size,
            before.st_ino,
        ):
            continue
        if count:
            _replace(file.resolve(), data, before.st_mode & 0o7777)
        return count
    raise SourceRefused(f"{file} changes all the time; records cannot be erased from it.")


def _csv(file: Path, columns: Columns, gone: Gone) -> tuple[bytes, int]:
    lines = list(io.StringIO(file.read_bytes().decode("utf-8"), newline=""))
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    text = [line.removeprefix("\ufeff") if at == 0 else line for at, line in enumerate(lines)]
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(reader, [])]
    place = header.index(columns.id or "id")
    kept, start, count = lines[: reader.line_num], reader.line_num, 0
    for row in reader:
        if row and gone(row[place].strip()):
            count += 1
        else:
            kept += lines[start : reader.line_num]
        start = reader.line_num
    return "".join(kept).encode("utf-8"), count


def _npz(file: Path, columns: Columns, gone: Gone) -> tuple[bytes, int]:
    with zipfile.ZipFile(file) as archive:
        packed = any(i.compress_type != zipfile.ZIP_STORED for i in archive.infolist())
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    keep = np.array([not gone(str(i).strip()) for i in arrays["id"]], bool)
    out = io.BytesIO()
    save: Any = np.savez_compressed if packed else np.savez
    save(out, **{name: array[keep] for name, array in arrays.items()})
    return out.getvalue(), int((~keep).sum())


def _parquet(file: Path, columns: Columns, gone: Gone) -> tuple[bytes, int]:
    # An extra.
    from pyarrow import BufferOutputStream
    from pyarrow.parquet import ParquetFile, write_table

    with ParquetFile(file) as stored:
        table = stored.read()
        group = stored.metadata.row_group(0) if stored.metadata.num_row_groups else None
        codec = group.column(0).compression if group is not None else "NONE"
    keep = [not gone(str(i).strip()) for i in table.column(columns.id or "id").to_pylist()]
    out = BufferOutputStream()
    write_table(table.filter(keep), out, compression=codec)
    return out.getvalue().to_pybytes(), keep.count(False)


def _replace(file: Path, data: bytes, mode: int) -> None:
    """Put ``data`` in a file's place; a name that begins with a dot is no part of any source."""
    temporary = file.with_name(f".{file.name}.unwalk-new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())
    temporary.replace(file)
    sync_folder(file.parent)
