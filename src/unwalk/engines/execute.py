"""Runs the program of one visit on one workspace; defines the meaning of every operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.errors import Diverged
from unwalk.core.noise import NoiseSource
from unwalk.core.plan import Local, Loss
from unwalk.core.program import (
    AddNoise,
    Ball,
    Forget,
    Program,
    Project,
    ReplaceSums,
    StepRule,
    Steps,
)
from unwalk.core.rounding import grid_for, onto_ball
from unwalk.core.token import State, Workspace
from unwalk.engines.linear import BareLinear
from unwalk.engines.per_example import add_clipped
from unwalk.engines.sums import replace_sums


class StepExecutor(Protocol):
    """A device's own implementation of steps, used instead of the reference."""

    def can_run(self, op: Steps) -> bool:
        """Whether it can take such steps."""

    def run(
        self,
        op: Steps,
        x: torch.Tensor,
        y: torch.Tensor,
        moments: dict[str, torch.Tensor],
        counter: int,
        normals: Callable[[], torch.Tensor],
    ) -> None:
        """Take all steps of ``op`` on ``x`` and ``y`` of (steps, minibatches, size, ...)."""


@dataclass(eq=False)
class Bench:
    """The state that a visit works on, besides its program."""

    work: State
    shard: Shard
    local: Local
    noise: NoiseSource
    loss: Loss | None
    hop: int
    peer: int
    generator: torch.Generator
    digest: str | None = None
    executor: StepExecutor | None = None
    head: BareLinear | None = None
    draws: int = 0

    def normals(self) -> torch.Tensor:
        """The next vector of secret standard normals."""
        flat = self.work.parameters
        drawn = self.noise.draw(flat, hop=self.hop, step=self.draws, digest=self.digest)
        self.draws += 1
        return drawn

    def release(self, values: torch.Tensor, std: float, grid: float) -> ev.Draw | None:
        """Replace ``values`` by their rounded sum with secret noise."""
        rounded, draw = self.noise.release(
            values.detach().cpu().numpy(),
            std=std,
            grid=grid,
            peer=self.peer,
            hop=self.hop,
            step=self.draws,
        )
        self.draws += 1
        values.copy_(torch.from_numpy(rounded))
        return draw


def execute(program: Program, bench: Bench) -> tuple[tuple[ev.Event, ...], int]:
    """Run ``program``; returns its events and the number of gradient evaluations."""
    happened: list[ev.Event] = []
    gradients = 0
    for op in program:
        match op:
            case Steps():
                _steps(op, bench)
                gradients += op.gradients
                happened.append(steps_event(op, bench.noise.origin, bench.work.parameters.dtype))
            case AddNoise():
                happened.append(_add_noise(op, bench))
            case Project():
                project(bench.work, op.balls)
                happened.append(ev.Projection(tuple((b.centre, b.radius) for b in op.balls)))
            case Forget():
                _forget(op.what, bench)
                happened.append(ev.Wipe(op.what))
            case ReplaceSums():
                replace_sums(op, bench.work, bench.shard, bench.local)
                happened.append(ev.OwnSums(op.data, op.touched, op.bits, op.strength))
    return tuple(happened), gradients


def _add_noise(op: AddNoise, bench: Bench) -> ev.GaussianNoise:
    """Add noise to the parameters, rounded to its grid unless the method gives no guarantee."""
    theta, grid, draw = bench.work.parameters, None, None
    if not op.rounded:
        theta.add_(bench.normals(), alpha=op.std)
    elif op.std > 0.0:
        grid = grid_for(op.std, theta.dtype)
        draw = bench.release(theta, op.std, grid)
    return ev.GaussianNoise(op.std, op.sensitivity, bench.noise.origin, grid, draw)


def check_finite(bench: Bench) -> None:
    """Refuse to hand on parameters that are not finite."""
    if not torch.isfinite(bench.work.parameters.sum()):
        raise Diverged(
            f"hop {bench.hop} at peer {bench.peer} left parameters that are not finite; "
            "a smaller learning rate or a clip usually helps."
        )


def steps_event(op: Steps, origin: str, dtype: torch.dtype) -> ev.GradientSteps:
    """The event of these steps for parameters of a type, which determines the noise's grid."""
    return op.event(origin, grid_for(op.noise, dtype) if op.rounded and op.noise else None)


def _steps(op: Steps, bench: Bench) -> None:
    work, steps = bench.work, op.batches.shape[0]
    assert isinstance(work, Workspace)
    moments, counter = moments_of(op.rule, bench)
    flat = to_device(torch.from_numpy(np.ascontiguousarray(op.batches.reshape(-1))), work.device)
    if op.weights is None:
        x, y = bench.shard.take(flat, bench.generator)
        xs, ys = x.view(*op.batches.shape, *x.shape[1:]), y.view(*op.batches.shape, *y.shape[1:])
        if bench.executor is not None and not op.rounded and bench.executor.can_run(op):
            bench.executor.run(op, xs, ys, moments, counter, bench.normals)
            _count(op, bench, counter + steps)
            return
    for step in range(steps):
        work.gradient.zero_()
        if op.weights is not None:
            _weighted_gradient(bench, work, op, step)
        elif op.clip_per_example is not None:
            x, y = xs[step].flatten(0, 1), ys[step].flatten(0, 1)
            add_clipped(work, x, y, bound=op.clip_per_example, loss=bench.loss)
        else:
            _mean_gradient(bench, work, xs[step], ys[step])
        _shape_gradient(op, bench, work.gradient)
        counter += 1
        apply_rule(op, work.parameters, work.gradient, moments, counter)
    _count(op, bench, counter)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to the device, without waiting for earlier work."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _count(op: Steps, bench: Bench, counter: int) -> None:
    """Remember how many steps the moments have seen."""
    if op.rule.state == "carried":
        bench.work.optimizer_steps = counter
    elif op.rule.state == "local":
        bench.local.optimizer_steps = counter


def moments_of(rule: StepRule, bench: Bench) -> tuple[dict[str, torch.Tensor], int]:
    """The moment vectors a rule works on, and how many steps they have seen."""
    if rule.state == "fresh" or not rule.slots:
        held: dict[str, torch.Tensor] = {}
        counter = 0
    elif rule.state == "local":
        held, counter = bench.local.moments, bench.local.optimizer_steps
    else:
        held, counter = bench.work.moments, bench.work.optimizer_steps
    for slot in rule.slots:
        if slot not in held:
            held[slot] = torch.zeros_like(bench.work.parameters)
    return held, counter


def _mean_gradient(bench: Bench, work: Workspace, x: torch.Tensor, y: torch.Tensor) -> None:
    minibatches = x.shape[0]
    for part in range(minibatches):
        output = work.model(x[part])
        if bench.loss is None:
            loss = functional.cross_entropy(output, y[part])
        else:
            loss = bench.loss(output, y[part]).mean()
        if minibatches > 1:
            loss = loss / minibatches
        loss.backward()


def _weighted_gradient(bench: Bench, work: Workspace, op: Steps, step: int) -> None:
    assert op.weights is not None
    for rows, weight in zip(op.batches[step], op.weights[step], strict=True):
        present = rows >= 0
        index = torch.from_numpy(rows[present]).to(work.device)
        x, y = bench.shard.take(index, bench.generator)
        if op.clip_per_example is not None:
            share = torch.from_numpy(weight[present]).to(x.device)
            add_clipped(work, x, y, bound=op.clip_per_example, loss=bench.loss, weights=share)
            continue
        if bench.head is not None:
            share = torch.from_numpy(weight[present]).to(work.gradient)
            work.gradient.add_(bench.head.gradient(work.parameters, x, y, share))
            continue
        output = work.model(x)
        if bench.loss is None:
            losses = functional.cross_entropy(output, y, reduction="none")
        else:
            losses = bench.loss(output, y)
        scale = torch.from_numpy(weight[present]).to(losses)
        (losses * scale).sum().backward()


def _shape_gradient(op: Steps, bench: Bench, gradient: torch.Tensor) -> None:
    if op.scale != 1.0:
        gradient.mul_(op.scale)
    if op.clip is not None and op.rounded:
        gradient.copy_(onto_ball(gradient, None, op.clip))
    elif op.clip is not None:
        gradient.mul_((op.clip / (gradient.norm() + 1e-12)).clamp(max=1.0))
    if op.noise and op.rounded:
        bench.release(gradient, op.noise, grid_for(op.noise, gradient.dtype))
    elif op.noise:
        gradient.add_(bench.normals(), alpha=op.noise)


def apply_rule(
    op: Steps,
    parameters: torch.Tensor,
    gradient: torch.Tensor,
    moments: dict[str, torch.Tensor],
    counter: int,
) -> None:
    """One optimizer step in place; ``counter`` is 1 for the first step of these moments."""
    rule, eta = op.rule, op.step_size
    if op.direction > 0:
        gradient.neg_()
    if rule.weight_decay:
        gradient.add_(parameters, alpha=rule.weight_decay)
    if rule.optimizer == "sgd":
        parameters.add_(gradient, alpha=-eta)
    elif rule.optimizer == "momentum":
        velocity = moments["momentum"]
        velocity.mul_(rule.momentum).add_(gradient)
        parameters.add_(velocity, alpha=-eta)
    else:
        first, second = rule.betas
        mean, square = moments["mean"], moments["square"]
        mean.lerp_(gradient, 1.0 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        size = eta / (1.0 - first**counter)
        root = square.div(1.0 - second**counter).sqrt_().add_(rule.damping)
        parameters.addcdiv_(mean, root, value=-size)


def project(work: State, balls: tuple[Ball, ...]) -> None:
    r"""Euclidean projection on one ball, or on the intersection of two.

    One ball: :math:`c + (\theta - c)\min(1, r/\|\theta-c\|)`, computed so that the result lies in
    the ball as real numbers.  Two: if the projection on one lies in the other it is the answer;
    otherwise the answer lies where both spheres meet, at height
    :math:`h = (D^2 + r_1^2 - r_2^2)/2D` from the first centre along the line of centres.
    """
    theta = work.parameters
    centres = [work.anchor(b.centre) for b in balls]
    if len(balls) == 1:
        theta.copy_(onto_ball(theta, centres[0], balls[0].radius))
        return
    (c1, c2), (r1, r2) = centres, (balls[0].radius, balls[1].radius)
    zero = torch.zeros_like(theta)
    c1, c2 = (zero if c is None else c for c in (c1, c2))
    slack = 1.0 + 1e-6
    for near, far, radius, other in ((c1, c2, r1, r2), (c2, c1, r2, r1)):
        projected = onto_ball(theta, near, radius)
        if (projected - far).norm() <= other * slack:
            theta.copy_(projected)
            return
    axis = c2 - c1
    distance = float(axis.norm())
    if distance > r1 + r2:
        raise Diverged(
            f"the feasible ball (radius {r1:g}) and the trust ball (radius {r2:g}) do not meet: "
            f"their centres are {distance:g} apart."
        )
    axis = axis / distance
    height = (distance**2 + r1**2 - r2**2) / (2.0 * distance)
    ring = max(r1**2 - height**2, 0.0) ** 0.5
    out = theta - c1
    across = out - torch.dot(out, axis) * axis
    theta.copy_(c1 + height * axis + ring * across / across.norm().clamp_min(1e-30))


def _forget(what: str, bench: Bench) -> None:
    if what == "optimizer":
        bench.work.moments.clear()
        bench.work.optimizer_steps = 0
    elif what == "buffers":
        for name, buffer in bench.work.buffers.items():
            buffer.copy_(bench.work.initial_buffers[name])
    else:
        bench.local.moments.clear()
        bench.local.sums.clear()
        bench.local.optimizer_steps = 0
