r"""Runs the program of one visit on one workspace; defines the meaning of every operation.

**Steps on a bare linear layer.**  Guarantees of the stability ledger depend on the exact
computation, including its rounding.  A module of PyTorch may carry hooks, parametrizations or a
replaced ``forward``, so steps on slots of a bare linear layer do not call it: logits, residuals
(:mod:`unwalk.core.losses`) and weighted outer products are written out in :class:`BareLinear`, and
the module is only asked which parameters it has.

**Sums of data in fixed point.**  A peer's contribution is :math:`A_v = \sum_i x_i x_i^T` and
:math:`B_v = \sum_i x_i y_i^T` (classes one-hot), computed in 64-bit floating point and rounded to
whole multiples of :math:`2^{-b}`.  The token carries their totals as whole numbers, so that adding
a contribution and taking it away again is exact in any order: the triangle of :math:`A`, in as many
bits as public bounds say that its entries can need (:mod:`unwalk.core.packing`).  The model is
the ridge head

.. math:: W = (A + \lambda I)^{-1} B,

a function of the totals alone: once a peer has replaced its old sums by new ones, nothing is left
of the removed records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from unwalk.core import events as ev
from unwalk.core.data import Shard
from unwalk.core.errors import Corrupt, Diverged, InvalidInput
from unwalk.core.losses import Binary, BuiltIn, Huber, is_built_in, regressed, softmax_residual
from unwalk.core.noise import NoiseSource
from unwalk.core.packing import from_triangle, packed, size_of, triangle, unpacked
from unwalk.core.plan import Local, Loss, Plan
from unwalk.core.program import (
    AddNoise,
    Ball,
    Distil,
    Edit,
    Forget,
    Program,
    Project,
    ReplaceSums,
    StepRule,
    Steps,
)
from unwalk.core.rounding import grid_for, length, onto_ball
from unwalk.core.token import MOST_STEPS, State, Workspace
from unwalk.engines.cuda import CapturedSteps
from unwalk.engines.edits import edit, soft_targets
from unwalk.engines.per_example import Batch, add_clipped, exact_sum


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
    executor: CapturedSteps | None = None
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
    planned = planned_events(program, bench.noise.origin, bench.work.parameters.dtype)
    for op, event in zip(program, planned, strict=True):
        match op:
            case Steps():
                assert isinstance(event, ev.GradientSteps)
                event = replace(event, draw=_steps(op, bench))
                gradients += op.gradients
            case AddNoise():
                assert isinstance(event, ev.GaussianNoise)
                event = replace(event, draw=_add_noise(op, bench))
            case Project():
                project(bench.work, op.balls)
            case Forget():
                _forget(op.what, bench)
            case ReplaceSums():
                replace_sums(op, bench.work, bench.shard, bench.local)
            case Distil():
                _steps(op.steps, bench, op)
                gradients += op.gradients
            case Edit():
                edit(op, bench.work, bench.shard, bench.local, bench.loss)
                gradients += op.gradients
        happened.append(event)
    return tuple(happened), gradients


def planned_events(program: Program, origin: str, dtype: torch.dtype) -> tuple[ev.Event, ...]:
    """The events of ``program`` without running it: noise is not drawn."""
    planned: list[ev.Event] = []
    for op in program:
        match op:
            case Steps():
                planned.append(steps_event(op, origin, dtype))
            case AddNoise():
                grid = grid_for(op.std, dtype) if op.rounded and op.std > 0.0 else None
                planned.append(ev.GaussianNoise(op.std, op.sensitivity, origin, grid))
            case Project():
                planned.append(ev.Projection(tuple((b.centre, b.radius) for b in op.balls)))
            case Forget():
                planned.append(ev.Wipe(op.what))
            case ReplaceSums():
                planned.append(ev.OwnSums(op.data, op.touched, op.bits, op.strength))
            case Edit():
                planned.append(ev.Edited(op.what, op.data, op.touched))
    return tuple(planned)


def _add_noise(op: AddNoise, bench: Bench) -> ev.Draw | None:
    """Add noise to the parameters, rounded to its grid unless the method gives no guarantee."""
    theta = bench.work.parameters
    if not op.rounded:
        theta.add_(bench.normals(), alpha=op.std)
    elif op.std > 0.0:
        return bench.release(theta, op.std, grid_for(op.std, theta.dtype))
    return None


def check_finite(bench: Bench) -> None:
    """Refuse to hand on parameters that are not finite."""
    if not torch.isfinite(bench.work.parameters.sum()):
        raise diverged(bench.hop, bench.peer)


def diverged(hop: int, peer: int) -> Diverged:
    """The error for parameters that are not finite after a visit."""
    return Diverged(
        f"hop {hop} at peer {peer} left parameters that are not finite; "
        "a smaller learning rate or a clip usually helps."
    )


def steps_event(op: Steps, origin: str, dtype: torch.dtype) -> ev.GradientSteps:
    """The event of these steps for parameters of a type, which determines the noise's grid."""
    return op.event(origin, grid_for(op.noise, dtype) if op.rounded and op.noise else None)


def _steps(op: Steps, bench: Bench, soft: Distil | None = None) -> ev.Draw | None:
    """Take the steps; returns what :class:`unwalk.core.events.GradientSteps` says of draws."""
    work, steps = bench.work, op.batches.shape[0]
    assert isinstance(work, Workspace)
    moments, counter = moments_of(op.rule, bench)
    flat = to_device(torch.from_numpy(np.ascontiguousarray(op.batches.reshape(-1))), work.device)
    if op.weights is None:
        x, y = bench.shard.take(flat, bench.generator)
        if soft is not None:
            y = soft_targets(soft, work, x, y, bench.loss)
        xs, ys = x.view(*op.batches.shape, *x.shape[1:]), y.view(*op.batches.shape, *y.shape[1:])
        if _captured(op, bench, soft):
            assert bench.executor is not None
            bench.executor.run(op, xs, ys, moments, counter, bench.normals)
            _count(op, bench, counter + steps)
            return None
    draws: list[ev.Draw] = []
    for step in range(steps):
        gradient = work.gradient.zero_()
        if op.rounded and op.clip_per_example is not None:
            gradient = _exact_gradient(bench, work, op, step)
        elif op.weights is not None:
            _weighted_gradient(bench, work, op, step)
        elif op.clip_per_example is not None:
            x, y = xs[step].flatten(0, 1), ys[step].flatten(0, 1)
            add_clipped(work, Batch(x, y, bound=op.clip_per_example, loss=bench.loss))
        else:
            _mean_gradient(bench, work, xs[step], ys[step])
        draw = _shape_gradient(op, bench, gradient)
        if draw is not None:
            draws.append(draw)
        if gradient is not work.gradient:
            work.gradient.copy_(gradient)
        counter += 1
        apply_rule(op, work.parameters, work.gradient, moments, counter)
    _count(op, bench, counter)
    return (*draws[-1][:2], max(draw[2] for draw in draws)) if draws else None


def _captured(op: Steps, bench: Bench, soft: Distil | None) -> bool:
    """Whether captured graphs take these steps; all others are taken here."""
    if bench.executor is None or op.rounded or soft is not None:
        return False
    return bench.executor.can_run(op)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to the device, without waiting for earlier work."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _count(op: Steps, bench: Bench, counter: int) -> None:
    """Remember how many steps the moments have seen, up to :data:`MOST_STEPS`."""
    counter = min(counter, MOST_STEPS)
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
            add_clipped(
                work, Batch(x, y, bound=op.clip_per_example, loss=bench.loss, weights=share)
            )
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


def _exact_gradient(bench: Bench, work: Workspace, op: Steps, step: int) -> torch.Tensor:
    """The weighted sum of clipped gradients over all places of a batch, in 64 bits.

    An empty place holds the peer's first row, with weight 0: what is drawn for the other places
    does not depend on it, even if all of them are empty.
    """
    rows = op.batches[step].reshape(-1)
    if not len(bench.shard.x):
        return torch.zeros_like(work.gradient, dtype=torch.float64)
    at = torch.from_numpy(np.maximum(rows, 0)).to(work.device)
    x, y = bench.shard.take(at, bench.generator)
    share = None if op.weights is None else torch.from_numpy(op.weights[step].reshape(-1))
    bound = op.clip_per_example
    assert bound is not None
    return exact_sum(work, Batch(x, y, bound=bound, loss=bench.loss, weights=share))


def _shape_gradient(op: Steps, bench: Bench, gradient: torch.Tensor) -> ev.Draw | None:
    """Scale, clip and noise, in place; returns the noise's entry in the register of draws."""
    if op.scale != 1.0:
        gradient.mul_(op.scale)
    if op.clip is not None and op.rounded:
        gradient.copy_(onto_ball(gradient, None, op.clip))
    elif op.clip is not None:
        gradient.mul_((op.clip / (gradient.norm() + 1e-12)).clamp(max=1.0))
    if op.noise and op.rounded:
        return bench.release(gradient, op.noise, grid_for(op.noise, bench.work.parameters.dtype))
    if op.noise:
        gradient.add_(bench.normals(), alpha=op.noise)
    return None


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
    elif rule.optimizer == "adam":
        first, second = rule.betas
        mean, square = moments["mean"], moments["square"]
        mean.lerp_(gradient, 1.0 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        size = eta / (1.0 - first**counter)
        root = square.div(1.0 - second**counter).sqrt_().add_(rule.damping)
        parameters.addcdiv_(mean, root, value=-size)
    else:
        raise InvalidInput(
            f"optimizer is {rule.optimizer!r}, which no engine can run yet; "
            "allowed: sgd, momentum or adam."
        )


def project(work: State, balls: tuple[Ball, ...]) -> None:
    """Project a walk's parameters on the intersection of balls around its anchors."""
    theta = work.parameters
    theta.copy_(projected(theta, [(work.anchor(ball.centre), ball.radius) for ball in balls]))


def projected(
    theta: torch.Tensor, balls: Sequence[tuple[torch.Tensor | None, float]]
) -> torch.Tensor:
    r"""Euclidean projection on one ball, or on the intersection of two; each a centre (None: the
    origin) and a radius.

    One ball: :math:`c + (\theta - c)\min(1, r/\|\theta-c\|)`, computed so that the result lies in
    the ball as real numbers.  Two: if the projection on one lies in the other it is the answer;
    otherwise the answer lies where both spheres meet, at height
    :math:`h = (D^2 + r_1^2 - r_2^2)/2D` from the first centre along the line of centres.
    """
    if len(balls) == 1:
        return onto_ball(theta, *balls[0])
    (c1, r1), (c2, r2) = balls
    zero = torch.zeros_like(theta)
    c1, c2 = (zero if c is None else c for c in (c1, c2))
    slack = 1.0 + 1e-6
    for near, far, radius, other in ((c1, c2, r1, r2), (c2, c1, r2, r1)):
        nearest = onto_ball(theta, near, radius)
        if (nearest - far).norm() <= other * slack:
            return nearest
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
    return torch.add(c1 + height * axis, ring * across / across.norm().clamp_min(1e-30))


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


PLAIN = {nn.Sequential: nn.Sequential(), nn.Flatten: nn.Flatten(), nn.Linear: nn.Linear(1, 1)}
"""The classes of a bare head's modules, each with an unmodified instance."""


@dataclass(frozen=True)
class BareLinear:
    """A linear layer of ``inputs`` times ``outputs`` weights, and ``outputs`` biases with ``bias``:
    the flat vector of parameters holds them in this order.  ``loss`` is None for cross-entropy."""

    inputs: int
    outputs: int
    bias: bool
    loss: BuiltIn | None = None

    def gradient(
        self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum of the records' gradients: of one model, or of many, one per row."""
        many = flat.dim() - 1
        x = x.flatten(1 + many)
        count = self.inputs * self.outputs
        matrix = flat[..., :count].unflatten(-1, (self.outputs, self.inputs))
        logits = x @ matrix.mT
        if self.bias:
            logits = logits + flat[..., count:].unsqueeze(-2)
        residual = softmax_residual if self.loss is None else self.loss.residual
        pulls = residual(logits, y) * weights.unsqueeze(-1)
        parts = [(pulls.mT @ x).flatten(many)]
        if self.bias:
            parts.append(pulls.sum(-2))
        return torch.cat(parts, -1)

    def input_norm(self, feature_norm: float) -> float:
        """The bound on inputs, given the bound on features that include the bias's constant 1."""
        if not self.bias:
            return feature_norm
        left = max(Fraction(feature_norm) ** 2 - 1, Fraction(0))
        return math.sqrt(left) * (1.0 - 2.0**-50)


def bare_linear(model: nn.Module) -> BareLinear | str:
    """The linear layer that ``model`` is (flattening allowed); otherwise what it is, in words."""
    layers = list(model.children()) if type(model) is nn.Sequential else [model]
    for layer in (model, *layers):
        if type(layer) not in PLAIN:
            return f"layer {type(layer).__name__}"
        for name, held in vars(layer).items():
            if name.endswith("_hooks") and held:
                return f"{_words(name)} of a {type(layer).__name__} layer"
        own = sorted(set(vars(layer)) - set(vars(PLAIN[type(layer)])))
        if own:
            return f"attribute {own[0]!r} of a {type(layer).__name__} layer"
    for name, held in vars(torch_module).items():
        if name.startswith("_global_") and name.endswith("_hooks") and held:
            return f"{_words(name)} of all modules"
    *before, head = layers or [model]
    if type(head) is not nn.Linear:
        return f"{type(head).__name__} as its last layer"
    for layer in before:
        if type(layer) is not nn.Flatten or (layer.start_dim, layer.end_dim) != (1, -1):
            return f"{layer} before its last layer"
    return _parameters(model, head)


def _parameters(model: nn.Module, head: nn.Linear) -> BareLinear | str:
    wanted: dict[str, tuple[int, ...]] = {"weight": (head.out_features, head.in_features)}
    if head._parameters.get("bias") is not None:
        wanted["bias"] = (head.out_features,)
    held: dict[str, Any] = {k: p for k, p in head._parameters.items() if p is not None}
    if set(held) != set(wanted) or len(list(model.parameters())) != len(wanted):
        return f"parameters {sorted(held)}"
    if list(held) != list(wanted):
        return f"parameters in the order {', '.join(held)}"
    if any(True for _ in model.buffers()):
        return "buffers"
    for name, shape in wanted.items():
        parameter = held[name]
        if type(parameter) is not nn.Parameter:
            return f"{name} of type {type(parameter).__name__}"
        if not parameter.requires_grad or tuple(parameter.shape) != shape:
            return f"{name} that is not trained, or has another shape"
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"a tensor hook on its {name}"
    return BareLinear(head.in_features, head.out_features, "bias" in wanted)


def _words(name: str) -> str:
    return name.strip("_").replace("_", " ")


def head_of(plan: Plan, model: nn.Module) -> BareLinear | None:
    """The bare linear layer of a plan's model, whose steps on slots are computed here.

    Refused if the plan announced one and its model is not one.
    """
    head = bare_linear(model)
    if plan.public.get("loss") in ("softmax", Huber.name, Binary.name):
        if isinstance(head, str):
            raise InvalidInput(
                f"the plan announced a bare linear layer, but its model has {head}; allowed: a "
                "model factory that makes the same kind of model at every call."
            )
        made = (head.inputs + head.bias, head.outputs)
        announced = (plan.public.get("inputs", made[0]), plan.public.get("outputs", made[1]))
        if made != announced:
            raise InvalidInput(
                f"the plan announced {announced[0]} inputs and {announced[1]} outputs, but its "
                f"model has {made[0]} and {made[1]}."
            )
    loss = plan.task.loss
    if isinstance(head, str) or not (loss is None or is_built_in(loss)):
        return None
    return replace(head, loss=loss)


def length_of(parameters: torch.Tensor) -> float:
    """The length of a model's parameters, rounded up."""
    return length(parameters.detach().to("cpu", torch.float64).tolist())


def check_start(plan: Plan, parameters: torch.Tensor) -> None:
    """Refuse an initial model that is longer than the plan announced: rounding is bounded by it."""
    announced = plan.public.get("initial_norm")
    if announced is None or (made := length_of(parameters)) <= announced:
        return
    raise InvalidInput(
        f"the plan announced an initial model of length {announced:g} at most, and the one that "
        f"was made has {made:g}; allowed: a model factory that, with one state of torch's "
        "generator, gives the same model at every call."
    )


def prepared(shard: Shard, head: BareLinear | None, plan: Plan, like: torch.Tensor) -> Shard:
    """A shard prepared for steps: in the parameters' type and, if the plan announced a bound on
    inputs, with every record inside it."""
    shard = shard.to(like.device, like.dtype)
    norm = plan.public.get("feature_norm")
    if head is None or norm is None or like.dtype != torch.float64:
        return shard
    return shard.inside(head.input_norm(float(norm)))


CHUNK = 8192


def replace_sums(op: ReplaceSums, work: State, shard: Shard, local: Local) -> None:
    """Replace this peer's sums by those over ``op.data``, then solve for the model again."""
    classes, width = head_shape(work)
    counts = {"product": width * classes, "square": width * (width + 1) // 2}
    rows = torch.from_numpy(shard.records.rows(op.data)).to(work.device)
    own_sums = contribution(op, shard, rows, classes, width)
    totals = {}
    for name, new in own_sums.items():
        count, total = counts[name], new
        if name in work.sums:
            total = total + _read(work.sums[name], count, op.width)
        if name in local.sums:
            total = total - _read(local.sums[name], count, op.width)
        _check_room(total, op)
        totals[name], local.sums[name] = total, packed(new, op.width)
        work.sums[name] = packed(total, op.width)
    work.parameters.copy_(ridge_head(totals, width, op.strength, op.bits).reshape(-1))


def _read(data: torch.Tensor, count: int, width: int) -> torch.Tensor:
    if data.dtype != torch.uint8 or data.numel() != size_of(count, width):
        raise Corrupt(
            f"sums of {data.numel()} entries of type {data.dtype} are not {count} numbers of "
            f"{width} bits; they come from another network or version."
        )
    return unpacked(data, width, count)


def head_shape(work: State) -> tuple[int, int]:
    """(classes, features) of a model that is one linear layer without a bias."""
    shapes = work.layout.shapes
    if len(shapes) != 1 or len(shapes[0]) != 2 or work.buffers:
        raise InvalidInput(
            "sums need a model that is one linear layer without a bias (model.name = linear); "
            f"this one has parameters {', '.join(work.layout.names)}."
        )
    classes, width = shapes[0]
    return classes, width


def contribution(
    op: ReplaceSums, shard: Shard, rows: torch.Tensor, classes: int, width: int
) -> dict[str, torch.Tensor]:
    """Sums over ``rows`` of x y^T (``product``) and the triangle of x x^T (``square``), in fixed
    point."""
    device = shard.x.device
    square = torch.zeros(width, width, dtype=torch.float64, device=device)
    product = torch.zeros(width, classes, dtype=torch.float64, device=device)
    for part in rows.split(CHUNK):
        x, y = shard.take(part, None)
        x = x.reshape(len(part), width).to(torch.float64)
        square.addmm_(x.T, x)
        product.addmm_(x.T, regressed(y, classes))
    fixed_point = {}
    for name, value in (("product", product.reshape(-1)), ("square", triangle(square))):
        scaled = value.mul_(2.0**op.bits).round_()
        _check_room(scaled, op)
        fixed_point[name] = scaled.to(torch.int64)
    return fixed_point


def _check_room(values: torch.Tensor, op: ReplaceSums) -> None:
    """Refuse sums that do not fit: they must never wrap around."""
    largest = float(values.abs().max())
    if not largest < 2.0 ** (op.width - 1):
        raise InvalidInput(
            f"sums reach {largest / 2.0**op.bits:.3g}; with {op.width} bits, {op.bits} of them "
            f"binary places, allowed: below {2.0 ** (op.width - 1 - op.bits):.3g}: there are more "
            "records, or longer ones, than was announced."
        )


def ridge_head(
    sums: dict[str, torch.Tensor], width: int, strength: float, bits: int
) -> torch.Tensor:
    """The weight (classes x features) of the ridge head that these totals determine."""
    unit = 2.0**-bits
    square = from_triangle(sums["square"].to(torch.float64) * unit, width)
    square.diagonal().add_(strength)
    product = sums["product"].to(torch.float64).view(width, -1) * unit
    factor, failed = torch.linalg.cholesky_ex(square)
    if bool(failed):
        raise InvalidInput(
            f"the ridge head cannot be solved for: with {bits} binary places rounding is as large "
            f"as sums.strength, {strength:g}; allowed: more of either."
        )
    return torch.cholesky_solve(product, factor).T
