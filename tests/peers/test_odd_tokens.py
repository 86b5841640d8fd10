"""What a member can put into a token that it signs: refused, or taken and handed on.

A peer takes only what the plan has at that hop, and no token that it took can end it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.peers.deletions import (
    SEALED,
    ask,
    certificate,
    check,
    ended,
    hamlet,
    trained_on,
    vouched,
)
from tests.peers.harness import ROUTE, Village, check_end, lived
from unwalk.core.token import Token
from unwalk.engines.execute import execute as plain_execute
from unwalk.peers.handover import visit as visits
from unwalk.peers.handover.visit import Work
from unwalk.peers.lifecycle import accuracy
from unwalk.peers.storage import token_files
from unwalk.peers.storage.token_files import open_token

LIAR, PEERS, HONEST = 2, 4, (0, 1, 3)
ADAM = {"train__optimizer": "adam"}
Craft = Callable[[Token], Token]


def crafting(work: Work, craft: Craft, times: int = 1) -> list[int]:
    """The liar hands on what ``craft`` makes of its next visits, but for the last one."""
    honest, crafted = work.visit, list[int]()

    def visit(*given: Any, **more: Any) -> Any:
        visited = honest(*given, **more)
        if visited.token.hop < work.plan.hops and len(crafted) < times:
            crafted.append(visited.token.hop)
            visited = replace(visited, token=craft(visited.token.clone()))
        return visited

    work.visit = visit  # type: ignore[method-assign]
    return crafted


def kept(*names: str) -> Craft:
    return lambda t: replace(t, kept={name: torch.ones_like(t.parameters) for name in names})


def moments(**changes: Any) -> Craft:
    def craft(token: Token) -> Token:
        known = dict(token.moments)
        for name, value in changes.items():
            known.pop(name, None)
            if value is not None:
                known[name] = torch.full_like(token.parameters, value)
        return replace(token, moments=known)

    return craft


def counting(steps: int) -> Craft:
    return lambda token: replace(token, optimizer_steps=steps)


KEPT = r"'kept/.*' that no visit here uses|has \d+ bytes; allowed"
ODD = [
    pytest.param(kept("average", "random"), {}, KEPT, id="both iterates"),
    pytest.param(kept("random"), {}, KEPT, id="an iterate"),
    pytest.param(
        kept("average", "random"), {"train__keep": "average"}, KEPT, id="one beside the average"
    ),
    pytest.param(kept(), {"train__keep": "average"}, "no tensor 'kept/average'", id="no average"),
    pytest.param(counting((1 << 48) - 1), ADAM, "optimizer steps", id="many steps"),
    pytest.param(counting(1), ADAM, "optimizer steps", id="few steps"),
    pytest.param(counting(0), ADAM, "that no visit here uses", id="no steps"),
    pytest.param(moments(square=-1.0), ADAM, "allowed: 0 to", id="a negative second moment"),
    pytest.param(moments(square=None), ADAM, "no tensor 'moment/square'", id="no second moment"),
    pytest.param(moments(mean=0.0), {}, "that no visit here uses", id="another moment"),
]


@pytest.mark.parametrize(("craft", "settings", "why"), ODD)
def test_what_the_plan_does_not_have_at_a_hop_is_refused(tmp_path, craft, settings, why):
    """Each of them ended an honest peer, for good, or went into the released model."""

    async def script(here: Village) -> None:
        for peer in range(PEERS):
            here.start(peer)
        crafted = crafting(here.services[LIAR].work, craft)
        await here.until(lambda: here.finished(*HONEST))
        assert crafted

    here = lived(tmp_path, script, PEERS, visit=0.8, seed=ROUTE, train__hops=5, **settings)
    reasons = " | ".join(str(e["reason"]) for e in here.events if e["event"] == "refused")
    assert re.search(why, reasons), reasons
    check_end(here.folder, here.network, HONEST)


def full(value: float) -> Craft:
    return lambda t: replace(t, parameters=torch.full_like(t.parameters, value))


ALMOST = 1e9 * (1.0 - 2e-7)
WILD = [
    pytest.param(
        lambda t: moments(momentum=-ALMOST)(full(ALMOST)(t)), {}, id="beyond it after a visit"
    ),
    pytest.param(moments(mean=-ALMOST, square=0.0), ADAM, id="far beyond it"),
    pytest.param(
        lambda t: moments(square=1e-45, mean=ALMOST)(full(ALMOST)(t)), ADAM, id="all at the limit"
    ),
]


@pytest.mark.parametrize(("craft", "settings"), WILD)
def test_a_visit_that_leaves_too_large_values_is_cut_off_and_handed_on(tmp_path, craft, settings):
    """Everybody refused the honest peer that did it, and the walk stood still."""

    async def script(here: Village) -> None:
        for peer in range(PEERS):
            here.start(peer)
        crafted = crafting(here.services[LIAR].work, craft)
        await here.until(lambda: here.finished(*HONEST))
        assert crafted

    here = lived(tmp_path, script, PEERS, seed=ROUTE, train__hops=5, **settings)
    events = {e["event"] for e in here.events}
    assert "values cut off" in events
    assert not events & {"recovered", "passed over", "token let go"}


def test_values_that_are_not_finite_are_cut_off_too(tmp_path, monkeypatch):
    """Also what a peer keeps for itself: else it would spoil each of its visits."""
    honest, spoilt = plain_execute, list[int]()

    def execute(program: Any, bench: Any) -> Any:
        found = honest(program, bench)
        if bench.hop == 3:
            spoilt.append(bench.peer)
            bench.work.parameters[0] = float("nan")
            bench.local.moments["momentum"][0] = float("inf")
        return found

    monkeypatch.setattr(visits, "execute", execute)

    async def script(here: Village) -> None:
        for peer in range(PEERS):
            here.start(peer)
        await here.until(here.finished)
        (peer,) = spoilt
        service = here.services[peer]
        kept = service.store.read_local(service.store.local(service.run_id, service.state.lineage))
        assert kept.moments["momentum"].isfinite().all()

    here = lived(tmp_path, script, PEERS, seed=ROUTE, train__hops=4, train__state="local")
    assert [e["hop"] for e in here.events if e["event"] == "values cut off"] == [3]


def test_a_token_that_ends_its_visit_is_let_go_and_the_walk_recovers(tmp_path, monkeypatch):
    """Whatever a model says to values that it does not understand; also after a start."""
    honest = plain_execute
    bad = 3  # it makes the third visit

    def execute(program: Any, bench: Any) -> Any:
        if (bench.peer, bench.hop) == (bad, 3):
            raise ZeroDivisionError("float division by zero")
        return honest(program, bench)

    monkeypatch.setattr(visits, "execute", execute)

    async def script(here: Village) -> None:
        for peer in range(PEERS):
            here.start(peer)
        await here.until(here.finished)

    here = lived(tmp_path, script, PEERS, seed=ROUTE, train__hops=5)
    (event,) = [e for e in here.events if e["event"] == "token let go"]
    assert "division by zero" in event["reason"]
    check_end(here.folder, here.network, range(PEERS))


@pytest.mark.parametrize(
    "craft",
    [
        pytest.param(kept("average", "random"), id="iterates"),
        pytest.param(counting(1), id="few steps"),
        pytest.param(counting(1 << 50), id="too many steps"),
    ],
)
def test_a_token_that_was_taken_earlier_and_is_none_is_let_go_at_the_start(
    tmp_path, craft, monkeypatch
):
    """Its peer ended whenever it was started."""
    victim = 3

    async def script(here: Village) -> None:
        for peer in range(PEERS):
            here.start(peer)
        crafting(here.services[LIAR].work, craft)
        service = here.services[victim]
        taken = asyncio.Event()

        async def stuck(*_: Any) -> None:
            taken.set()
            await asyncio.Event().wait()

        service._visit = stuck  # type: ignore[method-assign]
        gate = type(service.gate)
        with monkeypatch.context() as credulous:
            credulous.setattr(gate, "content", lambda *_: None)
            credulous.setattr(gate, "agrees", lambda *_: None)
            credulous.setattr(token_files, "_whole", int)
            credulous.setattr(service.work, "most_bytes", 1 << 20)
            credulous.setattr(service.work, "longest_header", 1 << 20)
            service.early_visits.begin = lambda *_: None  # type: ignore[method-assign]
            await here.until(taken.is_set)
        await here.crash(victim)
        here.start(victim)
        await here.until(lambda: here.finished(*HONEST))

    here = lived(tmp_path, script, PEERS, visit=0.8, seed=ROUTE, train__hops=5)
    assert [e for e in here.events if e["event"] == "token let go"]
    check_end(here.folder, here.network, HONEST)


def test_a_model_that_fails_where_it_is_only_measured_ends_nobody(tmp_path, monkeypatch):
    class Failing(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise IndexError("index 7 is out of bounds")

    monkeypatch.setattr(accuracy, "build_model", lambda *_: Failing(6, 3))
    monkeypatch.setattr(accuracy, "_fill", lambda *_: None)

    async def script(here: Any) -> None:
        await here.until(here.trained)
        await here.until(lambda: all(c.accuracy_meter.last[1] == 4 for c in here.peers.values()))
        await here.until(lambda: all(c.accuracy_meter.then > 0 for c in here.peers.values()))
        assert not any(c.accuracy_meter.points for c in here.peers.values())

    hamlet(tmp_path, script, PEERS, train__hops=4)


def test_the_model_that_a_seal_releases_is_the_sealed_one(tmp_path):
    """A token that kept the model from before the seal had that one released, and certified."""
    crafted: list[list[int]] = []

    async def script(here: Any) -> None:
        await here.until(here.trained)
        liar = here.peers[LIAR]
        before = open_token(liar.store.file(liar.model(1)), PEERS).token().parameters.clone()
        opened = liar._open

        def opening(number: int) -> Any:
            service = opened(number)
            craft = lambda token: replace(token, kept={"random": before})  # noqa: E731
            crafted.append(crafting(service.work, craft, times=9))
            return service

        liar._open = opening
        budget = {"grade": "certified", "epsilon": 8.0, "delta": 1e-5}
        ask(here, 0, "r", *trained_on(here, 0)[:1], **budget)
        await here.until(ended(here, r=0), 120.0)
        honest = here.peers[0]
        last = honest.store.file(honest.service.state.committed.token)
        released = open_token(last, PEERS).token()
        assert not torch.equal(released.parameters, before)

    here = hamlet(tmp_path, script, PEERS, unlearn__hops=6, train__hops=8, visit=0.8, **SEALED)
    assert crafted[0]
    assert check(here, 0, "chapter-1")["claims"][0]["grade"] == "certified"
    said = vouched(certificate(here, 0, "chapter-1"), here.folder / "ca.pem")
    assert "that model is what the last visit left" in str(said)
