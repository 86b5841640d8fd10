"""A certificate is for one model: its file is bound, checked, and missed loudly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runs.small import small_run
from unwalk.certificates import read_certificate, verify
from unwalk.certificates.document import certificate_of, text_of
from unwalk.certificates.signing import load_key, make_key, sign
from unwalk.cli import app
from unwalk.core.transcript import Transcript

SETTINGS: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "train.hops": 5,
    "peers": 3,
    "unlearn.hops": 2,
}
MODEL = "model.safetensors"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``signed``, a run, and ``bare``, the same without its noise."""
    folder = tmp_path_factory.mktemp("runs")
    make_key(folder / "key.pem")
    changes = {**SETTINGS, "certificate.key": str(folder / "key.pem")}
    small_run(changes, compare=[], out=folder / "signed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unwalk.core.noise.add_rounded", lambda values, std, grid, bits: values)
        small_run(changes, compare=[], out=folder / "bare")
    return folder


@pytest.fixture
def out(place: Path, tmp_path: Path) -> Path:
    """A copy of the signed run."""
    return Path(shutil.copytree(place / "signed", tmp_path / "run"))


def told(*words: Any) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["verify", *map(str, words), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.output)


def signer(out: Path) -> str:
    return str(read_certificate(out / "certificate.json")["signer"]["fingerprint"])


def test_the_model_from_before_the_noise_is_found(place, out):
    """Row 5 of issue 08."""
    code, said = told(out, "--trust", signer(out))
    assert (code, said["verdict"], said["model"]) == (0, "intact, signer trusted", "checked")
    shutil.copy(place / "bare" / MODEL, out / MODEL)
    code, said = told(out, "--trust", signer(out))
    assert (code, said["verdict"], said["model"]) == (1, "changed", "differs")
    assert said["problems"][0].startswith("model.sha256 is ")
    assert "it is another model" in said["problems"][0]


def test_every_byte_of_the_model_counts(out):
    raw = bytearray((out / MODEL).read_bytes())
    document = read_certificate(out / "certificate.json")
    transcript = Transcript.read(out / "transcript.jsonl")
    assert verify(document, transcript, model=bytes(raw)).problems == ()
    for number in range(0, len(raw), 97):
        raw[number] ^= 1
        assert verify(document, transcript, model=bytes(raw)).exit_code == 1
        raw[number] ^= 1
    assert verify(document, transcript, model=bytes(raw[:-1])).exit_code == 1


def test_a_model_that_is_not_there_is_missed_loudly(out, tmp_path):
    moved = (out / MODEL).rename(tmp_path / "elsewhere")
    who = signer(out)
    code, said = told(out, "--trust", who)
    assert (code, said["model"]) == (3, "not checked")
    assert said["verdict"] == "intact, signer trusted, MODEL NOT CHECKED"
    assert any("MODEL" in note and "--model FILE" in note for note in said["not_checked"])
    assert not any("MODEL" in note for note in said["checked"])
    shown = CliRunner().invoke(app, ["verify", str(out)]).output
    assert "MODEL NOT CHECKED" in shown.splitlines()[0]
    assert "\nnot checked: the MODEL" in shown
    code, said = told(out, "--trust", who, "--model", moved)
    assert (code, said["verdict"], said["model"]) == (0, "intact, signer trusted", "checked")
    result = CliRunner().invoke(app, ["verify", str(out), "--model", str(tmp_path / "nothing")])
    assert "nothing cannot be read" in str(result.exception)


def test_a_certificate_that_binds_no_model_says_so(place, out):
    """Signed by its owner: nobody else can take the binding out."""
    transcript = Transcript.read(out / "transcript.jsonl")
    bare = sign(certificate_of(transcript), load_key(place / "key.pem"))
    (out / "certificate.json").write_text(text_of(bare))
    code, said = told(out, "--trust", signer(out))
    assert (code, said["model"]) == (3, "not bound")
    assert said["verdict"] == "intact, signer trusted, NO MODEL BOUND"
    assert any(note.startswith("the MODEL") for note in said["not_checked"])


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"file": MODEL},
        {"file": "other", "sha256": "0" * 64},
        {"file": MODEL, "sha256": "0" * 63},
        {"file": MODEL, "sha256": "A" * 64},
        {"file": MODEL, "sha256": 0},
        {"file": MODEL, "sha256": "0" * 64, "more": 1},
        "0" * 64,
        [],
        False,
    ],
)
def test_what_is_said_of_the_model_has_one_shape(place, out, said):
    key = load_key(place / "key.pem")
    document = sign({**read_certificate(out / "certificate.json"), "model": said}, key)
    verdict = verify(document, Transcript.read(out / "transcript.jsonl"), trust=signer(out))
    assert verdict.exit_code == 1
    assert verdict.problems[0].startswith("model")
    assert any(text.startswith("model is ") for text in verdict.problems)


def test_a_run_with_another_model_is_not_signed(place, out):
    shutil.copy(place / "bare" / MODEL, out / MODEL)
    result = CliRunner().invoke(app, ["sign", str(out), "--key", str(place / "key.pem")])
    assert "is not signed: model.sha256 is" in str(result.exception)
