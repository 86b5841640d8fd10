"""A table that grew since training spoils nobody's exact request."""

from __future__ import annotations

import csv
import os
from functools import partial

from tests.peers.deletions import Hamlet, ask, certificate, check, ended, hamlet, trained_on
from tests.peers.test_leaving import gone, leave
from unwalk.core.events import GradientSteps
from unwalk.core.transcript import Hop


def grow(here: Hamlet, peer: int, count: int = 30) -> None:
    """The organisation of a peer adds rows to its table."""
    path = here.folder / f"records-{peer}.csv"
    new = path.with_suffix(".tmp")
    with new.open("w", newline="") as file:
        file.write(path.read_text())
        csv.writer(file).writerows([f"late-{n}", n % 3, *[0.1 * n] * 6] for n in range(count))
    os.replace(new, path)


def steps(here: Hamlet, chapter: int, peer: int) -> set[int]:
    """How many steps a peer took in its visits of a chapter."""
    visits = here.peers[0].visits([(chapter, 1)])[chapter]
    hops = [Hop.from_json(visit["visit"]) for visit in visits]
    return {
        sum(event.steps for event in hop.events if isinstance(event, GradientSteps))
        for hop in hops
        if hop.receiver == peer
    }


def test_a_rewind_takes_the_records_of_then(tmp_path):
    async def script(here):
        await here.until(here.trained)
        for peer in (0, 1):
            grow(here, peer)
        ask(here, 0, "a", trained_on(here, 0)[0])
        await here.until(ended(here, a=0))
        assert here.stage(0, "a") == "done"
        assert here.peers[0].specs[0].method == "rewind"
        for peer in (0, 1):
            assert steps(here, 1, peer) == steps(here, 0, peer) != set()

    here = hamlet(tmp_path, script, seed=3)
    (claim,) = check(here, 0, "chapter-1")["claims"]
    assert claim["grade"] == "exact", claim["reason"]


def test_a_visit_that_was_dropped_is_none_that_a_rewind_repeats(tmp_path):
    async def script(here):
        await here.until(here.trained)
        grow(here, 1)
        visits = here.peers[1].visits([(0, 1)])[0]
        others = [n for n, v in enumerate(visits, 1) if v["visit"]["receiver"] != 1]
        here.peers[1].records.begin_visit(0, others[-1])  # and then it was passed over
        ask(here, 0, "a", trained_on(here, 0)[0])
        await here.until(ended(here, a=0))
        assert here.stage(0, "a") == "done"
        assert steps(here, 1, 1) == steps(here, 0, 1) != set()

    hamlet(tmp_path, script, seed=3)


def everything(begin_visit, chapter, hop, forgetting, *repeated):
    """What a peer begins a visit with that takes all of its records, whatever is repeated."""
    return begin_visit(chapter, hop, forgetting)


def test_a_request_whose_claim_does_not_hold_is_refused_and_can_be_made_again(tmp_path):
    """A peer that does more than in training spoils a rewind, and no request is done with that."""

    async def script(here):
        await here.until(here.trained)
        records = here.peers[1].records
        records.begin_visit = partial(everything, records.begin_visit)
        grow(here, 1)
        row = trained_on(here, 0)[0]
        train = here.peers[0].records.counts().train
        ask(here, 0, "a", row)
        await here.until(ended(here, a=0))
        request = here.peers[0].requests.get("a")
        assert request.stage == "refused"
        assert "steps, and" in request.reason
        assert "--method restart" in request.reason
        assert not certificate(here, 0, "chapter-1").exists()
        assert here.peers[0].records.counts().train == train, "the record is there again"
        ask(here, 0, "b", row, method="restart")
        await here.until(ended(here, b=0))
        assert here.stage(0, "b") == "done"
        assert max(steps(here, 2, 1)) > max(steps(here, 0, 1)), "a walk of its own takes them all"

    here = hamlet(tmp_path, script, seed=3)
    (claim,) = check(here, 0, "chapter-2")["claims"]
    assert claim["grade"] == "exact"


def test_a_peer_leaves_although_nothing_proves_that_it_is_forgotten(tmp_path):
    async def script(here):
        await here.until(here.trained)
        records = here.peers[1].records
        records.begin_visit = partial(everything, records.begin_visit)
        grow(here, 1)
        leave(here, 0)
        await gone(here, 0)
        (why,) = [e["why"] for e in here.events if e["event"] == "request refused"]
        assert why.startswith("everything was erased, but no certificate can prove")

    hamlet(tmp_path, script, seed=3)
