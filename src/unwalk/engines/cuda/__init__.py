"""Steps, fleets and evaluations on a CUDA device, behind one interface: :class:`Executor`.

What enters: a workspace or a model on the device, and ``Steps`` operations with their batches.
What leaves: the same workspace after the steps, a network for evaluation, layers and captured
steps for a fleet.  Engines ask :func:`executor_for` and work in plain torch where it returns None;
nothing outside this folder knows of captured graphs, fused networks or kernels.

Start with `captured_steps` (one walk: a CUDA graph per kind of step), then `fused_network` (how a
model is rewritten into the layers of `layers`) and `fleet_layers` (many models at once).  The
kernels are in `kernels`; `groups` switches them off group by group, and `compiled` has what takes
their place then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

from unwalk.core.plan import Loss
from unwalk.core.program import StepRule
from unwalk.core.workspace import Workspace
from unwalk.engines.cuda import fleet_layers
from unwalk.engines.cuda.captured_steps import CapturedSteps, capture
from unwalk.engines.cuda.fleet_layers import FusedConv2d, FusedNorm
from unwalk.engines.cuda.fused_network import FusedEvaluation

__all__ = ["CapturedSteps", "Executor", "FusedEvaluation", "executor_for"]


class Executor:
    """All that engines may ask of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @cached_property
    def pool(self) -> Any:
        """Memory that the captured steps of a fleet share."""
        return torch.cuda.graph_pool_handle()

    def steps(
        self, work: Workspace, loss: Loss | None, *, precision: str, compiled: bool
    ) -> CapturedSteps:
        """What takes the steps of one walk's visits on ``work``."""
        return CapturedSteps(work, loss, precision=precision, compiled=compiled)

    def evaluation(self, model: nn.Module) -> FusedEvaluation | None:
        """The model in evaluation mode in bfloat16; None where it cannot be rewritten."""
        return FusedEvaluation.of(model, torch.bfloat16)

    def fleet_convolution(
        self, conv: nn.Conv2d, relu: bool, pool: nn.MaxPool2d | None
    ) -> FusedConv2d | None:
        """A convolution of many models with what follows it; None where there is no kernel."""
        return fleet_layers.convolution_of(conv, relu, pool)

    def fleet_norm(
        self, norm: nn.BatchNorm2d, relu: bool, pool: nn.MaxPool2d | None
    ) -> FusedNorm | None:
        """A batch normalisation of many models with what follows it; None likewise."""
        return fleet_layers.norm_of(norm, relu, pool)

    def fleet_update(
        self,
        rule: StepRule,
        parameters: torch.Tensor,
        gradients: torch.Tensor,
        moments: dict[str, torch.Tensor],
        settings: torch.Tensor,
        corrections: torch.Tensor,
        active: torch.Tensor,
        *,
        clipped: bool,
    ) -> bool:
        """One optimizer step per row of ``parameters``; False where there is no kernel for it."""
        return fleet_layers.update(
            rule, parameters, gradients, moments, settings, corrections, active, clipped=clipped
        )

    def captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """The same step, to be called again and again; it runs a few times to be captured."""
        return capture(step, self.device, self.pool)


def executor_for(device: torch.device) -> Executor | None:
    """The executor of a CUDA device; None on any other."""
    return Executor(device) if device.type == "cuda" else None
