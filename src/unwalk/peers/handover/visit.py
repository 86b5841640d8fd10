"""Trains the token on this peer's records: the simulator's own code, one visit per hop."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic

import torch

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.errors import Diverged, InvalidInput, UnwalkError, told
from unwalk.core.noise import SecretNoise
from unwalk.core.outside import global_generator
from unwalk.core.plan import Graph, Kept, Local, Move, Phase, Plan, Progress
from unwalk.core.program import Program, Records, Steps, Visit
from unwalk.core.token import MOST_STEPS, Token, Workspace, build_model, flat
from unwalk.core.transcript import Hop, Transcript
from unwalk.engines.execute import execute, planned_events
from unwalk.engines.inprocess import Walk, buffer_name, kept_from
from unwalk.methods.network_sgd import as_unlearned, train_phase
from unwalk.peers.identity.network_file import Network
from unwalk.peers.records.own_task import public_task
from unwalk.peers.storage.token_files import (
    METADATA,
    Shapes,
    cut,
    pieces,
    shapes_of,
)
from unwalk.runs.assemble import Assembled, assemble, resolve, salt_of
from unwalk.walks import NOBODY, FirstTo
from unwalk.walks.routes import Uniform

ATTEMPTS = 1000
"""So often a route is drawn again before it is taken to lead nowhere else."""
WORDS = 512
"""Bytes by which the header of a token's file may grow on its way: names and larger numbers."""


def assembled_of(network: Network) -> Assembled:
    """A network's settings with task and graph built; the same at every peer."""
    config = resolve(network.run_settings, where="the network file")
    if config.device != "cpu":
        raise InvalidInput(f"device is {config.device!r}; peers walk on the CPU: allowed: cpu.")
    if config.noise.attempt != 1:  # then no claim at all would hold
        raise InvalidInput(
            f"noise.attempt is {config.noise.attempt}; peers draw noise once for each request: "
            "allowed: 1."
        )
    assembled = assemble(config, public_task(config, len(network.peers)))
    if assembled.graph.peers != len(network.peers):
        raise InvalidInput(
            f"the graph has {assembled.graph.peers} peers, but the network file names "
            f"{len(network.peers)}."
        )
    return assembled


def carried_out(plan: Plan, network: Network, run: str, secret: bytes | None) -> Plan:
    """``plan`` as peers carry it out: noise, and what digests are salted with, from a secret."""
    noise, salt = plan.noise, b""
    if network.noise == "secret":
        noise = SecretNoise(run, secret if secret is not None else bytes(32))
        salt = salt_of(noise)
    return replace(plan, run=run, noise=noise, salt=salt, keeps="none")


def plan_of(network: Network, secret: bytes | None = None) -> Plan:
    """The walk that learns, the same at every peer but for its noise secret."""
    return carried_out(assembled_of(network).training(), network, network.run_id, secret)


def vectors_of(phase: Phase) -> list[str]:
    """What a token of a phase may hold beside the model: moments, and another iterate."""
    kept = [] if phase.keep == "last" else [f"kept/{phase.keep}"]
    return [*(f"moment/{name}" for name in sorted(phase.method.travels)), *kept]


def token_size(assembled: Assembled, token: Token | None = None) -> int:
    """Bytes that the file of a network's token may have, in training or in a chapter.

    A model is built for that, unless there is a ``token`` with nothing but the model.
    """
    config = assembled.config
    if token is None:
        space = Workspace(build_model(assembled.task.model, 0), "cpu", {})
        token = space.token(hop=0, at=NOBODY, memory={})
    walks = (train_phase(settings) for settings in (config, as_unlearned(config)))
    return max(_size(token, phase)[1] for phase in walks)


def _size(token: Token, phase: Phase) -> tuple[int, int]:
    """Bytes of the longest header of a token of a phase, and of all of such a token.

    ``token`` is one without anything but the model.
    """
    vectors = vectors_of(phase)
    largest = {**token.tensors(), **dict.fromkeys(vectors, token.parameters)}
    header = len(next(pieces(largest, {METADATA: ""}))) + WORDS
    return header - 8, header + token.nbytes + len(vectors) * token.parameters.nbytes


class PublicAnchors(dict[str, torch.Tensor]):
    """Anchors that are made when a projection asks for them: both are the public initial model.

    A peer that never projects keeps no copy of the initial model in memory.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def __missing__(self, name: str) -> torch.Tensor:
        if name not in ("initial", "start"):
            raise KeyError(name)
        model = build_model(self.plan.task.model, self.plan.seeds.integer("model"))
        self[name] = flat(model)
        return self[name]


UNUSABLE = (
    *(ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError),
    Diverged,
)
"""How a model fails on values that it does not understand, such as a buffer's."""


class Unusable(UnwalkError):
    """A token that cannot be visited."""


@dataclass(frozen=True, eq=False)
class Visited:
    """What a visit left; ``token`` shows the workspace and is good until the next visit.

    ``cut``: it left values that no peer would take, which were cut off.
    """

    token: Token
    local: Local
    hop: Hop
    began: float
    ended: float
    cut: bool = False

    @property
    def noisy(self) -> bool:
        """Whether noise was drawn for it, which nobody may see on two models."""
        return _noisy(self.hop.events)


def _noisy(events: Iterable[ev.Event]) -> bool:
    return any(getattr(event, "origin", None) for event in events)


class Mark:
    """What a visit wrote down before it read records, to be taken back if it comes to nothing.

    It is written before, not when the token is accepted: records that are excluded in between
    would count as never used.  So whoever is killed anywhere leaves a mark too many, which costs a
    longer walk when such a record is forgotten, but never one too few.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.undo: Callable[[], None] | None = None
        self.for_nothing = False

    def written(self, undo: Callable[[], None]) -> None:
        """It is on disk; ``undo`` removes it."""
        with self.lock:
            if not self.for_nothing:
                self.undo = undo
                return
        undo()

    def take_back(self) -> None:
        """Nothing of the visit leaves this peer: remove the mark, now or once it is written."""
        with self.lock:
            self.for_nothing = True
            undo, self.undo = self.undo, None
        if undo is not None:
            undo()


Data = Callable[[int, Mark], Shard]
"""A peer's records as they are now, for a visit of the chapter; written down as used before."""


class Work:
    """Routes and visits of one peer in one chapter: the last phase of ``plan``.

    The phase before it, if there is one, was walked in earlier chapters: ``base`` visits.
    """

    def __init__(self, plan: Plan, peer: int, data: Data | None = None) -> None:
        torch.set_num_threads(plan.performance.threads)
        self.plan = plan
        self.peer = peer
        self.phase = plan.phases[-1]
        self.hops = self.phase.hops
        self.base = plan.hops - self.hops
        model = build_model(plan.task.model, plan.seeds.integer("model"))
        self.space = Workspace(model, "cpu", PublicAnchors(plan))
        self.walk = Walk(plan, self.space, None)
        # which records a planned visit takes matters to nobody
        self.rng = plan.seeds.stream("unused", "batches", 0)
        self._draws = 0, False
        self.data = data if data is not None else lambda hop, mark: plan.task.shard(peer)
        self.bare = replace(self.space.token(hop=0, at=NOBODY, memory={}), moments={}, kept={})
        carried = sorted(self.phase.method.travels)
        self.travels = (*map(buffer_name, sorted(self.space.buffers)), *carried)
        self.always = shapes_of(self.bare)
        self.moments = [f"moment/{name}" for name in carried]
        self.kept_from = kept_from(plan, self.phase)
        self.longest_header, self.most_bytes = _size(self.bare, self.phase)
        program = self._program(1, peer, first=True, records=1)
        self.counts = any(isinstance(o, Steps) and o.rule.state == "carried" for o in program)

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def kept_name(self) -> str:
        """The tensor that holds the iterate which is the result, where it is not the last."""
        return f"kept/{self.phase.keep}"

    def shapes(self, done: int, steps: int) -> Shapes:
        """The tensors of a token after ``done`` visits, whose optimizer has counted ``steps``."""
        names = list(self.moments) if steps else []
        if self.kept_from <= done < self.hops:
            names.append(self.kept_name)
        return {**self.always, **dict.fromkeys(names, self.always["parameters"])}

    def counted(self, before: int | None, hop: int, events: Iterable[ev.Event]) -> int | None:
        """What a token's optimizer counts after a visit with these events; None: nobody can tell.

        A walk that goes back to an earlier token goes on with what that had counted.
        """
        if hop == 1:
            before = 0 if not self.base or self.phase.start == "initial" else None
        for event in events:
            if event == ev.Wipe("optimizer"):
                before = 0
            elif isinstance(event, ev.GradientSteps) and event.state == "carried":
                before = None if before is None else min(before + event.steps, MOST_STEPS)
            elif isinstance(event, ev.GradientSteps) and self.counts:  # nothing is carried on
                before = event.steps
        return before

    def initial(self) -> Token:
        """The public token before the first hop; to be asked for before any visit."""
        return self.space.token(hop=0, at=NOBODY, memory={})

    def move(self, hop: int, at: int, memory: Mapping[str, int], attempt: int) -> Move:
        """Where the token goes for visit number ``hop``; ``attempt`` 0 is what a simulator does."""
        known = {} if hop == 1 else memory
        rng = self.plan.seeds.stream(self.phase.name, "route", hop, attempt)
        return self.phase.route.next(self.graph, at, known, rng)

    def choose(
        self, hop: int, at: int, memory: Mapping[str, int], passed_over: Collection[int]
    ) -> tuple[int, Move] | None:
        """The first draw of the route that does not lead to a peer that was passed over."""
        if self.leads_nowhere(at, passed_over):
            return None
        for attempt in range(ATTEMPTS):
            move = self.move(hop, at, memory, attempt)
            if not set(move.path) & set(passed_over):
                return attempt, move
        return None

    @property
    def moves_on(self) -> bool:
        """Whether the route never leaves the token where it is."""
        route = self.phase.route
        return isinstance(route.then if isinstance(route, FirstTo) else route, Uniform)

    def leads_nowhere(self, at: int, passed_over: Collection[int]) -> bool:
        """Whether no draw can lead on: all neighbours were passed over, and the token cannot stay.

        Drawing until the attempts are used up would show the same, but takes long.
        """
        if at == NOBODY or (at == self.plan.unlearner and not self.moves_on):
            return False
        peers = self.graph.neighbours(at)
        return all(int(peer) in passed_over for peer in peers if peer != at)

    def planned(self, hop: int, peer: int, *, first: bool, records: int) -> tuple[ev.Event, ...]:
        """The events of a visit as everybody can tell them, at a peer with so many records.

        ``first``: it is the peer's first visit of the phase.  What depends on the records, on the
        draw of the noise or on u's calculation of it is a placeholder.
        """
        program = self._program(hop, peer, first=first, records=records)
        return planned_events(program, self.plan.noise.origin, self.space.parameters.dtype)

    def _program(self, hop: int, peer: int, *, first: bool, records: int) -> Program:
        visit = Visit(
            hop=self.base + hop,
            phase_hop=hop,
            peer=peer,
            at_unlearner=peer == self.plan.unlearner,
            records=Records(records),
            rng=self.rng,
            earlier_in_phase=0 if first else 1,
        )
        return self.phase.method.visit(visit)

    def shows_digest(self, hop: int) -> bool:
        """Whether a visit's record, which outlives the log, holds a salted digest of its model."""
        always = self.plan.performance.digests
        return bool(self.plan.salt) and (always or hop == self.hops)

    def draws(self, hop: int) -> bool:
        """Whether this peer draws noise in a visit, by the method's program."""
        if self._draws[0] != hop:
            events = self.planned(hop, self.peer, first=False, records=1)
            self._draws = hop, _noisy(events)
        return self._draws[1]

    def begun(self) -> tuple[ev.Event, ...]:
        """The events with which the phase begins."""
        phase, later = self.phase, len(self.plan.phases) > 1
        hop = phase.start_hop if later and phase.start != "token" else None
        start = phase.start if later else "initial"
        begun = ev.Start(phase.name, start, phase.carries_forgotten, self.travels, hop)
        return (begun, ev.Wipe("optimizer")) if phase.reset_optimizer else (begun,)

    def may_travel(self, begun: ev.Event) -> bool:
        """Whether the event that begins the phase names what travels with the token.

        Moments of an earlier phase may still be there.
        """
        assert isinstance(begun, ev.Start)
        told, needed = set(begun.travels), set(self.travels)
        return needed <= told <= {*needed, *ev.MOMENTS} and len(told) == len(begun.travels)

    def visit(
        self,
        token: Token,
        move: Move,
        local: Local,
        *,
        first: bool = False,
        read: Callable[[], None] = lambda: None,
        mark: Mark | None = None,
        largest: float = math.inf,
    ) -> Visited:
        """One visit, bit for bit what the in-process engine does; ``first`` of its chapter.

        While the token is copied into the workspace ``read`` is called again and again: what was
        read until then of its own tensors is not needed any more.  ``mark`` is there where the
        visit may still come to nothing.  What it leaves is cut off where it is larger than
        ``largest``, or not finite: by that rule every visit ends, so that others take its token.
        """
        space, walk = self.space, self.walk
        number = 1 if first else token.hop - self.base + 1
        walk.shards[self.peer] = self.data(number, mark or Mark())
        space.load(token, read)
        if first and self.base:
            token = replace(token, hop=self.base, at=self.first_sender, memory={})
        here = space.token(hop=token.hop, at=token.at, memory=token.memory)
        walk.progress = Progress(here, {self.peer: local}, space.anchors, Transcript({}))
        if first and self.phase.start_hop is not None:
            walk.progress.arrivals[self.phase.start_hop] = Kept(here, {self.peer: local})
        began = monotonic()
        try:
            arrival = walk.arrive(token.hop + 1, None, move)
            with global_generator():
                walk.seed(arrival)
                space.model.train()
                events, gradients = execute(arrival.program, arrival.bench)
            space.put_back(visited=True)
            left = space.token(hop=token.hop, at=token.at, memory={}).tensors()
            stays = {
                f"moment/{name}": m for name, m in walk.progress.locals[self.peer].moments.items()
            }
            beyond = [cut(tensors, largest) for tensors in (left, stays)]
            walk.depart(arrival, events, gradients, checked=True)
        except UNUSABLE as error:
            raise Unusable(
                f"the token after hop {token.hop} cannot be visited ({told(error)})."
            ) from error
        ended = monotonic()
        (hop,) = walk.progress.transcript.hops
        if not self.plan.salt:
            hop = replace(hop, digest=None)
        local = walk.progress.locals[self.peer]
        return Visited(walk.progress.token, local, hop, began, ended, any(beyond))

    @property
    def first_sender(self) -> int:
        """Where the first token is taken to be before its first visit."""
        if not self.base or self.phase.start == "initial":
            return NOBODY
        return self.plan.unlearner
