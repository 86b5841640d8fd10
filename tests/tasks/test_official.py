"""Official files: found, checked, downloaded whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unwalk import cli
from unwalk.cli import data as cli_data
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.tasks import official
from unwalk.tasks.official import DATASETS, DataSet, OfficialFile

ONE, TWO = b"the first file\n" * 100, bytes(range(256)) * 2000
REAL = {"mnist": "mnist", "heart": "heart_disease", "a9a": "a9a"}


def described(name: str, data: bytes, *urls: str, kind: str = "sha256") -> OfficialFile:
    return OfficialFile(name, len(data), f"{kind}:{hashlib.new(kind, data).hexdigest()}", urls)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two small files as the data set ``small``, and an empty data folder."""
    files = (
        described("small/one", ONE, "http://127.0.0.1:9/one"),
        described("small/two", TWO, "http://127.0.0.1:9/two", kind="md5"),
    )
    monkeypatch.setitem(DATASETS, "small", DataSet("small", "small", files))
    return _data_folder(monkeypatch, tmp_path)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The same two files, published as one archive that also has a python edition."""
    files = (described("small/one", ONE), described("small/two", TWO))
    archive = described("small.tar.gz", tarred(), "http://127.0.0.1:9/small.tar.gz")
    refused = (("small-py",), "is a pickle")
    monkeypatch.setitem(DATASETS, "small", DataSet("small", "small", files, archive, refused))
    return _data_folder(monkeypatch, tmp_path)


def _data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    root = tmp_path / "data"
    monkeypatch.setenv("UNWALK_DATA", str(root))
    monkeypatch.setenv("no_proxy", "*")
    return root


def tarred(**changed: bytes | None) -> bytes:
    """An archive of the two files; ``changed`` puts other bytes in or leaves one out."""
    members = {"small/readme.html": b"read", "small/one": ONE, "small/two": TWO}
    for name, data in changed.items():
        members.pop(f"small/{name}")
        if data is not None:
            members[f"small/{name}"] = data
    return tar_of(members)


def tar_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    # The time in the gzip header would make every archive another one.
    return out.getvalue()[:4] + bytes(4) + out.getvalue()[8:]


class Server(ThreadingHTTPServer):
    """Serves bytes by path, from this machine to itself."""

    files: dict[str, bytes]
    asked: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        data = self.server.files.get(self.path)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.asked = {"/small/one": ONE, "/small/two": TWO}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text and not text.removesuffix(".").endswith(".")


def test_where_the_data_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path / "there"))
    assert official.data_root() == tmp_path / "there"
    monkeypatch.setenv("UNWALK_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert official.data_root() == tmp_path / ".cache" / "unwalk" / "data"
    assert official.path("heart") == official.data_root() / "heart_disease"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path / "file"))
    with pytest.raises(InvalidInput, match="which is not a folder"):
        official.status()


def test_every_file_is_described():
    assert set(DATASETS) == {"mnist", "cifar10", "heart", "a9a"}
    for dataset in DATASETS.values():
        for file in dataset.files:
            kind, _, digest = file.checksum.partition(":")
            assert len(digest) == len(hashlib.new(kind).hexdigest())
            assert file.name.startswith(f"{dataset.folder}/")
            assert file.urls or dataset.archive
            assert all(url.endswith(Path(file.name).name) for url in file.urls)


@pytest.mark.parametrize("task", REAL)
def test_the_laid_out_files_are_complete(task, unpacked):
    root = unpacked(REAL[task])
    assert {s.task: s.state for s in official.status(root)}[task] == "complete"
    names = {Path(file.name).name for file in DATASETS[task].files}
    assert official.read(task, root).keys() == names


def test_status_says_what_is_there(small):
    def state() -> str:
        return next(s.state for s in official.status() if s.task == "small")

    assert state() == "missing"
    (small / "small").mkdir(parents=True)
    (small / "small" / "one").write_bytes(ONE)
    assert state() == "partial"
    (small / "small" / "two").write_bytes(TWO)
    assert state() == "complete"
    (small / "small" / "two").write_bytes(TWO[:-1] + b"x")
    assert state() == "wrong"
    (small / "small" / "one").unlink()
    assert state() == "wrong"


def test_read_refuses_what_is_not_official(small):
    with pytest.raises(InvalidInput, match="task 'small' needs small/one, which is not in") as told:
        official.read("small")
    assert str(small / "small" / "one") in str(told.value)
    assert "unwalk data fetch small" in str(told.value)
    assert one_sentence(str(told.value))
    (small / "small").mkdir(parents=True)
    (small / "small" / "one").write_bytes(ONE[:-1])
    (small / "small" / "two").write_bytes(TWO)
    with pytest.raises(
        Corrupt, match="small/one has 1,499 bytes where the official file has 1,500"
    ):
        official.read("small")
    (small / "small" / "one").write_bytes(ONE[:-1] + b"x")
    with pytest.raises(Corrupt, match=r"one has sha256 .* where the official file has .*; remove"):
        official.read("small")
    (small / "small" / "one").write_bytes(ONE)
    assert official.read("small") == {"one": ONE, "two": TWO}


def test_an_unknown_task_is_named():
    with pytest.raises(InvalidInput, match=r"task is 'minst' .did you mean mnist"):
        official.fetch("minst")


@pytest.mark.parametrize("task", REAL)
def test_the_real_files_are_downloaded(task, unpacked, server, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    files = DATASETS[task].files
    source = unpacked(REAL[task])
    server.files = {f"/{f.name}": (source / f.name).read_bytes() for f in files}
    told: list[tuple[str, int, int]] = []
    written = official.fetch(
        task, root=tmp_path, mirror=server.url, tell=lambda *step: told.append(step)
    )
    assert written == [tmp_path / f.name for f in files]
    assert official.read(task, tmp_path) == official.read(task, source)
    assert everything(tmp_path) == sorted(f.name for f in files)
    for file in files:
        steps = [(done, size) for name, done, size in told if name == file.name]
        assert steps[-1] == (file.size, file.size)
        assert steps == sorted(steps)


def test_only_what_is_missing_or_wrong_is_downloaded(small, server):
    assert len(official.fetch("small", mirror=server.url)) == 2
    assert official.fetch("small", mirror=server.url) == []
    (small / "small" / "two").write_bytes(b"wrong")
    assert official.fetch("small", mirror=server.url + "/") == [small / "small" / "two"]
    assert server.asked == ["/small/one", "/small/two", "/small/two"]
    assert official.read("small") == {"one": ONE, "two": TWO}


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (None, "answered 404 Not Found"),
        (TWO[:1000], "sent what has 1,000 bytes where the official file has 512,000"),
        (TWO[:-1] + b"x", "sent what has md5 .* where the official file has"),
        (TWO + b"x", "sent more than the 512,000 bytes of the official file"),
        (b"", "sent what has 0 bytes"),
    ],
    ids=["404", "truncated", "checksum", "too long", "empty"],
)
def test_a_bad_download_is_told_and_leaves_nothing(small, server, sent, words):
    server.files["/small/two"] = sent
    with pytest.raises(InvalidInput, match=words) as told:
        official.fetch("small", mirror=server.url)
    text = str(told.value)
    assert text.startswith("small/two could not be downloaded (127.0.0.1:")
    assert f"put the file at {small / 'small' / 'two'} yourself" in text
    assert one_sentence(text)
    assert everything(small) == ["small/one"]


def test_a_server_that_breaks_off(small, server, monkeypatch):
    def broken(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(ONE)))
        handler.end_headers()
        handler.wfile.write(ONE[:700])

    monkeypatch.setattr(Handler, "do_GET", broken)
    with pytest.raises(InvalidInput, match="has 700 bytes where the official file has 1,500"):
        official.fetch("small", mirror=server.url)
    assert not small.exists()


def test_without_a_network(small):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        mirror = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(InvalidInput, match="cannot be reached: Connection refused") as told:
            official.fetch("small", mirror=mirror)
    assert f"put the file at {small / 'small' / 'one'} yourself" in str(told.value)
    assert one_sentence(str(told.value))
    assert not small.exists()


def test_the_next_address_is_tried(small, server, monkeypatch):
    one, two = DATASETS["small"].files
    urls = (f"{server.url}/nowhere", f"{server.url}/small/two", f"{server.url}/small/one")
    changed = replace(DATASETS["small"], files=(replace(one, urls=urls), two))
    monkeypatch.setitem(DATASETS, "small", changed)
    (small / "small").mkdir(parents=True)
    (small / "small" / "two").write_bytes(TWO)
    assert official.fetch("small") == [small / "small" / "one"]
    assert server.asked == ["/nowhere", "/small/two", "/small/one"]
    assert official.read("small")["one"] == ONE


def test_a_download_that_is_stopped_leaves_nothing(small, server):
    def stop(name: str, done: int, size: int) -> None:
        assert everything(small), "something is being written"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        official.fetch("small", mirror=server.url, tell=stop)
    assert not small.exists()
    assert len(official.fetch("small", mirror=server.url)) == 2


def test_a_folder_that_cannot_be_written(small, server):
    small.mkdir()
    (small / "small").write_text("a file where the folder should be")
    with pytest.raises(InvalidInput, match=r"small cannot be written: "):
        official.fetch("small", mirror=server.url)
    assert everything(small) == ["small"]


def test_a_mirror_has_to_be_an_address(small):
    with pytest.raises(InvalidInput, match="mirror is 'file:///etc'; allowed: an address"):
        official.fetch("small", mirror="file:///etc")


def test_an_archive_is_downloaded_and_unpacked(packed, server):
    server.files = {"/small.tar.gz": tarred()}
    assert len(official.fetch("small", mirror=server.url)) == 2
    assert everything(packed) == ["small/one", "small/two"]
    assert official.read("small") == {"one": ONE, "two": TWO}
    (packed / "small" / "one").unlink()
    assert official.fetch("small", mirror=server.url) == [packed / "small" / "one"]


def test_an_archive_that_is_there_is_enough(packed):
    packed.mkdir()
    (packed / "small.tar.gz").write_bytes(tarred())
    assert official.read("small") == {"one": ONE, "two": TWO}
    assert everything(packed) == ["small.tar.gz"], "reading writes nothing"
    found = next(s for s in official.status() if s.task == "small")
    assert (found.state, found.place) == ("complete", packed / "small.tar.gz")
    assert len(official.fetch("small", mirror="http://127.0.0.1:9")) == 2
    assert everything(packed) == ["small.tar.gz", "small/one", "small/two"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (tarred()[:-300], "is not a whole archive"),
        (tarred()[:20], "is not a whole archive"),
        (b"no archive", "is not a whole archive"),
        (tarred(one=ONE + b"x"), "small/one in .* has 1,501 bytes"),
        (tarred(one=ONE[:-1] + b"x"), "small/one in .* has sha256"),
        (tarred(two=None), "holds no small/two"),
    ],
    ids=["truncated", "short", "text", "longer", "other", "without"],
)
def test_a_bad_archive_is_told(packed, data, words):
    packed.mkdir()
    (packed / "small.tar.gz").write_bytes(data)
    with pytest.raises(Corrupt, match=words) as told:
        official.read("small")
    assert one_sentence(str(told.value))
    assert next(s.state for s in official.status() if s.task == "small") == "wrong"


def test_a_bad_archive_is_not_unpacked(packed, server):
    server.files = {"/small.tar.gz": tarred()[:-300]}
    with pytest.raises(InvalidInput, match=r"small.tar.gz could not be downloaded") as told:
        official.fetch("small", mirror=server.url)
    assert f"put the file at {packed / 'small.tar.gz'} yourself" in str(told.value)
    assert not packed.exists()


def test_another_edition_is_refused_by_name(packed):
    (packed / "small-py").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="small-py is a pickle; put the binary version") as told:
        official.read("small")
    assert "small.tar.gz" in str(told.value)
    (packed / "small.tar.gz").write_bytes(tar_of({"small-py/one": ONE}))
    with pytest.raises(InvalidInput, match=r"small.tar.gz is a pickle"):
        official.read("small")


def test_the_command_line(small, server):
    def ask(*words: str) -> str:
        result = CliRunner().invoke(cli_data.app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert ask("path") == f"{small}\n"
    assert json.loads(ask("path", "small", "--json")) == {"path": str(small / "small")}
    assert "missing" in ask("status")
    written = json.loads(ask("fetch", "small", "--mirror", server.url, "--json"))
    assert written == {"written": [str(small / "small" / n) for n in ("one", "two")]}
    assert "everything is there already" in ask("fetch", "small")
    entry = next(e for e in json.loads(ask("status", "--json")) if e["task"] == "small")
    assert entry["state"] == "complete"
    assert [f["state"] for f in entry["files"]] == ["complete", "complete"]
    (small / "small" / "one").write_bytes(b"")
    assert "small/one has 0 bytes where the official file has 1,500" in ask("status")
    for words in (("fetch",), ("fetch", "small", "--all")):
        with pytest.raises(InvalidInput, match="name the tasks"):
            ask(*words)
    with pytest.raises(InvalidInput, match=r"task is 'smal' .did you mean small"):
        ask("fetch", "small", "smal")
    assert "data" in CliRunner().invoke(cli.app, ["--help"]).output
