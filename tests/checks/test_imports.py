"""Rooms without torch stay without torch when they are really imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    "room",
    [
        "unwalk",
        "unwalk.privacy",
        "unwalk.walks",
        "unwalk.settings.config",
        "unwalk.methods",
        "unwalk.certificates",
    ],
)
def test_import_leaves_torch_out(room):
    program = f"import sys, {room}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False", f"import {room} imports torch"
