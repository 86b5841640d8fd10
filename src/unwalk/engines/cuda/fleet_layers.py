"""Layers of many models on a CUDA device: convolutions and batch normalisations as one launch.

Under ``vmap`` a layer of one model becomes one launch for all of them
(:mod:`unwalk.engines.cuda.kernels.fleet_convolution`, `fleet_norm`).  In a ``Sequential`` a ReLU,
and a 2x2 pool after it, are computed by the convolution or the batch normalisation before them.
Everything else runs as it is written.
"""

# Imports in functions: kernels need Triton, which is not there without a CUDA device.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from unwalk.engines.cuda.groups import available, uses
from unwalk.engines.cuda.layers import apply

PLAIN, GATED, UNPOOLED = 0, 1, 2
"""What a gradient is read through: nothing, a ReLU, or a ReLU and a 2x2 pool."""
PROGRAMS = 1056
"""Programs that a launch should have at least: eight for each multiprocessor of a large card."""
TILE = 4096
"""Values that a program of a normalisation reads at a time."""


@dataclass(frozen=True)
class Spec:
    """A convolution, and what follows it."""

    kernel: tuple[int, int]
    stride: int
    padding: int
    relu: bool = False
    pool: bool = False

    @property
    def through(self) -> int:
        """What a gradient of the output is read through."""
        if self.pool:
            return UNPOOLED
        return GATED if self.relu else PLAIN

    def out(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the convolution, before a pool."""
        return tuple(  # type: ignore[return-value]
            (side + 2 * self.padding - kernel) // self.stride + 1
            for side, kernel in zip((height, width), self.kernel, strict=True)
        )


class Pictures(NamedTuple):
    """Height, width and channels of pictures, as kernels are compiled for them."""

    height: int
    width: int
    channels: int


class Taps(NamedTuple):
    """The kernel of a convolution and how it moves, as kernels are compiled for them."""

    rows: int
    columns: int
    stride: int
    padding: int

    @staticmethod
    def of(spec: Spec) -> Taps:
        """Those of a convolution."""
        return Taps(*spec.kernel, spec.stride, spec.padding)


def next_power(number: int, low: int, high: int) -> int:
    """The next power of two, within bounds."""
    return min(high, max(low, 1 << (number - 1).bit_length()))


def _precision() -> str:
    """TF32 where torch's own convolutions would take it."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def channels_last(pictures: torch.Tensor) -> torch.Tensor:
    """Channels-last in memory."""
    return pictures.movedim(2, -1).contiguous()


def is_small(channels: int, outputs: int, height: int, width: int) -> bool:
    """Whether a layer has few channels and pictures of at most 8x8, the places of one tile."""
    return max(channels, outputs) <= 32 and height * width <= 64


def convolve_tiles(channels: int, depth: int, outputs: int, cached: bool) -> dict[str, int]:
    """Tiles of a convolution: one tap of the kernel at a time where channels are many.

    One stage reads through the first-level cache; copies ahead, of several stages, go past it.
    """
    return {
        "BLOCK_M": 128,
        "BLOCK_N": next_power(outputs, 16, 128),
        "BLOCK_K": min(channels & -channels, 64)
        if channels % 16 == 0
        else next_power(depth, 16, 64),
        "num_warps": 4,
        "num_stages": 1 if cached else 3,
    }


def weigh_tiles(depth: int, outputs: int, small: bool) -> dict[str, int]:
    """Tiles of a weight gradient; several of a small layer read the same places from a cache."""
    rows = next_power(depth, 16, 32 if small else 64)
    return {
        "BLOCK_M": rows,
        "BLOCK_N": next_power(outputs, 16, 128),
        "BLOCK_R": 64,
        "num_warps": 2 if small else 4,
        "num_stages": 1 if small and depth > rows else 3,
    }


def takes_rows(count: int, channels: int, outputs: int, size: tuple[int, int], spec: Spec) -> bool:
    """Whether a weight gradient goes by rows of the kernel: a small layer of many taps.

    It takes 16 pictures at once; the columns of picture and kernel are written out in the code.
    """
    side = spec.kernel[0]
    many = count > 4 and channels * side * side > 32
    few = size[1] <= 8 and side <= 5 and 2 * spec.padding < side
    small = is_small(channels, outputs, *size) and uses("fleet small layers")
    return many and few and small


def takes_lines(count: int, channels: int, outputs: int, size: tuple[int, int], spec: Spec) -> bool:
    """Whether a small convolution, alone, goes by rows of places, whose sums are in registers."""
    many = count > 4 and channels >= 16
    few = size[1] * next_power(outputs, 16, 32) <= 128 and is_small(channels, outputs, *size)
    plain = spec == Spec(spec.kernel, 1, spec.padding) and uses("fleet small layers")
    return many and few and plain


def row_tiles(channels: int, outputs: int) -> dict[str, int]:
    """Tiles of a weight gradient by rows of the kernel; ``BLOCK_R`` counts pictures."""
    rows, columns = next_power(channels, 16, 32), next_power(outputs, 16, 32)
    warps = 2 if rows * columns <= 512 else 4
    return {
        "BLOCK_M": rows,
        "BLOCK_N": columns,
        "BLOCK_R": 16,
        "num_warps": warps,
        "num_stages": 1,
    }


def line_tiles(channels: int, outputs: int, count: int) -> dict[str, int]:
    """Tiles of a convolution by rows of places; ``BLOCK_M`` counts pictures, 16 to a warp."""
    pictures = next_power(count, 16, 64)
    return {
        "BLOCK_M": pictures,
        "BLOCK_N": next_power(outputs, 16, 32),
        "BLOCK_K": next_power(channels, 16, 32),
        "num_warps": pictures // 16,
        "num_stages": 1,
    }


def convolve(
    pictures: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, spec: Spec
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures (models, pictures, channels, height, width) through one layer of every model.

    Also returns the corners that a pool kept (empty without one).
    """
    height, width = pictures.shape[-2:]
    high, wide = spec.out(height, width)
    weight = weight.movedim(2, -1).contiguous()
    shrink = 2 if spec.pool else 1
    models, count, outputs = pictures.shape[0], pictures.shape[1], weight.shape[1]
    shape = (models, count, high // shrink, wide // shrink, outputs)
    out = pictures.new_empty(shape)
    corners = pictures.new_empty(shape if spec.pool else (models, 0), dtype=torch.int8)
    _launch_convolve(
        channels_last(pictures),
        out,
        weight,
        bias,
        out,
        corners,
        spec,
        PLAIN,
        (high, wide),
    )
    return out.movedim(-1, 2), corners.movedim(-1, 2) if spec.pool else corners


def _launch_convolve(
    source: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    corners: torch.Tensor,
    spec: Spec,
    through: int,
    size: tuple[int, int],
) -> None:
    """``source`` is channels-last; through a pool it is half as large as what it stands for."""
    from unwalk.engines.cuda.kernels import fleet_convolution as kernels

    models, count, height, width, channels = source.shape
    if through == UNPOOLED:
        height, width = 2 * height, 2 * width
    outputs = weight.shape[1]
    places = count * size[0] * size[1]
    depth = channels * spec.kernel[0] * spec.kernel[1]
    shape = {
        "SOURCE": Pictures(height, width, channels),
        "OUT": Pictures(*size, outputs),
        "TAPS": Taps.of(spec),
        "THROUGH": through,
        "PRECISION": _precision(),
    }
    if bias is None and takes_lines(count, channels, outputs, size, spec):
        tiles = line_tiles(channels, outputs, count)
        lines = (size[0] * math.ceil(count / tiles["BLOCK_M"]), models)
        step = source[0].numel()
        kernels.convolve_row[lines](source, gate, weight, out, count, step, **shape, **tiles)
        return
    cached = through == UNPOOLED and is_small(channels, outputs, *size)
    tiles = convolve_tiles(channels, depth, outputs, cached)
    down, across = math.ceil(places / tiles["BLOCK_M"]), math.ceil(outputs / tiles["BLOCK_N"])
    kernels.convolve[(down * across, models)](
        source,
        gate,
        weight,
        source if bias is None else bias.contiguous(),
        out,
        corners,
        places,
        source[0].numel(),
        BIAS=bias is not None,
        RELU=spec.relu,
        POOL=spec.pool,
        **shape,
        **tiles,
    )


def convolve_back(
    slope: torch.Tensor,
    pictures: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor | None,
    spec: Spec,
    wants_input: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the pictures (empty unless wanted), the weight and the bias."""
    slope = channels_last(slope)
    seen = slope if gate is None else channels_last(gate)
    back = pictures.new_empty(pictures.shape[0], 0)
    if wants_input:
        back = _input_gradient(slope, seen, weight, spec, pictures.shape)
    weights, bias = _weight_gradient(slope, seen, channels_last(pictures), weight, spec)
    return back, weights, bias


def _input_gradient(
    slope: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, spec: Spec, shape: torch.Size
) -> torch.Tensor:
    """A convolution of the gradient with the kernel turned round."""
    models, count, channels, height, width = shape
    through = spec.through
    if spec.stride > 1:  # zeros between the gradient's places make the stride one
        slope, gate = _dilated(slope, gate, spec, (height, width)), slope
        through = PLAIN
    turned = Spec(spec.kernel, 1, spec.kernel[0] - 1 - spec.padding)
    out = slope.new_empty(models, count, height, width, channels)
    _launch_convolve(
        slope,
        gate,
        weight.flip(-1, -2).permute(0, 2, 3, 4, 1).contiguous(),
        None,
        out,
        out,
        turned,
        through,
        (height, width),
    )
    return out.movedim(-1, 2)


def _dilated(
    slope: torch.Tensor, gate: torch.Tensor, spec: Spec, size: tuple[int, int]
) -> torch.Tensor:
    """The gradient as of a convolution without stride: zeros where the stride jumped over."""
    if spec.relu:
        slope = slope * (gate > 0)
    full = Spec(spec.kernel, 1, spec.padding).out(*size)
    out = slope.new_zeros(*slope.shape[:2], *full, slope.shape[-1])
    high, wide = (spec.stride * (side - 1) + 1 for side in slope.shape[2:4])
    out[:, :, : high : spec.stride, : wide : spec.stride] = slope
    return out


def _weight_gradient(
    slope: torch.Tensor,
    gate: torch.Tensor,
    pictures: torch.Tensor,
    weight: torch.Tensor,
    spec: Spec,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the weight and the bias, summed up over shares of the places or pictures."""
    from unwalk.engines.cuda.kernels import fleet_convolution as kernels

    models, count, height, width, channels = pictures.shape
    high, wide = spec.out(height, width)
    outputs, depth = weight.shape[1], channels * spec.kernel[0] * spec.kernel[1]
    small = is_small(channels, outputs, height, width)
    wanted = 4 * PROGRAMS if small else PROGRAMS  # a multiprocessor holds 32 of two warps
    if takes_rows(count, channels, outputs, (height, width), spec):
        kernel, tiles = kernels.weigh_row, row_tiles(channels, outputs)
        length, programs, least = count, spec.kernel[0], 1
    else:
        kernel, tiles = kernels.weigh, weigh_tiles(depth, outputs, small)
        length, least = count * high * wide, 4
        programs = math.ceil(depth / tiles["BLOCK_M"]) * math.ceil(outputs / tiles["BLOCK_N"])
    run = tiles["BLOCK_R"]
    parts = max(1, min(wanted // (programs * models), length // (least * run)))
    share = math.ceil(length / parts / run) * run
    parts = math.ceil(length / share)
    weights = torch.empty(models, parts, depth, outputs, device=slope.device)
    bias = torch.empty(models, parts, outputs, device=slope.device)
    kernel[(programs, models, parts)](
        pictures,
        slope,
        gate,
        weights,
        bias,
        length,
        share,
        pictures[0].numel(),
        slope[0].numel(),
        SOURCE=Pictures(height, width, channels),
        OUT=Pictures(high, wide, outputs),
        TAPS=Taps.of(spec),
        THROUGH=spec.through,
        PRECISION=_precision(),
        **tiles,
    )
    whole = weights.sum(1) if parts > 1 else weights[:, 0]
    shaped = whole.view(models, *spec.kernel, channels, outputs).permute(0, 4, 3, 1, 2)
    return shaped.to(weight.dtype), bias.sum(1).to(weight.dtype)


def leading(info: Any, dims: tuple[int | None, ...], given: tuple[Any, ...]) -> list[Any]:
    """Arguments of a mapped function with the mapped dimension first."""
    return [
        value
        if not isinstance(value, torch.Tensor)
        else value.expand(info.batch_size, *value.shape)
        if dim is None
        else value.movedim(dim, 0)
        for value, dim in zip(given, dims, strict=True)
    ]


def alone(given: tuple[Any, ...]) -> list[Any]:
    """Arguments for one model, as for a fleet of one."""
    return [value[None] if isinstance(value, torch.Tensor) else value for value in given]


def _mapped(many: Callable[..., tuple[torch.Tensor, ...]]) -> type[torch.autograd.Function]:
    """A function of one model that ``vmap`` turns into ``many``; it has no gradient itself."""

    class Mapped(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> tuple[torch.Tensor, ...]:
            return tuple(result[0] for result in many(*alone(given)))

        @staticmethod
        def setup_context(
            ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]
        ) -> None:
            ctx.mark_non_differentiable(*output)

        @staticmethod
        def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
            results = many(*leading(info, dims, given))
            return results, (0,) * len(results)

    return Mapped


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, corners = convolve(*alone(given))
        return out[0], corners[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        pictures, weight, _, ctx.spec = inputs
        out, corners = output
        ctx.mark_non_differentiable(corners)
        gate = (None, out, corners)[ctx.spec.through]
        ctx.save_for_backward(pictures, weight, gate)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pictures, weight, gate = ctx.saved_tensors
        wants = ctx.needs_input_grad
        back, weights, bias = apply(
            _ConvolveBack, slopes[0], pictures, weight, gate, ctx.spec, wants[0]
        )
        return back if wants[0] else None, weights, bias if wants[2] else None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        return convolve(*leading(info, dims, given)), (0, 0)


_ConvolveBack = _mapped(convolve_back)


class FusedConv2d(nn.Module):
    """A convolution with what follows it; takes over the parameters of a ``Conv2d``."""

    def __init__(self, conv: nn.Conv2d, relu: bool, pool: nn.MaxPool2d | None) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        kernel = (conv.kernel_size[0], conv.kernel_size[1])
        self.spec = Spec(kernel, conv.stride[0], int(conv.padding[0]), relu, pool is not None)
        self.ceil = pool is not None and pool.ceil_mode

    @staticmethod
    def takes(conv: nn.Conv2d) -> bool:
        """Whether the kernels can do it: square strides and padding, narrower than the kernel."""
        stride, padding, kernel = conv.stride, conv.padding, conv.kernel_size
        return (
            stride[0] == stride[1]
            and padding[0] == padding[1]
            and kernel[0] == kernel[1]
            and int(padding[0]) < kernel[0]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spec, pooled_after = self.spec, False
        if spec.pool and (any(side % 2 for side in spec.out(*x.shape[-2:])) or spec.stride > 1):
            spec = Spec(spec.kernel, spec.stride, spec.padding, spec.relu)
            pooled_after = True
        out: torch.Tensor = apply(_Convolve, x, self.weight, self.bias, spec)[0]
        return functional.max_pool2d(out, 2, ceil_mode=self.ceil) if pooled_after else out


@dataclass(frozen=True)
class NormSpec:
    """What a normalisation adds to the variance, and what follows it."""

    eps: float
    relu: bool = False
    pool: bool = False


class NormShape(NamedTuple):
    """What the kernels of a normalisation are compiled for."""

    width: int
    channels: int
    relu: bool
    pool: bool

    @property
    def corners(self) -> int:
        """Places that give one place of the output."""
        return 4 if self.pool else 1


def _tiles(shape: NormShape) -> dict[str, Any]:
    """The shape, and how many rows and channels a program reads at a time."""
    block = next_power(shape.channels, 1, 1 << 20)
    rows = max(1, TILE // block // shape.corners)
    return {"HOW": shape, "BLOCK_R": rows, "BLOCK_C": block}


def _shares(models: int, rows: int, run: int) -> tuple[int, int]:
    """How many parts a sum over rows is taken in, and how many rows a part has."""
    parts = max(1, min(PROGRAMS // models, rows // run))
    share = math.ceil(rows / parts / run) * run
    return math.ceil(rows / share), share


def normalise(
    pictures: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, spec: NormSpec
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output (models, pictures, channels, height, width), and every channel's mean and variance."""
    from unwalk.engines.cuda.kernels import fleet_norm as kernels

    flat = channels_last(pictures)
    models, count, height, width, channels = flat.shape
    rows = count * height * width
    shape = NormShape(width, channels, spec.relu, spec.pool)
    tiles = _tiles(shape)
    run = max(1, TILE // tiles["BLOCK_C"])
    parts, share = _shares(models, rows, run)
    sums = torch.empty(models, parts, 2, channels, device=flat.device)
    kernels.spread[(parts, models)](flat, sums, rows, share, channels, run, tiles["BLOCK_C"])
    first, second = (sums.sum(1) / rows).unbind(1)
    mean = flat[:, 0, 0, 0].float() + first
    variance = (second - first.square()).clamp(min=0.0)
    shrink = 2 if spec.pool else 1
    out = flat.new_empty(models, count, height // shrink, width // shrink, channels)
    rows //= shape.corners
    given = (flat, mean, (variance + spec.eps).rsqrt(), weight.contiguous(), bias.contiguous())
    kernels.normalise[(math.ceil(rows / tiles["BLOCK_R"]), models)](*given, out, rows, **tiles)
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
    from unwalk.engines.cuda.kernels import fleet_norm as kernels

    flat, slope = channels_last(pictures), channels_last(slope)
    models, count, height, width, channels = flat.shape
    shape = NormShape(width, channels, spec.relu, spec.pool)
    tiles = _tiles(shape)
    rows = count * height * width // shape.corners
    parts, share = _shares(models, rows, tiles["BLOCK_R"])
    sums = torch.empty(models, parts, 2, channels, device=flat.device)
    root = (variance + spec.eps).rsqrt()
    given = (flat, slope, mean, root, weight.contiguous(), bias.contiguous())
    kernels.norm_sums[(parts, models)](*given, sums, rows, share, **tiles)
    whole = sums.sum(1)
    back = torch.empty_like(flat)
    grid = (math.ceil(rows / tiles["BLOCK_R"]), models)
    kernels.norm_gradient[grid](*given, whole, back, rows, **tiles)
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


_NormaliseBack = _mapped(normalise_back)


class FusedNorm:
    """Batch normalisation of one model's pictures, with what follows it."""

    def __init__(self, eps: float, relu: bool, pool: nn.MaxPool2d | None) -> None:
        self.spec = NormSpec(eps, relu, pool is not None)
        self.ceil = pool is not None and pool.ceil_mode

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The output; then mean and variance of every channel."""
        spec = self.spec
        pooled_after = spec.pool and any(side % 2 for side in x.shape[-2:])
        if pooled_after:
            spec = NormSpec(spec.eps, spec.relu)
        out, mean, variance = apply(_Normalise, x, weight, bias, spec)
        if pooled_after:
            out = functional.max_pool2d(out, 2, ceil_mode=self.ceil)
        return out, mean, variance


@cache
def _new_enough() -> bool:
    """Kernels read attributes of constants, which Triton has known since 3.4."""
    import triton

    major, minor, *_ = triton.__version__.split(".")
    return (int(major), int(minor)) >= (3, 4)


def usable(parameter: torch.Tensor) -> bool:
    """Whether the kernels know the precision, and can be built here."""
    return parameter.dtype == torch.float32 and available() and _new_enough()


def convolution_of(conv: nn.Conv2d, relu: bool, pool: nn.MaxPool2d | None) -> FusedConv2d | None:
    """A convolution of many models, with what follows it, where there is a kernel."""
    fits = usable(conv.weight) and FusedConv2d.takes(conv) and uses("fleet convolutions")
    return FusedConv2d(conv, relu, pool) if fits else None


def norm_of(norm: nn.BatchNorm2d, relu: bool, pool: nn.MaxPool2d | None) -> FusedNorm | None:
    """A batch normalisation of many models, with what follows it, where there is a kernel."""
    fits = usable(norm.weight) and uses("fleet normalisation")
    return FusedNorm(norm.eps, relu, pool) if fits else None
