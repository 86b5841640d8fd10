"""What must hold after every trial, whatever went wrong: looked for in what the peers left."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.peers.deletions import records_of, vouched
from tests.peers.harness import check_end
from tests.peers.trials_kinds import ROW, Kind, honest
from tests.peers.trials_scenes import InMemory, Scene
from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.peers.daemon import committed_log
from unwalk.peers.decisions import history
from unwalk.peers.decisions.decided import read_all
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol.handover import Value
from unwalk.peers.protocol.hoplog import Entry
from unwalk.peers.protocol.schedule import Spec, run_of
from unwalk.peers.storage.database import read_only
from unwalk.peers.storage.integrity_mark import check_whole
from unwalk.peers.storage.store import Store

GONE = ("erasing", "done")


class Violation(AssertionError):
    """Something that must never happen."""


@contextmanager
def opened(bundle: Bundle) -> Iterator[Store]:
    """The store of a peer, as it would be opened at its next start."""
    try:
        store = Store(bundle.store)
    except UnwalkError as error:
        raise Violation(f"{bundle.name} cannot start again: {error}") from error
    try:
        yield store
    finally:
        store.close()


def must(held: object, what: str) -> None:
    """Say what did not hold."""
    if not held:
        raise Violation(what)


def check(scene: Scene, kind: Kind, ended: list[int]) -> list[Entry]:
    """All that must hold; ``ended`` are the peers that have ended.  Their committed log."""
    named = {e["who"] for e in scene.events() if e["event"] == "liar"}
    must(named <= scene.liars, f"{named} are named as liars; {scene.liars} lied.")
    must(not any(e["event"] == "fork" for e in scene.events()), "two things were decided.")
    _one_history(scene)
    _certificates(scene)
    if kind.records:
        _records(scene)
    if isinstance(scene, InMemory):
        _no_surprise(scene)
    if not ended:
        return []
    peer = scene.rng.choice(ended)  # the others have the same end
    try:
        log = committed_log(scene.folder / f"peer-{peer}")
    except UnwalkError as error:
        raise Violation(f"the log of peer {peer} is not whole: {error}") from error
    if not kind.records:
        check_end(scene.folder, scene.network, ended)
    return log


def _one_history(scene: Scene) -> None:
    """One agenda, and one end for each chapter, at all who do not lie."""
    agendas: dict[int, list[str]] = {}
    ends: dict[str, dict[Value, list[int]]] = {}
    for peer in honest(scene):
        bundle = Bundle.read(scene.folder / f"peer-{peer}")
        if not bundle.store.exists():
            continue
        with opened(bundle) as store:
            known = history.agenda(store)
            specs: list[Spec] = read_all(
                bundle.trust(), scene.network.run_id, [list(item) for item in known]
            )
            agendas[peer] = [text for text, _ in known]
            for run in [scene.network.run_id, *(run_of(scene.network.run_id, s) for s in specs)]:
                try:
                    found = store.load(run)
                except UnwalkError as error:
                    raise Violation(f"peer {peer} cannot start again: {error}") from error
                if found is not None and found[0].committed is not None:
                    ends.setdefault(run, {}).setdefault(found[0].committed, []).append(peer)
    longest = max(agendas.values(), key=len, default=[])
    for peer, agenda in agendas.items():
        must(agenda == longest[: len(agenda)], f"peer {peer} has another agenda.")
    for run, values in ends.items():
        must(len(values) == 1, f"run {run} ended in {len(values)} ways: {values}")


def _certificates(scene: Scene) -> None:
    """Every certificate that was issued by a peer that does not lie verifies."""
    for peer in honest(scene):
        pattern = f"peer-{peer}/store/{peer_certificate.FOLDER}/*/certificate.json"
        for place in scene.folder.glob(pattern):
            try:
                vouched(place, scene.folder / "ca.pem")
            except (AssertionError, InvalidInput) as error:
                raise Violation(f"{place.parent.name} of peer {peer}: {error}") from error


def _records(scene: Scene) -> None:
    """Records leave a peer only on its own request, and only once the forgotten model is there."""
    for peer in honest(scene):
        path = scene.folder / f"peer-{peer}" / "store" / "records.sqlite"
        gone: set[str] = set()
        stage = ""
        if path.exists():
            with closing(read_only(path)) as db:
                check_whole(db, path)
                rows = db.execute("SELECT stage FROM requests").fetchall()
            stage = rows[0][0] if rows else ""
            must(bool(rows) <= (peer == scene.asked), f"peer {peer} has a request of nobody.")
        if peer == scene.asked and stage in GONE:
            gone = {records_of(peer)[ROW][0]}
        left = _ids(scene.folder / f"records-{peer}.csv")
        wanted = {row[0] for row in records_of(peer)} - gone
        if peer == scene.asked and stage == "committed":  # being erased, or not yet
            left -= {records_of(peer)[ROW][0]}
            wanted -= {records_of(peer)[ROW][0]}
        must(left == wanted, f"peer {peer} ({stage}) has {len(left)} records, not {len(wanted)}.")


def _ids(path: Path) -> set[str]:
    with path.open(newline="") as file:
        return {row["id"] for row in csv.DictReader(file)}


def _no_surprise(scene: InMemory) -> None:
    """Nothing failed in a way that nobody foresaw."""
    failed: list[Any] = [e for e in scene.failures if not (scene.excused and _sentence(e))]
    must(not failed, f"a peer failed: {failed!r}")
    must(not scene.post.errors, f"a call failed: {scene.post.errors!r}")


def _sentence(error: BaseException) -> bool:
    return isinstance(error, UnwalkError)
