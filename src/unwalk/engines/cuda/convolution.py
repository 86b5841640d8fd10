"""Convolutions of fused networks and their gradients.

Kernels of our own compute them where they fit (:mod:`unwalk.engines.cuda.kernels.convolution`:
bfloat16 on NVIDIA's Hopper, 3x3 or 1x1), cuDNN's elsewhere.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

import importlib
from functools import cache

import torch
from torch.nn import functional

from unwalk.engines.cuda.groups import uses

Pair = tuple[int, int]
How = tuple[Pair, Pair, Pair, int]
"""Stride, padding, dilation and groups."""


@cache
def _there() -> bool:
    """Whether Triton is here, in a version that has what our kernels are written in."""
    try:
        importlib.import_module("unwalk.engines.cuda.kernels.convolution")
    except (ImportError, AttributeError):
        return False
    return True


def ours(x: torch.Tensor, weight: torch.Tensor, how: How) -> bool:
    """Whether our kernels compute it."""
    return uses("convolutions") and _takes(x, weight, how)


def _takes(x: torch.Tensor, weight: torch.Tensor, how: How) -> bool:
    """Whether our kernels know it."""
    stride, padding, dilation, groups = how
    half = weight.shape[2] // 2
    usual = stride[0] == stride[1] and padding == (half, half) and dilation == (1, 1)
    if not (x.is_cuda and x.dtype == torch.bfloat16 and usual and groups == 1 and _there()):
        return False
    from unwalk.engines.cuda.kernels import convolution

    return convolution.fits(x, weight, stride[0])


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, how: How
) -> torch.Tensor:
    """The convolution itself."""
    if bias is None and ours(x, weight, how):
        from unwalk.engines.cuda.kernels import convolution

        return convolution.convolve(x, weight, how[0][0])
    return functional.conv2d(x, weight, bias, *how)


def input_gradient(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, how: How
) -> torch.Tensor:
    """The gradient of ``x`` from that of the output."""
    if ours(x, weight, how):
        from unwalk.engines.cuda.kernels import convolution

        gradient = gradient.contiguous(memory_format=torch.channels_last)
        return convolution.input_gradient(gradient, weight, how[0][0])
    for_x: torch.Tensor = _back(gradient, x, weight, how, (True, False, False))[0]
    return for_x


def weight_gradient(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, how: How, place: torch.Tensor
) -> None:
    """Writes the gradient of ``weight`` into ``place``."""
    lies = place.is_contiguous(memory_format=torch.channels_last)
    if lies and ours(x, weight, how):
        from unwalk.engines.cuda.kernels import convolution

        gradient = gradient.contiguous(memory_format=torch.channels_last)
        convolution.weight_gradient(gradient, x, place, how[0][0])
    else:
        place.copy_(_back(gradient, x, weight, how, (False, True, False))[1])


def _back(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    how: How,
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor, ...]:
    stride, padding, dilation, groups = how
    gradients: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, False, (0, 0), groups, wanted
    )
    return gradients
