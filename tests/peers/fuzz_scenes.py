"""What the fuzzer starts from: real messages of every kind, and peers at the moments they came.

Four peers in one process train, lose the token and recover it, decide on a chapter, forget a record
and go on.  Every call is written down with its answer; at chosen moments the folder of the peer
that is about to be called is copied.  From such a *scene* a peer can be started as it was.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import pickle
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from tests.peers.deletions import SETTINGS as RECORDS
from tests.peers.deletions import Hamlet, ask, ended, trained_on, write_records
from tests.peers.harness import ROUTE
from unwalk.peers.forgetting.erasure import Receipt, left_of
from unwalk.peers.identity.credentials import Authority, Keys, now, request
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.local_network import free_addresses
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.provision import make_bundle, make_network, revoke
from unwalk.peers.transport.wire import HELLO, NONCE, Chunks, Memory, MemoryTransport

PEERS = 4
LIMITS = Limits(lease=600.0, connect=5.0, stop=1.5, messages=1e12, visit=600.0)
OLD, EXPIRED, NO_KEY = "peer-3-before", "expired", "no-key"
FILE = "record.pickle"


@dataclass(frozen=True)
class Call:
    """One call as it was made, and what it was answered.

    ``parts`` of a ``tell`` is one message; of a ``hand``, envelope, token, stamp and log.
    """

    method: str
    kind: str
    sender: int
    target: int
    parts: tuple[bytes, ...]
    answer: bytes


@dataclass(frozen=True)
class Scene:
    """A peer at one moment, and the place in the record of the call that it was about to get."""

    name: str
    peer: int
    call: int


@dataclass(eq=False)
class Record:
    """A network, what was said in it, and scenes from it.

    ``true`` holds what was really decided and opened, which is all that may ever be believed.
    """

    folder: Path
    calls: list[Call] = field(default_factory=list)
    scenes: list[Scene] = field(default_factory=list)
    true: dict[str, Any] = field(default_factory=dict)

    def save(self) -> None:
        (self.folder / FILE).write_bytes(pickle.dumps(self))

    @staticmethod
    def read(folder: Path) -> Record:
        found: Record = pickle.loads((folder / FILE).read_bytes())
        return found

    def place(self, scene: Scene) -> Path:
        """The folder of the scene's peer, as it was."""
        return self.folder / "scenes" / scene.name / f"peer-{scene.peer}"


class Recorder(Memory):
    """A network in memory that writes everything down."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record
        self.handed: list[tuple[int, int, int]] = []

    def at(self, peer: int) -> MemoryTransport:
        return RecordingTransport(self, peer)


class RecordingTransport(MemoryTransport):
    memory: Recorder

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        kept: list[bytes] = []

        async def stream() -> AsyncIterator[bytes]:
            async for chunk in chunks():
                kept.append(chunk)
                yield chunk

        place = self._before("hand", peer, envelope)
        answer = await super().hand(peer, envelope, stream, timeout)
        self._after(place, "hand", peer, (envelope, *kept), answer)
        return answer

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes:
        place = self._before("tell", peer, message)
        answer = await super().tell(peer, message, timeout)
        self._after(place, "tell", peer, (message,), answer)
        return answer

    def _before(self, method: str, peer: int, message: bytes) -> int:
        """Take a picture of the peer that is about to be called, if there is none like it."""
        record, said = self.memory.record, json.loads(message)
        name = self._scene(peer, said) if peer in self.memory.handlers else None
        record.calls.append(Call(method, said["kind"], self.me, peer, (), b""))
        if name is not None and name not in {s.name for s in record.scenes}:
            scene = Scene(name, peer, len(record.calls) - 1)
            source = record.folder / f"peer-{peer}"
            shutil.copytree(source, record.place(scene), ignore=shutil.ignore_patterns("*.new"))
            record.scenes.append(scene)
        return len(record.calls) - 1

    def _after(
        self, place: int, method: str, peer: int, parts: tuple[bytes, ...], answer: bytes
    ) -> None:
        calls = self.memory.record.calls
        calls[place] = Call(method, calls[place].kind, self.me, peer, parts, answer)
        said = json.loads(parts[0])
        if said["kind"] == "offer" and json.loads(answer)["kind"] == "accepted":
            self.memory.handed.append((self.me, peer, said["parcel"]["hop"]))

    def _scene(self, peer: int, said: dict[str, Any]) -> str | None:
        """Whether this is a moment worth a picture."""
        chapters: Any = self.memory.handlers[peer]
        service, kind = chapters.service, said["kind"]
        training = said["run"] == chapters.network.run_id
        state = service.state
        if kind == "offer" and said["run"] == service.run_id and state.committed is None:
            generation = said["parcel"]["generation"][0]
            known = service.store.entries(service.run_id)
            if not training:
                return "chapter"
            if generation:
                return "recovered" if state.fence[0] < generation else None
            return "walk" if said["parcel"]["hop"] >= 2 and not known else None
        if kind == "fence":
            return "fence" if tuple(said["entry"]["body"]["generation"]) > state.fence else None
        if kind == "final" and state.committed is None and training:
            return "end" if not state.ends else None
        votes = said.get("poll", {}).get("votes")
        if kind == "decide" and votes and training and service.poll.decided is None:
            return "vote"
        if kind == "agenda-decide" and votes and chapters.over and not chapters.specs:
            return "agenda"
        return None


class Recorded(Hamlet):
    """Peers whose calls are written down."""

    def __init__(self, folder: Path, made: Network, record: Record) -> None:
        super().__init__(folder, made)
        self.memory = Recorder(record)


def make(folder: Path) -> Record:
    """A network in ``folder``, all that is said in it until a record is forgotten."""
    record = Record(folder)
    made = make_network(
        folder,
        name="test",
        addresses=free_addresses(PEERS),
        settings={
            **RECORDS,
            "graph.kind": "ring",
            "train.hops": 8,
            "unlearn.hops": 4,
            "seed": ROUTE,
        },
        limits=LIMITS,
        begin_with=(),
    )
    for peer in range(PEERS):
        write_records(folder / f"peer-{peer}", peer)
    _revoke_one(folder)
    asyncio.run(_live(record, Recorded(folder, made, record)))
    _strangers(folder)
    record.save()
    return record


def _revoke_one(folder: Path) -> None:
    """Peer 3 has lost its first certificate to somebody, and got another."""
    shutil.copytree(folder / "peer-3", folder / OLD)
    make_bundle(folder, "peer-3")
    revoke(folder, "peer-3", keep_latest=True, chapter=0)
    shutil.copyfile(folder / "network.json", folder / OLD / "network.json")


def _strangers(folder: Path) -> None:
    """Another network with the same names, whose CA is not this one's; certificates of this one's
    CA that are over, or lack the key for signatures.
    """
    authority = Authority.read(folder)
    keys, names = Keys.new(), tuple(f"peer-{p}" for p in range(PEERS))
    csr = request(keys, "peer-1", "test")
    _lay(folder / EXPIRED, keys, authority.issue(csr, names, "test", days=1e-6))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "peer-1")])
    plain = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(keys.tls.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - dt.timedelta(days=1))
        .not_valid_after(now() + dt.timedelta(days=1))
        .sign(authority.key, hashes.SHA256())
    )
    _lay(folder / NO_KEY, keys, plain.public_bytes(serialization.Encoding.PEM))
    make_network(
        folder / "strangers",
        name="test",
        addresses=free_addresses(PEERS),
        settings=RECORDS,
    )


def _lay(folder: Path, keys: Keys, pem: bytes) -> None:
    folder.mkdir()
    keys.write(folder)
    (folder / "certificate.pem").write_bytes(pem)


async def _live(record: Record, here: Recorded) -> None:
    try:
        for peer in range(PEERS):
            here.start(peer)
        await _lose_the_token(here)
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        await _made_up(record, here)
        record.true = _true(here)
        for peer, chapters in here.peers.items():
            await here.crash(peer)
            if peer == 0:
                scene = Scene("over", peer, len(record.calls) - 1)
                shutil.copytree(record.folder / f"peer-{peer}", record.place(scene))
                record.scenes.append(scene)
            assert chapters.next_chapter.fork is None
    finally:
        await here.close()


async def _lose_the_token(here: Recorded) -> None:
    """A peer that has just got the token cannot be reached until another has gone on."""
    memory = here.memory
    assert isinstance(memory, Recorder)

    def handed() -> tuple[int, int] | None:
        for source, target, hop in memory.handed:
            if hop == 3:
                return source, target
        return None

    while (found := handed()) is None:
        await asyncio.sleep(0)
    source, lost = found
    memory.cut = {frozenset((lost, p)) for p in range(PEERS) if p != lost}
    service = here.peers[source].service
    await here.until(lambda: service.state.kept is not None and service.state.held is None)
    await service.recovery.look_around()
    assert service.state.fence[0] == 1, "the walk was recovered"
    await here.until(lambda: service.state.kept is not None)
    memory.cut = set()


async def _made_up(record: Record, here: Recorded) -> None:
    """Messages that this life had no need of: asked and answered for the record."""
    end, next_chapter = here.memory.at(2), here.peers[2].next_chapter
    bundle = here.peers[2].bundle
    service = here.peers[2].service
    control_messages = service.control_messages
    recovery = next(c for c in record.calls if c.kind == "fence")
    opened = json.loads(recovery.parts[0])["entry"]["body"]["generation"]
    text, decision = next_chapter.known[0]
    for message in (
        next_chapter.words(ms.AgendaAsk, number=1),
        next_chapter.words(ms.AgendaEnd, number=1),
        next_chapter.words(ms.AgendaVisits, number=0, after=0),
        next_chapter.words(ms.AgendaVisits, number=1, after=2),
        next_chapter.words(ms.AgendaReceipt, number=1),
        next_chapter.words(ms.AgendaBegin, begun=True, without=[1]),
        next_chapter.words(ms.AgendaReady, number=1),
        next_chapter.words(ms.AgendaLeaver, number=0, peer=1),
        next_chapter.words(ms.AgendaDecided, number=1, value=text, decision=decision),
        control_messages.words(ms.Where, number=1, chain=service.state.committed.chain),
        control_messages.words(ms.Opening, generation=opened),
        control_messages.words(ms.Beginning),
        control_messages.words(ms.EntryOf, chain=service.state.committed.chain),
        control_messages.words(ms.Entries, chain=service.state.committed.chain, most=ms.PAGE),
        control_messages.words(ms.Decide, poll=service.poll.record()),
    ):
        await end.tell(0, message, 5.0)
    time = now().isoformat(timespec="seconds")
    left = left_of(bundle.network.run_id)
    receipt = Receipt("test", left, 1, bundle.name, (), 0, time).signed(bundle)
    words = next_chapter.words(ms.AgendaLeft, number=1, receipt=receipt.to_json())
    record.calls.append(Call("tell", "agenda-left", 2, 0, (words,), codec.dump({"left": True})))
    greeting = bytes(range(NONCE))
    said = HELLO + greeting + b":peer-2:peer-0"
    host = here.peers[0].bundle
    hello = {"certificate": host.certificate_pem.decode(), "signature": host.sign(said).hex()}
    record.calls.append(Call("hello", "hello", 2, 0, (greeting,), codec.dump(hello)))


def _true(here: Recorded) -> dict[str, Any]:
    """What was opened and decided."""
    chapters = here.peers[0]
    memory = here.memory
    assert isinstance(memory, Recorder)
    generations, ends = {(0, p) for p in range(PEERS)}, set()
    for call in memory.record.calls:
        if call.kind == "fence" and call.parts:
            generations.add(tuple(json.loads(call.parts[0])["entry"]["body"]["generation"]))
        if call.kind == "final" and call.parts:
            ends.add(codec.value_from(json.loads(call.parts[0])["value"]))
    return {
        "generations": generations,
        "ends": ends,
        "chapters": [text for text, _ in chapters.next_chapter.known],
    }
