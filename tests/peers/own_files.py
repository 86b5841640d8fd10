"""Files of records for tests: rows that are found in no other file by chance."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.processes import CONTEXT
from unwalk.peers.forgetting.request_form import RequestForm
from unwalk.peers.forgetting.requests import Requests
from unwalk.peers.identity.credentials import write_private
from unwalk.peers.records.id_hashing import KEY
from unwalk.peers.records.record_store import Records
from unwalk.peers.records.sources import DataSettings
from unwalk.tasks.declared import declare

FEATURES = 6
DECLARED = declare({"features": FEATURES, "labels": "well|ill"})

CAPABILITIES = 0x20080522
"""Version 3 of the kernel's records of capabilities."""
READ_ALL = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what lets root read whatever its mode says."""


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """A folder that this thread cannot list meanwhile, also as root."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, held = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, held) == 0
    mode, effective = folder.stat().st_mode, held[0]
    folder.chmod(0o300)
    held[0] &= ~READ_ALL
    assert libc.capset(head, held) == 0
    try:
        yield
    finally:
        held[0] = effective
        assert libc.capset(head, held) == 0
        folder.chmod(mode)


def rows_of(count: int, seed: int = 0, features: int = FEATURES) -> np.ndarray:
    """Numbers with many digits."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, features)).astype(np.float32)


def names_of(count: int) -> list[str]:
    return [f"patient-{number:05d}" for number in range(count)]


def label_of(number: int) -> str:
    return "ill" if number % 3 == 0 else "well"


def line_of(name: str, row: np.ndarray, label: str) -> str:
    return f"{name},{','.join(repr(float(v)) for v in row)},{label}"


def write_csv(path: Path, names: list[str], rows: np.ndarray, labels: list[str]) -> None:
    header = "id," + ",".join(f"f{k}" for k in range(rows.shape[1])) + ",label"
    lines = [line_of(*each) for each in zip(names, rows, labels, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")


def make_csv(path: Path, count: int = 50, seed: int = 0) -> tuple[list[str], np.ndarray]:
    names, rows = names_of(count), rows_of(count, seed)
    write_csv(path, names, rows, [label_of(k) for k in range(count)])
    return names, rows


def peer(folder: Path, **settings: Any) -> Records:
    """Records of a bundle whose source is a CSV file of 50 records, unless it says otherwise."""
    folder.mkdir(exist_ok=True)
    if not (folder / KEY).exists():  # who is held out is the same in every run
        write_private(folder / KEY, hashlib.sha256(folder.name.encode()).digest())
    source = folder / "source"
    if "path" not in settings and not source.exists():
        source.mkdir()
        make_csv(source / "patients.csv")
    settings = {"path": source / "patients.csv", "hold_out": 0.2, **settings}
    made = Records(folder, DECLARED)
    made.take_over(DataSettings(**settings))
    return made


def killed(point: str, folder: Path, work: str) -> None:
    """Do something to the records of ``folder`` in a process that dies at ``point``."""
    process = CONTEXT.Process(target=_die_at, args=(point, str(folder), work))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL


def _die_at(point: str, folder: str, work: str) -> None:
    def die(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    records = Records(Path(folder), DECLARED)
    requests = Requests(records)
    records.fault = die
    if work == "refresh":
        records.refresh()
    elif work == "erase":
        records.erase([records.hash("patient-00003"), records.hash("patient-00030")])
    elif work == "submit":
        requests.submit(RequestForm("r-1", tuple(names_of(3))))
    else:
        requests.advance(["r-1"], work)


def content(records: Records) -> dict[str, tuple[str, str, int | None, bytes | None]]:
    query = "SELECT hash, split, state, place, x FROM records"
    with closing(sqlite3.connect(records.path)) as db:
        return {row[0]: row[1:] for row in db.execute(query)}


def settled(path: Path) -> None:
    """Make a file old enough for its time to be trusted."""
    past = time.time() - 60
    os.utime(path, (past, past))
