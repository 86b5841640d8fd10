"""A member signs certificates of any content: they end in a sentence, and no lie is "checked"."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.certificates.mutations import SENTENCE, everything, mutants, told, written
from tests.peers.deletions import ask, certificate, ended, hamlet, trained_on
from tests.peers.liars import Liar
from unwalk.certificates import form
from unwalk.certificates.document import misformed, read_certificate, text_of
from unwalk.certificates.signing import sign
from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.certificate_archive import packed, unpack
from unwalk.peers.forgetting.erasure import Receipt
from unwalk.peers.forgetting.peer_certificate import compose, rule_without
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.web.live_desk import Reception

ALONE = {"received", "version", "issued", "composed"}
"""What a certificate's issuer can say as it likes, within the form."""
VOTES = re.compile(r"^peers\.(decisions|ends)\..*\.(certificates|precommits|chain\.[0-9]+)$")
"""Sets of votes and of certificates: in which order they stand, or twice, says nothing."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One request that was done, one for records that were held out, and their certificates."""

    async def script(here: Any) -> None:
        await here.until(here.trained)
        rows = trained_on(here, 0)
        out = sorted(set(range(40)) - set(rows))
        ask(here, 0, "r", *rows[:1])
        await here.until(ended(here, r=0))
        ask(here, 0, "held", *out[:1])
        await here.until(ended(here, held=0))

    here = hamlet(tmp_path_factory.mktemp("past"), script, unlearn__hops=3)
    names = peer_certificate.names_in(here.folder / "peer-0" / "store" / "certificates")
    quiet = next(name for name in names if name.startswith("quiet-"))
    places = {"chapter": certificate(here, 0, "chapter-1"), "quiet": certificate(here, 0, quiet)}
    return SimpleNamespace(here=here, liar=Liar(here.folder, 0), places=places)


def copied(past: Any, kind: str, folder: Path) -> Path:
    """A copy of a certificate with all that belongs to it."""
    shutil.copytree(past.places[kind].parent, folder)
    place = folder / "certificate.json"
    document = read_certificate(place)
    model = peer_certificate.released(document, past.places[kind])
    if model is not None:
        (folder / "model.safetensors").write_bytes(model)
    return place


def resigned(past: Any, document: dict[str, Any]) -> dict[str, Any]:
    bundle = past.liar.bundle
    return sign(document, bundle.keys.signing, bundle.certificate_pem.decode())


def stated(kind: str) -> set[str]:
    """Also its own requests that needed no walk, and how many of their records were held out."""
    return ALONE | ({"held_out", "requests"} if kind == "quiet" else set())


def fuzzed(past: Any, kind: str, folder: Path, seeds: range) -> int:
    """How many changed certificates verify: those with other words of the issuer alone."""
    place = copied(past, kind, folder)
    document = read_certificate(place)
    trust = ("--trust", past.here.folder / "ca.pem")
    good = told(place, *trust)
    assert good["problems"] == []
    assert good["verdict"].startswith("intact, signer trusted")
    taken = 0
    for seed, where, other in mutants(document, seeds):
        signed = resigned(past, other) if seed % 5 else other
        if signed == document or not written(place, signed):
            continue
        said = told(place, *trust) if seed % 2 else told(place)
        if said["problems"]:
            continue
        assert misformed(signed) is None, (seed, where)
        if not seed % 2 or "peers" not in signed:  # what says nothing of peers is no network's
            assert not said["trusted"]
            continue
        taken += 1
        assert set(said["checked"]) <= set(good["checked"]), (seed, where)
        votes = [p for p in where.split() if p.startswith(("peers.decisions", "peers.ends"))]
        free = stated(kind) | ({"decisions", "ends"} if all(map(VOTES.search, votes)) else set())
        peers = {**signed["peers"], **{name: document["peers"].get(name) for name in free}}
        peers = {name: value for name, value in peers.items() if value is not None}
        again = resigned(past, {**signed, "peers": peers})
        assert again == document, (seed, where)
    return taken


@pytest.mark.parametrize("kind", ["chapter", "quiet"])
def test_nothing_that_a_member_signs_is_checked_but_what_is_so(past, kind, tmp_path):
    fuzzed(past, kind, tmp_path / "run", range(60))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["chapter", "quiet"])
def test_nothing_of_many_that_a_member_signs_is_checked_but_what_is_so(past, kind, tmp_path):
    taken = fuzzed(past, kind, tmp_path / "run", range(10_000, 14_000))
    assert taken > 0, "else nothing was tried that could pass: few places are the issuer's own"


def all_changed(past: Any, kind: str, folder: Path, each: int, every: int) -> set[str]:
    """The places whose change is not refused, when the issuer signs each ``every``-th change."""
    place, trust = copied(past, kind, folder), past.here.folder / "ca.pem"
    document = read_certificate(place)
    good = told(place, "--trust", trust)
    taken = set[str]()
    for number, (where, other) in enumerate(everything(document, each)):
        signed = resigned(past, other)
        if number % every or signed == document or not written(place, signed):
            continue
        try:
            if peer_certificate.verified(place, trust)["problems"]:
                continue
        except UnwalkError:
            continue
        said = told(place, "--trust", trust)
        taken.add(where)
        assert said["checked"] == good["checked"], where
        assert SENTENCE not in place.with_name("page.html").read_text(), where
    return taken


@pytest.mark.parametrize("each_every", [(1, 23), pytest.param((4, 1), marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["chapter", "quiet"])
def test_no_place_of_a_certificate_can_be_changed_but_what_is_stated(
    past, kind, each_every, tmp_path
):
    taken = all_changed(past, kind, tmp_path / "run", *each_every)
    for where in taken:
        name = where.removeprefix("peers.").partition(".")[0]
        assert name in stated(kind) or VOTES.search(where), where


def ruled(rule: str) -> dict[str, Any]:
    return {"certificates": 1, "epsilon": 0.0, "delta": 0.0, "rule": rule}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("issued", SENTENCE),
        ("issued", 7),
        ("issued", "2026-13-45T00:00:00+00:00"),
        ("version", SENTENCE),
        ("version", True),
        ("version", 1.0),
        ("version", 10**40),
        ("composed", SENTENCE),
        ("composed", ruled(SENTENCE)),
        ("composed", ruled(rule_without([]) + "; not counted, since changed: nothing at all")),
        ("held_out", True),
        ("held_out", 10**6),
        ("received", [SENTENCE]),
        ("requests", [SENTENCE]),
        ("requests", ["r", "r"]),
        ("pending", ["peer-0"]),
        ("peer", "p\u0435er-0"),
        ("more", 1),
    ],
)
def test_what_only_the_issuer_states_has_a_form(past, name, value, tmp_path):
    for kind in past.places:
        place = copied(past, kind, tmp_path / kind)
        document = read_certificate(place)
        written(place, past.liar.resigned(document, **{name: value}))
        said = told(place, "--trust", past.here.folder / "ca.pem")
        assert said["verdict"] == "changed"
        assert f"peers.{name}" in said["problems"][0]


def test_a_changed_certificate_of_a_guarantee_has_a_page_that_says_so(past, tmp_path):
    place, page = copied(past, "chapter", tmp_path / "run"), tmp_path / "run" / "page.html"
    document = read_certificate(place)
    written(place, past.liar.resigned(document, erased_after_hop=10**6))
    said = told(place, "--trust", past.here.folder / "ca.pem")
    assert said["problems"][0].startswith("what was erased begins after hop ")
    assert "Do not rely on this" in page.read_text()


def test_a_peers_own_page_and_lists_survive_its_changed_files(past, tmp_path):
    """Whoever holds the store holds the key; the page says that the file was changed."""
    place = past.places["chapter"]
    good, document = place.read_text(), read_certificate(place)
    desk = object.__new__(Reception)
    desk.chapters = SimpleNamespace(bundle=past.liar.bundle)  # type: ignore[assignment]
    try:
        for name, value in (("issued", 7), ("version", SENTENCE), ("composed", 1), ("ends", {})):
            written(place, past.liar.resigned(document, **{name: value}))
            page = asyncio.run(desk.document("chapter-1"))
            assert page is not None
            assert b"Do not rely on this" in page
            assert b"What this certificate claims is not shown" in page
            found, changed = peer_certificate.read_all(past.liar.bundle)
            assert changed == ["chapter-1"]
            assert [n for n, _ in found] == [past.places["quiet"].parent.name]
    finally:
        place.write_text(good)


def test_a_certificate_that_was_issued_again_within_a_tick_of_the_clock_is_read_again(
    past, tmp_path
):
    shutil.copytree(past.here.folder / "peer-0", tmp_path / "peer-0")
    copy = Bundle.read(tmp_path / "peer-0")
    place = copy.store / peer_certificate.FOLDER / past.places["chapter"].parent.name
    document = read_certificate(place / "certificate.json")
    for second in (1, 2):
        new = place / "new"
        issued = f"2026-01-01T00:00:0{second}+00:00"
        changed = {**document, "peers": {**document["peers"], "issued": issued}}
        new.write_text(text_of(resigned(past, changed)))
        os.utime(new, ns=(10**18, 10**18))
        new.rename(place / "certificate.json")
        read = peer_certificate.own(copy, place / "certificate.json")
        assert read is not None
        assert read["peers"]["issued"] == issued


def test_what_no_peer_takes_of_another_stands_in_no_certificate(past):
    """Else a member could spoil the certificates of all others with what it signs."""
    document = read_certificate(past.places["chapter"])
    record = document["peers"]["receipts"][1]
    for name, value in (
        ("time", "2026-13-45T00:00:00+00:00"),
        ("end", SENTENCE),
        ("run", f"left-{SENTENCE}"),
        ("records", 1.0),
    ):
        with pytest.raises(Corrupt, match=f"receipt.{name} is"):
            Receipt.from_json({**record, name: value})
    spec = json.loads(document["peers"]["decisions"][0][0])["spec"]
    with pytest.raises(Corrupt, match="names no requests, or not by 1 to 64"):
        Spec.from_json({**spec, "requests": [SENTENCE]}, 4)


def test_budgets_that_are_no_guarantee_any_more_add_up():
    assert compose([(1e6, 1e-5), (1e6, 1e-5)]) == (2e6, 1.0)
    assert compose([(1e6, 0.0), (1.0, 0.0)]) == (1e6 + 1.0, 0.0)


def test_how_many_records_were_held_out_stands_where_no_walk_was_needed(past, tmp_path):
    place = copied(past, "chapter", tmp_path / "run")
    written(place, past.liar.resigned(read_certificate(place), held_out=1))
    said = told(place, "--trust", past.here.folder / "ca.pem")
    assert "peers.held_out stands beside a chapter that was decided" in said["problems"][0]


def test_folders_of_any_name_are_only_counted():
    assert rule_without(["chapter-1", SENTENCE, "x"], "") == (
        "; not counted, since changed: chapter-1, 2 others"
    )
    for changed in ([], ["x"], ["x", "y"], ["quiet-7"], [f"chapter-{n}" for n in range(120)]):
        assert form.rule.holds(rule_without(changed))


def test_an_archive_holds_each_file_once(past, tmp_path):
    """Two readers of an archive with two certificates may read different ones."""
    raw = past.places["chapter"].read_bytes()
    one = packed({"certificate.json": raw})
    twice = tmp_path / "twice.zip"
    twice.write_bytes(packed({"certificate.json": b"{}", "certificate.jso_": raw}))
    twice.write_bytes(twice.read_bytes().replace(b"certificate.jso_", b"certificate.json"))
    with pytest.raises(Corrupt, match=r"holds certificate\.json twice"):
        unpack(twice, tmp_path)
    before = tmp_path / "before.zip"
    before.write_bytes(packed({"certificate.json": b"{}"}) + one)
    with pytest.raises(Corrupt, match="more than one archive"):
        unpack(before, tmp_path)
    single = tmp_path / "single.zip"
    single.write_bytes(one)
    assert unpack(single, tmp_path).read_bytes() == raw
