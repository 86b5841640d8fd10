"""Official files of published data sets: where they are, checksums, and downloads.

Everything is in one data folder: ``UNWALK_DATA``, or ``~/.cache/unwalk/data``.  A file counts only
if its size and checksum are the official ones, which is checked at every load.  A download gets its
name once it is complete and correct; an error is one sentence and leaves no file behind.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.validation import check_choice

Tell = Callable[[str, int, int], None]
"""Progress of a download: (file, bytes done, bytes in all)."""

CHUNK = 1 << 18
TIMEOUT = 30.0


@dataclass(frozen=True)
class OfficialFile:
    """One file: its name in the data folder, its bytes, and where it is published."""

    name: str
    size: int
    checksum: str
    urls: tuple[str, ...] = ()

    def hasher(self) -> hashlib._Hash:
        """A fresh hash of the kind that the checksum names."""
        return hashlib.new(self.checksum.partition(":")[0], usedforsecurity=False)

    def problem(self, size: int, digest: str) -> str | None:
        """What is wrong with bytes of this size and digest; None when they are the official ones.

        >>> OfficialFile("a", 3, "md5:0123").problem(2, "0123")
        'has 2 bytes where the official file has 3'
        """
        if size != self.size:
            return f"has {size:,} bytes where the official file has {self.size:,}"
        kind, _, wanted = self.checksum.partition(":")
        if digest != wanted:
            return f"has {kind} {digest} where the official file has {wanted}"
        return None


@dataclass(frozen=True)
class DataSet:
    """The files of one task; ``archive`` holds them all, where they are published as one.

    ``refused`` names another edition of the same data that is not read, and says why.
    """

    task: str
    folder: str
    files: tuple[OfficialFile, ...]
    archive: OfficialFile | None = None
    refused: tuple[tuple[str, ...], str] = ((), "")


@dataclass(frozen=True)
class FileStatus:
    """One file as it is found: ``complete``, ``missing`` or ``wrong``, and then why."""

    name: str
    state: str
    problem: str | None = None


@dataclass(frozen=True)
class Status:
    """A task's files as they are found: ``complete``, ``missing``, ``partial`` or ``wrong``."""

    task: str
    state: str
    place: Path
    files: tuple[FileStatus, ...]


_CIFAR = "cifar-10-batches-bin"
_BINARY = "cifar-10-binary.tar.gz"


def _files(folder: str, sums: str, *urls: str) -> tuple[OfficialFile, ...]:
    """Files of one folder, one per line: checksum (sha256, or md5 if short), size and name."""
    rows = [line.split() for line in sums.split("\n") if line]
    return tuple(
        OfficialFile(
            f"{folder}/{name}",
            int(size),
            f"{'md5' if len(digest) == 32 else 'sha256'}:{digest}",
            tuple(url + name for url in urls),
        )
        for digest, size, name in rows
    )


# The sums of MNIST, heart disease and a9a were taken from the published files; the md5 sums of
# CIFAR-10 are those that go with the published archive.
_MNIST_SUMS = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 9912422 train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c 28881 train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 1648877 t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 4542 t10k-labels-idx1-ubyte.gz
"""
_CIFAR_SUMS = """
5dd7e06a14cb22eb9f671a540d1b7c25 30730000 data_batch_1.bin
5ea93a67294ea407fff1d09f752e9692 30730000 data_batch_2.bin
942cd6a4bcdd0dd3c604fbe906cb4421 30730000 data_batch_3.bin
ae636b3ba5c66a11e91e8cb52e771fcb 30730000 data_batch_4.bin
53f37980c15c3d472c316c40844f3f0d 30730000 data_batch_5.bin
803d5f7f4d78ea53de84dbe85f74fb6d 30730000 test_batch.bin
"""
_HEART_SUMS = """
a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8 18461 processed.cleveland.data
d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796 10263 processed.hungarian.data
834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314 4109 processed.switzerland.data
e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f 6737 processed.va.data
"""
_A9A_SUMS = """
f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906 2329875 a9a
1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9 1164628 a9a.t
"""

DATASETS: Mapping[str, DataSet] = {
    "mnist": DataSet(
        "mnist",
        "mnist",
        _files(
            "mnist",
            _MNIST_SUMS,
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    "cifar10": DataSet(
        "cifar10",
        _CIFAR,
        _files(_CIFAR, _CIFAR_SUMS),
        OfficialFile(
            _BINARY,
            170052171,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
            (f"https://www.cs.toronto.edu/~kriz/{_BINARY}",),
        ),
        (
            ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
            "is the python version of CIFAR-10, a pickle, which is not read",
        ),
    ),
    "heart": DataSet(
        "heart",
        "heart_disease",
        _files(
            "heart_disease",
            _HEART_SUMS,
            "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        ),
    ),
    "a9a": DataSet(
        "a9a",
        "a9a",
        _files("a9a", _A9A_SUMS, "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"),
    ),
}


def data_root() -> Path:
    """The data folder; it need not exist yet."""
    given = os.environ.get("UNWALK_DATA")
    root = Path(given or Path("~") / ".cache" / "unwalk" / "data").expanduser().absolute()
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"UNWALK_DATA is {str(root)!r}, which is not a folder.")
    return root


def path(task: str | None = None, root: Path | None = None) -> Path:
    """The data folder, or the folder in it where a task's files belong."""
    root = data_root() if root is None else root
    return root if task is None else root / _dataset(task).folder


def status(root: Path | None = None) -> list[Status]:
    """The status of every task's files."""
    root = data_root() if root is None else root
    return [_status(dataset, root) for dataset in DATASETS.values()]


def read(task: str, root: Path | None = None) -> dict[str, bytes]:
    """The bytes of a task's files under their own names, every one checked.

    A missing file is refused with a sentence that says how to get it and where to put it.
    """
    dataset = _dataset(task)
    root = data_root() if root is None else root
    missing = next((f for f in dataset.files if not (root / f.name).is_file()), None)
    if missing is None:
        return {Path(f.name).name: _checked(root / f.name, f, task) for f in dataset.files}
    archive = dataset.archive
    if archive is not None and (root / archive.name).is_file():
        return dict(_members(dataset, root / archive.name))
    _refuse_other_edition(dataset, root)
    wanted = archive or missing
    raise InvalidInput(
        f"task {task!r} needs {wanted.name}, which is not in the data folder {root}; run 'unwalk "
        f"data fetch {task}', or put the file at {root / wanted.name} (published at "
        f"{wanted.urls[0]})."
    )


def fetch(
    task: str, *, root: Path | None = None, mirror: str | None = None, tell: Tell | None = None
) -> list[Path]:
    """Get what is missing or wrong of a task's files; returns the files that were written.

    ``mirror`` is an address that serves the data folder's files under their names there; it takes
    the place of the publishers' own.  An archive that is already there is unpacked.
    """
    dataset = _dataset(task)
    root = data_root() if root is None else root
    if mirror is not None and urlsplit(mirror).scheme not in ("http", "https"):
        raise InvalidInput(f"mirror is {mirror!r}; allowed: an address with http:// or https://.")
    wanted = [f for f in dataset.files if _look(root / f.name, f).state != "complete"]
    if dataset.archive is None:
        for file in wanted:
            with _appearing(root / file.name) as out:
                _download(file, root, mirror, out, tell)
    elif wanted:
        _unpack(dataset, dataset.archive, wanted, root, mirror, tell)
    return [root / file.name for file in wanted]


def _dataset(task: str) -> DataSet:
    return DATASETS[check_choice("task", task, DATASETS)]


def _look(place: Path, file: OfficialFile) -> FileStatus:
    try:
        with place.open("rb") as stream:
            size, digest = os.fstat(stream.fileno()).st_size, ""
            if size == file.size:  # of another size it is wrong, whatever it holds
                digest = hashlib.file_digest(stream, file.hasher).hexdigest()
    except FileNotFoundError:
        return FileStatus(file.name, "missing")
    except OSError as error:
        return FileStatus(file.name, "wrong", f"cannot be read ({error.strerror})")
    problem = file.problem(size, digest)
    return FileStatus(file.name, "complete" if problem is None else "wrong", problem)


def _status(dataset: DataSet, root: Path) -> Status:
    files = tuple(_look(root / f.name, f) for f in dataset.files)
    place = root / dataset.folder
    states = {f.state for f in files}
    if states != {"complete"} and dataset.archive is not None:
        archive = _look(root / dataset.archive.name, dataset.archive)
        if archive.state != "missing":
            return Status(dataset.task, archive.state, root / archive.name, (archive,))
    if "wrong" in states:
        return Status(dataset.task, "wrong", place, files)
    return Status(dataset.task, states.pop() if len(states) == 1 else "partial", place, files)


def _checked(place: Path, file: OfficialFile, task: str) -> bytes:
    try:
        data = place.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{place} cannot be read: {error.strerror}.") from error
    problem = file.problem(len(data), _digest(file, data))
    if problem is not None:
        raise Corrupt(f"{place} {problem}; remove it and run 'unwalk data fetch {task}'.")
    return data


def _digest(file: OfficialFile, data: bytes) -> str:
    state = file.hasher()
    state.update(data)
    return state.hexdigest()


def _members(dataset: DataSet, place: Path) -> Iterator[tuple[str, bytes]]:
    """The files in an archive, checked one by one; only members with their names are looked at."""
    wanted = {f.name: f for f in dataset.files}
    others, reason = dataset.refused
    try:
        with tarfile.open(place, "r|gz") as archive:
            for member in archive:
                if member.name.split("/")[0] in others:
                    raise InvalidInput(f"{place} {reason}; get the binary one, {place.name}.")
                file, stream = wanted.get(member.name), archive.extractfile(member)
                if file is None or stream is None:
                    continue
                data = stream.read(file.size + 1)
                problem = file.problem(len(data), _digest(file, data))
                if problem is not None:
                    raise Corrupt(f"{member.name} in {place} {problem}.")
                del wanted[member.name]
                yield Path(file.name).name, data
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise Corrupt(f"{place} is not a whole archive ({error}); get it again.") from error
    if wanted:
        raise Corrupt(f"{place} holds no {next(iter(wanted))}.")


def _refuse_other_edition(dataset: DataSet, root: Path) -> None:
    names, reason = dataset.refused
    for name in names:
        if (root / name).exists() and dataset.archive is not None:
            raise InvalidInput(
                f"{root / name} {reason}; put the binary version, {dataset.archive.name}, beside "
                f"it or run 'unwalk data fetch {dataset.task}'."
            )


def _unpack(
    dataset: DataSet,
    archive: OfficialFile,
    wanted: list[OfficialFile],
    root: Path,
    mirror: str | None,
    tell: Tell | None,
) -> None:
    """Write the wanted files out of the archive, which is downloaded if it is missing."""
    place, names = root / archive.name, {Path(f.name).name: root / f.name for f in wanted}
    with _passing(root, archive.name) as passing:
        if _look(place, archive).state != "complete":
            with passing.open("wb") as out:
                _download(archive, root, mirror, out, tell)
            place = passing
        for name, data in _members(dataset, place):
            if name in names:
                with _appearing(names[name]) as out:
                    out.write(data)


@contextmanager
def _passing(folder: Path, name: str) -> Iterator[Path]:
    """A temporary file name; the file, and empty folders made for it, are removed afterwards."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    place = folder / f".{name}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield place
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            place.unlink(missing_ok=True)
        for empty in made:
            with suppress(OSError):  # not empty: something was written
                empty.rmdir()


@contextmanager
def _appearing(place: Path) -> Iterator[BinaryIO]:
    """A file that gets its name if the block succeeds, and is removed otherwise."""
    with _passing(place.parent, place.name) as passing:
        with passing.open("wb") as out:
            yield out
        passing.replace(place)


class _Failed(Exception):
    """One address did not give the file; the text says why."""


def _download(
    file: OfficialFile, root: Path, mirror: str | None, out: BinaryIO, tell: Tell | None
) -> None:
    """Write the file's bytes to ``out`` from the first address that gives the official ones."""
    urls = file.urls if mirror is None else (f"{mirror.rstrip('/')}/{file.name}",)
    failures = []
    for url in urls:
        try:
            _copy(url, file, out, tell)
        except _Failed as error:
            failures.append(f"{urlsplit(url).netloc} {error}")
        else:
            return
    raise InvalidInput(
        f"{file.name} could not be downloaded ({'; '.join(failures)}); put the file at "
        f"{root / file.name} yourself (published at {file.urls[0]})."
    )


def _copy(url: str, file: OfficialFile, out: BinaryIO, tell: Tell | None) -> None:
    out.seek(0)
    out.truncate()
    state, size = file.hasher(), 0
    request = urllib.request.Request(url, headers={"User-Agent": "unwalk"})
    for chunk in _chunks(request):
        state.update(chunk)
        size += len(chunk)
        if size > file.size:
            raise _Failed(f"sent more than the {file.size:,} bytes of the official file")
        out.write(chunk)
        if tell is not None:
            tell(file.name, size, file.size)
    problem = file.problem(size, state.hexdigest())
    if problem is not None:
        raise _Failed(f"sent what {problem}")


def _chunks(request: urllib.request.Request) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            while chunk := response.read(CHUNK):
                yield chunk
    except urllib.error.HTTPError as error:
        with error:
            raise _Failed(f"answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise _Failed(f"cannot be reached: {reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(f"broke off: {str(error) or type(error).__name__}") from error
