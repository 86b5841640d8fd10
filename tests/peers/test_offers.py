"""What a request would cost, by method: that is what its chapter then costs."""

from __future__ import annotations

import pytest

from tests.peers.deletions import SEALED, ask, ended, form, hamlet, ids_of, trained_on
from tests.peers.harness import ROUTE
from unwalk.cli.forgetting import _hand_in
from unwalk.core.errors import Refused
from unwalk.peers.forgetting.offers import NO_TOKEN, NO_VISIT, offers, offers_at


def at(here, peer):
    """Offers at a peer, by method; the same from its folder as from its process."""
    chapters = here.peers[peer]
    found = offers(chapters.book, peer, chapters.specs, chapters.store)
    assert offers_at(chapters.bundle) == found
    return {offer.method: offer for offer in found}


def test_a_chapter_costs_what_was_offered(tmp_path):
    async def script(here):
        await here.until(here.trained)
        size = here.peers[1].book.token_size
        for number, method in enumerate(("rewind", "restart", "rewind"), 1):
            offered = at(here, 1)[method]
            assert offered.reason is None
            assert offered.bytes == offered.hops * size
            ask(here, 1, f"r{number}", trained_on(here, 1)[number], method=method)
            await here.until(ended(here, **{f"r{number}": 1}))
            spec = here.peers[1].specs[-1]
            assert (spec.number, spec.method, spec.hops) == (number, method, offered.hops)
            await here.until(here.trained)
        assert "momentum" in at(here, 1)["seal"].reason
        (kept,) = [a for run in here.peers[1].runs for a in here.peers[1].store.arrivals(run)
                   if a.peer == 1][-1:]  # fmt: skip
        here.peers[1].store.file(kept.token).unlink()
        assert at(here, 1)["rewind"].reason == NO_TOKEN

    hamlet(tmp_path, script)


def test_what_is_offered_after_a_restart_can_be_asked_for_at_the_folder(tmp_path):
    """A restart's walk keeps its last iterate, as training did not: it can be rewound."""

    async def script(here):
        await here.until(here.trained)
        first, second = trained_on(here, 1)[:2]
        again = form("b", *ids_of(1, second), method="rewind")
        with pytest.raises(Refused, match="keep = last"):
            _hand_in(here.peers[1].bundle.folder, again)
        ask(here, 1, "a", first, method="restart")
        await here.until(ended(here, a=1))
        assert at(here, 1)["rewind"].reason is None
        assert _hand_in(here.peers[1].bundle.folder, again).id == "b"
        await here.until(ended(here, b=1))
        assert here.stage(1, "b") == "done"

    hamlet(tmp_path, script, 2, train__keep="average", train__hops=3)


def test_a_seal_costs_the_hops_of_the_settings(tmp_path):
    async def script(here):
        await here.until(here.trained)
        assert (at(here, 2)["seal"].hops, at(here, 2)["seal"].reason) == (6, None)

    hamlet(tmp_path, script, **SEALED)


def test_what_was_never_visited_needs_no_walk(tmp_path):
    async def script(here):
        await here.until(here.trained)
        visited = {e["peer"] for e in here.events if e["event"] == "visited"}
        (unvisited,) = {f"peer-{n}" for n in range(4)} - visited
        offered = at(here, int(unvisited[-1]))["rewind"]
        assert (offered.words, offered.hops) == (NO_VISIT, 0)

    hamlet(tmp_path, script, train__hops=5, seed=ROUTE)
