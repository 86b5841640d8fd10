"""How a chapter forgets: which way reaches the grade, from which token, and the plan of its walk.

``exact``: *rewind* to the token as it first came to u, which cannot depend on u's records, and on
from there without the forgotten ones; or *restart* from the public initial model where that token
is gone.  ``certified``: the ledger *seal*, where task and training meet its conditions.  What
cannot be reached is refused with the reason before anything is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from unwalk import methods
from unwalk.certificates.document import claims_of
from unwalk.core import events as ev
from unwalk.core.errors import Refused
from unwalk.core.plan import Phase, Plan
from unwalk.core.program import Records
from unwalk.core.transcript import Hop, Transcript
from unwalk.methods.ledgered import probe
from unwalk.methods.network_sgd import as_unlearned, train_phase
from unwalk.methods.record import Decided, Request
from unwalk.methods.restart import RestartSettings
from unwalk.methods.rewind import RewindSettings
from unwalk.methods.seal import SealSettings
from unwalk.peers.handover.visit import assembled_of, carried_out, token_size
from unwalk.peers.identity.network_file import Network
from unwalk.peers.protocol.schedule import METHODS, Spec, line
from unwalk.runs.assemble import Assembled, public_facts
from unwalk.runs.dry_run import dry_run
from unwalk.settings.config import Config
from unwalk.walks import FirstTo, Uniform

BETWEEN_PEERS = ("grade", "peer-visits", "token-gone")
"""Codes of refusals whose advice is for peers; that of others is for the simulator."""
EXACT = (
    "ask for grade exact without a method (--grade exact), which every network can give; a network "
    "that is made with --set preset=certified can prove grade certified"
)

FEW = 1000
"""Records for which there is room in a walk that is only foreseen."""

Visits = Mapping[int, Sequence[dict[str, Any]]]
"""Chapter number to its committed visits, in order, each as it was signed."""


@dataclass(frozen=True, eq=False)
class Book:
    """The plans of a network's chapters, as one peer carries them out."""

    network: Network
    secret: bytes | None = None

    @cached_property
    def assembled(self) -> Assembled:
        """Task, graph and settings."""
        return assembled_of(self.network)

    @property
    def training(self) -> Plan:
        """Chapter 0."""
        run = self.network.run_id
        return carried_out(self.assembled.training(), self.network, run, self.secret)

    @cached_property
    def token_size(self) -> int:
        """Bytes that the file of a token may have, in training or in a chapter."""
        return token_size(self.assembled)

    @property
    def hops(self) -> int:
        """Visits of the training walk."""
        return self.assembled.config.train.hops

    def check(
        self,
        peer: int,
        grade: str,
        method: str | None,
        records: int,
        earlier: Sequence[Spec] = (),
    ) -> None:
        """Refuse a request that no chapter after ``earlier`` ones could answer."""
        config = self.assembled.config
        if method is not None and METHODS.get(method) != grade:
            ways = [name for name, reached in METHODS.items() if reached == grade]
            raise Refused(
                f"method {method!r} does not reach grade {grade!r} between peers; allowed: "
                f"{' or '.join(ways)}.",
                "grade",
            )
        if method == "rewind":
            self._rewindable(earlier)
        if grade == "certified":
            seal = config.of(SealSettings)
            if seal.visits:
                raise Refused(f"seal.visits is {seal.visits}; peers seal with 0.", "peer-visits")
            if seal.std is not None:
                raise Refused(
                    f"seal.std is {seal.std:g}; peers seal with what the ledger asks for: empty.",
                    "sensitivity",
                )
            probe(self._request(self._probed(peer, records), ()))
            if self._seal_refused is not None:
                reason, code = self._seal_refused
                raise Refused(reason, code)

    def _probed(self, peer: int, records: int) -> Spec:
        """A seal right after training, for nobody's request: its own visit, and one after it."""
        budget = (self.assembled.config.unlearn.epsilon, self.assembled.config.unlearn.delta)
        return Spec(1, peer, "seal", "certified", *budget, ("",), records, 1, 0, 2, peer)

    @cached_property
    def _seal_refused(self) -> tuple[str, str] | None:
        """Why no seal of this network can prove anything, and the code, if none can.

        The shortest that there is, a visit of training and then the seal, is walked dry, with room
        for a few records: how many fit decides how long that takes, and nothing that is proved.
        """
        spec, walked = self._probed(0, 1), None
        usual = self.assembled.config.train
        few = min(usual.capacity or 0, max(FEW, 4 * usual.batch))
        given = {**self.network.settings, **({"train.capacity": few} if few else {})}
        book = Book(replace(self.network, settings=given))
        try:
            for _ in range(2):  # its noise is sized once training is known
                plan = book.forgetting(spec, self.network.run_id, (), walked)
                train, phase = plan.phases
                train = replace(train, hops=1, route=FirstTo(spec.peer, Uniform()))
                plan = replace(plan, phases=(train, phase))
                foreseen = dry_run(plan, book.assembled.model, records=Records(1))
                walked = Transcript(foreseen.header, foreseen.hops[:1])
        except Refused as error:
            return str(error), error.code
        claim = claims_of(foreseen)[-1]
        return None if claim["grade"] == "certified" else (claim["reason"], claim["code"] or "")

    def _walked(self, earlier: Sequence[Spec]) -> Config:
        """The settings of the walk that rewinds repeat: training's, or those of a restart."""
        config = self.assembled.config
        anew = any(spec.method == "restart" and not spec.void for spec in earlier)
        return as_unlearned(config) if anew else config

    def _rewindable(self, earlier: Sequence[Spec]) -> None:
        train = self._walked(earlier).train
        if train.keep != "last":
            raise Refused(f"rewind needs a walk with keep = last; it is {train.keep!r}.", "iterate")
        if train.state == "local" and train.optimizer != "sgd":
            raise Refused(
                "peers do not keep old local optimizer state, so none can be rewound.",
                "local-state",
            )

    def ways(self, grade: str, method: str | None, earlier: Sequence[Spec]) -> list[str]:
        """The methods that may answer a request after ``earlier`` chapters, the preferred first."""
        if method == "rewind":
            self._rewindable(earlier)
        if method is not None:
            return [method]
        if grade == "certified":
            return ["seal"]
        try:
            self._rewindable(earlier)
        except Refused:
            return ["restart"]
        return ["rewind", "restart"]

    def hops_of(self, method: str, before: int, position: int) -> int:
        """How many visits a chapter makes."""
        if method == "rewind":
            return before - position
        return self.hops if method == "restart" else self.assembled.config.unlearn.hops

    def _config(self, spec: Spec, earlier: Sequence[Spec]) -> Config:
        config = self.assembled.config if spec.method == "restart" else self._walked(earlier)
        unlearn = config.unlearn
        if spec.epsilon is not None and spec.delta is not None:
            unlearn = replace(unlearn, epsilon=spec.epsilon, delta=spec.delta)
        settled = config.having(RewindSettings("first-contact"), RestartSettings(local_steps=0))
        return replace(settled, forget=replace(config.forget, peer=spec.peer), unlearn=unlearn)

    def _request(
        self, spec: Spec, earlier: Sequence[Spec], walked: Transcript | None = None
    ) -> Request:
        assembled, config = self.assembled, self._config(spec, earlier)
        header, buffers = self._header(spec, earlier), assembled.model.buffers
        return Request(config, assembled.task, header, buffers, walked)

    def _header(self, spec: Spec, earlier: Sequence[Spec]) -> dict[str, Any]:
        config, task = self._config(spec, earlier), self.assembled.task
        facts = public_facts(config, task, self.assembled.model, spec.method, 1.0 / task.peers)
        header = {**facts, "unlearner": spec.peer, "forget": spec.records or "all"}
        header["withdrawals"] = True
        if spec.method == "seal":  # which goes on from what every walk before it kept
            kept = [phase.keep for phase in self._before(spec, earlier) if phase.keep != "last"]
            header["iterate"] = kept[0] if kept else "last"
        return {**header, "vanished": True} if spec.vanished else header

    def _phase(self, spec: Spec, decided: Decided, earlier: Sequence[Spec]) -> Phase:
        peers = len(self.network.peers)
        decided = replace(decided, p=1.0 / peers, peers=peers)
        phase = methods.METHODS[spec.method].phase(self._config(spec, earlier), decided)
        if spec.vanished and spec.method == "rewind":
            phase = replace(phase, route=FirstTo(spec.holder, Uniform()))
        return replace(phase, name=spec.phase, hops=spec.hops)

    def _before(self, spec: Spec, earlier: Sequence[Spec]) -> list[Phase]:
        """What was walked before a chapter, as phases of the line that led to its start."""
        counts = Counter(chapter for chapter, _ in line(self.hops, earlier))
        phases = []
        for chapter, hops in sorted(counts.items()):
            if chapter == 0:
                phases.append(replace(train_phase(self._config(spec, earlier)), hops=hops))
            else:
                told = earlier[chapter - 1]
                decided = Decided(start_hop=told.position + 1, std=1.0)
                phase = self._phase(told, decided, earlier[: chapter - 1])
                phases.append(replace(phase, hops=hops))
        return phases

    def forgetting(
        self,
        spec: Spec,
        run: str,
        earlier: Sequence[Spec],
        walked: Transcript | None = None,
    ) -> Plan:
        """The walk of a chapter that follows ``earlier`` ones.

        u needs what was ``walked`` before: its noise is calculated from that.
        """
        config, public = self._config(spec, earlier), self._header(spec, earlier)
        del public["unlearner"]
        decided = Decided()
        if spec.method == "rewind":
            decided = Decided(start_hop=spec.position + 1, hops=spec.hops)
        elif spec.method == "seal":
            decided = Decided(std=1.0)  # nobody but u ever uses it
            if walked is not None:
                decided = methods.METHODS["seal"].decide(self._request(spec, earlier, walked))
        before, phase = self._before(spec, earlier), self._phase(spec, decided, earlier)
        assembled = replace(self.assembled, config=config)
        plan = assembled.plan(*before, phase, method=spec.method, public=public)
        if spec.method == "rewind" and spec.position:
            left = plan.phases[plan.phase_of(spec.position)[0]].method
            if (
                left.travels != phase.method.travels
            ):  # another optimizer's, as of a walk after a seal
                plan = replace(plan, phases=(*before, replace(phase, reset_optimizer=True)))
        return carried_out(plan, self.network, run, self.secret)

    def quiet(self, spec: Spec, run: str, earlier: Sequence[Spec]) -> Plan:
        """No walk at all: what is to be forgotten was never used."""
        plan = self.forgetting(spec, run, earlier)
        *before, phase = plan.phases
        public = {**plan.public, "rewind": "unused"}
        return replace(plan, phases=(*before, replace(phase, hops=0)), public=public)


def for_peers(error: Refused) -> Refused:
    """The same refusal with advice that can be followed at a peer: a new one, to raise from it."""
    instead = error.instead if error.code in BETWEEN_PEERS else EXACT
    return Refused(str(error), error.code, instead)


def silent_spec(
    earlier: Sequence[Spec], before: int, peer: int, requests: tuple[str, ...], records: int
) -> Spec:
    """A chapter that would forget what was never used, after ``earlier`` ones: it has no walk."""
    last = max((spec.number for spec in earlier if not spec.void), default=0)
    return Spec(
        number=len(earlier) + 1,
        peer=peer,
        method="rewind",
        grade="exact",
        epsilon=None,
        delta=None,
        requests=requests,
        records=records,
        before=before,
        position=0,
        hops=1,
        holder=peer,
        after=last,
    )


def walked(header: dict[str, Any], places: Sequence[tuple[int, int]], visits: Visits) -> Transcript:
    """The transcript of the visits at ``places`` (see :func:`unwalk.peers.protocol.schedule.line`).

    Visits of earlier chapters are counted anew, without digests; what was "retained" for an
    earlier request may be forgotten now, so that it counts as "all"; and where a chapter went back
    to a token, the line goes on from that very token, or begins with it: before the first visit
    that is the public initial model.  The last chapter's visits stand as they were signed.
    """
    made = Transcript(header)
    last = header["phases"][-1]["name"]
    for number, (chapter, place) in enumerate(places, 1):
        made.add(as_walked(Hop.from_json(visits[chapter][place - 1]["visit"]), number, last))
    return made


def as_walked(hop: Hop, number: int, last: str) -> Hop:
    """A signed visit as it stands in the transcript of a later chapter ``last``."""
    if hop.phase == last:
        return hop
    events = tuple(_as_walked(event, number) for event in hop.events)
    return replace(hop, hop=number, events=events, digest=None)


def _as_walked(event: ev.Event, number: int) -> ev.Event:
    if isinstance(event, ev.GradientSteps) and event.data == "retained":
        return replace(event, data="all", touched=True)
    if isinstance(event, ev.Start) and event.start == "arrival":
        return replace(event, start="token" if number > 1 else "initial", hop=None)
    return event


def visits_at(peer: int, places: Sequence[tuple[int, int]], visits: Visits) -> Iterator[int]:
    """Where on the line (0 is the first place) a peer's own visits are, in order."""
    for index, (chapter, place) in enumerate(places):
        if visits[chapter][place - 1]["visit"]["receiver"] == peer:
            yield index


def first_visit(peer: int, places: Sequence[tuple[int, int]], visits: Visits) -> int | None:
    """The place on the line (0 is the first) of a peer's first visit, or None."""
    return next(visits_at(peer, places, visits), None)


__all__ = [
    "Book",
    "Visits",
    "as_walked",
    "first_visit",
    "for_peers",
    "line",
    "silent_spec",
    "visits_at",
    "walked",
]
