"""Compares bfloat16 with fused, compiled kernels against plain float32.

``float32`` is PyTorch's own kernels; ``bfloat16`` is what ``results/`` was made with on a CUDA
device: forward and backward passes in bfloat16, fused kernels that keep pictures channels-last.
On a CPU both rows are the same computation.  Not an experiment of the paper, so not part of
``all``.
"""

from __future__ import annotations

from unwalk.experiments.cells import Cell, over_seeds
from unwalk.settings.config import Value

SEEDS = 3

METHODS = ("rrdu", "finetune", "retrain")
PATHS: dict[str, dict[str, Value]] = {
    "float32": {"performance.precision": "float32", "performance.compiled": False},
    "bfloat16": {"performance.precision": "bfloat16", "performance.compiled": True},
}


def cells(task: str, seeds: int = SEEDS) -> list[Cell]:
    """Every method on either path, with the same seeds."""
    return [
        cell
        for method in METHODS
        for path, settings in PATHS.items()
        for cell in over_seeds("precision", f"{method} {path}", method, seeds, settings)
    ]
