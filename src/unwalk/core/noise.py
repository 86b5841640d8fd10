"""Secret randomness: the Gaussian noise that a guarantee rests on.

Whoever knows the noise can subtract it, so its seed must never travel, be logged or appear in a
configuration.  There are two sources:

* :class:`SimulatedNoise` draws from a known seed.  A simulated run can be repeated to the bit,
  and everything made from it says ``simulation``: it shows what a guarantee would look like and
  protects nobody.
* :class:`SecretNoise` draws from a peer's own secret: HMAC-SHA256 of the secret and of what the
  noise is drawn for gives the key.  The same noise is never added to two inputs.

Either gives noise of two kinds.  What a guarantee rests on is *released*: ``release`` returns the
correctly rounded value of the real sum of parameters and Gaussian (``core/rounding.py``).  That is
a function of the output of the textbook Gaussian mechanism, so the number format reveals nothing
more.  Its random bits come from SHAKE-256 keyed with the 256 bits of the HMAC, or, in a simulation,
from the counter-based Philox; the rest of the code is the same.  ``draw`` returns floating-point
normals for methods whose guarantee is nominal: the low bits of such a sum reveal what the noise was
added to, so nothing is certified from it.

That SHAKE-256 is indistinguishable from random bits is a cryptographic assumption.  The time that a
release takes is not hidden.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.events import Draw
from unwalk.core.rounding import add_rounded
from unwalk.core.validation import SECRET_BYTES


class NoiseSource(Protocol):
    """Where privacy noise comes from."""

    @property
    def origin(self) -> str:
        """``simulation`` or ``secret``, as events and certificates state it."""

    @property
    def needs_digest(self) -> bool:
        """Whether :meth:`draw` must be told the digest of the incoming token."""

    def draw(self, like: torch.Tensor, *, hop: int, step: int, digest: str | None) -> torch.Tensor:
        """Standard normals for noise number ``step`` of hop ``hop``, as many as ``like`` has."""

    def release(
        self, values: npt.NDArray[Any], *, std: float, grid: float, peer: int, hop: int, step: int
    ) -> tuple[npt.NDArray[Any], Draw | None]:
        """The rounded sum of ``values`` and noise, and the entry in the register of draws."""


class Register(Protocol):
    """Where a peer enters each draw of noise before it is made (see ``runs.releases``)."""

    def enter(self, *, run: str, peer: int, hop: int, step: int, inputs: str) -> Draw:
        """The entry for this draw, written now unless it is already in the register.

        ``inputs`` commits to what the noise is added to; the noise is keyed by the chain value.
        """


@dataclass(frozen=True)
class ShakeBits:
    """Bits of SHAKE-256: without the 256-bit ``key`` nobody can tell them from random bits.

    The key always has 32 bytes, so that two pairs of key and label never give the same input.
    """

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_key(self.key)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        stream = hashlib.shake_256(self.key + b"/words").digest(8 * count)
        return np.frombuffer(stream, "<u8", count)

    def more(self, place: int, count: int) -> int:
        return _more(self.key, place, count)


@dataclass(frozen=True)
class PhiloxBits:
    """Bits of the counter-based generator Philox: fast and repeatable, but not secret."""

    key: bytes

    def __post_init__(self) -> None:
        _check_key(self.key)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        key = np.frombuffer(self.key[:16], "<u8").astype(np.uint64)
        return np.random.Philox(key=key).random_raw(count)

    def more(self, place: int, count: int) -> int:
        return _more(self.key, place, count)


def _check_key(key: bytes) -> None:
    if len(key) != 32:
        raise InvalidInput(f"the key of random bits has {len(key)} bytes; allowed: 32.")


def _more(key: bytes, place: int, count: int) -> int:
    """The first ``count`` bits of the stream of this place."""
    size = (count + 7) // 8
    stream = hashlib.shake_256(key + f"/more/{place}".encode()).digest(size)
    return int.from_bytes(stream, "big") >> (8 * size - count)


def _known_normals(key: bytes, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device=like.device)
    generator.manual_seed(int.from_bytes(key[:8], "little") >> 1)
    return torch.randn(like.numel(), generator=generator, dtype=like.dtype, device=like.device)


def _secret_normals(key: bytes, like: torch.Tensor) -> torch.Tensor:
    """Standard normals that nobody without the 256-bit ``key`` can tell from truly random ones."""
    count = like.numel()
    half = (count + 1) // 2
    stream = np.frombuffer(hashlib.shake_256(key).digest(16 * half), "<u8")
    uniform = ((stream >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # (0, 1]
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:half])), 2.0 * np.pi * uniform[half:]
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normals).to(like)


@dataclass(frozen=True)
class SimulatedNoise:
    """Noise from a known seed: repeatable, and worthless as protection."""

    seed: int
    origin: str = field(default="simulation", init=False)
    needs_digest: bool = field(default=False, init=False)

    def draw(self, like: torch.Tensor, *, hop: int, step: int, digest: str | None) -> torch.Tensor:
        return _known_normals(self._key(hop, step), like)

    def release(
        self, values: npt.NDArray[Any], *, std: float, grid: float, peer: int, hop: int, step: int
    ) -> tuple[npt.NDArray[Any], Draw | None]:
        return add_rounded(values, std, grid, PhiloxBits(self._key(hop, step))), None

    def _key(self, hop: int, step: int) -> bytes:
        return hashlib.sha256(f"unwalk/simulated-noise/{self.seed}/{hop}/{step}".encode()).digest()


@dataclass(frozen=True)
class SecretNoise:
    """Noise from a peer's secret of at least 32 bytes; the secret is never shown."""

    run: str
    secret: bytes = field(repr=False)
    register: Register | None = None
    origin: str = field(default="secret", init=False)
    needs_digest: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if len(self.secret) < SECRET_BYTES:
            raise InvalidInput(
                f"the noise secret has {len(self.secret)} bytes; allowed: {SECRET_BYTES} bytes or "
                "more."
            )

    def draw(self, like: torch.Tensor, *, hop: int, step: int, digest: str | None) -> torch.Tensor:
        if digest is None:
            raise InvalidInput("secret noise needs the digest of the incoming token.")
        message = f"unwalk/secret-noise/{self.run}/{hop}/{step}/{digest}".encode()
        key = hmac.new(self.secret, message, hashlib.sha256).digest()
        return _secret_normals(key, like)

    def release(
        self, values: npt.NDArray[Any], *, std: float, grid: float, peer: int, hop: int, step: int
    ) -> tuple[npt.NDArray[Any], Draw | None]:
        stated = f"unwalk/draw/{std.hex()}/{grid.hex()}/{values.shape}/{values.dtype}/".encode()
        inputs = hmac.new(self.secret, stated + values.tobytes(), hashlib.sha256).hexdigest()
        draw, named = None, f"{self.run}/{hop}/{step}/{inputs}"
        if self.register is not None:
            draw = self.register.enter(run=self.run, peer=peer, hop=hop, step=step, inputs=inputs)
            named = draw[1]
        message = f"unwalk/rounded-noise/{named}".encode()
        key = hmac.new(self.secret, message, hashlib.sha256).digest()
        return add_rounded(values, std, grid, ShakeBits(key)), draw
