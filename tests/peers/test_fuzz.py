"""Messages that are malformed, oversized, replayed, stale, forged or not finite change nothing."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.peers.harness import Village, network
from unwalk.peers import codec
from unwalk.peers.demo import equal_bytes, same_walk
from unwalk.peers.hoplog import sign_entry
from unwalk.peers.tokens import open_token, token_pieces
from unwalk.peers.work import plan_of

PEERS = 4
WORDS = ["", "x", "0" * 64, "NaN", "\u0000", "../../etc", "a" * 3000]
ODD: list[Any] = [None, True, -1, 0, 1, 2**31, 2**63, 1.5, [], {}, [[]], "é", *WORDS]


def snapshot(service) -> Any:
    """Everything durable, and the state in memory."""
    dump = "\n".join(service.store.db.iterdump())
    files = sorted(
        (p.name, hashlib.sha256(p.read_bytes()).hexdigest())
        for p in service.store.tokens.glob("*.safetensors")
    )
    left = [p.name for p in service.store.tokens.glob("*.new")]
    return service.state, hashlib.sha256(dump.encode()).hexdigest(), files, left


class Scene:
    """A good offer for one peer, held back, from which bad ones are made."""

    def __init__(self, village: Village) -> None:
        self.village = village

    async def prepare(self) -> None:
        village = self.village
        caught: dict[str, Any] = {}
        for peer in range(PEERS):
            service = village.start(peer)
            hold_back(service.transport, caught)
        await village.until(lambda: "envelope" in caught)
        self.target = village.services[caught["peer"]]
        self.sender: int = caught["sender"]
        self.envelope = json.loads(caught["envelope"])
        *pieces, stamp, _ = caught["chunks"]
        self.data, self.stamp = b"".join(pieces), json.loads(stamp)
        near = self.target.gate.near
        self.stranger = next(p for p in range(PEERS) if not near(p, self.target.me))
        for service in village.services.values():
            service.news = float("inf")  # leases do not run out during the test

    def good(self) -> Message:
        return Message(dump(self.envelope), [self.data], stamp=dump(self.stamp))

    async def send(self, message: Message) -> Any:
        async def stream():
            for chunk in (*message.chunks, *([message.stamp] if message.stamp else [])):
                yield chunk

        who = self.sender if message.sender is None else message.sender
        answer = await self.target.take(who, message.envelope, stream())
        return codec.parse(answer, 1 << 18)


@dataclass(frozen=True)
class Message:
    """An offer as it travels."""

    envelope: bytes
    chunks: list[bytes]
    stamp: bytes = b""
    sender: int | None = None


def dump(record: Any) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def hold_back(transport, caught) -> None:
    """Keep the first offer instead of sending it."""

    async def hand(peer, envelope, chunks, timeout):
        if not caught:
            data = [chunk async for chunk in chunks()]
            caught.update(peer=peer, sender=transport.me, envelope=envelope, chunks=data)
        await asyncio.sleep(3600)

    transport.hand = hand


def paths_in(record, here=()):
    """Every place in a nested record."""
    yield here
    if isinstance(record, dict):
        for key in record:
            yield from paths_in(record[key], (*here, key))
    elif isinstance(record, list):
        for number in range(len(record)):
            yield from paths_in(record[number], (*here, number))


def changed(record, place, value):
    if not place:
        return value
    record = copy.deepcopy(record)
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    if value is KeyError:
        if isinstance(inner, dict):
            del inner[place[-1]]
        else:
            inner.pop(place[-1])
    else:
        inner[place[-1]] = value
    return record


KINDS = [
    "field",
    "field",
    "field",
    "stamp field",
    "stamp field",
    "bytes",
    "stamp bytes",
    "cut",
    "stamp cut",
    "no stamp",
    "stamp for token",
    "token",
    "short",
    "long",
    "empty",
    "nan",
    "shape",
    "dtype",
    "other signer",
    "other stamp",
    "other peer's",
    "stranger",
    "stale",
    "huge",
    "hop",
    "extra",
    "nested",
    "other run",
]


def bad_message(rng: random.Random, scene: Scene) -> tuple[str, Message]:
    """A kind of damage, and the damaged message."""
    kind = rng.choice(KINDS)
    good, data, whole = scene.envelope, scene.data, scene.good()
    if kind in ("field", "stamp field"):
        record = good if kind == "field" else scene.stamp
        place = rng.choice([p for p in paths_in(record) if p])
        forged = dump(changed(record, place, rng.choice([*ODD, KeyError])))
        return kind, replace(whole, **{"envelope" if kind == "field" else "stamp": forged})
    if kind in ("bytes", "stamp bytes"):
        name = "envelope" if kind == "bytes" else "stamp"
        raw = bytearray(getattr(whole, name))
        for _ in range(rng.randint(1, 8)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        return kind, replace(whole, **{name: bytes(raw)})
    if kind in ("cut", "stamp cut"):
        name = "envelope" if kind == "cut" else "stamp"
        text = getattr(whole, name)
        return kind, replace(whole, **{name: text[: rng.randrange(len(text))]})
    if kind == "no stamp":
        return kind, replace(whole, stamp=b"")
    if kind == "stamp for token":
        return kind, replace(whole, chunks=[whole.stamp], stamp=data)
    if kind == "token":
        raw = bytearray(data)
        raw[rng.randrange(len(raw))] ^= 1 + rng.randrange(255)
        return kind, replace(whole, chunks=[bytes(raw)])
    if kind == "short":
        return kind, replace(whole, chunks=[data[: rng.randrange(len(data))]])
    if kind == "long":
        return kind, replace(whole, chunks=[data, bytes(rng.randint(1, 5000))])
    if kind == "empty":
        return kind, replace(whole, chunks=[b"", data])
    if kind in ("nan", "shape", "dtype"):
        return kind, restamped(scene, kind, rng)
    if kind in ("other signer", "other stamp"):
        return kind, replace(whole, stamp=dump(signed_anew(scene, kind, rng)))
    if kind == "other peer's":
        others = [p for p in range(PEERS) if p != scene.target.me]
        forged = changed(good, ("path",), [rng.choice(others)])
        return kind, replace(whole, envelope=dump(forged))
    if kind == "stranger":
        return kind, replace(whole, sender=scene.stranger)
    if kind == "stale":
        forged = changed(good, ("parcel", "generation"), [0, rng.randrange(PEERS)])
        forged = changed(forged, ("parcel", "lineage"), [[0, rng.randrange(PEERS), 0]])
        forged["parcel"]["hop"] = rng.choice([0, 2, 11, 12, 99])
        return kind, replace(whole, envelope=dump(forged))
    if kind == "huge":
        return kind, replace(whole, envelope=dump({**good, "size": 1 << 40}))
    if kind == "hop":
        forged = changed(good, ("parcel", "hop"), rng.choice([0, 5, 12, 13, 10**6]))
        return kind, replace(whole, envelope=dump(forged))
    if kind == "extra":
        return kind, replace(whole, envelope=dump({**good, rng.choice(WORDS): 1}))
    if kind == "other run":  # a message of another run, replayed
        name = hashlib.sha256(str(rng.random()).encode()).hexdigest()[:32]
        return kind, replace(whole, envelope=dump({**good, "run": name}))
    return kind, replace(whole, envelope=b"[" * rng.choice([20, 100_000]))


def restamped(scene: Scene, kind: str, rng: random.Random) -> Message:
    """A token with wrong content whose digests all fit and which its sender really signed."""
    village = scene.village
    path = Path(village.folder) / f"fuzz-{rng.random()}"
    path.write_bytes(scene.data)
    token = open_token(path, PEERS).token().clone()
    path.unlink()
    if kind == "nan":
        token.parameters[rng.randrange(token.parameters.numel())] = rng.choice(
            [float("nan"), float("inf"), float("-inf")]
        )
    elif kind == "dtype":
        other = rng.choice([torch.float64, torch.float16, torch.int32])
        token = replace(token, parameters=token.parameters.to(other))
    else:
        extra = rng.choice([{"moments": {"other": torch.zeros(3)}}, {"parameters": torch.zeros(2)}])
        token = replace(token, **extra)
    data = b"".join(token_pieces(token))
    body = {k: v for k, v in scene.stamp["body"].items() if k != "previous"}
    body["token"] = hashlib.sha256(data).hexdigest()
    signer = village.services[scene.sender].bundle
    previous = scene.stamp["body"]["previous"]
    entry = sign_entry(previous, body, signer.sign, signer.certificate_pem.decode())
    return Message(dump({**scene.envelope, "size": len(data)}), [data], stamp=dump(entry))


def signed_anew(scene: Scene, kind: str, rng: random.Random) -> Any:
    """A stamp that a member really signed: for a visit of another's, or at another place."""
    body = {k: v for k, v in scene.stamp["body"].items() if k != "previous"}
    signer = scene.sender
    if kind == "other signer":
        signer = rng.choice([p for p in range(PEERS) if p != signer])
    else:
        name = rng.choice(["run", "hop", "generation", "lineage", "token", "peer", "kind"])
        values = [1 + rng.randrange(1, 99), [7, 7], [[0, 0, 1]], "f" * 64, "recovery"]
        body[name] = rng.choice([v for v in values if v != body[name]])
    bundle = scene.village.services[signer].bundle
    previous = scene.stamp["body"]["previous"]
    return sign_entry(previous, body, bundle.sign, bundle.certificate_pem.decode())


def fuzz(tmp_path, count: int, seed: int) -> dict[str, int]:
    folder = tmp_path / "net"
    made = network(folder, peers=PEERS, lease=600.0, graph__kind="ring")
    village = Village(folder, made)
    rng = random.Random(seed)
    kinds: dict[str, int] = {}

    async def main() -> None:
        scene = Scene(village)
        try:
            await scene.prepare()
            good = scene.good()
            scene.target.intake.rate.rate = 1e9
            before = snapshot(scene.target)
            while sum(kinds.values()) < count:
                kind, message = bad_message(rng, scene)
                if message == good:
                    continue
                reply = await scene.send(message)
                assert reply["kind"] == "refused", (kind, message, reply)
                assert reply["reason"], (kind, message)
                kinds[kind] = kinds.get(kind, 0) + 1
                assert scene.target.state == before[0], (kind, message)
                if sum(kinds.values()) % 50 == 0:
                    assert snapshot(scene.target) == before, (kind, message)
            assert snapshot(scene.target) == before
            assert scene.target.metrics.values["refusals_total"] == count
            # The good one is still welcome; replayed it changes nothing.
            assert (await scene.send(good))["kind"] == "accepted"
            await village.until(lambda: scene.target.state.stage == "offered")
            after = snapshot(scene.target)
            assert after[0] != before[0]
            assert (await scene.send(good))["kind"] == "accepted"
            assert snapshot(scene.target) == after
        finally:
            await village.close()

    asyncio.run(main())
    return kinds


def test_500_bad_offers(tmp_path):
    assert set(fuzz(tmp_path, 500, seed=1)) == set(KINDS)


@pytest.mark.soak
def test_10000_bad_offers(tmp_path):
    assert set(fuzz(tmp_path, 10_000, seed=2)) == set(KINDS)


def test_a_visit_begun_ahead_counts_only_if_its_token_is_accepted(tmp_path):
    folder = tmp_path / "net"
    village = Village(folder, network(folder, peers=PEERS, lease=600.0, graph__kind="ring"))

    async def main() -> None:
        scene = Scene(village)
        try:
            await scene.prepare()
            target, good = scene.target, scene.good()
            count = counted(target)
            other = open_token(write(folder / "t", scene.data), PEERS).token().clone()
            other.parameters.zero_()
            wrong = b"".join(token_pieces(other))
            for message in (
                replace(good, stamp=b""),
                replace(good, chunks=[wrong]),
                replace(good, chunks=[wrong], stamp=b""),
            ):
                assert (await scene.send(message))["kind"] == "refused"
                assert target.ahead.begun is None
            assert (await scene.send(good))["kind"] == "accepted"
            await village.until(lambda: target.state.stage == "offered")
            assert count[0] == 4, "three were begun for nothing"
            assert target.state.held.hop == 2
            path = target.store.file(target.state.held.token)
            walked = same_walk(plan_of(village.network), [scene.sender, target.me])
            assert equal_bytes(open_token(path, PEERS).token(), walked)
        finally:
            await village.close()

    asyncio.run(main())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def counted(service) -> list[int]:
    """How many visits were begun from now on."""
    count, visit = [0], service.work.visit

    def one_more(*args, **options):
        count[0] += 1
        return visit(*args, **options)

    service.work.visit = one_more
    return count


def bad_words(rng: random.Random, service) -> bytes:
    kinds = ["where", "release", "fence", "opening", "decide", "entry", "x", 7, None]
    fields = ["generation", "place", "poll", "chain", "entry"]
    record = json.loads(service.talk.words("where", chain=""))
    record["kind"] = rng.choice(kinds)
    for name in rng.sample(fields, rng.randint(0, 3)):
        record[name] = rng.choice([*ODD, [0, 0], [[0, 0, 0]], [1, 2]])
    if rng.random() < 0.3:
        record[rng.choice(["protocol", "network", "run"])] = rng.choice(ODD)
    text = json.dumps(record).encode()
    if rng.random() < 0.3:
        raw = bytearray(text)
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(raw)
    return text


def test_bad_words_are_answered_with_a_reason_and_change_nothing(tmp_path):
    folder = tmp_path / "net"
    village = Village(folder, network(folder, peers=3, lease=600.0))
    rng = random.Random(3)

    async def main() -> None:
        service = village.start(2)
        service.intake.rate.rate = 1e9
        await asyncio.sleep(0.05)
        before = snapshot(service)
        refused = 0
        for _ in range(500):
            reply = codec.parse(await service.answer(1, bad_words(rng, service)), 1 << 18)
            if reply.get("kind") == "refused":
                refused += 1
                assert reply["reason"]
            else:
                assert set(reply) <= {"sighting", "signature", "certificate", "entry", "poll"}
        assert refused > 300
        after = snapshot(service)
        assert after[2:] == before[2:]
        assert after[0].held == before[0].held
        assert after[0].committed is None
        await village.close()

    asyncio.run(main())


def test_too_many_calls_are_refused(tmp_path):
    folder = tmp_path / "net"
    village = Village(folder, network(folder, peers=3, lease=600.0))

    async def main() -> None:
        service = village.start(2)
        service.intake.rate.rate = 5.0
        message = service.talk.words("where", chain="")
        replies = [codec.parse(await service.answer(1, message), 1 << 18) for _ in range(12)]
        assert sum("sighting" in r for r in replies) == 10
        assert "5 calls a second" in replies[-1]["reason"]
        other = codec.parse(await service.answer(0, message), 1 << 18)
        assert "sighting" in other, "another peer has a limit of its own"
        await village.close()

    asyncio.run(main())
