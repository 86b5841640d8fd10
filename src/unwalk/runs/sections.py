"""Further sections of settings: proved and exact methods, noise, certificates, measuring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def setting(default: Any, help: str) -> Any:
    """A dataclass field with its explanation."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class SealConfig:
    """Noise at the forgetting peer before anything leaves it.  Target: unlearn.epsilon, delta."""

    local_epochs: int = setting(0, "passes over what u retains before the noise, unobserved")
    std: float | None = setting(None, "noise on the parameters; empty: what the ledger needs")
    visits: int = setting(
        0, "LIGHTWEIGHT visits afterwards at most; 0: u descends on what it keeps"
    )
    share: float = setting(0.5, "share of the budget for the seal, where visits come after it")
    radius: float = setting(1.0, "ball-seal: radius of the ball round the initial model")
    ratio: float = setting(2.0, "ball-seal: its diameter in units of the noise")


@dataclass(frozen=True)
class RewindConfig:
    """Back to before the forgotten records were used."""

    way: str = setting("first-contact", "to the first-contact or to the first-use of a record")


@dataclass(frozen=True)
class RestartConfig:
    """Begin again without the forgotten records."""

    local_steps: int = setting(0, "visits' worth of work at the forgetting peer before the walk")


@dataclass(frozen=True)
class SumsConfig:
    """The ridge head on fixed features."""

    strength: float = setting(1.0, "ridge parameter")


@dataclass(frozen=True)
class NoisyStartConfig:
    """Noise at every training visit."""

    visits: int | None = setting(None, "visits to a peer that the noise is made for; empty: usual")
    std: float | None = setting(None, "noise on the parameters a visit; empty: calibrated")


@dataclass(frozen=True)
class NoiseConfig:
    """Where privacy noise comes from."""

    source: str = setting("simulated", "simulated (a known seed, protects nobody) or secret")
    secret_file: str = setting("", "source = secret: a file of 32 bytes or more, of mode 0600")
    attempt: int = setting(1, "how often noise was drawn for this request; above 1 is a redraw")


@dataclass(frozen=True)
class CertificateConfig:
    """The certificate of a run."""

    key: str = setting("", "file of an Ed25519 key that signs it; empty: unwalk sign, later")


@dataclass(frozen=True)
class TriggerConfig:
    """The BadNets trigger.  Empty values are the task's own."""

    shape: str | None = setting(None, "square, cross or checkerboard")
    place: str | None = setting(None, "a corner (lower-right, ...) or centre")
    size: int | None = setting(None, "side length in pixels")
    value: float | None = setting(None, "brightness, 0 to 1")
    target: int | None = setting(None, "the class that triggered images are labelled")
    mode: str | None = setting(None, "replace records of the peer, or add stamped copies")


@dataclass(frozen=True)
class EvaluateConfig:
    """What is measured along the way."""

    every: int = setting(5, "measure every so many hops")


@dataclass(frozen=True)
class PerformanceConfig:
    """Settings that may change speed and rounding, never the mechanism."""

    threads: int = setting(1, "torch threads; results are bit-equal for equal numbers only")
    digests: bool = setting(False, "digest of the token at every hop, not only at the end")
    precision: str = setting("float32", "cuda: float32 or bfloat16 for forward and backward")
    compiled: bool = setting(False, "cuda: fused kernels where they know the layers")
    engine: str = setting("inprocess", "several walks: inprocess, fleet (as one batch) or auto")
    checkpoint: float = setting(2.0, "seconds between checkpoints for --resume; 0: after every hop")
