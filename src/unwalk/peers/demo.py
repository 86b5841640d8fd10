"""Five peers on this machine train on handwritten digits; one is killed and comes back.

In the end the same peers are sent through the simulator in the same order, and both models must be
equal to the last bit.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from unwalk.core.errors import UnwalkError
from unwalk.core.plan import Plan
from unwalk.core.token import Token
from unwalk.engines.inprocess import InProcess
from unwalk.peers.daemon import committed_log, run_peer, status
from unwalk.peers.network import Limits, Network
from unwalk.peers.provision import make_network
from unwalk.peers.tokens import open_token
from unwalk.peers.work import plan_of
from unwalk.walks import Fixed

PEERS = 5
HOPS = 60
SETTINGS: dict[str, Any] = {
    "task": "digits",
    "method": "finetune",
    "compare": "none",
    "forget.kind": "nothing",
    "train.hops": HOPS,
}
PATIENCE = 120.0


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody listens on just now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    finally:
        for one in held:
            one.close()


def same_walk(plan: Plan, served: list[int]) -> Token:
    """The simulator's token after these peers served the hops in this order."""
    (phase,) = plan.phases
    fixed = replace(phase, route=Fixed(served), hops=len(served))
    (outcome,) = InProcess().run([replace(plan, phases=(fixed,))])
    return outcome.token


def equal_bytes(one: Token, two: Token) -> bool:
    """Whether two tokens have the same tensors, bit for bit."""
    a, b = one.tensors(), two.tensors()
    return set(a) == set(b) and all(a[k].numpy().tobytes() == b[k].numpy().tobytes() for k in a)


class Demo:
    """The five processes."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder, self.tell = folder, tell
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "unwalk.peers.daemon", "sklearn.datasets"])
        self.context = context
        self.processes: dict[int, Any] = {}

    def start(self, peer: int) -> None:
        path = self.folder / f"peer-{peer}"
        process = self.context.Process(target=run_peer, args=(path,), daemon=True)
        process.start()
        self.processes[peer] = process

    def states(self) -> list[dict[str, Any]]:
        return [status(self.folder / f"peer-{p}") for p in range(PEERS)]

    def until(self, what: str, done: Callable[[list[dict[str, Any]]], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done(self.states()):
            if time.monotonic() > end:
                raise UnwalkError(f"{what} did not happen within {PATIENCE:g} seconds.")
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            process.join(10.0)
            if process.is_alive():
                process.kill()


def run_demo(folder: Path, tell: Callable[[str], None] = print) -> list[int]:
    """The whole demonstration; the peers that served the hops, in order."""
    if folder.exists():
        shutil.rmtree(folder)
    network = make_network(
        folder,
        name="demo",
        addresses=free_addresses(PEERS),
        settings=SETTINGS,
        limits=Limits(lease=1.0, connect=2.0, stop=10.0),
        noise="simulation",
    )
    demo = Demo(folder, tell)
    begun = time.monotonic()
    try:
        for peer in range(PEERS):
            demo.start(peer)
        demo.until("a third of the walk", lambda s: _furthest(s) >= HOPS // 3)
        victim = _holder(demo.states())
        tell(f"peer-{victim} is killed at about hop {_furthest(demo.states())}")
        os.kill(demo.processes[victim].pid, signal.SIGKILL)
        demo.processes[victim].join()
        gone = _furthest(demo.states())
        demo.until("going on without it", lambda s: _furthest(s) >= gone + 5)
        tell(f"peer-{victim} comes back at about hop {_furthest(demo.states())}")
        demo.start(victim)
        demo.until("the end", lambda s: all(one.get("model") for one in s))
        tell(f"the run is committed after {time.monotonic() - begun:.1f} s")
        log = _whole_log(folder)
    finally:
        demo.close()
    return _compare(folder, network, log, tell)


def _furthest(states: list[dict[str, Any]]) -> int:
    return max(int(one.get("hop", 0)) for one in states)


def _holder(states: list[dict[str, Any]]) -> int:
    return next((n for n, one in enumerate(states) if one.get("holding")), 0)


def _whole_log(folder: Path) -> list[Any]:
    """The checked log, as soon as some peer has gathered it."""
    end = time.monotonic() + PATIENCE
    while True:
        for peer in range(PEERS):
            try:
                return committed_log(folder / f"peer-{peer}")
            except UnwalkError:
                continue
        if time.monotonic() > end:
            raise UnwalkError("no peer has gathered the whole hop log.")
        time.sleep(0.1)


def _compare(
    folder: Path, network: Network, log: list[Any], tell: Callable[[str], None]
) -> list[int]:
    served = [e["body"]["peer"] for e in log if e["body"]["kind"] == "hop"]
    recovered = sum(e["body"]["kind"] == "recovery" for e in log)
    tell(f"{len(served)} hops, signed and chained; recoveries in the lineage: {recovered}")
    model = Path(status(folder / "peer-0")["model"])
    ours = open_token(model, PEERS).token()
    if not equal_bytes(ours, same_walk(plan_of(network), served)):
        raise UnwalkError("the model is not the simulator's.")
    tell("the simulator gives the same model, bit for bit, when the same peers serve the hops")
    tell(f"model: {model}")
    return served


if __name__ == "__main__":
    run_demo(Path("runs") / "peers-demo")
