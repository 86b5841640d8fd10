"""What clipping every record's gradient costs beside a plain step.

    python benchmarks/per_example.py [--quick] [--json] [--device cuda]

A plain step is one forward and one backward pass over a batch of 64.  Beside it stand the two ways
of ``unwalk.engines.per_example``, each with clipping and the weighted sum: ``ghost`` and ``vmap``.
The three take turns, so that all meet the same disturbances of a busy machine, and a ratio is the
median over turns.  Both ways must give the same gradient, or the race does not count.  The last
column says which way unwalk takes; it has to be the faster one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.token import build_model
from unwalk.engines.per_example import Batch, choose_way, ghost_gradients, vmap_gradients
from unwalk.tasks.models import MODELS

BATCH, CLIP, CLASSES = 64, 1.0, 10
ROUNDING = 1e-5  # relative distance of gradients below which two ways did the same work
SLACK = 1.05  # the way taken may be slower than the other by this much: noise of a busy machine
CASES: dict[str, tuple[int, ...]] = {
    "flnet-gn": (1, 28, 28),
    "small-cnn": (1, 8, 8),
    "mlp": (1, 28, 28),
    "logistic": (1, 8, 8),
}
ON_CUDA: dict[str, tuple[int, ...]] = {**CASES, "resnet18-gn": (3, 32, 32)}


@dataclass(frozen=True)
class Result:
    """One model: milliseconds of a plain step, and the ratios of both ways to it."""

    model: str
    parameters: int
    plain_ms: float
    ghost: float
    vmap: float
    difference: float
    taken: str

    @property
    def faster(self) -> bool:
        """Whether the way that is taken is the faster one."""
        mine, other = (self.ghost, self.vmap) if self.taken == "ghost" else (self.vmap, self.ghost)
        return mine <= SLACK * other


def _timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - start


def race(name: str, shape: tuple[int, ...], turns: int, device: torch.device) -> Result:
    model = build_model(lambda: MODELS[name].build(shape, CLASSES), 0).to(device)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, *shape, generator=generator).to(device)
    y = torch.randint(0, CLASSES, (BATCH,), generator=generator).to(device)

    def plain() -> None:
        model.zero_grad(set_to_none=False)
        functional.cross_entropy(model(x), y).backward()

    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "ghost": lambda: ghost_gradients(model, Batch(x, y, bound=CLIP)),
        "vmap": lambda: vmap_gradients(model, Batch(x, y, bound=CLIP)),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 3):
        for way, work in ways.items():
            taken = _timed(work, device)
            if turn >= 3:
                seconds[way].append(taken)
    ratio = {
        way: median(a / b for a, b in zip(found, seconds["plain"], strict=True))
        for way, found in seconds.items()
    }
    return Result(
        model=name,
        parameters=sum(p.numel() for p in model.parameters()),
        plain_ms=1e3 * median(seconds["plain"]),
        ghost=ratio["ghost"],
        vmap=ratio["vmap"],
        difference=_difference(model.eval(), x, y),
        taken=choose_way(model),
    )


def _difference(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Relative distance of the two ways' gradients, without dropout."""
    ghost = ghost_gradients(model, Batch(x, y, bound=CLIP)) or {}
    vmap = vmap_gradients(model, Batch(x, y, bound=CLIP))
    apart = sum(float((ghost[n] - g).square().sum()) for n, g in vmap.items())
    return float((apart / sum(float(g.square().sum()) for g in vmap.values())) ** 0.5)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device = torch.device(options.device)
    cases = ON_CUDA if device.type == "cuda" else CASES
    turns = 10 if options.quick else 60
    results = [race(name, shape, turns, device) for name, shape in cases.items()]
    good = all(r.faster and r.difference < ROUNDING for r in results)
    if options.json:
        rows = [{**asdict(r), "faster": r.faster} for r in results]
        print(json.dumps({"device": options.device, "batch": BATCH, "results": rows}))
        return 0 if good else 1
    print(f"batch {BATCH}, {options.device}, one thread; ratios to a plain step")
    print(f"{'model':12}{'parameters':>12}{'plain ms':>10}{'ghost':>8}{'vmap':>8}  taken")
    for r in results:
        note = "" if r.faster else "  (slower)"
        note += "" if r.difference < ROUNDING else f"  (gradients differ by {r.difference:.1e})"
        print(
            f"{r.model:12}{r.parameters:>12,}{r.plain_ms:>10.2f}{r.ghost:>8.2f}{r.vmap:>8.2f}"
            f"  {r.taken}{note}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
