"""Checks decided chapters and ends that others show: who signed them, which votes they need."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import canonical
from unwalk.peers.decisions.ballot import end_of
from unwalk.peers.decisions.votes import LONGEST_TEXT, Matter, decision_from, digest_of
from unwalk.peers.decisions.walk_end import Closing, closing_from
from unwalk.peers.identity.network_file import Network
from unwalk.peers.identity.trust import Trust
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.consensus import Decision
from unwalk.peers.protocol.schedule import Spec, run_of

PREFIX = b"unwalk-chapter-1:"
MOST_CHAPTERS = 100_000


@dataclass(frozen=True)
class Said:
    """A chapter as it was proposed: the signed text, and what it says."""

    text: str
    spec: Spec


def matter_of(network: Network, number: int, decided: Sequence[Spec]) -> Matter:
    """The matter "which chapter is ``number``"; the chapter before it says who decides."""
    left = decided[number - 2].left if number > 1 else ()
    return Matter(f"chapter {number}", number, network.rules(left, first=number))


def end_matter(network: Network, number: int, decided: Sequence[Spec]) -> Matter:
    """How the walk of chapter ``number`` ended, or that of training: number 0."""
    spec = decided[number - 1] if number else None
    run = network.run_id if spec is None else run_of(network.run_id, spec)
    left = () if spec is None else spec.left
    return Matter(end_of(run), number, network.rules(left, first=number))


def words_of(run: str, spec: Spec) -> bytes:
    """What a chapter's signature is on."""
    return PREFIX + canonical({"network": run, "spec": spec.to_json()}).encode()


def kept_chapter(text: str, peers: int) -> Spec:
    """The chapter in a text that was decided here, whoever was revoked since."""
    return Spec.from_json(_fields(text, len(text))["spec"], peers)


def chapters_in(db: sqlite3.Connection, peers: int) -> list[Spec]:
    """The chapters that were decided, as far as a store's database knows."""
    found: list[Spec] = []
    with suppress(sqlite3.OperationalError):
        for (text,) in db.execute("SELECT text FROM agenda ORDER BY number").fetchall():
            found.append(kept_chapter(text, peers))
    return found


def _fields(text: str, longest: int) -> dict[str, Any]:
    record = codec.parse(text.encode(), longest)
    return codec.fields_of(record, "a chapter", "spec", "signature", "certificate")


def read_chapter(trust: Trust, run: str, number: int, text: Any, *, voted_on: bool = False) -> Said:
    """A chapter in its signed text; refused unless whom it names signed it.

    While it is ``voted_on`` a certificate that is revoked at all is not good: nothing shows that
    the chapter was written before.  Once it was decided the votes show that.
    """
    if not isinstance(text, str) or not text.isascii():
        raise Corrupt("a chapter is no plain text.")
    found = _fields(text, LONGEST_TEXT)
    spec = Spec.from_json(found["spec"], len(trust.network.peers))
    if spec.number != number or canonical(found) != text:
        raise Corrupt(f"a text is not chapter {number} in its one form.")
    pem, signature = str(found["certificate"]), str(found["signature"])
    name = trust.check(pem, signature, words_of(run, spec), past=True)
    if trust.network.index(name) != spec.holder:
        raise Refused(f"chapter {number} was not signed by peer {spec.holder}.")
    if voted_on and trust.identity(pem, past=True).serial in trust.network.revoked:
        raise Refused(f"chapter {number} was signed with a certificate that was revoked.")
    return Said(text, spec)


def read_decision(
    trust: Trust, run: str, number: int, decided: Sequence[Spec], text: Any, record: Any
) -> tuple[Said, Decision]:
    """A decided chapter with its votes; refused unless a quorum decided on that very text."""
    said = read_chapter(trust, run, number, text)
    decision = decision_from(record, trust, run, matter_of(trust.network, number, decided))
    if decision.value != digest_of(said.text):
        raise Refused(f"those votes on chapter {number} are for another one.")
    return said, decision


def read_end(trust: Trust, number: int, decided: Sequence[Spec], text: Any, record: Any) -> Closing:
    """What stays of how a chapter's walk ended; refused unless a quorum decided on that."""
    closing, matter = closing_from(text), end_matter(trust.network, number, decided)
    decision = decision_from(record, trust, trust.network.run_id, matter)
    if decision.value != closing.digest:
        raise Refused(f"those votes on {matter.name} are for another one.")
    return closing


def check_decided(trust: Trust, db: sqlite3.Connection) -> None:
    """Refuse what a store's database has of chapters and ends if the votes for it do not count."""
    run = trust.network.run_id
    rows = db.execute("SELECT text, decision FROM agenda ORDER BY number").fetchall()
    specs = read_all(trust, run, [[text, json.loads(votes)] for text, votes in rows])
    runs = [run, *(run_of(run, spec) for spec in specs)]
    for ended, text, votes in db.execute("SELECT run, text, decision FROM ends").fetchall():
        if ended in runs:
            read_end(trust, runs.index(ended), specs, text, json.loads(votes))


def read_all(trust: Trust, run: str, records: Any) -> list[Spec]:
    """All chapters up to one, each decided by those whom the one before counts."""
    found: list[Spec] = []
    for number, item in enumerate(codec.listed(records, "decisions", most=MOST_CHAPTERS), 1):
        if not isinstance(item, list) or len(item) != 2:
            raise Corrupt("a decided chapter is not shown with its votes.")
        found.append(read_decision(trust, run, number, found, *item)[0].spec)
    return found
