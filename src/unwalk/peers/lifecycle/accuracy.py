"""Measures the model on records that this peer holds out, over hops; for its own eyes only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import torch
from torch import nn

from unwalk.core.data import Held
from unwalk.core.errors import Corrupt
from unwalk.core.outside import travelling
from unwalk.core.token import Layout, build_model
from unwalk.peers.handover.visit import UNUSABLE
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.storage.token_files import TokenFile, open_token

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


class AccuracyMeter:
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
        """Share of right answers; None if the file was written over, or the model fails on it."""
        plan = self.progress.service.work.plan
        model = build_model(plan.task.model, plan.seeds.integer("model"))
        try:
            file = open_token(path, len(self.progress.network.peers))
            _fill(model, file)
            self.progress.store.check_file(digest)
            dtype = file.tensors["parameters"].dtype
            with torch.no_grad():
                right = model.eval()(held.x.to(dtype)).argmax(1) == held.y
        except (OSError, Corrupt, *UNUSABLE):
            return None
        return float(right.float().mean())


def _fill(model: nn.Module, file: TokenFile) -> None:
    """Put a token's values into a model that is only looked at: no gradient, no second copy."""
    token = file.token()
    views = Layout.of(model).views(token.parameters)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in views:
                parameter.copy_(views[name])
                file.give_back()
        for name, buffer in travelling(model).items():
            buffer.copy_(token.buffers[name])
