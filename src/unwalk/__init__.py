"""unwalk: train one model across peers without a server, and make it forget records again.

The model is a token that walks from peer to peer.  A task, a method and settings enter; a
:class:`RunResult` leaves, with the model, the transcript of every hop, and the claims that can be
made about what was forgotten.

:func:`run`, :func:`compare`, :func:`sweep` and :func:`evaluate` are the calls for most users;
:func:`from_arrays` and :func:`from_dataset` bring your own data.  Start reading at
``unwalk/api.py``, then ``unwalk/runs/run.py``; ``docs/architecture.md`` shows how the packages fit
together.

Names are loaded when first used, so that ``import unwalk.privacy`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unwalk.core import __version__ as __version__

if TYPE_CHECKING:
    from unwalk.api import compare, evaluate, run, sweep
    from unwalk.core.errors import Corrupt, Diverged, InvalidInput, Refused, UnwalkError
    from unwalk.core.transcript import Transcript
    from unwalk.runs.loggers import MLflow, TensorBoard, WandB
    from unwalk.runs.run import Hop, Logger, RunResult
    from unwalk.tasks import Deletion, Trigger, from_arrays, from_dataset

_HOME = {
    "Corrupt": "unwalk.core.errors",
    "Deletion": "unwalk.tasks",
    "Diverged": "unwalk.core.errors",
    "Hop": "unwalk.runs.run",
    "InvalidInput": "unwalk.core.errors",
    "Logger": "unwalk.runs.run",
    "MLflow": "unwalk.runs.loggers",
    "Refused": "unwalk.core.errors",
    "RunResult": "unwalk.runs.run",
    "TensorBoard": "unwalk.runs.loggers",
    "Transcript": "unwalk.core.transcript",
    "Trigger": "unwalk.tasks",
    "UnwalkError": "unwalk.core.errors",
    "WandB": "unwalk.runs.loggers",
    "compare": "unwalk.api",
    "evaluate": "unwalk.api",
    "from_arrays": "unwalk.tasks",
    "from_dataset": "unwalk.tasks",
    "run": "unwalk.api",
    "sweep": "unwalk.api",
}

__all__ = [
    "Corrupt",
    "Deletion",
    "Diverged",
    "Hop",
    "InvalidInput",
    "Logger",
    "MLflow",
    "Refused",
    "RunResult",
    "TensorBoard",
    "Transcript",
    "Trigger",
    "UnwalkError",
    "WandB",
    "compare",
    "evaluate",
    "from_arrays",
    "from_dataset",
    "run",
    "sweep",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'unwalk' has no attribute {name!r}")
