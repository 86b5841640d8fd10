"""Measures the model on records that this peer holds out, over hops; for its own eyes only."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch

from unwalk.core.data import Held
from unwalk.core.token import Workspace, build_model
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.storage.token_files import open_token

EVERY = 0.5
"""Seconds between two measurements, at least."""
SHARE = 20.0
"""A measurement is followed by a pause of so many times its length, at least."""
MOST = 400
"""Points that are kept; half of them go when there are more."""


class Measured(NamedTuple):
    """Accuracy on ``records`` records that are held out, after a hop of a chapter."""

    chapter: int
    hop: int
    accuracy: float
    records: int


class Gauge:
    """Measures tokens that came by, in a thread of its own, after they were handed on."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.points: list[Measured] = []
        self.last: tuple[int, int] = (-1, -1)
        self.then = 0.0

    async def step(self) -> None:
        """Measure the last token that this peer worked on, if it holds anything out."""
        progress = self.progress
        state, records = progress.service.state, progress.records
        place = (len(progress.specs), state.hops if state.committed else state.reached[1][0])
        if records is None or place[1] < 1 or place == self.last or progress.service.void:
            return
        if monotonic() < self.then and state.committed is None:
            return
        parcel = state.committed or state.kept or state.held
        if parcel is None or not progress.store.file(parcel.token).exists():
            return
        held = await asyncio.to_thread(records.hold_out)
        self.then, self.last = monotonic() + EVERY, place
        if not len(held.y):
            return
        path, begun = progress.store.file(parcel.token), monotonic()
        accuracy = await asyncio.to_thread(self._measure, path, parcel.token, held)
        self.then = monotonic() + max(EVERY, SHARE * (monotonic() - begun))
        if accuracy is not None:
            self.points.append(Measured(*place, accuracy, len(held.y)))
            if len(self.points) > MOST:
                del self.points[1::2]

    def _measure(self, path: Path, digest: str, held: Held) -> float | None:
        """Share of right answers; None if the file was written over meanwhile."""
        plan = self.progress.service.work.plan
        space = Workspace(build_model(plan.task.model, 0), "cpu")
        try:
            space.load(open_token(path, len(self.progress.network.peers)).token())
            same = hashlib.sha256(path.read_bytes()).hexdigest() == digest
        except (OSError, ValueError):
            return None
        if not same:
            return None
        space.model.eval()
        with torch.no_grad():
            right = space.model(held.x.to(space.parameters.dtype)).argmax(1) == held.y
        return float(right.float().mean())
