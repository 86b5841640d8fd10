"""``digits``: the handwritten digits that ship inside scikit-learn.

1,797 pictures of 8 x 8 pixels in 16 shades of grey (Alpaydin and Kaynak, UCI, 1998).  A fifth of
them is the test set.  Which fifth does not depend on the run's seed, so that all runs are
measured on the same pictures.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from unwalk.core.data import Held
from unwalk.core.seeds import PublicSeeds
from unwalk.tasks.forgetting import Deletion
from unwalk.tasks.partitions import split
from unwalk.tasks.recipes import Recipe, Request
from unwalk.tasks.sources import Holdings, Scale, Source, Table

TEST_RECORDS = 359


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
    source = Source("digits", 10, Held(test.x, test.y), names, scale=Scale())
    return source, everything.take(np.sort(order[TEST_RECORDS:]))


def load(request: Request) -> tuple[Source, Holdings]:
    """The pictures, dealt to peers."""
    source, pool = _read()
    rng = request.seeds.numpy("task", "partition")
    return source, split(pool, request.partition, request.peers, rng)


RECIPE = Recipe(
    name="digits",
    about="1,797 handwritten digits, 8 x 8 pixels, 10 classes; ships inside scikit-learn",
    load=load,
    model="small-cnn",
    forget=Deletion("backdoor", size=60),
)
