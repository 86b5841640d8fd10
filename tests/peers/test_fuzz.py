"""Messages that are malformed, oversized, replayed, stale, forged or not finite change nothing."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.peers.harness import Village, network
from unwalk.peers import codec
from unwalk.peers.tokens import open_token, token_pieces

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
        for peer in range(3):
            service = village.start(peer)
            hold_back(service.transport, caught)
        await village.until(lambda: "envelope" in caught)
        self.target = village.services[caught["peer"]]
        self.sender: int = caught["sender"]
        self.envelope = json.loads(caught["envelope"])
        self.data = b"".join(caught["chunks"])
        for service in village.services.values():
            service.news = float("inf")  # leases do not run out during the test

    async def send(self, envelope: bytes, chunks: list[bytes], sender: int | None = None) -> Any:
        async def stream():
            for chunk in chunks:
                yield chunk

        who = self.sender if sender is None else sender
        answer = await self.target.take(who, envelope, stream())
        return codec.parse(answer, 1 << 18)


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


def bad_message(rng: random.Random, scene: Scene) -> tuple[str, bytes, list[bytes], int | None]:
    """A kind of damage, and the damaged message."""
    good, data = scene.envelope, scene.data
    text = json.dumps(good).encode()
    kind = rng.choice(
        [
            "field",
            "field",
            "field",
            "bytes",
            "cut",
            "token",
            "short",
            "long",
            "nan",
            "shape",
            "sender",
            "stale",
            "huge",
            "hop",
            "extra",
            "nested",
        ]
    )
    if kind == "field":
        place = rng.choice([p for p in paths_in(good) if p])
        value = rng.choice([*ODD, KeyError])
        return kind, json.dumps(changed(good, place, value)).encode(), [data], None
    if kind == "bytes":
        raw = bytearray(text)
        for _ in range(rng.randint(1, 8)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        return kind, bytes(raw), [data], None
    if kind == "cut":
        return kind, text[: rng.randrange(len(text))], [data], None
    if kind == "token":
        raw = bytearray(data)
        raw[rng.randrange(len(raw))] ^= 1 + rng.randrange(255)
        return kind, text, [bytes(raw)], None
    if kind == "short":
        return kind, text, [data[: rng.randrange(len(data))]], None
    if kind == "long":
        return kind, text, [data, bytes(rng.randint(1, 5000))], None
    if kind in ("nan", "shape"):
        return kind, *resealed(scene, kind, rng), None
    if kind == "sender":
        strangers = [p for p in range(3) if p not in (scene.sender, scene.target.me)]
        forged = changed(good, ("path",), [rng.choice(strangers)])
        return kind, json.dumps(forged).encode(), [data], rng.choice(strangers)
    if kind == "stale":
        forged = changed(good, ("parcel", "generation"), [0, rng.randrange(3)])
        forged = changed(forged, ("parcel", "lineage"), [[0, rng.randrange(3), 0]])
        forged["parcel"]["hop"] = rng.choice([0, 2, 11, 12, 99])
        return kind, json.dumps(forged).encode(), [data], None
    if kind == "huge":
        return kind, json.dumps({**good, "size": 1 << 40}).encode(), [data], None
    if kind == "hop":
        forged = changed(good, ("parcel", "hop"), rng.choice([0, 5, 12, 13, 10**6]))
        return kind, json.dumps(forged).encode(), [data], None
    if kind == "extra":
        return kind, json.dumps({**good, rng.choice(WORDS): 1}).encode(), [data], None
    return kind, b"[" * rng.choice([20, 100_000]), [data], None


def resealed(scene: Scene, kind: str, rng: random.Random) -> tuple[bytes, list[bytes]]:
    """A token with wrong content whose digests all fit and which its sender really signed."""
    from unwalk.peers.hoplog import sign_entry

    village = scene.village
    path = Path(village.folder) / f"fuzz-{rng.random()}"
    path.write_bytes(scene.data)
    token = open_token(path, 3).token().clone()
    if kind == "nan":
        token.parameters[rng.randrange(token.parameters.numel())] = rng.choice(
            [float("nan"), float("inf"), float("-inf")]
        )
    else:
        extra = rng.choice([{"moments": {"other": torch.zeros(3)}}, {"parameters": torch.zeros(2)}])
        from dataclasses import replace

        token = replace(token, **extra)
    data = b"".join(token_pieces(token))
    path.unlink()
    good = copy.deepcopy(scene.envelope)
    name = hashlib.sha256(data).hexdigest()
    body = {k: v for k, v in good["entry"]["body"].items() if k != "previous"}
    body["token"] = name
    signer = village.services[scene.sender].bundle
    previous = good["entry"]["body"]["previous"]
    entry = sign_entry(previous, body, signer.sign, signer.certificate_pem.decode())
    good["entry"], good["size"] = entry, len(data)
    good["parcel"].update(token=name, chain=entry["chain"])
    return json.dumps(good).encode(), [data]


def fuzz(tmp_path, count: int, seed: int) -> None:
    folder = tmp_path / "net"
    village = Village(folder, network(folder, peers=3, lease=600.0, graph__kind="complete"))
    rng = random.Random(seed)

    async def main() -> None:
        scene = Scene(village)
        try:
            await scene.prepare()
            scene.target.intake.rate.rate = 1e9
            before = snapshot(scene.target)
            kinds: dict[str, int] = {}
            for number in range(count):
                kind, envelope, chunks, sender = bad_message(rng, scene)
                if envelope == json.dumps(scene.envelope).encode() and chunks == [scene.data]:
                    continue
                reply = await scene.send(envelope, chunks, sender)
                assert reply["kind"] == "refused", (number, kind, reply)
                assert reply["reason"], (number, kind)
                kinds[kind] = kinds.get(kind, 0) + 1
                assert scene.target.state == before[0]
                if number % 50 == 0:
                    assert snapshot(scene.target) == before, (number, kind)
            assert snapshot(scene.target) == before
            assert len(kinds) >= 12
            # The good one is still welcome, and welcome again when it is replayed.
            good = json.dumps(scene.envelope).encode()
            assert (await scene.send(good, [scene.data]))["kind"] == "accepted"
            after = scene.target.state
            assert after != before[0]
            assert (await scene.send(good, [scene.data]))["kind"] == "accepted"
            assert scene.target.store.load(village.network.run_id) is not None
        finally:
            await village.close()

    asyncio.run(main())


def test_500_bad_offers(tmp_path):
    fuzz(tmp_path, 500, seed=1)


@pytest.mark.soak
def test_10000_bad_offers(tmp_path):
    fuzz(tmp_path, 10_000, seed=2)


def bad_words(rng: random.Random, service) -> bytes:
    kinds = ["where", "release", "fence", "prepare", "accept", "committed", "entry", "x", 7, None]
    fields = ["generation", "place", "fence", "lineage", "ballot", "value", "chain"]
    record = json.loads(service.talk.words("where"))
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
                assert set(reply) <= {"sighting", "entry", "vote"}
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
        message = service.talk.words("where")
        replies = [codec.parse(await service.answer(1, message), 1 << 18) for _ in range(12)]
        assert sum("sighting" in r for r in replies) == 10
        assert "5 calls a second" in replies[-1]["reason"]
        other = codec.parse(await service.answer(0, message), 1 << 18)
        assert "sighting" in other, "another peer has a limit of its own"
        await village.close()

    asyncio.run(main())
