"""Whether a noisy method was worth it beside a restart, which is exact."""

from __future__ import annotations

from typing import Any

from unwalk.methods import METHODS
from unwalk.privacy.worth import noise_loss, restart_loss
from unwalk.reports.numbers import counted
from unwalk.runs.metrics import CLEAN_MARGIN, Reading

NO_CHEAPER = "no cheaper than a restart"


def hops_until(readings: list[Reading], goal: float) -> int | None:
    """Hops of the phase that forgets until clean accuracy first reaches ``goal``."""
    phase = readings[-1].phase
    here = [r for r in readings if r.phase == phase]
    before = [r.hop for r in readings if r.phase != phase]
    first = max(before, default=0)
    return next((r.hop - first for r in here if r.clean >= goal), None)


def worth(
    method: str, document: dict[str, Any], classes: int, series: dict[str, list[Reading]]
) -> str:
    """One or two sentences; empty for methods that add no noise.

    The first is known before the walk: noise that raises the loss as much as beginning again
    does.  The second compares hops, where a restart or retraining ran beside it.
    """
    parameters = document["parameters"]
    if not METHODS[method].beside_restart or not parameters["noise_std"]:
        return ""
    std, norm = max(parameters["noise_std"]), parameters.get("feature_norm")
    told = []
    if norm is not None and parameters.get("loss") == "softmax":
        cost, whole = noise_loss(std, classes, norm), restart_loss(classes)
        beside = f"the noise (std {std:.3g}) can raise the loss by {cost:.2g}, and beginning again"
        text = f"By a bound known beforehand, {beside} by {whole:.2g}"
        exact = f": {NO_CHEAPER}, which is exact." if cost >= whole else "."
        told.append(text + exact)
    if "retrain" in series:
        told += _measured(method, series)
    return " ".join(told)


def _measured(method: str, series: dict[str, list[Reading]]) -> list[str]:
    goal = series["retrain"][-1].clean - CLEAN_MARGIN
    found = {n: hops_until(series[n], goal) for n in (method, "restart", "retrain") if n in series}
    rivals = {n: hops for n, hops in found.items() if n != method and hops is not None}
    if not rivals:
        return []
    rival, theirs = min(rivals.items(), key=lambda item: item[1])
    mine = found[method]
    name = "a restart" if rival == "restart" else "retraining"
    if mine is None or mine >= theirs:
        when = "not at all" if mine is None else f"after {counted(mine, 'hop')}"
        return [
            f"It came within one point of retraining {when}, {name} after {theirs}: {NO_CHEAPER}."
        ]
    took = counted(mine, "hop")
    return [f"It came within one point of retraining after {took}, {name} after {theirs}."]
