"""A small case of every kernel in Triton's interpreter, for machines without a CUDA device."""

import pytest
import torch

from tests.engines.cuda import test_clipped_steps as clipped
from tests.engines.cuda import test_fleet_layers as fleet
from tests.engines.cuda import test_fused_network as networks
from tests.engines.cuda import test_group_norm_kernels as group
from tests.engines.cuda import test_head as head
from tests.kernels import interpreted, quiet

pytestmark = [interpreted, quiet]


def test_group_normalisation():
    group.test_group_norm_forward_and_backward("threes", torch.float32, True, True, True)
    group.test_group_norm_with_a_pool((2, 8, 4, 4, 6), torch.float32)


def test_norms_by_record():
    group.test_norms_of_convolutions_by_record("padded", torch.float32)
    group.test_norms_of_convolutions_by_record("few places", torch.float32)
    group.test_records_are_scaled_in_float32()


def test_the_head():
    head.test_forward_and_backward("uneven", True, torch.float32)


@pytest.mark.parametrize("name", ["flnet, odd pictures", "residual"])
def test_networks_with_batch_normalisation(name):
    networks.test_outputs_gradients_and_running_statistics_are_the_same(name, False)


def test_gradients_clipped_by_record():
    clipped.test_clipped_gradients_equal_the_reference("rows", False, None)


@pytest.mark.parametrize("case", ["strided, odd", "small, strided", "normalised"])
def test_layers_of_a_fleet(monkeypatch, case):
    fleet.test_gradients_and_buffers_equal_the_reference(monkeypatch, case)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_updates_of_a_fleet(optimizer):
    fleet.test_the_one_pass_update_equals_the_plain_one(optimizer, True)
