r"""Gradients of many stacks of linear layers at once, written out: few operations, few passes.

A stack is a ``Sequential`` of linear layers with ReLUs between them, under cross-entropy.  With
:math:`h_0` the records, :math:`a_l = h_{l-1} W_l^T + b_l` and :math:`h_l = \max(a_l, 0)`,

.. math:: g_L = w\,(\mathrm{softmax}(a_L) - e_y), \quad
    g_{l-1} = (g_l W_l) \odot [h_{l-1} > 0], \quad
    \partial W_l = g_l^T h_{l-1}, \quad \partial b_l = \textstyle\sum g_l .

``vmap`` would map the same over models, with a dozen more passes over memory.
"""

from __future__ import annotations

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
        found = tuple((m.in_features, m.out_features, m.bias is not None) for m in layers)
        size = sum(inner * outer + outer * bias for inner, outer, bias in found)
        return LinearStack(found) if Layout.of(model).size == size else None

    def gradient(
        self, parameters: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Gradients (K, d) of the weighted losses of K models, each on its own batch."""
        h = x.flatten(2)
        matrices, inputs = [], []
        at = 0
        for number, (inner, outer, bias) in enumerate(self.layers):
            matrix = parameters[:, at : at + inner * outer].unflatten(1, (outer, inner))
            at += inner * outer
            matrices.append(matrix)
            inputs.append(h)
            if bias:
                h = torch.baddbmm(parameters[:, None, at : at + outer], h, matrix.mT)
                at += outer
            else:
                h = torch.bmm(h, matrix.mT)
            if number < len(self.layers) - 1:
                h = h.relu_()
        pull = functional.softmax(h, 2)
        pull.scatter_add_(2, y[:, :, None], pull.new_full((), -1.0).expand(*y.shape, 1))
        pull.mul_(weights[:, :, None])
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
                pull = torch.bmm(pull, matrices[number])
                pull = torch.ops.aten.threshold_backward(pull, inputs[number], 0.0)
        return gradient


def _touched(module: nn.Module) -> bool:
    """Whether a layer does more than its class: hooks, parametrizations, frozen parameters."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    frozen = any(not p.requires_grad for p in module.parameters())
    return any(hooks) or frozen or bool(module._buffers) or "forward" in vars(module)
