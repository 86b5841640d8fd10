"""Certificates that lie at a peer: files that are not what it wrote, receipts that are not due."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.peers.deletions import (
    Hamlet,
    ask,
    certificate,
    check,
    ended,
    hamlet,
    trained_on,
)
from tests.peers.floods import no_descriptors
from tests.peers.harness import ROUTE
from tests.peers.liars import Liar
from tests.peers.own_files import unreadable
from unwalk.certificates.document import read_certificate, text_of
from unwalk.certificates.signing import sign
from unwalk.certificates.verify import verify
from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.certificate_archive import pack
from unwalk.peers.forgetting.erasure import Receipt, left_of
from unwalk.peers.identity.credentials import now
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.provision import revoke
from unwalk.peers.storage.disk_space import means_no_files
from unwalk.peers.web.live_desk import Reception

TIME = "2026-01-01T00:00:00+00:00"
AWAY = "peer-3"
UNSIGNED = ("signature", "signer")


@dataclass
class Past:
    """A network in which two requests were answered, the second while one peer was away."""

    here: Hamlet
    pending: dict[str, Any]
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    """Peer 0 is stopped meanwhile, and the files of both of its certificates are replaced."""
    kept: dict[str, Any] = {}

    async def script(here: Hamlet) -> None:
        await here.until(here.trained)
        rows = trained_on(here, 0)
        ask(here, 0, "one", *rows[:1])
        await here.until(ended(here, one=0))
        await here.crash(3)
        ask(here, 0, "two", *rows[1:2])
        first, second = (certificate(here, 0, f"chapter-{n}") for n in (1, 2))

        def all_but_one() -> bool:
            return second.exists() and len(read_certificate(second)["peers"]["receipts"]) == 3

        await here.until(all_but_one)
        await here.crash(0)
        kept["pending"] = read_certificate(second)
        shutil.rmtree(second.parent)
        shutil.copytree(first.parent, second.parent)
        _without_peers(first, Bundle.read(here.folder / "peer-0"))
        here.start(0)
        bundle = here.peers[0].bundle
        kept["first"] = peer_certificate.read_all(bundle)
        await here.until(lambda: len(peer_certificate.read_all(bundle)[0]) == 2)
        kept["stage"] = here.stage(0, "two")
        here.start(3)
        await here.until(ended(here, two=0))
        found = here.peers[0].requests
        assert found is not None
        kept["two"] = found.get("two")

    here = hamlet(tmp_path_factory.mktemp("past"), script)
    return Past(here, kept.pop("pending"), kept)


def _without_peers(place: Path, bundle: Bundle) -> None:
    """A certificate that this peer's key signed, and that says nothing of peers."""
    document = read_certificate(place)
    plain = {k: v for k, v in document.items() if k not in ("peers", *UNSIGNED)}
    place.write_text(text_of(sign(plain, bundle.keys.signing, None)))


def test_files_that_are_not_a_peers_own_certificates_are_issued_again(past: Past) -> None:
    """One says nothing of peers, the other is that of another chapter: neither answers anything."""
    assert past.seen["first"] == ([], ["chapter-1", "chapter-2"])
    assert past.seen["stage"] == "erasing"
    assert (past.seen["two"].stage, past.seen["two"].certificate) == ("done", "chapter-2")
    for number, id in ((1, "one"), (2, "two")):
        said = check(past.here, 0, f"chapter-{number}")["peers"]
        assert (said["chapter"], said["requests"], said["pending"]) == (number, [id], [])


def test_what_a_peer_signs_alone_is_no_certificate_of_its_network(past: Past) -> None:
    document = read_certificate(certificate(past.here, 0, "chapter-1"))
    bundle, authority = Bundle.read(past.here.folder / "peer-0"), past.here.folder / "ca.pem"
    for names, known in ((UNSIGNED, True), (("peers", *UNSIGNED), False)):
        plain = {k: v for k, v in document.items() if k not in names}
        signed = sign(plain, bundle.keys.signing, bundle.certificate_pem.decode())
        verdict = verify(signed, None, trust=str(authority), now=now())
        assert verdict.known is known
        assert any("SIGNED BY A PEER" in text for text in verdict.unchecked) is not known


def test_a_certificate_that_cannot_be_read_for_a_while_is_neither_changed_nor_forgotten(
    past: Past,
) -> None:
    bundle = Bundle.read(past.here.folder / "peer-0")  # nothing of it was looked at before
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        peer_certificate.read_all(bundle)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        peer_certificate.own(bundle, certificate(past.here, 0, "chapter-1"))
    found, changed = peer_certificate.read_all(bundle)
    assert ([name for name, _ in found], changed) == (["chapter-1", "chapter-2"], [])
    with unreadable(bundle.store / peer_certificate.FOLDER), pytest.raises(PermissionError):
        peer_certificate.read_all(bundle)


def test_the_desk_says_nothing_of_a_certificate_while_it_can_open_no_file(past: Past) -> None:
    desk = Reception(past.here.peers[0])

    async def main() -> None:
        place = certificate(past.here, 0, "chapter-2")
        said, files = await desk.verify(place.parent.name), pack(place)
        assert said is not None
        with no_descriptors():
            for ask in (desk.verify, desk.evidence):
                with pytest.raises((OSError, UnwalkError)) as caught:
                    await ask(place.parent.name)
                assert means_no_files(caught.value)
            with pytest.raises(OSError, match="Too many open files"):
                peer_certificate.intact(place)
        assert (await desk.verify(place.parent.name), pack(place)) == (said, files)

    asyncio.run(main())


def test_where_nobody_lies_no_signature_is_refused(past: Past) -> None:
    refused = [str(e) for e in past.here.events if e["event"] == "refused"]
    assert not [text for text in refused if "signature" in text]


def test_receipts_of_leaving_count_for_the_run_and_the_chapter_they_were_signed_in(
    past: Past,
) -> None:
    """Not of another run, nor from before a chapter that counts it, nor with a revoked key."""
    here = past.here
    place, authority = certificate(here, 0, "chapter-2"), here.folder / "ca.pem"
    thief, issuer = Liar(here.folder, 3), Liar(here.folder, 0)
    said, run = past.pending["peers"], here.network.run_id
    assert said["pending"] == [AWAY]

    def problems(left: str, chapter: int, network: Path | None = None) -> list[str]:
        receipt = Receipt("test", left, chapter, AWAY, (), 0, TIME).signed(thief.bundle)
        receipts = sorted([*said["receipts"], receipt.to_json()], key=lambda r: str(r["peer"]))
        forged = issuer.resigned(past.pending, receipts=receipts, pending=[])
        place.write_text(text_of(forged))
        return list(peer_certificate.verified(place, authority, network)["problems"])

    good = place.read_text()
    try:
        assert problems(left_of(run), 2) == []
        assert "for run left-" in problems(left_of("0" * 32), 2)[0]
        with pytest.raises(Corrupt, match="run is 'left'; allowed"):
            problems("left", 0)
        assert "is counted in chapter 2" in problems(left_of(run), 1)[0]
        revoke(here.folder, AWAY, chapter=2)
        newest = here.folder / "network.json"
        assert "revoked from chapter 2 on" in problems(left_of(run), 2, newest)[0]
        assert "is counted in chapter 2" in problems(left_of(run), 1, newest)[0]
    finally:
        place.write_text(good)


def test_a_damaged_certificate_for_records_that_were_never_used_is_issued_again(tmp_path):
    async def script(here: Hamlet) -> None:
        await here.until(here.trained)
        held_out = sorted(set(range(40)) - set(trained_on(here, 0)))[:2]
        await here.crash(3)
        ask(here, 0, "one", *trained_on(here, 0)[:1])
        await here.until(lambda: here.stage(0, "one") == "erasing")
        ask(here, 0, "two", *held_out[:1])
        place = certificate(here, 0, "quiet-2")
        await here.until(place.exists)
        await here.crash(0)
        place.write_text(certificate(here, 0, "chapter-1").read_text())
        here.start(0)
        bundle = here.peers[0].bundle
        await here.until(lambda: peer_certificate.own(bundle, place) is not None)
        await here.crash(0)
        place.with_name(peer_certificate.TRANSCRIPT).write_text("{")
        here.start(0)
        here.start(3)
        await here.until(ended(here, one=0, two=0))

    here = hamlet(tmp_path, script, peers=4, train__hops=6, seed=ROUTE)
    assert check(here, 0, "quiet-2")["peers"]["requests"] == ["two"]


def test_the_page_of_a_certificate_names_who_erased_and_what_came_before(past: Past) -> None:
    place = certificate(past.here, 0, "chapter-2")
    said = peer_certificate.verified(place, past.here.folder / "ca.pem")
    page = " ".join(re.sub(r"<[^>]*>", " ", peer_certificate.printed(place, said)).split())
    assert "Checked and intact Somebody you trust signed it." in page
    assert "Asked by peer-0 Request two Received (UTC) 20" in page
    rows = [f"peer-{n} signed" for n in range(4)]
    assert all(row in page for row in rows)
    assert "chapter 1 forgot records of peer-0 exactly" in page
    assert "peer-0 issues a certificate only when the records themselves are erased" in page
    assert "the certificate cannot know who has one: ask each peer" in page
    changed = {**said, "problems": ["members are not those of the network's file"]}
    page = peer_certificate.printed(place, changed)
    assert "Do not rely on this" in page
    assert "members are not those of the network&#39;s file" in page
    assert "Asked by" not in page
    assert "What is guaranteed" not in page
