"""A second reading of what every operation of a program does, for many pairs of worlds at once.

It shares no line with the engines.  Each row of its arrays is one walk of the same program: its own
records, its own world (1: with the records to be forgotten, 0: without them), its own noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.certificates.fuzz import Case, Work, acts, weights_of
from unwalk.core.program import AddNoise, Ball, Forget, Project, ReplaceSums
from unwalk.core.seeds import PublicSeeds

Floats = npt.NDArray[Any]
Noise = Callable[[int, int, Floats, float], Floats]
"""(hop, draw of the hop, values, std) to the noisy values."""


@dataclass
class Held:
    """What one place holds besides parameters: the token's own, or one peer's."""

    moments: dict[str, Floats] = field(default_factory=dict)
    steps: int = 0
    sums: tuple[Floats, Floats] | None = None

    def copy(self) -> Held:
        return Held({k: v.copy() for k, v in self.moments.items()}, self.steps, self.sums)


@dataclass
class Seen:
    """The token as it left a hop."""

    phase: int
    peer: int
    parameters: Floats
    others: dict[str, Floats]
    draws: int


class Twin:
    """Rows of walks: ``x`` (rows, peers, records, inputs), ``y`` (rows, peers, records)."""

    def __init__(
        self,
        case: Case,
        x: Floats,
        y: Floats,
        world: npt.NDArray[np.bool_],
        noise: Noise,
        dtype: Any,
    ) -> None:
        self.case, self.world, self.noise, self.dtype = case, world, noise, dtype
        self.x, self.y = x.astype(dtype), y
        self.rows = len(x)
        self.theta = np.repeat(case.theta0[None].astype(dtype), self.rows, 0)
        self.initial = self.theta.copy()
        self.seen_inputs = np.zeros((self.rows, case.inputs), dtype)
        self.token, self.local = Held(), dict[int, Held]()
        self.anchors: dict[str, Floats] = {"initial": self.initial}
        self.hop = self.draws = 0
        self.kept: Floats | None = None

    def walk(self) -> list[Seen]:
        case, seen, arrivals = self.case, list[Seen](), dict[int, Any]()
        for number, phase in enumerate(case.phases):
            for at, (peer, program) in enumerate(zip(phase.route, phase.programs, strict=True), 1):
                self.hop, self.draws = self.hop + 1, 0
                if at == 1:
                    self._begin(number, arrivals)
                if peer == case.u:
                    arrivals[self.hop] = self._copy()
                self.anchors["arrival"] = self.theta.copy()
                held = self.local.setdefault(peer, Held())
                for op in program:
                    self._do(op, peer, held)
                self._keep(number, at)
                seen.append(Seen(number, peer, self.theta.copy(), self._others(), self.draws))
        return seen

    def _copy(self) -> Any:
        locals_ = {peer: held.copy() for peer, held in self.local.items()}
        return self.theta.copy(), self.seen_inputs.copy(), self.token.copy(), locals_

    def _begin(self, number: int, arrivals: dict[int, Any]) -> None:
        phase = self.case.phases[number]
        if number and phase.start == "initial":
            self.theta, self.seen_inputs = self.initial.copy(), np.zeros_like(self.seen_inputs)
            self.token = Held()
        elif number and phase.start == "arrival":
            self.theta, self.seen_inputs, token, locals_ = arrivals[phase.start_hop or 0]
            self.theta, self.token = self.theta.copy(), token.copy()
            self.seen_inputs = self.seen_inputs.copy()
            self.local = {peer: held.copy() for peer, held in locals_.items()}
        self.anchors["start"], self.kept = self.theta.copy(), None
        if phase.reset_optimizer:
            self.token.moments, self.token.steps = {}, 0

    def _keep(self, number: int, at: int) -> None:
        phase = self.case.phases[number]
        if phase.keep == "average":
            before = np.zeros_like(self.theta) if self.kept is None else self.kept
            self.kept = before + (self.theta - before) / at
        elif phase.keep == "random":
            drawn = PublicSeeds(self.case.seed).numpy(phase.name, "iterate").integers(phase.hops)
            self.kept = self.theta.copy() if at == 1 + int(drawn) else self.kept
        if at == phase.hops and self.kept is not None:
            self.theta, self.kept = self.kept, None

    def _others(self) -> dict[str, Floats]:
        found = {name: v.copy() for name, v in self.token.moments.items()}
        if self.case.model == "buffer":
            found["inputs"] = self.seen_inputs.copy()
        if self.token.sums is not None:
            found |= {"square": self.token.sums[0], "product": self.token.sums[1]}
        if self.kept is not None:
            found["kept"] = self.kept.copy()
        return {name: v.reshape(self.rows, -1) for name, v in found.items()}

    def _do(self, op: Any, peer: int, held: Held) -> None:
        if isinstance(op, Work):
            self._steps(op, peer, held)
        elif isinstance(op, AddNoise):
            if op.std > 0.0 or not op.rounded:
                self.theta = self._noised(self.theta, op.std)
        elif isinstance(op, Project):
            self._project(op.balls)
        elif isinstance(op, Forget) and op.what == "optimizer":
            self.token.moments, self.token.steps = {}, 0
        elif isinstance(op, Forget) and op.what == "buffers":
            self.seen_inputs = np.zeros_like(self.seen_inputs)
        elif isinstance(op, Forget):
            held.moments, held.steps, held.sums = {}, 0, None
        elif isinstance(op, ReplaceSums):
            self._sums(op, peer, held)

    def _noised(self, values: Floats, std: float) -> Floats:
        noisy = self.noise(self.hop, self.draws, values, std)
        self.draws += 1
        return noisy.astype(self.dtype)

    # Steps

    def _steps(self, work: Work, peer: int, held: Held) -> None:
        do = [acts(self.case, work, peer, world) for world in (0, 1)]
        if not do[1]:
            return
        weights = [weights_of(self.case, work, peer, world) for world in (0, 1)]
        acting = self.world | do[0]
        names = {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "square")}[work.optimizer]
        where = {"carried": self.token, "local": held}.get(work.state, Held())
        where = Held() if not names else where
        for name in names:
            where.moments.setdefault(name, np.zeros_like(self.theta))
        for step in range(len(weights[1])):
            each = np.where(self.world[:, None], weights[1][step], weights[0][step])
            gradient = self._gradient(work, peer, each.astype(self.dtype))
            if self.case.model == "buffer":
                self.seen_inputs += ((each > 0)[..., None] * self.x[:, peer]).sum(1)
            if work.scale != 1.0:
                gradient = gradient * self.dtype(work.scale)
            if work.clip is not None:
                clip = max(work.clip, 0.0) if work.rounded else work.clip
                gradient = gradient * _shrink(gradient, clip)
            if work.noise:
                gradient = self._noised(gradient, work.noise)
            where.steps += 1
            self._apply(work, -work.direction * gradient, where, acting)
        owner = {"carried": self.token, "local": held}.get(work.state)
        if owner is not None:  # steps without moments are counted anew, as the product does
            owner.steps = where.steps

    def _apply(self, work: Work, gradient: Floats, where: Held, acting: npt.NDArray[Any]) -> None:
        gradient = gradient + self.dtype(work.weight_decay) * self.theta
        moved, old = self.dtype(work.step_size) * gradient, where.moments
        if work.optimizer == "momentum":
            new = {"momentum": self.dtype(0.9) * old["momentum"] + gradient}
            moved = self.dtype(work.step_size) * new["momentum"]
        elif work.optimizer == "adam":
            new = {
                "mean": old["mean"] + (gradient - old["mean"]) * self.dtype(1.0 - 0.9),
                "square": old["square"] * self.dtype(0.999) + gradient**2 * self.dtype(1 - 0.999),
            }
            root = np.sqrt(new["square"] / (1.0 - 0.999**where.steps)) + 1e-8
            moved = work.step_size / (1.0 - 0.9**where.steps) * new["mean"] / root
        else:
            new = {}
        self.theta = np.where(acting[:, None], self.theta - moved, self.theta).astype(self.dtype)
        for name, value in new.items():
            old[name] = np.where(acting[:, None], value, old[name]).astype(self.dtype)

    def _gradient(self, work: Work, peer: int, weights: Floats) -> Floats:
        """The weighted sum of the records' gradients, each clipped first where that is asked."""
        x, y, classes = self.x[:, peer], self.y[:, peer], self.case.outputs
        head = self.theta.reshape(self.rows, 1, classes, -1)
        out = (head * x[:, :, None, :]).sum(-1)
        if self.case.model == "quadratic":
            push = out - y[..., None]
        else:
            top = np.exp(out - out.max(-1, keepdims=True))
            push = top / top.sum(-1, keepdims=True) - np.eye(classes, dtype=self.dtype)[y]
        if work.clip_per_example is not None:
            size = np.sqrt((push**2).sum(-1) * (x**2).sum(-1))
            weights = weights * np.minimum(1.0, work.clip_per_example / (size + 1e-12))
        each = (weights[..., None] * push)[..., None] * x[:, :, None, :]
        found: Floats = each.sum(1).reshape(self.rows, -1).astype(self.dtype)
        return found

    # Projections and sums

    def _project(self, balls: tuple[Ball, ...]) -> None:
        zero = np.zeros_like(self.theta)
        centres = [zero if b.centre == "origin" else self.anchors[b.centre] for b in balls]
        radii = [max(b.radius, 0.0) for b in balls]
        if len(balls) == 1:
            self.theta = _onto(self.theta, centres[0], radii[0])
            return
        for row in range(self.rows):
            self.theta[row] = _onto_both(
                self.theta[row], centres[0][row], centres[1][row], radii[0], radii[1]
            )

    def _sums(self, op: ReplaceSums, peer: int, held: Held) -> None:
        case = self.case
        here = [case.rows_of(peer, op.data, world) for world in (0, 1)]
        mask = np.stack([np.isin(np.arange(case.records), rows) for rows in here])
        x = self.x[:, peer].astype(np.float64) * mask[self.world.astype(int)][..., None]
        label = np.eye(case.outputs)[self.y[:, peer]]
        unit = 2.0**op.bits
        square = np.round((x[..., :, None] * x[..., None, :]).sum(1) * unit)
        product = np.round((x[..., :, None] * label[..., None, :]).sum(1) * unit)
        old = held.sums or (np.zeros_like(square), np.zeros_like(product))
        total = self.token.sums or (np.zeros_like(square), np.zeros_like(product))
        self.token.sums = (total[0] + square - old[0], total[1] + product - old[1])
        held.sums = (square, product)
        a = self.token.sums[0] / unit + op.strength * np.eye(case.inputs)
        solved = np.linalg.solve(a, self.token.sums[1] / unit)
        self.theta = solved.transpose(0, 2, 1).reshape(self.rows, -1).astype(self.dtype)


def _shrink(values: Floats, bound: float) -> Floats:
    size = np.sqrt((values.astype(np.float64) ** 2).sum(-1, keepdims=True))
    found: Floats = np.minimum(1.0, bound / (size + 1e-12)).astype(values.dtype)
    return found


def _onto(theta: Floats, centre: Floats, radius: float) -> Floats:
    out = theta.astype(np.float64) - centre
    size = np.sqrt((out**2).sum(-1, keepdims=True))
    pulled = centre + out * (radius / np.maximum(size, 1e-300))
    found: Floats = np.where(size <= radius, theta, pulled).astype(theta.dtype)
    return found


def _onto_both(theta: Floats, c1: Floats, c2: Floats, r1: float, r2: float) -> Floats:
    for near, far, radius, other in ((c1, c2, r1, r2), (c2, c1, r2, r1)):
        there = _onto(theta[None], near[None], radius)[0]
        if np.linalg.norm(there - far) <= other * (1.0 + 1e-6):
            inside: Floats = there
            return inside
    axis = c2 - c1
    apart = float(np.linalg.norm(axis))
    axis = axis / max(apart, 1e-300)
    height = (apart**2 + r1**2 - r2**2) / (2.0 * max(apart, 1e-300))
    out = theta - c1
    across = out - (out @ axis) * axis
    ring = max(r1**2 - height**2, 0.0) ** 0.5
    found: Floats = c1 + height * axis + ring * across / max(np.linalg.norm(across), 1e-30)
    return found
