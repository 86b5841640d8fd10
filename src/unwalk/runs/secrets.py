"""Where a run's privacy noise comes from: a known seed, or a secret file of the peer."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from unwalk.core.errors import InvalidInput
from unwalk.core.noise import NoiseSource, SecretNoise, SimulatedNoise
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_private_file
from unwalk.runs.releases import Draws, RunRegister, marks_of
from unwalk.settings.config import Config
from unwalk.tasks import ShardedTask


def noise_of(config: Config, run: str, task: ShardedTask) -> NoiseSource:
    """The noise source that the settings name.

    To draw secret noise again, the attempt has to be raised, which the transcript records and a
    certificate refuses.  Other settings are another run, and other numbers before the noise another
    draw: the register of draws finds both (:mod:`unwalk.runs.releases`).
    """
    noise = config.noise
    if noise.source == "simulated":
        labels = ("simulated-noise",) if noise.attempt == 1 else ("simulated-noise", noise.attempt)
        return SimulatedNoise(PublicSeeds(config.seed).integer(*labels))
    if not noise.secret_file:
        raise InvalidInput("noise.source is 'secret', which needs noise.secret_file.")
    path = Path(noise.secret_file)
    check_private_file(path)
    if path.stat().st_nlink > 1:
        raise InvalidInput(
            f"{path} has {path.stat().st_nlink} names (hard links), each with a register of draws "
            "of its own; allowed: a secret with one name."
        )
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    register = RunRegister(Draws(path, secret), marks_of(task, secret))
    return SecretNoise(f"{run}/{noise.attempt}", secret, register)


def salt_of(noise: NoiseSource) -> bytes:
    """A secret that turns the transcript's digests into commitments; none in a simulation."""
    if not isinstance(noise, SecretNoise):
        return b""
    message = f"unwalk/digest-salt/{noise.run}".encode()
    return hmac.new(noise.secret, message, hashlib.sha256).digest()
