"""What the network does next: one chapter after the other, each decided once.

Chapter 0 is the training walk.  Every later chapter is one batch of deletion requests at one peer.
Any peer with open requests offers a chapter for the next number; the peers decide on one
(:mod:`unwalk.peers.protocol.consensus`), so that two peers that ask at once get two
chapters, one after the other, in the same order everywhere.  Whoever was not chosen
offers again for the next number.

A chapter that nobody who is there can begin is given up (*void*): that is one way in which its
walk can be decided to end, and the chapter after it says so (``Spec.after``).  Peers that have left
are not asked any more: who counts is settled by the chapter before (``Spec.left``), so that all who
decide a number count the same peers.

The functions are pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from unwalk import methods
from unwalk.certificates.form import request as request_id
from unwalk.core.errors import Corrupt
from unwalk.core.transcript import canonical
from unwalk.peers.protocol import codec

MOST_REQUESTS = 256
"""Requests in one chapter, at most: more wait for the next."""
MOST_RECORDS = 1 << 25
"""Records that one chapter forgets, at most: more than that many requests can name."""
NO_TOKEN = "0" * 64
"""Stands where a digest would tell about a model that must be forgotten."""
METHODS = {record.name: record.grade for record in methods.METHODS.values() if record.line}
"""How a chapter can forget, and the grade that each way can reach."""


@dataclass(frozen=True)
class Spec:
    """A chapter that forgets; everything in it is public.

    ``peer`` is u, whose ``records`` records (a number, the paper's m) the requests name.  The walk
    so far has ``before`` visits; the chapter goes back to the moment after ``position`` of them
    (a seal goes back nowhere, and ``position`` says from where on tokens are erased), and makes
    ``hops`` visits.  ``holder`` has the token that the walk goes on from: u, or the peer that
    handed it to u if u has vanished; then all records of u are meant, and their number is 0.

    The chapter goes on from the model of chapter ``after``; those in between were given up.
    ``left`` are the peers that no longer count, for the commit of this chapter and the choice of
    the next; u itself if it leaves.  ``void`` is no part of what is signed: it marks a chapter
    that was given up.
    """

    number: int
    peer: int
    method: str
    grade: str
    epsilon: float | None
    delta: float | None
    requests: tuple[str, ...]
    records: int
    before: int
    position: int
    hops: int
    holder: int
    after: int = 0
    left: tuple[int, ...] = ()
    void: bool = False

    @property
    def phase(self) -> str:
        """The name of its phase: coins are drawn from it, so no two chapters share any."""
        return f"forget-{self.number}"

    @property
    def vanished(self) -> bool:
        """Whether somebody else speaks for u, which is gone with all its records."""
        return self.holder != self.peer

    @property
    def length(self) -> int:
        """Visits on the line that leads to the model, once this chapter is over."""
        return self.hops + self.kept

    @property
    def kept(self) -> int:
        """Visits of the line so far that the chapter goes on from."""
        kept = methods.METHODS[self.method].line
        return {"position": self.position, "none": 0, "all": self.before}[kept]

    def to_json(self) -> dict[str, Any]:
        record = {**asdict(self), "requests": list(self.requests), "left": list(self.left)}
        del record["void"]
        return record

    @staticmethod
    def from_json(record: Any, peers: int) -> Spec:
        """Check everything that does not need the walk so far."""
        names = tuple(name for name in Spec.__dataclass_fields__ if name != "void")
        fields = codec.fields_of(record, "a chapter", *names)
        numbers = {
            name: codec.whole(fields[name], name)
            for name in ("number", "records", "before", "position", "hops", "after")
        }
        who = {name: codec.whole(fields[name], name, high=peers - 1) for name in ("peer", "holder")}
        requests = codec.listed(fields["requests"], "requests", most=MOST_REQUESTS)
        if not requests or not all(map(request_id.holds, requests)):
            raise Corrupt(f"a chapter names no requests, or not by {request_id.allowed}.")
        method, grade = fields["method"], fields["grade"]
        if not isinstance(method, str) or method not in METHODS or METHODS[method] != grade:
            raise Corrupt(f"a chapter forgets by {str(method)[:40]!r} with that grade.")
        spec = Spec(
            method=method,
            grade=grade,
            epsilon=_budget(fields["epsilon"], "epsilon", grade, *codec.EPSILONS),
            delta=_budget(fields["delta"], "delta", grade, *codec.DELTAS),
            requests=tuple(requests),
            left=_left(fields["left"], peers),
            void=False,
            **numbers,
            **who,
        )
        if spec.records > MOST_RECORDS:
            raise Corrupt(f"a chapter forgets more than {MOST_RECORDS} records.")
        if spec.number < 1 or spec.hops < 1 or spec.position > spec.before:
            raise Corrupt("a chapter's number, hops or position are out of range.")
        if spec.holder in spec.left and spec.holder != spec.peer:
            raise Corrupt("a peer that has left speaks for another.")
        if spec.after >= spec.number:
            raise Corrupt("a chapter goes on from one that comes later.")
        if spec.vanished != (spec.records == 0) or (spec.vanished and grade != "exact"):
            raise Corrupt("a chapter speaks for another peer, but not for all of its records.")
        return spec


def _left(value: Any, peers: int) -> tuple[int, ...]:
    items = codec.listed(value, "left", most=peers - 1)
    left = tuple(codec.whole(p, "left", high=peers - 1) for p in items)
    if list(left) != sorted(set(left)):
        raise Corrupt("the peers that have left are not each named once, in order.")
    return left


def _budget(value: Any, name: str, grade: str, low: float, high: float) -> float | None:
    if grade == "exact":
        if value is not None:
            raise Corrupt(f"an exact chapter spends no {name}.")
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Corrupt(f"a chapter's {name} is out of range.")
    return float(value)


def run_of(network_run: str, spec: Spec) -> str:
    """Names the chapter's walk."""
    text = network_run + canonical(spec.to_json())
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def line(hops: int, specs: Sequence[Spec]) -> list[tuple[int, int]]:
    """The visits that lead to the present model, as (chapter, visit in it), in order.

    ``hops`` are those of training, ``specs`` the chapters after it; those that are void count
    for nothing.

    >>> back = Spec(1, 0, "rewind", "exact", None, None, ("a",), 1, 4, 2, 2, 0)
    >>> line(4, [back])
    [(0, 1), (0, 2), (1, 1), (1, 2)]
    """
    places = [(0, k) for k in range(1, hops + 1)]
    for spec in specs:
        if spec.void:
            continue
        kept = {"rewind": spec.position, "restart": 0, "seal": len(places)}[spec.method]
        places = places[:kept] + [(spec.number, k) for k in range(1, spec.hops + 1)]
    return places


def marked(specs: Sequence[Spec], given_up: Iterable[int] = ()) -> list[Spec]:
    """The chapters, with those that were given up marked as void.

    That is known from the chapters after them and, of the last one, from its own walk.

    >>> first = Spec(1, 0, "rewind", "exact", None, None, ("a",), 1, 4, 2, 2, 0)
    >>> [s.void for s in marked([first, replace(first, number=2, after=0)])]
    [True, False]
    """
    void = {n for spec in specs for n in range(spec.after + 1, spec.number)} | set(given_up)
    return [replace(spec, void=spec.number in void) for spec in specs]


def present(specs: Sequence[Spec]) -> int:
    """The chapter that the present model comes from: the last one that was not given up."""
    return max((spec.number for spec in specs if not spec.void), default=0)


def members(peers: int, specs: Sequence[Spec]) -> frozenset[int]:
    """Who decides what follows ``specs``: all peers but those that have left."""
    return frozenset(range(peers)) - frozenset(specs[-1].left if specs else ())


def started(number: int, specs: Sequence[Spec]) -> int:
    """After how many visits of the line a chapter began."""
    if number == 0:
        return 0
    return specs[number - 1].kept


@dataclass(frozen=True)
class Chapter:
    """What a peer's service has to know besides the walk itself.

    ``token`` is the digest of the file that the walk goes on from, at peers that have it; a
    ``public`` chapter begins with the initial model, which everybody can make.  ``contacted``
    says that this peer was visited before, on the line that leads to that token.  ``model`` is
    the digest of the model that stays if the chapter is given up, at peers that have it.
    """

    number: int
    run: str
    public: bool = True
    token: str = ""
    contacted: bool = False
    spec: Spec | None = None
    model: str = ""

    @property
    def left(self) -> frozenset[int]:
        """Peers that no longer count."""
        return frozenset() if self.spec is None else frozenset(self.spec.left)
