"""``a9a``: does a person earn more than 50,000 dollars?  Census records as 123 yes-or-no features.

Becker and Kohavi's *Adult* (UCI, 1996) in the form of the LIBSVM collection (Platt, 1998): 14
attributes, numbers cut into ranges, each range and each category one feature.  32,561 records to
train, 16,281 to test.

A record has 14 features that are 1 at most, one per attribute.  With a constant feature 1 behind
them and everything divided by sqrt(15), ||x|| <= 1 for every record that could exist.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from unwalk.core.data import Held
from unwalk.core.errors import Corrupt
from unwalk.tasks import official
from unwalk.tasks.sources import Holdings, Source, Table, split
from unwalk.tasks.task import Request

BINARY_FEATURES = 123
ATTRIBUTES = 14
SHRINK = 0.258198
"""1 / sqrt(15), rounded down, so that no rounding to float32 breaks ||x|| <= 1."""
LABELS = {"-1": 0, "+1": 1}
TRAINING, TEST = ("a9a", 32_561), ("a9a.t", 16_281)


def parse(data: bytes, name: str, records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels from LIBSVM text: a line ``label index:1 index:1 ...`` for each record.

    >>> x, y = parse(b"-1 3:1 11:1\\n+1 123:1\\n", "a9a", 2)
    >>> x.shape, (x != 0).sum(1).tolist(), y.tolist()
    (torch.Size([2, 124]), [3, 2], [0, 1])
    """
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise Corrupt(f"{name} is not a text file: byte {error.start} is not ASCII.") from error
    if len(lines) != records:
        raise Corrupt(f"{name} has {len(lines):,} lines; it is to have {records:,}.")
    x = np.zeros((records, BINARY_FEATURES + 1), np.float32)
    y = np.empty(records, np.int64)
    for row, line in enumerate(lines):
        try:
            y[row], features = _record(line)
        except Corrupt as error:
            raise Corrupt(f"{name}, line {row + 1}: {error}.") from error
        x[row, features] = SHRINK
    x[:, -1] = SHRINK
    return torch.from_numpy(x), torch.from_numpy(y)


def _record(line: str) -> tuple[int, list[int]]:
    """The label, and which features are 1, counted from 0."""
    label, *cells = line.split() or [""]
    if label not in LABELS:
        raise Corrupt(f"the label is {label!r}; allowed: {' or '.join(LABELS)}")
    if len(cells) > ATTRIBUTES:
        raise Corrupt(f"{len(cells)} features are set; allowed: {ATTRIBUTES} at most")
    features = []
    for cell in cells:
        index, _, value = cell.partition(":")
        if not (index.isdecimal() and value == "1" and 1 <= int(index) <= BINARY_FEATURES):
            raise Corrupt(f"{cell!r} is not a feature; allowed: 1:1 to {BINARY_FEATURES}:1")
        features.append(int(index) - 1)
    if len(set(features)) != len(features):
        raise Corrupt("a feature occurs twice; allowed: once")
    return LABELS[label], features


@lru_cache(maxsize=1)
def _read(root: Path) -> tuple[Source, Table]:
    files = official.read("a9a", root)
    x, y = parse(files[TRAINING[0]], *TRAINING)
    test = Held(*parse(files[TEST[0]], *TEST))
    names, published = ("up to 50K", "over 50K"), (TRAINING[1],)
    source = Source("a9a", 2, test, names, feature_norm=1.0, published=published)
    return source, Table(x, y, np.arange(len(y)))


def load(request: Request) -> tuple[Source, Holdings]:
    """The training records, dealt to peers; a record's id is its line in ``a9a``, from 0."""
    source, pool = _read(official.data_root())
    rng = request.seeds.numpy("task", "partition")
    return source, split(pool, request.partition, request.peers, rng)
