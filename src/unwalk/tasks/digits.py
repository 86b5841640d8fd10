"""``digits``: the handwritten digits that ship inside scikit-learn.

1,797 pictures of 8 x 8 pixels in 16 shades of grey (Alpaydin and Kaynak, UCI, 1998).  A fifth of
them is the test set.  Which fifth does not depend on the run's seed, so that all runs are
measured on the same pictures.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from unwalk.core.data import Held
from unwalk.core.seeds import PublicSeeds
from unwalk.tasks.sources import Holdings, Scale, Source, Table, split
from unwalk.tasks.task import Request

RECORDS, TEST_RECORDS = 1797, 359
PUBLISHED = (RECORDS - TEST_RECORDS,)
BIAS = 0.1
FLOOR = 0.5
"""Pictures up to this length are nearly empty and are not scaled up."""
SHRINK = 1.0 - 1e-5
"""Keeps lengths below 1 whatever the rounding of 32-bit numbers does."""


@cache
def _read() -> tuple[Source, Table]:
    # Imported here: it takes a second, which other tasks need not spend.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16.0).astype(np.float32)).view(-1, 1, 8, 8)
    everything = Table(x, torch.from_numpy(labels.astype(np.int64)), np.arange(len(labels)))
    order = PublicSeeds(0).numpy("task", "digits", "test").permutation(len(labels))
    test = everything.take(np.sort(order[:TEST_RECORDS]))
    names = tuple(str(digit) for digit in range(10))
    source = Source(
        "digits",
        10,
        Held(test.x, test.y),
        names,
        scale=Scale(),
        holdout="share",
        published=PUBLISHED,
    )
    return source, everything.take(np.sort(order[TEST_RECORDS:]))


def flattened(pictures: torch.Tensor) -> torch.Tensor:
    """The pixels of each picture less their mean, as a vector of length 1, and a constant in front.

    The whole vector has length 1 at most and depends on no other picture: each is computed in its
    own call, so that its last bits do not depend on how many others there are.
    """
    return torch.cat([_flattened(picture) for picture in pictures.split(1)])


def _flattened(picture: torch.Tensor) -> torch.Tensor:
    pixels = picture.clone().flatten(1)
    pixels = pixels - pixels.mean(1, keepdim=True)
    length = pixels.norm(dim=1, keepdim=True).clamp(min=FLOOR)
    top = math.sqrt(1.0 - BIAS**2) * SHRINK
    constant = torch.full((len(pixels), 1), BIAS)
    return torch.cat([constant, pixels / length * top], 1)


@cache
def _read_flat() -> tuple[Source, Table]:
    source, pool = _read()
    test = Held(flattened(source.test.x), source.test.y)
    flat = Source(
        "digits-flat",
        10,
        test,
        source.labels,
        feature_norm=1.0,
        holdout="share",
        published=PUBLISHED,
    )
    return flat, Table(flattened(pool.x), pool.y, pool.ids)


def load(request: Request) -> tuple[Source, Holdings]:
    """The pictures, dealt to peers."""
    return _dealt(*_read(), request)


def load_flat(request: Request) -> tuple[Source, Holdings]:
    """Their pixels as vectors of length 1 at most, dealt to peers."""
    return _dealt(*_read_flat(), request)


def _dealt(source: Source, pool: Table, request: Request) -> tuple[Source, Holdings]:
    rng = request.seeds.numpy("task", "partition")
    return source, split(pool, request.partition, request.peers, rng)
