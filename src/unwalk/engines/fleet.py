"""The fleet engine: many independent walks in lock-step, as one batched program.

Walk k is row k of a parameter matrix.  At every hop each walk draws its own route, batches and
noise exactly as the in-process engine would, most of them at once
(:mod:`unwalk.engines.fleet_hops`); the gradient steps of all walks are then taken together.
Visits that differ in length are padded and masked: a walk whose visit is over waits.  Rounding
differs from the in-process engine's (sums are taken in another order), nothing else.

All plans must train the same architecture.  Dropout draws one mask for the whole fleet from the
first walk's generator, so a model with dropout agrees with the in-process engine in distribution
only.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.errors import InvalidInput
from unwalk.core.outside import staying, travelling
from unwalk.core.plan import Onlooker, Outcome, Plan, Progress, Resume, Sink
from unwalk.core.program import Distil, Edit, Hold, Op, Project, Steps
from unwalk.core.token import State, Token, Workspace, architecture, build_model
from unwalk.engines.edits import hold_all
from unwalk.engines.execute import (
    Bench,
    check_finite,
    check_start,
    execute,
    head_of,
    planned_events,
    to_device,
)
from unwalk.engines.fleet_gradients import BatchedGradient
from unwalk.engines.fleet_hops import DrawnVisits, Hops, Numbers, project_all
from unwalk.engines.fleet_steps import LockStep, Order, settings
from unwalk.engines.inprocess import CHECKED_EVERY, Arrival, Walk

FEW = 8
"""Walks below which hops are not drawn together: one by one takes no longer."""


class Fleet:
    """Carries up to ``size`` walks at a time.

    Where at least ``few`` of them take the same route, they draw their hops together.
    """

    name = "fleet"
    together = True

    def __init__(self, size: int = 1024, few: int = FEW) -> None:
        self.size = size
        self.few = few

    def run(
        self, plans: Sequence[Plan], sink: Sink | None = None, resume: Resume | None = None
    ) -> Iterator[Outcome]:
        """Carry out the plans, ``size`` at a time; outcomes come in the order of the plans."""
        for first in range(0, len(plans), self.size):
            numbers = range(first, min(first + self.size, len(plans)))
            begun = [(resume or {}).get(n) for n in numbers]
            convoy = _Convoy([plans[n] for n in numbers], begun, self.few)
            convoy.walk(sink, first)
            yield from convoy.outcomes()


class _Convoy:
    """A group of walks that advance together."""

    def __init__(self, plans: list[Plan], resume: list[Progress | None], few: int) -> None:
        self.plans = plans
        speed = plans[0].performance
        torch.set_num_threads(speed.threads)
        device = torch.device(speed.device)
        shown = build_model(plans[0].task.model, 0)
        self.kind = architecture(shown)
        self.show = Workspace(shown, device)
        flat: list[torch.Tensor] = []
        buffers: dict[str, list[torch.Tensor]] = {name: [] for name in self.show.buffers}
        heads = []
        for number, plan in enumerate(plans):
            model = build_model(plan.task.model, plan.seeds.integer("model"))
            self._check_model(number, model)
            heads.append(head_of(plan, model))
            flat.append(
                parameters_to_vector(p.detach() for p in model.parameters() if p.requires_grad)
            )
            check_start(plan, flat[-1])
            for name, buffer in travelling(model).items():
                buffers[name].append(buffer)
        self.parameters = torch.stack(flat).to(device)
        self.buffers = {name: torch.stack(many).to(device) for name, many in buffers.items()}
        self.walks = [
            Walk(plan, self._state(row), progress, heads[row])
            for row, (plan, progress) in enumerate(zip(plans, resume, strict=True))
        ]
        shards: dict[int, dict[int, Shard]] = {}
        for walk in self.walks:  # walks on the same task share its shards on the device
            walk.shards = shards.setdefault(id(walk.plan.task), walk.shards)
        self.gradient = BatchedGradient(
            self.show.model,
            self.show.layout,
            plans[0].task.loss,
            speed.precision,
            heads[0],
        )
        self.lockstep = LockStep(self.parameters, self.buffers, self.gradient)
        self.hops = Hops(self.walks, self.lockstep, few)
        self.looks = [partial(self._look, row) for row in range(len(plans))]

    def _check_model(self, number: int, model: nn.Module) -> None:
        first, loss = self.plans[0].task.loss, self.plans[number].task.loss
        if architecture(model) != self.kind or loss != first:
            raise InvalidInput(
                f"plan {number} trains another model or loss than plan 0; "
                "a fleet trains one architecture."
            )
        for one, other in zip(staying(model), staying(self.show.model), strict=True):
            if not torch.equal(one, other.to(one.device)):
                raise InvalidInput(
                    f"plan {number} has parameters that are not trained and that its seed drew; "
                    "a fleet has one set of them: use the in-process engine."
                )

    def _state(self, row: int) -> State:
        buffers = {name: many[row] for name, many in self.buffers.items()}
        return State(self.show.layout, self.parameters[row], buffers)

    def walk(self, sink: Sink | None, first: int) -> None:
        """Carry the walks hop by hop until all have ended."""
        cuda = [self.parameters.device] if self.parameters.is_cuda else []
        with torch.random.fork_rng(devices=cuda), ExitStack() as stack:
            gc.freeze()  # so that garbage collection does not scan existing objects each time
            stack.callback(gc.unfreeze)
            while (rows := self.hops.under_way()).size:
                drawn, moves = self.hops.draw(rows)
                alone = self._alone(rows, drawn)
                told = rows.tolist()
                if isinstance(sink, Onlooker):
                    self._tell(sink, first, drawn, alone)
                    told = alone
                arrivals = {
                    r: self.walks[r].arrive(int(self.hops.hop[r]) + 1, None, moves.get(r))
                    for r in alone
                }
                self._seed(int(rows[0]), arrivals)
                self.hops.take(drawn)
                events, gradients = self._visit(arrivals) if arrivals else ({}, {})
                self.gradient.put_back()
                self._check_finite(arrivals, drawn)
                for row, arrival in arrivals.items():
                    self.walks[row].depart(
                        arrival, tuple(events[row]), gradients[row], checked=True
                    )
                    self.hops.note(row)
                if sink is not None:
                    for row in told:
                        sink.after(first + row, self.hops.progress[row], self.looks[row])

    def _tell(
        self, sink: Onlooker, first: int, drawn: Sequence[DrawnVisits], alone: Sequence[int]
    ) -> None:
        """Tell of a hop before it is made."""

        def token(number: int) -> Token:
            return self.walks[number - first].state.token(hop=0, at=-1, memory={})

        for visits in drawn:
            rows = visits.rows
            hops, at = self.hops.hop[rows] + 1, self.hops.at[rows]
            sink.sent(first + rows, hops, at, visits.receivers, token)
        for row in alone:
            sink.before(first + row, self.hops.progress[row])

    @staticmethod
    def _alone(rows: Numbers, drawn: Sequence[DrawnVisits]) -> list[int]:
        """Walks whose visits are walked one by one."""
        alone = np.ones(rows[-1] + 1, bool)
        for visits in drawn:
            alone[visits.rows] = False
        left: list[int] = rows[alone[rows]].tolist()
        return left

    def _seed(self, first: int, arrivals: dict[int, Arrival]) -> None:
        """Seed augmentation, and dropout, for which the first walk's seed comes last."""
        for row, arrival in arrivals.items():
            if row != first and arrival.bench.shard.augment is not None:
                self.walks[row].seed(arrival)
        walk, hop = self.walks[first], int(self.hops.hop[first]) + 1
        number, phase_hop = walk.plan.phase_of(hop)
        walk.seed_at(walk.plan.phases[number], phase_hop)

    def _check_finite(self, arrivals: dict[int, Arrival], drawn: Sequence[DrawnVisits]) -> None:
        """Check all walks at once, and one by one only if that fails."""
        due = any(self.walks[row].to_check(arrival.hop) for row, arrival in arrivals.items())
        due = due or not self.parameters.is_cuda
        for visits in drawn:
            due = due or bool((self.hops.hop[visits.rows] % CHECKED_EVERY == 0).any())
        if due and not bool(torch.isfinite(self.parameters.sum(1)).all()):
            self.hops.check_finite(drawn)
            for arrival in arrivals.values():
                check_finite(arrival.bench)

    def _visit(
        self, arrivals: dict[int, Arrival]
    ) -> tuple[dict[int, list[ev.Event]], dict[int, int]]:
        """Run the programs position by position: gradient steps together, the rest one by one."""
        events: dict[int, list[ev.Event]] = {row: [] for row in arrivals}
        gradients = dict.fromkeys(arrivals, 0)
        for place in range(max(len(a.program) for a in arrivals.values())):
            orders: dict[tuple[object, ...], Order] = {}
            changes: dict[Project | None, list[int]] = {}
            for row, arrival in arrivals.items():
                if place >= len(arrival.program):
                    continue
                op, bench = arrival.program[place], arrival.bench
                origin, dtype = bench.noise.origin, self.parameters.dtype
                if (steps := self._batched(op)) is not None:
                    soft = op if isinstance(op, Distil) else None
                    key = (*settings(steps, origin), soft and soft.key)
                    if key not in orders:
                        (event,) = planned_events((op,), origin, dtype)
                        orders[key] = Order(steps, event, soft)
                    order = orders[key]
                    order.party[row] = (steps, bench)
                    events[row].append(order.event)
                    gradients[row] += steps.gradients
                elif isinstance(op, Project | Hold):
                    if isinstance(op, Project) or "mask" in bench.work.moments:
                        changes.setdefault(op if isinstance(op, Project) else None, []).append(row)
                    events[row] += planned_events((op,), origin, dtype)
                else:
                    happened, taken = self._run_one(op, bench)
                    events[row].extend(happened)
                    gradients[row] += taken
            for project, rows in changes.items():
                states = [self.walks[row].state for row in rows]
                at = to_device(torch.tensor(rows), self.parameters.device)
                theta = self.parameters[at]
                self.parameters[at] = (
                    hold_all(theta, states)
                    if project is None
                    else project_all(theta, states, project.balls)
                )
            if orders:
                self.lockstep.run(orders.values())
        return events, gradients

    def _batched(self, op: Op) -> Steps | None:
        """The steps of an operation that many walks take together; None: each by itself."""
        if isinstance(op, Distil):
            alone = self.gradient.mixes_rows or self.gradient.given_loss is not None
            return None if alone or op.steps.rounded else op.steps
        return op if isinstance(op, Steps) and not op.rounded else None

    def _run_one(self, op: Op, bench: Bench) -> tuple[tuple[ev.Event, ...], int]:
        """Run one operation of one walk, on the one workspace with a model if it needs that."""
        if not (isinstance(op, Steps) or (isinstance(op, Edit) and op.modelled)):
            return execute((op,), bench)
        state, show = bench.work, self.show
        show.put_back()
        show.load(state.token(hop=0, at=-1, memory={}))
        own, show.anchors = show.anchors, state.anchors
        try:
            show.model.train()
            shown = replace(bench, work=show)
            done = execute((op,), shown)
            bench.draws = shown.draws
        finally:
            show.anchors = own
        state.parameters.copy_(show.parameters)
        for name, buffer in state.buffers.items():
            buffer.copy_(show.buffers[name])
        state.moments = {name: moment.clone() for name, moment in show.moments.items()}
        state.optimizer_steps = show.optimizer_steps
        return done

    def _look(self, row: int) -> Workspace:
        """The one workspace with a model, showing this walk."""
        self.show.put_back()
        self.show.load(self.walks[row].progress.token)
        return self.show

    def outcomes(self) -> Iterator[Outcome]:
        """One outcome per plan; they share one workspace, which shows the walk last looked at."""
        for row, walk in enumerate(self.walks):
            yield Outcome(walk.plan, walk.progress, self.looks[row])
