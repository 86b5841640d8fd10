"""Models that draw as they train: what a peer does beside a visit changes no bit of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.peers import harness
from tests.peers.deletions import hamlet
from unwalk.core.plan import Local
from unwalk.core.token import build_model
from unwalk.peers.forgetting import plans
from unwalk.peers.forgetting.offers import offers_at
from unwalk.peers.handover import visit as visits
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.web.live_desk import Reception
from unwalk.walks import NOBODY

called: list[Callable[[], None]] = []
"""What is called while a model is at work, between two times that it draws."""


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.5, self.training)
        for call in called:
            call()
        out: torch.Tensor = self.last(nn.functional.dropout(x, 0.5, self.training))
        return out


def make() -> nn.Module:
    return Drawing()


OWN = {"model__name": f"{__name__}:make", "data__features": 6, "data__classes": 3}


@pytest.fixture(autouse=True)
def nothing_is_called():
    yield
    called.clear()


def test_a_model_that_is_built_beside_a_visit_changes_none_of_its_draws(tmp_path):
    plan = plan_of(harness.network(tmp_path / "net", peers=3, **OWN))
    work, built, drawn = Work(plan, 0), threading.Event(), threading.Event()

    def visited() -> str:
        token, move = work.initial().clone(), work.move(1, NOBODY, {}, 0)
        return work.visit(token, move, Local(), first=True).token.digest()

    def another() -> nn.Module:
        built.set()
        assert drawn.wait(5.0)
        return nn.Linear(1, 1)

    def beside() -> None:
        called.clear()
        other.start()
        built.wait(0.2)

    token = work.initial().clone()
    alone = visited()
    other = threading.Thread(target=build_model, args=(another, 1))
    called.append(beside)
    work.space.load(token)
    threading.Timer(0.4, drawn.set).start()
    assert visited() == alone
    other.join(5.0)
    assert built.is_set()


def test_offers_of_a_peer_that_runs_build_neither_the_network_nor_a_model(tmp_path, monkeypatch):
    def built(*_: object) -> None:
        raise AssertionError("both are there")

    async def script(here):
        await here.until(here.trained)
        chapters = here.peers[0]
        wanted = offers_at(chapters.bundle)
        monkeypatch.setattr(plans, "assembled_of", built)
        monkeypatch.setattr(visits, "build_model", built)
        assert await Reception(chapters).offers() == wanted
        assert wanted[0].bytes

    hamlet(tmp_path, script, peers=3)
