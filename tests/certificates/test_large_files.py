"""Whatever is given to ``unwalk verify``, it ends with a sentence, and in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unwalk.certificates import document
from unwalk.cli import app
from unwalk.core import transcript
from unwalk.core.errors import Corrupt
from unwalk.core.transcript import DEEPEST, Transcript, read_json
from unwalk.peers.forgetting import certificate_archive
from unwalk.peers.forgetting.certificate_archive import packed, unpack
from unwalk.peers.forgetting.peer_certificate import read_visits

LOCATOR = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)


def told(place: Path) -> str:
    """What ``verify`` says of a file that it does not take, in one sentence."""
    result = CliRunner().invoke(app, ["verify", str(place)])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    lines = " ".join(result.output.split())
    assert lines.startswith("changed: ")
    return lines.removeprefix("changed: ")


@pytest.mark.parametrize("depth", [DEEPEST + 1, 900, 5_000, 200_000])
@pytest.mark.parametrize("bracket", ["[]", ('{"a":', "}")])
def test_json_that_is_nested_deeply_is_refused(tmp_path, depth, bracket):
    opened, closed = bracket
    inside = opened * depth + ("0" if opened != "[" else "") + closed * depth
    with pytest.raises(ValueError, match="deep"):
        read_json(inside)
    place = tmp_path / "certificate.json"
    place.write_text(f'{{"certificate":{document.FORMAT},"claims":{inside}}}\n')
    assert told(place) == "the certificate is not JSON, or nested too deeply."
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f'{{"certificates":{inside}}}\n')
    with pytest.raises(Corrupt, match="line 1 is not"):
        Transcript.read(lines)
    with pytest.raises(Corrupt, match="does not hold signed visits"):
        read_visits(lines)


def test_json_as_deep_as_it_may_be_is_read():
    assert read_json("[" * DEEPEST + "]" * DEEPEST)
    assert read_json("[" * DEEPEST + "0" + "]" * DEEPEST)


def test_files_that_are_longer_than_any_of_ours_are_not_read_whole(tmp_path, monkeypatch):
    place = tmp_path / "certificate.json"
    with place.open("wb") as file:
        file.truncate(1 << 40)  # it takes no room on the disk
    monkeypatch.setattr(document, "LONGEST", 1 << 20)
    assert "has more than 1 MiB" in told(place)
    monkeypatch.setattr(transcript, "LONGEST", 1 << 20)
    with pytest.raises(Corrupt, match="has more than 1 MiB"):
        Transcript.read(place)


def archive(
    files: int, listed: int | None = None, before: bytes = b"", remark: bytes = b""
) -> bytes:
    """An archive whose list names one empty file so many times."""
    whole = packed({"certificate.json": b""})
    start = whole.index(b"PK\1\2")
    item = whole[start : whole.index(b"PK\5\6")]
    count = files if listed is None else listed
    size = len(item) * files
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, start, len(remark))
    return whole[:start] + item * files + before + tail + remark


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (archive(60_000), "lists more than 64 files"),
        (archive(60_000, listed=1), "lists more than 64 files"),
        (archive(60_000, listed=1, before=LOCATOR), "no archive as peers give it out"),
        (archive(60_000, remark=b"PK"), "no archive as peers give it out"),
        (b"PK\5\6", "no whole archive"),
        (b"", "no whole archive"),
    ],
)
def test_archives_with_long_lists_of_files_are_refused_before_these_are_read(tmp_path, made, why):
    place = tmp_path / "given.zip"
    place.write_bytes(made)
    assert why in told(place)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            unpack(place, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_of_an_archive_that_unpacks_to_more_than_it_may_is_refused(tmp_path, monkeypatch):
    place = tmp_path / "given.zip"
    place.write_bytes(packed({"certificate.json": bytes(8 << 20)}))
    assert place.stat().st_size < 1 << 16
    monkeypatch.setitem(certificate_archive.FILES, "certificate.json", 4 << 20)
    assert "certificate.json in the archive is larger than 4 MiB" in told(place)
    with zipfile.ZipFile(place) as whole:
        assert whole.testzip() is None
