"""Chooses the engine for each plan: a fleet where that is possible and faster, else one by one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from unwalk.core.plan import Engine, Plan
from unwalk.core.program import Steps, Visit
from unwalk.core.token import architecture, build_model
from unwalk.engines.fleet import Fleet
from unwalk.engines.fleet_gradients import plain_convolution
from unwalk.engines.fleet_steps import OPTIMIZERS
from unwalk.engines.inprocess import InProcess
from unwalk.engines.ray_engine import Ray

LARGEST = 500_000
"""The number of parameters up to which ``auto`` takes a fleet; chosen, not measured."""

Carriers = list[tuple[Engine, Sequence[int]]]
"""Engines with the numbers of the plans that they carry."""


def carriers(plans: Sequence[Plan], choice: str) -> Carriers:
    """Engines for plans by a name of :data:`unwalk.core.plan.ENGINES`.

    A fleet has plans of one architecture.  ``auto`` takes fleets on a CUDA device, for small models
    of which there are several.  On a CPU a single walk already uses its core fully, and batched
    convolutions are slower.
    """
    if choice == "inprocess" or (choice == "auto" and len(plans) < 2):
        return [(InProcess(), range(len(plans)))]
    if choice == "ray":
        return [(Ray(), range(len(plans)))]
    groups: dict[tuple[object, ...], list[int]] = {}
    alone: list[int] = []
    models: dict[int, nn.Module] = {}
    for number, plan in enumerate(plans):
        if id(plan.task) not in models:
            models[id(plan.task)] = build_model(plan.task.model, 0)
        model = models[id(plan.task)]
        if choice == "auto" and not (worthwhile(plan, model) and carries(plan, model)):
            alone.append(number)
        else:
            key = (architecture(model), plan.task.loss, plan.performance)
            groups.setdefault(key, []).append(number)
    if choice == "auto":
        alone += [n for group in groups.values() if len(group) < 2 for n in group]
        groups = {key: group for key, group in groups.items() if len(group) > 1}
    fleets: Carriers = [(Fleet(), group) for group in groups.values()]
    return [*fleets, *([(InProcess(), sorted(alone))] if alone else [])]


def goes_together(plans: Sequence[Plan], choice: str) -> bool:
    """Whether a fleet would carry some of these plans."""
    return any(engine.together for engine, numbers in carriers(plans, choice) if numbers)


def worthwhile(plan: Plan, model: nn.Module) -> bool:
    """Whether walks of this kind are faster together than one after the other."""
    size = sum(p.numel() for p in model.parameters())
    return plan.performance.device.startswith("cuda") and size <= LARGEST


def carries(plan: Plan, model: nn.Module) -> bool:
    """Whether a fleet can carry a plan.

    Convolutions must be plain, and optimizers known to fleets.  Where batch normalisation mixes
    the rows of a batch, every visit needs plain minibatches.  The plan's methods are asked for a
    visit to the forgetting peer and one to another.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not plain_convolution(module):
            return False
    steps = [
        op
        for phase in plan.phases
        for peer in {max(plan.unlearner, 0), plan.graph.peers - 1}
        for op in phase.method.visit(_visit(plan, peer))
        if isinstance(op, Steps)
    ]
    if not all(op.rule.optimizer in OPTIMIZERS for op in steps):
        return False
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return True
    return all(
        op.weights is None and op.batches.shape[1] == 1 and op.clip_per_example is None
        for op in steps
    )


def _visit(plan: Plan, peer: int) -> Visit:
    """A first visit, with its own random numbers."""
    return Visit(
        hop=1,
        phase_hop=1,
        peer=peer,
        at_unlearner=peer == plan.unlearner,
        records=plan.task.records(peer),
        rng=plan.seeds.stream("choice of an engine", "batches", peer),
    )
