"""Networks out of fused kernels against the networks they were made from.

The kernels run on a CUDA device, or anywhere with Triton's interpreter (TRITON_INTERPRET=1).
"""

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn import functional

from unwalk.engines import fused
from unwalk.engines.fused_layers import First, Normalisation
from unwalk.tasks.models import flnet
from unwalk.tasks.resnet import Block

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
runs_kernels = pytest.mark.skipif(
    not fused.available() or (DEVICE == "cpu" and not interpreted),
    reason="kernels need Triton, and a CUDA device or its interpreter",
)


def residual():
    norm = nn.BatchNorm2d
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        norm(8),
        nn.ReLU(),
        Block(8, 8, 1, norm),
        Block(8, 24, 2, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


NETWORKS = {
    "flnet": (lambda: flnet((1, 20, 20), 10), (1, 20, 20)),
    "flnet, odd pictures": (lambda: flnet((1, 18, 18), 10), (1, 18, 18)),
    "residual": (residual, (3, 9, 8)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().to(DEVICE).train()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
        norm.running_mean.uniform_(-0.2, 0.2)
    return model, shape


@pytest.fixture(autouse=True)
def exact_float32():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@runs_kernels
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("beside", [False, True], ids=["one stream", "two streams"])
def test_outputs_gradients_and_running_statistics_are_the_same(name, beside):
    from unwalk.engines.step_kernels import softmax_gradient

    if beside and DEVICE == "cpu":
        pytest.skip("streams need a CUDA device")
    model, shape = made(name)
    reference = copy.deepcopy(model)
    x = torch.randn(6, *shape, device=DEVICE)
    y = torch.randint(10, (6,), device=DEVICE)
    places = {p: torch.full_like(p, float("nan")) for p in model.parameters()}
    side = torch.cuda.Stream() if beside else None
    mine = fused.fuse(model, side, places)
    assert mine is not None
    mine.load()
    given = x.contiguous(memory_format=torch.channels_last)
    if mine.first is not None:
        given = mine.first.table(None, x, torch.float32)
    torch.manual_seed(1)
    found = mine(given)
    torch.manual_seed(1)
    wanted = reference(x)
    assert float((found - wanted).detach().norm() / wanted.detach().norm()) < 1e-5
    start = softmax_gradient(found.detach(), y, 1 / len(y))
    gradients = torch.autograd.grad(found, list(model.parameters()), start)
    if beside:
        torch.cuda.current_stream().wait_stream(side)
    mine.settle()
    mine.store()
    loss = functional.cross_entropy(wanted, y)
    reference_gradients = torch.autograd.grad(loss, list(reference.parameters()))
    largest = max(float(g.norm()) for g in reference_gradients)
    for (key, p), a, b in zip(
        model.named_parameters(), gradients, reference_gradients, strict=True
    ):
        assert float((a - b).norm()) < 1e-4 * float(b.norm()) + 1e-6 * largest, key
        if p in mine.placed:
            assert torch.equal(places[p], a), key
    for (key, a), (_, b) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
        if "num_batches" not in key:
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), key


@runs_kernels
def test_the_same_step_gives_the_same_bits():
    model, shape = made("residual")
    x = torch.randn(6, *shape, device=DEVICE)
    places = {p: torch.zeros_like(p) for p in model.parameters()}
    mine = fused.fuse(model, None, places)
    x = mine.first.table(None, x, torch.float32)
    mine.load()
    first, again = mine(x), mine(x)  # type: ignore[misc]
    assert torch.equal(first, again)


def test_what_is_rewritten(monkeypatch):
    monkeypatch.setattr(fused, "available", lambda: True)
    for name in NETWORKS:
        model, _ = made(name)
        places = {p: torch.zeros_like(p) for p in model.parameters()}
        mine = fused.fuse(model, None, places)
        kinds = [type(m) for m in mine.network.modules()]
        left = [n for n in mine.network.graph.nodes if n.op == "call_module"]
        called = [type(mine.network.get_submodule(n.target)) for n in left]
        assert not {nn.BatchNorm2d, nn.ReLU, nn.Identity, nn.Conv2d} & set(called), name
        norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
        assert called.count(Normalisation) == norms
        assert First in kinds
        assert (nn.MaxPool2d in called) is False


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=None)),
        nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(16)),
    ],
    ids=["no norm", "no weights", "cumulative", "another kind of norm"],
)
def test_what_is_left_alone(model, monkeypatch):
    monkeypatch.setattr(fused, "available", lambda: True)
    places = {p: torch.zeros_like(p) for p in model.parameters()}
    assert fused.fuse(model, None, places) is None


def test_without_triton_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(fused, "available", lambda: False)
    model, _ = made("flnet")
    assert fused.fuse(model, None, {p: torch.zeros_like(p) for p in model.parameters()}) is None
