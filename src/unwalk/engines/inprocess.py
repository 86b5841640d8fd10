"""The reference engine: one process, one walk after the other, repeatable bit for bit.

:class:`Walk` is one walk under way: what happens before and after each visit, the same on every
engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.outside import renewed
from unwalk.core.plan import Kept, Local, Move, Outcome, Phase, Plan, Progress, Resume, Sink
from unwalk.core.program import Program, Visit, round_arrival
from unwalk.core.token import State, Token, Workspace, build_model
from unwalk.core.transcript import Hop, Transcript
from unwalk.engines.cuda import CapturedSteps, executor_for
from unwalk.engines.execute import (
    BareLinear,
    Bench,
    check_finite,
    check_start,
    execute,
    head_of,
    prepared,
)


class InProcess:
    """Carries the token itself, visit after visit."""

    name = "inprocess"
    together = False

    def run(
        self, plans: Sequence[Plan], sink: Sink | None = None, resume: Resume | None = None
    ) -> Iterator[Outcome]:
        """Carry out the plans in order, each from its ``resume`` point if it has one."""
        for index, plan in enumerate(plans):
            yield _carry_out(plan, index, sink, (resume or {}).get(index))


def _carry_out(plan: Plan, index: int, sink: Sink | None, resume: Progress | None) -> Outcome:
    speed = plan.performance
    torch.set_num_threads(speed.threads)
    device = torch.device(speed.device)
    work = Workspace(build_model(plan.task.model, plan.seeds.integer("model")), device)
    check_start(plan, work.parameters)
    walk = Walk(plan, work, resume)
    steps, executor = None, executor_for(device)
    if executor is not None and renewed(plan.task.loss) is plan.task.loss:
        # A loss that keeps something would be captured with what it keeps.
        steps = executor.steps(
            work, plan.task.loss, precision=speed.precision, compiled=speed.compiled
        )
    with torch.random.fork_rng(devices=[] if executor is None else [device]):
        for hop in range(walk.progress.token.hop + 1, plan.hops + 1):
            arrival = walk.arrive(hop, steps)
            walk.seed(arrival)
            work.model.train()
            walk.depart(arrival, *execute(arrival.program, arrival.bench))
            if sink is not None:
                sink.after(index, walk.progress, lambda: work)
    return Outcome(plan, walk.progress, lambda: work)


CHECKED_EVERY = 10
"""Reading a value from a CUDA device waits for all earlier work, so it is done less often."""


@dataclass(eq=False, slots=True)
class Arrival:
    """The token has arrived at a peer, and the peer's program is known."""

    hop: int
    phase: Phase
    phase_hop: int
    move: Move
    nbytes: int
    begun: tuple[ev.Event, ...]
    program: Program
    bench: Bench


class Walk:
    """A plan, its state and its progress."""

    def __init__(
        self, plan: Plan, state: State, resume: Progress | None, head: BareLinear | None = None
    ) -> None:
        self.plan = plan
        self.end = plan.hops
        self.state = state
        self.shards: dict[int, Shard] = {}
        self.ready: dict[int, tuple[Shard, Shard]] = {}
        self.head = head_of(plan, state.model) if isinstance(state, Workspace) else head
        self.generator = torch.Generator(device=state.device)
        if resume is None:
            token = state.token(hop=0, at=-1, memory={})
            self.progress = Progress(token, {}, state.anchors, Transcript(plan.header()))
        else:
            state.load(resume.token)
            state.anchors.update({k: v.to(state.device) for k, v in resume.anchors.items()})
            self.progress = Progress(
                resume.token,
                resume.locals,
                state.anchors,
                resume.transcript,
                resume.arrivals,
            )

    def arrive(
        self, hop: int, executor: CapturedSteps | None = None, move: Move | None = None
    ) -> Arrival:
        """Route the token (unless ``move`` says where it came) and ask the method what to do."""
        plan, state = self.plan, self.state
        state.put_back()
        number, phase_hop = plan.phase_of(hop)
        phase = plan.phases[number]
        begun = self._begin(number, phase) if phase_hop == 1 else ()
        token = self.progress.token
        memory = {} if phase_hop == 1 else token.memory
        nbytes = state.nbytes
        if move is None:
            rng = plan.seeds.stream(phase.name, "route", phase_hop)
            move = phase.route.next(plan.graph, token.at, memory, rng)
        peer = move.receiver
        self._keep_arrival(hop, peer)
        local = self.progress.locals.get(peer)
        if local is None:
            local = self.progress.locals[peer] = Local()
        if local.phase != phase.name:
            local.phase, local.in_phase = phase.name, 0
        shard = self.shard(peer)
        visit = Visit(
            hop=hop,
            phase_hop=phase_hop,
            peer=peer,
            at_unlearner=peer == plan.unlearner,
            records=shard.records,
            rng=plan.seeds.stream(phase.name, "batches", phase_hop),
            earlier_in_phase=local.in_phase,
        )
        bench = Bench(
            work=state,
            shard=shard.renewed(),
            local=local,
            noise=plan.noise,
            loss=renewed(plan.task.loss),
            hop=hop,
            peer=peer,
            generator=self.generator,
            digest=token.digest() if plan.noise.needs_digest else None,
            executor=executor,
            head=self.head,
        )
        program = phase.method.visit(visit)
        if any(map(round_arrival, program)):
            state.anchors["arrival"] = state.parameters.clone()
        return Arrival(hop, phase, phase_hop, move, nbytes, begun, program, bench)

    def seed(self, arrival: Arrival) -> None:
        """Seed what a visit draws from: augmentation, and torch's global generators (dropout).

        ``torch.manual_seed`` would do, but it writes a stack trace for every kind of device that
        is not in use, which takes longer than all the rest of a hop's bookkeeping.
        """
        self.seed_at(arrival.phase, arrival.phase_hop)

    def seed_at(self, phase: Phase, phase_hop: int) -> None:
        """Seed what a visit at a hop of a phase draws from."""
        seed = self.plan.seeds.integer(phase.name, "torch", phase_hop)
        self.generator.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
        if self.state.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

    def to_check(self, hop: int) -> bool:
        """Whether a visit's parameters are to be checked before they are handed on."""
        return self.state.device.type == "cpu" or hop == self.end or hop % CHECKED_EVERY == 0

    def depart(
        self,
        arrival: Arrival,
        events: tuple[ev.Event, ...],
        gradients: int,
        *,
        checked: bool = False,
    ) -> None:
        """Check the parameters (unless that was done), record the visit, hand the token on."""
        hop, peer, state = arrival.hop, arrival.bench.peer, self.state
        end = hop == self.end
        state.put_back(visited=True)
        if not checked and self.to_check(hop):
            check_finite(arrival.bench)
        arrival.bench.local.visits += 1
        arrival.bench.local.in_phase += 1
        self._keep(arrival.phase, arrival.phase_hop)
        sender = self.progress.token.at
        token = state.token(hop=hop, at=peer, memory=arrival.move.memory)
        self.progress.token = token
        self.progress.transcript.add(
            Hop(
                hop=hop,
                phase=arrival.phase.name,
                phase_hop=arrival.phase_hop,
                sender=sender,
                receiver=peer,
                path=arrival.move.path,
                nbytes=arrival.nbytes * len(arrival.move.path),
                events=arrival.begun + events,
                gradients=gradients,
                digest=self._digest(token) if end or self.plan.performance.digests else None,
            )
        )

    def _begin(self, number: int, phase: Phase) -> tuple[ev.Event, ...]:
        """What happens before a phase's first visit."""
        state = self.state
        kept = number > 0 and phase.start != "token"
        if kept:
            self._start_from(phase)
        state.keep_start()
        state.kept.clear()
        begun: list[ev.Event] = []
        carried = {*state.moments, *phase.method.travels} | ({"sums"} if state.sums else set())
        travels = (*map(buffer_name, sorted(state.buffers)), *sorted(carried))
        if phase.reset_optimizer:
            state.moments.clear()
            state.optimizer_steps = 0
            begun.append(ev.Wipe("optimizer"))
        start = "initial" if number == 0 else phase.start
        hop = phase.start_hop if kept else None
        return (ev.Start(phase.name, start, phase.carries_forgotten, travels, hop), *begun)

    def _start_from(self, phase: Phase) -> None:
        """Replace the token by the initial model, or by what the forgetting peer kept."""
        progress, state = self.progress, self.state
        token = progress.token
        if phase.start == "initial":
            state.begin_anew()
            progress.token = state.token(hop=token.hop, at=token.at, memory={})
            return
        kept = progress.arrivals[phase.start_hop or 0]
        state.load(kept.token)
        progress.locals = {peer: local.copy() for peer, local in kept.locals.items()}
        progress.token = state.token(hop=token.hop, at=self.plan.unlearner, memory={})

    def _keep_arrival(self, hop: int, peer: int) -> None:
        """Keep the forgetting peer's copy of the token as it arrived."""
        progress, keeps = self.progress, self.plan.keeps
        if keeps == "none" or peer != self.plan.unlearner:
            return
        if keeps == "first" and progress.arrivals:
            return
        token = self.state.token(hop=progress.token.hop, at=progress.token.at, memory={})
        locals_ = {other: local.copy() for other, local in progress.locals.items()}
        progress.arrivals[hop] = Kept(token.clone(), locals_)

    def _digest(self, token: Token) -> str:
        return token.digest(self.plan.salt)

    def _keep(self, phase: Phase, phase_hop: int) -> None:
        """Maintain the iterate that is the phase's result."""
        state = self.state
        if phase.keep == "average":
            mean = state.kept.setdefault("average", torch.zeros_like(state.parameters))
            mean.lerp_(state.parameters, 1.0 / phase_hop)
        elif phase.keep == "random" and phase_hop == kept_from(self.plan, phase):
            state.kept["random"] = state.parameters.clone()
        if phase_hop == phase.hops:
            if phase.keep != "last":
                state.parameters.copy_(state.kept[phase.keep])
            state.kept.clear()

    def shard(self, peer: int) -> Shard:
        """A peer's records prepared for steps; the same object as long as they do not change."""
        if peer not in self.shards:
            self.shards[peer] = self.plan.task.shard(peer).to(self.state.device)
        given, (known, ready) = self.shards[peer], self.ready.get(peer, (None, None))
        if ready is None or known is not given:
            ready = prepared(given, self.head, self.plan, self.state.parameters)
            self.ready[peer] = (given, ready)
        return ready


def kept_from(plan: Plan, phase: Phase) -> int:
    """The visit of a phase from which on its token holds another iterate beside the last one.

    It is the result once the last visit is done.  Where the last iterate is the result, none is.
    """
    if phase.keep == "random":
        return 1 + int(plan.seeds.numpy(phase.name, "iterate").integers(phase.hops))
    return 1 if phase.keep == "average" else phase.hops


def buffer_name(name: str) -> str:
    """A buffer's name in the log, distinct from names of moments and sums."""
    return f"buffer.{name}" if name in (*ev.MOMENTS, "sums") else name
