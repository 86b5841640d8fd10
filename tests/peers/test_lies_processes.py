"""The lies of one member against real processes over mutual TLS: nothing breaks, and it is named.

The liar is a client that has a member's bundle and signs what it likes, beside that member's own
daemon; or that daemon itself, with other code (:mod:`tests.peers.lying_daemons`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.peers import deletions, harness, lying_daemons
from tests.peers.floods import forget_peak, resident
from tests.peers.harness import Town, check_end, town
from tests.peers.liars import Liar, lying, unwalked_end
from tests.peers.trials import furthest
from unwalk.certificates.document import FILE, read_certificate, text_of
from unwalk.cli import app
from unwalk.cli.forgetting import _hand_in
from unwalk.peers.decisions.votes import decision_to, digest_of
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.handover import log_rules
from unwalk.peers.handover.recovery import OVERRUNS
from unwalk.peers.handover.turns import Turns
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.handover.walk import longest_visit
from unwalk.peers.identity.network_file import Network
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.consensus import NEVER, PRECOMMIT, PREVOTE, Vote
from unwalk.peers.protocol.handover import Parcel, Sighting
from unwalk.peers.protocol.hoplog import recovery_body, sign_entry
from unwalk.peers.provision import revoke
from unwalk.peers.status import chapters_of
from unwalk.peers.storage.token_files import open_token
from unwalk.walks import NOBODY

PEERS, LIAR, VICTIM = 4, 2, 1
HONEST = [p for p in range(PEERS) if p != LIAR]
FAR = 2**31
ALLOWED = 64.0
"""MiB that lies may cost a peer, besides two tokens, which are small here."""

WALK = 30.0
"""Seconds in which peers start, and make 40 visits that nobody holds up."""

ON_ITS_WAY = "another token is on its way already."
"""A peer that is getting the real token from the liar's own daemon looks at no other one."""

Lie = Callable[[Liar], Awaitable[Any]]


def told(folder: Path, *lies: Lie) -> None:
    """One member tells these lies, one after the other."""

    async def main() -> None:
        async with lying(folder, LIAR) as liar:
            for lie in lies:
                await lie(liar)

    asyncio.run(main())


def logged(folder: Path, peer: int, event: str) -> list[dict[str, Any]]:
    """What a peer wrote down about one kind of event."""
    text = (folder / f"peer-{peer}" / "store" / "log.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["event"] == event]


def named(folder: Path) -> set[int]:
    """Whom the honest peers found to lie."""
    return {line["who"] for peer in HONEST for line in logged(folder, peer, "liar")}


@contextmanager
def bounded(here: Town) -> Iterator[None]:
    """What happens meanwhile costs no honest peer more memory than it may; say how much."""
    idle = {p: resident(here.processes[p].pid) for p in HONEST}
    for peer in HONEST:
        forget_peak(here.processes[peer].pid)
    yield
    more = {p: resident(here.processes[p].pid, "VmHWM") - idle[p] for p in HONEST}
    print(f"memory: {max(more.values()):.1f} MiB more than idle")
    assert max(more.values()) < ALLOWED, more


def killed_and_back(here: Town, *peers: int) -> None:
    """Each dies and starts again with what it wrote down."""
    for peer in peers:
        here.signal(peer, signal.SIGKILL)
        here.start(peer)
        here.until(lambda p=peer: bool(here.state(p)["running"]))  # type: ignore[misc]


# Chapters


async def counts_another_out(liar: Liar) -> None:
    """Row 1: a chapter that leaves the victim out, decided by the liar alone; a made-up end."""
    others = [p for p in range(PEERS) if p != LIAR]
    text, matter = liar.chapter(liar.against(VICTIM, HOPS)), liar.matter(1)
    everybody = dict.fromkeys(range(PEERS), LIAR)
    for voters, by in (((LIAR,), {}), (range(PEERS), everybody), ((LIAR, 9), {9: LIAR})):
        decision = decision_to(liar.made_up(matter, text, voters, by))
        fields = {"number": 1, "value": text, "decision": decision}
        answers = await liar.tell_all(others, liar.words("agenda-decided", **fields))
        assert {a.get("kind") for a in answers} == {"refused"}
    await made_up_end(liar)


async def made_up_end(liar: Liar) -> None:
    """Row 5 b: an end with a value that is none, signed by the liar for everybody."""
    garbage = unwalked_end()
    by = dict.fromkeys(range(PEERS), LIAR)
    for text in (garbage, "garbage", "{}"):
        for voters in ((LIAR,), range(PEERS)):
            fake = liar.made_up(liar.end(), text, voters, by)
            poll = liar.shown(liar.end(), [], fake, texts=[text])
            await liar.tell_all(HONEST, liar.words("decide", poll=poll))


async def votes_both_ways(liar: Liar) -> None:
    """Row 5 e: another vote to each peer, on the next chapter and on the end."""
    for peer in HONEST:
        value = digest_of(f"for {peer}")
        votes = [Vote(kind, 0, value, NEVER, LIAR) for kind in (PREVOTE, PRECOMMIT)]
        poll = liar.shown(liar.matter(1), votes)
        await liar.tell(peer, liar.words("agenda-decide", number=1, poll=poll))
        poll = liar.shown(liar.end(), votes)
        await liar.tell(peer, liar.words("decide", poll=poll))


async def huge_chapter(liar: Liar) -> None:
    """Row 5 f: a chapter of 2^31 visits, proposed and `decided`."""
    for hops in (FAR, FAR - 1, 2 * FAR):
        spec = liar.against(LIAR, HOPS, records=1, left=())
        text = liar.chapter(replace(spec, hops=hops))
        poll = liar.shown(liar.matter(1), [], offer=text, texts=[text])
        await liar.tell_all(HONEST, liar.words("agenda-decide", number=1, poll=poll))
        fields = {"number": 1, "value": text}
        decision = decision_to(liar.made_up(liar.matter(1), text, (LIAR,)))
        answers = await liar.tell_all(
            HONEST, liar.words("agenda-decided", **fields, decision=decision)
        )
        assert {a.get("kind") for a in answers} == {"refused"}


async def far_rounds(liar: Liar) -> None:
    """Row 5 a: votes of rounds and numbers that were never reached."""
    for number in (0, 2, 1000, FAR - 1, FAR):
        poll = liar.shown(liar.matter(1), [])
        message = liar.words("agenda-decide", number=number, poll=poll)
        answers = await liar.tell_all(HONEST, message)
        assert {a.get("kind") for a in answers} == {"refused"}
    for round in (1, 4000, FAR - 1, FAR):
        kinds = (PREVOTE, PRECOMMIT)
        for matter, about in ((liar.matter(1), "agenda-decide"), (liar.end(), "decide")):
            votes = [Vote(kind, round, digest_of("x"), NEVER, LIAR) for kind in kinds]
            poll = liar.shown(matter, votes)
            poll["opened"] = [v for v in poll["votes"] if v[0] == PRECOMMIT]
            fields = {"number": 1} if about == "agenda-decide" else {}
            await liar.tell_all(HONEST, liar.words(about, **fields, poll=poll))


async def thousands_of_votes(liar: Liar, count: int = 4000) -> None:
    """Row 5 g: votes with arbitrary values, rounds and reasons, each signed, and large texts."""
    text = "x" * 39_000
    for n in range(count):
        values = [digest_of(f"{n} {k}") for k in range(4)]
        votes = [Vote(PREVOTE, n % 7, value, n % 5 - 1, LIAR) for value in values]
        votes += [Vote(PRECOMMIT, 0, value, NEVER, LIAR) for value in values]
        matter, fields = (liar.matter(1), {"number": 1}) if n % 2 else (liar.end(), {})
        offer = f"{n} {text}" if n % 10 == 1 else None
        poll = liar.shown(matter, votes, texts=[f"{n} {text}"], offer=offer)
        kind = "agenda-decide" if n % 2 else "decide"
        await liar.tell(HONEST[n % len(HONEST)], liar.words(kind, **fields, poll=poll))


HOPS = 12


def records(here: Town) -> dict[int, tuple[Any, bytes]]:
    """What the peers have of their records, and their organisations' own tables."""
    found = {}
    for peer in range(PEERS):
        path = here.folder / f"peer-{peer}" / "store" / "records.sqlite"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
            rows = db.execute("SELECT split, COUNT(*) FROM records GROUP BY split").fetchall()
        found[peer] = (rows, (here.folder / f"records-{peer}.csv").read_bytes())
    return found


def untouched(here: Town, before: dict[int, tuple[Any, bytes]], models: list[str]) -> None:
    """No record is gone, no row of any table, and no model."""
    assert records(here) == before
    for peer in range(PEERS):
        state = here.state(peer)
        assert state["chapter"] == 0
        assert state["model"] == models[peer]
        assert Path(models[peer]).exists()


def test_a_member_erases_nothing_of_others_and_is_named(tmp_path):
    """Rows 1 and 5 e in short: chapters and ends that nobody decided, votes both ways."""
    folder = tmp_path / "net"
    made = deletions.network(folder, peers=PEERS, train__hops=HOPS, lease=1.0)
    with town(folder, made) as here:
        for peer in range(PEERS):
            here.start(peer)
        here.until(here.finished)
        before, models = records(here), [here.state(p)["model"] for p in range(PEERS)]
        told(folder, counts_another_out, votes_both_ways)
        killed_and_back(here, VICTIM)
        here.until(lambda: named(folder) == {LIAR})
        here.until(lambda: [f"peer-{LIAR}"] in [here.state(p)["liars"] for p in HONEST])
        untouched(here, before, models)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_lies_about_chapters_change_nothing_and_a_request_goes_on(tmp_path):
    """Rows 1, 2 and 5 a, b, e, f, g after training; then a request, whose certificate is forged."""
    folder = tmp_path / "net"
    made = deletions.network(folder, peers=PEERS, train__hops=HOPS, lease=1.0, hold_out=0.0)
    with town(folder, made) as here:
        for peer in range(PEERS):
            here.start(peer)
        here.until(here.finished)
        before, models = records(here), [here.state(p)["model"] for p in range(PEERS)]
        with bounded(here):
            told(
                folder,
                counts_another_out,
                far_rounds,
                huge_chapter,
                votes_both_ways,
                thousands_of_votes,
                counts_another_out,
            )
        killed_and_back(here, *HONEST)
        here.until(lambda: named(folder) == {LIAR})
        untouched(here, before, models)
        assert all(here.state(p)["liars"] == [f"peer-{LIAR}"] for p in HONEST)
        _hand_in(folder / "peer-0", deletions.form("r", deletions.records_of(0)[0][0]))
        here.until(lambda: here.state(0)["requests"] == {"done": 1}, timeout=90.0)
        here.until(here.finished)
        assert len({tuple(chapters_of(folder / f"peer-{p}")) for p in range(PEERS)}) == 1
        assert [s.peer for s in chapters_of(folder / "peer-0")] == [0]
        after = records(here)
    assert {p: after[p] for p in (VICTIM, LIAR, 3)} == {p: before[p] for p in (VICTIM, LIAR, 3)}
    resigned(folder, folder / "peer-0" / "store" / peer_certificate.FOLDER / "chapter-1" / FILE)


def verified(place: Path, *words: str) -> tuple[int, str]:
    """The exit code of ``unwalk verify``, and what it says."""
    trust = ["--trust", str(place.parents[4] / "ca.pem")]
    result = CliRunner().invoke(app, ["verify", str(place), *trust, *words])
    return result.exit_code, " ".join(result.output.split())


def resigned(folder: Path, place: Path) -> None:
    """Row 2: nobody but its issuer makes a certificate, and it only as it was decided."""
    document = read_certificate(place)
    newest = folder / "network.json"
    assert verified(place)[0] == 0
    assert verified(place, "--network", str(newest))[0] == 0
    forged = []
    for by in (0, LIAR):
        liar, name = Liar(folder, by), f"peer-{by}"
        forged += [
            liar.resigned(document, requests=["another"]),
            liar.resigned(document, requests=["another"], issuer=name),
            liar.resigned(document, receipts=[], pending=[]),
            liar.resigned(document, receipts=[], pending=[], issuer=name),
        ]
    revoke(folder, f"peer-{LIAR}")
    for words in ((), ("--network", str(newest))):
        for one in forged:
            place.write_text(text_of(one))
            code, text = verified(place, *words)
            assert code == 1, text
            assert text.startswith("changed"), text
        place.write_text(text_of(document))
        assert verified(place, *words)[0] == 0


@pytest.mark.soak
def test_a_decision_that_is_believed_without_votes_does_harm(tmp_path):
    """Row 1 with its check taken out: the chapter of the liar is opened."""
    folder = tmp_path / "net"
    made = deletions.network(folder, peers=PEERS, train__hops=HOPS, lease=1.0)
    with town(folder, made) as here:
        for peer in range(PEERS):
            lie = lying_daemons.believes_every_decision if peer == 0 else None
            here.start(peer, lie=lie)
        here.until(here.finished)
        with pytest.raises(AssertionError):
            told(folder, counts_another_out)
        here.until(lambda: here.state(0)["chapter"] == 1)
        assert [s.left for s in chapters_of(folder / "peer-0")] == [(VICTIM,)]


# The walk


async def far_fences(liar: Liar) -> None:
    """Row 5 a: generations of 2^31, with and without what others signed, and news of them."""
    run, state = liar.network.run_id, liar.state()
    assert state is not None
    chain, last = "f" * 64, state.hops - 1
    seen = await liar.tell_all(HONEST, liar.words("where", chain=chain, number=1))
    far = Sighting((FAR - 1, LIAR), state.lineage, state.reached)
    mine = log_rules.sign(liar.bundle, log_rules.Question(run, LIAR, chain, 1), far)
    for number in (FAR - 1, FAR):
        opened = (number, LIAR)
        for sightings in ([], [mine], seen, [*seen, mine]):
            body = recovery_body(
                run=run,
                generation=opened,
                lineage=(*state.lineage, (opened, last)),
                peer=LIAR,
                hop=last,
                token="1" * 64,
                lost=-1,
                sightings=sightings,
            )
            entry = liar.entry({"body": {"previous": chain}}, **body)
            await liar.tell_all(HONEST, liar.words("fence", entry=entry))
        news = {"generation": list(opened), "place": [last, 0]}
        await liar.tell_all(HONEST, liar.words("release", **news))


async def token_from_the_future(liar: Liar) -> None:
    """Row 5 d: a token right before the end, with an entry that follows one of the log."""
    (known, *_) = reversed([e for e in liar.entries() if e["body"]["kind"] == "hop"])
    state = liar.state()
    assert state is not None
    files = sorted((liar.bundle.store / "tokens").glob("*.safetensors"))
    token = open_token(files[0], PEERS).token()
    far = replace(token, hop=state.hops - 1, at=LIAR)
    body = known["body"]
    visit = {**body["visit"], "hop": far.hop, "receiver": LIAR, "path": [LIAR]}
    entry = liar.entry(
        known, previous=known["chain"], hop=far.hop, peer=LIAR, visit=visit, token=liar.digest(far)
    )
    lineage = codec.lineage_from(body["lineage"])
    parcel = Parcel(lineage[-1][0], far.hop, 0, entry["chain"], entry["body"]["token"], lineage)
    answer = await liar.offer(parcel, far, entry)
    while answer.get("reason") == ON_ITS_WAY:
        await asyncio.sleep(0.05)
        answer = await liar.offer(parcel, far, entry)
    assert answer["kind"] != "accepted", answer


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_lies_about_a_walk_change_nothing(tmp_path):
    """Row 5 a, b, d, e, g, while the token walks; every honest peer is killed and comes back."""
    folder = tmp_path / "net"
    made = harness.network(folder, peers=PEERS, train__hops=3000, lease=2.0)
    with town(folder, made) as here:
        for peer in range(PEERS):
            here.start(peer)
        here.until(lambda: furthest(here) >= 37)
        with bounded(here):
            told(
                folder,
                far_rounds,
                far_fences,
                token_from_the_future,
                made_up_end,
                votes_both_ways,
                thousands_of_votes,
                far_fences,
                token_from_the_future,
            )
        assert furthest(here) < 2999, "the lies were told while the token walked"
        killed_and_back(here, *HONEST)
        here.until(here.finished, timeout=240.0)
    reasons = [line["reason"] for p in HONEST for line in logged(folder, p, "refused")]
    assert any(reason.startswith("visit 2999 does not follow") for reason in reasons)
    check_end(folder, made, range(PEERS))
    assert named(folder) == {LIAR}


async def goes_back(liar: Liar, visits: int = 20) -> None:
    """What others signed early is shown late, to open a generation from where they were then.

    It goes on from a visit of the liar's own, signed when nobody but the next peer was further.
    Who was too late to see that asks for a higher number: nobody signs for one twice.
    """
    run, known, lost = liar.network.run_id, dict[str, Any](), list[int]()
    number, agree, quorum = 0, 0, liar.network.rules().quorum
    while agree < quorum or len(lost) > 1:
        own = [e for e in liar.entries() if e["body"]["peer"] == LIAR]
        if not own or own[-1] == known:
            await asyncio.sleep(0.002)
            continue
        known = own[-1]
        number = max(number, codec.lineage_from(known["body"]["lineage"])[-1][0][0]) + 1
        message = liar.words("where", chain=known["chain"], number=number)
        seen = await asyncio.gather(*(liar.tell(p, message) for p in HONEST))
        places = [said["sighting"]["reached"][1][0] for said in seen]
        lost = [p for p, hop in zip(HONEST, places, strict=True) if hop > known["body"]["hop"]]
        said = [s["sighting"] for p, s in zip(HONEST, seen, strict=True) if p not in lost]
        agree = 1 + sum(not sighting["waits"] for sighting in said)
    body, hop = known["body"], known["body"]["hop"]
    lineage = codec.lineage_from(body["lineage"])
    further, mine = 0, hop + visits
    while further < max(hop + visits, mine + 2):  # the furthest copies are not at its own daemon
        await asyncio.sleep(0.005)
        answers = await liar.tell_all(HONEST, liar.words("where", chain="", number=0))
        further = max(a["sighting"]["reached"][1][0] for a in answers)
        now = liar.state()
        assert now is not None
        mine = now.reached[1][0]
    assert now.lineage == lineage, "the walk went on undisturbed"
    opened = (number, LIAR)
    recovery = recovery_body(
        run=run,
        generation=opened,
        lineage=(*lineage, (opened, hop)),
        peer=LIAR,
        hop=hop,
        token=body["token"],
        lost=lost[0] if lost else -1,
        sightings=list(seen),
    )
    pem = liar.bundle.certificate_pem.decode()
    entry = sign_entry(known["chain"], recovery, liar.bundle.sign, pem)
    answers = await liar.tell_all(HONEST, liar.words("fence", entry=entry))
    assert {a.get("reason") for a in answers} == {None}, "they believe it"
    assert {tuple(a["sighting"]["fence"]) for a in answers} == {opened}, "they believe it"


@pytest.mark.soak
def test_a_generation_that_is_opened_for_nothing_loses_no_copy(tmp_path):
    """Row 5 a: every honest peer drops its token for one that never comes, and the walk ends."""
    folder = tmp_path / "net"
    made = harness.network(folder, peers=PEERS, train__hops=120, lease=0.6, visit=2.0)
    with town(folder, made, pause=0.05) as here:
        for peer in range(PEERS):
            here.start(peer)
        here.until(lambda: furthest(here) >= 10)
        told(folder, goes_back)
        assert furthest(here) < 110, "the lie was told while the token walked"
        here.until(here.finished)
    check_end(folder, made, range(PEERS))
    assert sum(len(logged(folder, p, "recovered")) for p in HONEST)


def first_of(made: Network) -> int:
    """The peer that does the first visit of training."""
    return Work(plan_of(made), 0).move(1, NOBODY, {}, 0).receiver


def held_up(made: Network) -> float:
    """Seconds for which one peer that takes the token and never visits can stop all others.

    Each of them passes it over once it was late three times for that one, notices that up to a
    lease late, and waits for its turn to recover.  Before the first visit they wait in turn, a
    lease each.
    """
    limits, peers = made.limits, len(made.peers)
    turns = Turns(peers, limits.lease)
    late = longest_visit(limits, made.rules().lies, turns.longest_wait)
    once = late + limits.lease + turns.longest_wait
    return OVERRUNS * (peers - 1) * once + peers * limits.lease


FIRST = ("never_visits", "never_visits_and_says_that_it_is_ahead")
"""Lies that are also told by the peer from which training begins."""


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("lie", "first"), [*((lie, 0) for lie in lying_daemons.LIES), *((lie, 1) for lie in FIRST)]
)
def test_a_daemon_that_lies_cannot_stop_the_others(tmp_path, lie, first):
    """Row 5 c and h: whatever it does with the token, the others end without it, and name it."""
    folder = tmp_path / "net"
    made = harness.network(folder, peers=PEERS, train__hops=40, lease=0.6, visit=4.0)
    liar = first_of(made) if first else (first_of(made) + 1) % PEERS
    honest = [p for p in range(PEERS) if p != liar]
    with town(folder, made) as here:
        for peer in range(PEERS):
            here.start(peer, lie=lying_daemons.LIES[lie] if peer == liar else None)
        ended = held_up(made) + WALK
        here.until(lambda: all(here.state(p).get("model") for p in honest), timeout=ended)
    served = check_end(folder, made, honest)
    assert liar not in served[1:]
    late = [line for p in honest for line in logged(folder, p, "overrun")]
    over = [line for p in honest for line in logged(folder, p, "passed over")]
    assert {line["who"] for line in late} <= {liar}
    assert {line["times"] for line in late} <= set(range(1, OVERRUNS + 1)), "then it is passed over"
    assert liar in {line["who"] for line in late} | {line["to"] for line in over}


@pytest.mark.soak
def test_a_daemon_that_never_visits_does_harm_where_nobody_minds(tmp_path):
    """Row 5 h with its check taken out: the others wait for ever."""
    folder = tmp_path / "net"
    made = harness.network(folder, peers=PEERS, train__hops=40, lease=0.6, visit=4.0)
    liar = (first_of(made) + 1) % PEERS
    with town(folder, made) as here:
        for peer in range(PEERS):
            patient = lying_daemons.waits_for_every_visit
            here.start(peer, lie=lying_daemons.never_visits if peer == liar else patient)
        here.until(lambda: here.state(liar).get("holding", False))
        time.sleep(20.0)
        assert not any(here.state(p).get("committed") for p in range(PEERS))


@pytest.mark.soak
def test_wild_weights_do_harm_where_they_are_taken(tmp_path):
    """Row 5 c with its check taken out: all end with what no walk leads to, or nobody ends."""
    folder = tmp_path / "net"
    made = harness.network(folder, peers=PEERS, train__hops=40, lease=0.6)
    with town(folder, made) as here:
        for peer in range(PEERS):
            credulous = lying_daemons.takes_every_weight
            here.start(peer, lie=lying_daemons.wild_weights if peer == LIAR else credulous)
        with suppress(AssertionError):
            here.until(here.finished, timeout=20.0)
    with pytest.raises(AssertionError):
        check_end(folder, made, HONEST)


@pytest.mark.soak
def test_a_token_from_the_future_does_harm_where_logs_are_not_checked(tmp_path):
    """Row 5 d: it is taken, and visits are left out."""
    folder = tmp_path / "net"
    made = harness.network(folder, peers=PEERS, train__hops=3000, lease=2.0)
    with town(folder, made) as here:
        for peer in range(PEERS):
            here.start(peer, lie=lying_daemons.believes_every_log)
        here.until(lambda: furthest(here) >= 37)
        with pytest.raises(AssertionError, match="accepted"):
            told(folder, token_from_the_future)
        here.until(lambda: furthest(here) >= 2999, timeout=5.0)
