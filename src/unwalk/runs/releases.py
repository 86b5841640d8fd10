"""The register of noisy releases: noise is drawn once for a request, whatever the settings.

Whoever may draw the noise again until he likes the result has not added the noise that was
accounted for.  A secret gives one noise for a run, but other settings make another run.  So each
secret has a register in its folder.  Before noise is drawn to hide some records, an entry is
written there: the run, and a mark of each record, which is an HMAC of its contents under the
secret.  An earlier entry of another run that shares a mark is an earlier release; the transcript's
header says how many there are, and a certificate is refused where there is any.  Real peers keep
the same register beside their secret, with marks made from the keyed hashes of record ids.

Entries are chained by HMACs under the secret, so that one that is changed or taken out is noticed.
The header repeats number and chain value of its entry.  Not covered: another secret, a register
whose end was cut off (two certificates with one entry number and different chain values show it,
if they ever meet), records that were altered.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.noise import SecretNoise
from unwalk.core.transcript import canonical
from unwalk.core.validation import check_private_file
from unwalk.tasks import ShardedTask


@dataclass(frozen=True)
class Entry:
    """One line: its number from 1, the run, and the marks of the records that it hides."""

    number: int
    run: str
    marks: frozenset[str]
    chain: str


def register_of(secret_file: Path, secret: bytes) -> Path:
    """Where the register of a secret lies: beside it, whatever the secret's file is called."""
    name = hmac.new(secret, b"unwalk/register", hashlib.sha256).hexdigest()[:16]
    return secret_file.resolve().parent / f"releases-{name}.jsonl"


def marks_of(task: ShardedTask, peer: int, secret: bytes) -> frozenset[str]:
    """A mark of each record that the peer has to forget; equal records have equal marks."""
    shard = task.shard(peer)
    found = set()
    for row in shard.records.forgotten.tolist():
        x = shard.x[row].detach().to("cpu", torch.float64).contiguous()
        message = b"unwalk/record/" + x.numpy().tobytes() + str(int(shard.y[row])).encode()
        found.add(hmac.new(secret, message, hashlib.sha256).hexdigest()[:32])
    return frozenset(found)


def announce(task: ShardedTask, peer: int, noise: SecretNoise, secret_file: Path) -> dict[str, Any]:
    """Enter a release in the register, unless it is there, and say what the header repeats."""
    marks = marks_of(task, peer, noise.secret)
    return enter(secret_file, noise.secret, noise.run, marks)


def enter(
    secret_file: Path, secret: bytes, run: str, marks: frozenset[str], *, mend: bool = False
) -> dict[str, Any]:
    """Enter the release of ``run``, which hides the records with these marks, unless it is there.

    With ``mend`` a last line without its end, as a crash leaves it, is taken out first: no noise
    was drawn for it.
    """
    path = register_of(secret_file, secret)
    with _held(path) as file:
        text = file.read()
        if mend and not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            os.ftruncate(file.fileno(), len(text))
            file.seek(0, os.SEEK_END)
        entries = _read(path, text, secret)
        mine = next((entry for entry in entries if entry.run == run), None)
        if mine is None:
            mine = _next(entries, secret, run, marks)
            file.write(_line(mine))
            file.flush()
            os.fsync(file.fileno())
        elif mine.marks != marks:
            raise InvalidInput(
                f"{path} has run {run} for other records; the data changed since, and one noise "
                "must not fall on two inputs: change a setting, such as the seed."
            )
    return _said(entries, mine)


def entered(secret_file: Path, secret: bytes, run: str) -> dict[str, Any] | None:
    """What :func:`enter` answered for ``run``, or None if there is no such entry."""
    entries = known_releases(secret_file, secret)
    mine = next((entry for entry in entries if entry.run == run), None)
    return None if mine is None else _said(entries, mine)


def known_releases(secret_file: Path, secret: bytes) -> list[Entry]:
    """Every whole entry of a secret's register, checked."""
    path = register_of(secret_file, secret)
    if not path.exists():
        return []
    with _held(path) as file:
        text = file.read()
    return _read(path, text[: text.rfind("\n") + 1], secret)


def _said(entries: list[Entry], mine: Entry) -> dict[str, Any]:
    found = [entry for entry in entries if entry.number < mine.number and entry.marks & mine.marks]
    return {"entry": mine.number, "chain": mine.chain, "earlier": len(found)}


@contextmanager
def _held(path: Path) -> Iterator[Any]:
    """The register, open for its owner alone, while nobody else writes to it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"{path}, the register of noisy releases, cannot be opened: {error.strerror}."
        ) from error
    with os.fdopen(handle, "r+", encoding="ascii") as file:
        check_private_file(path)
        if os.name == "posix":
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _body(number: int, run: str, marks: frozenset[str]) -> dict[str, Any]:
    return {"entry": number, "run": run, "records": sorted(marks)}


def _chained(secret: bytes, before: str, body: dict[str, Any]) -> str:
    message = f"unwalk/release/{before}/{canonical(body)}".encode()
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def _next(entries: list[Entry], secret: bytes, run: str, marks: frozenset[str]) -> Entry:
    number, before = len(entries) + 1, entries[-1].chain if entries else ""
    chain = _chained(secret, before, _body(number, run, marks))
    return Entry(number, run, marks, chain)


def _line(entry: Entry) -> str:
    return canonical({**_body(entry.number, entry.run, entry.marks), "chain": entry.chain}) + "\n"


def _read(path: Path, text: str, secret: bytes) -> list[Entry]:
    """The entries, each checked against the one before it."""
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
            entry = Entry(
                record["entry"], record["run"], frozenset(record["records"]), record["chain"]
            )
            body = _body(number, entry.run, entry.marks)
            before = entries[-1].chain if entries else ""
            intact = line == _line(entry) and entry.number == number
            intact = intact and hmac.compare_digest(entry.chain, _chained(secret, before, body))
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path, number) from error
        if not intact:
            raise _damaged(path, number)
        entries.append(entry)
    return entries


def _damaged(path: Path, number: int) -> Corrupt:
    return Corrupt(
        f"{path}, the register of noisy releases, was changed in line {number}: that noise is "
        "drawn once cannot be shown any more; use an exact method, or a new secret."
    )
