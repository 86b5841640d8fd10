"""unwalk: train one model by passing it from peer to peer, and make it forget again.

Names are loaded when first used, so that ``import unwalk.privacy`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unwalk.core import __version__ as __version__

if TYPE_CHECKING:
    from unwalk.api import compare, run
    from unwalk.core.errors import Corrupt, Diverged, InvalidInput, Refused, UnwalkError
    from unwalk.core.transcript import Transcript
    from unwalk.runs.run import RunResult
    from unwalk.tasks import Deletion, Trigger, from_arrays, from_dataset

_HOME = {
    "Corrupt": "unwalk.core.errors",
    "Deletion": "unwalk.tasks",
    "Diverged": "unwalk.core.errors",
    "InvalidInput": "unwalk.core.errors",
    "Refused": "unwalk.core.errors",
    "RunResult": "unwalk.runs.run",
    "Transcript": "unwalk.core.transcript",
    "Trigger": "unwalk.tasks",
    "UnwalkError": "unwalk.core.errors",
    "compare": "unwalk.api",
    "from_arrays": "unwalk.tasks",
    "from_dataset": "unwalk.tasks",
    "run": "unwalk.api",
}

__all__ = [
    "Corrupt",
    "Deletion",
    "Diverged",
    "InvalidInput",
    "Refused",
    "RunResult",
    "Transcript",
    "Trigger",
    "UnwalkError",
    "compare",
    "from_arrays",
    "from_dataset",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'unwalk' has no attribute {name!r}")
