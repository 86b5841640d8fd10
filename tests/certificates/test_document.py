"""The certificate: a function of its transcript, signed, and found out when anything is changed."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runs.small import BLOBS, small_run
from unwalk.certificates import read_certificate, verify
from unwalk.certificates.document import certificate_of, model_of, parse_certificate, text_of
from unwalk.certificates.signing import load_key, make_key, sign
from unwalk.certificates.words import in_words
from unwalk.cli import app
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.transcript import Transcript

FIELDS = {
    "certificate",
    "unwalk",
    "run",
    "task",
    "method",
    "claims",
    "threat_model",
    "certifier",
    "public",
    "parameters",
    "done",
    "noise",
    "redraws",
    "transcript",
    "model",
    "not_shown",
    "signer",
    "signature",
}
CLAIM = {"code", "grade", "epsilon", "delta", "accountant", "assumptions", "reason"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sealed run."""
    out = tmp_path_factory.mktemp("runs") / "sealed"
    changes = {
        "preset": "certified",
        "task": "digits-flat",
        "train.hops": 9,
        "peers": 4,
        "unlearn.hops": 3,
    }
    small_run(changes, compare=[], out=out)  # type: ignore[arg-type]
    return out


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "signing.pem"
    make_key(path)
    return path


def unwalk(*words: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(w) for w in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def test_every_unlearning_run_leaves_one_with_these_fields(folder):
    document = read_certificate(folder / "certificate.json")
    assert set(document) == FIELDS
    (claim,) = document["claims"]
    assert set(claim) == CLAIM
    assert claim["grade"] == "certified"
    assert claim["epsilon"] == pytest.approx(1.0, rel=1e-9)
    assert document["public"] == {"unlearner": 0, "forgotten": 1, "request_after_hop": 9}
    assert document["noise"]["origin"] == "simulation"
    assert document["signer"]["algorithm"] == "none"
    assert document["transcript"]["hops"] == 12


def test_it_is_made_from_the_transcript_and_the_model_alone(folder):
    transcript = Transcript.read(folder / "transcript.jsonl")
    text = (folder / "certificate.json").read_text()
    raw = (folder / "model.safetensors").read_bytes()
    assert text_of(certificate_of(transcript, model_of(raw))) == text
    bare = certificate_of(transcript)
    assert text_of({**bare, "model": model_of(raw)}) == text


def test_unsigned_and_untrusted_are_intact_with_exit_3(folder):
    code, output = unwalk("verify", folder / "certificate.json")
    assert code == 3
    assert "intact, not signed, signer unknown" in output
    assert "not shown: that a peer did what it logged" in output
    assert "every number was recomputed" in output


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, (*path, k))]
    if isinstance(value, list):
        return [leaf for k, v in enumerate(value) for leaf in leaves(v, (*path, k))]
    return [path]


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1.0 + 1e-15) if value * (1.0 + 1e-15) != value else value * 1.5 or 1.0
    return "x" if value is None else f"{value}."


def test_any_changed_field_is_found_and_named(folder):
    document = read_certificate(folder / "certificate.json")
    transcript = Transcript.read(folder / "transcript.jsonl")
    assert verify(document, transcript).problems == ()
    paths = leaves(document)
    assert len(paths) > 40
    for path in paths:
        other = json.loads(json.dumps(document))
        place = other
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = changed(place[path[-1]])
        verdict = verify(other, transcript)
        assert verdict.exit_code == 1, path
        named = "signer" if path[0] == "signature" else str(path[0])
        assert any(named in problem for problem in verdict.problems), (path, verdict.problems)
    for name in document:
        less = {k: v for k, v in document.items() if k != name}
        assert verify(less, transcript).exit_code == 1, name
    assert verify({**document, "more": 1}, transcript).problems == ("more does not belong there",)


def test_a_transcript_that_was_chained_anew_is_another_one(folder):
    transcript = Transcript.read(folder / "transcript.jsonl")
    forged = Transcript({**transcript.header, "forget": 2})
    for hop in transcript.hops:
        forged.add(hop)
    verdict = verify(read_certificate(folder / "certificate.json"), forged)
    assert any(p.startswith("public.forgotten") for p in verdict.problems)
    assert any(p.startswith("transcript.chain") for p in verdict.problems)
    assert any(p.startswith("claims[0].epsilon") for p in verdict.problems)


@pytest.mark.parametrize(
    "bytes_of",
    [
        lambda d: json.dumps(d).encode() + b"\n",
        lambda d: text_of(d).encode() + b"\n",
        lambda d: text_of(d).encode().rstrip(),
        lambda d: text_of(d).encode().replace(b'"task":', b'"task":"x","task":'),
        lambda d: text_of(d).encode().replace(b"1e-05", b"0.00001", 1),
        lambda d: text_of(d).encode().replace(b"certified", b"certif\\u0069ed", 1),
        lambda d: b"[]\n",
        lambda d: b"{",
    ],
    ids=["spaces", "two line ends", "none", "twice", "number", "escape", "a list", "no JSON"],
)
def test_bytes_that_are_not_canonical_are_rejected(folder, bytes_of):
    document = read_certificate(folder / "certificate.json")
    with pytest.raises(Corrupt):
        parse_certificate(bytes_of(document))
    assert parse_certificate(text_of(document).encode()) == document


def test_signing_and_trust(folder, key, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("certificate.json", "transcript.jsonl", "model.safetensors"):
        (run / name).write_bytes((folder / name).read_bytes())
    code, output = unwalk("sign", run, "--key", key)
    assert (code, "signed" in output) == (0, True)
    document = read_certificate(run / "certificate.json")
    who = document["signer"]["fingerprint"]
    assert unwalk("verify", run)[0] == 3
    assert "intact, signer unknown" in unwalk("verify", run)[1]
    assert unwalk("verify", run, "--trust", "0" * 64)[0] == 3
    code, output = unwalk("verify", run, "--trust", who)
    assert code == 0
    assert "intact, signer trusted" in output
    transcript = Transcript.read(run / "transcript.jsonl")
    for path in leaves(document):
        other = json.loads(json.dumps(document))
        place = other
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = changed(place[path[-1]])
        assert verify(other, transcript, trust=who).exit_code == 1, path
        if path[0] != "signature":
            assert verify(other, None, trust=who).exit_code == 1, path
    raw = (run / "model.safetensors").read_bytes()
    assert verify(document, transcript, model=raw, trust=who).exit_code == 0
    assert verify(document, transcript, trust=who).exit_code == 3  # model not checked
    assert verify(document, None, model=raw, trust=who).exit_code == 3  # numbers not recomputed


def test_a_changed_certificate_is_not_signed(folder, key, tmp_path):
    document = read_certificate(folder / "certificate.json")
    (tmp_path / "certificate.json").write_text(text_of({**document, "task": "other"}))
    (tmp_path / "transcript.jsonl").write_bytes((folder / "transcript.jsonl").read_bytes())
    with pytest.raises(Corrupt, match="task is 'other'"):
        unwalk("sign", tmp_path, "--key", key)


def authority(tmp_path: Path, public: Any, *, name: str = "ca") -> tuple[Path, str]:
    """A CA's certificate and the one it issues for a key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509.oid import NameOID

    ca, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def issue(subject: str, of: Any, is_ca: bool) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(issuer)
            .public_key(of)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(ca, None)
        )

    pem = serialization.Encoding.PEM
    path = tmp_path / f"{name}.pem"
    path.write_bytes(issue(name, ca.public_key(), True).public_bytes(pem))
    return path, issue("peer", public, False).public_bytes(pem).decode()


def test_a_signer_whom_a_ca_names_is_trusted(folder, key, tmp_path):
    private = load_key(key)
    document = read_certificate(folder / "certificate.json")
    transcript = Transcript.read(folder / "transcript.jsonl")
    ca, chain = authority(tmp_path, private.public_key())
    other, _ = authority(tmp_path, private.public_key(), name="other")
    signed = sign(document, private, chain)
    now = datetime.now(UTC)
    raw = (folder / "model.safetensors").read_bytes()
    assert verify(signed, transcript, model=raw, trust=str(ca), now=now).exit_code == 0
    assert verify(signed, transcript, model=raw, trust=str(other), now=now).exit_code == 3
    late = now + timedelta(days=9)
    assert verify(signed, transcript, model=raw, trust=str(ca), now=late).exit_code == 3
    bare = sign(document, private)
    assert verify(bare, transcript, model=raw, trust=str(ca), now=now).exit_code == 3
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    with pytest.raises(InvalidInput, match="another key"):
        sign(document, Ed25519PrivateKey.generate(), chain)
    with pytest.raises(InvalidInput, match="--trust"):
        verify(signed, transcript, trust="nobody", now=now)


@pytest.mark.skipif(os.name != "posix", reason="no such modes here")
def test_keys_and_secrets_are_their_owners_alone(key, tmp_path):
    assert key.stat().st_mode & 0o777 == 0o600
    open_key = tmp_path / "key.pem"
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(InvalidInput, match="mode 0644"):
        load_key(open_key)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o640)
    with pytest.raises(InvalidInput, match="mode 0640"):
        small_run(BLOBS, noise__source="secret", noise__secret_file=str(secret))
    with pytest.raises(InvalidInput, match="File exists"):
        make_key(key)


def test_without_the_cryptography_package_it_stays_unsigned(folder, key, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    code, output = unwalk("verify", folder)
    assert (code, "not signed" in output) == (3, True)
    with pytest.raises(InvalidInput, match="cryptography package"):
        unwalk("sign", folder, "--key", key)


def test_words_for_people(folder):
    words = in_words(read_certificate(folder / "certificate.json"))
    assert "forget 1 record" in words["asked"][0]
    assert any("added random noise once" in text for text in words["done"])
    assert "this is a rehearsal" in words["promised"][0]
    assert "factor of 2.72 at most" in words["promised"][1]
    assert "1 in 100,000" in words["promised"][1]
    assert any("rehearsal" in text for text in words["not_promised"])
    for texts in words.values():
        assert all(text.endswith((".", "this:")) for text in texts)
        assert not any("Renyi" in text for text in texts)
