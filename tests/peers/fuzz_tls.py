"""The same bad messages over mutual TLS, to a real daemon; see :mod:`tests.peers.fuzz`.

Members that lie, a revoked member and a stranger whom the CA certified each have a connection of
their own; whoever has no certificate of this CA, or one that is over, gets none.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import grpc
import grpc.aio

from tests.peers.floods import resident
from tests.peers.fuzz_mutations import Liar, Mutator, Sent
from tests.peers.fuzz_reasons import sentence_of
from tests.peers.fuzz_scenes import EXPIRED, NO_KEY, OLD, Record, Scene
from tests.peers.fuzz_target import MORE, Tally, framed, outcome_of, scene_calls
from unwalk.peers.daemon import LOG, run_peer
from unwalk.peers.decisions.ballot import end_of
from unwalk.peers.decisions.votes import Matter, state_from
from unwalk.peers.identity.credentials import host_name
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.local_network import free_addresses
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.handover import MOST_ENDS
from unwalk.peers.storage.database import read_only
from unwalk.peers.telemetry import LARGEST_LOG
from unwalk.peers.transport.wire import MESSAGE, OPTIONS, SERVICE, STREAMS

MOST_GROWTH = 64.0
"""MiB that the daemon may have more in memory after the messages than after the first part."""
SECONDS = 30.0
"""Within which every call has to be answered."""
AT_ONCE = STREAMS // 2
"""Calls that are made at once; some that ended here are still open at the other end."""
BROKEN_OFF = "INTERNAL: Internal error from Core"
"""What gRPC says here when the other end has answered a call before all of it was sent."""
WITHOUT = 0.25
"""So much of the messages comes from those who are no members."""


class Daemon:
    """One peer as a process, as it was in a scene."""

    def __init__(self, record: Record, scene: Scene) -> None:
        self.place = Path(tempfile.mkdtemp(dir=record.folder))
        shutil.rmtree(self.place)
        shutil.copytree(record.place(scene), self.place)
        self.address = free_addresses(1)[0]
        command = [sys.executable, "-m", "tests.peers.fuzz_tls", str(self.place), self.address]
        with (self.place / "errors.txt").open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)

    @property
    def database(self) -> Path:
        return self.place / "store" / "state.sqlite"

    def changes(self) -> int:
        with closing(read_only(self.database)) as db:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

    def rows(self) -> dict[str, int]:
        with closing(read_only(self.database)) as db:
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            names = [r[0] for r in db.execute(query)]
            return {n: db.execute(f"SELECT COUNT(*) FROM {n}").fetchone()[0] for n in names}

    async def quiet(self) -> int:
        """How much was changed, once nothing is being changed."""
        last, since = -1, time.monotonic()
        while time.monotonic() - since < 1.0:
            now = self.changes()
            if now != last:
                last, since = now, time.monotonic()
            await asyncio.sleep(0.1)
        return last

    def stop(self) -> str | None:
        """End it as its operator would; what is wrong with how it ended."""
        if self.process.poll() is not None:
            return f"the daemon ended by itself, with {self.process.returncode}: {self.said()}"
        self.process.terminate()
        try:
            code = self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "the daemon did not end"
        return f"the daemon ended with {code}: {self.said()}" if code else None

    def said(self) -> str:
        return (self.place / "errors.txt").read_text(errors="replace")[-1500:]


class Caller:
    """Connections to one daemon, one for each who calls."""

    def __init__(self, record: Record, daemon: Daemon, scene: Scene) -> None:
        self.daemon, self.record = daemon, record
        self.name = host_name(f"peer-{scene.peer}", "test")
        self.authority = (record.folder / "ca.pem").read_bytes()
        self.channels: dict[str, grpc.aio.Channel] = {}

    def channel(self, folder: str) -> grpc.aio.Channel:
        """A connection with the keys of a folder."""
        if folder not in self.channels:
            place = self.record.folder / folder
            credentials = grpc.ssl_channel_credentials(
                self.authority,
                (place / "tls.key").read_bytes(),
                (place / "certificate.pem").read_bytes(),
            )
            options = [*OPTIONS, ("grpc.ssl_target_name_override", self.name)]
            self.channels[folder] = grpc.aio.secure_channel(
                self.daemon.address, credentials, options=options
            )
        return self.channels[folder]

    async def ready(self) -> None:
        """Wait until the daemon listens."""
        end = time.monotonic() + 300.0
        host, _, port = self.daemon.address.rpartition(":")
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                return
            except OSError:
                assert self.daemon.process.poll() is None, self.daemon.said()
                assert time.monotonic() < end, "the daemon does not listen"
                await asyncio.sleep(0.05)

    async def outcome(self, folder: str, sent: Sent) -> str:
        """How a call ends; one for which its connection has no room just then is made again."""
        end = time.monotonic() + SECONDS
        while True:
            found = await self._once(folder, sent)
            if "RST_STREAM" not in found or time.monotonic() > end:
                return "ended while it was sent" if found == BROKEN_OFF else found
            await asyncio.sleep(0.01)

    async def _once(self, folder: str, sent: Sent) -> str:
        channel = self.channel(folder)
        try:
            if sent.method == "tell":
                call = channel.unary_unary(f"/{SERVICE}/Tell")(sent.parts[0], timeout=SECONDS)
            elif sent.method == "hello":
                call = channel.unary_unary(f"/{SERVICE}/Hello")(sent.parts[0], timeout=SECONDS)
            else:
                pieces = stream(framed(sent))
                call = channel.stream_unary(f"/{SERVICE}/Hand")(pieces, timeout=SECONDS)
            return outcome_of(await call)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {sentence_of(error.details() or '')}"

    async def nobody(self, folder: str) -> str:
        """A connection that must not come about; how it ends."""
        channel = self.channels.pop(folder, None) or self.channel(folder)
        self.channels.pop(folder, None)
        try:
            await channel.unary_unary(f"/{SERVICE}/Tell")(b"{}", timeout=5.0)
            return "answered"
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        finally:
            await channel.close()

    async def close(self) -> None:
        for channel in self.channels.values():
            await channel.close()


async def stream(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def _over_tls(record: Record, scene: Scene, count: int, seed: int, tally: Tally) -> None:
    rng = random.Random(seed)
    members = [p for p in range(4) if p != scene.peer]
    welcome = record.calls[scene.call]
    lying = welcome.sender if welcome.sender in members else rng.choice(members)
    liar = Liar(Bundle.read(record.folder / f"peer-{lying}"), rng)
    mutator = Mutator(record, liar, rng)
    daemon = Daemon(record, scene)
    caller = Caller(record, daemon, scene)
    try:
        await caller.ready()
        _focus(mutator, record, scene, daemon)
        base, before = daemon.rows(), await daemon.quiet()
        outside = int(WITHOUT * count)
        for folder in ("strangers/peer-1", EXPIRED):
            outcome = await caller.nobody(folder)
            tally.outcomes["a connection without a good certificate", outcome] += 1
            if outcome != "UNAVAILABLE":
                tally.problems.append(f"{folder} has got a connection: {outcome}")
        await _send(caller, mutator, tally, outside, {OLD: "revoked", NO_KEY: "stranger"}, rng)
        if await daemon.quiet() != before:
            tally.problems.append(f"{scene.name}: somebody who is no member changed something")
        names = {f"peer-{p}": "member" for p in members}
        first = count - outside
        await _send(caller, mutator, tally, first // 4, names, rng, liar=lying)
        memory = resident(daemon.process.pid)
        await _send(caller, mutator, tally, first - first // 4, names, rng, liar=lying)
        growth = resident(daemon.process.pid) - memory
        tally.high("MiB more in memory", round(growth))
        tally.high("MiB in memory", round(memory + growth))
        if growth > MOST_GROWTH:
            tally.problems.append(f"{scene.name}: {growth:.0f} MiB more in memory")
        outcome = await caller.outcome(
            f"peer-{lying}", Sent("hello", "hello", "member", lying, (bytes(32),), "at the end")
        )
        if outcome != "answered":
            tally.problems.append(f"{scene.name}: at the end it does not answer: {outcome}")
        tally.problems += [
            f"{scene.name}: {p}" for p in _left(record, daemon, base, members, tally)
        ]
    finally:
        await caller.close()
        if (wrong := await asyncio.to_thread(daemon.stop)) is not None:
            tally.problems.append(f"{scene.name}: {wrong}")


def _focus(mutator: Mutator, record: Record, scene: Scene, daemon: Daemon) -> None:
    """Let the messages be about the walk that the daemon is in."""
    bundle = Bundle.read(daemon.place)
    network = bundle.network
    with closing(read_only(daemon.database)) as db:
        runs = [r[0] for r in db.execute("SELECT run FROM runs ORDER BY rowid")]
    number = len(runs) - 1
    rules = network.rules((), first=number)
    mutator.liar.matter = Matter(end_of(runs[-1]), number, rules)
    mutator.focus(scene.peer, scene_calls(record, runs[-1]), record.calls[scene.call])


async def _send(
    caller: Caller,
    mutator: Mutator,
    tally: Tally,
    count: int,
    names: dict[str, str],
    rng: random.Random,
    liar: int = -1,
) -> None:
    """Make ``count`` calls, several at once."""
    left = [count]

    async def some() -> None:
        while left[0] > 0:
            left[0] -= 1
            sent = mutator.next()
            folder = f"peer-{sent.sender}"
            if folder not in names:
                folder = f"peer-{liar}" if liar >= 0 else rng.choice(list(names))
            began = time.monotonic()
            outcome = await caller.outcome(folder, sent)
            tally.slowest = max(tally.slowest, time.monotonic() - began)
            who = names[folder]
            tally.messages += 1
            tally.senders[who] += 1
            tally.ways[sent.way] += 1
            where = f"{sent.method} {sent.kind}" if who == "member" else f"any, from a {who}"
            tally.outcomes[where, outcome] += 1
            word = outcome.partition(":")[0]
            if word in ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
                shown = b" | ".join(p[:300] for p in sent.parts)[:800]
                tally.problems.append(
                    f"{sent.method} {sent.kind} ({sent.way}): {outcome} {shown!r}"
                )
            denied = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "ended while it was sent")
            if who != "member" and word not in denied:
                tally.problems.append(f"a {who} was answered: {outcome}")
            if len(tally.problems) > 20:
                return

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def _left(
    record: Record, daemon: Daemon, base: dict[str, int], members: list[int], tally: Tally
) -> list[str]:
    """What is wrong with what the daemon has on its disk now."""
    true, found = record.true, []
    for name, number in daemon.rows().items():
        tally.high(f"rows of {name}", number)
        if number > base.get(name, 0) + MORE.get(name, 4):
            found.append(f"{name} has {number} rows; at first {base.get(name, 0)}")
    with closing(read_only(daemon.database)) as db:
        for (text,) in db.execute("SELECT state FROM runs"):
            state = codec.state_from(json.loads(text))
            if state.fence not in true["generations"]:
                found.append(f"generation {state.fence} is believed")
            if state.committed is not None and state.committed not in true["ends"]:
                found.append(f"{state.committed} is committed")
            if len(state.ends) > MOST_ENDS:
                found.append(f"{len(state.ends)} ends are kept")
        try:
            for (text,) in db.execute("SELECT text FROM agenda").fetchall():
                if text not in true["chapters"]:
                    found.append("a chapter is known that was not decided")
            for (peer,) in db.execute("SELECT peer FROM left_peers").fetchall():
                if peer not in members:
                    found.append(f"peer {peer} has left")
            for (text,) in db.execute("SELECT state FROM polls").fetchall():
                votes = state_from(json.loads(text), 4)
                tally.high("votes kept", len(votes.votes))
                if votes.round > 1 or len(votes.votes) > 24:
                    found.append(f"{len(votes.votes)} votes of round {votes.round} are kept")
        except sqlite3.OperationalError as error:
            found.append(f"the database cannot be read: {error}")
    files = len(list((daemon.place / "store" / "tokens").iterdir()))
    log = sum(p.stat().st_size for p in (daemon.place / "store").glob("log*.jsonl"))
    tally.high("token files", files)
    tally.high("bytes of the log", log)
    if files > 24:
        found.append(f"{files} token files")
    if log > 2 * LARGEST_LOG + MESSAGE:
        found.append(f"{log} bytes of log")
    lines = (daemon.place / "store" / LOG).read_text().splitlines()[-20_000:]
    found += [f"a task failed: {line}" for line in lines if '"event": "failed"' in line][:3]
    if b"Traceback" in (daemon.place / "errors.txt").read_bytes():
        found.append(f"errors: {daemon.said()}")
    return found


def over_tls(folder: Path, count: int, seed: int) -> Tally:
    """Fuzz daemons over TLS, one scene after the other."""
    record, tally = Record.read(folder), Tally()
    # Not peer 0 before its own request: what it signs later would come from its own past.
    scenes = [s for s in record.scenes if s.peer != 0 or s.name == "over"]
    random.Random(seed).shuffle(scenes)
    turns = scenes[: max(1, min(len(scenes), count // 500))]
    for number, scene in enumerate(turns):
        share = count // len(turns) + (number < count % len(turns))
        asyncio.run(_over_tls(record, scene, share, seed + 1000 * number, tally))
    return tally


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    run_peer(Path(sys.argv[1]), listen=sys.argv[2], http=None)
