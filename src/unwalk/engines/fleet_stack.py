r"""Gradients of many stacks of linear layers at once, written out: few operations, few passes.

A stack is a ``Sequential`` of linear layers with ReLUs between them, under cross-entropy.  With
:math:`h_0` the records, :math:`a_l = h_{l-1} W_l^T + b_l` and :math:`h_l = \max(a_l, 0)`,

.. math:: g_L = w\,(\mathrm{softmax}(a_L) - e_y), \quad
    g_{l-1} = (g_l W_l) \odot [h_{l-1} > 0], \quad
    \partial W_l = g_l^T h_{l-1}, \quad \partial b_l = \textstyle\sum g_l .

Where labels are weights of the classes, they stand instead of :math:`e_y`, and their sum before
the softmax.

``vmap`` would map the same over models, with a dozen more passes over memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.token import Layout


@dataclass(frozen=True)
class LinearStack:
    """Inputs, outputs and whether there is a bias, layer by layer, in the order of the flat vector.

    >>> LinearStack.of(nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    LinearStack(layers=((3, 4, True), (4, 2, True)))
    >>> LinearStack.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))) is None
    True
    """

    layers: tuple[tuple[int, int, bool], ...]

    @staticmethod
    def of(model: nn.Module) -> LinearStack | None:
        """The stack that a model is; None if it is anything else."""
        if type(model) is not nn.Sequential or model._forward_hooks or model._forward_pre_hooks:
            return None
        kinds = [
            m for m in model if not (type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1))
        ]
        layers = [m for m in kinds[::2] if type(m) is nn.Linear]
        plain = len(kinds) % 2 == 1 and len(layers) == len(kinds[::2])
        plain = plain and all(type(m) is nn.ReLU for m in kinds[1::2])
        if not plain or any(_touched(m) for m in model):
            return None
        shapes = tuple((m.in_features, m.out_features, m.bias is not None) for m in layers)
        size = sum(inner * outer + outer * bias for inner, outer, bias in shapes)
        return LinearStack(shapes) if Layout.of(model).size == size else None

    def gradient(
        self,
        parameters: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        weights: torch.Tensor,
        bound: float | None = None,
    ) -> torch.Tensor:
        """Gradients (K, d) of the weighted losses of K models, each on its own batch.

        With ``bound`` every record's gradient is clipped to that norm before it is weighted.
        Logits are (K, classes, batch): the softmax over few classes is slow where they come last.
        """
        h = x.flatten(2)
        matrices, inputs = [], []
        at = 0
        for number, (inner, outer, bias) in enumerate(self.layers):
            matrix = parameters[:, at : at + inner * outer].unflatten(1, (outer, inner))
            at += inner * outer
            matrices.append(matrix)
            inputs.append(h)
            shift = parameters[:, at : at + outer] if bias else None
            at += outer * bias
            if number == len(self.layers) - 1:
                h = _product(matrix, h.mT, None if shift is None else shift[:, :, None])
            else:
                h = _product(h, matrix.mT, None if shift is None else shift[:, None]).relu_()
        pull = functional.softmax(h, 1)
        if y.is_floating_point():
            pull = pull.mul_(y.sum(2)[:, None]).sub_(y.mT)
        else:
            pull.scatter_add_(1, y[:, None], pull.new_full((), -1.0).expand(len(y), 1, y.shape[1]))
        if bound is not None:
            weights = weights * self._shares(pull.mT, matrices, inputs, bound)
        pull = pull.mul_(weights[:, None]).mT
        gradient = torch.empty_like(parameters)
        for number in reversed(range(len(self.layers))):
            inner, outer, bias = self.layers[number]
            if bias:
                at -= outer
                torch.sum(pull, 1, out=gradient[:, at : at + outer])
            at -= inner * outer
            into = gradient[:, at : at + inner * outer].unflatten(1, (outer, inner))
            torch.bmm(pull.mT, inputs[number], out=into)
            if number:
                pull = _back(pull, matrices[number], inputs[number])
        return gradient

    def _shares(
        self,
        pull: torch.Tensor,
        matrices: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        bound: float,
    ) -> torch.Tensor:
        r"""What clipping leaves of each record's gradient.

        A record's :math:`\partial W_l` is an outer product, so that its squared length is
        :math:`\|g_l\|^2 \|h_{l-1}\|^2`.
        """
        squares = torch.zeros_like(pull[:, :, 0])
        for number in reversed(range(len(self.layers))):
            reach = inputs[number].square().sum(2) + float(self.layers[number][2])
            squares += pull.square().sum(2) * reach
            if number:
                pull = _back(pull, matrices[number], inputs[number])
        return (bound / (squares.sqrt_() + 1e-12)).clamp(max=1.0)


def _product(one: torch.Tensor, other: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
    """Batched products, shifted."""
    return torch.bmm(one, other) if shift is None else torch.baddbmm(shift, one, other)


def _back(pull: torch.Tensor, matrix: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """From the gradient of a layer's output to that of the output before its ReLU."""
    passed: torch.Tensor = torch.ops.aten.threshold_backward(torch.bmm(pull, matrix), kept, 0.0)
    return passed


def _touched(module: nn.Module) -> bool:
    """Whether a layer does more than its class: hooks, parametrizations, frozen parameters."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    frozen = any(not p.requires_grad for p in module.parameters())
    return any(hooks) or frozen or bool(module._buffers) or "forward" in vars(module)
