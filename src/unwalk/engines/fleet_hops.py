"""Hops of many walks at once: routes, batches and records of a fleet as arrays.

A hop is *drawn* when its route can move many tokens at once (``ManyRoute``), its method can tell
what a visit does before anything is drawn (``Drawn``), and nothing else happens in it.  Then no
object is made for a walk: who is where, what was drawn and what happened stays in arrays, one entry
per hop, and a walk's token, transcript and peers are brought up to date when somebody reads them
(:class:`LazyProgress`).  All other hops, the first of every phase among them, are walked one by
one, as the in-process engine does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.philox import Words
from unwalk.core.plan import Drawn, Graph, Local, Move, Phase, Progress, says_for_many
from unwalk.core.program import AddNoise, Ball, Op, Project, Steps, Visit
from unwalk.core.seeds import Streams, drawn_words
from unwalk.core.token import State, Token
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.walking import ManyRoute, Moves
from unwalk.engines.execute import diverged, planned_events, projected, to_device
from unwalk.engines.fleet_draws import Group, Templates
from unwalk.engines.fleet_steps import Kind, LockStep
from unwalk.engines.inprocess import Walk

Numbers = npt.NDArray[np.int64]
Log = npt.NDArray[np.int32]

UNKNOWN, ALONE = -1, -2
"""Instead of the number of a template or a band: nobody asked yet; walked one by one."""
AHEAD = 64
"""For so many hops routes are drawn at a time, at most."""
MOST = 1 << 28
"""Walks times peers up to which a fleet remembers who was where."""


class LazyProgress(Progress):
    """The progress of a walk in a fleet, brought up to date when it is read."""

    def __init__(self, held: Progress, hops: Hops, row: int) -> None:
        self.held, self._hops, self._row = held, hops, row
        self.anchors, self.arrivals = held.anchors, held.arrivals

    @property
    def hop(self) -> int:
        return int(self._hops.hop[self._row])

    def _now(self) -> Progress:
        self._hops.catch_up(self._row)
        return self.held

    @property
    def token(self) -> Token:
        return self._now().token

    @token.setter
    def token(self, token: Token) -> None:
        self.held.token = token

    @property
    def locals(self) -> dict[int, Local]:
        return self._now().locals

    @locals.setter
    def locals(self, locals_: dict[int, Local]) -> None:
        self.held.locals = locals_

    @property
    def transcript(self) -> Transcript:
        return self._now().transcript

    @transcript.setter
    def transcript(self, transcript: Transcript) -> None:
        self.held.transcript = transcript


@dataclass(eq=False)
class Band:
    """Walks that take the same route on the same graph."""

    number: int
    graph: Graph
    route: ManyRoute
    names: tuple[str, ...]
    """What the route remembers."""
    ahead: dict[int, Words] = field(default_factory=dict)
    """Words for routes by the number of the draw: (hops, walks of the fleet)."""
    begun: int = 0
    """The fleet's hop to which the first of these words belong."""
    reach: int = 1


class _RouteStreams(Streams):
    """The streams of a band's routes at one hop of the fleet, drawn some hops ahead."""

    def __init__(self, hops: Hops, band: Band, rows: Numbers) -> None:
        super().__init__(hops.route_keys[rows], hops.hop[rows])
        self.hops_of, self.band, self.rows = hops, band, rows

    def words(self, count: int) -> Words:
        draw, band, hops = self.draws, self.band, self.hops_of
        self.draws += 1
        assert count == 1
        ahead = band.ahead.get(draw)
        late = hops.number - band.begun
        if ahead is None:
            members = np.flatnonzero(hops.band == band.number)
            first = (hops.hop + 1 - hops.base)[members] - late
            numbers = np.arange(band.reach)[:, None] + first
            keys = np.broadcast_to(hops.route_keys[members], (*numbers.shape, 2)).reshape(-1, 2)
            drawn = drawn_words(keys, numbers.reshape(-1).astype(np.uint64), 1, first=draw)
            ahead = band.ahead[draw] = np.zeros((band.reach, len(hops.hop)), np.uint64)
            ahead[:, members] = drawn.reshape(numbers.shape)
        words: Words = ahead[late, self.rows][:, None]
        return words


@dataclass(frozen=True, eq=False)
class Entry:
    """One hop of the fleet: the receiver and the template of each walk that drew it, or -1."""

    receivers: Log
    templates: Log


@dataclass(frozen=True, eq=False)
class DrawnVisits:
    """Walks that draw this hop, in ascending order."""

    rows: Numbers
    receivers: Numbers
    templates: Numbers


class Hops:
    """Where all walks of a fleet are, and what they did since somebody looked."""

    def __init__(self, walks: Sequence[Walk], lockstep: LockStep, few: int) -> None:
        count = len(walks)
        self.walks, self.lockstep, self.few = walks, lockstep, few
        self.templates = Templates(lockstep)
        self.number = 0
        """Hops of the fleet so far."""
        self.end = np.array([walk.end for walk in walks])
        self.hop = np.zeros(count, np.int64)
        self.at = np.zeros(count, np.int64)
        self.base = np.zeros(count, np.int64)
        """Hops before the present phase."""
        self.until = np.zeros(count, np.int64)
        """The last hop that may be drawn."""
        self.band = np.full(count, UNKNOWN)
        self.variant = np.zeros(count, np.int64)
        self.nbytes = np.zeros(count, np.int64)
        self.seen = np.zeros(count, np.int64)
        """Optimizer steps that the moments have seen."""
        self.route_keys = np.zeros((count, 2), np.uint64)
        self.batch_keys = np.zeros((count, 2), np.uint64)
        self.memory: dict[str, Numbers] = {}
        peers = max(walk.plan.graph.peers for walk in walks)
        self.visited = np.zeros((count, peers if count * peers <= MOST else 0), bool)
        self.table = np.empty((0, *self.visited.shape[1:], 2), np.int32)
        """Templates by variant, peer, and whether the peer was visited in the phase before."""
        self.bands: list[Band] = []
        self.variants: list[tuple[Walk, Drawn]] = []
        """A walk of each variant, and its method."""
        self._band_of: dict[Any, int] = {}
        self._variant_of: dict[Any, int] = {}
        self.log: list[Entry] = []
        self._columns: tuple[tuple[int, int], Log, Log] = ((0, 0), *np.empty((2, 0), np.int32))
        self.read = [0] * count
        """Entries of the log that each walk's progress holds."""
        self.phase: list[Phase | None] = [None] * count
        self.progress = [LazyProgress(w.progress, self, row) for row, w in enumerate(walks)]
        for row, walk in enumerate(walks):
            walk.progress = self.progress[row]
            self.note(row)

    def under_way(self) -> Numbers:
        """Walks that have not ended."""
        return np.flatnonzero(self.hop < self.end)

    def note(self, row: int) -> None:
        """Take over where a walk is after a hop that was walked by itself."""
        walk = self.walks[row]
        token, state = walk.progress.token, walk.state
        self.hop[row], self.at[row] = token.hop, token.at
        self.nbytes[row], self.seen[row] = state.nbytes, state.optimizer_steps
        if token.hop >= walk.end:
            return
        number, phase_hop = walk.plan.phase_of(token.hop + 1)
        phase = walk.plan.phases[number]
        if phase is not self.phase[row] or self.base[row] != token.hop + 1 - phase_hop:
            self.phase[row], self.band[row] = phase, UNKNOWN
            self.base[row] = token.hop + 1 - phase_hop
        if phase_hop == 1:
            return
        if self.band[row] == UNKNOWN and self.lockstep.carries(row, state, phase.method.travels):
            self.band[row] = self._join(row, phase, tuple(token.memory))
        if self.band[row] >= 0:
            self.visited[row, token.at] = True
            for name, value in token.memory.items():
                if name not in self.memory:
                    self.memory[name] = np.zeros(len(self.walks), np.int64)
                self.memory[name][row] = value

    def _join(self, row: int, phase: Phase, names: tuple[str, ...]) -> int:
        """The band in which a walk draws its hops, if its plan allows."""
        walk = self.walks[row]
        plan, method, route = walk.plan, phase.method, phase.route
        if (
            plan.seeds.streams == 1
            or phase.keep != "last"
            or plan.performance.digests
            or not self.visited.size
            or not isinstance(route, ManyRoute)
            or not isinstance(method, Drawn)
            or not says_for_many(route, "next", "next_all")
            or not says_for_many(method, "visit", "drawing")
        ):
            return ALONE
        last = int(self.base[row]) + phase.hops
        self.until[row] = last if last < walk.end else walk.end - 1
        same = (id(plan.graph), id(route))
        number = self._number(self._band_of, (plan.graph, route, names), same)
        if number == len(self.bands):
            self.bands.append(Band(number, plan.graph, route, names))
        self.bands[number].ahead.clear()
        kind = (id(plan.task), plan.unlearner, plan.keeps, phase.name, plan.noise.origin)
        variant = self._number(self._variant_of, (*kind, method), (*kind, id(method)))
        if variant == len(self.variants):
            self.variants.append((walk, method))
            fresh = np.full((1, *self.table.shape[1:]), UNKNOWN, np.int32)
            self.table = np.concatenate([self.table, fresh])
        self.variant[row] = variant
        self.route_keys[row] = plan.seeds.stream_key(phase.name, "route")
        self.batch_keys[row] = plan.seeds.stream_key(phase.name, "batches")
        self.visited[row] = False
        for peer, local in walk.progress.locals.items():
            self.visited[row, peer] = local.phase == phase.name and local.in_phase > 0
        return number

    @staticmethod
    def _number(numbers: dict[Any, int], key: Any, instead: Any) -> int:
        """The number of what is equal to ``key``, or of this very object if it has no hash."""
        try:
            return numbers.setdefault(key, len(numbers))
        except TypeError:
            return numbers.setdefault(instead, len(numbers))

    def draw(self, rows: Numbers) -> tuple[list[DrawnVisits], dict[int, Move]]:
        """Move the walks that can be moved together: those that draw this hop, by the steps they
        take together, and the moves of others, whose visits are walked one by one."""
        drawn: list[DrawnVisits] = []
        moves: dict[int, Move] = {}
        self.number += 1
        ready = (self.band[rows] >= 0) & (self.hop[rows] < self.until[rows])
        rows = rows[ready]
        for number in np.unique(self.band[rows]):
            own = rows[self.band[rows] == number]
            if len(own) < self.few:
                continue
            went = self._moved(self.bands[number], own)
            if went is None:
                self.band[self.band == number] = ALONE
                continue
            if set(went.memory) != set(self.bands[number].names):
                # The route begins to remember something: from the next hop on in another band.
                moves |= {row: self._move(own, went, at) for at, row in enumerate(own.tolist())}
                self.band[own] = UNKNOWN
                continue
            drawn += self._visits(own, went, moves)
        return drawn, moves

    def _moved(self, band: Band, rows: Numbers) -> Moves | None:
        if not band.ahead or self.number - band.begun >= band.reach:
            # those whose words were used up get twice as many
            band.reach = min(2 * band.reach, AHEAD) if band.ahead else 1
            band.ahead, band.begun = {}, self.number
        memory = {name: self.memory[name][rows] for name in band.names}
        streams = _RouteStreams(self, band, rows)
        return band.route.next_all(band.graph, self.at[rows], memory, streams)

    def _visits(self, rows: Numbers, went: Moves, moves: dict[int, Move]) -> Iterator[DrawnVisits]:
        """Those that draw their visits, group by group; the others' moves go to ``moves``."""
        receivers = went.receivers
        before = self.visited[rows, receivers].astype(np.int64)
        places = self.variant[rows], receivers, before
        numbers = self.table[places]
        if (numbers == UNKNOWN).any():
            for variant, peer, seen in {*zip(*(p.tolist() for p in places), strict=True)}:
                if self.table[variant, peer, seen] == UNKNOWN:
                    self.table[variant, peer, seen] = self._template(variant, peer, seen)
            numbers = self.table[places]
        for place in np.flatnonzero(numbers < 0).tolist():
            moves[int(rows[place])] = self._move(rows, went, place)
        drawn = np.flatnonzero(numbers >= 0)
        for name, many in went.memory.items():
            self.memory[name][rows[drawn]] = many[drawn]
        groups = self.templates.groups[numbers[drawn]]
        for group in np.unique(groups):
            own = drawn[groups == group]
            yield DrawnVisits(rows[own], receivers[own], numbers[own])

    def _move(self, rows: Numbers, went: Moves, place: int) -> Move:
        """One of the moves, for a walk that is walked by itself."""
        receiver = int(went.receivers[place])
        path = () if receiver == self.at[rows[place]] else (receiver,)
        memory = {name: int(many[place]) for name, many in went.memory.items()}
        return Move(receiver, path, memory)

    def _template(self, variant: int, peer: int, visited: int) -> int:
        """The template of a visit, or ``ALONE``."""
        walk, method = self.variants[variant]
        plan, shard = walk.plan, walk.shard(peer)
        if plan.keeps != "none" and peer == plan.unlearner:
            return ALONE
        visit = Visit(
            hop=2,
            phase_hop=2,
            peer=peer,
            at_unlearner=peer == plan.unlearner,
            records=shard.records,
            rng=plan.seeds.stream("unused", "batches", 0),
            earlier_in_phase=visited,
        )
        drawing = method.drawing(visit)
        if drawing is None or shard.augment is not None or shard.stamp is not None:
            return ALONE
        program = drawing.program
        if not all(_together(op) for op in program) or (
            plan.noise.needs_digest and any(_noisy(op) for op in program)
        ):
            return ALONE
        dtype = self.lockstep.parameters.dtype
        events = planned_events(program, plan.noise.origin, dtype)
        return self.templates.add(drawing, events, shard)

    def take(self, drawn: Sequence[DrawnVisits]) -> None:
        """Draw the batches, take the steps and write them down."""
        if not drawn:
            return
        entry = Entry(*np.full((2, len(self.walks)), UNKNOWN, np.int32))
        for visits in drawn:
            rows, numbers = visits.rows, visits.templates
            group = self.templates.of(numbers)
            if group.kind is not None:
                self._steps(group.kind, visits)
            self._after(group, visits)
            self.hop[rows] += 1
            self.at[rows] = visits.receivers
            self.visited[rows, visits.receivers] = True
            entry.receivers[rows], entry.templates[rows] = visits.receivers, numbers
        self.log.append(entry)

    def _steps(self, kind: Kind, visits: DrawnVisits) -> None:
        """Draw the batches of one group, and take its steps."""
        rows, numbers = visits.rows, visits.templates
        steps = self.templates.facts[numbers, 2]
        phase_hops = self.hop[rows] + 1 - self.base[rows]
        feed = self.templates.feed(numbers, self.batch_keys[rows], phase_hops)

        def noise(step: int) -> torch.Tensor:
            stds = [self.templates.all[number].noise for number in numbers.tolist()]
            return self._normals(rows, [step] * len(rows), np.where(step < steps, stds, 0.0))

        self.lockstep.drawn(kind, feed, rows, self.seen[rows], noise)
        if kind.rule.state == "carried":
            self.seen[rows] = (self.seen[rows] if kind.rule.slots else 0) + steps

    def _after(self, group: Group, visits: DrawnVisits) -> None:
        """What follows the steps: noise on the parameters, and projections."""
        if not group.after:
            return
        rows, parameters = visits.rows, self.lockstep.parameters
        at = to_device(torch.from_numpy(rows), parameters.device)
        theta = parameters[at]
        noisy = group.kind is not None and group.kind.noisy
        draws = self.templates.facts[visits.templates, 2] * noisy
        for op in group.after:
            if isinstance(op, AddNoise):
                theta += self._normals(rows, draws.tolist(), np.full(len(rows), op.std))
                draws += 1
            elif isinstance(op, Project):
                theta = project_all(theta, [self.walks[row].state for row in rows], op.balls)
        parameters[at] = theta

    def _normals(
        self, rows: Numbers, draws: Sequence[int], stds: npt.NDArray[np.float64]
    ) -> torch.Tensor:
        """Each walk's own noise of its std, the draw of this number at its hop."""
        drawn = self.lockstep.parameters.new_zeros(len(rows), self.lockstep.parameters.shape[1])
        hops = (self.hop[rows] + 1).tolist()
        for place, (row, hop, draw, std) in enumerate(
            zip(rows.tolist(), hops, draws, stds.tolist(), strict=True)
        ):
            if std:
                noise, like = self.walks[row].plan.noise, self.lockstep.parameters[row]
                normals = noise.draw(like, hop=hop, step=draw, digest=None)
                torch.mul(normals, std, out=drawn[place])
        return drawn

    def check_finite(self, drawn: Iterable[DrawnVisits]) -> None:
        """Name the first walk whose parameters are not finite after a hop that was drawn."""
        sums = self.lockstep.parameters.sum(1)
        for visits in drawn:
            for row in visits.rows[~torch.isfinite(sums).cpu().numpy()[visits.rows]]:
                raise diverged(int(self.hop[row]), int(self.at[row]))

    def catch_up(self, row: int) -> None:
        """Bring a walk's progress up to date."""
        if self.read[row] == len(self.log):
            return
        walk, phase, held = self.walks[row], self.phase[row], self.progress[row].held
        token, nbytes, base = held.token, int(self.nbytes[row]), int(self.base[row])
        hop, at, name = token.hop, token.at, "" if phase is None else phase.name
        receivers, numbers = self._since(self.read[row])
        for peer, number in zip(receivers[row].tolist(), numbers[row].tolist(), strict=True):
            if number < 0:
                continue
            template = self.templates.all[number]
            hop += 1
            path = () if peer == at else (peer,)
            held.transcript.add(
                Hop(
                    hop=hop,
                    phase=name,
                    phase_hop=hop - base,
                    sender=at,
                    receiver=peer,
                    path=path,
                    nbytes=nbytes if path else 0,
                    events=template.events,
                    gradients=template.gradients,
                )
            )
            local = held.locals.get(peer)
            if local is None:
                local = held.locals[peer] = Local()
            if local.phase != name:
                local.phase, local.in_phase = name, 0
            local.visits += 1
            local.in_phase += 1
            at = peer
        self.read[row] = len(self.log)
        if hop != token.hop:
            walk.state.optimizer_steps = int(self.seen[row])
            names = self.bands[self.band[row]].names
            memory = {name: int(self.memory[name][row]) for name in names}
            held.token = walk.state.token(hop=hop, at=at, memory=memory)

    def _since(self, first: int) -> tuple[Log, Log]:
        """Receivers and templates of the log from an entry on, one row per walk.

        Walks are usually read one after the other, all from the same entry on.
        """
        key = (first, len(self.log))
        if self._columns[0] != key:
            entries = self.log[first:]
            self._columns = (
                key,
                np.stack([entry.receivers for entry in entries], axis=1),
                np.stack([entry.templates for entry in entries], axis=1),
            )
        return self._columns[1:]


def project_all(
    theta: torch.Tensor, states: Sequence[State], balls: Sequence[Ball]
) -> torch.Tensor:
    """Each walk's parameters, a row each, on the intersection of balls around its anchors."""
    centres = [
        None if b.centre == "origin" else torch.stack([s.anchors[b.centre] for s in states])
        for b in balls
    ]
    if len(balls) == 1:
        return projected(theta, [(centres[0], balls[0].radius)])
    return torch.stack(
        [
            projected(
                row,
                [
                    (None if many is None else many[place], ball.radius)
                    for many, ball in zip(centres, balls, strict=True)
                ],
            )
            for place, row in enumerate(theta)
        ]
    )


def _noisy(op: Op) -> bool:
    """Whether an operation draws noise."""
    return isinstance(op, AddNoise) or (isinstance(op, Steps) and op.noise > 0.0)


def _together(op: Op) -> bool:
    """Whether an operation can be carried out for many walks at once."""
    match op:
        case Steps():
            return op.rule.state != "local" and not op.rounded and op.weights is None
        case AddNoise():
            return not op.rounded
        case Project():
            return not op.round_arrival
    return False
