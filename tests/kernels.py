"""Where kernels are tested: on a CUDA device, or anywhere in Triton's interpreter.

    TRITON_INTERPRET=1 python -m pytest tests/engines

runs them without a device where Triton is installed.
"""

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
runs_kernels = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not (DEVICE == "cuda" or INTERPRETED),
    reason="kernels need Triton, and a CUDA device or its interpreter",
)
quiet = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
"""What NumPy says of the interpreter's ways."""
