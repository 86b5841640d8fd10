r"""What each record adds to a gradient, as the backward pass of a fused network leaves it.

The layers write down what :func:`unwalk.engines.per_example.ghost_gradients` finds by hooks: of
small parameters every record's gradient, of the others the squared norms of these, in parts, and
how their weighted sum is made.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

from collections.abc import Callable

import torch

from unwalk.engines.cuda.convolution import How, weight_gradient

Weighted = Callable[[torch.Tensor], torch.Tensor]
"""From the records' factors to a parameter's gradient."""


class Unfit(Exception):
    """A layer sees another shape than (records, ...)."""


class RecordGradients:
    """Filled by the layers of one backward pass, of ``records`` records."""

    def __init__(self) -> None:
        self.records = 0
        self.listed: list[tuple[tuple[torch.Tensor, ...], torch.Tensor]] = []
        self.squares: list[torch.Tensor] = []
        self.later: list[tuple[torch.Tensor, Weighted]] = []

    def start(self, records: int) -> None:
        """Start a backward pass of so many records; what was there is dropped."""
        self.records = records
        self.listed, self.squares, self.later = [], [], []

    def check(self, x: torch.Tensor, dimensions: int) -> None:
        """Refuse inputs of a layer whose rows are not the records."""
        if x.dim() != dimensions or len(x) != self.records:
            raise Unfit

    def put(self, gradients: torch.Tensor, *parameters: torch.Tensor) -> None:
        """The gradients of parameters, one row per record."""
        self.listed.append((parameters, gradients.reshape(len(gradients), -1).float()))

    def add(self, parameter: torch.Tensor, squares: torch.Tensor, weighted: Weighted) -> None:
        """Parts (records, parts) of the squared norms of a parameter's gradients, and the sum."""
        self.squares.append(squares)
        self.later.append((parameter, weighted))

    def rows(self) -> torch.Tensor:
        """All that was listed, side by side in float32."""
        if not self.listed:
            return self.squares[0][:, :0]
        return torch.cat([rows for _, rows in self.listed], 1)

    def factors(self, rows: torch.Tensor, bound: float) -> torch.Tensor:
        r""":math:`\min(1, C/\|g_i\|)` over the number of records, in float32."""
        norms = torch.cat([rows.square(), *self.squares], 1).sum(1).sqrt()
        return (bound / (norms + 1e-12)).clamp(max=1.0) / self.records

    def weighted(
        self, rows: torch.Tensor, factors: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The weighted sums of what was listed, by parameter."""
        parameters_in_order = [p for parameters, _ in self.listed for p in parameters]
        sums = (factors.unsqueeze(1) * rows).sum(0).split([p.numel() for p in parameters_in_order])
        return [
            (p, found.view(p.shape)) for p, found in zip(parameters_in_order, sums, strict=True)
        ]


def put_convolution(
    per_record: RecordGradients,
    x: torch.Tensor,
    gradient: torch.Tensor,
    parameters: tuple[torch.Tensor, torch.Tensor | None],
    how: How,
) -> None:
    """A convolution's: norms of its weight's gradients, which are too many to list."""
    from unwalk.engines.cuda.kernels import record_gradients

    weight, bias = parameters
    x = x.contiguous(memory_format=torch.channels_last)
    gradient = gradient.contiguous(memory_format=torch.channels_last)

    def weighted(factors: torch.Tensor) -> torch.Tensor:
        total = torch.empty_like(weight)
        weight_gradient(record_gradients.scaled(gradient, factors), x, weight, how, total)
        return total

    squares = record_gradients.convolution_squares(
        x, gradient, (weight.shape[2], weight.shape[3]), how[:3]
    )
    per_record.add(weight, squares, weighted)
    if bias is not None:
        per_record.put(gradient.sum((2, 3), dtype=torch.float32), bias)


def put_linear(
    per_record: RecordGradients,
    x: torch.Tensor,
    gradient: torch.Tensor,
    parameters: tuple[torch.Tensor, torch.Tensor | None],
) -> None:
    r"""A linear layer's: :math:`g_i = b_i a_i^\top`, so :math:`\|g_i\| = \|a_i\|\|b_i\|`."""
    weight, bias = parameters

    def weighted(factors: torch.Tensor) -> torch.Tensor:
        return (factors.unsqueeze(1) * gradient).to(x.dtype).t() @ x

    squares = x.float().square().sum(1) * gradient.float().square().sum(1)
    per_record.add(weight, squares.unsqueeze(1), weighted)
    if bias is not None:
        per_record.put(gradient, bias)
