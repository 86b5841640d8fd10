"""What the precision of sums costs: accuracy and bytes of a ridge head on Gabor features.

    python benchmarks/sums.py --task mnist --cosines 1000 --places 4,6,8,10,14,20,40

Each line: ridge parameter, binary places, bits of an entry, megabytes of sums, test accuracy.
"""

from __future__ import annotations

import argparse

import torch
from torch.nn import functional

from unwalk.core.packing import size_of
from unwalk.methods.sums import places, width_of
from unwalk.tasks import Deletion, ShardedTask, build_task

Sums = list[tuple[torch.Tensor, torch.Tensor]]


def sums_of(task: ShardedTask) -> Sums:
    """Each peer's sums of x x^T and x y^T, in 64-bit floating point."""
    found = []
    for peer in range(task.peers):
        shard = task.shard(peer)
        x = shard.x.double()
        found.append((x.T @ x, x.T @ functional.one_hot(shard.y, task.classes).double()))
    return found


def accuracy(task: ShardedTask, sums: Sums, strength: float, bits: int) -> float | None:
    """Test accuracy of the head of sums with so many binary places; None if there is no head."""
    unit = 2.0**-bits
    square = sum(((a / unit).round() for a, _ in sums), torch.zeros(1)) * unit
    product = sum(((b / unit).round() for _, b in sums), torch.zeros(1)) * unit
    square.diagonal().add_(strength)
    factor, failed = torch.linalg.cholesky_ex(square)
    if bool(failed):
        return None
    head = torch.cholesky_solve(product, factor)
    answers = (task.test.x.double() @ head).argmax(1)
    return float((answers == task.test.y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", default="digits")
    parser.add_argument("--cosines", type=int, default=100)
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--strengths", default="1,0.01")
    parser.add_argument("--places", default="4,6,8,10,14,20,40")
    given = parser.parse_args()
    options = {"extractor": "gabor", "cosines": given.cosines}
    task = build_task(given.task, peers=given.peers, options=options, forget=Deletion("nothing"))
    sums, width = sums_of(task), task.source.shape[0]
    entries = width * (width + 1) // 2 + width * task.classes
    for strength in map(float, given.strengths.split(",")):
        least = places(width, given.peers, strength)
        for bits in sorted({least, *map(int, given.places.split(","))}):
            wide = width_of(float(sum(task.source.published or ())), given.peers, bits)
            right = accuracy(task, sums, strength, bits)
            said = "no head" if right is None else f"{right:.2%}"
            note = " (the rule's)" if bits == least else ""
            size = size_of(entries, wide) / 1e6
            print(
                f"{strength:g} {bits} places{note}, {wide} bits, {size:.2f} MB: {said}", flush=True
            )


if __name__ == "__main__":
    main()
