"""Networks of peers with records of their own, for tests of deletion requests."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.peers.harness import Village, carry_out
from unwalk.certificates.document import FILE, read_certificate
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.handover.service import Service
from unwalk.peers.identity.credentials import write_private
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle.chapter_runner import Chapters
from unwalk.peers.local_network import free_addresses
from unwalk.peers.provision import make_network
from unwalk.peers.records.id_hashing import KEY
from unwalk.peers.records.sources import DataSettings
from unwalk.peers.storage.store import Store
from unwalk.peers.telemetry import Journal

SETTINGS: dict[str, Any] = {
    "task": "records",
    "method": "finetune",
    "compare": "none",
    "data.features": 6,
    "data.classes": 3,
    "train.batch": 8,
    "train.hops": 12,
    "unlearn.hops": 6,
    "performance.threads": 1,
}
CERTIFIED: dict[str, Any] = {
    "preset": "certified",
    "forget.kind": "nothing",
    "data.norm": 1.0,
    "model.name": "linear",
    "train.capacity": 64,
}


def records_of(peer: int, count: int = 40, features: int = 6) -> list[list[str]]:
    """Rows of one peer: an id that is easy to search for, a label, features."""
    rng = np.random.default_rng(1000 + peer)
    centres = np.random.default_rng(5).normal(size=(3, features))
    rows = []
    for number in range(count):
        label = int(rng.integers(3))
        x = centres[label] + 0.3 * rng.normal(size=features)
        values = [f"{v:.9f}" for v in x]
        rows.append([f"person-{peer}-{number:03d}", str(label), *values])
    return rows


def write_records(bundle: Path, peer: int, count: int = 40, hold_out: float = 0.1) -> Path:
    """A table of this peer's organisation, outside its bundle."""
    path = bundle.parent / f"records-{peer}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label", *(f"f{n}" for n in range(6))])
        writer.writerows(records_of(peer, count))
    write_private(bundle / KEY, bytes([peer]) * 32)  # who is held out is the same in every run
    DataSettings(path, hold_out=hold_out, erase_source=True).write(bundle)
    return path


def network(
    folder: Path,
    peers: int = 4,
    lease: float = 0.6,
    noise: str = "secret",
    count: int = 40,
    hold_out: float = 0.1,
    lies: int | None = None,
    visit: float | None = None,
    begin_with: Sequence[str] | None = (),
    limits: dict[str, Any] | None = None,
    **settings: Any,
) -> Network:
    changed = {k.replace("__", "."): v for k, v in settings.items()}
    own = {**(limits or {}), **({} if visit is None else {"visit": visit})}
    made = make_network(
        folder,
        name="test",
        addresses=free_addresses(peers),
        settings={**SETTINGS, **changed},
        limits=Limits(lease=lease, connect=2.0, stop=1.5, messages=5000.0, **own),
        noise=noise,
        lies=lies,
        begin_with=begin_with,
    )
    for peer in range(peers):
        write_records(folder / f"peer-{peer}", peer, count, hold_out)
    return made


def form(id: str, *records: str, grade: str = "exact", **more: Any) -> RequestForm:
    return RequestForm(id, records, grade, **more)


class Hamlet(Village):
    """Peers of one process, through all chapters."""

    def __init__(self, folder: Path, made: Network) -> None:
        super().__init__(folder, made)
        self.peers: dict[int, Chapters] = {}

    def start(self, peer: int) -> Service:
        bundle = Bundle.read(self.folder / f"peer-{peer}")
        journal = Journal(None, bundle.name, [self.events.append])
        chapters = Chapters(
            bundle, bundle.trust(), Store(bundle.store), self.memory.at(peer), journal
        )
        self.peers[peer] = chapters
        self.tasks[peer] = asyncio.create_task(chapters.run())
        return chapters.service

    async def crash(self, peer: int) -> None:
        self.memory.handlers.pop(peer, None)
        self.tasks[peer].cancel()
        await asyncio.gather(self.tasks[peer], return_exceptions=True)
        self.peers[peer].store.close()

    def trained(self, *peers: int) -> bool:
        return all(
            self.peers[p].service.whole.is_set() and self.peers[p].final(len(self.peers[p].specs))
            for p in (peers or self.peers)
        )

    def stage(self, peer: int, id: str) -> str:
        requests = self.peers[peer].requests
        assert requests is not None
        found = requests.get(id)
        return "" if found is None else found.stage


SEALED = {k.replace(".", "__"): v for k, v in CERTIFIED.items()}


def hamlet(tmp_path, script, peers=4, real=False, **settings):
    """Run ``script(hamlet)`` with all peers up; the hamlet, closed."""
    folder = tmp_path / "net"
    here = Hamlet(folder, network(folder, peers=peers, **settings))

    async def main() -> None:
        try:
            for peer in range(peers):
                here.start(peer)
            await script(here)
        finally:
            await here.close()

    carry_out(main(), real)
    return here


def ids_of(peer: int, *rows: int) -> list[str]:
    return [records_of(peer)[row][0] for row in rows]


def ask(here: Hamlet, peer: int, id: str, *rows: int, **more) -> None:
    chapters = here.peers[peer]
    assert chapters.requests is not None
    chapters.requests.submit(form(id, *ids_of(peer, *rows), **more))
    chapters.wake.set()


def ended(here: Hamlet, **asked: int):
    return lambda: all(here.stage(p, id) in ("done", "refused") for id, p in asked.items())


def certificate(here: Hamlet, peer: int, name: str):
    return here.folder / f"peer-{peer}" / "store" / peer_certificate.FOLDER / name / FILE


def check(here: Hamlet, peer: int, name: str) -> dict[str, Any]:
    """The certificate verifies with nothing but the network's CA; its document."""
    place = certificate(here, peer, name)
    vouched(place, here.folder / "ca.pem")
    return read_certificate(place)


def vouched(place: Path, authority: Path) -> dict[str, Any]:
    """What is said of a certificate: intact and trusted, and so is its model.

    A model that a later chapter erased, or a peer that left, is missed loudly.
    """
    found = peer_certificate.verified(place, authority)
    assert found["problems"] == []
    assert read_certificate(place)["model"] is not None
    loud = {"checked": "", "not checked": ", MODEL NOT CHECKED"}[found["model"]]
    assert found["verdict"] == f"intact, signer trusted{loud}"
    return found


def trained_on(here: Hamlet, peer: int) -> list[int]:
    """Rows of a peer that are trained on, not held out."""
    records = here.peers[peer].records
    assert records is not None
    records.refresh()
    query = "SELECT hash FROM records WHERE split = 'train'"
    known = {row[0] for row in records.db.execute(query)}
    return [n for n, row in enumerate(records_of(peer)) if records.hash(row[0]) in known]
