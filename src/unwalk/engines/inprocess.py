"""The reference engine: one process, one walk after the other, repeatable bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from unwalk.core.outside import renewed
from unwalk.core.plan import Outcome, Plan, Progress, Resume, Sink
from unwalk.core.token import Workspace, build_model
from unwalk.engines.cuda import executor_for
from unwalk.engines.execute import execute
from unwalk.engines.walk import Walk


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
