"""Batch normalisation of many models on a CUDA device, with a ReLU and a pool taken along."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from unwalk.engines.batched_conv import PROGRAMS, alone, apply, channels_last, leading, next_power

TILE = 4096
"""Values that a program reads at a time."""


@dataclass(frozen=True)
class NormSpec:
    """What a normalisation adds to the variance, and what follows it."""

    eps: float
    relu: bool = False
    pool: bool = False

    @property
    def corners(self) -> int:
        """Places that give one place of the output."""
        return 4 if self.pool else 1


def _shape(pictures: torch.Tensor, spec: NormSpec) -> dict[str, Any]:
    """What the kernels are told of channels-last pictures."""
    channels = pictures.shape[-1]
    wide = next_power(channels, 1, 1 << 20)
    return {
        "WIDTH": pictures.shape[-2],
        "CHANNELS": channels,
        "RELU": spec.relu,
        "POOL": spec.pool,
        "BLOCK_R": max(1, TILE // wide // spec.corners),
        "BLOCK_C": wide,
    }


def _shares(models: int, rows: int, run: int) -> tuple[int, int]:
    """How many parts a sum over rows is taken in, and how many rows a part has."""
    parts = max(1, min(PROGRAMS // models, rows // run))
    share = math.ceil(rows / parts / run) * run
    return math.ceil(rows / share), share


def normalise(
    pictures: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, spec: NormSpec
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output (models, pictures, channels, height, width), and every channel's mean and variance."""
    from unwalk.engines import batched_norm_kernels as kernels

    flat = channels_last(pictures)
    models, count, height, width, channels = flat.shape
    rows = count * height * width
    shape = _shape(flat, spec)
    run = max(1, TILE // shape["BLOCK_C"])
    parts, share = _shares(models, rows, run)
    sums = torch.empty(models, parts, 2, channels, device=flat.device)
    kernels.spread[(parts, models)](
        flat, sums, rows, share, CHANNELS=channels, BLOCK_R=run, BLOCK_C=shape["BLOCK_C"]
    )
    first, second = (sums.sum(1) / rows).unbind(1)
    mean = flat[:, 0, 0, 0].float() + first
    variance = (second - first.square()).clamp(min=0.0)
    shrink = 2 if spec.pool else 1
    out = flat.new_empty(models, count, height // shrink, width // shrink, channels)
    rows //= spec.corners
    kernels.normalise[(math.ceil(rows / shape["BLOCK_R"]), models)](
        flat,
        mean,
        (variance + spec.eps).rsqrt(),
        weight.contiguous(),
        bias.contiguous(),
        out,
        rows,
        **shape,
    )
    return out.movedim(-1, 2), mean, variance


def normalise_back(
    slope: torch.Tensor,
    pictures: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    spec: NormSpec,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the pictures, the weight and the bias."""
    from unwalk.engines import batched_norm_kernels as kernels

    flat, slope = channels_last(pictures), channels_last(slope)
    models, count, height, width, channels = flat.shape
    rows = count * height * width // spec.corners
    shape = _shape(flat, spec)
    parts, share = _shares(models, rows, shape["BLOCK_R"])
    sums = torch.empty(models, parts, 2, channels, device=flat.device)
    root = (variance + spec.eps).rsqrt()
    given = (flat, slope, mean, root, weight.contiguous(), bias.contiguous())
    kernels.norm_sums[(parts, models)](*given, sums, rows, share, **shape)
    whole = sums.sum(1)
    back = torch.empty_like(flat)
    grid = (math.ceil(rows / shape["BLOCK_R"]), models)
    kernels.norm_gradient[grid](*given, whole, back, rows, **shape)
    return back.movedim(-1, 2), whole[:, 1].to(weight.dtype), whole[:, 0].to(bias.dtype)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> tuple[torch.Tensor, ...]:
        out, mean, variance = normalise(*alone(given))
        return out[0], mean[0], variance[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        pictures, weight, bias, ctx.spec = inputs
        _, mean, variance = output
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(pictures, weight, bias, mean, variance)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (*apply(_NormaliseBack, slopes[0], *ctx.saved_tensors, ctx.spec), None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        return normalise(*leading(info, dims, given)), (0, 0, 0)


class _NormaliseBack(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> tuple[torch.Tensor, ...]:
        back, weight, bias = normalise_back(*alone(given))
        return back[0], weight[0], bias[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        return normalise_back(*leading(info, dims, given)), (0, 0, 0)


def fused_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    spec: NormSpec,
    ceil: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One model's pictures normalised, with what follows; then mean and variance."""
    pooled_after = spec.pool and any(side % 2 for side in x.shape[-2:])
    if pooled_after:
        spec = NormSpec(spec.eps, spec.relu)
    out, mean, variance = apply(_Normalise, x, weight, bias, spec)
    if pooled_after:
        out = functional.max_pool2d(out, 2, ceil_mode=ceil)
    return out, mean, variance
