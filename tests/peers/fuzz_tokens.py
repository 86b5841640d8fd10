"""Tokens that one member made from a good one: ``python -m tests.peers.fuzz_tokens [--count N]``.

In each scene a good token on its way to a peer is held back.  Tensors are left out, added, renamed,
of another type, shape or value, and every number that the token says of itself is another; its
sender signs what comes of that.  The peer refuses it in a sentence and is as before.  Or it takes
it: then it is started again from its disk, visits, and has a token that any other peer would take.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.peers.deletions import CERTIFIED, Hamlet, ask, trained_on
from tests.peers.deletions import network as with_records
from tests.peers.harness import ROUTE, Village, carry_out, network
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.hoplog import Entry, sign_entry
from unwalk.peers.storage.token_files import METADATA, pieces, token_in
from unwalk.peers.transport.wire import Chunks, Memory, MemoryTransport

PEERS = 4
SLOWEST = 0.25
"""Seconds of processor time that one offer may take."""
SCENES: dict[str, dict[str, Any]] = {
    "momentum": {},
    "adam": {"train.optimizer": "adam"},
    "average": {"train.optimizer": "sgd", "train.keep": "average"},
    "random, before it is drawn": {"train.keep": "random", "hop": 1},
    "random, after it was drawn": {"train.keep": "random", "hop": 6, "seed": ROUTE},
    "local state": {"train.state": "local"},
    "rewind": {"train.optimizer": "adam", "grade": "exact", "method": "rewind"},
    "restart": {"unlearn.keep": "average", "grade": "exact", "method": "restart"},
    "seal": {**CERTIFIED, "grade": "certified", "epsilon": 8.0, "delta": 1e-5},
}
"""Settings; ``grade`` and what follows from it is of a request, ``hop`` of the token."""
OF_REQUEST = ("grade", "method", "epsilon", "delta", "hop")
NUMBERS: list[Any] = [-1, 0, 1, 2, 3, 7, 2**31, 2**40, 2**48 - 2, 2**48 - 1, 2**48, 2**63, 10**40]
ODD: list[Any] = [*NUMBERS, -(2**63), 1.0, 0.5, True, None, "1", [], {}, float("nan"), float("inf")]
VALUES = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e9, -1e9, 9.9999994e8, 1.0000001e9, 3.4e38, -3.4e38]
VALUES += [float("nan"), float("inf"), float("-inf"), 1e19, -1e19, 1e-38]
NAMES = ["kept/average", "kept/random", "kept/last", "moment/momentum", "moment/mean", "kept/"]
NAMES += ["moment/square", "moment/other", "sum/x", "buffer/x", "x", "", "parameters/", "é" * 90]
TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


class Holding(Memory):
    """A network in which the first token of a walk after so many visits does not arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.run, self.hop = "", -1
        self.held: tuple[int, int, tuple[bytes, ...]] | None = None

    def at(self, peer: int) -> MemoryTransport:
        return HoldingTransport(self, peer)


class HoldingTransport(MemoryTransport):
    memory: Holding

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        said, memory = json.loads(envelope), self.memory
        here = said["kind"] == "offer" and said["run"] == memory.run
        if here and said["parcel"]["hop"] >= memory.hop and memory.held is None:
            memory.held = self.me, peer, (envelope, *[chunk async for chunk in chunks()])
            await asyncio.Event().wait()
        return await super().hand(peer, envelope, chunks, timeout)


@dataclass
class Tally:
    """What came of the tokens."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)


class Mutations:
    """Tokens made from a good one."""

    def __init__(self, data: bytes, rng: random.Random) -> None:
        self.rng = rng
        file = token_in(bytearray(data), "token", PEERS)
        self.header, self.tensors = file.header, file.tensors

    def next(self) -> tuple[str, bytes]:
        """What was changed, and the token's bytes."""
        rng = self.rng
        header, tensors = {**self.header}, {k: v.clone() for k, v in self.tensors.items()}
        more: dict[str, str] = {}
        done = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            way = rng.choice([self._said, self._said, self._value, self._value, self._tensor])
            done.append(way(header, tensors))
        if rng.random() < 0.02:
            more, done = {"x": "y"}, ["more is said"]
        if rng.random() < 0.03:
            header, tensors, done = self.header, self.tensors, ["nothing"]
        words = {METADATA: json.dumps(header, sort_keys=True, separators=(",", ":")), **more}
        return ", ".join(done), b"".join(bytes(p) for p in pieces(tensors, words))

    def _said(self, header: dict[str, Any], _: dict[str, torch.Tensor]) -> str:
        rng = self.rng
        key = rng.choice(["optimizer_steps", "optimizer_steps", "hop", "at", "memory", "x"])
        if key == "memory":
            inner = {
                rng.choice(["visits", "x", ""]): rng.choice(ODD) for _ in range(rng.choice([1, 20]))
            }
            header[key] = rng.choice([inner, inner, {str(n): 0 for n in range(20)}, *ODD])
        elif rng.random() < 0.5 and isinstance(header.get(key), int):
            header[key] += rng.choice([-2, -1, 1, 2, 100])
        else:
            header[key] = rng.choice(ODD)
        if rng.random() < 0.05:
            header.pop(key)
        return f"{key} is {str(header.get(key))[:40]}"

    def _value(self, _: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
        rng = self.rng
        name = rng.choice([n for n, t in tensors.items() if t.numel()] or list(tensors))
        tensor, value = tensors[name].reshape(-1), rng.choice(VALUES)
        if not tensor.is_floating_point():
            value = rng.choice([0, 1, 255, -1]) if tensor.dtype != torch.bool else 1
        if tensor.numel():
            part = slice(None) if rng.random() < 0.4 else rng.randrange(tensor.numel())
            tensor[part] = value
        return f"{name} holds {value}"

    def _tensor(self, _: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
        rng, name, way = self.rng, self.rng.choice(list(tensors)), self.rng.randrange(7)
        known = tensors[name]
        if way == 0 and len(tensors) > 1:
            del tensors[name]
            return f"no {name}"
        if way in (1, 2):
            new = rng.choice(NAMES)
            tensors[new] = rng.choice([known, tensors.get("parameters", known)]).clone()
            return f"also {new}"
        if way == 3:
            tensors[rng.choice(NAMES)] = tensors.pop(name)
            return f"{name} has another name"
        if way == 4:
            tensors[name] = known.nan_to_num().to(rng.choice(TYPES))
            return f"{name} is of another type"
        if way == 5:
            flat = known.reshape(-1)
            shapes = [
                flat[:-1],
                flat[:0],
                torch.cat([flat, flat[:1]]),
                flat.reshape(-1, 1),
                flat[:1],
            ]
            tensors[name] = rng.choice(shapes).clone()
            return f"{name} is of another shape"
        many = rng.choice([3, 40, 2000])
        tensors.update({f"{n:x}": torch.empty(0) for n in range(many)})
        return f"{many} tensors more"


class Scene:
    """One peer that is about to get a token, and the member that sends it."""

    def __init__(self, folder: Path, name: str, tally: Tally) -> None:
        self.folder, self.name, self.tally = folder, name, tally
        given = SCENES[name]
        self.request = {k: v for k, v in given.items() if k in OF_REQUEST and k != "hop"}
        self.hop = int(given.get("hop", 2))
        changed = {k.replace(".", "__"): v for k, v in given.items() if k not in OF_REQUEST}
        usual = {"train__hops": 8, "unlearn__hops": 6, "seed": ROUTE, "lease": 600.0, **changed}
        self.kind: type[Village] = Hamlet if self.request else Village
        self.network = (with_records if self.request else network)(folder, peers=PEERS, **usual)

    async def record(self) -> None:
        """Let the peers walk until the token is on its way."""
        here = self.kind(self.folder, self.network)
        memory = here.memory = Holding()
        try:
            for peer in range(PEERS):
                here.start(peer)
            if isinstance(here, Hamlet):
                await here.until(here.trained)
                ask(here, 0, "r", *trained_on(here, 0)[:1], **self.request)
                await here.until(lambda: len(here.peers[0].specs) == 1)
                memory.run = here.peers[0].runs[1]
            else:
                memory.run = self.network.run_id
            memory.hop = self.hop
            await here.until(lambda: memory.held is not None)
            assert memory.held is not None
            self.sender, self.target, parts = memory.held
            self.envelope, *chunks = parts
            size = json.loads(self.envelope)["size"]
            whole = b"".join(chunks)
            self.token = whole[:size]
            rest = whole[size:]
            stamp, end = json.JSONDecoder().raw_decode(rest.decode())
            self.stamp: Entry = stamp
            self.log = rest[end:]
        finally:
            await here.close()
        self.bundle = Bundle.read(self.folder / f"peer-{self.sender}")
        self.place = self.folder / f"peer-{self.target}"
        self.saved = self.folder / "saved"
        shutil.copytree(self.place, self.saved)

    async def play(self, count: int, rng: random.Random) -> None:
        """Offer so many tokens."""
        mutations = Mutations(self.token, rng)
        here = self.open()
        try:
            for _ in range(count):
                what, data = mutations.next()
                outcome, took = await self.timed(here, what, data)
                for _ in range(2):
                    if took > SLOWEST:  # it, or the machine just then?
                        await here.close()
                        here = self.open()
                        outcome, again = await self.timed(here, what, data)
                        took = min(took, again)
                self.tally.slowest = max(self.tally.slowest, took)
                if took > SLOWEST:
                    self.wrong(what, f"it took {took:.3f} s")
                if outcome == "accepted":
                    here = await self._goes_on(here, what)
                self.tally.outcomes[outcome] += 1
        finally:
            await here.close()

    async def timed(self, here: Village, what: str, data: bytes) -> tuple[str, float]:
        """What came of an offer, and the processor time that it took."""
        began = time.process_time()
        outcome = await self.offer(here, what, data)
        return outcome, time.process_time() - began

    def open(self) -> Village:
        """The peer as it was, alone."""
        shutil.rmtree(self.place)
        shutil.copytree(self.saved, self.place)
        here = self.kind(self.folder, self.network)
        here.start(self.target)
        return here

    def service(self, here: Village) -> Any:
        return (
            here.peers[self.target].service
            if isinstance(here, Hamlet)
            else here.services[self.target]
        )

    async def offer(self, here: Village, what: str, data: bytes) -> str:
        """``accepted``, or the sentence of the refusal; then nothing may have changed."""
        await here.until(lambda: self.target in here.memory.handlers)
        service = self.service(here)
        before = service.state
        said = {**json.loads(self.envelope), "size": len(data)}
        body = {k: v for k, v in self.stamp["body"].items() if k != "previous"}
        body["token"] = hashlib.sha256(data).hexdigest()
        stamp = sign_entry(
            self.stamp["body"]["previous"],
            body,
            self.bundle.sign,
            self.bundle.certificate_pem.decode(),
        )

        async def stream() -> Any:
            yield data
            yield codec.dump(stamp)
            yield self.log

        handler = here.memory.handlers[self.target]
        answer = codec.parse(await handler.take(self.sender, codec.dump(said), stream()), 1 << 18)
        task = here.tasks[self.target]
        if task.done():
            self.wrong(what, f"the peer ended: {task.exception()!r}")
        if answer["kind"] == "accepted":
            return "accepted"
        if not str(answer.get("reason", "")).endswith("."):
            self.wrong(what, f"refused without a sentence: {answer}")
        if service.state is not before:
            self.wrong(what, f"refused ({answer}), but something was changed")
        return str(answer["reason"])

    async def _goes_on(self, here: Village, what: str) -> Village:
        """The peer took a token: it is started again, visits, and others would take that."""
        await here.close()
        here = self.kind(self.folder, self.network)
        service = here.start(self.target)
        hop = json.loads(self.envelope)["parcel"]["hop"] + 1
        try:
            await here.until(lambda: service.state.reached[1][0] >= hop, 30.0)
            parcel = service.state.held
            file = service.gate.open(service.store.file(parcel.token))
            service.gate.content(parcel, file)
            service.gate.agrees(file, await service.place(parcel.chain))
        except Exception as error:
            self.wrong(what, f"taken, and then {error!r}"[:600])
        await here.close()
        return self.open()

    def wrong(self, what: str, why: str) -> None:
        self.tally.problems.append(f"{self.name}: {what}: {why}")


def run(folder: Path, count: int, seed: int, scenes: Sequence[str] = tuple(SCENES)) -> Tally:
    """Offer ``count`` tokens in each scene."""
    tally = Tally()

    async def main() -> None:
        for number, name in enumerate(scenes):
            scene = Scene(folder / f"scene-{number}", name, tally)
            await scene.record()
            await scene.play(count, random.Random(f"{seed} {name}"))

    carry_out(main())
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.fuzz_tokens")
    parser.add_argument("--count", type=int, default=200, help="tokens in each scene")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        tally = run(Path(place), given.count, given.seed)
    for problem in tally.problems[:20]:
        print(problem, end="\n\n")
    for outcome, number in tally.outcomes.most_common():
        print(number, outcome[:150])
    print(f"slowest {tally.slowest:.3f} s; {len(tally.problems)} problems")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
