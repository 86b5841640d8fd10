"""Tasks: data, shards, models, backdoors, and what has to be forgotten.

To add a task, write one file with a ``load`` and its recipe in ``catalogue``.
"""

from __future__ import annotations

from unwalk.tasks.catalogue import TASKS, build_task
from unwalk.tasks.files import from_file
from unwalk.tasks.forgetting import KINDS, Deletion, Trigger
from unwalk.tasks.models import MODELS, check_model, load_factory
from unwalk.tasks.own import OwnData, from_arrays, from_dataset
from unwalk.tasks.partitions import PARTITIONS, Dealing
from unwalk.tasks.recipes import Recipe
from unwalk.tasks.sources import Holdings, Scale, Source, Table
from unwalk.tasks.task import Samples, ShardedTask

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
    "check_model",
    "from_arrays",
    "from_dataset",
    "from_file",
    "load_factory",
]
