"""Recognises a bare linear layer, and computes its softmax gradient without autograd.

Guarantees of the stability ledger depend on the exact computation, including its rounding.  A
module of PyTorch may carry hooks, parametrizations or a replaced ``forward``, so steps on slots of
a bare linear layer do not call it: logits, softmax and weighted outer products are written out
here, and the module is only asked which parameters it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from unwalk.core.data import Shard
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Plan

PLAIN = {nn.Sequential: nn.Sequential(), nn.Flatten: nn.Flatten(), nn.Linear: nn.Linear(1, 1)}
"""The classes of a bare head's modules, each with an unmodified instance."""


@dataclass(frozen=True)
class BareLinear:
    """A linear layer of ``inputs`` times ``outputs`` weights, and ``outputs`` biases with ``bias``:
    the flat vector of parameters holds them in this order."""

    inputs: int
    outputs: int
    bias: bool

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
        logits = logits - logits.amax(-1, keepdim=True)
        grown = logits.exp()
        shares = grown / grown.sum(-1, keepdim=True)
        ones = torch.ones_like(y, dtype=shares.dtype).unsqueeze(-1)
        pulls = shares.scatter_add(-1, y.unsqueeze(-1), -ones) * weights.unsqueeze(-1)
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
    if plan.public.get("loss") == "softmax":
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
    return None if isinstance(head, str) or plan.task.loss is not None else head


def prepared(shard: Shard, head: BareLinear | None, plan: Plan, like: torch.Tensor) -> Shard:
    """A shard prepared for steps: in the parameters' type and, if the plan announced a bound on
    inputs, with every record inside it."""
    shard = shard.to(like.device, like.dtype)
    norm = plan.public.get("feature_norm")
    if head is None or norm is None or like.dtype != torch.float64:
        return shard
    return shard.inside(head.input_norm(float(norm)))
