"""``blobs``: Gaussian classes, generated per peer when the token first arrives.

Nothing is stored for peers that were not visited, so that 100,000 peers cost as much as ten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import Held
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.tasks.sources import Holdings, Source, Table
from unwalk.tasks.task import Request

TEST_RECORDS = 1000


@dataclass(frozen=True, eq=False)
class Blobs:
    """Peers whose records are drawn when they are asked for, by a generator keyed by the peer.

    A record's class is uniform, its input Gaussian around the centre of that class.
    """

    peers: int
    per_peer: int
    centres: npt.NDArray[np.float32]
    spread: float
    seeds: PublicSeeds
    dealing: str = "natural"

    @property
    def records(self) -> int:
        """How many records all peers would hold together."""
        return self.peers * self.per_peer

    def table(self, peer: int) -> Table:
        """The records of one peer."""
        held = self.draw(self.per_peer, self.seeds.numpy("task", "blobs", "peer", peer))
        first = peer * self.per_peer
        return Table(held.x, held.y, np.arange(first, first + self.per_peer))

    def draw(self, count: int, rng: np.random.Generator) -> Held:
        """``count`` records."""
        classes, features = self.centres.shape
        y = rng.integers(classes, size=count)
        x = rng.standard_normal((count, features), np.float32)
        x *= self.spread
        x += self.centres[y]
        return Held(torch.from_numpy(x), torch.from_numpy(y))


def load(request: Request) -> tuple[Source, Holdings]:
    """Centres and a test set; no peer's records yet."""
    # All peers draw from the same classes, so there is one way to deal records out.
    check_choice("partition", request.partition.kind, ("iid",))
    options = request.options
    shape = (
        check_count("classes", options["classes"], low=2),
        check_count("features", options["features"], low=1),
    )
    rng = request.seeds.numpy("task", "blobs", "centres")
    blobs = Blobs(
        peers=check_count("peers", request.peers, low=1),
        per_peer=check_count("records", options["records"], low=request.partition.min_records),
        centres=rng.standard_normal(shape, np.float32),
        spread=check_number("spread", options["spread"], low=0.0),
        seeds=request.seeds,
    )
    test = blobs.draw(TEST_RECORDS, request.seeds.numpy("task", "blobs", "test"))
    names = tuple(f"blob {k}" for k in range(len(blobs.centres)))
    return Source("blobs", len(blobs.centres), test, names, published=(blobs.per_peer,)), blobs
