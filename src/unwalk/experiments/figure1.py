"""The paper's figure: backdoor and clean accuracy over 100 + 100 hops, by method.

RR-DU against fine-tuning, DP-SGD, DDP and retraining from scratch.  The reported numbers are the
end points that section 6.2 gives in words.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, Reported, over_seeds
from unwalk.settings.fields import Value

SEEDS = 5

MODELS = {"mnist": "flnet-gn", "cifar10": "resnet18-gn"}
"""DP-SGD clips every record's gradient, which BatchNorm does not allow."""

REPORTED = {
    "mnist": {
        "rrdu": Reported(99.15, 10.0),
        "finetune": Reported(99.15, 18.0),
        "dpsgd": Reported(None, 60.0),
        "ddp": Reported(96.7, 35.0),
        "retrain": Reported(99.5, 10.0),
    },
    "cifar10": {
        "rrdu": Reported(88.5, 10.0),
        "finetune": Reported(None, 27.5),
        "dpsgd": Reported(52.5, None),
        "ddp": Reported(52.5, None),
        "retrain": Reported(89.0, 10.0),
    },
}


def model(task: str, method: str) -> dict[str, Value]:
    """The model that a method needs, where it is not the task's own."""
    return {"model.name": MODELS[task]} if method == "dpsgd" and task in MODELS else {}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """Every method over every seed."""
    reported = REPORTED.get(task, {})
    return [
        cell
        for method in ("rrdu", "finetune", "dpsgd", "ddp", "retrain")
        for cell in over_seeds(
            "figure1",
            method,
            method,
            seeds,
            model(task, method),
            reported.get(method, Reported()),
        )
    ]
