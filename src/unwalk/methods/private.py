"""What the private baselines (ddp, dpsgd) share: when noise is added, walks, and threat model.

Noise is added after the request (``continued``), or from hop 1 of training (``from-start``), where
forgetting does nothing: U = A(D).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from unwalk.core.events import WORK
from unwalk.core.plan import Method, Phase, Route
from unwalk.methods.network_sgd import Descent, LocalWork, train_descent, unlearn_descent
from unwalk.methods.record import (
    UNPROVED,
    Calibrated,
    Decided,
    Guarantee,
    MethodRecord,
    Nominal,
)
from unwalk.settings.config import Config, MethodSettings, setting

READINGS = ("continued", "from-start")


def reading_setting() -> Any:
    """The setting that says when noise is added."""
    text = "continued from the trained model, or from-start: noisy training, U = A(D)"
    return setting("continued", text, choices=READINGS)


def work_setting() -> Any:
    """The setting for the work of a visit."""
    return setting(None, "a visit: epochs, averaged or full; empty: as the walk's", choices=WORK)


class PrivateSettings(MethodSettings, Protocol):
    """Settings that both baselines have."""

    @property
    def reading(self) -> str: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def work(self) -> str | None: ...


def noisy_hops(config: Config, reading: str) -> int:
    """Hops with noise: the training walk's (from-start) or the unlearning walk's (continued)."""
    return config.train.hops if reading == "from-start" else config.unlearn.hops


def data_of(reading: str) -> str:
    """Which records a walk uses: the retained ones if ``continued``, else all."""
    return "all" if reading == "from-start" else "retained"


def local_work(config: Config, own: PrivateSettings) -> LocalWork:
    """The local work of a visit: the baseline's own setting, or else that of its walk."""
    work = _walks_own(config, own).work
    return work if own.work is None else replace(work, kind=own.work)


def _walks_own(config: Config, own: PrivateSettings) -> Descent:
    """A visit of the noisy walk: unlearning if ``continued``, training if ``from-start``."""
    return train_descent(config) if own.reading == "from-start" else unlearn_descent(config)


def descent(config: Config, own: PrivateSettings) -> Descent:
    """A visit of a private baseline, before clipping and noise."""
    base = _walks_own(config, own)
    rule = base.rule
    if own.optimizer == "plain":
        rule = replace(rule, optimizer="sgd", weight_decay=0.0)
    return replace(base, rule=rule, work=local_work(config, own), clip=None)


def record(
    kind: type[PrivateSettings],
    method: Callable[[Config, Decided], Method],
    route: Route,
    listing: tuple[str, str, str],
    nominal: Nominal,
    *,
    per_example: bool = False,
    guarantee: Guarantee = UNPROVED,
) -> MethodRecord:
    """A baseline's record; ``listing`` is its name, label and description."""

    def phase(config: Config, decided: Decided) -> Phase:
        """The walk after a request: on the retained records; none where U = A(D)."""
        own, unlearn = config.of(kind), config.unlearn
        continued = own.reading == "continued"
        return Phase(
            name="unlearn",
            method=method(config, decided),
            route=route,
            hops=unlearn.hops if continued else 0,
            keep=unlearn.keep,
            reset_optimizer=unlearn.reset_optimizer or own.optimizer == "plain",
            carries_forgotten=continued,
        )

    def training(config: Config, decided: Decided) -> tuple[Phase, ...]:
        """Training with noise from hop 1, where the reading asks for it."""
        if config.of(kind).reading != "from-start":
            return ()
        hops, keep = config.train.hops, config.train.keep
        made = method(config, decided)
        return (Phase(name="train", method=made, route=route, hops=hops, keep=keep),)

    name, label, description = listing
    return MethodRecord(
        name=name,
        label=label,
        description=description,
        phase=phase,
        training=training,
        settings=kind,
        per_example=per_example,
        guarantee=guarantee,
        nominal=nominal,
    )


def nominal_reason(calibrated: Calibrated, origin: str) -> str:
    """Why the number of a private baseline is no guarantee."""
    when = "noise was added after the request only"
    if calibrated.reading == "from-start":
        when = (
            "noise was added at training time, from hop 1 on all records, and forgetting did "
            "nothing (U = A(D))"
        )
    simulated = "the noise came from a known seed (simulation)"
    return f"{calibrated.formula}; {when}; no proof covers this run, and {simulated}."
