"""What a plan will do, hop by hop, without a record or a model: routes and batches are public.

A dry run asks the route where the token goes and the method what it does there, and writes down
what the engine would: who, along which path, how many bytes, which events, how many gradients.
Proofs read it like any transcript, so that it is known beforehand which grade a walk can get.
Everything follows from public seeds and from how many records peers hold.

What only the walk itself can tell is left out: digests, and entries of a register of draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from unwalk.core import events as ev
from unwalk.core.packing import size_of
from unwalk.core.plan import Phase, Plan
from unwalk.core.program import (
    Dampen,
    Forget,
    Importance,
    Mask,
    Op,
    Program,
    Records,
    ReplaceSums,
    Steps,
    Visit,
)
from unwalk.core.transcript import Hop, Transcript
from unwalk.engines.execute import BareLinear, planned_events
from unwalk.engines.inprocess import buffer_name
from unwalk.runs.assemble import ModelFacts
from unwalk.walks import NOBODY


@dataclass
class _Token:
    """Where the token is, the route's memory, and what travels besides the model."""

    at: int = NOBODY
    memory: dict[str, int] = field(default_factory=dict)
    vectors: set[str] = field(default_factory=set)
    sums: int = 0

    def copy(self) -> _Token:
        return replace(self, memory=dict(self.memory), vectors=set(self.vectors))


def dry_run(
    plan: Plan,
    model: ModelFacts,
    walked: Transcript | None = None,
    records: Records | None = None,
) -> Transcript:
    """The transcript that ``plan`` would leave; its first hops are those that were ``walked``.

    Each peer has ``records``; if none are given, those that the task says.
    """
    return _Rehearsal(plan, model, records).carried_out(walked)


class _Rehearsal:
    def __init__(self, plan: Plan, model: ModelFacts, records: Records | None) -> None:
        self.plan, self.model, self.records = plan, model, records
        self.token = _Token()
        self.arrivals: dict[int, _Token] = {}
        self.in_phase: dict[int, int] = {}
        self.kept = ""

    def carried_out(self, walked: Transcript | None) -> Transcript:
        transcript = Transcript(self.plan.header())
        known = [] if walked is None else walked.hops
        for number in range(1, self.plan.hops + 1):
            index, phase_hop = self.plan.phase_of(number)
            phase = self.plan.phases[index]
            begun = self._begin(index, phase) if phase_hop == 1 else ()
            nbytes = self._bytes()
            hop = self._hop(number, phase, phase_hop, begun, nbytes)
            if number <= len(known):
                hop = known[number - 1]
                self.token.at = hop.receiver
            transcript.add(hop)
            self._keep(phase, phase_hop)
        return transcript

    def _begin(self, index: int, phase: Phase) -> tuple[ev.Event, ...]:
        """What happens before the first visit of a phase, as in the engine."""
        kept = index > 0 and phase.start != "token"
        if kept and phase.start == "initial":
            self.token = _Token(at=self.token.at)
        elif kept:
            self.token = self.arrivals[phase.start_hop or 0].copy()
            self.token.at = self.plan.unlearner
        self.token.memory, self.in_phase, self.kept = {}, {}, ""
        carried = {*self.token.vectors, *phase.method.travels} | (
            {"sums"} if self.token.sums else set()
        )
        travels = (*map(buffer_name, self.model.buffers), *sorted(carried))
        start = "initial" if index == 0 else phase.start
        hop = phase.start_hop if kept else None
        begun = ev.Start(phase.name, start, phase.carries_forgotten, travels, hop)
        if not phase.reset_optimizer:
            return (begun,)
        self.token.vectors.clear()
        return (begun, ev.Wipe("optimizer"))

    def _hop(
        self, number: int, phase: Phase, phase_hop: int, begun: tuple[ev.Event, ...], nbytes: int
    ) -> Hop:
        plan, token = self.plan, self.token
        rng = plan.seeds.stream(phase.name, "route", phase_hop)
        move = phase.route.next(plan.graph, token.at, token.memory, rng)
        peer, sender = move.receiver, token.at
        if peer == plan.unlearner and plan.keeps != "none":
            self.arrivals[number] = token.copy()
        visit = Visit(
            hop=number,
            phase_hop=phase_hop,
            peer=peer,
            at_unlearner=peer == plan.unlearner,
            records=self.records or plan.task.records(peer),
            rng=plan.seeds.stream(phase.name, "batches", phase_hop),
            earlier_in_phase=self.in_phase.get(peer, 0),
        )
        self.in_phase[peer] = visit.earlier_in_phase + 1
        program = phase.method.visit(visit)
        for op in program:
            self._after(op)
        token.at, token.memory = peer, dict(move.memory)
        return Hop(
            hop=number,
            phase=phase.name,
            phase_hop=phase_hop,
            sender=sender,
            receiver=peer,
            path=move.path,
            nbytes=nbytes * len(move.path),
            events=begun + self._events(program),
            gradients=sum(_gradients(op) for op in program),
        )

    def _events(self, program: Program) -> tuple[ev.Event, ...]:
        dtype = getattr(torch, self.model.precision)
        return planned_events(program, self.plan.noise.origin, dtype)

    def _after(self, op: Op) -> None:
        """Which vectors travel once an operation is done."""
        vectors = self.token.vectors
        steps = getattr(op, "steps", op)
        match op:
            case Forget(what="optimizer"):
                vectors.clear()
            case ReplaceSums():
                self.token.sums = self._sums(op)
            case Importance():
                vectors.add("importance")
            case Mask():
                vectors.add("mask")
            case Dampen():
                vectors.discard("importance")
        if isinstance(steps, Steps) and steps.rule.state == "carried" and steps.batches.shape[0]:
            vectors.update(steps.rule.slots)

    def _sums(self, op: ReplaceSums) -> int:
        head = self.model.head
        if not isinstance(head, BareLinear):
            return 0
        triangle = head.inputs * (head.inputs + 1) // 2
        return size_of(triangle, op.width) + size_of(head.inputs * head.outputs, op.width)

    def _keep(self, phase: Phase, phase_hop: int) -> None:
        """The iterate that a phase keeps travels as well, from its first hop on to its last."""
        if phase.keep == "average":
            self.kept = "average"
        elif phase.keep == "random":
            drawn = self.plan.seeds.numpy(phase.name, "iterate").integers(phase.hops)
            self.kept = "random" if phase_hop > int(drawn) else ""
        if phase_hop == phase.hops:
            self.kept = ""

    def _bytes(self) -> int:
        vectors = len(self.token.vectors) + bool(self.kept)
        return self.model.nbytes + vectors * self.model.vector_bytes + self.token.sums


def _gradients(op: Op) -> int:
    return int(getattr(op, "gradients", 0))
