"""What one member with a valid certificate tries, and what comes of it: nothing, or its name."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.peers.deletions import Hamlet, ask, certificate, ended, hamlet, trained_on
from tests.peers.harness import Village, lived
from tests.peers.liars import Liar, unwalked_end
from unwalk.certificates.document import body_of, read_certificate, text_of
from unwalk.certificates.signing import sign
from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.peers.decisions.decided import kept_chapter
from unwalk.peers.decisions.history import forget_logs
from unwalk.peers.decisions.votes import decision_to, digest_of
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.handover import log_rules
from unwalk.peers.handover.log_fetch import LogFetch
from unwalk.peers.handover.log_rules import Succession
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.turns import FREE
from unwalk.peers.handover.walk import TRIES
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.consensus import NEVER, PRECOMMIT, PREVOTE, Vote
from unwalk.peers.protocol.hoplog import BARE, bare_text, recovery_body
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.provision import network_of, publish, revoke
from unwalk.peers.status import status

LIAR, VICTIM = 2, 1


def liar_of(here: Village, peer: int = LIAR) -> Liar:
    """A member that lies, beside its own peer."""
    return Liar(here.folder, peer, here.memory.at(peer))


def test_a_member_cannot_have_others_records_or_models_erased(tmp_path):
    """Row 1: a chapter that counts another peer out, `decided` by nobody, and a made-up end."""

    async def script(here):
        await here.until(here.trained)
        before = {p: here.peers[p].records.counts() for p in range(3)}
        models = {p: here.peers[p].model(1) for p in range(3)}
        source = (here.folder / f"records-{VICTIM}.csv").read_bytes()
        liar, other = liar_of(here), (0, VICTIM)
        text, matter = liar.chapter(liar.against(VICTIM, 12)), liar.matter(1)
        everybody = dict.fromkeys(range(3), LIAR)
        answers = []
        for voters, by in (((LIAR,), {}), (range(3), everybody), ((LIAR, 9), {9: LIAR})):
            decision = decision_to(liar.made_up(matter, text, voters, by))
            fields = {"number": 1, "value": text, "decision": decision}
            answers += await liar.tell_all(other, liar.words("agenda-decided", **fields))
        garbage = unwalked_end()
        fake = liar.made_up(liar.end(), garbage, (LIAR,))
        poll = liar.shown(liar.end(), [], fake, texts=[garbage])
        await liar.tell_all(other, liar.words("decide", poll=poll))
        assert {a["kind"] for a in answers} == {"refused"}
        await asyncio.sleep(1.0)
        for peer in (0, VICTIM):
            chapters = here.peers[peer]
            assert chapters.specs == []
            assert chapters.next_chapter.known == []
            assert not chapters.next_chapter._judge(text, False), "nor does it vote for it"
            assert chapters.records.counts() == before[peer]
            assert chapters.model(1) == models[peer]
        assert (here.folder / f"records-{VICTIM}.csv").read_bytes() == source
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        assert here.stage(0, "r") == "done", "and life goes on"

    hamlet(tmp_path, script, peers=3)


def test_rounds_numbers_and_votes_out_of_range_leave_nothing_behind(tmp_path):
    """Row 5: ballots of 2^31, thousands of votes with arbitrary numbers."""

    async def script(here):
        await here.until(here.trained)
        liar, honest = liar_of(here), here.peers[0].next_chapter
        matter = liar.matter(1)
        rows = here.peers[0].store.db.execute("SELECT COUNT(*) FROM polls").fetchone()
        values = [digest_of(str(n)) for n in range(400)]
        for number in (0, 2, 3, 1000, 2**31 - 1):
            far = liar.words("agenda-decide", number=number, poll=liar.shown(matter, []))
            assert (await liar.tell(0, far))["kind"] == "refused"
        for round in (1, 7, 4000, 2**31):
            votes = [Vote(kind, round, values[0], NEVER, LIAR) for kind in (PREVOTE, PRECOMMIT)]
            poll = liar.shown(matter, votes)
            poll["opened"] = [v for v in poll["votes"] if v[0] == PRECOMMIT]
            await liar.tell(0, liar.words("agenda-decide", number=1, poll=poll))
        assert honest.poll.state.round == 0
        for value in values:
            poll = liar.shown(matter, [Vote(PREVOTE, 0, value, NEVER, LIAR)])
            await liar.tell(0, liar.words("agenda-decide", number=1, poll=poll))
        of_liar = [v for v in honest.poll.state.votes if v.voter == LIAR]
        assert len(of_liar) == de.TWICE
        assert here.peers[0].store.db.execute("SELECT COUNT(*) FROM polls").fetchone()[0] <= (
            rows[0] + 1
        )
        assert {e["who"] for e in here.events if e["event"] == "liar"} == {LIAR}
        await here.crash(0)
        here.start(0)  # a peer starts again with what it wrote down
        ask(here, 1, "r", *trained_on(here, 1)[:1])
        await here.until(ended(here, r=1))

    hamlet(tmp_path, script)


def test_a_member_that_votes_both_ways_is_named_and_changes_nothing(tmp_path):
    """Row 5: different votes to two peers; within f they agree, and know who lied."""

    async def script(here):
        await here.until(here.trained)
        liar = liar_of(here)
        matter = liar.matter(1)
        for peer, value in ((0, "one"), (1, "other"), (3, "third")):
            votes = [Vote(k, 0, digest_of(value), NEVER, LIAR) for k in (PREVOTE, PRECOMMIT)]
            poll = liar.shown(matter, votes)
            await liar.tell(peer, liar.words("agenda-decide", number=1, poll=poll))
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        ask(here, 1, "s", *trained_on(here, 1)[:1])
        await here.until(ended(here, r=0, s=1))
        await here.until(lambda: len({tuple(p.specs) for p in here.peers.values()}) == 1)
        named = {e["who"] for e in here.events if e["event"] == "liar"}
        assert named == {LIAR}

    hamlet(tmp_path, script)


def test_beyond_f_liars_a_fork_stops_those_who_see_it_and_names_the_liar(tmp_path):
    """Three peers of which none may lie: one that does can have two chapters decided."""

    async def script(here):
        await here.until(here.trained)
        liar, ends = liar_of(here), []
        for honest in (0, 1):
            spec = Spec(1, honest, "restart", "exact", None, None, ("x",), 1, 12, 0, 12, honest)
            text = Liar(here.folder, honest).chapter(spec)
            forged = liar.made_up(liar.matter(1), text, (honest, LIAR))
            ends.append((text, decision_to(forged)))
        here.memory.cut = {frozenset((0, 1))}
        for peer, (text, decision) in enumerate(ends):
            fields = {"number": 1, "value": text, "decision": decision}
            answer = await liar.tell(peer, liar.words("agenda-decided", **fields))
            assert answer == {"decided": []}, "each has a quorum of votes"
        here.memory.cut = set()
        with pytest.raises(InvalidInput, match=r"two chapters .* signed by: peer-2\."):
            async with asyncio.timeout(30):
                await asyncio.gather(here.tasks[0], here.tasks[1])
        liars = [e["liars"] for e in here.events if e["event"] == "fork"]
        assert liars
        assert all(found == [LIAR] for found in liars)
        here.tasks.pop(0), here.tasks.pop(1)

    hamlet(tmp_path, script, peers=3)


def test_leases_that_a_silent_neighbour_costs_are_not_held_against_a_peer(tmp_path, monkeypatch):
    """Row 5 h: before an offer that is never answered is given up, nobody before it recovers."""
    now = [100.0]

    async def script(here: Village) -> None:
        peer = 1 if here.start(1).state.held is None else 2
        recovery = here.start(peer).recovery if peer == 2 else here.services[1].recovery
        turns = recovery.walk.turns
        with monkeypatch.context() as patched:
            patched.setattr("unwalk.peers.handover.recovery.monotonic", lambda: now[0])
            for turn in (0.0, turns.longest_wait):
                turns.opened.extend([now[0]] * FREE if turn else [])
                recovery.handed = None
                assert not recovery._overrun()
                now[0] += 600.0 + (1.0 + TRIES) * 60.0 + turn
                assert not recovery._overrun()
                now[0] += 60.0 * (1 + peer) + 1.0  # with a walk's first token it waits its turn
                assert recovery._overrun()

    lived(tmp_path, script, peers=4, lease=60.0, visit=600.0)


def test_whoever_is_handed_a_token_of_a_later_generation_goes_by_turns(tmp_path):
    """It may get the token before anybody shows it how the generation was opened."""

    async def script(here: Village) -> None:
        peer = 1 if here.start(1).state.held is None else 2
        service = here.services[1] if peer == 1 else here.start(peer)
        state = service.state
        assert state.kept is not None
        service.turns.opened.extend([monotonic()] * (FREE - 1))
        opened = (*state.lineage, ((1, 0), 0))
        parcel = replace(state.kept, generation=(1, 0), lineage=opened)
        short = service.patience(monotonic())
        service.put(pr.receive(state, parcel, (peer,))[0])
        wait = service.turns.longest_wait
        assert service.patience(monotonic()) == pytest.approx(short + wait)

    lived(tmp_path, script, peers=4)


def test_a_generation_that_brings_no_token_costs_no_copy():
    """Row 5 a: whoever opened it may have lied about what it goes on from."""
    first = pr.begin(0, 3, 9, 0, "", "t")
    handed = pr.answered(
        pr.address(pr.visited(first, "c", "t"), (1,)),
        replace(first.held, hop=1, chain="c"),  # type: ignore[type-var]
        pr.Reply("accepted"),
    )
    after = pr.fenced(handed, (1, 2), (((0, 0), 0), ((1, 2), 0)))
    assert after.fence == (1, 2)
    assert pr.basis(after) == handed.kept
    assert pr.basis(after) is not None


def test_an_offer_that_is_never_answered_ends():
    """Row 5 h: who lets a token wait, and answers everything else, is done without at last."""
    state = pr.address(pr.visited(pr.begin(0, 3, 9, 0, "", "t"), "c", "t"), (1,))
    state = pr.failed(state, certain=False)
    answers = {p: pr.sighting(pr.begin(p, 3, 9, 0, "", "t")) for p in (1, 2, 3)}
    assert pr.consider(state, answers).kind == "again"
    assert pr.consider(state, answers, overrun=True).kind == "recover"
    assert pr.recover(state, 0, "r").passed_over == (1,)


def test_every_entry_of_a_log_is_checked_against_the_one_before(tmp_path):
    """Row 5: a token at hop 2999 of a run at hop 37, and generations that nobody opened."""

    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        await here.until(here.finished)
        await here.until(lambda: all(s.whole.is_set() for s in services))
        first = services[0]
        value = first.state.committed
        assert value is not None
        log = first.store.chain(first.run_id, value.chain, first.start_chain)
        assert log is not None
        check = first.succession.entry
        before = None
        for entry in log:
            check(entry, before)
            before = entry["body"]

        def forged(entry: Any, **changes: Any) -> Any:
            """The same, changed, and signed by the peer that it names."""
            return liar_of(here, entry["body"]["peer"]).entry(entry, **changes)

        third, second = log[2], log[1]["body"]
        visit = third["body"]["visit"]
        far = {"hop": 11, "visit": {**visit, "hop": 11}}
        lineage = [*third["body"]["lineage"], [9, third["body"]["peer"], 2]]
        opened = {"generation": [9, third["body"]["peer"]], "lineage": lineage}
        stranger = next(p for p in range(4) if p != second["peer"])
        for changes in (
            far,
            opened,
            {"run": "0" * 32},
            {"visit": {**visit, "sender": stranger}},
            {"visit": {**visit, "path": [third["body"]["peer"]] * 2}},
        ):
            with pytest.raises((Refused, Corrupt)):
                check(forged(third, **changes), second)
        with pytest.raises(Refused, match="begin where"):
            check(third, None)
        named(here, first, third["body"])
        self_made(here, first, first.state.lineage)
        await made_up(here, first, log)
        forget_logs(first.store, first.run_id)  # what holds digests goes, the name stays
        assert set(first.store.db.execute("SELECT one, other FROM lies")) == {("", "")}
        name = here.network.peers[third["body"]["peer"]].name
        assert name in status(here.folder / "peer-0")["liars"]

    lived(tmp_path, script, peers=4, train__hops=8)


async def made_up(here: Village, service: Service, log: list[Any]) -> None:
    """An end that nobody walked to: of its log nothing is kept, and no entry is asked for twice."""
    value, mine = service.state.committed, liar_of(here)
    assert value is not None
    service.state, before = replace(service.state, committed=None), service.state
    entry, asked = service.store.entry, list[str]()
    visit = {**log[-1]["body"]["visit"], "sender": LIAR, "receiver": LIAR, "path": []}
    right = {"peer": LIAR, "visit": visit, "generation": list(value.generation)}
    chain, token, served = "0" * 64, "0" * 64, dict[str, Any]()
    for hop in (*range(4), 6, 7, 8):  # 4 and 5 are missing
        told = {**visit, "hop": hop, "phase_hop": hop}
        bare = BARE + bare_text(service.run_id, value.generation, told)
        body = {**right, "hop": hop, "visit": told, "previous": chain, "token_in": token}
        token = value.token if hop == 8 else f"{hop:064x}"
        body |= {"token": token, "bare": mine.bundle.sign(bare).hex()}
        made = mine.entry({"body": {**log[-1]["body"], **body}})
        chain = made["chain"]
        served[chain] = made

    async def page(peer: int, chain: str) -> Any:
        asked.append(chain)
        return [served[chain]] if peer == LIAR and chain in served else []

    service.store.entry = lambda run, chain: None  # type: ignore[method-assign]
    service.control_messages.page = page  # type: ignore[method-assign]
    for changes, reason, pages in (
        ({"token": "1" * 64}, "not the end", 1),
        ({}, "about visit 3, not 5", 4),
    ):
        fetch = LogFetch(
            service, service.control_messages, replace(value, chain=chain, **changes), LIAR
        )
        asked.clear()
        with pytest.raises(Refused, match=reason):
            await fetch.whole()
        assert fetch.wrong
        assert not fetch.found
        assert len(set(asked)) == pages
    service.state, service.store.entry = before, entry  # type: ignore[method-assign]


def named(here: Village, service: Service, body: dict[str, Any]) -> None:
    """Row 5 b: two visits of one place are signed by one peer: it is named, once."""
    said = [e for e in here.events if e["event"] == "liar"]
    assert [(e["who"], e["hop"]) for e in said] == [(body["peer"], body["hop"])]
    bundle = here.folder / f"peer-{service.me}"
    assert status(bundle)["liars"] == [service.network.peers[body["peer"]].name]
    query = "SELECT one, other FROM lies"
    one, other = service.store.db.execute(query).fetchone()
    assert one != other
    assert all(service.trust.signer(json.loads(e)) == body["peer"] for e in (one, other))
    forget_logs(service.store, "another run")
    assert service.store.db.execute(query).fetchone() == (one, other)


def self_made(here: Village, service: Service, known: pr.Lineage) -> None:
    """Row 5 a: a recovery counts what others signed, not what who recovers says of itself."""
    run, chain, hop = service.run_id, "f" * 64, 7
    before = pr.Sighting(known[-1][0], known, (known[-1][0], (1, 0)))

    right = known[-1][0][0] + 1

    def opening(
        number: int,
        *others: int,
        signed: int = right,
        lost: int = -1,
        opener: int = LIAR,
        after: pr.Lineage = known,
        by: Succession = service.succession,
    ) -> pr.Generation:
        """A generation of the liar, after what others signed for that number."""
        opened = (number, opener)
        body = recovery_body(
            run=run,
            generation=opened,
            lineage=(*after, (opened, hop)),
            peer=LIAR,
            hop=hop,
            token="1" * 64,
            lost=lost,
            sightings=[
                log_rules.sign(
                    liar_of(here, p).bundle,
                    log_rules.Question(run, LIAR, chain, number if p == LIAR else signed),
                    before,
                )
                for p in others
            ],
        )
        entry = liar_of(here).entry({"body": {"previous": chain}}, **body)
        return by.opening(entry)[1]

    assert opening(right, 0, 1, 3) == (right, LIAR)
    assert opening(right, 0, 1, 3, LIAR, lost=3) == (right, LIAR)
    for number, others, lost in (
        (right + 1, (0, 1, 3), -1),  # signed for another one
        (right, (0, LIAR), -1),  # two of the three that it takes
        (right, (0, 1), 1),  # where the peer that lost it says to be does not matter
    ):
        with pytest.raises(Refused):
            opening(number, *others, lost=lost)
    some = replace(service.succession.rules, members=(0, 1, 3))
    left = replace(service.succession, rules=some)
    with pytest.raises(Refused, match=f"peer {LIAR} opens a generation and does not count"):
        opening(right, 0, 1, 3, by=left)
    with pytest.raises(Refused, match=f"peer {LIAR} opens generation .* after"):
        opening(right, 0, 1, 3, opener=LIAR + 1)
    lower = ((known[-1][0][0], LIAR - 1), 0)
    with pytest.raises(Refused, match=f"peer {LIAR} opens generation .* after"):
        opening(right - 1, 0, 1, 3, signed=right - 1, after=(lower,))
    with pytest.raises(Corrupt, match="does not grow"):
        opening(right - 1, 0, 1, 3, signed=right - 1)
    with pytest.raises(Corrupt, match="<= 1073741824"):
        opening(2**31, 0, 1, 3, signed=2**31)


def test_a_member_cannot_issue_anothers_certificate_or_change_its_requests(tmp_path):
    """Row 2: re-signed with other request ids, or without receipts; a revoked one neither."""

    async def script(here):
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))

    here = hamlet(tmp_path, script)
    place, authority = certificate(here, 0, "chapter-1"), here.folder / "ca.pem"
    document = read_certificate(place)
    newest = here.folder / "network.json"

    def problems(forged: dict[str, Any], network: Path | None = None) -> list[str]:
        place.write_text(text_of(forged))
        try:
            found = peer_certificate.verified(place, authority, network)
        except Corrupt as error:  # it is not even in the form of a certificate
            return [str(error)]
        assert (found["verdict"] == "changed") == bool(found["problems"])
        return list(found["problems"])

    assert problems(document) == []
    assert problems(document, newest) == []
    for by in (0, LIAR):
        name = f"peer-{by}"
        tried: list[dict[str, Any]] = [
            {"requests": ["another"]},
            {"requests": ["another"], "issuer": name},
            {"receipts": [], "pending": []},
            {"receipts": [], "pending": [], "issuer": name, "decided": False},
            {"issuer": "peer-1"},
            {"peer": name, "issuer": name} if by else {"issuer": "peer-3"},
            {"decisions": [], "issuer": name},
            {"decisions": [], "chapter": 0, "issuer": name},
            {"members": document["peers"]["members"][:2], "issuer": name},
            {"pending": ["peer-1"], "issuer": name},
        ]
        for changes in tried:
            assert problems(liar_of(here, by).resigned(document, **changes)), (by, changes)
    assert problems(liar_of(here).resigned(document))
    assert problems(liar_of(here).resigned(document, issuer="peer-2"))
    text, votes = document["peers"]["decisions"][0]
    spec = replace(kept_chapter(text, 4), requests=("another",))
    swapped = [[liar_of(here, 0).chapter(spec), votes]]
    found = problems(liar_of(here, 0).resigned(document, decisions=swapped, requests=["another"]))
    assert any("votes on chapter 1 are for another one" in text for text in found), found
    key, lent = liar_of(here).bundle.keys.signing, liar_of(here, 0).bundle.certificate_pem
    signer = {**sign({}, key)["signer"], "chain": lent.decode()}
    borrowed = {**document, "signer": signer}
    found = problems({**borrowed, "signature": key.sign(body_of(borrowed)).hex()})
    assert any("the key that signed is not that of peer-0" in text for text in found), found
    place.write_text(text_of(document))
    without = peer_certificate.verified(place, authority)
    assert any("revocation" in text for text in without["not_checked"])
    assert not any("revocation" in text for text in without["checked"])
    assert any(text.startswith("issued by peer-0") for text in without["checked"])
    later = revoke(here.folder, "peer-0", chapter=2)
    assert later.version == 2
    assert problems(document, newest) == [], "what it signed before chapter 2 stays good"
    serial = next(iter(later.revoked))
    earlier = replace(later, revoked={serial: 1}, version=3)
    publish(here.folder, earlier, network_of(here.folder)[1])
    assert "revoked from chapter 1 on" in problems(document, newest)[0]


def test_an_issuer_cannot_leave_visits_out_or_take_others(tmp_path):
    """What other peers signed says how long the walk was and where the token came from."""

    async def script(here):
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))

    here = hamlet(tmp_path, script)
    place = certificate(here, 0, "chapter-1")
    said = read_certificate(place)["peers"]
    transcript = Transcript.read(place.with_name(peer_certificate.TRANSCRIPT))
    visits = peer_certificate.read_visits(place.with_name(peer_certificate.VISITS))
    trust = peer_certificate._trust(said, here.folder / "ca.pem", None)
    names = [p.name for p in trust.network.peers]
    specs = peer_certificate._check_decided(said, trust, names)
    places = peer_certificate._line(specs, trust.network, decided=True)

    def checked(
        hops: list[Hop], signed: list[dict[str, Any]], line: list[tuple[int, str, int]]
    ) -> None:
        made = Transcript(transcript.header, hops)
        peer_certificate._check_visits(signed, made, trust, line)

    checked(transcript.hops, visits, places)
    first = sum(hop.phase == transcript.hops[0].phase for hop in transcript.hops)
    assert first > 1, "some of training's visits stay on the line"
    with pytest.raises(Corrupt, match="were walked"):
        checked(transcript.hops[: first - 1], visits[: first - 1], places)
    with pytest.raises(Corrupt, match="another walk"):
        checked(transcript.hops, visits, [*places[:-1], (1, "f" * 64, places[-1][2])])
    hops = [replace(hop, hop=n) for n, hop in enumerate(transcript.hops[1:first], 1)]
    with pytest.raises(Corrupt, match=r"is visit 2 of its walk|came from peer"):
        checked(hops, visits[1:first], places[: first - 1])
    by = next(p for p in range(4) if p != transcript.hops[0].receiver)
    one, two = visits[0]["generation"]
    data = BARE + bare_text(visits[0]["run"], (one, two), visits[0]["visit"])
    bundle = liar_of(here, by).bundle
    pem, signature = bundle.certificate_pem.decode(), bundle.sign(data).hex()
    stolen = {**visits[0], "certificate": pem, "signature": signature}
    with pytest.raises(Refused, match="which did not do it"):
        checked(transcript.hops, [stolen, *visits[1:]], places)
    peer_certificate._check_header(transcript, specs, said, trust.network)
    for name, value in (("batching", "iid"), ("forget", 7), ("phases", []), ("more", 1)):
        lied = Transcript({**transcript.header, name: value}, transcript.hops)
        with pytest.raises(Refused, match=f"header has {name}"):
            peer_certificate._check_header(lied, specs, said, trust.network)


def test_votes_and_receipts_of_a_peer_count_up_to_the_chapter_of_its_revocation(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))

    here = hamlet(tmp_path, script)
    place = certificate(here, 0, "chapter-1")
    said = read_certificate(place)["peers"]
    transcript = Transcript.read(place.with_name(peer_certificate.TRANSCRIPT))
    visits = peer_certificate.read_visits(place.with_name(peer_certificate.VISITS))
    trust = peer_certificate._trust(said, here.folder / "ca.pem", None)
    end = said["receipts"][0]["end"]
    names = [p.name for p in trust.network.peers]
    specs = peer_certificate._check_decided(said, trust, names)
    places = peer_certificate._line(specs, trust.network, decided=True)
    serials = {trust.identity(v["certificate"]).serial for v in visits}
    for serial in serials:
        for first in (0, 1, 2):
            network = replace(trust.network, revoked={serial: first})
            judge = replace(trust, network=network, _known={})
            peer_certificate._check_visits(visits, transcript, judge, places)  # voted for
            if first <= 1:
                with pytest.raises(Refused, match=f"revoked from chapter {first} on"):
                    peer_certificate._check_receipts(said, judge, specs, end)
            else:
                assert len(peer_certificate._check_receipts(said, judge, specs, end)) == len(
                    network.peers
                )
    voters = [trust.identity(pem) for pem in said["decisions"][0][1]["certificates"]]
    assert len(voters) > 1, "besides who wrote the chapter"
    for one, other in combinations(voters, 2):
        for first in (1, 2):
            for gone in ([one], [one, other]):  # one of four may lie
                revoked = dict.fromkeys([who.serial for who in gone], first)
                network = replace(trust.network, revoked=revoked)
                judge = replace(trust, network=network, _known={})
                if first == 1 and len(gone) == 2:
                    named = " rests on votes of " + ", ".join(sorted(who.peer for who in gone))
                    with pytest.raises(Refused, match=f"{named}.* allowed: votes of up to 1"):
                        peer_certificate._check_decided(said, judge, names)
                else:
                    assert peer_certificate._check_decided(said, judge, names) == specs


def test_who_votes_otherwise_to_each_peer_is_named_though_nobody_has_a_wish(tmp_path):
    """The votes are shown on, also where they are for nothing that anybody stands for."""

    async def script(here):
        await here.until(here.trained)
        liar = Liar(here.folder, LIAR, here.memory.at(LIAR))
        for peer in (0, 1, 3):
            votes = [Vote(PREVOTE, 0, digest_of(f"for {peer}"), NEVER, LIAR)]
            poll = liar.shown(liar.matter(1), votes)
            await liar.tell(peer, liar.words("agenda-decide", number=1, poll=poll))
        await here.until(
            lambda: {e["who"] for e in here.events if e["event"] == "liar"} == {LIAR}, 20.0
        )
        assert {here.peers[p].next_chapter.poll.state.round for p in (0, 1, 3)} == {0}

    hamlet(tmp_path, script, train__hops=4)


def test_chapters_that_nobody_knows_do_not_make_a_peer_ask_at_every_message(tmp_path):
    """A member that speaks of another run had everybody asked a hundred times a second."""

    async def script(here):
        await here.until(here.trained)
        victim, asked = here.peers[VICTIM], []
        liar = Liar(here.folder, LIAR, here.memory.at(LIAR))
        ask_all = victim.next_chapter.ask_all

        async def counted(message: bytes, field: str) -> dict[int, Any]:
            asked.append(field)
            found: dict[int, Any] = await ask_all(message, field)
            return found

        victim.next_chapter.ask_all = counted
        message = victim.service.control_messages.words(ms.Where, chain="", number=0).replace(
            victim.service.run_id.encode(), b"f" * 32
        )
        for _ in range(50):
            await liar.tell(VICTIM, message)
            await asyncio.sleep(0.005)
        await here.until(lambda: "decided" in asked)
        assert asked.count("decided") <= 4

    hamlet(tmp_path, script, train__hops=4)


async def _answered_oddly(here: Hamlet, odd: dict[str, Any]) -> None:
    """All that one member answers is odd; the others go on, and can be started again."""
    handler = here.memory.handlers[LIAR]

    class Odd:
        take = handler.take

        async def answer(self, sender: int, message: bytes) -> bytes:
            return codec.dump(odd)

    here.memory.handlers[LIAR] = Odd()
    ask(here, 0, "r", *trained_on(here, 0)[:1])
    await here.until(lambda: here.stage(0, "r") == "erasing")
    await here.crash(VICTIM)
    here.start(VICTIM)
    await here.until(lambda: here.peers[VICTIM].service.whole.is_set())


def test_odd_answers_of_a_member_end_nobody(tmp_path):
    """One answer ended three daemons, and again whenever they were started."""
    odd_entry = {"body": 5, "chain": [], "signature": None, "certificate": {"a": 1}}
    odd = {
        "sighting": [5],
        "signature": "zz",
        "certificate": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "receipt": {"peer": 5},
        "visits": [{"visit": {"events": [5]}}, 7],
        "decided": [[{}, 5], [5, {}], 5],
        "poll": {"votes": 5},
        "entry": odd_entry,
        "kind": "accepted",
    }

    async def script(here):
        await here.until(here.trained)
        await _answered_oddly(here, odd)

    hamlet(tmp_path, script, train__hops=4)
