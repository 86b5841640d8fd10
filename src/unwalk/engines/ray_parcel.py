"""How objects with tensors are packed to be passed from host to host of a Ray cluster."""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]

APART = 128 << 10
"""Bytes of a token's parcel, at least.  Ray answers a call with results below 100 KiB in the answer
itself, to the driver; larger ones stay with the worker's machine, and the next host fetches them
there."""


@dataclass(frozen=True, eq=False)
class Parcel:
    """An object whose tensors are apart, so that Ray writes and reads them without a copy more."""

    pickled: bytes
    tensors: list[Bytes]
    filler: Bytes | None = None

    def opened(self) -> Any:
        """The object, with tensors of its own."""
        return pickle.loads(self.pickled, buffers=self.tensors)

    def viewed(self) -> Any:
        """The object, with tensors that are the parcel's own memory: nobody may write to them."""
        with warnings.catch_warnings():  # torch has no read-only tensors, and says so
            warnings.simplefilter("ignore", UserWarning)
            return _Viewer(io.BytesIO(self.pickled), buffers=self.tensors).load()

    def copy(self) -> Parcel:
        """A parcel that borrows nothing."""
        return Parcel(self.pickled, [tensor.copy() for tensor in self.tensors])


class _Packer(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, torch.Tensor):
            return NotImplemented
        flat: Any = thing.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(flat), thing.dtype, tuple(thing.shape))


def _tensor(held: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype)
    made.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(held, np.uint8)
    return made


class _Viewer(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _view if found is _tensor else found


def _view(held: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(held, np.uint8))
    return (flat.view(dtype) if flat.numel() else torch.empty(0, dtype=dtype)).reshape(shape)


def packed(thing: Any, least: int = 0) -> Parcel:
    """A parcel of at least ``least`` bytes; its tensors are borrowed until it is sent.

    >>> packed({"a": torch.arange(3)}).opened()
    {'a': tensor([0, 1, 2])}
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Packer(file, protocol=5, buffer_callback=buffers.append).dump(thing)
    tensors: list[Bytes] = [np.frombuffer(b.raw(), np.uint8) for b in buffers]
    missing = least - sum(t.nbytes for t in tensors)
    return Parcel(file.getvalue(), tensors, np.zeros(missing, np.uint8) if missing > 0 else None)
