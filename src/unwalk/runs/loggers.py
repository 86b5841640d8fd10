"""Sends what a run measures to trackers: TensorBoard, MLflow, Weights & Biases.

Each is a :class:`unwalk.runs.run.Logger`.  Only public settings and measures are sent: no model, no
record, no noise.  The packages are extras, loaded when a logger is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.core.validation import check_choice
from unwalk.runs.run import Logger
from unwalk.settings.config import Value

MOST = 100
"""Settings that MLflow takes at once."""


def _loaded(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(
            f"this logger needs a package that is not here ({error}); install unwalk[{extra}]."
        ) from None


class TensorBoard(Logger):
    """Writes event files for TensorBoard into a folder."""

    def __init__(self, folder: str | Path) -> None:
        _loaded("tensorboard", "tensorboard")
        tracker = _loaded("torch.utils.tensorboard", "tensorboard")
        self.writer = tracker.SummaryWriter(str(folder))

    def begin(self, settings: Mapping[str, Value]) -> None:
        """The settings, as a text."""
        lines = [f"    {key} = {value}" for key, value in settings.items()]
        self.writer.add_text("settings", "\n".join(lines))

    def write(self, values: Mapping[str, float], hop: int) -> None:
        """A point of a line for each number."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, hop)

    def end(self) -> None:
        """Write what is left."""
        self.writer.close()


class MLflow(Logger):
    """A run of MLflow, in its store ``uri``, such as ``sqlite:///mlflow.db``."""

    def __init__(self, uri: str, experiment: str = "unwalk") -> None:
        tracking = _loaded("mlflow.tracking", "mlflow")
        self.client = tracking.MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(experiment)
        made = known.experiment_id if known else self.client.create_experiment(experiment)
        self.run = self.client.create_run(made).info.run_id
        self.entities = _loaded("mlflow.entities", "mlflow")

    def begin(self, settings: Mapping[str, Value]) -> None:
        """The settings, as parameters."""
        given = [self.entities.Param(k, str(v)) for k, v in settings.items() if v is not None]
        for first in range(0, len(given), MOST):
            self.client.log_batch(self.run, params=given[first : first + MOST])

    def write(self, values: Mapping[str, float], hop: int) -> None:
        """A metric for each number."""
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=hop)

    def end(self) -> None:
        """Close the run."""
        self.client.set_terminated(self.run)


class WandB(Logger):
    """A run of Weights & Biases; ``mode="offline"`` keeps it on this machine, in ``folder``."""

    def __init__(self, project: str, mode: str | None = None, folder: str | Path = ".") -> None:
        wandb = _loaded("wandb", "wandb")
        self.run = wandb.init(project=project, mode=mode, dir=str(folder), reinit="create_new")
        self.run.define_metric("*", step_metric="hop")

    def begin(self, settings: Mapping[str, Value]) -> None:
        """The settings, as the run's configuration."""
        self.run.config.update(dict(settings))

    def write(self, values: Mapping[str, float], hop: int) -> None:
        """A row of the run's history."""
        self.run.log({**values, "hop": hop})

    def end(self) -> None:
        """Close the run."""
        self.run.finish()


def logger_of(text: str) -> Logger:
    """The logger that ``--log KIND:WHERE`` names."""
    kind, _, where = text.partition(":")
    check_choice("--log", kind, LOGGERS)
    if not where:
        raise InvalidInput(
            f"--log is {text!r}; allowed: tensorboard:FOLDER, mlflow:URI such as "
            "mlflow:sqlite:///mlflow.db, or wandb:PROJECT."
        )
    try:
        return LOGGERS[kind](where)
    except UnwalkError:
        raise
    except Exception as error:  # each package has its own
        raise InvalidInput(f"--log {text} cannot begin: {error}") from error


LOGGERS: Mapping[str, type[TensorBoard] | type[MLflow] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
