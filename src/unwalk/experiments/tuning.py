"""Tunes RR-DU and every baseline over the same number of settings.

Every method has the preset's own setting, half and double its step size, and two more values of its
most important setting; one setting is changed at a time, and all continue from the same trained
model.  The grid is laid around the preset ``paper-matched``.  Not an experiment of the paper, so
not part of ``all``.
"""

from __future__ import annotations

from unwalk.core.validation import check_choice
from unwalk.experiments.cells import Cell, over_seeds
from unwalk.experiments.paper import model
from unwalk.methods.ddp import DDPSettings
from unwalk.methods.dpsgd import DPSGDSettings
from unwalk.settings.config import Config, Value

SEEDS = 1

USED = "preset"
"""The row of the preset's own setting."""

STEPS = {"mnist": (0.005, 0.02), "cifar10": (0.0025, 0.01), "digits": (0.0025, 0.01)}
DECAYS = {"mnist": (0.0, 1e-3), "cifar10": (0.0, 5e-4), "digits": (5e-4, 1e-3)}
CLIPS = {"mnist": (0.2, 1.0), "cifar10": (0.1, 0.5), "digits": (0.2, 1.0)}


def grid(task: str) -> dict[str, dict[str, dict[str, Value]]]:
    """Settings by method, each under its name; the preset's own is the one that changes nothing."""
    check_choice("task", task, STEPS)
    steps: dict[str, dict[str, Value]] = {
        f"step size {step:g}": {"unlearn.learning_rate": step} for step in STEPS[task]
    }
    own: dict[str, dict[str, dict[str, Value]]] = {
        "rrdu": {f"L = {clip:g}": {"unlearn.clip": clip} for clip in CLIPS[task]},
        "finetune": {
            f"weight decay {decay:g}": {"unlearn.weight_decay": decay} for decay in DECAYS[task]
        },
        "dpsgd": {f"C = {clip:g}": {"dpsgd.clip": clip} for clip in (1.0, 10.0)},
        "ddp": {
            "no ball": {"ddp.radius": None},
            "noise on every gradient": {"ddp.noise_on": "gradient"},
        },
    }
    return {method: {USED: {}, **steps, **more} for method, more in own.items()}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """Every setting of every method."""
    return [
        cell
        for method, settings in grid(task).items()
        for name, changed in settings.items()
        for cell in over_seeds(
            "tuning",
            f"{method} {name}",
            method,
            seeds,
            {**model(task, method), **changed},
        )
    ]


def words(method: str, config: Config) -> str:
    """A method's setting in words: its step size and what else the grid changes."""
    unlearn, train, ddp = config.unlearn, config.train, config.of(DDPSettings)
    step = train.learning_rate if unlearn.learning_rate is None else unlearn.learning_rate
    decay = train.weight_decay if unlearn.weight_decay is None else unlearn.weight_decay
    ball = "no ball" if ddp.radius is None else f"ball of {ddp.radius:g}"
    often = "once a visit" if ddp.noise_on == "weights" else "on every gradient"
    own = {
        "rrdu": f"L {_numeral(unlearn.clip)}",
        "finetune": f"weight decay {decay:g}",
        "dpsgd": f"C {config.of(DPSGDSettings).clip:g}",
        "ddp": f"{ball}, noise {often}",
    }
    return f"step size {step:g}, {own[method]}"


def _numeral(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
