"""The error stream of a peer in the background: strangers fill it, and it stays short."""

from __future__ import annotations

import subprocess
import sys

from unwalk.peers.storage.error_file import LARGEST, NAME, cut, open_errors

FLOOD = """
import asyncio, os, sys
from pathlib import Path
from unwalk.peers.storage import error_file

error_file.LARGEST, error_file.LOOK = 4000, 0.01


async def flood():
    task = asyncio.create_task(error_file.keep_short(Path(sys.argv[1])))
    for number in range(600):
        os.write(2, b"handshake %06d failed\\n" % number)
        if number % 50 == 0:
            await asyncio.sleep(0.011)
    await asyncio.sleep(0.1)
    assert task.done() == (sys.argv[2] == "elsewhere")
    print("whole", flush=True)


asyncio.run(flood())
"""


def lines(start: int, end: int) -> bytes:
    return b"".join(b"handshake %06d failed\n" % number for number in range(start, end))


def flood(folder, errors, word: str) -> None:
    command = [sys.executable, "-c", FLOOD, str(folder), word]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=errors, timeout=60)
    assert done.stdout == b"whole\n"


def test_the_newest_lines_are_kept_and_writers_go_on_at_the_end(tmp_path):
    with open_errors(tmp_path) as errors:
        errors.write(lines(0, 100))
        size = len(lines(0, 100))
        cut(errors.fileno(), size)
        assert (tmp_path / NAME).read_bytes() == lines(0, 100), "not larger than allowed"
        cut(errors.fileno(), size - 1)
        errors.write(lines(100, 101))
    assert (tmp_path / NAME).read_bytes() == lines(51, 101)


def test_one_line_without_an_end_is_cut_too(tmp_path):
    with open_errors(tmp_path) as errors:
        errors.write(b"a" * 999 + b"b")
        cut(errors.fileno(), 500)
    assert (tmp_path / NAME).read_bytes() == b"a" * 249 + b"b"


def test_a_start_appends_and_cuts_what_an_earlier_one_left(tmp_path):
    (tmp_path / NAME).write_bytes(b"an earlier reason\n")
    with open_errors(tmp_path) as errors:
        errors.write(b"a later one\n")
    assert (tmp_path / NAME).read_bytes() == b"an earlier reason\na later one\n"
    (tmp_path / NAME).write_bytes(lines(0, 100_000))
    with open_errors(tmp_path):
        pass
    kept = (tmp_path / NAME).read_bytes()
    assert LARGEST // 2 - 30 < len(kept) <= LARGEST // 2
    assert kept.endswith(lines(99_999, 100_000))


def test_a_process_keeps_its_own_error_stream_short(tmp_path):
    with open_errors(tmp_path) as errors:
        flood(tmp_path, errors, "here")
    kept = (tmp_path / NAME).read_bytes()
    assert 0 < len(kept) <= 4000
    first = int(kept.split()[1])
    assert kept == lines(first, 600), "whole lines, the newest, none left out"


def test_an_error_stream_that_goes_elsewhere_is_left_alone(tmp_path):
    with open_errors(tmp_path) as errors:
        errors.write(lines(0, 1000))
    with (tmp_path / "other.txt").open("wb") as other:
        flood(tmp_path, other, "elsewhere")
    assert (tmp_path / "other.txt").read_bytes() == lines(0, 600)
    assert (tmp_path / NAME).read_bytes() == lines(0, 1000)
