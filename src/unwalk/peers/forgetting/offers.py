"""What a request to forget would cost at a peer now, by method, or why a method is not offered.

It looks at the walk that was, not at any record: what holds for records that were used holds for
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from unwalk.core.errors import Refused
from unwalk.core.grades import advised
from unwalk.peers.decisions import history
from unwalk.peers.decisions.decided import chapters_in
from unwalk.peers.forgetting.plans import Book, first_visit, for_peers, line
from unwalk.peers.forgetting.request_form import Offer
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol.schedule import METHODS, Spec, marked, run_of
from unwalk.peers.storage.database import read_only
from unwalk.peers.storage.store import Stored

NO_TOKEN = "the token from before this peer's first visit is no longer here."
NO_VISIT = "this peer was not visited yet: its records were not used, and are erased without a walk"
WORDS = {
    "exact": "as if the records had never been there",
    "certified": "within epsilon and delta (1 and 1e-5 if not given)",
}


def offers(
    book: Book, peer: int, specs: Sequence[Spec], store: Stored | None, size: int | None = None
) -> tuple[Offer, ...]:
    """Every method between peers, exact ones first; ``store`` is None where the peer never ran.

    ``size`` is that of a token; where it is not known a model is built to tell.
    """
    places = line(book.hops, specs)
    run = book.network.run_id
    runs, visits = [run, *(run_of(run, spec) for spec in specs)], {}
    if store is not None:
        visits = {n: history.visits_of(store, runs[n]) for n in {chapter for chapter, _ in places}}
    known = all(len(visits.get(n, ())) >= place for n, place in places)
    first = first_visit(peer, places, visits) if known else None

    def offer(method: str, grade: str) -> Offer:
        words = WORDS[grade]
        try:
            book.check(peer, grade, method, 1, specs)
        except Refused as error:
            return Offer(grade, method, words, reason=advised(for_peers(error)))
        if not known:
            return Offer(grade, method, words)
        if first is None:
            return Offer(grade, method, NO_VISIT, 0, 0)
        if method == "rewind":
            assert store is not None
            if history.find_arrival(store, runs, specs, peer, first, book.hops) is None:
                return Offer(grade, method, words, reason=NO_TOKEN)
        hops = book.hops_of(method, len(places), first)
        return Offer(grade, method, words, hops, hops * (size or book.token_size))

    ordered = sorted(METHODS.items(), key=lambda item: (item[1] != "exact", item[0] != "rewind"))
    return tuple(offer(method, grade) for method, grade in ordered)


def decided_at(bundle: Bundle) -> list[Spec]:
    """The chapters that were decided, as far as a peer's folder tells, whether it runs or not."""
    path = bundle.store / "state.sqlite"
    if not path.exists():
        return []
    with closing(read_only(path)) as db:
        return marked(chapters_in(db, len(bundle.network.peers)))


def offers_at(
    bundle: Bundle, book: Book | None = None, size: int | None = None
) -> tuple[Offer, ...]:
    """The same from a peer's folder, whether it runs or not; a peer that runs has its ``book``."""
    book, path = book or Book(bundle.network), bundle.store / "state.sqlite"
    specs = decided_at(bundle)
    if not path.exists():
        return offers(book, bundle.index, specs, None, size)
    with closing(read_only(path)) as db:
        return offers(book, bundle.index, specs, Stored(db, bundle.store / "tokens"), size)
