"""A certificate has one closed form; whatever else its issuer signs is refused in a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.certificates.mutations import ODD, SENTENCE, everything, mutants, told, written
from tests.certificates.test_tampering import folder as folder
from unwalk.certificates import read_certificate, verify
from unwalk.certificates.document import FILE, MODEL, misformed
from unwalk.certificates.form import Fields, Listed, Or, Row, wrong
from unwalk.certificates.signing import load_key, sign
from unwalk.certificates.words import chance
from unwalk.core.transcript import Transcript


def fuzzed(folder: Path, out: Path, seeds: range) -> int:
    """How many changed certificates were taken for good: only where nothing was recomputed."""
    shutil.copytree(folder, out)
    key, place = load_key(folder.parent / "key.pem"), out / "certificate.json"
    document = read_certificate(place)
    who = document["signer"]["fingerprint"]
    good = told(place, "--trust", who)
    assert good["problems"] == []
    (bare := out / "bare").mkdir()
    taken = 0
    for seed, where, other in mutants(document, seeds):
        signed = sign(other, key) if seed % 3 else other
        if signed == document or not written(place, signed):
            continue
        assert told(place, "--trust", who)["problems"], (seed, where)
        written(bare / place.name, signed)
        said = told(bare / place.name, "--trust", who)
        if not said["problems"]:
            taken += 1
            assert misformed(signed) is None, (seed, where)
            assert said["verdict"].startswith("intact, signer trusted, numbers not recomputed")
            assert all(text.startswith("the signature of") for text in said["checked"])
    return taken


def test_a_changed_certificate_of_a_run_never_ends_in_a_traceback(folder, tmp_path):
    assert fuzzed(folder, tmp_path / "run", range(60)) > 0


@pytest.mark.soak
def test_many_changed_certificates_of_a_run_never_end_in_a_traceback(folder, tmp_path):
    assert fuzzed(folder, tmp_path / "run", range(1000, 6000)) > 100


def taken(folder: Path, each: int, every: int) -> list[str]:
    """The places whose change is not noticed, when the issuer signs each ``every``-th change."""
    key, document = load_key(folder.parent / "key.pem"), read_certificate(folder / FILE)
    transcript = Transcript.read(folder / "transcript.jsonl")
    model = (folder / MODEL).read_bytes()
    assert verify(document, transcript, model=model).problems == ()
    found = []
    for number, (where, other) in enumerate(everything(document, each)):
        if number % every:
            continue
        signed = sign(other, key)
        verdict = verify(signed, transcript, model=model)
        if signed != document and not verdict.problems:
            found.append(where)
    return found


@pytest.mark.parametrize("each_every", [(1, 5), pytest.param((9, 1), marks=pytest.mark.soak)])
def test_no_place_of_a_runs_certificate_can_be_changed(folder, each_every):
    assert taken(folder, *each_every) == []


def closed(shape: Any) -> bool:
    """Whether every object in a form has all its keys named."""
    match shape:
        case Fields():
            return all(map(closed, [*shape.always.values(), *(shape.maybe or {}).values()]))
        case Listed():
            return closed(shape.entry)
        case Or():
            return closed(shape.shape)
        case Row():
            return all(map(closed, shape.entries))
    return not shape.holds({SENTENCE: SENTENCE}) or shape.allowed in ("a network file", "votes")


def test_every_object_in_the_form_is_closed(folder):
    from unwalk.certificates.document import FORM

    document = read_certificate(folder / "certificate.json")
    assert misformed(document) is None
    balls = FORM.always["done"].always["balls"]  # type: ignore[union-attr]
    assert closed(FORM)
    assert balls.holds({"origin": 1})  # type: ignore[union-attr]
    assert not balls.holds({"origin": True})  # type: ignore[union-attr]
    assert wrong({**document, "more": 1}, FORM) == "more does not belong there"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"grade": "exact"}, "is exact with epsilon"),
        ({"grade": "refused"}, "has grade refused with epsilon"),
        ({"epsilon": None}, "with epsilon and delta"),
        ({"code": "gone"}, "with code gone"),
    ],
)
def test_a_claim_agrees_with_itself(folder, changes, problem):
    document = json.loads(json.dumps(read_certificate(folder / "certificate.json")))
    document["claims"][0] |= changes
    assert problem in str(misformed(document))
    assert verify(document, None).exit_code == 1


def test_words_of_the_issuer_that_were_not_recomputed_are_told_as_that(folder, tmp_path):
    """Without the transcript a claim's reason is any text that the issuer chose."""
    key = load_key(folder.parent / "key.pem")
    document = json.loads(json.dumps(read_certificate(folder / "certificate.json")))
    document["claims"][0]["reason"] = SENTENCE
    signed = sign(document, key)
    verdict = verify(signed, None, trust=signed["signer"]["fingerprint"])
    assert verdict.problems == ()
    assert not any(SENTENCE in text for text in verdict.notes)
    assert any(SENTENCE in text for text in verdict.stated)
    assert not any(SENTENCE in text for text in verdict.to_json(signed)["words"])
    transcript = Transcript.read(folder / "transcript.jsonl")
    whole = read_certificate(folder / "certificate.json")
    assert verify(whole, transcript).stated == ()


def test_odd_values_are_nowhere_in_the_form():
    assert all(wrong({"a": odd}, Fields({"a": Row(())})) for odd in ODD if odd != [])


def test_a_tiny_chance_has_words():
    assert chance(5e-324) == "less than 1 in 1e+30"
