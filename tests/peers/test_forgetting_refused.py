"""Peers that leave or are away while others forget; what is forged or out of reach is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.peers.deletions import (
    SEALED,
    Hamlet,
    ask,
    certificate,
    check,
    ended,
    form,
    hamlet,
    ids_of,
    network,
    trained_on,
)
from unwalk.certificates.document import read_certificate, text_of
from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.peers.decisions import history
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.plans import Book, first_visit
from unwalk.peers.forgetting.request_form import UnknownRecords
from unwalk.peers.lifecycle.leaving import LEAVING
from unwalk.peers.lifecycle.progress import VANISHED
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.consensus import State
from unwalk.peers.protocol.schedule import Spec, line
from unwalk.peers.storage.disk_space import means_no_files
from unwalk.peers.web.live_desk import Reception


def test_what_cannot_be_reached_is_refused_before_anything_changes(tmp_path):
    async def script(here):
        await here.until(here.trained)
        chapters = here.peers[1]
        desk = Reception(chapters)
        before = chapters.records.counts()
        with pytest.raises(Refused, match="momentum"):
            await desk.submit(form("a", *ids_of(1, 0), grade="certified"))
        for method in ("seal", "nonsense"):
            with pytest.raises(Refused, match="does not reach grade 'exact'") as refusal:
                await desk.submit(form("a", *ids_of(1, 0), method=method))
            assert refusal.value.__cause__ is not refusal.value, "whoever looks for causes ends"
            assert not means_no_files(refusal.value)
        with pytest.raises(UnknownRecords, match="'nobody'"):
            await desk.submit(form("a", *ids_of(1, 0), "nobody"))
        assert chapters.records.counts() == before
        assert desk.request("a") is None
        assert chapters.specs == []
        places = line(chapters.book.hops, [])
        first = first_visit(1, places, chapters.visits(places))
        assert first is not None
        who = ("seal", "certified", 1.0, 1e-5, ("a",), 1, len(places), first, 6, 1)
        seal = Spec(1, 1, *who)
        back = Spec(1, 1, "rewind", "exact", None, None, ("a",), 1, 12, first, 12 - first, 1)
        assert [here.peers[0].stands_for(s) for s in (back, seal)] == [True, False]

    hamlet(tmp_path, script)


def test_a_chapter_that_its_peer_did_not_sign_is_refused(tmp_path):
    async def script(here):
        await here.until(here.trained)
        chapters, other = here.peers[0], here.peers[2].next_chapter
        forged = Spec(1, 1, "restart", "exact", None, None, ("x",), 1, 12, 0, 12, 1)
        text = chapters.next_chapter.write(forged)  # signed by peer 0 in the name of peer 1
        with pytest.raises(Refused, match="not signed by peer 1"):
            other.read(1, text)
        right = chapters.next_chapter.write(replace(forged, peer=0, holder=0))
        with pytest.raises(Refused, match="signature"):
            other.read(1, right.replace('"records":1', '"records":2'))
        assert not other._judge(text, False)
        assert other._judge(right, False)
        decision: dict[str, Any] = {"decided": None, "certificates": []}
        fields = {"number": 1, "value": right, "decision": decision}
        message = chapters.next_chapter.words(ms.AgendaDecided, **fields)
        answer = codec.parse(await here.peers[2].answer(0, message), 9999)
        assert "does not have the votes" in answer["reason"]
        assert other.known == []
        assert history.agenda(here.peers[2].store) == []

    hamlet(tmp_path, script, peers=3)


def test_a_wrong_receipt_or_network_is_refused_logged_and_changes_nothing(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 2, "r", *trained_on(here, 2)[:1])
        await here.until(ended(here, r=2))
        chapters, kept = here.peers[2], history.receipts_of(here.peers[2].store, 1)
        good = kept["peer-1"]
        wrongs: list[dict[str, Any]] = [
            {**good, "records": 7},
            {**good, "chapter": 2},
            {**good, "peer": "peer-0"},
            {"erased": []},
        ]
        for wrong in wrongs:
            with chapters.store.transaction() as db:
                db.execute("DELETE FROM receipts WHERE peer = 'peer-1'")
            chapters.next_chapter.ask = answering(wrong)
            chapters.certifying.again.clear()
            before = len(here.events)
            assert "peer-1" not in await chapters.certifying.receipts(1)
            assert "refused" in {e["event"] for e in here.events[before:]}
            assert "peer-1" not in history.receipts_of(chapters.store, 1)
        chapters.next_chapter.ask = answering(good)
        chapters.certifying.again.clear()
        assert "peer-1" in await chapters.certifying.receipts(1)
        message = chapters.next_chapter.words(ms.AgendaAsk, number=1)
        for old, new in ((b'"test"', b'"other"'), (b'"protocol":4', b'"protocol":2')):
            answer = codec.parse(await here.peers[0].answer(2, message.replace(old, new)), 9999)
            assert answer["kind"] == "refused"

    def answering(record):
        async def ask(peer, message, field):
            return record if peer == 1 else None

        return ask

    hamlet(tmp_path, script, peers=3)


JUNK: list[Any] = [None, -1, 1 << 40, True, 1.5, "x", [], {}, [[]], [0, 0, 0], "\ud800", [0, "a"]]


def test_malformed_messages_about_chapters_change_nothing(tmp_path):
    async def script(here):
        await here.until(here.trained)
        next_chapter, store = here.peers[0].next_chapter, here.peers[0].store
        mine = here.peers[1].next_chapter
        spec = Spec(1, 1, "restart", "exact", None, None, ("x",), 1, 12, 0, 12, 1)
        value = mine.write(spec)
        good = {"number": 1, "value": value, "after": 0, "peer": 0, "receipt": {}}
        good |= {"begun": True, "without": []}
        good |= {"decision": {"decided": None, "certificates": []}, "poll": mine.poll.record()}
        before = store.db.execute("SELECT COUNT(*) FROM agenda").fetchone()
        tried, allowed = 0, [("begun", True), ("without", [])]
        here.peers[0].door.rate.rate = 1e6
        assert set(next_chapter.answers) == set(get_args(ms.NETWORK)), "each is answered"
        head = ms.head(here.network.name, here.network.run_id)
        for message_type in get_args(ms.NETWORK):
            kind = message_type.__struct_config__.tag
            names = [n for n in message_type.__struct_fields__ if n not in head]
            said = {**head, "kind": kind, **{name: good[name] for name in names}}
            for name in names:
                for junk in JUNK:
                    if (name in ("number", "after") and junk is None) or (name, junk) in allowed:
                        continue
                    message = json.dumps({**said, name: junk}).encode()
                    answer = codec.parse(await here.peers[0].answer(1, message), 1 << 20)
                    tried += 1
                    assert answer.get("kind") == "refused", (kind, name, junk)
            whole = codec.dump(said)
            for message in (codec.dump({**said, "more": 1}), b"", b"{", whole[:-2]):
                answer = codec.parse(await here.peers[0].answer(1, message), 9999)
                assert answer["kind"] == "refused"
        assert tried > 100
        assert next_chapter.known == []
        assert next_chapter.poll.state == State(0)
        assert store.db.execute("SELECT COUNT(*) FROM agenda").fetchone() == before

    hamlet(tmp_path, script, peers=3)


def test_a_peer_that_leaves_is_forgotten_and_ends(tmp_path):
    async def script(here):
        await here.until(here.trained)
        records = here.peers[1].records
        here.peers[1].requests.submit_all("leave-peer-1")
        with records.transaction(touches=False):
            records.put_fact(LEAVING, "leave-peer-1")
        here.peers[1].wake.set()
        async with asyncio.timeout(60):
            await here.tasks[1]
        await here.until(lambda: all(1 in here.peers[p].left for p in (0, 2, 3)))
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        here.peers[1].store.close()
        await here.until(lambda: here.stage(0, "r") == "erasing")
        visits = here.peers[0].visits([(2, 1)])[2]
        assert 1 not in {v["visit"]["receiver"] for v in visits}

    here = hamlet(tmp_path, script)
    document = check(here, 1, "chapter-1")
    assert document["peers"]["requests"] == ["leave-peer-1"]
    assert document["claims"][0]["grade"] == "exact"


def test_a_certificate_that_was_changed_is_found_out(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 2, "r", *trained_on(here, 2)[:2])
        await here.until(ended(here, r=2))

    here = hamlet(tmp_path, script, peers=3)
    place, authority = certificate(here, 2, "chapter-1"), here.folder / "ca.pem"
    good = read_certificate(place)
    assert peer_certificate.verified(place, authority)["problems"] == []
    one, *others = good["peers"]["receipts"]
    waiting = sorted(receipt["peer"] for receipt in others)
    lesser = [{"receipts": [one]}, {"receipts": [one], "pending": waiting}]
    for change in ({"requests": ["other"]}, *lesser):
        wrong = {**good, "peers": {**good["peers"], **change}}
        place.write_text(text_of(wrong))
        assert peer_certificate.verified(place, authority)["problems"], change
    place.write_text(text_of({**good, "peers": {**good["peers"], "pending": ["peer-1"]}}))
    with pytest.raises(Corrupt, match="pending does not name members without a receipt"):
        read_certificate(place)
    place.write_text(text_of(good))
    visits = place.with_name(peer_certificate.VISITS)
    text = visits.read_text()
    visits.write_text(text.replace('"receiver":2', '"receiver":1', 1))
    assert peer_certificate.verified(place, authority)["problems"]
    visits.write_text(text)
    other = network(tmp_path / "other", peers=3)
    assert other.name == here.network.name
    assert peer_certificate.verified(place, tmp_path / "other" / "ca.pem")["problems"]
    assert json.loads(text.splitlines()[0])["certificates"]


def test_a_task_without_records_of_its_own_refuses_requests(tmp_path):
    from tests.peers import harness

    folder = tmp_path / "net"
    here = Hamlet(folder, harness.network(folder, peers=3))

    async def main() -> None:
        try:
            here.start(0)
            with pytest.raises(InvalidInput, match="task 'records'"):
                await Reception(here.peers[0]).submit(form("a", "x"))
        finally:
            await here.close()

    asyncio.run(main())


def test_a_chapter_whose_peer_is_away_is_begun_by_whoever_has_the_same_token(tmp_path):
    seen: dict[str, Any] = {}

    async def script(here):
        await here.until(here.trained)
        visits = here.peers[0].visits([(0, 1)])[0]
        first = {v["visit"]["receiver"]: n for n, v in reversed(list(enumerate(visits)))}
        u = max(first, key=lambda p: first[p])
        w = visits[first[u]]["visit"]["sender"]
        seen.update(u=u)
        chapters = here.peers[u]
        opened = chapters._open

        def gone(number):  # decided, and then u is cut off before it can do anything
            here.memory.cut = {frozenset((u, p)) for p in range(4) if p != u}
            return opened(number)

        chapters._open = gone
        ask(here, u, "r", *trained_on(here, u)[:2])
        others = [p for p in range(4) if p != u]
        await here.until(lambda: all(len(here.peers[p].specs) == 1 for p in others))
        await here.until(lambda: all(here.peers[p].service.over.is_set() for p in others))
        await here.until(lambda: bool(here.peers[w].visits([(1, 1)])[1]))
        again = here.peers[w].visits([(1, 1)])[1]
        assert again[0]["visit"]["receiver"] == w
        here.memory.cut = set()
        await here.until(lambda: here.stage(u, "r") == "done")

    here = hamlet(tmp_path, script)
    document = check(here, seen["u"], "chapter-1")
    (claim,) = document["claims"]
    assert claim["grade"] == "exact"
    assert any("u was away" in text for text in claim["assumptions"])


def test_a_vanished_peer_is_forgotten_by_whoever_handed_it_its_first_token(tmp_path):
    seen: dict[str, Any] = {}

    async def script(here):
        await here.until(here.trained)
        chapters = here.peers[0]
        visits = chapters.visits([(0, 1)])[0]
        first = {v["visit"]["receiver"]: n for n, v in reversed(list(enumerate(visits)))}
        u = max(first, key=lambda p: first[p])  # not the first of all
        w = visits[first[u]]["visit"]["sender"]
        await here.crash(u)
        others = [p for p in range(4) if p not in (u, w)]
        for peer in (w, *others):  # what their operators say; that of one is not enough
            assert here.peers[w].specs == []
            await asyncio.sleep(0.3)
            records = here.peers[peer].records
            with records.transaction(touches=False):
                records.put_fact(f"{VANISHED}{u}", "gone-for-good")
            here.peers[peer].wake.set()
        place = lambda: certificate(here, w, "chapter-1")  # noqa: E731
        await here.until(lambda: place().exists())
        seen.update(u=u, w=w, position=first[u])
        here.start(u)
        await here.until(lambda: read_certificate(place())["peers"]["pending"] == [])
        assert here.peers[u].records.counts().train > 0, "u's own records are u's"
        assert [e["by"] for e in here.events if e["event"] == "voted out"] == [w]
        assert u in here.peers[w].left
        again = here.peers[w].visits([(1, 1)])[1]
        assert u not in {v["visit"]["receiver"] for v in again}

    here = hamlet(tmp_path, script)
    (spec,) = here.peers[seen["w"]].specs
    assert (spec.method, spec.peer, spec.holder) == ("rewind", seen["u"], seen["w"])
    assert spec.position == seen["position"]
    document = check(here, seen["w"], "chapter-1")
    assert [c["grade"] for c in document["claims"]] == ["exact"]
    assert document["public"]["forgotten"] == "all"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"unlearn__optimizer": "momentum"}, "momentum"),
        ({"unlearn__work": "full"}, "'full'"),
        ({"unlearn__work": "iid"}, "'iid'"),
        ({"seal__std": 0.001}, "peers seal with what the ledger asks for"),
    ],
)
def test_a_seal_that_can_prove_nothing_is_not_walked(tmp_path, changed, reason):
    book = Book(network(tmp_path, **{**SEALED, **changed}))
    with pytest.raises(Refused, match=reason):
        book.check(1, "certified", None, 1)
    book.check(1, "exact", None, 1)


def test_a_seal_that_repairs_otherwise_than_it_trained_can_be_proved(tmp_path):
    changed = {"unlearn__work": "full", "seal__local_epochs": 0, "unlearn__optimizer": "momentum"}
    Book(network(tmp_path, **{**SEALED, **changed})).check(1, "certified", None, 1)


def test_a_request_that_no_seal_can_answer_is_refused_before_its_chapter(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 1, "a", trained_on(here, 1)[0], grade="certified", epsilon=1.0, delta=1e-5)
        await here.until(ended(here, a=1), 5.0)
        request = here.peers[1].requests.get("a")
        assert request.stage == "refused"
        assert "momentum" in request.reason
        assert "--grade exact" in request.reason
        assert here.peers[1].specs == []
        assert not list(here.folder.rglob("releases-*"))

    settings = {**SEALED, "train__hops": 3, "unlearn__optimizer": "momentum"}
    hamlet(tmp_path, script, 2, **settings)


def test_noise_is_drawn_once_between_peers(tmp_path):
    """Nothing that was drawn again proves anything: every request would be walked and refused."""
    with pytest.raises(InvalidInput, match=r"noise\.attempt is 2; .* allowed: 1"):
        network(tmp_path, noise__attempt=2)
