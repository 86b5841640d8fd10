"""Tasks: the records of every peer, the model, and what one peer has to forget.

In comes the name of a task and its options, a file, or arrays; out comes a :class:`ShardedTask`:
one shard per peer, a function that makes the model, a test set, and the rows to be forgotten.

============================ =============================================================
catalogue                    the named tasks, and what each says about itself
digits, blobs, mnist, ...    one file per named task
own, files, tables, pictures a user's own arrays, tables and folders of pictures
declared                     the records of real peers, which agree on a format only
sources, official            records, and how they are dealt to peers; published data sets
checks                       what is wrong with arrays that a user brings
forgetting                   triggers, and which records have to be forgotten
models, resnet               models
adapters                     networks of Hugging Face, whose adapter is the token
features, gabor, patches     fixed features, which any task can have, for a linear head
============================ =============================================================

Start reading at ``task.ShardedTask``, then ``digits.py``, the shortest named task.  To add a task,
write one file with a ``load`` and its recipe in ``catalogue``.

What needs torch is loaded when it is first used, so that a listing of the tasks does not wait.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unwalk.tasks.catalogue import TASKS, Recipe, build_task, can_be_named
from unwalk.tasks.forgetting import KINDS, Deletion, Trigger

if TYPE_CHECKING:
    from unwalk.tasks.files import from_file
    from unwalk.tasks.models import MODELS, check_model, load_factory
    from unwalk.tasks.own import OwnData, from_arrays, from_dataset
    from unwalk.tasks.sources import PARTITIONS, Dealing, Holdings, Scale, Source, Table
    from unwalk.tasks.task import Samples, ShardedTask

_HOME = {
    "Dealing": "sources",
    "Holdings": "sources",
    "MODELS": "models",
    "OwnData": "own",
    "PARTITIONS": "sources",
    "Samples": "task",
    "Scale": "sources",
    "ShardedTask": "task",
    "Source": "sources",
    "Table": "sources",
    "check_model": "models",
    "from_arrays": "own",
    "from_dataset": "own",
    "from_file": "files",
    "load_factory": "models",
}

__all__ = [
    "KINDS",
    "MODELS",
    "PARTITIONS",
    "TASKS",
    "Dealing",
    "Deletion",
    "Holdings",
    "OwnData",
    "Recipe",
    "Samples",
    "Scale",
    "ShardedTask",
    "Source",
    "Table",
    "Trigger",
    "build_task",
    "can_be_named",
    "check_model",
    "from_arrays",
    "from_dataset",
    "from_file",
    "load_factory",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"unwalk.tasks.{_HOME[name]}"), name)
    raise AttributeError(f"module 'unwalk.tasks' has no attribute {name!r}")
