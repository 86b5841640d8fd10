"""Events: frozen records of what a visit did that matters for privacy.

Accountants read events and nothing else: neither configuration nor code.  An event says what was
done, in public quantities only: no loss, no norm, no count that depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from unwalk.core import validation as may
from unwalk.core.errors import Corrupt

Draw = tuple[int, str, int]
"""An entry of a register of draws: number, chain value, earlier draws for the same records."""


@dataclass(frozen=True)
class GradientSteps:
    """Optimizer steps on minibatches of one peer's records.

    ``data`` is ``all``, ``retained``, ``forgotten`` or ``mixed``; ``touched`` says whether records
    to be forgotten, if the visited peer has any, may have taken part.  ``direction`` is -1 for
    descent, +1 for ascent.  ``noise`` is the std of Gaussian noise added to every (clipped)
    gradient, 0 for none, and ``grid`` what the noisy gradient was rounded to, None where it was
    left as floating-point arithmetic gave it.  With a grid, ``clip_per_example`` bounds each
    record's gradient as real numbers, and their sum was exact.  ``draw`` is the last entry of these
    steps in the secret's register of draws (:class:`GaussianNoise`), with the most earlier draws
    that any of them has.  ``batching`` is how records came into batches, one
    of :data:`BATCHING`: a kind of :class:`unwalk.methods.network_sgd.LocalWork` where batches and
    weights are as that kind makes them, ``other`` for everything else.
    """

    kind: ClassVar[str] = "gradient-steps"
    steps: int
    minibatches: int
    batch: int
    data: str
    touched: bool
    direction: int
    scale: float
    clip: float | None
    clip_per_example: float | None
    noise: float
    origin: str | None
    optimizer: str
    step_size: float
    momentum: float
    weight_decay: float
    state: str
    grid: float | None = None
    batching: str = "other"
    draw: Draw | None = None


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of std ``std`` added to every parameter.

    ``sensitivity`` is the largest distance, in parameters, that the forgotten records can have
    made *in this visit*; None when nothing bounds it.  ``origin`` is ``simulation`` or ``secret``.
    ``grid`` is the power of two to whose multiples the sum was correctly rounded, None where it
    was left as floating-point arithmetic gave it.  ``draw`` is the entry of the secret's register
    of draws: its number, its chain value, and how many earlier draws hid any of these records;
    None where no register is kept.
    """

    kind: ClassVar[str] = "gaussian-noise"
    std: float
    sensitivity: float | None
    origin: str
    grid: float | None = None
    draw: Draw | None = None


@dataclass(frozen=True)
class Projection:
    """Projection of the parameters on the intersection of balls (centre name, radius)."""

    kind: ClassVar[str] = "projection"
    balls: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Wipe:
    """State erased at a peer or in the token: ``optimizer``, ``local``, ``buffers``, ..."""

    kind: ClassVar[str] = "wipe"
    what: str


@dataclass(frozen=True)
class Start:
    """A phase began from ``start``: ``initial`` (public), ``token`` (whatever was handed over) or
    ``arrival`` (the copy that the forgetting peer kept as the token arrived for hop ``hop``).

    ``carries_forgotten`` says whether the starting token was trained on the forgotten records and
    received no noise since.  ``travels`` names what the token carries besides parameters.
    """

    kind: ClassVar[str] = "start"
    phase: str
    start: str
    carries_forgotten: bool
    travels: tuple[str, ...]
    hop: int | None = None


@dataclass(frozen=True)
class OwnSums:
    r"""A peer replaced its former sums of :math:`x x^T` and :math:`x y^T` by new ones.

    ``data`` says over which of its records; ``bits`` is the precision of the fixed point, and
    ``strength`` the ridge parameter with which the model is solved for.
    """

    kind: ClassVar[str] = "own-sums"
    data: str
    touched: bool
    bits: int
    strength: float


@dataclass(frozen=True)
class Edited:
    """The model, or a vector that goes with it, was changed in a way that no accountant bounds.

    ``what`` names the operation (:class:`unwalk.core.program.Edit`), ``data`` the records that
    decided on the change: ``mixed`` where it depends on what the forgotten ones left behind.
    """

    kind: ClassVar[str] = "edited"
    what: str
    data: str
    touched: bool


Event = GradientSteps | GaussianNoise | Projection | Wipe | Start | OwnSums | Edited
_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (GradientSteps, GaussianNoise, Projection, Wipe, Start, OwnSums, Edited)
}
DATA = ("all", "retained", "forgotten", "mixed")
WORK = ("epochs", "averaged", "full", "iid", "slots")
"""How a visit goes over its rows (:class:`unwalk.methods.network_sgd.LocalWork`)."""
BATCHING = (*WORK, "other")
OPTIMIZERS = {"sgd": (), "momentum": ("momentum",), "adam": ("mean", "square")}
"""Every optimizer, with the names of the moments that it keeps."""
MOMENTS = {moment: name for name, moments in OPTIMIZERS.items() for moment in moments}
"""Every moment, with the name of its optimizer."""
STATES = ("none", "carried", "local", "fresh")
WIPES = ("optimizer", "local", "buffers")
EDITS = (
    *("distilled-steps", "importance", "dampening", "newton-step"),
    *("mask", "hold", "log", "subtraction"),
)
STARTS = ("initial", "token", "arrival")
CENTRES = ("origin", "initial", "start", "arrival")
_COUNT = may.whole(0, 2**40)
_HOP = may.whole(1, 2**40)
_SIZE = may.real(0.0)

RANGES: Mapping[type[Event], Mapping[str, may.Range]] = {
    GradientSteps: {
        "steps": _COUNT,
        "minibatches": _COUNT,
        "batch": _COUNT,
        "data": may.word(*DATA),
        "touched": may.truth(),
        "direction": may.Range("-1 or 1", lambda v: type(v) is int and v in (-1, 1)),
        "scale": may.real(),
        "clip": may.optional(may.real(above=0.0)),
        "clip_per_example": may.optional(may.real(above=0.0)),
        "noise": _SIZE,
        "origin": may.optional(may.name()),
        "optimizer": may.word(*OPTIMIZERS),
        "step_size": _SIZE,
        "momentum": may.real(0.0, 1.0),
        "weight_decay": _SIZE,
        "state": may.word(*STATES),
        "grid": may.optional(may.power_of_two()),
        "batching": may.word(*BATCHING),
        "draw": may.optional(may.group(_COUNT, may.digest(), _COUNT)),
    },
    GaussianNoise: {
        "std": _SIZE,
        "sensitivity": may.optional(_SIZE),
        "origin": may.name(),
        "grid": may.optional(may.power_of_two()),
        "draw": may.optional(may.group(_COUNT, may.digest(), _COUNT)),
    },
    Projection: {
        "balls": may.every(may.group(may.word(*CENTRES), may.real(above=0.0)), 1, 2),
    },
    Wipe: {"what": may.word(*WIPES)},
    Start: {
        "phase": may.name(),
        "start": may.word(*STARTS),
        "carries_forgotten": may.truth(),
        "travels": may.every(may.name()),
        "hop": may.optional(_HOP),
    },
    OwnSums: {
        "data": may.word("all", "retained", "forgotten"),
        "touched": may.truth(),
        "bits": may.whole(1, 60),
        "strength": may.real(above=0.0),
    },
    Edited: {
        "what": may.word(*EDITS),
        "data": may.word(*DATA),
        "touched": may.truth(),
    },
}
"""The type and the range of every field of every event."""


def problem(event: Event) -> str | None:
    """What is wrong with an event, in words: a field out of its range, or two that disagree."""
    out_of_range = may.problem(vars(event), RANGES[type(event)])
    if out_of_range is not None:
        return out_of_range
    match event:
        case GradientSteps() | OwnSums() | Edited():
            if event.touched == (event.data == "retained"):
                return f"touched is {event.touched}, but data is {event.data!r}"
    match event:
        case GradientSteps(grid=grid, noise=0.0 as std) if grid is not None:
            return f"grid is {grid!r}, but noise is {std!r}"
        case GaussianNoise(grid=grid, std=0.0 as std) if grid is not None:
            return f"grid is {grid!r}, but std is {std!r}"
    return None


OF_THE_PEER = {
    "epochs": ("steps", "batch"),
    "full": ("minibatches", "batch"),
    "averaged": ("batch",),
}
"""What depends on the number of a peer's records, by the kind of batches."""


def of_the_plan(event: Event, *left_out: str) -> tuple[Any, ...]:
    """An event without the fields that depend on the peer's records or on the draw of its noise.

    >>> of_the_plan(Wipe("local"))
    ('wipe', ('what', 'local'))
    """
    out = {"draw", *OF_THE_PEER.get(getattr(event, "batching", ""), ()), *left_out}
    return (event.kind, *sorted((k, v) for k, v in vars(event).items() if k not in out))


def _unsaid(event: type[Event]) -> frozenset[str]:
    """Fields that are written only where they hold something: logs of before have none."""
    return frozenset({"draw"} if event is GradientSteps else ())


def to_json(event: Event) -> dict[str, Any]:
    """A plain dictionary, ``kind`` first."""
    unsaid = _unsaid(type(event))
    said = {k: v for k, v in vars(event).items() if v is not None or k not in unsaid}
    return {"kind": event.kind, **said}


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def from_json(record: dict[str, Any]) -> Event:
    """The event that :func:`to_json` wrote; unknown kinds, fields and values are refused.

    >>> from_json(to_json(Wipe("local")))
    Wipe(what='local')
    """
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise Corrupt(f"event kind {kind!r} is not known; known: {', '.join(sorted(_KINDS))}.")
    cls = _KINDS[kind]
    names = {f.name for f in fields(cls)}
    given = {k: _frozen(v) for k, v in record.items() if k != "kind"}
    unsaid = _unsaid(cls)
    if set(given) | unsaid != names or any(given.get(name, 0) is None for name in unsaid):
        raise Corrupt(f"event {kind!r} has fields {sorted(given)}; expected {sorted(names)}.")
    event = cls(**given)
    fault = problem(event)
    if fault is not None:
        raise Corrupt(f"event {kind!r}: {fault}.")
    return event
