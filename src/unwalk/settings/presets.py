"""Presets: named readings of the paper, and the settings that we recommend.

* ``paper`` takes the paper's words: Adam at 0.005, s averaged minibatches per hop, one noisy ascent
  step per visit to u, a ball around the starting model.
* ``paper-matched`` is the reading whose numbers fit the paper's tables: SGD with momentum, a local
  epoch per hop, one ascent pass over the forget set per visit, weight noise once, projection.
* ``practical`` is our recommendation for forgetting well.
* ``certified`` trains so that a ledger seal can be proved: plain SGD with L2 on keyed slots, a
  linear head in 64 bits, inputs of bounded length.

A preset is a table of settings for every task, refined per task.  Trust radius and clip depend
on the model, so they are given per task.
"""

from __future__ import annotations

from unwalk.core.validation import check_choice
from unwalk.settings.fields import Value

Settings = dict[str, Value]

PRESETS: dict[str, dict[str, Settings]] = {
    "paper": {
        "*": {
            "train.optimizer": "adam",
            "train.learning_rate": 0.005,
            "train.work": "averaged",
            "train.minibatches": 4,
            "unlearn.direction": "forget",
            "unlearn.visit": "minibatch",
            "unlearn.visit_optimizer": "plain",
            "unlearn.noise_on": "gradient",
            "unlearn.clip": 0.5,
            "unlearn.trust_radius": 10.82,
        },
        "cifar10": {"unlearn.clip": 0.2, "unlearn.trust_radius": 56.30},
    },
    "paper-matched": {
        "*": {
            "train.optimizer": "momentum",
            "train.learning_rate": 0.005,
            "unlearn.direction": "forget",
            "unlearn.visit": "pass",
            "unlearn.clip": 0.5,
            "unlearn.trust_radius": 10.82,
            "ddp.noise_on": "weights",
            "ddp.optimizer": "same",
            "ddp.centre": "start",
            "ddp.radius_means": "radius",
        },
        "digits": {"unlearn.hops": 200},
        "mnist": {"train.learning_rate": 0.01, "train.weight_decay": 5e-4},
        "cifar10": {
            "model.name": "resnet18-plain",
            "train.weight_decay": 1e-4,
            "unlearn.clip": 0.2,
            "unlearn.trust_radius": 56.30,
        },
    },
    "practical": {
        "*": {
            "unlearn.direction": "forget",
            "unlearn.visit": "pass",
            "unlearn.clip": 0.5,
            "unlearn.calibration": "none",
        },
        "digits": {"unlearn.hops": 200},
        "heart": {"train.optimizer": "sgd", "train.learning_rate": 1.0},
        # Inputs of length 1 at most: steps may be long.
        "mnist-gabor": {"train.learning_rate": 1.0},
        "a9a": {"train.optimizer": "sgd", "train.learning_rate": 2.0},
    },
    "certified": {
        "*": {
            "method": "seal",
            "model.name": "linear",
            "model.precision": "float64",
            "train.optimizer": "sgd",
            "train.work": "slots",
            "train.learning_rate": 3.7,
            "train.weight_decay": 0.003,
            "train.epochs": 3,
            "unlearn.hops": 60,
            "seal.local_epochs": 240,
            "evaluate.every": 1,
            "forget.kind": "records",
        },
        "heart": {
            "train.learning_rate": 1.0,
            "train.weight_decay": 0.03,
            "train.epochs": 1,
            "train.hops": 60,
            "unlearn.hops": 40,
            "seal.local_epochs": 0,
        },
    },
}


def preset_settings(preset: str, task: str) -> Settings:
    """The settings a preset makes for a task."""
    tables = PRESETS[check_choice("preset", preset, PRESETS)]
    return {**tables.get("*", {}), **tables.get(task, {})}
