"""The answers of the endpoint as dataclasses, and :class:`Desk`, the interface that gives them.

:class:`Desk` is the one thing that the HTTP endpoint (:mod:`unwalk.peers.web.http_server`) knows
of a peer.  Nothing here holds a record or a record's id: views count records and name requests,
peers and certificates.  The ``metadata`` of a field is what the endpoint's description says of it
besides its type, in the words of pydantic's ``Field``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Protocol

from unwalk.core.grades import SHOWN
from unwalk.peers.forgetting.request_form import REQUEST_ID, Offer, RequestForm, RequestView

PEER_STATES = ("up", "silent", "left", "unknown")
MOST_LISTED = 200
"""Requests in one page of the list, at most."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of certificates."""


def _one_of(values: Iterable[str | None]) -> Mapping[str, Any]:
    return {"json_schema_extra": {"enum": list(values)}}


@dataclass(frozen=True)
class CertificateView:
    """A certificate of this peer: ``pending`` peers have not yet signed that they erased.

    ``badge`` is what people are shown of its grade: a rehearsal is none that protects anybody.
    """

    name: str = field(metadata={"pattern": f"^{NAME.pattern}$"})
    requests: tuple[str, ...]
    chapter: int
    grade: str
    epsilon: float | None
    delta: float | None
    complete: bool = field(metadata={"description": "Whether every peer signed that it erased."})
    pending: tuple[str, ...] = ()
    version: int = 1
    issued: str | None = None
    badge: str = field(default="refused", metadata=_one_of(SHOWN))


@dataclass(frozen=True)
class PeerView:
    """A peer of the network, and whether it was heard of."""

    name: str
    address: str
    state: str = field(default="unknown", metadata=_one_of(PEER_STATES))


@dataclass(frozen=True)
class TokenView:
    """Where the token is.

    ``peer`` has it as far as this peer knows (None: no idea), ``certain`` only while it is here or
    the chapter is over.  ``hop`` is the last visit known of.
    """

    peer: str | None
    certain: bool
    hop: int
    hops: int
    generation: int = 0


@dataclass(frozen=True)
class ChapterView:
    """The chapter under way, or the last one: ``kind`` is ``train`` or ``forget``.

    ``stage`` is ``walking`` or ``committed``; ``peer`` is whose records a ``forget`` is about.
    """

    number: int
    kind: str = field(metadata=_one_of(("train", "forget")))
    stage: str
    peer: str | None = None
    requests: tuple[str, ...] = ()
    method: str | None = None
    grade: str | None = None


@dataclass(frozen=True)
class AccuracyPoint:
    """Accuracy on this peer's own hold-out of ``records`` records, after a hop of a chapter."""

    chapter: int
    hop: int
    accuracy: float
    records: int


@dataclass(frozen=True)
class Spent:
    """What one certificate spends, beside what its request allowed."""

    certificate: str
    grade: str
    epsilon: float
    delta: float
    epsilon_allowed: float | None = None
    delta_allowed: float | None = None
    badge: str = field(default="refused", metadata=_one_of(SHOWN))


@dataclass(frozen=True)
class Privacy:
    """All that was spent on this peer's records; ``rule`` says how the parts were composed."""

    epsilon: float
    delta: float
    rule: str
    parts: tuple[Spent, ...] = ()


@dataclass(frozen=True)
class Overview:
    """Everything that the dashboard draws, except the lists of requests and certificates.

    ``edges`` are pairs of places in ``peers``.  ``accuracy`` is in order of chapter and hop, and
    thinned by the desk to a few hundred points.  ``queue`` counts requests by stage.  ``records``
    are those this peer trains on, ``hold_out`` those it measures with.  ``disk`` is ``full`` while
    there is no room to take a token or a request.
    """

    peer: str
    network: str
    run: str
    chapter: ChapterView
    token: TokenView
    peers: tuple[PeerView, ...]
    edges: tuple[tuple[int, int], ...]
    privacy: Privacy
    accuracy: tuple[AccuracyPoint, ...] = ()
    queue: Mapping[str, int] = field(default_factory=dict)
    records: int | None = None
    hold_out: int | None = None
    disk: str = field(default="ok", metadata=_one_of(("ok", "full")))


@dataclass(frozen=True)
class PageQuery:
    """Which page of the list of requests: ``limit`` of them, older than ``after``."""

    after: str | None = field(
        default=None,
        metadata={
            "pattern": f"^{REQUEST_ID.pattern}$",
            "description": "Go on after this request: 'next' of the page before.",
        },
    )
    limit: int = field(default=50, metadata={"ge": 1, "le": MOST_LISTED})


@dataclass(frozen=True)
class RequestPage:
    """Requests, newest first; ``next`` is where the next page goes on, if there is one."""

    requests: tuple[RequestView, ...]
    next: str | None


@dataclass(frozen=True)
class CertificateList:
    """All certificates of this peer, newest first."""

    certificates: tuple[CertificateView, ...]


@dataclass(frozen=True)
class OfferList:
    """Every way in which this network could forget records of this peer now."""

    offers: tuple[Offer, ...]


@dataclass(frozen=True)
class Verdict:
    """What 'unwalk verify --json' says, which may hold more than this.

    ``problems`` is what was changed; empty if nothing was.  ``words`` are each claim, and last what
    is guaranteed to whom.  ``model`` is what became of the model that the certificate is for.
    """

    verdict: str
    problems: tuple[str, ...]
    badge: str | None = field(default=None, metadata=_one_of((*SHOWN, None)))
    words: tuple[str, ...] = ()
    model: str = field(
        default="not checked",
        metadata=_one_of(("checked", "differs", "not checked", "not bound")),
    )


@dataclass(frozen=True)
class Refusal:
    """Why a question was not answered, in one sentence; ``unknown`` are records not here."""

    error: str
    unknown: tuple[str, ...] = ()


class Desk(Protocol):
    """What the endpoint asks of a peer; called in the event loop's thread only.

    The plain methods answer at once.  Those that may take longer are coroutines and leave the
    loop free, each in its own way.
    """

    def overview(self) -> Overview:
        """How the peer is."""

    async def submit(self, form: RequestForm) -> RequestView:
        """Take a request in, durably; the same form under the same id gets the same request.

        Raises ``UnknownRecords``, ``Conflict``, another ``InvalidInput``, or ``Refused`` where the
        grade cannot be reached; nothing is changed then.
        """

    async def offers(self) -> Sequence[Offer]:
        """What a request would cost now, by method; ``InvalidInput`` where nothing can be asked."""

    def requests(self, after: str | None, limit: int) -> Sequence[RequestView]:
        """Newest first, at most ``limit``, older than the request ``after`` if one is named.

        An ``after`` that names no request is ``InvalidInput``.
        """

    def request(self, id: str) -> RequestView | None:
        """One request."""

    def certificates(self) -> Sequence[CertificateView]:
        """The latest version of each certificate, newest first."""

    def certificate(self, name: str) -> bytes | None:
        """The bytes of a certificate's file."""

    async def evidence(self, name: str) -> bytes | None:
        """The certificate with what is needed to check it, as a zip archive."""

    async def verify(self, name: str) -> Mapping[str, Any] | None:
        """What ``unwalk verify --json`` says of it, with the network's CA trusted."""

    async def document(self, name: str) -> bytes | None:
        """The certificate as a page, as ``unwalk verify --html`` writes it."""


def to_json(view: Any) -> Any:
    """A view, or a list of views, as JSON would have it."""
    if isinstance(view, list | tuple):
        return [to_json(v) for v in view]
    return asdict(view) if is_dataclass(view) and not isinstance(view, type) else view
