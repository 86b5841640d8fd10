"""``cifar10-klom``: CIFAR-10 with a forget set of *data-unlearning-bench* at the first peer.

Rinberg et al. (arXiv 2602.16400) publish ten sets of 10 to 1,000 training pictures that are to be
forgotten together.  Peer 0 holds all pictures of all ten sets, so that training is the same walk
whichever set is forgotten; the rest is dealt to the others.  Nothing is augmented.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.program import Rows
from unwalk.tasks import cifar10, official
from unwalk.tasks.mnist import PixelSplit
from unwalk.tasks.sources import Holdings, Source, split
from unwalk.tasks.task import Request

FILE = "klom/forget_sets.json"


def forget_sets(place: Path) -> dict[int, Rows]:
    """The sets by their numbers, as places in CIFAR-10's official training set."""
    if not place.is_file():
        raise InvalidInput(
            f"task 'cifar10-klom' needs {place}, which is not there; write the sets of "
            'data-unlearning-bench to it as {"sets": {"1": [places], ...}}.'
        )
    try:
        given = json.loads(place.read_text(encoding="utf-8"))["sets"]
        sets = {int(name): np.unique(np.array(rows, np.int64)) for name, rows in given.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Corrupt(f"{place} holds no forget sets ({error}).") from error
    for name, rows in sets.items():
        if not rows.size or rows[0] < 0 or rows[-1] >= cifar10.RECORDS:
            raise Corrupt(
                f"set {name} in {place} is empty or names a picture that does not exist; allowed: "
                f"places 0 to {cifar10.RECORDS - 1}."
            )
    return sets


def load(request: Request) -> tuple[Source, Holdings]:
    """The pictures of all sets at peer 0, and the others dealt to peers 1 and up."""
    if request.peers < 2:
        raise InvalidInput(
            f"peers is {request.peers}; task 'cifar10-klom' allows 2 or more, the first of which "
            "holds the forget sets."
        )
    root = official.data_root()
    sets = forget_sets(root / FILE)
    number = int(request.options["forget_set"])
    if number not in sets:
        raise InvalidInput(
            f"data.forget_set is {number}; allowed: {', '.join(map(str, sorted(sets)))}."
        )
    source, pool = cifar10.read(root)
    held = np.unique(np.concatenate(list(sets.values())))
    rest = np.setdiff1d(np.arange(len(pool)), held)
    rng = request.seeds.numpy("task", "partition")
    dealt = split(pool.take(rest), request.partition, request.peers - 1, rng)
    parts = [held, *(rest[rows] for rows in dealt.parts)]
    named = replace(source, name="cifar10-klom", augment=None, listed=sets[number])
    return named, PixelSplit(pool, parts, dealt.dealing, scale=cifar10.SCALE)
