"""A small case of every kernel in Triton's interpreter, for machines without a CUDA device.

Convolutions, which it does not know, are built for the device they are written for.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from tests.conftest import ROOT
from tests.engines.cuda import test_clipped_steps as clipped
from tests.engines.cuda import test_convolution_kernels as convolutions
from tests.engines.cuda import test_flat_updates as flat
from tests.engines.cuda import test_fleet_layers as fleet
from tests.engines.cuda import test_fleet_update as updates
from tests.engines.cuda import test_fused_network as networks
from tests.engines.cuda import test_group_norm_kernels as group
from tests.engines.cuda import test_philox as philox
from tests.kernels import interpreted, quiet
from unwalk.engines.cuda import fleet_layers

pytestmark = [interpreted, quiet]


def test_group_normalisation():
    group.test_group_norm_forward_and_backward("pairs", torch.float32, True, True, True)
    group.test_group_norm_with_a_pool((2, 8, 4, 4, 6), torch.float32)


def test_norms_by_record():
    group.test_norms_of_convolutions_by_record("padded", torch.float32)
    group.test_records_are_scaled_in_float32()


def test_a_network_with_batch_normalisation():
    networks.test_outputs_gradients_and_running_statistics_are_the_same("residual")


def test_gradients_clipped_by_record():
    clipped.test_clipped_gradients_equal_the_reference("rows", clipped.squares)


def test_streams():
    philox.test_a_kernel_draws_the_same_words(7, 3)


def test_an_update():
    flat.test_an_update_in_one_pass_is_that_of_plain_torch("momentum", 0.1, torch.bfloat16)


def test_updates_of_a_fleet():
    updates.test_a_step_in_one_pass_is_the_same("momentum", True, True)


def tiny():
    """A layer with a pool, a small layer that goes by rows, and a normalisation."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 2),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip


def test_layers_of_a_fleet(monkeypatch):
    monkeypatch.setattr(fleet_layers, "PROGRAMS", 4)
    assert fleet_layers.takes_rows(5, 16, 16, (3, 3), fleet_layers.Spec((2, 2), 1, 0))
    assert fleet_layers.takes_lines(5, 16, 16, (3, 3), fleet_layers.Spec((2, 2), 1, 1))
    model, *given = fleet.setting(tiny, (1, 6, 6), models=1)
    mine, reference = fleet.both(monkeypatch, model)
    got, fresh = mine(*given)
    want, wanted = reference(*fleet.doubled(given))
    assert float((got - want).norm()) < 1e-5 * float(want.norm())
    for name, buffer in wanted.items():
        assert torch.allclose(fresh[name].double(), buffer.double(), rtol=1e-4, atol=1e-6), name


SHARED = 227 * 1024
"""Bytes of shared memory that a program can have on Hopper."""


def test_convolutions_build_for_hopper(tmp_path):
    names = ("half as many places", "many channels, many pictures")
    layers = [",".join(map(str, convolutions.SHAPES[name])) for name in names]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    script = Path(__file__).with_name("build_convolutions.py")
    done = subprocess.run(
        [sys.executable, script, *layers], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    built = [line.split() for line in done.stdout.splitlines()]
    each = ["_convolve", "_convolve", "_weigh"]
    assert [name for name, _ in built] == [*each, "_add_up", *each]
    assert max(int(shared) for _, shared in built) <= SHARED
