"""Doors of hosts: a token for whoever asks, before or after it is there, and a no in every end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from unwalk.engines.ray_door import Door
from unwalk.engines.ray_parcel import Parcel, packed


@pytest.fixture
def doors(tmp_path):
    return Door(str(tmp_path)), Door(str(tmp_path))


class Asking(threading.Thread):
    """A host that waits for a token."""

    def __init__(self, door, address, key):
        super().__init__(daemon=True)
        self.door, self.address, self.key = door, address, key
        self.start()

    def run(self):
        self.came = self.door.fetch(self.address, self.key)

    def answer(self):
        self.join(30)
        assert not self.is_alive()
        return self.came


def until_waiting(door, key):
    end = threading.Event()
    for _ in range(1000):
        if key in door._waiting:
            return
        end.wait(0.01)
    raise AssertionError("nobody has asked")


def big():
    return {"p": torch.arange(300_000, dtype=torch.float32), "none": torch.empty(0)}


def same(came):
    assert isinstance(came, Parcel)
    opened = came.opened()
    assert all(torch.equal(opened[name], tensor) for name, tensor in big().items())


def test_a_token_is_handed_to_one_who_asked_before_and_to_one_who_asks_after(doors):
    one, other = doors
    asking = Asking(other, one.address, (1, 7))
    until_waiting(one, (1, 7))
    one.leave((1, 7), packed(big()))
    same(asking.answer())
    mine = big()
    one.leave((1, 9), packed(mine))
    mine["p"].zero_()  # the next visit of the host
    same(other.fetch(one.address, (1, 9)))


def test_what_will_not_come_is_a_no(doors):
    one, other = doors
    asking = Asking(other, one.address, (1, 7))
    until_waiting(one, (1, 7))
    one.leave((1, 7), None)
    assert asking.answer() is None
    one.leave((2, 3), packed(big()))
    for older in ((1, 9), (2, 2)):
        assert other.fetch(one.address, older) is None
    same(other.fetch(one.address, (2, 3)))
    assert other.fetch(f"{one.address}-gone", (2, 4)) is None


@pytest.mark.timeout(20)
def test_a_visit_that_is_made_again_takes_no_later_token_away(doors):
    """Otherwise whoever asks for that one waits for good, and so does who waits for him."""
    one, other = doors
    one.leave((1, 9), packed(big()))
    one.leave((1, 4), packed({"p": torch.zeros(3)}))
    one.leave((1, 5), None)
    assert other.fetch(one.address, (1, 4)) is None
    same(one.fetch(one.address, (1, 9)))


def test_nobody_waits_for_a_chain_that_is_over(doors):
    one, other = doors
    asking = Asking(other, one.address, (4, 7))
    until_waiting(one, (4, 7))
    one.over(3)
    assert asking.is_alive()
    one.over(4)
    assert asking.answer() is None
    assert other.fetch(one.address, (4, 8)) is None
    later = Asking(other, one.address, (5, 8))
    until_waiting(one, (5, 8))
    one.leave((5, 8), packed(big()))
    same(later.answer())


def test_a_host_that_is_killed_is_a_no(doors):
    code = "from unwalk.engines.ray_door import Door; print(Door().address, flush=True); input()"
    host = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    address = host.stdout.readline().strip()
    asking = Asking(doors[0], address, (1, 1))
    asking.join(0.2)
    os.kill(host.pid, signal.SIGKILL)
    host.communicate()
    assert asking.answer() is None
    Path(address).unlink()
    Path(address).parent.rmdir()


def test_others_cannot_reach_a_door(doors):
    assert stat.S_IMODE(Path(doors[0].address).parent.stat().st_mode) == 0o700
