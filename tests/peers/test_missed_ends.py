"""A peer that was away when a chapter ended is of use in the next one, which u cannot begin."""

from __future__ import annotations

from tests.peers.deletions import SEALED, Hamlet, ask, check, ended, hamlet, trained_on
from tests.peers.harness import ROUTE
from unwalk.peers.decisions.walk_end import end_text, void_closing
from unwalk.peers.protocol.handover import Value

U, W = 1, 3
"""Training goes 0 2 3 2 3 1 0 1: W handed u its first token, and is not needed any more."""
OTHERS = (0, 2)
QUICK = {"lease": 0.2, "train__hops": 8, "seed": ROUTE}
BUDGET = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}


async def u_asks_and_goes_away(here: Hamlet, **more) -> None:
    """W misses the end of training, and comes back when u's chapter is decided and u is gone."""
    await here.until(lambda: any(e["event"] == "visited" and e["hop"] == 6 for e in here.events))
    await here.crash(W)
    await here.until(lambda: here.trained(0, U, 2))
    ask(here, U, "a", trained_on(here, U)[0], **more)
    await here.until(lambda: any(here.peers[p].specs for p in OTHERS))
    await here.crash(U)
    here.start(W)
    await here.until(lambda: bool(here.peers[W].specs))
    assert here.peers[W].visits([(0, 1)])[0] == []
    assert here.peers[W].model(1) is None


def test_who_missed_the_end_of_training_begins_the_rewind_of_a_peer_that_is_away(tmp_path):
    async def script(here):
        await u_asks_and_goes_away(here)
        await here.until(lambda: here.trained(W, *OTHERS), 4.0)
        (back,) = here.peers[W].specs
        assert (back.method, back.void) == ("rewind", False)
        assert here.peers[W].visits([(1, 1)])[1][0]["visit"]["receiver"] == W
        here.start(U)
        await here.until(ended(here, a=U))

    here = hamlet(tmp_path, script, **QUICK)
    (claim,) = check(here, U, "chapter-1")["claims"]
    assert claim["grade"] == "exact"


def test_who_missed_the_end_of_training_votes_that_a_chapter_is_given_up(tmp_path):
    """It is needed for a quorum, and gets the model that stays only then: others say which."""

    async def script(here):
        await u_asks_and_goes_away(here, **BUDGET)
        ends, wrong = here.peers[W].service.ends, "f" * 64
        for peer, believed in zip(OTHERS, (False, True), strict=True):  # one of four may lie
            said = Value((0, 0), ends.walk.start_chain, wrong, f"{peer:032x}")
            ends.poll.offers[peer] = end_text(said, void_closing(said))
            assert ends.stands_for(ends.poll.offers[peer], True) == believed
        ends.poll.offers.clear()
        await here.until(lambda: all(here.peers[p].service.void for p in (W, *OTHERS)))
        model = here.peers[0].model(1)
        await here.until(lambda: here.peers[W].final(1) == model)
        ask(here, 0, "b", trained_on(here, 0)[0])
        await here.until(lambda: len(here.peers[W].specs) == len(here.peers[0].specs) == 2)

    hamlet(tmp_path, script, **{**SEALED, **QUICK, "unlearn__hops": 3})
