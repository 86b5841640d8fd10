r"""Gradients clipped example by example, out of a fused network.

The same sum as :func:`unwalk.engines.per_example.ghost_gradients`, and by the same formulas, for
captured steps on a CUDA device.  The backward pass itself gives inputs and output gradients of the
layers, norms of convolutions are found by a kernel that never lists the patches, and their
weighted sums are ordinary weight gradients of output gradients scaled record by record.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.plan import Loss
from unwalk.engines.cuda.fused_network import Fused, Places, fuse_by_record
from unwalk.engines.cuda.record_gradients import RecordGradients


class Clipped:
    """A network, and the places where its clipped gradients land."""

    def __init__(self, network: Fused, per_record: RecordGradients, places: Places) -> None:
        self.network, self.per_record, self.places = network, per_record, places

    @staticmethod
    def of(model: nn.Module, places: Places) -> Clipped | None:
        """For a model all of whose trainable layers are known, else None."""
        per_record = RecordGradients()
        network = fuse_by_record(model, places, per_record)
        return None if network is None else Clipped(network, per_record, places)

    def step(self, x: torch.Tensor, y: torch.Tensor, bound: float, loss: Loss | None) -> None:
        r"""Writes the mean of :math:`\min(1, C/\|g_i\|)\, g_i` into the places; ``bound`` is C.

        ``loss`` is that of each record, cross-entropy by default.  Raises
        :class:`~unwalk.engines.cuda.record_gradients.Unfit` where a layer sees other rows than the
        records.
        """
        per_record = self.per_record
        per_record.start(len(x))
        output = self.network(x)
        torch.autograd.grad(output, list(self.places), _start(output, y, loss), allow_unused=True)
        with torch.no_grad():
            rows = per_record.rows()
            factors = per_record.factors(rows, bound)
            for parameter, weighted in per_record.later:
                self.places[parameter].copy_(weighted(factors))
            gradients = dict(per_record.weighted(rows, factors))
            if gradients:
                torch._foreach_copy_([self.places[p] for p in gradients], list(gradients.values()))
            for parameter in set(self.places) - gradients.keys() - dict(per_record.later).keys():
                self.places[parameter].zero_()  # it takes no part
        per_record.start(0)


def _start(output: torch.Tensor, y: torch.Tensor, loss: Loss | None) -> torch.Tensor:
    """The gradient of the summed losses with respect to the output."""
    with torch.enable_grad():
        given = output.detach().requires_grad_()
        wide = given.float()
        losses = (
            functional.cross_entropy(wide, y, reduction="none") if loss is None else loss(wide, y)
        )
        return torch.autograd.grad(losses.sum(), given)[0]
