"""What a peer is doing, as its disk says it: no torch, and no word with the peer."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from unwalk.peers.decisions.decided import chapters_in
from unwalk.peers.decisions.votes import VOTER
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.hoplog import chain_start
from unwalk.peers.protocol.schedule import Spec, marked, run_of
from unwalk.peers.storage.database import BEGINNING, RECORDS_DATABASE, read_only
from unwalk.peers.storage.disk_space import is_full


def running(folder: Path) -> int | None:
    """The process that uses a store, or None."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may ask at the same time
    except OSError:
        text = os.pread(fd, 20, 0)
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def status(folder: Path) -> dict[str, Any]:
    """What a peer is doing, from its store; works whether it runs or not."""
    bundle = Bundle.read(folder)
    pid = running(bundle.store)
    stored = stored_status(bundle)
    first = {"peer": bundle.name, "network": stored["network"], "run": stored["run"]}
    return {**first, "running": pid is not None, "pid": pid, **stored}


def stored_status(bundle: Bundle) -> dict[str, Any]:
    """What the store says; whether the peer runs is not asked."""
    known: dict[str, Any] = {
        "network": bundle.network.name,
        "run": bundle.network.run_id,
        "disk": "full" if is_full(bundle.store) else "ok",
    }
    try:
        return {**known, **_from_store(bundle, known)}
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        return {**known, "store": f"damaged ({error})"}


def _from_store(bundle: Bundle, found: dict[str, Any]) -> dict[str, Any]:
    """What the store says of the walk; ``found`` is what is known without it."""
    path = bundle.store / "state.sqlite"
    if not path.exists():
        return found
    row = None
    with closing(read_only(path)) as db:
        specs = chapters_in(db, len(bundle.network.peers))
        found["chapter"] = len(specs)
        if waits_for := _waits_for(bundle.store):
            found["waits_for"] = waits_for
        found["liars"] = _liars(db, bundle)
        out = [
            s.number for s in marked(specs) if s.vanished and s.peer == bundle.index and not s.void
        ]
        if out:
            found["voted_out"] = out[-1]
        if specs:
            found["run"] = run_of(bundle.network.run_id, specs[-1])
        query = "SELECT state FROM runs WHERE run = ?"
        with suppress(sqlite3.OperationalError):  # a store that is just being made
            row = db.execute(query, (found["run"],)).fetchone()
    found["records"] = _records(bundle.store / RECORDS_DATABASE)
    found["requests"] = _requests(bundle.store / RECORDS_DATABASE)
    if row is None:
        return found
    state = codec.state_from(json.loads(row[0]))
    final, hop = None, max(0, state.reached[1][0])
    if state.committed is not None:
        start = chain_start({"network": bundle.network.name, "run": found["run"]})
        hop = hop if state.committed.chain == start else state.hops
        place = bundle.store / "tokens" / f"{state.committed.token}.safetensors"
        final = str(place) if place.exists() else None
    return {
        **found,
        "hops": state.hops,
        "holding": state.held is not None,
        "stage": state.stage or ("finished" if state.committed else "waiting"),
        "hop": hop,
        "generation": list(state.fence),
        "watching": state.kept_for if state.watching else None,
        "committed": codec.value_to(state.committed),
        "model": final,
    }


def _waits_for(store: Path) -> list[str]:
    """The peers that training waits for."""
    with suppress(OSError, ValueError):
        return list(json.loads((store / BEGINNING).read_text(encoding="utf-8"))["waits_for"])
    return []


def _liars(db: sqlite3.Connection, bundle: Bundle) -> list[str]:
    """The peers that signed two votes, or two visits, of which no honest peer signs both."""
    liars: set[int] = set()
    with suppress(sqlite3.OperationalError):
        for (text,) in db.execute("SELECT state FROM polls").fetchall():
            liars |= {one[VOTER] for one, _ in json.loads(text)["evidence"]}
    with suppress(sqlite3.OperationalError):
        liars |= {peer for (peer,) in db.execute("SELECT peer FROM lies").fetchall()}
    return [bundle.network.peers[peer].name for peer in sorted(liars)]


def chapters_of(folder: Path) -> list[Spec]:
    """The chapters of forgetting that were decided, as far as a bundle's store knows."""
    bundle = Bundle.read(folder)
    path = bundle.store / "state.sqlite"
    with closing(read_only(path)) as db:
        return chapters_in(db, len(bundle.network.peers))


def _records(path: Path) -> int | None:
    """How many records are trained on; None where the peer brings none of its own."""
    if not path.exists():
        return None
    query = "SELECT COUNT(*) FROM records WHERE split = 'train' AND state = 'active'"
    with closing(read_only(path)) as db, suppress(sqlite3.OperationalError):
        return int(db.execute(query).fetchone()[0])
    return None


def _requests(path: Path) -> dict[str, int]:
    """How many requests are at each stage."""
    if not path.exists():
        return {}
    db = read_only(path)
    with closing(db), suppress(sqlite3.OperationalError):
        return dict(db.execute("SELECT stage, COUNT(*) FROM requests GROUP BY stage").fetchall())
    return {}
