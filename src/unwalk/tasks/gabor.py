r"""Gabor features of pictures: a fixed map, so that only a linear head is learned.

A picture is filtered with complex Gabor waves of three sizes and eight directions.  The modulus of
what comes out is averaged over cells of 4 x 4 pixels by Gaussian windows, and the 24 numbers of a
cell are divided by their own length, so that the contrast of a stroke does not matter.  Everything
here is a constant of this file or depends on the picture itself.  Each picture is computed in its
own call, so that no other record influences it, not even in the last bit.  The constants were
chosen once, for everybody, by trying some on a part of MNIST's training pictures.

Lengths are bounded by construction.  A cell has length 1 at most, so all of them divided by the
root of their number have too; with the constant feature :data:`BIAS` in front,
:math:`\lVert x \rVert \le 1` for every picture that could exist.

On top of that, on request, come random waves (Rahimi and Recht, 2007): cosines and sines of random
combinations of the Gabor features, whose inner products come close to a Gaussian kernel.  Their
frequencies are drawn from a public constant, and their length is 1 exactly.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cache

import torch
from torch.nn import functional

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_count, check_number


@dataclass(frozen=True)
class Wave:
    """A Gabor wave: its length, the width of its envelope and the side of its filter, in pixels.

    Responses to a long wave change slowly and are taken at every ``stride``-th pixel only.
    """

    length: float
    width: float
    side: int
    stride: int = 1


WAVES = (Wave(3.0, 1.2, 5), Wave(5.0, 2.0, 7), Wave(8.0, 3.2, 11, stride=2))
DIRECTIONS = 8
CELL = 4
WINDOW = 2.0
"""Standard deviation in pixels of the window that a cell is averaged with."""
FLOOR = 0.1
"""Responses of about this length or less count as an empty cell."""
FREQUENCY = 2.5
"""Standard deviation of the random waves' frequencies."""
BIAS = 0.5
SHRINK = 1.0 - 1e-5
"""Keeps lengths below 1 whatever the rounding of 32-bit numbers does."""
VERSION = 2
"""Version 1 computed many pictures in one call, so others could influence the last bits."""


@dataclass(frozen=True)
class GaborMap:
    """The map from pictures to features; ``cosines`` random waves (an even number) in their place.

    >>> GaborMap().features((1, 28, 28)), GaborMap(cosines=1000).features((1, 28, 28))
    (1177, 1001)
    """

    cosines: int = 0

    def __post_init__(self) -> None:
        check_count("cosines", self.cosines)
        if self.cosines % 2:
            raise InvalidInput(
                f"cosines is {self.cosines}; allowed: an even number, or 0 for none."
            )

    def features(self, shape: tuple[int, ...]) -> int:
        """How many features a picture of (channels, height, width) becomes."""
        return 1 + (self.cosines or _gabor_features(shape))

    def digest(self, shape: tuple[int, ...]) -> str:
        """Names the map: it changes whenever a constant of this file does."""
        constants = {
            "version": VERSION,
            "shape": shape,
            "waves": [asdict(wave) for wave in WAVES],
            "numbers": [DIRECTIONS, CELL, WINDOW, FLOOR, FREQUENCY, BIAS, SHRINK],
            "cosines": self.cosines,
        }
        return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """Features of pictures (records, channels, height, width) with pixels from 0 to 1."""
        if pictures.dim() != 4 or not len(pictures):
            raise InvalidInput(
                f"pictures has shape {tuple(pictures.shape)}; allowed: (records, channels, height, "
                "width)."
            )
        top = math.sqrt(1.0 - BIAS**2) * SHRINK
        _, channels, height, width = pictures.shape
        filters = [_filters(wave) for wave in WAVES]
        out = torch.empty(len(pictures), self.features((channels, height, width)))
        out[:, 0] = BIAS
        waves = _frequencies(self.cosines // 2, _gabor_features((channels, height, width)))
        for rows, picture in zip(out.split(1), pictures.split(1), strict=True):
            values = _cells(picture.to(torch.float32, copy=True), filters)
            if self.cosines:
                angles = values @ waves.T
                values = torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(len(waves))
            rows[:, 1:] = values * top
        return out


def _gabor_features(shape: tuple[int, ...]) -> int:
    channels, height, width = shape
    cells = math.ceil(height / CELL) * math.ceil(width / CELL)
    return channels * len(WAVES) * DIRECTIONS * cells


def _filters(wave: Wave) -> torch.Tensor:
    """Real, then imaginary parts in all directions: of mean zero and unit energy, as filters."""
    axis = torch.arange(wave.side, dtype=torch.float64) - wave.side // 2
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    envelope = torch.exp(-(down**2 + right**2) / (2 * wave.width**2))
    parts: list[list[torch.Tensor]] = [[], []]
    for direction in range(DIRECTIONS):
        angle = math.pi * direction / DIRECTIONS
        phase = 2 * math.pi / wave.length * (right * math.cos(angle) + down * math.sin(angle))
        real, imaginary = envelope * phase.cos(), envelope * phase.sin()
        real = real - envelope * (real.sum() / envelope.sum())
        energy = torch.sqrt((real**2 + imaginary**2).sum())
        parts[0].append(real / energy)
        parts[1].append(imaginary / energy)
    return torch.stack(parts[0] + parts[1])[:, None].to(torch.float32)


@cache
def _windows(size: int, stride: int) -> torch.Tensor:
    """The weights with which every ``stride``-th pixel of a line enters each cell."""
    centres = (torch.arange(math.ceil(size / CELL), dtype=torch.float64) + 0.5) * CELL - 0.5
    pixels = torch.arange(0, size, stride, dtype=torch.float64)
    weights = torch.exp(-((pixels - centres[:, None]) ** 2) / (2 * WINDOW**2))
    return (weights / weights.sum(1, keepdim=True)).to(torch.float32)


def _cells(pictures: torch.Tensor, filters: list[torch.Tensor]) -> torch.Tensor:
    """The normalised cells of each picture in a row, of length 1 at most."""
    records, channels, height, width = pictures.shape
    planes = pictures.reshape(records * channels, 1, height, width)
    pooled_maps = []
    for wave, filters_of in zip(WAVES, filters, strict=True):
        response = functional.conv2d(planes, filters_of, stride=wave.stride, padding=wave.side // 2)
        modulus = torch.hypot(response[:, :DIRECTIONS], response[:, DIRECTIONS:])
        across, along = _windows(height, wave.stride), _windows(width, wave.stride)
        pooled = across @ modulus @ along.T
        pooled_maps.append(pooled.view(records, -1, *pooled.shape[2:]))
    cells = torch.cat(pooled_maps, 1)
    length = torch.sqrt(cells.square().sum(1, keepdim=True) + FLOOR**2)
    places = cells.shape[2] * cells.shape[3]
    return (cells / length).flatten(1) / math.sqrt(places)


def _frequencies(count: int, features: int) -> torch.Tensor:
    """The same for everybody: ``count`` random frequencies from a public constant."""
    rng = PublicSeeds(0).numpy("task", "gabor", "cosines")
    return torch.from_numpy(rng.standard_normal((count, features), "float32") * FREQUENCY)


def ridge_solution(
    features: torch.Tensor, labels: torch.Tensor, classes: int, strength: float
) -> torch.Tensor:
    r"""The ridge head W (features x classes) in 64-bit numbers: the reference.

    It minimises :math:`\lVert X W - Y \rVert^2 + \lambda \lVert W \rVert^2`, Y being the labels
    with one 1 per row and :math:`\lambda` the ``strength``.  As the weight of model ``linear`` it
    is ``W.T``.

    >>> ridge_solution(torch.eye(2), torch.tensor([0, 1]), 2, 3.0).tolist()
    [[0.25, 0.0], [0.0, 0.25]]
    """
    check_number("strength", strength, above=0.0)
    width = features.shape[1]
    square = torch.eye(width, dtype=torch.float64) * strength
    product = torch.zeros(width, classes, dtype=torch.float64)
    for x, y in zip(features.split(8192), labels.split(8192), strict=True):
        rows = x.to(torch.float64)
        square.addmm_(rows.T, rows)
        product.addmm_(rows.T, functional.one_hot(y, classes).to(torch.float64))
    return torch.cholesky_solve(product, torch.linalg.cholesky(square))
