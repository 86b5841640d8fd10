"""Every field of a certificate and every field, digit and line of a transcript, changed in turn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runs.small import small_run
from unwalk.certificates import read_certificate, verify
from unwalk.certificates.document import certificate_of, text_of
from unwalk.certificates.signing import load_key, make_key, sign
from unwalk.cli import app
from unwalk.core.errors import Corrupt
from unwalk.core.transcript import Hop, Transcript

SETTINGS: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "train.hops": 5,
    "peers": 3,
    "unlearn.hops": 3,
    "seal.visits": 2,
    "unlearn.p": 0.7,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed run with LIGHTWEIGHT visits, signed."""
    place = tmp_path_factory.mktemp("runs")
    make_key(place / "key.pem")
    out = place / "sealed"
    small_run(SETTINGS, compare=[], certificate__key=str(place / "key.pem"), out=out)
    return out


@pytest.fixture(scope="module")
def who(folder: Path) -> str:
    return str(read_certificate(folder / "certificate.json")["signer"]["fingerprint"])


def unwalk(*words: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(w) for w in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def others(value: Any) -> Iterator[Any]:
    """Values close to ``value``: other ones, and the same under another type."""
    match value:
        case bool():
            yield from (not value, int(value), None)
        case int():
            yield from (value + 1, -value - 1, float(value), str(value), None)
        case float():
            near = value * (1.0 + 2.0**-52) if value else 5e-324
            yield from (near, -value - 1.0, str(value), None)
        case str():
            yield from (value + " ", value[:-1] + "~", value.swapcase() + "~", None)
        case None:
            yield from (0, False, "", "none")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place of a JSON tree and what stands there."""
    yield path, value
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))


def tampered(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document with one leaf changed, one member gone, added, doubled or moved."""

    def put(path: tuple[Any, ...], change: Any) -> dict[str, Any]:
        copy = json.loads(json.dumps(document))
        place = copy
        for step in path[:-1]:
            place = place[step]
        change(place, path[-1] if path else None)
        return dict(copy)

    for path, value in places(document):
        name = ".".join(map(str, path))
        if path:
            yield f"{name} gone", put(path, lambda place, key: place.pop(key))
        if isinstance(value, dict):
            grown = put((*path, "more"), lambda place, key: place.__setitem__(key, 1))
            yield f"{name} grown", grown
        elif isinstance(value, list):
            yield f"{name} longer", put(path, lambda place, key: place[key].append(1))
            if len(value) > 1:
                yield f"{name} turned", put(path, lambda place, key: place[key].reverse())
        else:
            for other in others(value):
                yield (
                    f"{name} = {other!r}",
                    put(path, lambda place, key, new=other: place.__setitem__(key, new)),
                )


def test_every_change_of_a_certificate_is_found_and_named(folder, who):
    document = read_certificate(folder / "certificate.json")
    transcript = Transcript.read(folder / "transcript.jsonl")
    raw = (folder / "model.safetensors").read_bytes()
    assert verify(document, transcript, model=raw, trust=who).exit_code == 0
    count = 0
    for what, other in tampered(document):
        count += 1
        verdict = verify(other, transcript, model=raw, trust=who)
        assert verdict.exit_code == 1, what
        top = what.split(".")[0].split(" ")[0]
        told = " ".join(verdict.problems)
        assert top in told or "signature" in told, (what, told)
        if top not in ("signature", "signer", "more"):
            assert any(text.startswith(top) for text in verdict.problems), (what, told)
    assert count > 250


def test_a_changed_certificate_that_is_signed_again_names_the_field_still(folder, who, tmp_path):
    """Without the owner's key: the numbers do not fit the transcript, nor the key the name."""
    make_key(tmp_path / "key.pem")
    key = load_key(tmp_path / "key.pem")
    document = read_certificate(folder / "certificate.json")
    transcript = Transcript.read(folder / "transcript.jsonl")
    raw = (folder / "model.safetensors").read_bytes()
    assert verify(sign(document, key), transcript, model=raw, trust=who).exit_code == 3
    document["claims"][0]["epsilon"] = 0.5
    verdict = verify(sign(document, key), transcript, trust=who)
    assert verdict.exit_code == 1
    assert verdict.problems[0].startswith("claims[0].epsilon is 0.5")


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.upper(),
        lambda s: " " + s,
        lambda s: s + "\t",
        lambda s: s[:64] + " " + s[64:],
        lambda s: s[:-2],
        lambda s: "0" * 128,
    ],
    ids=["capitals", "space", "tab", "gap", "shorter", "zeros"],
)
def test_a_signature_has_one_text(folder, who, change, tmp_path):
    document = read_certificate(folder / "certificate.json")
    other = {**document, "signature": change(document["signature"])}
    place = tmp_path / "certificate.json"
    place.write_text(text_of(other))
    transcript = folder / "transcript.jsonl"
    code, output = unwalk("verify", place, "--transcript", transcript, "--trust", who)
    assert (code, "signature" in output) == (1, True)


def test_every_byte_of_a_transcript_counts(folder, tmp_path):
    raw = (folder / "transcript.jsonl").read_bytes()
    starts = [0, *(i + 1 for i, byte in enumerate(raw) if byte == 10)]
    path = tmp_path / "transcript.jsonl"
    tried = 0
    for place, byte in enumerate(raw):
        if byte == 10:
            continue
        line = sum(start <= place for start in starts)
        other = bytearray(raw)
        other[place] = byte ^ 1
        lines = bytes(other).decode("latin-1").split("\n")[:-1]
        tried += 1
        with pytest.raises(Corrupt, match=f"transcript line {line} "):
            Transcript.parse(lines)
        if tried % 397 == 0:
            path.write_bytes(bytes(other))
            code, output = unwalk("verify", folder / "certificate.json", "--transcript", path)
            assert (code, f"transcript line {line} " in output) == (1, True)
    assert tried > 4000


def rechained(header: dict[str, Any], hops: list[dict[str, Any]]) -> Transcript:
    made = Transcript(header)
    for hop in hops:
        made.add(Hop.from_json(hop))
    return made


def test_a_transcript_that_was_changed_and_chained_anew_is_found(folder):
    """The forger computes the chain himself; every field of every hop and of the header."""
    document = read_certificate(folder / "certificate.json")
    transcript = Transcript.read(folder / "transcript.jsonl")
    hops = [hop.to_json() for hop in transcript.hops]
    hops = json.loads(json.dumps(hops))
    count = 0
    whole = {"header": dict(transcript.header), "hops": hops}
    for what, other in tampered(whole):
        if what.startswith(("header gone", "hops gone", " grown", "hops grown")):
            continue
        count += 1
        try:
            forged = rechained(other["header"], other["hops"])
        except (Corrupt, AttributeError, TypeError, ValueError):
            continue
        if forged.text() == transcript.text():
            assert "grown" in what, what  # a field that no hop has is never written
            continue
        verdict = verify(document, forged)
        assert verdict.exit_code == 1, what
        assert any(
            text.startswith("transcript.chain") or "does not give" in text
            for text in verdict.problems
        ), what
    assert count > 900


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw.replace(b"\n", b"\r\n"), "transcript line 1"),
        (lambda raw: raw[:-1], "one line break"),
        (lambda raw: raw + b"\n", "transcript line"),
        (lambda raw: b"", "empty"),
        (lambda raw: raw.replace(b'"delta":1e-05', b'"delta":NaN', 1), "transcript line 1"),
        (lambda raw: raw.replace(b'"hop":1,', b'"hop":1,"hop":1,', 1), "transcript line 2"),
        (lambda raw: raw.replace(b'"hop":1,', b'"hop":1, ', 1), "transcript line 2"),
        (lambda raw: b"\xff" + raw, "not text"),
    ],
    ids=["CRLF", "no end", "two ends", "empty", "NaN", "twice", "space", "bytes"],
)
def test_a_transcript_has_one_text(folder, tmp_path, change, words):
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(change((folder / "transcript.jsonl").read_bytes()))
    code, output = unwalk("verify", folder / "certificate.json", "--transcript", path)
    assert (code, words in output) == (1, True), output


def test_a_transcript_left_out_repeated_or_moved_by_a_line(folder):
    document = read_certificate(folder / "certificate.json")
    lines = (folder / "transcript.jsonl").read_text().splitlines()
    for place in range(1, len(lines)):
        for other in (
            lines[:place] + lines[place + 1 :],
            [*lines[: place + 1], *lines[place:]],
            [*lines[:place], *lines[place + 1 : place + 2], lines[place], *lines[place + 2 :]],
        ):
            if other == lines:
                continue
            if other != lines[: len(other)]:
                with pytest.raises(Corrupt, match="hash chain"):
                    Transcript.parse(other)
            else:  # an end that was cut off leaves a good chain
                assert verify(document, Transcript.parse(other)).exit_code == 1


def test_replay_finds_a_log_that_is_consistent_and_untrue(folder, who, tmp_path):
    """A peer that lies in its log, chains and certifies it: only doing it again shows that."""
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    transcript = Transcript.read(run / "transcript.jsonl")
    hops = json.loads(json.dumps([hop.to_json() for hop in transcript.hops]))
    for hop in hops:
        for event in hop["events"]:
            if event["kind"] == "gaussian-noise":
                event["std"] *= 3.0
    forged = rechained(dict(transcript.header), hops)
    document = read_certificate(run / "certificate.json")
    (run / "transcript.jsonl").write_text(forged.text())
    (run / "certificate.json").write_text(text_of(certificate_of(forged, document["model"])))
    code, output = unwalk("verify", run)
    assert (code, "intact" in output) == (3, True)
    code, output = unwalk("verify", "--replay", run)
    assert (code, "differs in events when done again" in output) == (1, True)
    assert unwalk("verify", "--replay", folder, "--trust", who)[0] == 0
