"""Kernels for many models against plain torch: on a CUDA device, or in Triton's interpreter."""

import pytest
import torch
from torch import nn

from tests.kernels import DEVICE, quiet, runs_kernels
from unwalk.core.token import Layout
from unwalk.engines import fleet_gradients
from unwalk.engines.cuda import Executor
from unwalk.engines.cuda.fleet_layers import FusedConv2d
from unwalk.engines.fleet_gradients import BatchedGradient

pytestmark = [runs_kernels, quiet]


def digits():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(512, 4),
    )  # fmt: skip


def strided():
    return nn.Sequential(
        nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 7, 2, bias=False),
        nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(7, 3, 2), nn.Flatten(),
        nn.Linear(3, 4),
    )  # fmt: skip


def small():
    return nn.Sequential(
        nn.Conv2d(4, 20, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(20, 12, 2, padding=1),
        nn.Conv2d(12, 18, 3), nn.ReLU(), nn.Flatten(), nn.Linear(162, 4),
    )  # fmt: skip


def normalised():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3),
        nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip


def deep():
    return nn.Sequential(
        nn.Conv2d(48, 24, 3, padding=2), nn.BatchNorm2d(24), nn.Conv2d(24, 4, 3, stride=2),
        nn.Flatten(), nn.Linear(36, 4),
    )  # fmt: skip


CASES = {
    "digits": (digits, (1, 8, 8)),
    "strided, odd": (strided, (3, 9, 9)),
    "small, strided": (small, (4, 7, 7)),
    "normalised": (normalised, (1, 12, 12)),
    "many channels": (deep, (48, 5, 5)),
}


def setting(make, shape, models=3, rows=5):
    """A model, and random parameters, buffers and batches of several."""
    torch.manual_seed(0)
    made = [make() for _ in range(models)]
    flat = [torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in made]
    parameters = torch.stack(flat).to(DEVICE)
    model = made[0].to(DEVICE)
    buffers = {k: v.expand(models, *v.shape).clone() for k, v in model.named_buffers()}
    x = torch.randn(models, rows, *shape, device=DEVICE)
    y = torch.randint(4, (models, rows), device=DEVICE)
    weights = torch.rand(models, rows, device=DEVICE)
    parameters += 0.05 * torch.randn_like(parameters)
    return model, parameters, buffers, x, y, weights


def both(monkeypatch, model, precision="float32"):
    """Gradients by kernels, and the reference."""
    made = []
    for executor in (Executor(torch.device(DEVICE)), None):
        monkeypatch.setattr(fleet_gradients, "executor_for", lambda _, chosen=executor: chosen)
        made.append(BatchedGradient(model, Layout.of(model), None, precision))
    assert any("Fused" in type(m).__name__ for m in made[0].module.modules())
    assert not any("Fused" in type(m).__name__ for m in made[1].module.modules())
    return made


def doubled(given):
    """The same in float64."""
    if isinstance(given, dict):
        return {k: doubled(v) for k, v in given.items()}
    if isinstance(given, torch.Tensor):
        return given.double() if given.is_floating_point() else given
    return [doubled(one) for one in given]


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_buffers_equal_the_reference(monkeypatch, case):
    model, *given = setting(*CASES[case])
    mine, reference = both(monkeypatch, model)
    got, fresh = mine(*given)
    want, wanted = reference(*doubled(given))
    assert float((got - want).norm()) < 1e-5 * float(want.norm())
    for name, buffer in wanted.items():
        assert torch.allclose(fresh[name].double(), buffer.double(), rtol=1e-4, atol=1e-6), name
    assert torch.equal(mine(*given)[0], got)


def test_a_closed_relu_passes_nothing_on(monkeypatch):
    model, parameters, *given = setting(digits, (1, 8, 8))
    views = Layout.of(model).views(parameters[0])
    views["2.bias"].fill_(-100.0)
    mine, _ = both(monkeypatch, model)
    got, _ = mine(parameters, *given)
    slopes = [Layout.of(model).views(row) for row in got]
    assert not slopes[0]["0.weight"].any()
    assert not slopes[0]["2.bias"].any()
    assert slopes[0]["6.bias"].any()
    assert slopes[1]["0.weight"].any()


@pytest.mark.device
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_low_precision_is_at_most_twice_as_far_off_as_torch_is(monkeypatch, precision):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    model, *given = setting(digits, (1, 8, 8), models=8, rows=64)
    _, exact = both(monkeypatch, model)
    want, _ = exact(*doubled(given))
    mine, theirs = (
        float((gradient(*given)[0] - want).norm())
        for gradient in both(monkeypatch, model, precision)
    )
    assert 0.0 < mine <= 2.0 * theirs
    assert theirs < 0.1 * float(want.norm())


def test_what_has_no_kernel_keeps_the_plain_path(monkeypatch):
    wide = nn.Conv2d(1, 2, (3, 1), padding=(1, 0))
    assert not FusedConv2d.takes(wide)
    model, *given = setting(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, (3, 1), padding=(1, 0)), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2),
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3, 4),
        ),
        (1, 6, 6),
    )  # fmt: skip
    mine, reference = both(monkeypatch, model)
    assert isinstance(mine.module.get_submodule("1"), nn.ReLU)
    assert isinstance(mine.module.get_submodule("2"), nn.MaxPool2d)
    assert torch.allclose(mine(*given)[0], reference(*given)[0], rtol=1e-4, atol=1e-6)
