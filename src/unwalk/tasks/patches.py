"""Fixed features of pictures: how much its patches resemble filters from two public photographs.

After Coates, Ng and Lee (2011): a picture's patches of 6 x 6 pixels, each with its own mean taken
away and its contrast evened out, are whitened and compared with a bank of filters.  What exceeds a
threshold, either way, is averaged over the quarters of the picture.  Filters, whitening, and the
centre and scale of every feature come from the two photographs that ship inside scikit-learn,
reduced to a quarter of their size: no record of any task decides them.

Each picture is computed in its own call.  In the end its features are divided by their own length
and get a constant in front, so that the whole has length 1 for every picture that could exist.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn import functional

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_count

SIDE = 6
"""Pixels along the side of a patch."""
REDUCED = 4
"""By so much the photographs are made smaller, along each side."""
SAMPLE = 10_000
"""Patches of the photographs that whitening is computed from."""
CROPS, CROP = 500, 32
"""Pieces of the photographs, and their side, by which features are centred and scaled."""
CONTRAST = 10.0 / 255.0**2
"""Added to the variance of a patch, so that noise on even ground is not blown up."""
WHITENING = 0.1
THRESHOLD = 0.25
LEAST = 0.01
"""Added to the standard deviation of a feature over the crops."""
BIAS = 0.5
SHRINK = 1.0 - 1e-5
"""Keeps lengths below 1 whatever the rounding of 32-bit numbers does."""
VERSION = 1


@dataclass(frozen=True)
class PatchMap:
    """The map from pictures to features with a bank of ``filters``.

    >>> PatchMap(512).features((3, 32, 32))
    4097
    """

    filters: int

    def __post_init__(self) -> None:
        check_count("data.filters", self.filters, low=1, high=SAMPLE)

    def features(self, shape: tuple[int, ...]) -> int:
        """How many features a picture has: two for each filter and quarter, and a constant."""
        return 1 + 4 * 2 * self.filters

    def digest(self, shape: tuple[int, ...]) -> str:
        """Names the map: it changes with every constant of this file and pixel of a photograph."""
        constants = {
            "version": VERSION,
            "shape": shape,
            "filters": self.filters,
            "numbers": [SIDE, REDUCED, SAMPLE, CROPS, CROP, CONTRAST, WHITENING, THRESHOLD, LEAST],
            "lengths": [BIAS, SHRINK],
            "photographs": [hashlib.sha256(p.tobytes()).hexdigest() for p in _photographs()],
        }
        return hashlib.sha256(json.dumps(constants, sort_keys=True).encode()).hexdigest()

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """Features of pictures (records, channels, height, width) with pixels from 0 to 1."""
        _, channels, height, width = pictures.shape
        if channels not in (1, 3) or min(height, width) <= SIDE:
            raise InvalidInput(
                f"features 'patches' are of grey or colour pictures of more than {SIDE} x {SIDE} "
                f"pixels; these have {channels} channels and {height} x {width}."
            )
        bank = _bank(self.filters, channels)
        top = math.sqrt(1.0 - BIAS**2) * SHRINK
        out = torch.empty(len(pictures), self.features((channels, height, width)))
        out[:, 0] = BIAS
        for row, picture in zip(out, pictures, strict=True):
            values = (bank.found(picture.to(torch.float32)) - bank.centre) / bank.scale
            row[1:] = values / values.norm().clamp_min(LEAST) * top
        return out


@dataclass(frozen=True, eq=False)
class _Bank:
    """Filters on evened patches (pixels x filters) with their whitening; what photographs give."""

    filters: torch.Tensor
    offsets: torch.Tensor
    centre: torch.Tensor
    scale: torch.Tensor

    def found(self, picture: torch.Tensor) -> torch.Tensor:
        """How much of each filter, and of its negative, is in each quarter of a picture."""
        height, width = (side - SIDE + 1 for side in picture.shape[1:])
        answers = _evened(functional.unfold(picture[None], SIDE)[0].T) @ self.filters
        answers = answers - self.offsets
        both = torch.cat([answers - THRESHOLD, -answers - THRESHOLD], 1).clamp_(min=0.0)
        places = both.view(height, width, -1)
        down, right = (height + 1) // 2, (width + 1) // 2
        quarters = [
            part.mean((0, 1))
            for half in (places[:down], places[down:])
            for part in (half[:, :right], half[:, right:])
        ]
        return torch.cat(quarters)


def _evened(patches: torch.Tensor) -> torch.Tensor:
    """Patches without their mean, divided by their contrast."""
    patches = patches - patches.mean(-1, keepdim=True)
    return patches / torch.sqrt(patches.square().mean(-1, keepdim=True) + CONTRAST)


@cache
def _photographs() -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """The two photographs, as bytes (height, width, colours)."""
    try:
        from sklearn.datasets import load_sample_images  # it takes a second to import

        return [np.asarray(image, np.uint8) for image in load_sample_images().images]
    except ImportError as error:
        raise InvalidInput(
            "features 'patches' read two photographs, which needs Pillow: install unwalk with its "
            "extra 'files'."
        ) from error


@cache
def _bank(filters: int, channels: int) -> _Bank:
    pixels = [torch.tensor(photo).permute(2, 0, 1) / 255.0 for photo in _photographs()]
    small = [functional.avg_pool2d(p[None], REDUCED)[0] for p in pixels]
    if channels == 1:
        small = [p.mean(0, keepdim=True) for p in small]
    rng = PublicSeeds(0).numpy("task", "patches")
    patches = _evened(torch.stack([_piece(small, SIDE, rng).flatten() for _ in range(SAMPLE)]))
    patches = patches.to(torch.float64)
    mean = patches.mean(0)
    spread, directions = torch.linalg.eigh((patches - mean).T @ (patches - mean) / SAMPLE)
    whiten = directions @ torch.diag((spread + WHITENING).rsqrt()) @ directions.T
    chosen = (patches[torch.from_numpy(rng.permutation(SAMPLE)[:filters])] - mean) @ whiten
    weights = whiten @ (chosen / chosen.norm(dim=1, keepdim=True)).T
    zero, one = torch.zeros(8 * filters), torch.ones(8 * filters)
    bank = _Bank(weights.to(torch.float32), (mean @ weights).to(torch.float32), zero, one)
    features = torch.stack([bank.found(_piece(small, CROP, rng)) for _ in range(CROPS)])
    return _Bank(bank.filters, bank.offsets, features.mean(0), features.std(0) + LEAST)


def _piece(photographs: list[torch.Tensor], side: int, rng: np.random.Generator) -> torch.Tensor:
    """A square piece of one of the photographs, drawn at random."""
    photo = photographs[int(rng.integers(len(photographs)))]
    top, left = (int(rng.integers(size - side + 1)) for size in photo.shape[1:])
    return photo[:, top : top + side, left : left + side]
