"""A user's own data, for tests that name it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unwalk.tasks import OwnData


def blobs() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=90)
    return rng.normal(size=(90, 4)).astype(np.float32) + y[:, None].astype(np.float32), y


def named_blobs() -> OwnData:
    """The same, with the number of classes said."""
    return OwnData(*blobs(), classes=2)
