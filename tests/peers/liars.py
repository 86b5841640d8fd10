"""A member that lies: it has the keys of one bundle, signs what it likes and sends it to anybody.

::

    liar = Liar(folder, 2, memory.at(2))           # over memory
    async with lying(folder, 2) as liar:           # over gRPC with mutual TLS, as a real process
        matter = liar.matter(1)                    # which chapter is next
        poll = liar.shown(matter, [Vote(PREVOTE, 0, digest_of("x"), NEVER, 2)])
        await liar.tell(0, liar.words("agenda-decide", number=1, poll=poll))

``folder`` is where the network was made, with every bundle: a liar can so be given other members
to lie with (``by``).  What it signs: votes (:meth:`Liar.signed`), what it shows of a vote
(:meth:`Liar.shown`), decisions (:meth:`Liar.made_up`), chapters (:meth:`Liar.chapter`), entries of
the log (:meth:`Liar.entry`), certificates (:meth:`Liar.resigned`); and it hands over tokens
(:meth:`Liar.offer`).  It may read the store of its own daemon (:meth:`Liar.state`,
:meth:`Liar.entries`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from unwalk.certificates.signing import sign
from unwalk.core.token import Token
from unwalk.core.transcript import canonical
from unwalk.peers.decisions.ballot import end_of
from unwalk.peers.decisions.decided import matter_of, words_of
from unwalk.peers.decisions.votes import Matter, Writer, digest_of, words
from unwalk.peers.decisions.walk_end import closing_of, end_from, end_text
from unwalk.peers.handover.moves import move_to
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.consensus import NEVER, PRECOMMIT, PREVOTE, Decision, Vote
from unwalk.peers.protocol.handover import Parcel, PeerState, Value
from unwalk.peers.protocol.hoplog import Entry, sign_entry
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.storage.database import read_only
from unwalk.peers.storage.token_files import token_pieces
from unwalk.peers.transport.wire import Grpc, Transport

PATIENCE = 5.0
"""Seconds for an answer."""


class Liar:
    """One member of the network in ``folder``, and its way to the others."""

    def __init__(self, folder: Path, peer: int, transport: Transport | None = None) -> None:
        self.folder, self.me, self.transport = folder, peer, transport
        self.bundle = Bundle.read(folder / f"peer-{peer}")
        self.network = self.bundle.network

    def member(self, peer: int) -> Bundle:
        """The keys of a member that lies too."""
        return self.bundle if peer == self.me else Bundle.read(self.folder / f"peer-{peer}")

    # What is said

    def words(self, kind: str, *, run: str = "", **fields: Any) -> bytes:
        """A message about chapters, or with ``run`` about a walk; training's is the network's."""
        name, run = self.network.name, run or self.network.run_id
        return codec.dump({**ms.head(name, run), "kind": kind, **fields})

    async def tell(self, peer: int, message: bytes) -> dict[str, Any]:
        """The answer to a message."""
        assert self.transport is not None
        return codec.parse(await self.transport.tell(peer, message, PATIENCE), 1 << 20)

    async def tell_all(self, peers: Iterable[int], message: bytes) -> list[dict[str, Any]]:
        return [await self.tell(peer, message) for peer in peers]

    # What is voted on

    def matter(self, number: int, decided: Collection[Spec] = ()) -> Matter:
        """Which chapter is ``number``, after those that were ``decided``."""
        return matter_of(self.network, number, list(decided))

    def end(self, run: str = "", number: int = 0, left: Iterable[int] = ()) -> Matter:
        """How a walk ends: training's, or that of chapter ``number`` with its ``run``."""
        rules = self.network.rules(left, first=number)
        return Matter(end_of(run or self.network.run_id), number, rules)

    def signed(self, matter: Matter, vote: Vote, by: int | None = None) -> Vote:
        """A vote signed by ``by``, whoever it says that it is of."""
        bundle = self.member(self.me if by is None else by)
        data = words(self.network.run_id, matter, vote)
        pem = bundle.certificate_pem.decode()
        return replace(vote, signature=bundle.sign(data).hex(), certificate=pem)

    def shown(
        self, matter: Matter, votes: Iterable[Vote], decided: Decision | None = None, **more: Any
    ) -> dict[str, Any]:
        """What a liar shows of a vote: what it signed itself, and a decision if there is one."""
        writer = Writer()
        record: dict[str, Any] = {
            "votes": writer.votes(frozenset(self.signed(matter, v) for v in votes)),
            "opened": [],
            "chains": [],
            "decided": writer.decision(decided),
            "texts": [],
            "offer": None,
        }
        return {**record, **more, "certificates": writer.certificates}

    def made_up(
        self,
        matter: Matter,
        text: str,
        voters: Iterable[int],
        by: Mapping[int, int] | None = None,
        round: int = 0,
    ) -> Decision:
        """A decision with votes of ``voters``, each signed by whom ``by`` says, or by itself."""
        found, signer = end_from(text), dict(by or {})
        value = digest_of(text) if found is None else found[1].digest

        def votes(kind: str) -> frozenset[Vote]:
            plain = [Vote(kind, round, value, NEVER, v) for v in voters]
            return frozenset(self.signed(matter, v, signer.get(v.voter, v.voter)) for v in plain)

        return Decision(value, round, votes(PRECOMMIT), (votes(PREVOTE),))

    def chapter(self, spec: Spec) -> str:
        """The text of a chapter, signed by the liar."""
        pem = self.bundle.certificate_pem.decode()
        signature = self.bundle.sign(words_of(self.network.run_id, spec)).hex()
        return canonical({"spec": spec.to_json(), "signature": signature, "certificate": pem})

    def against(self, victim: int, hops: int, method: str = "restart", **changes: Any) -> Spec:
        """A chapter by which a member has another one forgotten and counted out."""
        spec = Spec(
            1,
            victim,
            method,
            "exact",
            None,
            None,
            ("made-up",),
            0,
            hops,
            0,
            hops,
            self.me,
            left=(victim,),
        )
        return replace(spec, **changes)

    # The walk

    def state(self, run: str = "") -> PeerState | None:
        """How far the liar's own daemon is."""
        query = "SELECT state FROM runs WHERE run = ?"
        found = self._rows(query, run or self.network.run_id)
        return codec.state_from(json.loads(found[0][0])) if found else None

    def entries(self, run: str = "") -> list[Entry]:
        """The entries of the log that the liar's own daemon knows, oldest first."""
        query = "SELECT entry FROM entries WHERE run = ? ORDER BY number, hop"
        return [json.loads(row[0]) for row in self._rows(query, run or self.network.run_id)]

    def _rows(self, query: str, *values: Any) -> list[Any]:
        try:
            with closing(read_only(self.bundle.store / "state.sqlite")) as db:
                return db.execute(query, values).fetchall()
        except sqlite3.OperationalError:  # its daemon has not made it yet
            return []

    def entry(self, entry: Entry, **changes: Any) -> Entry:
        """An entry of the log that says something else, signed by the liar."""
        body = {k: v for k, v in entry["body"].items() if k != "previous"}
        previous = changes.pop("previous", entry["body"]["previous"])
        pem = self.bundle.certificate_pem.decode()
        return sign_entry(previous, {**body, **changes}, self.bundle.sign, pem)

    @staticmethod
    def digest(token: Token) -> str:
        """The name of a token's file."""
        return hashlib.sha256(b"".join(bytes(p) for p in token_pieces(token))).hexdigest()

    async def offer(self, parcel: Parcel, token: Token, entry: Entry) -> dict[str, Any]:
        """Hand a token to whom the route leads from there; the answer."""
        work = Work(plan_of(self.network, self.bundle.noise_secret), self.me)
        found = work.choose(parcel.hop + 1, self.me, token.memory, set())
        assert found is not None
        assert self.transport is not None
        attempt, move = found
        data = b"".join(bytes(part) for part in token_pieces(token))
        said = move_to(self.me, attempt, move, ())
        envelope = self.words(
            "offer",
            parcel=msgspec.to_builtins(codec.bare_parcel_of(parcel)),
            path=list(move.path),
            move={k: v for k, v in said.items() if k != "passed_over"},
            passed_over=[],
            size=len(data),
        )

        async def pieces() -> AsyncIterator[bytes]:
            yield data
            yield codec.dump(entry)

        answer = await self.transport.hand(move.path[0], envelope, pieces, PATIENCE)
        return codec.parse(answer, 1 << 20)

    # Certificates

    def resigned(self, document: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        """A certificate with something changed under ``peers``, signed by the liar."""
        body = {k: v for k, v in document.items() if k not in ("signer", "signature")}
        body["peers"] = {**document["peers"], **changes}
        return sign(body, self.bundle.keys.signing, self.bundle.certificate_pem.decode())


def unwalked_end() -> str:
    """An end of training that nobody walked to."""
    value = Value((0, 0), "0" * 64, "1" * 64, "salt")
    return end_text(value, closing_of(value, "2" * 64, "3" * 64))


@asynccontextmanager
async def lying(folder: Path, peer: int) -> AsyncIterator[Liar]:
    """A liar that speaks to daemons over mutual TLS, and never listens."""
    bundle = Bundle.read(folder / f"peer-{peer}")
    transport = Grpc(bundle, bundle.trust())
    try:
        yield Liar(folder, peer, transport)
    finally:
        await transport.stop()
