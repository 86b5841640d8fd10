"""Secret randomness: the Gaussian noise that a guarantee rests on.

Whoever knows the noise can subtract it, so its seed must never travel, be logged or stand in a
configuration.  Two sources exist:

* :class:`SimulatedNoise` draws from a known seed.  A simulated run can be repeated to the bit,
  and everything made from it says ``simulation``: it shows what a guarantee would look like and
  protects nobody.
* :class:`SecretNoise` draws from a peer's own secret through
  HMAC-SHA256(secret, run, hop, digest of the incoming token): never one noise on two inputs.

Simulated noise comes from torch's generator, which is no cipher (on a CPU it takes 32 bits of its
seed, so that all its streams can be tried).  Secret noise comes from SHAKE-256 keyed with the
256 bits of the HMAC, by the transform of Box and Muller in 64-bit arithmetic: values up to 8.57
standard deviations occur, and larger ones, of probability 1e-17, do not.  The rounding of floating
point leaves the textbook Gaussian only approximately true, as ``docs/architecture.md`` says.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from unwalk.core.errors import InvalidInput


class NoiseSource(Protocol):
    """Where privacy noise comes from."""

    @property
    def origin(self) -> str:
        """``simulation`` or ``secret``: what events and certificates say."""

    @property
    def needs_digest(self) -> bool:
        """Whether :meth:`draw` must be told the digest of the incoming token."""

    def draw(
        self,
        count: int,
        *,
        hop: int,
        step: int,
        digest: str | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        """``count`` independent standard normals for noise number ``step`` of hop ``hop``."""


def _known_normals(
    key: bytes, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(key[:8], "little") >> 1)
    return torch.randn(count, generator=generator, dtype=dtype, device=device)


def _secret_normals(
    key: bytes, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Standard normals that nobody without the 256-bit ``key`` can tell from truly random ones."""
    half = (count + 1) // 2
    stream = np.frombuffer(hashlib.shake_256(key).digest(16 * half), "<u8")
    uniform = ((stream >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # (0, 1]
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:half])), 2.0 * np.pi * uniform[half:]
    normals = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(normals).to(device=device, dtype=dtype)


@dataclass(frozen=True)
class SimulatedNoise:
    """Noise from a known seed: repeatable, and worthless as protection."""

    seed: int
    origin: str = field(default="simulation", init=False)
    needs_digest: bool = field(default=False, init=False)

    def draw(
        self,
        count: int,
        *,
        hop: int,
        step: int,
        digest: str | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        key = hashlib.sha256(f"unwalk/simulated-noise/{self.seed}/{hop}/{step}".encode()).digest()
        return _known_normals(key, count, dtype, device)


@dataclass(frozen=True)
class SecretNoise:
    """Noise from a peer's secret of at least 32 bytes; the secret is never shown."""

    run: str
    secret: bytes = field(repr=False)
    origin: str = field(default="secret", init=False)
    needs_digest: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if len(self.secret) < 32:
            raise InvalidInput(
                f"the noise secret has {len(self.secret)} bytes; allowed: 32 bytes or more."
            )

    def draw(
        self,
        count: int,
        *,
        hop: int,
        step: int,
        digest: str | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        if digest is None:
            raise InvalidInput("secret noise needs the digest of the incoming token.")
        message = f"unwalk/secret-noise/{self.run}/{hop}/{step}/{digest}".encode()
        key = hmac.new(self.secret, message, hashlib.sha256).digest()
        return _secret_normals(key, count, dtype, device)
