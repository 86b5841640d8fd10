"""Searches the files of a folder for traces of records, byte by byte.

It finds what stands there plainly, also in free pages of a database, in its log, in the members of
a zip archive (``.npz``) and in names of files.  It does not undo other compression or encryption.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput
from unwalk.peers.records.sources import everything_in

CHUNK = 1 << 22
PIECE = 24
"""Bytes of a row that are looked for at once: a row may lie in pieces on several pages."""
DISTINCT = 8
"""Pieces with fewer different bytes (black pixels, say) would be found anywhere."""
SHORTEST = 4


@dataclass(frozen=True)
class Hit:
    """A trace: which one, in which file, at which byte (-1: in the file's name)."""

    path: Path
    name: str
    offset: int


def traces(
    ids: Iterable[str] = (),
    rows: Iterable[npt.NDArray[np.floating]] = (),
    texts: Iterable[str] = (),
) -> dict[str, bytes]:
    """What to look for: ids and lines of text as UTF-8 and UTF-16, rows as 32 and 64-bit numbers.

    >>> sorted(traces(["p-17"]))
    ["id 'p-17' as utf-16-be", "id 'p-17' as utf-16-le", "id 'p-17' as utf-8"]
    """
    patterns: dict[str, bytes] = {}
    for kind, words in (("id", ids), ("text", texts)):
        for word in words:
            if len(word) < SHORTEST:
                raise InvalidInput(
                    f"{kind} is {word!r}; allowed: {SHORTEST} characters or more, as shorter ones "
                    "are found anywhere."
                )
            for code in ("utf-8", "utf-16-le", "utf-16-be"):
                patterns[f"{kind} {word!r} as {code}"] = word.encode(code)
    for number, row in enumerate(rows):
        for code in ("<f4", ">f4", "<f8", ">f8"):
            data = np.asarray(row).ravel().astype(code).tobytes()
            for start in range(0, max(1, len(data) - PIECE + 1), PIECE):
                piece = data[start : start + PIECE]
                if len(set(piece)) >= DISTINCT:
                    patterns[f"row {number}, byte {start}, as {code}"] = piece
    return patterns


def search(folder: Path, needles: Mapping[str, bytes]) -> list[Hit]:
    """Where any of ``needles`` stands in a file under ``folder``; each file and needle once."""
    hits = []
    for path in sorted(everything_in(folder)):
        name = str(path.relative_to(folder)).encode()
        hits += [Hit(path, needle, -1) for needle, data in needles.items() if data in name]
        if not path.is_file() or path.is_symlink():
            continue
        with path.open("rb") as file:
            hits += [Hit(path, *hit) for hit in _scan(file, needles)]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    with archive.open(member) as inside:
                        hits += [Hit(path / member, *hit) for hit in _scan(inside, needles)]
    return hits


def _scan(file: IO[bytes], needles: Mapping[str, bytes]) -> Iterator[tuple[str, int]]:
    """Needles in a stream, which is read in chunks that overlap by the longest needle."""
    left = dict(needles)
    overlap = max((len(n) for n in needles.values()), default=1) - 1
    kept, place = b"", 0
    while chunk := file.read(CHUNK):
        data = kept + chunk
        for name in list(left):
            at = data.find(left[name])
            if at >= 0:
                del left[name]
                yield name, place + at
        kept = data[max(0, len(data) - overlap) :]
        place += len(data) - len(kept)
