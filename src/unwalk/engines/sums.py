r"""Sums of data in fixed point, and the ridge head that they determine.

A peer's contribution is :math:`A_v = \sum_i x_i x_i^T` and :math:`B_v = \sum_i x_i e_{y_i}^T`,
computed in 64-bit floating point and rounded to whole multiples of :math:`2^{-b}`.  The token
carries their totals as whole numbers, so that adding a contribution and taking it away again is
exact in any order.  The model is the ridge head

.. math:: W = (A + \lambda I)^{-1} B,

a function of the totals alone: once a peer has replaced its old sums by new ones, nothing is left
of the removed records.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from unwalk.core.data import Shard
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Local
from unwalk.core.program import ReplaceSums
from unwalk.core.token import State

CHUNK = 8192


def replace_sums(op: ReplaceSums, work: State, shard: Shard, local: Local) -> None:
    """Replace this peer's sums by those over ``op.data``, then solve for the model again."""
    classes, width = head_shape(work)
    rows = torch.from_numpy(shard.records.rows(op.data)).to(work.device)
    own_sums = contribution(shard, rows, classes, width, op.bits)
    for name, new in own_sums.items():
        change = new - local.sums[name] if name in local.sums else new
        total = work.sums[name] + change if name in work.sums else change.clone()
        _check_room(total, op.bits)
        work.sums[name] = total
    local.sums = own_sums
    work.parameters.copy_(ridge_head(work.sums, op.strength, op.bits).reshape(-1))


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
    shard: Shard, rows: torch.Tensor, classes: int, width: int, bits: int
) -> dict[str, torch.Tensor]:
    """Sums over ``rows`` of x x^T (``square``) and x y^T (``product``) in fixed point."""
    device = shard.x.device
    square = torch.zeros(width, width, dtype=torch.float64, device=device)
    product = torch.zeros(width, classes, dtype=torch.float64, device=device)
    for part in rows.split(CHUNK):
        x, y = shard.take(part, None)
        x = x.reshape(len(part), width).to(torch.float64)
        square.addmm_(x.T, x)
        product.addmm_(x.T, functional.one_hot(y, classes).to(torch.float64))
    fixed_point = {}
    for name, value in (("product", product), ("square", square)):
        scaled = (value * 2.0**bits).round()
        _check_room(scaled, bits)
        fixed_point[name] = scaled.to(torch.int64)
    return fixed_point


def _check_room(total: torch.Tensor, bits: int) -> None:
    """Refuse sums near the largest integer: they must never wrap around."""
    largest = float(total.abs().max())
    if not largest < 2.0**61:
        raise InvalidInput(
            f"sums reach {largest / 2.0**bits:.3g}; with {bits} binary places allowed: "
            f"below {2.0 ** (61 - bits):.3g}."
        )


def ridge_head(sums: dict[str, torch.Tensor], strength: float, bits: int) -> torch.Tensor:
    """The weight (classes x features) of the ridge head that these totals determine."""
    unit = 2.0**-bits
    square = sums["square"].to(torch.float64) * unit
    square.diagonal().add_(strength)
    product = sums["product"].to(torch.float64) * unit
    return torch.cholesky_solve(product, torch.linalg.cholesky(square)).T
