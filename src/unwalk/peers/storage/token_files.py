"""Tokens as safetensors files: written straight from the workspace, read through a memory map.

A file is eight bytes of header length, a JSON header, and the tensors one after the other.  It is
written and read without a second copy in memory, and everything in it is checked against what
this peer's own model expects before anything else looks at it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from unwalk.core.errors import Corrupt
from unwalk.core.plan import Local
from unwalk.core.token import PIECE, Token

METADATA = "unwalk-token"
LONGEST_HEADER = 1 << 20
MEMORY_WORDS = 16
MOST_SIDES = 16
"""Sides of a tensor: a header has room for so many that their product alone would take minutes."""
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}

UNSIGNED = ("moment/square",)
"""Tensors with values that are never negative: a visit takes their root."""

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name of each tensor with its type (as safetensors writes it) and shape."""


def pieces(tensors: Mapping[str, torch.Tensor], words: Mapping[str, str]) -> Iterator[memoryview]:
    """The bytes of a safetensors file: header first, then each tensor, none of them copied."""
    header: dict[str, Any] = {"__metadata__": dict(words)}
    flats, offset = [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        size = flat.numel() * flat.element_size()
        header[name] = {
            "dtype": _NAMES[flat.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        flats.append(flat)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for flat in flats:
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def token_pieces(token: Token) -> Iterator[memoryview]:
    """The bytes of a token's file."""
    words = json.dumps(token.header(), sort_keys=True, separators=(",", ":"))
    return pieces(token.tensors(), {METADATA: words})


def split_local(local: Local) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What a peer keeps between visits, as numbers and words, and as tensors."""
    numbers, tensors = {}, {}
    for item in fields(local):
        value = getattr(local, item.name)
        if isinstance(value, dict):
            tensors.update({f"{item.name}/{k}": value[k] for k in sorted(value)})
        else:
            numbers[item.name] = value
    return numbers, tensors


def join_local(numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Local:
    """What :func:`split_local` took apart."""
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor.clone()
    known: dict[str, Any] = {**numbers, **groups}
    return Local(**known)


def shapes_of(token: Token) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes of a token's tensors."""
    return {k: (_NAMES[v.dtype], tuple(v.shape)) for k, v in token.tensors().items()}


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A token file that is open: its own header, and where its tensors lie.

    They lie in the file itself, mapped, or in a copy of it in memory.
    """

    header: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    held: mmap.mmap | bytearray

    def token(self) -> Token:
        """The token; its tensors are read from the file when they are used."""
        return Token.of(self.header, self.tensors)

    def give_back(self) -> None:
        """Let the system have the memory: what is read once more comes from the file again."""
        if isinstance(self.held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self.held.madvise(mmap.MADV_DONTNEED)


def mapped(path: Path) -> mmap.mmap | bytearray:
    """A file as a private memory map; nothing can be mapped of an empty one."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else bytearray()


def tensors_in(
    held: mmap.mmap | bytearray, name: str, longest: int = LONGEST_HEADER
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Metadata and tensors of a safetensors file; ``name`` is what errors call it.

    A header of more than ``longest`` bytes is not read: each of its tensors takes time.
    """
    size = len(held)
    if size < 8:
        raise Corrupt(f"{name} has {size} bytes, which is no safetensors file.")
    length = int.from_bytes(held[:8], "little")
    if length > min(longest, size - 8):
        raise Corrupt(f"{name} has a header of {length} bytes.")
    try:
        header = json.loads(held[8 : 8 + length])
        words = header.pop("__metadata__", {})
        start, end, tensors = 8 + length, 0, {}
        if not isinstance(words, dict) or not all(isinstance(w, str) for w in words.values()):
            raise ValueError("metadata that is not text")
        for key, entry in header.items():
            dtype, shape = _TYPES[entry["dtype"]], [_whole(n) for n in entry["shape"]]
            if len(shape) > MOST_SIDES:
                raise ValueError(f"tensor {key[:80]!r} has {len(shape)} sides")
            first, last = (_whole(n) for n in entry["data_offsets"])
            count = math.prod(shape)
            if first != end or last - first != count * dtype.itemsize or start + last > size:
                raise ValueError(f"tensor {key!r} does not lie where it should")
            end = last
            flat = torch.empty(0, dtype=dtype)
            if count:
                flat = torch.frombuffer(held, dtype=dtype, count=count, offset=start + first)
            tensors[key] = flat.view(shape)
        if start + end != size:
            raise ValueError(f"{size - start - end} bytes belong to no tensor")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise Corrupt(f"{name} is no safetensors file ({str(error)[:200]}).") from error
    return words, tensors


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 48:
        raise ValueError(f"{str(value)[:40]} is no size")
    return value


def open_token(path: Path, peers: int, longest: int = LONGEST_HEADER) -> TokenFile:
    """Open a token file and check its own header."""
    return token_in(mapped(path), path.name, peers, longest)


def token_in(
    held: mmap.mmap | bytearray, name: str, peers: int, longest: int = LONGEST_HEADER
) -> TokenFile:
    """The same for a file that is open, or in memory."""
    words, tensors = tensors_in(held, name, longest)
    try:
        header = json.loads(words[METADATA])
        if len(words) > 1:
            raise ValueError("it says more than a token's header")
        for key in ("optimizer_steps", "hop"):
            _whole(header[key])
        at, memory = header["at"], header["memory"]
        if isinstance(at, bool) or not isinstance(at, int) or not -1 <= at < peers:
            raise ValueError(f"the token is at {str(at)[:40]}")
        if not isinstance(memory, dict) or len(memory) > MEMORY_WORDS:
            raise ValueError("the route's memory is not a small table")
        for value in memory.values():
            _whole(value)
        if set(header) != {"optimizer_steps", "hop", "at", "memory"}:
            raise ValueError(f"the header has fields {sorted(header)}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{name} is no token ({str(error)[:200]}).") from error
    return TokenFile(header, tensors, held)


def check_token(file: TokenFile, expected: Shapes, largest: float = math.inf) -> None:
    """Refuse tensors that are missing, unknown, of another type or shape, or not finite.

    No value may be larger than ``largest``, either way, or negative where a visit takes its root.
    """
    given = {k: (_NAMES[v.dtype], tuple(v.shape)) for k, v in file.tensors.items()}
    for name in expected:
        if name not in given:
            raise Corrupt(f"the token has no tensor {name!r}.")
    for name, found in given.items():
        wanted = expected.get(name)
        if wanted is None:
            raise Corrupt(f"the token has a tensor {name[:80]!r} that no visit here uses.")
        if found != wanted:
            raise Corrupt(f"tensor {name!r} is {found}; allowed: {wanted}.")
    for name, tensor in file.tensors.items():
        if tensor.dtype.is_floating_point and tensor.numel():
            low, high = allowed(name, tensor.dtype, largest)
            for piece in tensor.view(-1).split(PIECE):
                for value in extremes(piece):
                    if not math.isfinite(value):
                        raise Corrupt(f"tensor {name!r} holds values that are not finite.")
                    if not low <= value <= high:
                        raise Corrupt(
                            f"tensor {name!r} holds {value:.3g}; allowed: {low:g} to {high:g}."
                        )
                file.give_back()


def allowed(name: str, dtype: torch.dtype, largest: float) -> tuple[float, float]:
    """The least and the largest value of a token's tensor, as numbers of its own type.

    >>> allowed("parameters", torch.float32, 8.0), allowed("moment/square", torch.float32, 8.0)
    ((-8.0, 8.0), (0.0, 8.0))
    """
    high = float(torch.tensor(min(largest, torch.finfo(dtype).max), dtype=dtype))
    return 0.0 if name in UNSIGNED else -high, high


def extremes(tensor: torch.Tensor) -> tuple[float, float]:
    """The least and the largest value; neither is finite if any value is not a number.

    >>> extremes(torch.tensor([1.0, -3.0]))
    (-3.0, 1.0)
    """
    low, high = tensor.aminmax()  # a fifteenth of the time of a norm
    return float(low), float(high)


def cut(tensors: Mapping[str, torch.Tensor], largest: float) -> bool:
    """Bring values back to what :func:`check_token` takes; whether any was beyond it.

    One that is not a number becomes 0, any other the nearest that is allowed.  This moves no two
    tokens apart, and is exact.
    """
    beyond = False
    for name, tensor in tensors.items():
        if tensor.dtype.is_floating_point and tensor.numel():
            low, high = allowed(name, tensor.dtype, largest)
            if not all(low <= value <= high for value in extremes(tensor)):
                torch.nan_to_num_(tensor, 0.0, high, low).clamp_(low, high)
                beyond = True
    return beyond
