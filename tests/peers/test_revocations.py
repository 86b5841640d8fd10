"""Certificates that were revoked, for chapters that are voted on or were decided before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from tests.peers.deletions import ask, certificate, ended, hamlet, trained_on
from tests.peers.harness import ROUTE, network
from tests.peers.liars import Liar
from tests.peers.own_files import unreadable
from unwalk.core.errors import InvalidInput
from unwalk.core.transcript import canonical
from unwalk.peers.decisions.decided import words_of
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.peer_certificate import verified
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.provision import make_bundle, next_chapter, revoke, rotate

VICTIM, MEMBER = 1, 2


def chapter_by(bundle: Bundle, spec: Spec) -> str:
    """A chapter that was signed with the keys of a bundle."""
    signature = bundle.sign(words_of(bundle.network.run_id, spec)).hex()
    pem = bundle.certificate_pem.decode()
    return canonical({"spec": spec.to_json(), "signature": signature, "certificate": pem})


def leaves(hops: int) -> Spec:
    """A chapter in which the victim says that it leaves."""
    who = ("restart", "exact", None, None, ("stolen",), 1, hops, 0, hops, VICTIM)
    return Spec(1, VICTIM, *who, left=(VICTIM,))


@pytest.mark.parametrize("with_chapter", [True, False], ids=["default", "without-a-chapter"])
def test_a_stolen_key_that_was_rotated_signs_no_chapter_any_more(tmp_path, with_chapter):
    """Its thief would have its owner counted out; nobody votes for that."""

    async def script(here):
        await here.until(here.trained)
        stolen = Bundle.read(here.folder / f"peer-{VICTIM}")
        await here.crash(VICTIM)
        rotate(here.folder, f"peer-{VICTIM}")
        fresh = Bundle.read(here.folder / f"peer-{VICTIM}")
        network = fresh.network
        if not with_chapter:  # a network file from before there was a default
            network = replace(network, revoked=dict.fromkeys(network.revoked))
        here.start(VICTIM)
        await here.until(lambda: VICTIM in here.memory.handlers)
        for chapters in here.peers.values():
            chapters.trust.network = network
        text = chapter_by(stolen, leaves(here.peers[0].book.hops))
        liar = Liar(here.folder, MEMBER, here.memory.at(MEMBER))
        poll = liar.shown(liar.matter(1), [], offer=text)
        for peer in (0, 1, 3):
            await liar.tell(peer, liar.words("agenda-decide", number=1, poll=poll))
        assert not any(here.peers[p].next_chapter._judge(text, False) for p in (0, 1, 3))
        ask(here, VICTIM, "r", *trained_on(here, VICTIM)[:1])
        await here.until(ended(here, r=VICTIM))
        assert here.stage(VICTIM, "r") == "done"
        assert [s.left for s in here.peers[0].specs] == [()]
        assert list(fresh.network.revoked.values()) == [1], "the next chapter"

    hamlet(tmp_path, script, train__hops=6)


def test_a_peer_votes_for_no_chapter_in_its_name_that_it_did_not_write(tmp_path):
    """Its key was stolen and nobody knows yet; what it writes itself it stands for."""

    async def script(here):
        await here.until(here.trained)
        victim = here.peers[VICTIM]
        text = chapter_by(victim.bundle, leaves(victim.book.hops))
        assert here.peers[0].next_chapter._judge(text, False), "others cannot tell"
        assert not victim.next_chapter._judge(text, False)
        plain = replace(leaves(victim.book.hops), left=())
        victim.next_chapter.propose(plain)
        assert victim.next_chapter._judge(victim.next_chapter.write(plain), False)

        def decided() -> bool:  # the peer itself has no wish, and may take this one back
            if not victim.specs:
                victim.next_chapter.propose(plain)
            return bool(victim.specs)

        await here.until(decided)
        assert victim.specs[0] == plain

    hamlet(tmp_path, script, train__hops=6)


def test_peers_start_again_when_a_chapter_before_is_covered_by_a_revocation(tmp_path):
    """What a peer has decided on it does not judge anew, and the others go on."""

    async def script(here):
        await here.until(here.trained)
        ask(here, MEMBER, "r", *trained_on(here, MEMBER)[:1])
        await here.until(ended(here, r=MEMBER))
        for peer in range(4):
            await here.crash(peer)
        revoke(here.folder, f"peer-{MEMBER}", chapter=1)
        for peer in (0, 1, 3):
            here.start(peer)
        ask(here, 0, "s", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "s") == "erasing")
        assert [s.peer for s in here.peers[0].specs] == [MEMBER, 0]
        assert next_chapter(here.folder) == 3

    hamlet(tmp_path, script, train__hops=6)


def test_which_chapter_is_next_is_not_guessed(tmp_path):
    async def script(here):
        await here.until(here.trained)
        assert next_chapter(here.folder) == 1
        await asyncio.gather(*(here.crash(p) for p in range(2)))
        for peer in range(2):
            (here.folder / f"peer-{peer}" / "store" / "state.sqlite").write_bytes(b"x" * 4096)
        before = (here.folder / "peer-1" / "signing.key").read_bytes()
        with pytest.raises(InvalidInput, match=r"cannot be read .*; give --chapter"):
            rotate(here.folder, "peer-1")
        assert (here.folder / "peer-1" / "signing.key").read_bytes() == before

    hamlet(tmp_path, script, peers=2, train__hops=4)


def test_no_certificate_is_passed_over_because_it_cannot_be_seen(tmp_path):
    folder = tmp_path / "net"
    network(folder, peers=2)
    (folder / "peer-0" / "store").mkdir()
    (folder / "peer-0" / "store" / "state.sqlite").write_bytes(b"x" * 4096)
    issued = sorted((folder / "issued").iterdir())
    key = (folder / "peer-1" / "signing.key").read_bytes()
    with unreadable(folder / "issued"):
        for change in (partial(make_bundle, folder, "peer-1"), partial(revoke, folder, "peer-1")):
            with pytest.raises(InvalidInput, match="issued cannot be read: Permission denied"):
                change()
    assert sorted((folder / "issued").iterdir()) == issued
    assert (folder / "peer-1" / "signing.key").read_bytes() == key
    (folder / "peer-0" / "store").chmod(0)
    with unreadable(folder / "peer-1"), pytest.raises(InvalidInput, match="give --chapter"):
        revoke(folder, "peer-1")
    (folder / "peer-0" / "store").chmod(0o700)


@pytest.mark.soak
def test_a_visit_of_a_revoked_key_spoils_no_certificate(tmp_path):
    """A member carries tokens to and from it; nobody takes them, and others' requests are done."""
    revoked, carrier = 1, 2

    async def script(here):
        await here.until(here.trained)
        network = revoke(here.folder, "peer-1", chapter=1)
        for peer in (0, 2, 3):
            here.peers[peer].trust.network = network
        here.memory.cut |= {frozenset((0, revoked)), frozenset((3, revoked))}
        here.peers[revoked].transport.me = carrier
        for peer, id in {0: "r", 3: "s"}.items():
            ask(here, peer, id, *trained_on(here, peer)[:1])

        def named(peer, id):
            return here.peers[peer].requests.get(id).certificate

        await here.until(lambda: named(0, "r") and named(3, "s"))
        for peer, id in {0: "r", 3: "s"}.items():
            name, newest = named(peer, id), here.folder / "network.json"
            found = verified(certificate(here, peer, name), here.folder / "ca.pem", newest)
            assert not found["problems"], found["problems"]

    hamlet(tmp_path, script, train__hops=8, visit=0.8)


REQUESTS = {"r": 0, "s": 3}


def told_of(here, network):
    """Everybody who is up reads the newest network file, as on SIGHUP."""
    for chapters in here.peers.values():
        chapters.trust.network = network


@pytest.mark.parametrize("which", ["who asks", "another"])
def test_a_revocation_of_decided_chapters_leaves_no_request_open(tmp_path, which):
    """Its votes count as those of one that may lie; its peer signs what it states anew."""
    rotated = 0 if which == "who asks" else 1

    async def script(here):
        await here.until(here.trained)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        ask(here, 3, "s", *trained_on(here, 3)[:1])
        await here.until(lambda: len(here.peers[2].specs) == 2)
        await here.crash(2)  # and hears of the end only from votes that were revoked since
        await here.crash(rotated)
        rotate(here.folder, f"peer-{rotated}", chapter=1)
        for peer in (rotated, 2):
            here.start(peer)
        told_of(here, here.peers[rotated].trust.network)
        await here.until(ended(here, **REQUESTS))
        newest = here.folder / "network.json"

        def good(id, peer):
            name = here.peers[peer].requests.get(id).certificate
            place = certificate(here, peer, name)
            return not verified(place, here.folder / "ca.pem", newest)["problems"]

        assert {here.stage(peer, id) for id, peer in REQUESTS.items()} == {"done"}
        await here.until(lambda: all(good(id, peer) for id, peer in REQUESTS.items()))

    hamlet(tmp_path, script, train__hops=8, seed=ROUTE)


@pytest.mark.parametrize(("rotated", "begun"), [(1, True), (3, True), (3, False), (1, None)])
def test_a_certificate_of_records_that_were_never_used_is_issued_anew_too(tmp_path, rotated, begun):
    """After a chapter, before any (``begun``: False), or while the request is still open (None)."""

    async def script(here):
        await here.until(here.trained)
        if begun is not False:
            ask(here, 0, "r", *trained_on(here, 0)[:1])
            await here.until(ended(here, r=0))
        asker, name = here.peers[3], "quiet-1"
        if begun is None:
            asker.request_steps.certifying.doubted[name] = 1e9
        ask(here, 3, "s", next(row for row in range(40) if row not in trained_on(here, 3)))
        place = certificate(here, 3, name)
        await here.until(lambda: here.stage(3, "s") == ("erasing" if begun is None else "done"))
        own = peer_certificate.own
        await here.until(lambda: own(asker.bundle, place)["peers"]["pending"] == [])
        for peer in {rotated, 3}:
            await here.crash(peer)
        rotate(here.folder, f"peer-{rotated}", chapter=1)
        for peer in {rotated, 3}:
            here.start(peer)
        told_of(here, here.peers[rotated].trust.network)
        newest = here.folder / "network.json"

        def good() -> bool:
            return not verified(place, here.folder / "ca.pem", newest)["problems"]

        await here.until(lambda: good() and here.stage(3, "s") == "done", 10.0)
        again = own(here.peers[3].bundle, place)["peers"]["version"]
        await asyncio.sleep(5.0)
        assert own(here.peers[3].bundle, place)["peers"]["version"] == again, "and then it stays"

    hamlet(tmp_path, script, train__hops=4, seed=ROUTE)


def test_who_was_away_takes_over_a_chapter_that_a_revocation_covers(tmp_path):
    """From those whose votes still count, since not more were revoked than may lie."""

    async def script(here):
        await here.until(here.trained)
        await here.crash(2)
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "r") == "erasing")
        await here.crash(1)
        told_of(here, revoke(here.folder, "peer-1", chapter=1))
        here.start(2)
        await here.until(lambda: bool(here.peers[2].specs))
        await here.until(lambda: here.stage(0, "r") == "erasing")

    hamlet(tmp_path, script, train__hops=8, seed=ROUTE)


def test_a_request_whose_decision_lost_too_many_votes_ends_with_a_reason(tmp_path):
    """Where nobody may lie one is too many; whoever signs networks has to confirm that."""

    async def script(here):
        await here.until(here.trained)
        before = len(trained_on(here, 0))
        here.peers[0].request_steps.certifying.doubted["chapter-1"] = 1e9
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "r") == "erasing")
        with pytest.raises(InvalidInput, match=r"chapter 1 rests on votes of peer-1.* --confirm"):
            revoke(here.folder, "peer-1", chapter=1)
        await here.crash(1)
        rotate(here.folder, "peer-1", chapter=1, confirm=True)
        here.start(1)
        told_of(here, here.peers[1].trust.network)
        here.peers[0].request_steps.certifying.doubted.clear()
        await here.until(ended(here, r=0))
        found = here.peers[0].requests.get("r")
        assert found.stage == "refused"
        assert "no certificate of it can hold" in found.reason
        assert "votes of peer-1" in found.reason
        assert len(trained_on(here, 0)) == before - 1, "it is erased all the same"

    hamlet(tmp_path, script, peers=2, train__hops=8, seed=ROUTE)
