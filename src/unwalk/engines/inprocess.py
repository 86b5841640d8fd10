"""The reference engine: one process, one walk after the other, bit for bit repeatable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.plan import Local, Outcome, Phase, Plan, Progress, Sink
from unwalk.core.program import Visit
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.workspace import Workspace, build_model
from unwalk.engines.execute import Bench, execute


class InProcess:
    """Carries the token itself, visit after visit."""

    name = "inprocess"

    def run(
        self,
        plans: Sequence[Plan],
        sink: Sink | None = None,
        resume: Mapping[int, Progress] | None = None,
    ) -> Iterator[Outcome]:
        """Carry out the plans in order, each from its ``resume`` point if it has one."""
        for index, plan in enumerate(plans):
            start = (resume or {}).get(index)
            yield _Walk(plan, start).finish(index, sink)


class _Walk:
    """One plan under way."""

    def __init__(self, plan: Plan, resume: Progress | None) -> None:
        self.plan = plan
        torch.set_num_threads(plan.performance.threads)
        device = torch.device(plan.performance.device)
        model = build_model(plan.task.model, plan.seeds.integer("model"))
        self.work = Workspace(model, device)
        self.shards: dict[int, Shard] = {}
        self.generator = torch.Generator(device=device)
        if resume is None:
            token = self.work.token(hop=0, at=-1, memory={})
            self.progress = Progress(token, {}, self.work.anchors, Transcript(plan.header()))
        else:
            self.work.load(resume.token)
            self.work.anchors.update({k: v.to(device) for k, v in resume.anchors.items()})
            self.progress = Progress(
                resume.token, resume.locals, self.work.anchors, resume.transcript
            )

    def finish(self, index: int, sink: Sink | None) -> Outcome:
        with torch.random.fork_rng(devices=self._cuda()):
            for hop in range(self.progress.token.hop + 1, self.plan.hops + 1):
                self._hop(hop)
                if sink is not None:
                    sink.after(index, self.work, self.progress)
        return Outcome(self.plan, self.progress, self.work)

    def _cuda(self) -> list[torch.device]:
        return [self.work.device] if self.work.device.type == "cuda" else []

    def _hop(self, hop: int) -> None:
        plan, work, token = self.plan, self.work, self.progress.token
        number, phase_hop = plan.phase_of(hop)
        phase = plan.phases[number]
        begun = self._begin(number, phase) if phase_hop == 1 else ()
        memory = {} if phase_hop == 1 else token.memory
        moved = token.nbytes

        move = phase.route.next(
            plan.graph, token.at, memory, plan.seeds.numpy(phase.name, "route", phase_hop)
        )
        peer = move.receiver
        local = self.progress.locals.setdefault(peer, Local())
        shard = self._shard(peer)
        visit = Visit(
            hop=hop,
            phase_hop=phase_hop,
            peer=peer,
            at_unlearner=peer == plan.unlearner,
            earlier_visits=local.visits,
            records=shard.records,
            rng=plan.seeds.numpy(phase.name, "batches", phase_hop),
        )
        program = phase.method.visit(visit)

        self._seed(plan.seeds.integer(phase.name, "torch", phase_hop))
        work.model.train()
        bench = Bench(
            work=work,
            shard=shard,
            local=local,
            noise=plan.noise,
            loss=plan.task.loss,
            hop=hop,
            peer=peer,
            generator=self.generator,
            digest=token.digest() if plan.noise.needs_digest else None,
        )
        events, gradients = execute(program, bench)
        local.visits += 1
        self._keep(phase, phase_hop)

        last = hop == plan.hops or plan.performance.digests
        after = work.token(hop=hop, at=peer, memory=move.memory)
        self.progress.token = after
        self.progress.transcript.add(
            Hop(
                hop=hop,
                phase=phase.name,
                phase_hop=phase_hop,
                sender=token.at,
                receiver=peer,
                path=move.path,
                nbytes=moved * len(move.path),
                events=begun + events,
                gradients=gradients,
                digest=after.digest() if last else None,
            )
        )

    def _seed(self, seed: int) -> None:
        """Seed what a visit draws from: augmentation, and torch's global generators (dropout).

        ``torch.manual_seed`` would do, but it writes a stack trace for every kind of device that
        is not in use, which takes longer than all the rest of a hop's bookkeeping.
        """
        self.generator.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
        if self.work.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

    def _begin(self, number: int, phase: Phase) -> tuple[ev.Event, ...]:
        """What happens before a phase's first visit."""
        work = self.work
        work.anchors["start"] = work.parameters.clone()
        work.kept.clear()
        begun: list[ev.Event] = []
        if phase.reset_optimizer:
            work.moments.clear()
            work.optimizer_steps = 0
            begun.append(ev.Wipe("optimizer"))
        travels = (*sorted(work.buffers), *phase.method.travels)
        start = "initial" if number == 0 else "token"
        return (ev.Start(phase.name, start, phase.carries_forgotten, travels), *begun)

    def _keep(self, phase: Phase, phase_hop: int) -> None:
        """Maintain the iterate that is the phase's result."""
        work = self.work
        if phase.keep == "average":
            mean = work.kept.setdefault("average", torch.zeros_like(work.parameters))
            mean.lerp_(work.parameters, 1.0 / phase_hop)
        elif phase.keep == "random":
            chosen = 1 + int(self.plan.seeds.numpy(phase.name, "iterate").integers(phase.hops))
            if phase_hop == chosen:
                work.kept["random"] = work.parameters.clone()
        if phase_hop == phase.hops and work.kept:
            (result,) = work.kept.values()
            work.parameters.copy_(result)
            work.kept.clear()

    def _shard(self, peer: int) -> Shard:
        if peer not in self.shards:
            self.shards[peer] = self.plan.task.shard(peer).to(self.work.device)
        return self.shards[peer]
