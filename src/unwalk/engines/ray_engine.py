"""The Ray engine: peers on the machines of a cluster, the token handed from host to host.

The route of a walk is public and depends on no record, so the driver orders several visits ahead.
Each takes the token that the visit before leaves: at the door of that host where it is on the same
machine (:mod:`unwalk.engines.ray_door`), or else from Ray, which keeps every token and brings it
from machine to machine.  The driver learns what the transcript says of a hop, and fetches a token
only where the sink looks at one: to measure, to write a checkpoint, at the end.

A worker that dies is started again by Ray.  Its visit is ordered again, with the token that Ray
kept, the same local state and draws: the same bits.  Tokens are in the memory of machines, not of
workers.  Where a whole machine is lost with what it held, the walk goes back to the last state that
the driver has copied (:data:`COPIED` hops at most) and compares what happens again with the
transcript.

Bits are the in-process engine's, on a CPU of the same kind.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count, islice
from pickle import PicklingError
from typing import Any

import torch

from unwalk.core.errors import InvalidInput, UnwalkError, told
from unwalk.core.noise import SecretNoise
from unwalk.core.plan import Kept, Local, Move, Outcome, Plan, Progress, Resume, Sink, Task
from unwalk.core.token import Token, Workspace, build_model
from unwalk.core.transcript import Transcript
from unwalk.engines.execute import check_start
from unwalk.engines.ray_cluster import crew_for
from unwalk.engines.ray_host import FarRegister, FarTask, Lacks, Order, Visited
from unwalk.engines.ray_parcel import APART, packed, whole_models

AHEAD = 8
"""Visits that are ordered before the first of them is known to have ended."""
TOLD = 4
"""Hops that the driver waits for at a time: while it works, it takes a core from the visits."""
PAUSE = 0.25
"""Seconds that it waits for them at most, so that what is shown and saved is not late."""
COPIED = 25
"""Hops between two states that the driver copies where a cluster has several machines."""
ATTEMPTS = 5
"""How often a walk goes back without getting any further."""
LOST = 2
"""After so many losses without getting any further, hosts get their tokens from Ray alone, and what
the walk goes on from is looked for."""
DIRECT = 8 << 20
"""Bytes of parameters up to which hosts hand tokens on themselves.  With larger ones it is copies
that cost: they go through Ray's memory, which all hosts of a machine see, and are ordered one by
one, because Ray keeps those that the driver has not been told of."""

_chains = count(1)
"""Numbers of visits that were ordered one after the other; hosts know them, over all walks."""

Ref = Any
"""A reference to an object in the cluster; Ray's own type."""


class Ray:
    """Carries tokens over the hosts of a Ray cluster, one walk after the other."""

    name = "ray"
    together = False

    def run(
        self, plans: Sequence[Plan], sink: Sink | None = None, resume: Resume | None = None
    ) -> Iterator[Outcome]:
        """Carry out the plans in order, each from its ``resume`` point if it has one."""
        for index, plan in enumerate(plans):
            if plan.performance.device != "cpu":
                raise InvalidInput(
                    f"device is {plan.performance.device!r}, but the engine ray computes on CPUs; "
                    "set device to cpu, or performance.engine to inprocess."
                )
            journey = Journey(plan, (resume or {}).get(index))
            yield journey.walk(index, sink)


@dataclass(frozen=True, eq=False)
class _Left:
    """A state that was kept: references to a token and to what every peer had kept."""

    token: Ref
    locals: Mapping[int, Ref]


@dataclass(frozen=True, eq=False)
class _Place:
    """A walk after a hop: who holds the token, and references to all of its state.

    The initial model, which the driver has itself, is None: as the token before the first hop, and
    as ``start``, the token with which the phase began.  ``loose`` as in :class:`Order`: the walk
    goes on here from a token that it was given.
    """

    hop: int
    at: int
    memory: Mapping[str, int]
    token: Ref | None
    locals: Mapping[int, Ref]
    start: Ref | None
    arrivals: Mapping[int, _Left]
    loose: bool = False

    def references(self) -> list[Ref]:
        """All that is needed to go on from here."""
        kept = [
            ref for left in self.arrivals.values() for ref in (left.token, *left.locals.values())
        ]
        held = [self.token, self.start, *self.locals.values(), *kept]
        return [ref for ref in held if ref is not None]


@dataclass(frozen=True, eq=False)
class _Flight:
    """A visit that was ordered: what it will tell, and the place after it."""

    visited: Ref
    after: _Place


_shards: tuple[Task, str, dict[int, Ref]] | None = None
"""The last task, its name among hosts and references to its shards: methods of a run share them."""


class Journey:
    """One walk, as its driver sees it."""

    def __init__(self, plan: Plan, resume: Progress | None) -> None:
        torch.set_num_threads(plan.performance.threads)
        self.plan = plan
        self.crew, self.among = crew_for(plan)
        self.ray = self.crew.ray
        self.work = Workspace(build_model(plan.task.model, plan.seeds.integer("model")))
        check_start(plan, self.work.parameters)
        self.initial = self.work.anchors["initial"].clone()
        self.task, self.shards = self._task()
        self.id = uuid.uuid4().hex
        self.sent = self._sent()
        self.transcript = Transcript(plan.header()) if resume is None else resume.transcript
        self.place = self.safe = self._begun(resume)
        self.given: set[tuple[int, str]] = set()
        self.times: list[tuple[float, float]] = []
        self.chain = next(_chains)
        self.hands = self.initial.nbytes <= DIRECT
        self.ahead, self.together = (AHEAD, TOLD) if self.hands else (1, 1)
        self.wanted: set[str] = set()
        self.anchor: Ref | None = None

    def _task(self) -> tuple[str, dict[int, Ref]]:
        global _shards
        task, cluster = self.plan.task, "/".join(self.crew.cluster)
        if _shards is None or _shards[0] is not task or not _shards[1].startswith(cluster):
            _shards = (task, f"{cluster}/{uuid.uuid4().hex}", {})
        return _shards[1], _shards[2]

    def _sent(self) -> Ref:
        """The plan, put into the cluster."""
        plan = self._far_plan()
        assert isinstance(plan.task, FarTask)
        model = plan.task.built
        try:
            with whole_models(model):
                return self.ray.put(plan)
        except (TypeError, PicklingError) as error:
            why = told(error.__cause__ or error)
            raise InvalidInput(
                f"the model {type(model).__name__} cannot be sent to the hosts of a Ray cluster "
                f"({why}); leave out of it what cannot be pickled, or use --engine inprocess."
            ) from error

    def _far_plan(self) -> Plan:
        """The plan as hosts have it: without records, and with this machine's register of noise."""
        task, noise = self.plan.task, self.plan.noise
        built = build_model(task.model, self.plan.seeds.integer("model"))
        for parameter in built.parameters():
            if parameter.requires_grad:  # it comes with the token
                parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
        far = FarTask(task.name, task.peers, task.loss, built)
        if isinstance(noise, SecretNoise) and noise.register is not None:
            self.keeper = self.crew.keeper(noise.register.enter)
            noise = replace(noise, register=FarRegister(self.keeper))
        return replace(self.plan, task=far, noise=noise)

    def _begun(self, resume: Progress | None) -> _Place:
        put = self._put
        if resume is None:
            return _Place(0, -1, {}, None, {}, None, {})
        token = resume.token
        start = resume.anchors.get("start", self.initial)
        return _Place(
            token.hop,
            token.at,
            token.memory,
            put(token, APART),
            {peer: put(local) for peer, local in resume.locals.items()},
            None if torch.equal(start, self.initial) else put(Token(start, {}), APART),
            {
                hop: _Left(put(kept.token), {p: put(one) for p, one in kept.locals.items()})
                for hop, kept in resume.arrivals.items()
            },
            loose=True,
        )

    def _put(self, thing: Any, least: int = 0) -> Ref:
        return self.ray.put(packed(thing, least))

    def walk(self, index: int, sink: Sink | None) -> Outcome:
        """Order visits ahead, and tell the sink of each when it has ended."""
        try:
            self._walk(index, sink)
        except BaseException:
            self.crew.end(self.chain)
            raise
        return self._outcome()

    def _walk(self, index: int, sink: Sink | None) -> None:
        flights: deque[_Flight] = deque()
        ahead, failed, chain = self.place, 0, self.chain
        while self.place.hop < self.plan.hops:
            if chain != self.chain:  # nobody waits for what was ordered before
                ahead, chain = self.place, self.chain
                flights.clear()
            if len(flights) <= max(self.ahead - self.together, 0):
                while ahead.hop < self.plan.hops and len(flights) < self.ahead:
                    flights.append(self._order(ahead, handed=bool(flights) and failed < LOST))
                    ahead = flights[-1].after
                first = [flight.visited for flight in islice(flights, self.together)]
                self.ray.wait(first, num_returns=len(first), timeout=PAUSE)
            flight = flights.popleft()
            try:
                visited = self._told(flight.visited)
            except _Gone as gone:
                failed += 1
                self._check(failed, flight, gone)
                self._new_chain()
                machines = len(self.ray.nodes())  # with those that are lost
                if failed >= LOST or machines > 1 or not isinstance(gone, _Anew):
                    self.anchor = None
                    self.place = self._brought_back(self.place)
                continue
            failed = 0
            self.place = flight.after
            self.transcript.add(visited.hop)
            self.times.append((visited.began, visited.ended))
            self._copy_now_and_then()
            if sink is not None:
                progress = self._progress(visited)
                sink.after(index, progress, partial(self._look, progress.token))

    def _new_chain(self) -> None:
        """Nobody is to wait for what was ordered; what is next goes to hosts that answer."""
        self.crew.end(self.chain)
        self.chain = next(_chains)
        self.crew.find_doors()

    def _check(self, failed: int, flight: _Flight, gone: _Gone) -> None:
        """Give up where nothing gets any further."""
        if failed == ATTEMPTS:
            raise UnwalkError(
                f"the Ray cluster lost hop {flight.after.hop} {ATTEMPTS} times ({gone}); mend the "
                "cluster and go on with --resume."
            ) from gone

    def _order(self, place: _Place, *, handed: bool = False) -> _Flight:
        """Order the visit of the next hop.

        ``handed``: the visit before is ordered and not ended, and hands its token on.
        """
        plan, hop = self.plan, place.hop + 1
        number, phase_hop = plan.phase_of(hop)
        phase = plan.phases[number]
        first = phase_hop == 1
        at, memory, locals_, start = place.at, place.memory, place.locals, place.start
        fresh: dict[str, Ref] = {}
        kept_from = None
        if first:
            memory, start = {}, place.token if number > 0 and phase.start == "token" else None
            if number > 0 and phase.start == "arrival":
                kept_from = phase.start_hop or 0
                kept = place.arrivals[kept_from]
                at, locals_, fresh["kept"] = plan.unlearner, kept.locals, kept.token
                start = kept.token
        rng = plan.seeds.stream(phase.name, "route", phase_hop)
        move: Move = phase.route.next(plan.graph, at, memory, rng)
        peer = int(move.receiver)
        host = peer % self.among
        held = {"plan": self.sent, "shard": self._shard(peer)}
        names = {"plan": "plan", "shard": f"shard {peer}"}
        for name in self.wanted:
            held[name] = start if name == "start" and start is not None else self._anchor()
            names[name] = f"{name} {number}"
        for name, ref in held.items():
            if (host, names[name]) not in self.given:
                fresh[name] = ref
        self.given.update((host, name) for name in names.values())
        keeps = peer == plan.unlearner and (
            plan.keeps == "all" or (plan.keeps == "first" and not place.arrivals)
        )
        door = self.crew.door(place.at % self.among, host) if handed and self.hands else None
        order = Order(
            self.task,
            self.id,
            self.chain,
            hop,
            move,
            str(number),
            kept_from,
            keeps=keeps,
            loose=place.loose,
            door=door,
            hands=self.hands,
        )
        token = place.token
        if door is not None:
            token = None
        elif token is None:
            token = self._put(self._first(), APART)
        # Ray makes none again itself: a host could wait for one that is to be made after it.
        visit = self.crew.hosts[host].visit.options(num_returns=3 + keeps, max_task_retries=0)
        visited, left, local, *more = visit.remote(order, token, locals_.get(peer), fresh)
        arrivals = place.arrivals
        if keeps:
            arrivals = {**arrivals, hop: _Left(more[-1], locals_)}
        after = {**locals_, peer: local}
        return _Flight(visited, _Place(hop, peer, move.memory, left, after, start, arrivals))

    def _first(self) -> Token:
        """The token before the first hop."""
        return Token(self.initial, self.work.initial_buffers, at=-1)

    def _anchor(self) -> Ref:
        """The initial model, put into the cluster once, for visits that look at it."""
        if self.anchor is None:
            self.anchor = self._put(self._first(), APART)
        return self.anchor

    def _shard(self, peer: int) -> Ref:
        """A peer's records, put into the cluster once; its host fetches them at its first visit."""
        if peer not in self.shards:
            self.shards[peer] = self.ray.put(self.plan.task.shard(peer))
        return self.shards[peer]

    def _told(self, reference: Ref) -> Any:
        """An object of the cluster; an error of the visit as the visit raised it."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UnwalkError):
                raise cause from None
            if isinstance(cause, Lacks):  # a new process, or the one before has gone
                self.given.clear()
                self.wanted |= {"initial", "start"} & {str(cause)}
                raise _Anew("a host was started anew") from None
            if isinstance(cause, errors.RayError):
                raise _Gone(type(cause).__name__) from error
            raise
        except errors.RayActorError as error:
            self.given.clear()
            raise _Anew(type(error).__name__) from error
        except errors.RayError as error:
            raise _Gone(type(error).__name__) from error

    def _copy_now_and_then(self) -> None:
        if self.place.hop % COPIED == 0 and self.crew.machines > 1:
            try:
                self.safe = self._copied(self.place)
            except _Gone:
                self.place = self._brought_back(self.place)

    def _copied(self, place: _Place) -> _Place:
        """The place with all of its state on this machine; what is here already is not copied."""
        here = {None: None, **{ref: ref for ref in self.safe.references()}}
        for ref in place.references():
            if ref not in here:
                here[ref] = self.ray.put(self._told(ref))
        return replace(
            place,
            token=here[place.token],
            locals={peer: here[ref] for peer, ref in place.locals.items()},
            start=here[place.start],
            arrivals={
                hop: _Left(here[left.token], {p: here[ref] for p, ref in left.locals.items()})
                for hop, left in place.arrivals.items()
            },
        )

    def _brought_back(self, place: _Place) -> _Place:
        """The same place, after something was lost: as it is, or walked to again."""
        try:
            self.safe = self._copied(place)
            return self.safe
        except _Gone:
            again, failed = self.safe, 0
        self._new_chain()
        while again.hop < place.hop:
            flight = self._order(again)
            try:
                visited: Visited = self._told(flight.visited)
            except _Gone as gone:
                failed += 1
                self._check(failed, flight, gone)
                self.crew.find_doors()
                again = again if isinstance(gone, _Anew) else self.safe
                continue
            if visited.hop != self.transcript.hops[again.hop]:
                raise UnwalkError(
                    f"hop {visited.hop.hop} was lost and made again, and it is not the same: the "
                    "machines of the cluster do not compute the same bits; use machines of one "
                    "kind, and start again with --overwrite."
                )
            again = flight.after
        return again

    def _fetched(self, place: _Place, reference: Callable[[_Place], Any]) -> Any:
        """Objects of a place; if some are lost, of the same place walked to again."""
        try:
            return _each(self._opened, reference(place))
        except _Gone:
            return _each(self._opened, reference(self._brought_back(place)))

    def _opened(self, reference: Ref) -> Any:
        return self._told(reference).opened()

    def _progress(self, visited: Visited) -> FarProgress:
        place = self.place
        token = FarToken(place, visited.optimizer_steps, lambda: self._token(place))
        return FarProgress(token, self.transcript, lambda: self._rest(place))

    def _token(self, place: _Place) -> Token:
        if place.token is None:
            return self._first()
        token: Token = self._fetched(place, lambda p: p.token)
        return token

    def _rest(self, place: _Place) -> dict[str, Any]:
        """What a progress has besides its token and its transcript."""
        anchors = {"initial": self.initial}
        if place.hop > 0:
            anchors["start"] = self.initial.clone()  # files share no memory
        if place.start is not None:
            anchors["start"] = self._fetched(place, lambda p: p.start).parameters
        locals_: dict[int, Local] = self._fetched(place, lambda p: p.locals)
        kept = self._fetched(
            place, lambda p: {h: {"t": k.token, "l": k.locals} for h, k in p.arrivals.items()}
        )
        return {
            "locals": locals_,
            "anchors": anchors,
            "arrivals": {hop: Kept(one["t"], one["l"]) for hop, one in kept.items()},
        }

    def _look(self, token: Token) -> Workspace:
        """The driver's own workspace, showing a token."""
        self.work.put_back()
        self.work.load(token)
        return self.work

    def _outcome(self) -> Outcome:
        token = self._token(self.place)
        progress = Progress(token, transcript=self.transcript, **self._rest(self.place))
        return Outcome(self.plan, progress, partial(self._look, token))


class _Gone(Exception):
    """Something that was in the cluster is lost; the text is Ray's name for it."""


class _Anew(_Gone):
    """A host was started anew: it has to be given what it holds, and nothing else is lost."""


def _each(opened: Callable[[Ref], Any], held: Any) -> Any:
    """References in dictionaries of dictionaries, opened."""
    if isinstance(held, Mapping):
        return {name: _each(opened, one) for name, one in held.items()}
    return opened(held)


class FarToken(Token):
    """A token in the cluster; its tensors are fetched when somebody asks for one."""

    def __init__(self, place: _Place, optimizer_steps: int, fetch: Callable[[], Token]) -> None:
        known = {"hop": place.hop, "at": place.at, "memory": place.memory}
        vars(self).update(known, optimizer_steps=optimizer_steps, fetch=fetch)

    def __getattr__(self, name: str) -> Any:
        if name not in {one.name for one in fields(Token)}:
            raise AttributeError(name)
        vars(self).update(vars(vars(self)["fetch"]()))
        return vars(self)[name]

    def clone(self) -> Token:
        """A token that is here."""
        return Token(**{one.name: getattr(self, one.name) for one in fields(Token)}).clone()


class FarProgress(Progress):
    """Progress whose tensors are in the cluster until somebody asks for them."""

    def __init__(
        self, token: Token, transcript: Transcript, fetch: Callable[[], dict[str, Any]]
    ) -> None:
        self.token, self.transcript, self.fetch = token, transcript, fetch

    def __getattr__(self, name: str) -> Any:
        if name not in ("locals", "anchors", "arrivals"):
            raise AttributeError(name)
        vars(self).update(vars(self)["fetch"]())
        return vars(self)[name]
