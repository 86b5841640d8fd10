"""Where kernels are tested: on a CUDA device, or anywhere in Triton's interpreter.

    TRITON_INTERPRET=1 python -m pytest tests/engines/cuda

runs them without a device where Triton is installed, as on Linux for developers.  That takes
minutes; without the variable a machine without a device runs
``tests/engines/cuda/test_interpreted.py`` alone: a small case of every kernel, in seconds.
"""

import importlib.metadata
import importlib.util
import os

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
runs_kernels = pytest.mark.skipif(
    not HAS_TRITON or not (DEVICE == "cuda" or INTERPRETED),
    reason="kernels need Triton, and a CUDA device or its interpreter",
)
quiet = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
"""What NumPy says of the interpreter's ways."""


def _interpreter() -> bool:
    """Whether Triton's interpreter is here in a version that knows NumPy 2.4."""
    if not HAS_TRITON or DEVICE == "cuda":
        return False
    major, minor, *_ = importlib.metadata.version("triton").split(".")
    return (int(major), int(minor)) >= (3, 7)


if _interpreter():  # it is read when Triton is imported, which torch does when it is asked for it
    os.environ["TRITON_INTERPRET"] = "1"
interpreted = pytest.mark.skipif(
    not _interpreter(), reason="without a CUDA device this needs Triton 3.7 or newer"
)
