"""``mnist``: 70,000 handwritten digits of 28 x 28 pixels, from the four official idx files.

LeCun, Cortes and Burges, 1998: 60,000 pictures to train, 10,000 to test.  A pixel is divided by
255 and nothing else is done to it: that constant is the file format's, so no record decides it.

Pictures stay bytes until a peer's are asked for (:class:`PixelSplit`), so that the pool costs a
quarter of what its inputs would.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import Held
from unwalk.core.errors import Corrupt
from unwalk.core.program import Rows
from unwalk.tasks import official
from unwalk.tasks.sources import Holdings, Scale, Source, Split, Table, split
from unwalk.tasks.task import Request

Bytes = npt.NDArray[np.uint8]

CLASSES = 10
TRAINING_RECORDS = 60_000
SIDE = 28
UNSIGNED_BYTE = 0x08
"""The one element type of idx files that MNIST uses."""


@dataclass(frozen=True, eq=False)
class PixelSplit(Split):
    """A pool of pictures kept as bytes; those of one peer become inputs when asked for."""

    scale: Scale = field(kw_only=True)

    @staticmethod
    def of(dealt: Split, scale: Scale) -> PixelSplit:
        """The same pool and parts, with pixels to be scaled."""
        return PixelSplit(dealt.pool, dealt.parts, dealt.dealing, scale=scale)

    def taken(self, rows: Rows) -> Table:
        """A copy of some rows of the pool, with pixels as the model's inputs."""
        table = super().taken(rows)
        return replace(table, x=inputs(table.x, self.scale))


def inputs(pixels: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Inputs of the model from bytes: ``scale.inputs(bytes / 255)``, in place on one copy.

    >>> inputs(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), Scale()).tolist()
    [[[[0.0, 1.0]]]]
    """
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (scale.mean, scale.std))
    return pixels.to(torch.float32).div_(255.0).sub_(mean).div_(std)


def parse_idx(data: bytes, name: str, shape: tuple[int, ...]) -> Bytes:
    """The array in a gzipped idx file of bytes; it has to have this ``shape``."""
    try:
        raw = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise Corrupt(f"{name} is not a whole gzip file ({error}).") from error
    head = 4 + 4 * len(shape)
    magic = bytes([0, 0, UNSIGNED_BYTE, len(shape)])
    if raw[:4] != magic:
        raise Corrupt(
            f"{name} begins with {raw[:4].hex(' ') or 'nothing'}; an idx file of bytes in "
            f"{len(shape)} dimensions begins with {magic.hex(' ')}."
        )
    if len(raw) < head:
        raise Corrupt(f"{name} ends after {len(raw)} bytes, within its header of {head}.")
    actual = tuple(int(size) for size in np.frombuffer(raw[4:head], ">u4"))
    if actual != shape:
        raise Corrupt(f"{name} has shape {actual}; MNIST has {shape}.")
    if len(raw) - head != math.prod(shape):
        raise Corrupt(
            f"{name} holds {len(raw) - head:,} bytes after its header; its shape {shape} needs "
            f"{math.prod(shape):,}."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def checked_labels(labels: Bytes, name: str, classes: int) -> torch.Tensor:
    """Labels as whole numbers; one outside the classes is refused with its record."""
    outside = np.flatnonzero(labels >= classes)
    if outside.size:
        row = int(outside[0])
        raise Corrupt(
            f"{name} has label {labels[row]} for record {row}; allowed: 0 to {classes - 1}."
        )
    return torch.from_numpy(labels.astype(np.int64))


def _part(files: dict[str, bytes], prefix: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    pictures, labels = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
    x = parse_idx(files[pictures], pictures, (count, SIDE, SIDE))
    y = parse_idx(files[labels], labels, (count,))
    pixels = torch.from_numpy(x.reshape(count, 1, SIDE, SIDE).copy())
    return pixels, checked_labels(y, labels, CLASSES)


@lru_cache(maxsize=1)
def _read(root: Path) -> tuple[Source, Table]:
    files = official.read("mnist", root)
    test_x, test_y = _part(files, "t10k", 10_000)
    x, y = _part(files, "train", TRAINING_RECORDS)
    names = tuple(str(digit) for digit in range(CLASSES))
    test = Held(inputs(test_x, Scale()), test_y)
    source = Source(
        "mnist", CLASSES, test, names, Scale(), published=(TRAINING_RECORDS,), archive="mnist"
    )
    return source, Table(x, y, np.arange(len(y)))


def load(request: Request) -> tuple[Source, Holdings]:
    """The training pictures, dealt to peers; a record's id is its place in the official file."""
    source, pool = _read(official.data_root())
    rng = request.seeds.numpy("task", "partition")
    return source, PixelSplit.of(split(pool, request.partition, request.peers, rng), Scale())
