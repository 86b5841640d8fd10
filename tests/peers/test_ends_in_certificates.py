"""A certificate rests on what the peers decided when each chapter on its line ended."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.peers.deletions import ask, certificate, ended, hamlet, trained_on
from tests.peers.harness import Village, lived
from tests.peers.liars import Liar
from unwalk.certificates import certificate_of
from unwalk.certificates.document import MODEL, model_of, read_certificate, text_of
from unwalk.certificates.signing import sign
from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.peers.decisions import history
from unwalk.peers.decisions.votes import decision_to
from unwalk.peers.decisions.walk_end import (
    NO_VISITS,
    closing_from,
    closing_of,
    end_text,
    salted,
    visits_digest,
    void_closing,
)
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.erasure import Receipt
from unwalk.peers.forgetting.plans import as_walked, silent_spec, walked
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle import certifying
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import MOST_ENDS, Value
from unwalk.peers.protocol.hoplog import BARE, bare_text
from unwalk.peers.protocol.schedule import line
from unwalk.peers.provision import revoke

LIAR = 2
SALT = "5a" * 16


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Two chapters, the second for records of the liar's, and what the liar kept of them."""
    known: dict[str, Any] = {}

    async def script(here):
        await here.until(here.trained)
        liar = here.peers[LIAR]
        known["old"] = liar.store.file(liar.model(1)).read_bytes()
        route = [v["visit"]["receiver"] for v in liar.visits([(0, 1)])[0]]
        late = max({*route} - {LIAR}, key=route.index)
        ask(here, late, "q", *trained_on(here, late)[:1])
        await here.until(ended(here, q=late))
        ask(here, LIAR, "r", *trained_on(here, LIAR)[:1])
        await here.until(ended(here, r=LIAR))
        places = line(liar.book.hops, [])
        visits, spec = liar.visits(places), silent_spec([], len(places), LIAR, ("other",), 2)
        header = liar.book.quiet(spec, liar.runs[0], []).header()
        known["quiet"] = walked(header, places, visits), [visits[c][p - 1] for c, p in places]
        known["ends"], known["runs"] = liar.certifying.ends(places), liar.runs

    here = hamlet(tmp_path_factory.mktemp("told"), script)
    place = certificate(here, LIAR, "chapter-2")
    bundle = Bundle.read(here.folder / f"peer-{LIAR}")
    return SimpleNamespace(here=here, place=place, bundle=bundle, **known)


def forged(
    told: Any,
    folder: Path,
    visits: list[dict[str, Any]] | None = None,
    model: bytes | None = None,
    *,
    header: Mapping[str, Any] | None = None,
    lie: Callable[[Hop], Hop] = lambda hop: hop,
    **changes: Any,
) -> list[str]:
    """What is wrong with a certificate that says something else, signed by its own issuer.

    ``header`` and ``lie`` change its transcript, but not the visits as peers signed them.
    """
    place, document = folder / "certificate.json", read_certificate(told.place)
    if visits is None:
        visits = peer_certificate.read_visits(told.place.with_name(peer_certificate.VISITS))
    before = Transcript.read(told.place.with_name(peer_certificate.TRANSCRIPT))
    made, last = (
        Transcript({**before.header, **(header or {})}),
        before.header["phases"][-1]["name"],
    )
    for number, visit in enumerate(visits, 1):
        made.add(lie(as_walked(Hop.from_json(visit["visit"]), number, last)))
    text = peer_certificate.visits_text(visits)
    said = document["model"] if model is None else model_of(model)
    body = certificate_of(made, said)
    digest = hashlib.sha256(text.encode()).hexdigest()
    body["peers"] = {**document["peers"], "visits": digest, **changes}
    pem = told.bundle.certificate_pem.decode()
    place.write_text(text_of(sign(body, told.bundle.keys.signing, pem)))
    place.with_name(peer_certificate.TRANSCRIPT).write_text(made.text())
    place.with_name(peer_certificate.VISITS).write_text(text)
    if model is not None:
        place.with_name(MODEL).write_bytes(model)
    try:
        found = peer_certificate.verified(
            place, told.here.folder / "ca.pem", told.here.folder / "network.json"
        )
    except Corrupt as error:
        return [str(error)]
    return list(found["problems"])


def another(told: Any, visit: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A visit in the place of another, by the liar, signed by it."""
    record = {**visit["visit"], **changes}
    data = BARE + bare_text(visit["run"], tuple(visit["generation"]), record)
    pem = told.bundle.certificate_pem.decode()
    return {**visit, "visit": record, "signature": told.bundle.sign(data).hex(), "certificate": pem}


def test_visits_and_model_are_those_that_a_quorum_decided_on(told, tmp_path):
    visits = peer_certificate.read_visits(told.place.with_name(peer_certificate.VISITS))
    assert forged(told, tmp_path) == [], "signed anew by its own issuer, and nothing changed"
    mine = next(n for n, v in enumerate(visits) if v["run"] == told.runs[2])
    alone = visits[:mine] + [
        another(told, visits[mine], hop=visit["visit"]["hop"], phase_hop=number, sender=sender)
        for number, (visit, sender) in enumerate(
            zip(visits[mine:], [visits[mine]["visit"]["sender"], *[LIAR] * 99], strict=False), 1
        )
    ]
    assert "visits of chapter 2 are not those" in forged(told, tmp_path, alone)[0]
    (problem,) = forged(told, tmp_path, model=told.old)
    assert problem == "the model is not the one that the peers decided on"
    (tmp_path / MODEL).unlink()
    assert "what was erased" in forged(told, tmp_path, erased_after_hop=10**6)[0]
    stated = peer_certificate.verified(told.place, told.here.folder / "ca.pem")["stated"]
    assert f"by the issuer alone: {', '.join(peer_certificate.ALONE.values())}" in stated


def test_the_transcript_is_what_peers_signed_and_decided_on(told, tmp_path):
    """Accountants read the transcript: the visits beside it may be right, and it may be not."""

    def untrue(hop: Hop) -> Hop:
        return replace(hop, gradients=hop.gradients + 1) if hop.hop == 2 else hop

    problems = forged(told, tmp_path, lie=untrue)
    assert any("hop 2 is not what peer" in problem for problem in problems), problems
    for name, value in (("forget", 7), ("batching", "iid")):
        problems = forged(told, tmp_path, header={name: value})
        assert any(f"header has {name} {value!r};" in problem for problem in problems), problems


def test_each_request_has_one_time_where_any_is_stated(told, tmp_path):
    (time,) = read_certificate(told.place)["peers"]["received"]
    for wrong in ([], [time, time], ["yesterday"], [3], time):
        assert forged(told, tmp_path, received=wrong), wrong


def test_every_chapter_on_the_line_is_shown_with_its_end(told, tmp_path):
    training, before, chapter = read_certificate(told.place)["peers"]["ends"]
    assert (training[0], before[0], chapter[0]) == (0, 1, 2)
    assert training[3] != NO_VISITS, "chapter 1 went back: not all of training is on the line"
    assert before[3] == chapter[3] == NO_VISITS
    fewer = {**chapter[2], "decided": {**chapter[2]["decided"], "precommits": []}}
    tried = [
        [],
        [chapter],
        [training, chapter],
        [training, before],
        [training, before, [2, *before[1:]]],
        [training, [1, *chapter[1:]], chapter],
        [[0, *before[1:]], before, chapter],
        [[*training[:3], NO_VISITS], before, chapter],
        [training, [*before[:3], training[3]], chapter],
        [training, before, [*chapter[:2], fewer, chapter[3]]],
        [training, before, [2, before[1], *chapter[2:]]],
        [training, before, [2, chapter[1] + " ", *chapter[2:]]],
        [training, before, chapter, chapter],
    ]
    for ends in tried:
        assert forged(told, tmp_path, ends=ends), ends
    closing = closing_from(chapter[1])
    for name in ("hidden", "visits", "model"):
        text = replace(closing, **{name: "0" * 64}).text
        assert forged(told, tmp_path, ends=[training, before, [2, text, *chapter[2:]]])
    other = replace(closing_from(before[1]), hidden="0" * 64).text  # nothing else is bound to it
    (problem,) = forged(told, tmp_path, ends=[training, [1, other, *before[2:]], chapter])
    assert "are for another one" in problem


def test_a_chapter_that_was_given_up_has_no_certificate(told, tmp_path):
    """Votes of all peers that chapter 2 is void; what its peer signs for it counts nothing."""
    training, before, _ = read_certificate(told.place)["peers"]["ends"]
    liar = Liar(told.here.folder, LIAR)
    value = Value((0, 0), "0" * 64, "1" * 64, SALT)
    closing, matter = void_closing(value), liar.end(told.runs[2], 2)
    votes = decision_to(liar.made_up(matter, end_text(value, closing), range(4)))
    for rest in (NO_VISITS, training[3]):
        problems = forged(told, tmp_path, ends=[training, before, [2, closing.text, votes, rest]])
        assert problems == ["chapter 2 was given up; it ended without a visit"]


def test_a_receipt_is_for_one_end(told, tmp_path):
    said = read_certificate(told.place)["peers"]
    trust, closing = told.bundle.trust(), closing_from(said["ends"][2][1])
    for record in said["receipts"]:
        receipt = Receipt.from_json(record)
        assert receipt.end == closing.digest
        receipt.check(trust, run=told.runs[2], chapter=2, end=closing.digest)
    mine = next(Receipt.from_json(r) for r in said["receipts"] if r["peer"] == told.bundle.name)
    other = replace(mine, end="0" * 64).signed(told.bundle)
    with pytest.raises(Refused, match="receipt is for end"):
        other.check(trust, run=told.runs[2], chapter=2, end=closing.digest)
    kept = [r for r in said["receipts"] if r["peer"] != told.bundle.name]
    receipts = sorted([*kept, other.to_json()], key=lambda r: str(r["peer"]))
    assert "receipt is for end" in forged(told, tmp_path, receipts=receipts)[0]
    for doubled in ([*said["receipts"], said["receipts"][-1]], said["receipts"][::-1]):
        assert "each peer once, in order" in forged(told, tmp_path, receipts=doubled)[0]


def test_a_revoked_peer_says_nothing_of_requests_without_a_walk(told, tmp_path):
    """It could name any chapter before its revocation; nobody else says when it issued them."""
    folder = tmp_path / "net"
    shutil.copytree(told.here.folder, folder)
    facts = peer_certificate.Facts(0, told.runs[0], ("other",), 12, {}, (), told.ends, False, True)
    transcript, visits = told.quiet
    issued = "2031-01-01T00:00:00+00:00"
    peer_certificate.issue(told.bundle, "backdated", transcript, visits, facts, issued)
    place = certificate(told.here, LIAR, "backdated")
    found = peer_certificate.verified(place, folder / "ca.pem", told.here.folder / "network.json")
    assert found["problems"] == []
    assert any(n.startswith("by the issuer alone") and "records" in n for n in found["stated"])
    revoke(folder, f"peer-{LIAR}", chapter=1)
    found = peer_certificate.verified(place, folder / "ca.pem", folder / "network.json")
    assert "was revoked from chapter 1 on, and nobody else says" in found["problems"][0]
    facts = replace(facts, chapter=1, run=told.runs[1])
    peer_certificate.issue(told.bundle, "backdated", transcript, visits, facts, issued)
    assert (
        "0 chapters are shown" in peer_certificate.verified(place, folder / "ca.pem")["problems"][0]
    )


def test_what_stays_of_an_end_tells_nothing_without_its_salt(told):
    said = read_certificate(told.place)
    token = certificate(told.here, 0, "x").parents[2] / "tokens"
    closing = closing_from(said["peers"]["ends"][2][1])
    assert said["model"]["sha256"] == closing.model
    for file in token.glob("*.safetensors"):
        assert file.stem not in text_of(said)
        assert model_of(salted(file, SALT))["sha256"] != closing.model
        assert hashlib.sha256(file.read_bytes()).hexdigest() != closing.model
    one = closing_of(Value((0, 0), "0" * 64, "1" * 64, SALT), "2" * 64, "3" * 64)
    other = closing_of(Value((0, 0), "0" * 64, "1" * 64, "5b" * 16), "2" * 64, "3" * 64)
    assert one.hidden != other.hidden
    with pytest.raises(Corrupt):
        closing_from(one.text.replace("3", "g"))


def test_the_first_visits_of_a_walk_are_known_by_the_digest_of_the_others():
    plain = {"run": "a", "generation": [0, 1], "signature": "b", "certificate": "c"}
    visits = [{**plain, "visit": {"hop": n}} for n in range(5)]
    whole = visits_digest(visits)
    renewed = [{**visit, "certificate": "c\n"} for visit in visits]
    assert visits_digest(renewed) == whole, "the log's chain does not hold it either"
    for name, other in (("run", "b"), ("generation", [1, 1]), ("signature", "c"), ("visit", {})):
        assert visits_digest([*visits[:3], {**visits[3], name: other}, visits[4]]) != whole
    for count in range(6):
        assert visits_digest(visits[:count], visits_digest(visits[count:])) == whole
    assert visits_digest(visits[::-1]) != whole
    assert visits_digest(visits[:4]) != whole


def test_visits_that_are_asked_for_have_to_be_those_that_were_decided_on(tmp_path):
    """A peer that lost them asks all; one of those answers with visits of its own making."""

    async def script(here):
        await here.until(here.trained)
        chapters, liar = here.peers[0], here.peers[1]
        honest = history.visits_of(chapters.store, chapters.runs[0])
        told, wrong = SimpleNamespace(bundle=liar.bundle), []
        for visit in honest:
            mine = visit["visit"]["receiver"] == 1
            wrong.append(another(told, {**visit, "generation": [9, 1]}) if mine else visit)
        assert wrong != honest
        decided = history.end_decision(chapters.store, chapters.runs[0])
        assert decided is not None
        text, votes = decided
        none = {**votes, "decided": None}
        shown: Any = [7, [], [text], [text, none], [text, votes, 7], [[], {}], [text + " ", votes]]
        asked = []

        def visits(sender: int, said: ms.AgendaVisits) -> dict[str, Any]:
            asked.append(sender)
            return {"visits": wrong[said.after :]}

        liar.next_chapter.answers[ms.AgendaVisits] = visits
        liar.next_chapter.answers[ms.AgendaEnd] = lambda *_: {"end": shown[0]}
        with chapters.store.transaction() as db:
            db.execute("DELETE FROM visits")
            db.execute("DELETE FROM ends")
        here.memory.cut = {frozenset((0, p)) for p in (2, 3)}
        while shown:
            before = len(here.events)
            assert await chapters.next_chapter.have_end(0) is None
            assert "refused" in {e["event"] for e in here.events[before:]}, shown.pop(0)
            shown.pop(0)
        shown.append(None)
        here.memory.cut = set()
        assert await chapters.certifying.have_visits(0)
        assert asked == [0]
        assert history.visits_of(chapters.store, chapters.runs[0]) == honest

    hamlet(tmp_path, script, train__hops=8)


def test_a_request_is_not_done_while_its_certificate_does_not_verify(tmp_path, monkeypatch):
    """Its visits are damaged on the disk: the request and the journal say so, until it is well."""
    issue: Callable[..., Any] = peer_certificate.issue
    damaged: list[Any] = []

    def damaging(bundle: Bundle, name: str, *args: Any) -> Any:
        found = issue(bundle, name, *args)
        path = bundle.store / peer_certificate.FOLDER / name / peer_certificate.VISITS
        damaged[:] = [path, path.read_bytes()]
        path.write_bytes(damaged[1] + b"\n")
        return found

    async def script(here):
        await here.until(here.trained)
        monkeypatch.setattr(peer_certificate, "issue", damaging)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        requests = here.peers[0].requests
        await here.until(lambda: requests.get("r").reason is not None)
        found = requests.get("r")
        assert (found.stage, found.certificate) == ("erasing", "chapter-1")
        assert found.reason.endswith("visits.jsonl is not the file that was certified")
        assert any(e["event"] == "certificate does not verify" for e in here.events)
        damaged[0].write_bytes(damaged[1])
        await here.until(ended(here, r=0))
        assert requests.get("r").reason is None

    monkeypatch.setattr(certifying, "SELDOM", 0.2)
    hamlet(tmp_path, script, train__hops=8)


# Ends that a liar makes many of


def test_ends_of_one_chain_are_one_and_none_pushes_another_out():
    def end(number: int, generation: int = 0, salt: str = "") -> Value:
        return Value((generation, 0), f"{number}", "t", salt)

    state = pr.hold(pr.begin(0, 3, 4, 1, "", "t"), end(0))
    for salt in range(9):
        assert pr.hold(state, end(0, salt=f"{salt}")) == state
    for number in range(1, 9):
        state = pr.hold(state, end(number))
    kept = tuple(end(n) for n in range(MOST_ENDS))
    assert state.ends == kept, "the first ones stay"
    wanted = pr.hold(state, end(8), {"8", "0"})
    assert wanted.ends == (*kept[:-1], end(8)), "one that is voted on takes a place"
    later = pr.hold(state, end(9, generation=1))
    assert later.ends == (*kept[:-1], end(9, generation=1))
    assert pr.hold(later, end(10)) == later
    full = pr.hold(state, end(11), {f"{n}" for n in range(12)})
    assert full == state


def test_a_walk_ends_though_each_peer_was_told_of_another_salt(tmp_path):
    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        for service in services:
            bring = service.last_token._bring_final

            async def other(peer: int, value: Value, bring: Any = bring) -> bool:
                salt = hashlib.sha256(f"{peer} {value.salt}".encode()).hexdigest()[:32]
                done: bool = await bring(peer, replace(value, salt=salt))
                return done

            service.last_token._bring_final = other  # type: ignore[method-assign]
        await here.until(here.finished)
        assert len({s.state.committed for s in services}) == 1
        assert len({history.end_decision(s.store, s.run_id)[0] for s in services}) == 1  # type: ignore[index]

    lived(tmp_path, script, peers=4, train__hops=6)


def test_one_neighbour_brings_two_ends_and_more_only_if_they_are_voted_on(tmp_path):
    async def script(here: Village) -> None:
        service = here.start(0)
        await asyncio.sleep(0)
        ends = [Value((0, 0), f"{n:064x}", "1" * 64, SALT) for n in range(4)]
        state = service.state
        for end in ends[:2]:
            service.last_token._room_for(1, end)
            state = pr.hold(state, end)
            service.last_token.brought[end.chain] = 1
        service.state = state
        with pytest.raises(Refused, match="2 other ends are kept"):
            service.last_token._room_for(1, ends[2])
        service.last_token._room_for(3, ends[2])
        service.last_token._room_for(1, replace(ends[2], generation=(1, 1)))
        closing = closing_of(ends[2], "2" * 64, "3" * 64)
        service.poll.texts = {closing.digest: end_text(ends[2], closing)}
        service.last_token._room_for(1, ends[2])
        service.state = replace(state, ends=())

    lived(tmp_path, script, peers=4)
