r"""What a model predicts, and with which loss: one class, a number, or any of several labels.

* ``class``: softmax and cross-entropy, which every engine has built in (no loss object).
* ``number`` (regression): :class:`Huber`, half the square of the residual and linear beyond a
  bound.
* ``labels`` (multi-label): :class:`Binary`, the mean cross-entropy of the labels' sigmoids.

All three are convex in the outputs with bounded slopes, so that training by them can be certified
(:class:`unwalk.privacy.ledger.LinearHead` has their constants).  Their residuals, the slopes in the
outputs, are written out here: a proof reads what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeGuard

import torch
from torch.nn import functional

from unwalk.core.validation import check_number


@dataclass(frozen=True)
class Huber:
    r"""Regression: :math:`r^2/2` for residuals up to ``bound`` and linear beyond it.

    >>> Huber(1.0)(torch.tensor([[0.5], [3.0]]), torch.tensor([0.0, 0.0])).tolist()
    [0.125, 2.5]
    """

    bound: float = 1.0
    name: ClassVar[str] = "huber"

    def __post_init__(self) -> None:
        check_number("data.huber", self.bound, above=0.0)

    def __call__(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        far = (output.squeeze(-1) - y.to(output)).abs()
        near = far.clamp(max=self.bound)
        return near * (far - 0.5 * near)

    def residual(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The slope of each record's loss in its output."""
        return (output - y.to(output).unsqueeze(-1)).clamp(-self.bound, self.bound)


@dataclass(frozen=True)
class Binary:
    """Several labels at once: the mean of each one's binary cross-entropy.

    >>> round(Binary()(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])).item(), 4)
    0.6931
    """

    name: ClassVar[str] = "binary"

    def __call__(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        every = functional.binary_cross_entropy_with_logits(output, y.to(output), reduction="none")
        return every.mean(-1)

    def residual(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The slope of each record's loss in its outputs."""
        grown = (-output.abs()).exp()
        chances = torch.where(output < 0.0, grown, torch.ones_like(grown)) / (1.0 + grown)
        return (chances - y.to(output)) / output.shape[-1]


BuiltIn = Huber | Binary


def is_built_in(loss: Any) -> TypeGuard[BuiltIn]:
    """Whether a loss is one of these as it stands here, with the constants that proofs know.

    One of a class made from them, or with attributes of its own, is a user's own.

    >>> class Steep(Huber): ...
    >>> is_built_in(Huber(2.0)), is_built_in(Steep(2.0))
    (True, False)
    """
    return type(loss) in (Huber, Binary) and set(vars(loss)) == {f.name for f in fields(loss)}


def softmax_residual(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The slope of each record's cross-entropy in its outputs."""
    grown = (output - output.amax(-1, keepdim=True)).exp()
    shares = grown / grown.sum(-1, keepdim=True)
    ones = torch.ones_like(y, dtype=shares.dtype).unsqueeze(-1)
    return shares.scatter_add(-1, y.unsqueeze(-1), -ones)


def loss_for(predicts: str, bound: float | None = None) -> BuiltIn | None:
    """The loss of what is predicted; None for classes, whose cross-entropy engines have."""
    if predicts == "number":
        return Huber() if bound is None else Huber(bound)
    return Binary() if predicts == "labels" else None


def regressed(y: torch.Tensor, outputs: int) -> torch.Tensor:
    """What a ridge head is fitted to, in 64 bits: a number, or one for every class or label.

    Labels are 1 where they apply and -1 where not, so that a head answers by the sign, as a
    classifier by sigmoids does.

    >>> regressed(torch.tensor([1]), 2).tolist(), regressed(torch.tensor([2.5]), 1).tolist()
    ([[0.0, 1.0]], [[2.5]])
    """
    if not y.is_floating_point():
        return functional.one_hot(y, outputs).to(torch.float64)
    if y.dim() == 1:
        return y.to(torch.float64).unsqueeze(1)
    return 2.0 * y.to(torch.float64) - 1.0
