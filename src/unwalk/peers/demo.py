"""Five peers on this machine learn handwritten digits; then one of them forgets five records.

During training the peer that has the token is killed and comes back; while the five records are
being forgotten, so is another one.  In between one of them lies, with its own good keys
(:mod:`unwalk.peers.demo_liar`): nothing comes of it but its name.  Both models are compared with
the simulator's, when the same peers serve the same hops: they must be equal to the last bit.  In
the end no file of any peer holds the ids or the rows of the five records, and there is a
certificate that anybody can check who has the network's CA.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unwalk.certificates.document import FILE
from unwalk.core.data import Shard
from unwalk.core.errors import UnwalkError
from unwalk.core.plan import Plan
from unwalk.core.token import Token, Workspace, build_model
from unwalk.engines.inprocess import InProcess
from unwalk.peers.daemon import committed_log
from unwalk.peers.demo_liar import tell_lies
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.plans import Book
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.local_network import DIGITS, LocalNetwork, free_addresses, write_digits
from unwalk.peers.provision import make_network
from unwalk.peers.records.own_task import OwnRecords, open_records
from unwalk.peers.records.trace_search import search, traces
from unwalk.peers.status import chapters_of, status
from unwalk.peers.storage.token_files import open_token
from unwalk.peers.web.client import Asker
from unwalk.walks import Fixed

PEERS = 5
HOPS = 60
SETTINGS: dict[str, Any] = {**DIGITS, "train.hops": HOPS}
PATIENCE = 120.0
FORGETS, RECORDS, REQUEST = 2, 5, "demo-request"
LIAR, VICTIMS = 4, (FORGETS, 1)


def same_walk(plan: Plan, *served: Sequence[int]) -> Token:
    """The simulator's token after these peers served the hops of each phase in this order."""
    phases = tuple(
        replace(phase, route=Fixed(peers), hops=len(peers))
        for phase, peers in zip(plan.phases, served, strict=True)
    )
    (outcome,) = InProcess().run([replace(plan, phases=phases, keeps="first")])
    return outcome.token


def equal_bytes(one: Token, two: Token) -> bool:
    """Whether two tokens have the same tensors, bit for bit."""
    a, b = one.tensors(), two.tensors()
    return set(a) == set(b) and all(a[k].numpy().tobytes() == b[k].numpy().tobytes() for k in a)


class Demo:
    """The five peers, and waiting for them."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder, self.tell = folder, tell
        self.local = LocalNetwork(folder)

    def until(self, what: str, done: Callable[[list[dict[str, Any]]], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done(self.local.states()):
            if time.monotonic() > end:
                raise UnwalkError(f"{what} did not happen within {PATIENCE:g} seconds.")
            time.sleep(0.02)


def run_demo(folder: Path, tell: Callable[[str], None] = print) -> Path:
    """The whole demonstration; where the certificate is."""
    if folder.exists():
        shutil.rmtree(folder)
    network = make_network(
        folder,
        name="demo",
        addresses=free_addresses(PEERS),
        settings=SETTINGS,
        limits=Limits(lease=1.0, connect=2.0, stop=10.0),
    )
    write_digits(folder, PEERS)
    demo = Demo(folder, tell)
    begun = time.monotonic()
    try:
        for peer in range(PEERS):
            demo.local.start(peer)
        _disturb(demo, 0, HOPS // 3, None)
        demo.until("the end", lambda s: all(one.get("model") for one in s))
        tell(f"training is committed after {time.monotonic() - begun:.1f} s")
        served = [_served(folder, 0)]
        ids, shards = _chosen(folder, network)
        plan = Book(network).training
        _compare(folder, plan, shards, served, tell)
        _lie(demo)
        begun = time.monotonic()
        asker = Asker.of_bundle(folder / f"peer-{FORGETS}")
        asker.submit(RequestForm(REQUEST, tuple(ids), "exact"))
        tell(f"peer-{FORGETS} is asked to forget {len(ids)} records by their ids")
        _disturb(demo, 1, 3, FORGETS)
        demo.until("the certificate", lambda _: asker.request(REQUEST).stage == "done")
        tell(f"the request is answered after {time.monotonic() - begun:.1f} s")
        demo.until("the end", lambda s: all(one.get("model") for one in s))
        served.append(_served(folder, 1))
    finally:
        demo.local.close()
    return _conclude(folder, network, ids, shards, served, tell)


def _disturb(demo: Demo, chapter: int, hop: int, spare: int | None) -> None:
    """Kill the holder of the token, but not ``spare``, and start it again some hops later."""

    def reached(states: list[dict[str, Any]]) -> bool:
        return _furthest(states, chapter) >= hop

    demo.until(f"hop {hop} of chapter {chapter}", reached)
    victim = _holder(demo.local.states(), spare)
    demo.local.kill(victim)
    gone = _furthest(demo.local.states(), chapter)
    demo.tell(f"peer-{victim} is killed at about hop {gone} of chapter {chapter}")
    demo.until("going on without it", lambda s: _furthest(s, chapter) >= gone + 5)
    demo.tell(f"peer-{victim} comes back")
    demo.local.start(victim)


def _lie(demo: Demo) -> None:
    """One member lies; the others find out, say so, and do nothing that it wanted."""
    victims = " or ".join(f"peer-{p}" for p in VICTIMS)
    demo.tell(f"peer-{LIAR} lies: it votes to count {victims} out, one vote here, another there")
    honest, liars, round = [p for p in range(PEERS) if p != LIAR], [f"peer-{LIAR}"], 0

    def found_out(states: list[dict[str, Any]]) -> bool:
        nonlocal round  # votes are heard in the round that the others are in
        round = tell_lies(demo.folder, LIAR, VICTIMS, HOPS, round)
        return all(states[p].get("liars") == liars for p in honest)

    demo.until("naming the liar", found_out)
    if any(chapters_of(demo.folder / f"peer-{p}") for p in honest):
        raise UnwalkError("a lie was believed.")
    names = ", ".join(f"peer-{p}" for p in honest)
    demo.tell(f"{names} have both votes as evidence, name {liars[0]} as a liar, and go on")


def _furthest(states: list[dict[str, Any]], chapter: int) -> int:
    return max(
        (int(one.get("hop", 0)) for one in states if one.get("chapter", 0) == chapter), default=-1
    )


def _holder(states: list[dict[str, Any]], spare: int | None) -> int:
    others = [n for n in range(PEERS) if n != spare]
    return next((n for n in others if states[n].get("holding")), others[0])


def _served(folder: Path, chapter: int) -> list[int]:
    """The peers that served the hops of a chapter, from its checked log."""
    end = time.monotonic() + PATIENCE
    while True:
        for peer in range(PEERS):
            try:
                if status(folder / f"peer-{peer}")["chapter"] == chapter:
                    log = committed_log(folder / f"peer-{peer}")
                    return [e["body"]["peer"] for e in log if e["body"]["kind"] == "hop"]
            except UnwalkError:
                continue
        if time.monotonic() > end:
            raise UnwalkError("no peer has gathered the whole hop log.")
        time.sleep(0.1)


def _chosen(folder: Path, network: Network) -> tuple[list[str], dict[int, Shard]]:
    """Ids of records that were trained on, and everybody's records while they are there."""
    config = Book(network).assembled.config
    shards: dict[int, Shard] = {}
    ids: list[str] = []
    for peer in range(PEERS):
        records = open_records(folder / f"peer-{peer}", config)
        assert records is not None
        marked: tuple[str, ...] = ()
        if peer == FORGETS:
            table = (folder / f"organisation-{peer}.csv").read_text(encoding="utf-8")
            names = [line.partition(",")[0] for line in table.splitlines()[1:]]
            ids = [name for name in names if records.uses(records.find([name]).known)]
            ids = ids[:RECORDS]
            marked = records.find(ids).known
        shards[peer] = records.shard(marked)
        records.close()
    return ids, shards


class Shown:
    """The task with everybody's records in it, for the simulator alone."""

    def __init__(self, task: Any, shards: Mapping[int, Shard]) -> None:
        self.task, self.shards = task, shards

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def shard(self, peer: int) -> Shard:
        return self.shards[peer]

    def records(self, peer: int) -> Any:
        return self.shards[peer].records


def _compare(
    folder: Path,
    plan: Plan,
    shards: Mapping[int, Shard],
    served: list[list[int]],
    tell: Callable[[str], None],
) -> None:
    model = Path(status(folder / "peer-0")["model"])
    ours = open_token(model, PEERS).token()
    shown: Any = Shown(plan.task, shards)
    if not equal_bytes(ours, same_walk(replace(plan, task=shown), *served)):
        raise UnwalkError("the model is not the simulator's.")
    tell(f"{len(served[-1])} hops, signed and chained: bit for bit the simulator's model")


def _conclude(
    folder: Path,
    network: Network,
    ids: list[str],
    shards: Mapping[int, Shard],
    served: list[list[int]],
    tell: Callable[[str], None],
) -> Path:
    place = folder / f"peer-{FORGETS}" / "store" / peer_certificate.FOLDER / "chapter-1"
    book = Book(network)
    (spec,) = chapters_of(folder / "peer-0")
    _compare(folder, book.forgetting(spec, "simulated", []), shards, served, tell)
    records = open_records(folder / "peer-0", book.assembled.config)
    assert records is not None
    task = OwnRecords(book.assembled.task, {0: records})
    space = Workspace(build_model(task.model, 0))
    space.load(open_token(Path(status(folder / "peer-0")["model"]), PEERS).token())
    space.model.eval()
    held = task.test()
    with torch.no_grad():
        right = float(
            (space.model(held.x.to(space.parameters.dtype)).argmax(1) == held.y).float().mean()
        )
    records.close()
    tell(f"accuracy on what peer-0 holds out: {100.0 * right:.1f} % of {len(held.y)} records")
    forgotten = shards[FORGETS].x[torch.from_numpy(shards[FORGETS].records.forgotten)]
    needles = traces(ids=ids, rows=list(forgotten.numpy()))
    if hits := search(folder, needles):
        raise UnwalkError(f"{hits[0].path} still holds {hits[0].name}.")
    tell(f"none of {len(ids)} ids, and none of their rows, stands in any file of any peer")
    checked = peer_certificate.verified(place / FILE, folder / "ca.pem")
    if checked["problems"]:
        raise UnwalkError(checked["problems"][0])
    tell(f"certificate: {place / FILE}")
    for line in checked["words"]:
        tell(line)
    return place / FILE


if __name__ == "__main__":
    run_demo(Path("runs") / "peers-demo")
