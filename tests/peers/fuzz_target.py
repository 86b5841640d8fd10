"""A peer under test, as it was in a scene: called in process, and looked at after every call."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tests.peers.fuzz_mutations import Liar, Mutator, Sent
from tests.peers.fuzz_reasons import sentence_of
from tests.peers.fuzz_scenes import EXPIRED, NO_KEY, OLD, Call, Record, Scene
from unwalk.core.errors import UnwalkError
from unwalk.peers.decisions.votes import words
from unwalk.peers.handover.log_fetch import LogFetch
from unwalk.peers.identity.credentials import Keys
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import MOST_ENDS
from unwalk.peers.storage.store import Store
from unwalk.peers.telemetry import LARGEST_LOG, Journal
from unwalk.peers.transport.wire import CHUNK, HELLO, MESSAGE, Chunks, Grpc, Unreachable

SLOWEST = 0.25
"""Seconds of processor time that one call may take."""
QUESTIONS: tuple[str, ...] = ("where", "opening", "beginning", "entry", "entries", "hello")
QUESTIONS += (
    "agenda-begin",
    "agenda-ask",
    "agenda-receipt",
    "agenda-visits",
    "agenda-ready",
    "agenda-leaver",
)
"""Messages that ask and never change anything."""
MORE = {"entries": 32, "visits": 16}
"""Rows that a scene may add: what was really walked."""


class Aborted(Exception):
    """A call that was ended with a status."""


@dataclass(eq=False)
class Context:
    """What gRPC knows of a call: the caller's certificate, and what it sends."""

    pem: bytes | None
    parts: list[bytes]
    status: tuple[Any, str] | None = None

    def auth_context(self) -> dict[str, list[bytes]]:
        return {} if self.pem is None else {"x509_pem_cert": [self.pem]}

    async def read(self) -> Any:
        return self.parts.pop(0) if self.parts else grpc.aio.EOF

    async def abort(self, code: Any, details: str) -> None:
        self.status = code, details
        raise Aborted


@dataclass(eq=False)
class Others:
    """The other peers, as the one under test reaches them: the liar answers, nobody else."""

    liar: int = -1
    answer: Callable[[bytes], bytes] | None = None

    async def start(self, handler: Any) -> None: ...
    async def stop(self) -> None: ...

    async def hand(self, peer: int, envelope: bytes, chunks: Chunks, timeout: float) -> bytes:
        async for _ in chunks():
            pass
        return await self.tell(peer, envelope, timeout)

    async def tell(self, peer: int, message: bytes, timeout: float) -> bytes:
        if peer != self.liar or self.answer is None:
            raise Unreachable(f"peer {peer} cannot be reached.", certain=True)
        return self.answer(message)


@dataclass
class Tally:
    """What came of the messages."""

    messages: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    senders: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0
    restored: int = 0
    rewound: int = 0
    most: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.messages += other.messages
        self.restored += other.restored
        self.rewound += other.rewound
        self.outcomes += other.outcomes
        self.senders += other.senders
        self.ways += other.ways
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.problems += other.problems
        self.slowest = max(self.slowest, other.slowest)
        for name, value in other.most.items():
            self.high(name, value)

    def high(self, name: str, value: int) -> None:
        self.most[name] = max(self.most.get(name, 0), value)


class Target:
    """One peer in one scene, with one member that lies to it."""

    def __init__(self, record: Record, scene: Scene, rng: random.Random, tally: Tally) -> None:
        self.record, self.scene, self.rng, self.tally = record, scene, rng, tally
        others = [p for p in range(4) if p != scene.peer]
        self.members = {p: Bundle.read(record.folder / f"peer-{p}") for p in others}
        self.pems = {p: b.certificate_pem for p, b in self.members.items()}
        self.not_members: list[tuple[str, bytes | None]] = [
            ("revoked", (record.folder / OLD / "certificate.pem").read_bytes()),
            ("stranger", (record.folder / "strangers/peer-1/certificate.pem").read_bytes()),
            ("stranger", (record.folder / "ca.pem").read_bytes()),
            ("stranger", b"garbage \xff"),
            ("stranger", (record.folder / NO_KEY / "certificate.pem").read_bytes()),
            ("expired member", (record.folder / EXPIRED / "certificate.pem").read_bytes()),
            ("stranger", None),
        ]
        self.former = Bundle.read(record.folder / "peer-3")
        self.former = replace(
            self.former,
            certificate_pem=(record.folder / OLD / "certificate.pem").read_bytes(),
            keys=Keys.read(record.folder / OLD),
        )
        self.place = Path(tempfile.mkdtemp(dir=record.folder))
        self.liar = rng.choice(others)
        self.mutator = Mutator(record, Liar(self.members[self.liar], rng), rng)
        self.checked: set[Any] = set()
        self.open()

    # Coming and going

    def open(self) -> None:
        """Start the peer as it was in the scene."""
        shutil.rmtree(self.place)
        shutil.copytree(self.record.place(self.scene), self.place)
        bundle = Bundle.read(self.place)
        trust = bundle.trust()
        self.transport = Others(self.liar)
        self.events: list[dict[str, Any]] = []
        journal = Journal(self.place / "log.jsonl", bundle.name, [self._event])
        store = Store(bundle.store)
        self.chapters = Chapters(bundle, trust, store, self.transport, journal)
        self.server = Grpc(bundle, trust)
        self.server.handler = self.chapters
        self.sent = 0
        self.checked.clear()
        self.base = self._rows()
        calls = scene_calls(self.record, self.chapters.service.run_id)
        self.mutator.focus(self.scene.peer, calls, self.record.calls[self.scene.call])
        self.before, self.start = self._looks(), self._stands()
        welcome = self.record.calls[self.scene.call].sender
        others = [p for p in self.members if p != welcome]
        self.lie_as(
            welcome
            if self.rng.random() < 0.75 and welcome in self.members
            else self.rng.choice(others)
        )
        self.image = sqlite3.connect(":memory:")
        store.db.backup(self.image)
        self.saved = self._saved()

    def _saved(self) -> list[tuple[Any, dict[str, Any]]]:
        """What of the peer's objects a message may change, to put it back without a new start."""
        chapters = self.chapters
        service, next_chapter = chapters.service, chapters.next_chapter
        polls = ("state", "texts", "offers", "fork")
        kept = (
            (service, ("state", "open_move", "arrivals")),
            (service.ends, ("void",)),
            (service.poll, polls),
            (service.recovery, ("overruns", "slow")),
            (next_chapter, ("known", "specs", "poll", "fork", "wish")),
            (next_chapter.poll, polls),
            (chapters, ("specs", "runs")),
            (chapters.store, ("changes", "archived")),
        )
        return [(one, {n: copy(getattr(one, n)) for n in names}) for one, names in kept]

    async def rewind(self) -> None:
        """Put the peer back to where it was in the scene, without starting it anew."""
        chapters = self.chapters
        service = chapters.service
        for task in [*chapters.tasks, *service.control_messages.tasks]:
            task.cancel()
        await asyncio.to_thread(lambda: None)  # what was to be removed is not in the way
        for one, values in self.saved:
            for name, value in values.items():
                setattr(one, name, value if name == "poll" else copy(value))
        chapters.left.clear()
        chapters.left |= self.start[5]
        for event in (service.over, service.whole):
            event.set() if service.state.committed is not None else event.clear()
        service.poll.forked.clear()
        service.receiver.opened = None
        self.image.backup(chapters.store.db)
        for file in (self.record.place(self.scene) / "store" / "tokens").glob("*.safetensors"):
            if not chapters.store.file(file.stem).exists():
                shutil.copyfile(file, chapters.store.file(file.stem))
        self.before = self._looks()

    def _stands(self) -> tuple[Any, ...]:
        """Where the peer stands: once it has gone on, it is started again as it was."""
        chapters, state = self.chapters, self.chapters.service.state
        known = len(chapters.next_chapter.known)
        return state.held, state.fence, state.committed, state.ends, known, set(chapters.left)

    def _matter(self) -> Any:
        poll = self.rng.choice([self.chapters.service.poll, self.chapters.next_chapter.poll])
        return poll.matter

    def _event(self, event: dict[str, Any]) -> None:
        if event["event"] == "failed":
            self.tally.problems.append(f"{self.scene.name}: a task failed: {event['reason']}")

    async def close(self) -> None:
        chapters = self.chapters
        for task in [*chapters.tasks, *chapters.service.control_messages.tasks]:
            task.cancel()
        service = chapters.service
        await service.calls.close()
        for pool in (service.visits, service.hashing, service.disk):
            await asyncio.to_thread(pool.shutdown, wait=True)
        if chapters.records is not None:
            chapters.records.close()
        chapters.journal.close()
        chapters.store._release()

    async def restore(self) -> None:
        await self.close()
        self.tally.restored += 1
        self.open()

    def lie_as(self, member: int) -> None:
        """Another member lies from now on."""
        self.liar = self.transport.liar = member
        self.mutator.liar = Liar(self.members[member], self.rng)
        self.mutator.liar.matter = self._matter()
        self.mutator.liar.former = self.former

    # What must not change

    def _looks(self) -> tuple[Any, ...]:
        """Everything that a message could change, so that two looks are compared quickly."""
        chapters = self.chapters
        service, next_chapter = chapters.service, chapters.next_chapter
        return (
            service.state,
            service.poll.state,
            next_chapter.poll.state,
            chapters.store.db.total_changes,
            len(next_chapter.known),
            frozenset(chapters.left),
            tuple(service.poll.offers.items()),
            tuple(next_chapter.poll.offers.items()),
            len(chapters.specs),
            next_chapter.fork,
            service.poll.fork,
            self._named(),
        )

    def _named(self) -> frozenset[int]:
        """The peers that signed two visits of one place."""
        found = self.chapters.store.db.execute("SELECT peer FROM lies")
        return frozenset(peer for (peer,) in found)

    def _same(self, now: tuple[Any, ...]) -> bool:
        return all(a is b or a == b for a, b in zip(self.before, now, strict=True))

    def _rows(self) -> dict[str, int]:
        db = self.chapters.store.db
        names = [r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {n: db.execute(f"SELECT COUNT(*) FROM {n}").fetchone()[0] for n in names}

    def wrong(self, sent: Sent, why: str) -> None:
        shown = b" | ".join(p[:600] for p in sent.parts)[:1500]
        self.tally.problems.append(
            f"{self.scene.name}: {why} ({sent.method} {sent.kind}, {sent.who} {sent.sender}, "
            f"{sent.way}): {shown!r}"
        )

    def allowed(self, sent: Sent) -> str | None:
        """What is wrong with how a member's message has left this peer; None if nothing is."""
        chapters, true = self.chapters, self.record.true
        service, next_chapter = chapters.service, chapters.next_chapter
        state = service.state
        if state.fence not in true["generations"]:
            return f"generation {state.fence} is believed"
        if state.committed not in (None, self.before[0].committed, *true["ends"]):
            return f"{state.committed} is committed"
        for end in state.ends:
            entry = self.mutator.entry(end.chain)
            if entry is None:
                return f"{end} is an end that nobody walked to"
            stayed = self.liar == service.succession.first  # which the log cannot tell from a lie
            if entry["body"]["previous"] not in self.mutator.entries and not stayed:
                return f"{end} is an end that nobody walked to"
        if len(state.ends) > MOST_ENDS:
            return f"{len(state.ends)} ends are kept"
        if any(text not in true["chapters"] for text, _ in next_chapter.known):
            return "a chapter is known that was not decided"
        new_left = chapters.left - self.before[5]
        if new_left - {sent.sender}:
            return f"{new_left} have left"
        if next_chapter.fork is not None or service.poll.fork is not None:
            return f"a fork is believed: {next_chapter.fork or service.poll.fork}"
        return self._votes(service.poll) or self._votes(next_chapter.poll)

    def _votes(self, poll: Any) -> str | None:
        """Votes that are kept: few, and each signed by whom it names."""
        state: de.State = poll.state
        kept = Counter((v.kind, v.voter) for v in state.votes)
        if kept and max(kept.values()) > de.TWICE:
            return f"{kept.most_common(1)} votes of one peer are kept"
        if state.round > 1:
            return f"round {state.round} was reached"
        if len(poll.texts) > 64 or len(poll.offers) > 4:
            return f"{len(poll.texts)} texts and {len(poll.offers)} offers are kept"
        for vote in state.votes:
            if vote in self.checked or vote.voter == state.me:
                continue
            data = words(self.chapters.network.run_id, poll.matter, vote)
            try:
                name = self.chapters.trust.check(vote.certificate, vote.signature, data, past=True)
            except UnwalkError as error:
                return f"a vote is kept that is not signed: {error}"
            if self.chapters.network.index(name) != vote.voter:
                return f"a vote of peer {vote.voter} is kept that {name} signed"
            self.checked.add(vote)
        return None

    def bounded(self) -> str | None:
        """What has grown that must not."""
        chapters, tally = self.chapters, self.tally
        rows = self._rows()
        for name, count in rows.items():
            tally.high(f"rows of {name}", count)
            most = self.base.get(name, 0) + MORE.get(name, 4)
            if count > most:
                return f"{name} has {count} rows; at first {self.base.get(name, 0)}"
        if chapters.records is not None:
            begun = chapters.records.db.execute("SELECT COUNT(*) FROM visits").fetchone()[0]
            tally.high("visits begun", begun)
            if begun > 32:
                return f"{begun} visits are written down"
        files = len(list(chapters.store.tokens.iterdir()))
        tally.high("token files", files)
        waiting = chapters.service.visits._work_queue.qsize()
        tally.high("visits that wait", waiting)
        tasks = len(chapters.tasks) + len(chapters.service.control_messages.tasks)
        tally.high("tasks", tasks)
        log = sum(p.stat().st_size for p in self.place.glob("log*.jsonl"))
        tally.high("bytes of the log", log)
        if files > 24:
            return f"{files} token files"
        if waiting > 2:
            return f"{waiting} visits wait"
        if tasks > 32:
            return f"{tasks} tasks are under way"
        if log > 2 * LARGEST_LOG + MESSAGE:
            return f"{log} bytes of log"
        return None

    # Calls

    def next(self) -> Sent:
        sent = self.mutator.next()
        if self.rng.random() < 0.15:
            who, _ = self.rng.choice(self.not_members)
            return Sent(sent.method, sent.kind, who, -1, sent.parts, sent.way)
        if sent.sender == self.scene.peer:
            return Sent(sent.method, sent.kind, "member", self.liar, sent.parts, sent.way)
        return sent

    async def one(self) -> None:
        """One bad message, or one bad answer to what this peer asks, and a look at the peer."""
        self.sent += 1
        self.tally.messages += 1
        if self.rng.random() < 0.12:
            await self._ask()
        else:
            await self._call(self.next())
        if self.sent % 500 == 0:
            await asyncio.sleep(0)
            found = self.bounded()
            if found is not None:
                self.tally.problems.append(f"{self.scene.name}: {found}")
                await self.restore()
        if self.sent % 1500 == 0:
            await self.restore()

    async def hurry(self) -> None:
        """More calls than are allowed in a second, two tokens at once, and one when it stops."""
        await self.restore()
        chapters, welcome = self.chapters, self.record.calls[self.scene.call]
        service = chapters.service
        if welcome.kind == "offer":
            sender = welcome.sender
            good = Sent("hand", "offer", "member", sender, welcome.parts[:2], "in a hurry")
            self.transport.answer = self._entry
            await asyncio.gather(*(self._outcome(good) for _ in range(3)))
            service.stopping = True
            await self._outcome(good)
            service.stopping = False
        chapters.door.rate.rate = 2.0
        for kind in ("where", "agenda-ask"):
            call = (self.mutator.near.get(kind) or self.mutator.by_kind[kind])[0]
            sent = Sent("tell", kind, "member", self.liar, call.parts, "in a hurry")
            chapters.door.rate.buckets.clear()
            said = [await self._outcome(sent) for _ in range(12)]
            if not any("calls a second" in word for word in said):
                self.wrong(sent, "more than two calls a second were answered")

    async def _call(self, sent: Sent) -> None:
        tally = self.tally
        alone = self.rng.random() < 0.7
        self.transport.answer = self._entry if alone else self.mutator.answer
        began = time.process_time()
        try:
            outcome = await self._outcome(sent)
        except Exception:
            outcome = "CRASH"
            self.wrong(sent, traceback.format_exc(limit=-4))
        took = time.process_time() - began
        if took > SLOWEST:
            took = min(took, await self._again(sent))
        tally.slowest = max(tally.slowest, took)
        if took > SLOWEST:
            self.wrong(sent, f"it took {took:.3f} s")
        tally.senders[sent.who] += 1
        tally.ways[sent.way] += 1
        where = f"{sent.method} {sent.kind}" if sent.who == "member" else f"any, from a {sent.who}"
        tally.outcomes[where, outcome] += 1
        await self._settled()
        await self._look(sent, outcome if alone else "answered")

    async def _settled(self) -> None:
        """Wait until the peer has done what it does beside a call, such as asking others."""
        tasks = self.chapters.tasks
        while tasks:
            await asyncio.wait(set(tasks))

    async def _again(self, sent: Sent) -> float:
        began = time.process_time()
        await self._outcome(sent)
        return time.process_time() - began

    async def _look(self, sent: Sent, outcome: str) -> None:
        now = self._looks()
        if self._same(now):
            return
        good = outcome.split(":")[0] in ("accepted", "answered")
        named = self._named() - self.before[-1]
        if named - {self.liar}:
            self.wrong(sent, f"{named} are named as liars")
        if sent.who != "member":
            self.wrong(sent, f"a {sent.who} changed something")
        elif not good and not named:  # what shows who lied is kept
            self.wrong(sent, f"refused ({outcome}), but something was changed")
        elif sent.kind in QUESTIONS and sent.way != "made up" and outcome != "answered":
            self.wrong(sent, "a question changed something")
        found = self.allowed(sent)
        if found is not None:
            self.wrong(sent, found)
        self.before = now
        if found is not None:
            await self.restore()
        elif self._stands() != self.start:
            self.tally.rewound += 1
            await self.rewind()

    def _entry(self, message: bytes) -> bytes:
        """The liar shows entries of the log, and answers nothing else."""
        said = json.loads(message)
        if said["kind"] == "entries":
            return codec.dump({"entries": self.mutator.page(said["chain"], said["most"])})
        known = self.mutator.entry(said.get("chain"))
        return b"" if said["kind"] != "entry" else codec.dump({"entry": known})

    async def _outcome(self, sent: Sent) -> str:
        """Make a call as gRPC does; ``accepted``, ``answered``, or the sentence of the refusal."""
        pem = self.pems.get(sent.sender)
        if sent.who != "member":
            kinds = [p for who, p in self.not_members if who == sent.who]
            pem = self.rng.choice(kinds)
        server = self.server
        call: Callable[[Any, Context], Awaitable[bytes]] = {
            "hand": server._hand,
            "tell": server._tell,
            "hello": server._hello,
        }[sent.method]
        context = Context(pem, framed(sent))
        try:
            answer = await call(None, context)
        except Aborted:
            assert context.status is not None
            return f"{context.status[0].name}: {sentence_of(context.status[1])}"
        if len(answer) > CHUNK:
            self.wrong(sent, f"an answer of {len(answer)} bytes")
        return outcome_of(answer)

    # Questions of its own

    async def _ask(self) -> None:
        """Let the peer ask something; the liar answers whatever it likes."""
        chapters, rng = self.chapters, self.rng
        service, next_chapter = chapters.service, chapters.next_chapter
        control_messages, true = service.control_messages, self.record.true
        self.transport.answer = self.mutator.answer
        end = rng.choice(sorted(true["ends"], key=lambda v: v.chain))
        chain = rng.choice(list(self.mutator.entries))
        asks: dict[str, Callable[[], Awaitable[Any]]] = {
            "where": lambda: control_messages.ask_all(chain, rng.choice([0, 1, 9])),
            "catch up": control_messages.catch_up,
            "fence": lambda: control_messages.hear_fence(self.liar, (1, self.liar)),
            "end": lambda: service.poll.show(self.liar),
            "entry": lambda: control_messages.find_entry(chain, self.liar),
            "log": lambda: LogFetch(service, control_messages, end, self.liar).whole(),
            "page": lambda: control_messages.page(self.liar, chain),
            "beginning": control_messages.beginnings,
            "release": lambda: control_messages._release(
                self.liar, service.state.kept or _parcel(service)
            ),
            "final": lambda: (
                service.last_token._bring_final(self.liar, end) if _there(service, end) else _none()
            ),
            "agenda": next_chapter.catch_up,
            "vote": lambda: next_chapter.poll.show(self.liar),
            "visits": lambda: next_chapter.fetch_visits(0, 8, 0),
            "receipts": lambda: self._receipts(),
            "ready": lambda: chapters.request_steps.leaving._all(ms.AgendaReady, "ready", number=1),
            "offer": self._offer,
            "hello": self._greet,
        }
        name = rng.choice(list(asks))
        sent = Sent("ask", name, "member", self.liar, (), "answer")
        began = time.process_time()
        try:
            await asks[name]()
            outcome = "answered"
        except UnwalkError as error:
            outcome = sentence_of(str(error))
        except Exception:
            outcome = "CRASH"
            self.wrong(sent, traceback.format_exc(limit=-4))
        took = time.process_time() - began
        self.tally.slowest = max(self.tally.slowest, took)
        if took > 2 * SLOWEST:
            self.wrong(sent, f"it took {took:.3f} s")
        self.tally.senders["member"] += 1
        self.tally.ways["answer"] += 1
        self.tally.outcomes[f"ask {name}", outcome] += 1
        await self._settled()
        await self._look(sent, "answered")

    async def _receipts(self) -> None:
        chapters = self.chapters
        if len(chapters.runs) > 1:
            chapters.certifying.again.clear()
            await chapters.certifying.receipts(1)

    async def _offer(self) -> None:
        """The answer to an offer of this peer's own."""
        data = await self.transport.tell(self.liar, self.mutator.by_kind["offer"][0].parts[0], 5.0)
        codec.reply_from(codec.parse(data, 1 << 18))

    async def _greet(self) -> None:
        """The liar proves who it is, or does not."""
        peer = self.rng.choice(list(self.members))

        def answer(nonce: bytes) -> bytes:
            if self.rng.random() < 0.5:
                return self.mutator.answer(b'{"kind":"hello"}')
            bundle, name = self.members[self.liar], self.chapters.network.peers[peer].name
            data = HELLO + nonce + f":{self.chapters.bundle.name}:{name}".encode()
            pem = bundle.certificate_pem.decode()
            return codec.dump({"certificate": pem, "signature": bundle.sign(data).hex()})

        await self.server._greet(peer, Channel(answer), 5.0)  # type: ignore[arg-type]


class Channel:
    """The far end of a greeting."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.answer = answer

    def unary_unary(self, _: str) -> Callable[..., Awaitable[bytes]]:
        async def call(nonce: bytes, timeout: float) -> bytes:
            return self.answer(nonce)

        return call


def scene_calls(record: Record, run: str) -> list[Call]:
    """The calls that mean something to a peer in a walk: those about it, and about chapters."""
    name = run.encode()
    return [
        call
        for call in record.calls
        if call.parts and (call.kind.startswith("agenda") or name in call.parts[0][:512])
    ]


async def _none() -> None: ...


def _there(service: Any, end: Any) -> bool:
    return bool(service.store.file(end.token).exists())


def _parcel(service: Any) -> Any:
    from unwalk.peers.protocol.handover import Parcel

    state = service.state
    return Parcel(state.fence, 1, 0, "", "", state.lineage)


def framed(sent: Sent) -> list[bytes]:
    """The pieces of a call: of a token's, the envelope's length, itself, and the first bytes."""
    if sent.method != "hand" or sent.way == "frames":
        return list(sent.parts)
    envelope, *rest = sent.parts
    first = len(envelope).to_bytes(4, "big") + envelope + (rest[0] if rest else b"")
    return [first, *rest[1:]]


def outcome_of(answer: bytes) -> str:
    """An answer in a word, or the sentence of a refusal."""
    record = json.loads(answer)
    kind = record.get("kind")
    if kind == "refused":
        return f"refused: {sentence_of(record['reason'])}" if record["reason"] else "refused: "
    return str(kind) if kind in ("accepted", "stale", "busy", "over") else "answered"
