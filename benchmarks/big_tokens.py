"""Tokens of 100 MB and 1 GB between two real peers: time of a hop, memory, and the same bits.

    python benchmarks/peers.py --token 100MB [--token 1GB] [--json]

Two peers on loopback pass a token to and fro.  The time of a hop is from the moment a token is
offered until its sender knows that it was taken: sent, hashed, written and flushed at both peers,
checked, signed, committed.  Beside it stands ``cp`` of the same file on the same disk, flushed
with ``sync``, in the same run; the ratio is the median hop over the median copy.  A second table
says when each phase of a hop was over.

Memory is what a peer needs at its peak (``VmHWM``, from its start to its end) beyond what a peer
with a token of 457 KB has when it is idle, in tokens.

At the end the peers' model is compared with the simulator's, bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.utils import skip_init

from benchmarks.peers import at_the_end, events, memory, wide
from unwalk.core.token import Token
from unwalk.engines.inprocess import InProcess
from unwalk.peers.handover.visit import plan_of
from unwalk.peers.identity.network_file import Network
from unwalk.peers.status import status
from unwalk.peers.storage.token_files import open_token

WIDTHS = {"457KB": (332, 1), "20MB": (707, 10), "100MB": (1581, 10), "1GB": (5000, 10)}
"""Width and number of the inner layers."""
SIZES = ("100MB", "1GB")
TIMES = 4.0
"""A hop may take so many times what copying the file takes, at most."""
TOKENS = 2.5
"""Memory above an idle peer, at most."""
HOPS = 8
WARM = 2
"""Hops that are not counted: the first token does not leave before it is written."""
COPIES = 5
LAST = "acknowledged"
PHASES = {
    "sender: hashed, written and flushed": ("visited", "written"),
    "receiver: all bytes there, hashed and written": ("received", "arrived"),
    "receiver: looked through (beside the flush)": ("received", "checked"),
    "receiver: flushed": ("received", "flushed"),
    "receiver: the stamp has come": ("received", "stamped"),
    "receiver: accepted": ("received", "at"),
    LAST: ("handed", "at"),
}
"""What happens on a hop, and where a peer's journal says when it was done.  The sender's part and
the receiver's go on at once, so the times are those since the offer."""


def linear(width: int) -> nn.Module:
    """A layer whose rows are alike: to draw a quarter of a billion numbers takes long."""
    layer: nn.Linear = skip_init(nn.Linear, width, width)
    with torch.no_grad():
        layer.bias.zero_()
        layer.weight.copy_((torch.rand(width) - 0.5) / width**0.5)
    return layer


def of_457kb() -> nn.Module:
    return wide(*WIDTHS["457KB"], linear)


def of_20mb() -> nn.Module:
    return wide(*WIDTHS["20MB"], linear)


def of_100mb() -> nn.Module:
    return wide(*WIDTHS["100MB"], linear)


def of_1gb() -> nn.Module:
    return wide(*WIDTHS["1GB"], linear)


@dataclass(frozen=True)
class Result:
    """Hops and copies in seconds, memory in tokens."""

    token: str
    size: int
    hops: tuple[float, ...]
    copies: tuple[float, ...]
    idle_mb: float
    peak_mb: float
    phases: dict[str, float]

    @property
    def hop(self) -> float:
        return median(self.hops)

    @property
    def copy(self) -> float:
        return median(self.copies)

    @property
    def ratio(self) -> float:
        """The median hop in median copies."""
        return self.hop / self.copy

    @property
    def memory(self) -> float:
        """The peak above an idle peer, in tokens."""
        return (self.peak_mb - self.idle_mb) * 2**20 / self.size

    @property
    def ok(self) -> bool:
        return self.ratio <= TIMES and self.memory <= TOKENS


def walked(
    folder: Path, token: str, hops: int
) -> AbstractContextManager[tuple[Network, list[Path], list[Any]]]:
    """Two peers that have walked ``hops`` hops and are still there."""
    settings = {
        "data.records": 8,
        "train.batch": 4,
        "train.hops": hops,
        "model.name": f"benchmarks.big_tokens:of_{token.lower()}",
    }
    return at_the_end(folder, settings, 2)


def measure(token: str, hops: int = HOPS) -> Result:
    with tempfile.TemporaryDirectory(dir=os.environ.get("UNWALK_BENCH_DIR")) as place:
        with walked(Path(place) / "small", "457KB", 4) as (_, _, running):
            idle = max(memory(p.pid, "VmRSS") for p in running)
        with walked(Path(place) / "net", token, hops) as (made, paths, running):
            peak = max(memory(p.pid, "VmHWM") for p in running)
        ends = [Path(status(p)["model"]) for p in paths]
        copies = [copied(ends[0], Path(place) / "copy") for _ in range(COPIES)]
        check_bits(made, ends)
        counted = [since for hop, since in sorted(hops_of(paths).items()) if hop > WARM]
        return Result(
            token=token,
            size=ends[0].stat().st_size,
            hops=tuple(since[LAST] for since in counted),
            copies=tuple(copies),
            idle_mb=idle,
            peak_mb=peak,
            phases={name: median(since[name] for since in counted) for name in PHASES},
        )


def hops_of(paths: Sequence[Path]) -> dict[int, dict[str, float]]:
    """For each token that was handed on, seconds from its offer to the end of each phase."""
    by_event: dict[str, dict[int, dict[str, Any]]] = {}
    for path in paths:
        for record in events(path):
            by_event.setdefault(record["event"], {})[record.get("hop", 0)] = record
    return {
        hop: {
            name: by_event[event][hop][moment] - sent["offered"]
            for name, (event, moment) in PHASES.items()
        }
        for hop, sent in by_event["handed"].items()
    }


def copied(source: Path, target: Path) -> float:
    """Seconds to copy a file and flush the copy."""
    begun = time.monotonic()
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    subprocess.run(["sync", target], check=True)
    taken = time.monotonic() - begun
    target.unlink()
    return taken


def check_bits(made: Network, ends: Sequence[Path]) -> None:
    """Both peers ended with the simulator's bits."""
    if len({path.name for path in ends}) != 1:
        raise SystemExit("the peers ended with different models")
    theirs: Token = open_token(ends[0], 2).token()
    (outcome,) = InProcess().run([plan_of(made)])
    ours = outcome.token
    for name, tensor in ours.tensors().items():
        if not torch.equal(tensor, theirs.tensors()[name]):
            raise SystemExit(f"{name} is not what the simulator computes")


def report(results: Sequence[Result], *, as_json: bool) -> int:
    """Print what was measured; 1 if a limit was missed."""
    if as_json:
        more = [{"ratio": round(r.ratio, 2), "memory_tokens": round(r.memory, 2)} for r in results]
        print(json.dumps([{**asdict(r), **m} for r, m in zip(results, more, strict=True)]))
        return 0 if all(r.ok for r in results) else 1
    print(
        f"{'token':6} {'bytes':>14} {'hop':>9} {'longest':>9} {'copy':>9} {'times':>6} "
        f"{'limit':>6} {'memory':>14} {'limit':>6}"
    )
    for r in results:
        print(
            f"{r.token:6} {r.size:14,} {r.hop:7.2f} s {max(r.hops):7.2f} s {r.copy:7.2f} s "
            f"{r.ratio:6.2f} {TIMES:6.1f} {r.memory:7.2f} tokens {TOKENS:6.1f}  "
            f"{'ok' if r.ok else 'missed'}"
        )
    for r in results:
        print(f"{r.token}: since the offer, median of {len(r.hops)} hops")
        for name, seconds in r.phases.items():
            print(f"  {name:46} {seconds:7.2f} s {seconds / r.copy:6.2f} copies")
    return 0 if all(r.ok for r in results) else 1
