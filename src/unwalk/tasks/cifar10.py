"""``cifar10``: 60,000 colour pictures of 32 x 32 pixels, from the official binary version.

Krizhevsky, *Learning multiple layers of features from tiny images*, 2009: 50,000 to train, 10,000
to test.  The python version of the same data is a pickle, which could run any code, and is
refused.  Training pictures are flipped at random and moved by up to four pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from unwalk.core.data import Held
from unwalk.core.errors import Corrupt
from unwalk.tasks import official
from unwalk.tasks.mnist import PixelSplit, checked_labels, inputs
from unwalk.tasks.sources import Holdings, Scale, Source, Table, split
from unwalk.tasks.task import Request

LABELS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
BATCH_RECORDS = 10_000
TRAINING = tuple(f"data_batch_{part}.bin" for part in range(1, 6))
RECORDS = BATCH_RECORDS * len(TRAINING)

# Mean and standard deviation of each channel over the official training pictures, to the four
# digits with which the field has published them for years.  No run computes them, so no record
# of a run decides them.
SCALE = Scale(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


@dataclass(frozen=True, eq=False)
class FlipAndShift:
    """Random flips from left to right, and crops from pictures with a black margin on all sides.

    The margin is black as a *pixel*, which is not 0 once pictures are normalised.  One draw per
    picture and one gather per batch, on the device of the batch.
    """

    scale: Scale
    margin: int = 4
    _near: dict[torch.device, torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A changed copy of a batch of shape (pictures, channels, height, width)."""
        count, channels, height, width = x.shape
        down, right, flip = self.draw(count, generator).to(x.device).unbind(1)
        rows = torch.arange(height, device=x.device) + down[:, None]
        columns = torch.arange(width, device=x.device)
        columns = torch.where(flip[:, None] == 1, width - 1 - columns, columns) + right[:, None]
        tall, wide = height + 2 * self.margin, width + 2 * self.margin
        padded = self._black(x).expand(count, channels, tall, wide).clone()
        padded[:, :, self.margin : self.margin + height, self.margin : self.margin + width] = x
        places = (rows[:, :, None] * wide + columns[:, None, :]).view(count, 1, height * width)
        places = places.expand(count, channels, height * width)
        return padded.flatten(2).gather(2, places).view_as(x)

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """For each picture: rows and columns of margin above and left of the crop, and a coin."""
        spots = (2 * self.margin + 1) ** 2
        drawn = torch.randint(2 * spots, (count,), generator=generator, device=generator.device)
        place, flip = drawn % spots, drawn // spots
        side = 2 * self.margin + 1
        return torch.stack([place // side, place % side, flip], 1)

    def _black(self, like: torch.Tensor) -> torch.Tensor:
        if like.device not in self._near:
            pixel = torch.zeros(len(self.scale.mean), 1, 1)
            self._near[like.device] = self.scale.inputs(pixel).to(like.device)
        return self._near[like.device].to(like.dtype)


def parse_batch(data: bytes, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures (as bytes) and labels of one batch file: records of a label and 3,072 pixels.

    A record holds the red, then the green, then the blue pixels, row by row.
    """
    if len(data) != BATCH_RECORDS * RECORD:
        raise Corrupt(
            f"{name} has {len(data):,} bytes; a batch of {BATCH_RECORDS:,} records of {RECORD:,} "
            f"bytes has {BATCH_RECORDS * RECORD:,}."
        )
    records = np.frombuffer(data, np.uint8).reshape(BATCH_RECORDS, RECORD)
    labels = checked_labels(records[:, 0], name, len(LABELS))
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, SIDE, SIDE).copy()), labels


@lru_cache(maxsize=1)
def read(root: Path) -> tuple[Source, Table]:
    """What the pictures look like, and all training pictures as bytes, in the official order."""
    files = official.read("cifar10", root)
    test_x, test_y = parse_batch(files.pop("test_batch.bin"), "test_batch.bin")
    batches = [parse_batch(files.pop(name), name) for name in TRAINING]
    x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    test = Held(inputs(test_x, SCALE), test_y)
    source = Source(
        "cifar10",
        len(LABELS),
        test,
        LABELS,
        SCALE,
        FlipAndShift(SCALE),
        published=(RECORDS,),
        archive="cifar10",
    )
    return source, Table(x, y, np.arange(len(y)))


def load(request: Request) -> tuple[Source, Holdings]:
    """The training pictures, dealt to peers.

    A record's id is its place in the five training batches, counted on from one to the next.
    """
    source, pool = read(official.data_root())
    rng = request.seeds.numpy("task", "partition")
    return source, PixelSplit.of(split(pool, request.partition, request.peers, rng), SCALE)
