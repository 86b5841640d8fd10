r"""Changes of a model that rival methods make and no accountant bounds; see :class:`.Edit`.

All gradients here are taken in evaluation mode, without augmentation: they say what the model
makes of records, and nothing is learned from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn import functional

from unwalk.core.data import Shard
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Local, Loss
from unwalk.core.program import (
    Dampen,
    Distil,
    Edit,
    Hold,
    Importance,
    Log,
    Mask,
    NewtonStep,
    Rows,
    Subtract,
)
from unwalk.core.token import State, Workspace

LARGEST = 5000
"""Parameters of a model whose whole Hessian is computed: 200 MB in 64 bits."""


def edit(op: Edit, work: State, shard: Shard, local: Local, loss: Loss | None) -> None:
    """Make one change in place."""
    match op:
        case Importance():
            own = importance(_workspace(work), shard, op.batches, loss).mul_(op.share)
            if "importance" in work.moments:
                work.moments["importance"].add_(own)
            else:
                work.moments["importance"] = own
        case Dampen():
            _dampen(op, _workspace(work), shard, loss)
        case NewtonStep():
            _newton(op, _workspace(work), shard, loss)
        case Mask():
            slope = _gradient(_workspace(work), shard, op.batches, loss).abs()
            kept = max(1, round(op.share * slope.numel()))
            mask = torch.zeros_like(slope)
            mask[slope.topk(kept).indices] = 1.0
            work.moments["mask"] = mask
        case Hold():
            if "mask" in work.moments:
                outside = work.moments["mask"] == 0.0
                work.parameters.copy_(torch.where(outside, work.anchors["start"], work.parameters))
        case Log():
            change = work.parameters - work.anchors["arrival"]
            local.moments["log"] = local.moments.get("log", torch.zeros_like(change)) + change
        case Subtract():
            log = local.moments.pop("log", None)
            if log is not None:
                work.parameters.sub_(log, alpha=op.share)
        case _:
            raise InvalidInput(f"an engine does not know the edit {op.what!r}.")


def _workspace(work: State) -> Workspace:
    """The state with its model; an engine of many walks lends its own for these."""
    assert isinstance(work, Workspace)
    return work


def _dampen(op: Dampen, work: Workspace, shard: Shard, loss: Loss | None) -> None:
    everybody = work.moments.pop("importance")
    own = importance(work, shard, op.batches, loss)
    chosen = own > op.alpha * everybody
    factor = (op.beta * everybody / own.clamp_min(torch.finfo(own.dtype).tiny)).clamp(max=1.0)
    work.parameters.mul_(torch.where(chosen, factor, 1.0))


def _newton(op: NewtonStep, work: Workspace, shard: Shard, loss: Loss | None) -> None:
    slope = _gradient(work, shard, op.forgotten, loss)
    if op.curvature == "fisher":
        step = slope / (importance(work, shard, op.retained, loss) + op.damping)
    else:
        curvature = _hessian(work, shard, op.retained, loss)
        curvature.diagonal().add_(op.damping)
        step = torch.linalg.solve(curvature, slope)
    work.parameters.add_(step, alpha=op.share)


def importance(work: Workspace, shard: Shard, batches: Rows, loss: Loss | None) -> torch.Tensor:
    """The mean square of the minibatches' mean gradients, each weighed by its records."""
    total = torch.zeros_like(work.parameters)
    records = 0
    for rows in batches:
        present = rows[rows >= 0]
        total.add_(_gradient(work, shard, present[None], loss).square(), alpha=present.size)
        records += present.size
    return total.div_(max(records, 1))


def _gradient(work: Workspace, shard: Shard, batches: Rows, loss: Loss | None) -> torch.Tensor:
    """The mean gradient over all rows of ``batches``."""
    count = int((batches >= 0).sum())
    work.gradient.zero_()
    was = work.model.training
    work.model.eval()
    for rows in batches:
        x, y = _taken(work, shard, rows)
        (losses(loss, work.model(x), y).sum() / max(count, 1)).backward()
    work.model.train(was)
    return work.gradient.clone()


def _hessian(work: Workspace, shard: Shard, batches: Rows, loss: Loss | None) -> torch.Tensor:
    size = work.parameters.numel()
    if size > LARGEST:
        raise InvalidInput(
            f"newton.curvature is 'hessian', and the model has {size} parameters; allowed: up to "
            f"{LARGEST}, or newton.curvature = fisher."
        )
    x, y = _taken(work, shard, batches.reshape(-1))
    was = work.model.training
    work.model.eval()

    def mean(flat: torch.Tensor) -> torch.Tensor:
        output = functional_call(work.model, work.layout.views(flat), (x,))
        return losses(loss, output, y).mean()

    curvature: torch.Tensor = hessian(mean, work.parameters.detach().clone())
    work.model.train(was)
    return curvature


def _taken(work: Workspace, shard: Shard, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    return shard.take(torch.from_numpy(rows[rows >= 0]).to(work.device), None)


def losses(loss: Loss | None, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of each record."""
    if loss is None:
        return functional.cross_entropy(output, y, reduction="none")
    return loss(output, y)


def soft_targets(
    op: Distil, work: Workspace, x: torch.Tensor, y: torch.Tensor, loss: Loss | None
) -> torch.Tensor:
    """What a distilling step has instead of labels: a weight for every class of every record."""
    if loss is not None:
        raise InvalidInput(
            "the task has a loss of its own; allowed for steps to soft targets (scrub, salun): "
            "cross-entropy."
        )
    return softened(op, _answers(work, x if op.target == "teacher" else x[:1]), y)


def softened(op: Distil, answers: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The targets that ``op`` makes of the teacher's answers, the last dimension of which are the
    classes, and of labels."""
    own = functional.one_hot(y, answers.shape[-1]).to(answers.dtype)
    if op.target == "others":
        return (1.0 - own) / (answers.shape[-1] - 1)
    return op.pull * answers + op.labels * own


def hold_all(parameters: torch.Tensor, states: Sequence[State]) -> torch.Tensor:
    """What :class:`.Hold` leaves of many models, a row each: all have a mask."""
    masks = torch.stack([state.moments["mask"] for state in states])
    starts = torch.stack([state.anchors["start"] for state in states])
    return torch.where(masks == 0.0, starts, parameters)


def _answers(work: Workspace, x: torch.Tensor) -> torch.Tensor:
    """Probabilities of the model with which the phase began; buffers are those of now."""
    now = work.parameters.clone()
    was = work.model.training
    work.parameters.copy_(work.anchors["start"])
    work.model.eval()
    try:
        with torch.no_grad():
            parts = [work.model(part).softmax(1) for part in x.split(1024)]
    finally:
        work.parameters.copy_(now)
        work.model.train(was)
    return torch.cat(parts)
