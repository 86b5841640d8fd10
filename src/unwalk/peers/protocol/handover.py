"""The hand-over protocol as pure functions: no clock, no network, no disk.

A run has one token.  After ``hop`` visits and ``leg`` relays since the last of them it is a
:class:`Parcel`; (hop, leg) is its *place*.  A peer that has a parcel is its holder, until the next
peer has it durably and says so.  Then the holder keeps a copy and watches.

::

    arrived --visited--> visited --address--> offered --accepted--> kept (watching)
                            ^                    |
                            +---- passed over ---+   the next peer surely has nothing

Two rules keep one token from becoming two.  An offer is repeated to the same peer until that peer
answers, or until it is certain that nothing arrived there; only then may another neighbour be
asked *in the same generation*.  If the lease runs out instead, the last peer that handed the token
over goes on from its copy under a higher generation, which fences the old one: whoever has seen
generation g refuses every token below g.

A generation is (number, peer that opened it), so no two peers ever open the same one.  It stays
*tentative*, shown to nobody, until another peer has accepted its token; before that the old token
may be the only one that a second peer has.

Which lineage counts in the end is decided by :mod:`unwalk.peers.protocol.consensus`, not by luck.
A peer votes for an end only if it has it whole (:func:`hold`): the log and the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

Generation = tuple[int, int]
Place = tuple[int, int]
Lineage = tuple[tuple[Generation, int], ...]
"""Generations, oldest first, each with the number of visits it found done."""

NOWHERE: Place = (-1, 0)
MOST_ENDS = 4
"""Ends of one walk that a peer keeps until one of them is decided."""


@dataclass(frozen=True)
class Parcel:
    """A token at one moment: ``chain`` is the head of its hop log, ``token`` its digest."""

    generation: Generation
    hop: int
    leg: int
    chain: str
    token: str
    lineage: Lineage

    @property
    def place(self) -> Place:
        """How far the walk is."""
        return self.hop, self.leg


@dataclass(frozen=True)
class Value:
    """What a run is committed to: the end of one lineage.

    ``salt`` is erased with the token: votes hold a digest of all of it, which then tells nothing.
    """

    generation: Generation
    chain: str
    token: str
    salt: str = ""


@dataclass(frozen=True)
class PeerState:
    """All that a peer must not forget about a run.

    ``fence`` is the highest generation seen, ``lineage`` what is known of it.  ``held`` is the
    token while it is here (``stage`` says what comes next), ``kept`` the last one handed over, to
    ``kept_for``.  ``reached`` is the furthest (generation, place) that was ever held here.  While
    the fence is tentative, ``public`` holds the fence, lineage and place that others are told.
    ``quorum`` is how many peers have to answer before anything is recovered.  ``ends`` are those
    that this peer has whole, while none is decided.  ``refused``: nobody took the token that is
    here, though every neighbour was asked.  ``had``: who took it before, or may have, so that it
    had to be recovered.
    """

    me: int
    quorum: int
    hops: int
    fence: Generation
    lineage: Lineage
    reached: tuple[Generation, Place]
    held: Parcel | None = None
    stage: str = ""
    path: tuple[int, ...] = ()
    unclear: bool = False
    refused: bool = False
    passed_over: tuple[int, ...] = ()
    had: tuple[int, ...] = ()
    public: tuple[Generation, Lineage, tuple[Generation, Place]] | None = None
    kept: Parcel | None = None
    kept_for: int = -1
    watching: bool = False
    ends: tuple[Value, ...] = ()
    committed: Value | None = None


@dataclass(frozen=True)
class Reply:
    """Answer to an offer: ``accepted``, ``stale``, ``busy`` or ``over``: a decision to ask for."""

    kind: str
    fence: Generation = (0, 0)
    lineage: Lineage = ()


@dataclass(frozen=True)
class Sighting:
    """What a peer says when asked where the token is.

    ``waits``: as far as the peer knows the token is not lost, or it is another's turn to recover
    it.  ``promised`` is the highest number of a generation for which the peer has signed: it
    signs for higher ones alone, so that an older recovery that was kept is below them.  As it
    travels, ``lineage`` holds the last generations alone; of the ``older`` ones before them it has
    their number and a digest, ``root``.
    """

    fence: Generation
    lineage: Lineage
    reached: tuple[Generation, Place]
    over: bool = False
    older: int = 0
    root: str = ""
    waits: bool = False
    promised: int = 0


@dataclass(frozen=True)
class Verdict:
    """What follows from the answers: ``recover``, ``again``, ``ahead``, ``fenced``, ``over``..."""

    kind: str
    fence: Generation = (0, 0)
    lineage: Lineage = ()


def begin(
    me: int, quorum: int, hops: int, first: int, chain: str, token: str, *, has: bool = True
) -> PeerState:
    """Before the first hop: the first peer has the token, and so has every other that ``has`` it.

    The initial token is public, so that every peer keeps it.
    """
    generation = (0, first)
    parcel = Parcel(generation, 0, 0, chain, token, ((generation, 0),))
    state = PeerState(me, quorum, hops, generation, parcel.lineage, (generation, NOWHERE))
    if me == first:
        return replace(state, held=parcel, stage="arrived", reached=(generation, parcel.place))
    return replace(state, kept=parcel, kept_for=first, watching=True) if has else state


def belongs(generation: Generation, hop: int, lineage: Lineage) -> bool:
    """Whether the token after ``hop`` visits of ``generation`` is an ancestor in ``lineage``.

    >>> belongs((0, 1), 4, (((0, 1), 0), ((1, 2), 5)))
    True
    >>> belongs((0, 1), 6, (((0, 1), 0), ((1, 2), 5)))
    False
    """
    for number, (known, start) in enumerate(lineage):
        if known == generation:
            end = lineage[number + 1][1] if number + 1 < len(lineage) else None
            return hop >= start and (end is None or hop <= end)
    return False


def shown(state: PeerState) -> tuple[Generation, Lineage]:
    """The fence that others may be told: a tentative generation is not shown."""
    return (state.fence, state.lineage) if state.public is None else state.public[:2]


def receive(state: PeerState, parcel: Parcel, path: tuple[int, ...]) -> tuple[PeerState, Reply]:
    """An offer for this peer; ``path`` starts with it and ends with who does the next visit.

    Asking again is harmless: a place already reached in the same generation is ``accepted``.
    """
    if state.committed is not None:
        return state, Reply("over")
    if parcel.generation < state.fence:
        if state.public is not None:
            return state, Reply("busy")
        return state, Reply("stale", state.fence, state.lineage)
    if parcel.generation == state.fence and parcel.lineage != state.lineage:
        return state, Reply("busy")  # its opener lied: it opened one generation from two places
    generation, place = state.reached
    if parcel.generation == generation and parcel.place <= place:
        return state, Reply("accepted")
    if state.held is not None and state.held.generation == parcel.generation:
        if state.stage != "offered":
            return state, Reply("busy")
        state = _handed(state, watching=False)  # it came back, so it had arrived
    state = fenced(state, parcel.generation, parcel.lineage)
    relay = len(path) > 1
    if relay:
        parcel = replace(parcel, leg=parcel.leg + 1)
    return replace(
        state,
        held=parcel,
        stage="offered" if relay else "arrived",
        path=path[1:],
        unclear=False,
        refused=False,
        passed_over=(),
        had=(),
        reached=(parcel.generation, parcel.place),
        lineage=parcel.lineage,
        watching=False,
    ), Reply("accepted")


def visited(state: PeerState, chain: str, token: str, salt: str = "") -> PeerState:
    """The visit is done and written down; with the last one there is an end to decide on."""
    assert state.held is not None
    assert state.stage == "arrived"
    parcel = replace(state.held, hop=state.held.hop + 1, leg=0, chain=chain, token=token)
    stage = "final" if parcel.hop == state.hops else "visited"
    state = replace(state, held=parcel, stage=stage, reached=(parcel.generation, parcel.place))
    return hold(state, Value(parcel.generation, chain, token, salt)) if stage == "final" else state


def hold(state: PeerState, value: Value, wanted: Collection[str] = ()) -> PeerState:
    """This peer has an end whole: log and bytes.  One that differs in its salt only is the same.

    Of too many the last of the oldest generation goes, but for those whose chain is ``wanted``: so
    nobody can push one out with others of its kind.
    """
    if state.committed is not None or any(e.chain == value.chain for e in state.ends):
        return state
    ends = (*state.ends, value)
    if len(ends) > MOST_ENDS:
        spare = [e for e in reversed(ends) if e.chain not in wanted] or [value]
        gone = min(spare, key=lambda e: e.generation)
        ends = tuple(e for e in ends if e != gone)
    return replace(state, ends=ends)


def address(state: PeerState, path: tuple[int, ...]) -> PeerState:
    """Where the token goes next; an empty path means that it stays for another visit."""
    assert state.stage == "visited"
    if not path:
        return replace(state, stage="arrived", path=(), refused=False, passed_over=(), had=())
    return replace(state, stage="offered", path=path, unclear=False)


def failed(state: PeerState, *, certain: bool) -> PeerState:
    """No answer, or a refusal.  ``certain``: nothing arrived there in this attempt."""
    if state.stage != "offered":
        return state
    if not certain or state.unclear:
        return replace(state, unclear=True)
    over = tuple(dict.fromkeys((*state.passed_over, state.path[0])))
    return replace(state, stage="visited", path=(), passed_over=over)


def waited(state: PeerState) -> PeerState:
    """Every neighbour was passed over: start over with all of them."""
    if state.stage != "visited":
        return state
    return replace(state, passed_over=(), had=(), refused=True)


def restarted(state: PeerState) -> PeerState:
    """After a crash nobody knows whether the last offer arrived."""
    return replace(state, unclear=True) if state.stage == "offered" else state


def answered(state: PeerState, offered: Parcel, reply: Reply) -> PeerState:
    """The answer to an offer of ``offered``; an answer to anything else changes nothing."""
    if reply.kind == "stale":
        return fenced(state, reply.fence, reply.lineage)
    if reply.kind == "over":
        return state
    if state.held != offered or state.stage != "offered":
        return state
    if reply.kind == "accepted":
        return _handed(state, watching=True)
    return failed(state, certain=True)


def _without_token(state: PeerState) -> PeerState:
    return replace(
        state, held=None, stage="", path=(), unclear=False, refused=False, passed_over=()
    )


def _handed(state: PeerState, *, watching: bool) -> PeerState:
    return replace(
        _without_token(state),
        had=tuple(sorted({*state.had, state.path[0]})),
        public=None,
        kept=state.held,
        kept_for=state.path[0],
        watching=watching,
    )


def released(state: PeerState, generation: Generation, place: Place) -> PeerState:
    """News that the token of ``generation`` got beyond ``place``: somebody else watches it."""
    if state.stage == "offered" and state.held is not None and state.unclear:
        here = state.held
        if here.generation == generation and here.place <= place:
            return _handed(state, watching=False)
    if state.kept is not None and (state.kept.generation, state.kept.place) <= (generation, place):
        return replace(state, watching=False)
    return state


def fenced(state: PeerState, fence: Generation, lineage: Lineage) -> PeerState:
    """News of a generation: a lower token that is here is no longer handed on.

    Whoever opened the generation may have lied about what it goes on from.  So a copy stays: of
    the token if it was visited here, which nobody else may have, or of what the walk begins with;
    else of the last one that was handed over.  The token is where the generation was opened.
    Whoever was offered that token is passed over if this peer goes on from its copy.
    """
    if fence <= state.fence or state.committed is not None:
        return state
    state = replace(state, fence=fence, lineage=lineage, public=None)
    held = state.held
    if held is not None:
        if state.stage == "offered" and belongs(held.generation, held.hop, lineage):
            state = _handed(state, watching=False)
        else:
            if held.hop == 0 or state.stage in ("visited", "offered"):
                state = replace(state, kept=held)
            if state.stage == "offered":
                state = replace(state, had=tuple(sorted({*state.had, state.path[0]})))
            state = _without_token(state)
    return replace(state, kept_for=fence[1] if state.kept is not None else -1, watching=False)


def let_go(state: PeerState) -> PeerState:
    """The token that is here cannot be used: whoever handed it over goes on from the copy."""
    return replace(_without_token(state), public=None)


def commit(state: PeerState, value: Value) -> PeerState:
    """The run is over; a generation that is still tentative stays so."""
    if state.committed is not None:
        return state
    return replace(
        _without_token(state),
        committed=value,
        kept=None,
        kept_for=-1,
        watching=False,
        ends=(),
    )


def basis(state: PeerState) -> Parcel | None:
    """What this peer could go on from if the token were lost.

    Nothing while it has the token, unless nobody takes it in this generation.
    """
    if state.committed is not None:
        return None
    refused = state.refused and state.public is None
    if refused or (state.stage == "offered" and state.unclear):
        return state.held
    return state.kept if state.held is None else None


def awaited(state: PeerState) -> int:
    """The peer that has the token, or may have it, if this one does not; else the last that had."""
    if state.stage == "offered":
        return state.path[0]
    return state.me if state.refused else state.kept_for


def furthest_copy(state: PeerState) -> tuple[Generation, Place]:
    """How far the token is that this peer has, or has a copy of.

    Others do not go back behind that.  ``reached`` may be further: if a token was dropped before
    its visit, whoever had it before has the copy.  Who has none keeps nobody from going back.
    """
    here, (generation, place) = state.held or state.kept, state.reached
    if place == NOWHERE:
        return generation, NOWHERE
    return (state.lineage[0][0], (0, 0)) if here is None else (here.generation, here.place)


def sighting(state: PeerState) -> Sighting:
    """Where this peer believes the token to be."""
    fence, lineage = shown(state)
    furthest = furthest_copy(state) if state.public is None else state.public[2]
    return Sighting(fence, lineage, furthest, state.committed is not None)


def without_claims(
    state: PeerState, answers: Mapping[int, Sighting], lies: int
) -> dict[int, Sighting]:
    """Leave out up to ``lies`` of those who say that they are further, while a quorum is left.

    Nobody shows how far it is.  So where the token is long overdue, as many may be lying.
    """
    parcel, left = basis(state), dict(answers)
    if parcel is None:
        return left
    here = (parcel.generation, parcel.place)
    further = [peer for peer, other in answers.items() if other.reached > here]
    if len(further) <= lies and len(left) - len(further) + 1 >= state.quorum:
        left = {peer: other for peer, other in answers.items() if peer not in further}
    return left


def consider(
    state: PeerState, answers: Mapping[int, Sighting], *, overrun: bool = False
) -> Verdict:
    """The lease ran out and everybody was asked: what now?

    ``overrun``: whoever has the token has had it for longer than a visit may take.  Then it does
    not matter what that peer says of itself: only somebody after it is further along.

    ``answers`` holds those who answered.  Nothing is recovered while somebody alive is further
    along, nor by fewer than a quorum, who could not commit anything.
    """
    parcel = basis(state)
    if any(other.over for other in answers.values()):
        return Verdict("over")
    highest = max(answers.values(), key=lambda s: s.fence, default=None)
    if highest is not None and highest.fence > state.fence:
        return Verdict("fenced", highest.fence, highest.lineage)
    if parcel is None:
        return Verdict("wait")
    here = (parcel.generation, parcel.place)
    for peer, other in answers.items():
        late = overrun and (peer == awaited(state) or other.reached[1][0] == parcel.hop)
        if other.reached >= here and not late:
            return Verdict("ahead")
    if state.stage == "offered" and awaited(state) in answers and not overrun:
        return Verdict("again")
    if len(answers) + 1 < state.quorum:
        return Verdict("wait")
    return Verdict("recover")


def outside(state: PeerState) -> bool:
    """Whether this peer has nothing of the token, never had, and does not know of the end."""
    nothing = state.held is None and basis(state) is None and state.committed is None
    return nothing and state.reached[1] == NOWHERE


def untouched(state: PeerState) -> bool:
    """Whether this peer knows no more of the walk than when it began, without a token here.

    If the token that the walk begins with is found here after all, it is as if it always was.
    """
    return outside(state) and len(state.lineage) == 1 and not state.ends


def deserted(state: PeerState, answers: Mapping[int, Sighting]) -> bool:
    """Whether a walk has not begun, as far as a quorum knows, and this peer cannot begin it.

    Whoever could is away, and may have begun it alone: so this settles nothing by itself, but is
    when it is proposed that the walk is void.
    """
    if not outside(state) or len(answers) + 1 < state.quorum:
        return False
    return all(other.reached[1] == NOWHERE for other in answers.values())


def recover(state: PeerState, seen: int, chain: str) -> PeerState:
    """Go on from the copy under a new generation, above the number ``seen`` and the fence.

    ``chain`` is the head of the hop log with the recovery written into it.
    """
    parcel = basis(state)
    assert parcel is not None
    generation = (max(seen, state.fence[0]) + 1, state.me)
    had = tuple(sorted({awaited(state), *state.had} - {state.me}))
    lineage = (*parcel.lineage, (generation, parcel.hop))
    return replace(
        state,
        fence=generation,
        lineage=lineage,
        reached=(generation, parcel.place),
        held=replace(parcel, generation=generation, lineage=lineage, chain=chain),
        stage="arrived" if parcel.hop == 0 else "visited",
        path=(),
        unclear=False,
        refused=False,
        passed_over=had,
        had=had,
        public=state.public or (state.fence, state.lineage, furthest_copy(state)),
        kept=None,
        kept_for=-1,
        watching=False,
    )
