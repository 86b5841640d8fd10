"""Steps, fleets and evaluations on a CUDA device, behind one interface: :class:`Executor`.

What enters: a workspace or a model on the device, and ``Steps`` operations with their batches.
What leaves: the same workspace after the steps, a network for evaluation, layers and captured
steps for a fleet.  Engines ask :func:`executor_for` and work in plain torch where it returns None;
nothing outside this folder knows of captured graphs, fused networks or kernels.

Start with `captured_steps` (one walk: a CUDA graph per kind of step), then `fused_network` (how a
model is rewritten into the layers of `layers`) and `fleet_layers` (many models at once).  The
kernels are in `kernels`; `groups` switches them off group by group.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

from unwalk.core.plan import Loss
from unwalk.core.token import Workspace
from unwalk.engines.cuda import fleet_layers, groups
from unwalk.engines.cuda.captured_steps import CapturedSteps, capture
from unwalk.engines.cuda.fused_network import FusedEvaluation

__all__ = ["CapturedSteps", "Executor", "FusedEvaluation", "executor_for"]


class Executor:
    """All that engines may ask of a CUDA device.

    ``fleet_convolution`` and ``fleet_norm`` say, by None, where a fleet has to do without them.
    """

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

    fleet_convolution = staticmethod(fleet_layers.convolution_of)
    fleet_norm = staticmethod(fleet_layers.norm_of)

    @property
    def draws_streams(self) -> bool:
        """Whether :meth:`stream_words` can be asked; it needs a kernel."""
        return groups.available()

    def stream_words(
        self, keys: torch.Tensor, hops: torch.Tensor, count: int, passes: int
    ) -> torch.Tensor:
        """Words of the first ``passes`` draws of each walk's stream, one at least."""
        from unwalk.engines.cuda.kernels.philox import stream_words

        return stream_words(keys, hops, count, max(passes, 1))

    def fleet_update(
        self,
        parameters: torch.Tensor,
        slopes: torch.Tensor,
        velocity: torch.Tensor | None,
        knobs: torch.Tensor,
        active: torch.Tensor,
        norms: torch.Tensor | None,
        *,
        decays: bool,
    ) -> bool:
        """Take a step of plain or heavy-ball descent in one pass; False where that cannot be."""
        matrices = (parameters, slopes, knobs, *(() if velocity is None else (velocity,)))
        if not (groups.available() and groups.uses("fleet updates")):
            return False
        if not all(m.is_contiguous() and m.dtype == torch.float32 for m in matrices):
            return False
        from unwalk.engines.cuda.kernels.fleet_update import step

        step(parameters, slopes, velocity, knobs, active, norms, decays)
        return True

    def captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """The same step, to be called again and again; it runs a few times to be captured."""
        return capture(step, self.device, self.pool)


def executor_for(device: torch.device) -> Executor | None:
    """The executor of a CUDA device; None on any other."""
    return Executor(device) if device.type == "cuda" else None
