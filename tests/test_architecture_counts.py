"""How many of our modules one run and one deletion go through, from the command line to the end.

Whoever follows a run reads the modules of drawing 1 of ``docs/architecture.md``: all in which a
function is called; that a module is imported is not enough.

A deletion is followed in drawing 2.  A peer that trains calls most of what it calls too, so what
counts is what training does not: a module is *entered* by a deletion when another module calls one
of its functions that nobody called during training.  Of these modules all must be drawn that
change something: those with such a function on the call stack when a transaction commits, a file
is put in place or removed, or a message leaves.  What is entered and not drawn only answers.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import ROOT
from tests.peers.deletions import Hamlet, hamlet, ids_of
from unwalk.cli import app, forgetting
from unwalk.peers.lifecycle import certifying, chapter_runner
from unwalk.peers.transport.wire import Memory
from unwalk.peers.web.client import Asker
from unwalk.peers.web.http_server import HttpDesk
from unwalk.peers.web.live_desk import Reception

SRC = f"{ROOT / 'src' / 'unwalk'}{os.sep}"
MOST = 45
"""More than this asks for a reason why one more has to be read."""
MOST_OF_A_DELETION = 22
WALK = "peers/handover/"
RUN, DELETION = "## Drawing 1: ", "## Drawing 2: "

QUICK = ((certifying, "AGAIN"), (chapter_runner, "SOON"), (forgetting, "PAUSE"))
"""Pauses between looks, so that the test does not wait for them."""
SHORT = {"train__hops": 6, "unlearn__hops": 2, "count": 16}

Door = tuple[str, str]
"""A module by its path, and one of its functions."""


def door_of(frame: FrameType) -> Door | None:
    """The function of ours that a frame carries out; no body of a class or a module, no lambda."""
    code = frame.f_code
    if not code.co_filename.startswith(SRC) or not code.co_flags & CO_OPTIMIZED:
        return None
    if not code.co_filename.endswith(".py"):
        return None
    return code.co_filename.removeprefix(SRC), code.co_qualname.removesuffix(".__init__")


def stack(frame: FrameType | None) -> Iterator[Door]:
    """The functions of ours that are under way, the innermost first."""
    while frame is not None:
        if (door := door_of(frame)) is not None:
            yield door
        frame = frame.f_back


@contextmanager
def watched(look: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Have ``look`` told of every call, in this thread and in those that start meanwhile."""
    before, others = sys.gettrace(), threading.gettrace()
    sys.settrace(look)
    threading.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(others)  # type: ignore[arg-type]


def called(*words: str) -> list[Door]:
    """The functions of ours that a command calls, each once, in the order of their first calls."""
    doors: dict[Door, None] = {}

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if (door := door_of(frame)) is not None:
            doors.setdefault(door)

    for name in ("unwalk.runs.run", "sklearn.datasets"):  # loading them is no part of the run
        import_module(name)
    with watched(look):
        done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return list(doors)


def drawn(page: str, drawing: str) -> list[Door]:
    """The modules of a drawing with their doors, from above."""
    text = page.split(drawing, 1)[1].split("\n## ", 1)[0]
    rows = [line.strip(" |").split() for line in text.splitlines() if line.startswith("    ")]
    return [(row[0], row[1]) for row in rows if row and row[0].endswith(".py")]


@dataclass
class Followed:
    """What is called in training, and in the deletion after it.

    ``calls`` are functions in the order of their first calls, ``entered`` those of them that
    another module called and training did not, ``acting`` those that were under way when something
    changed.  ``phase`` is "training", "forgetting" or "over".
    """

    trained: set[Door] = field(default_factory=set)
    calls: dict[Door, None] = field(default_factory=dict)
    entered: set[Door] = field(default_factory=set)
    acting: set[Door] = field(default_factory=set)
    phase: str = "training"

    def look(self, frame: FrameType, event: str, argument: Any) -> None:
        door = door_of(frame)
        if door is None or self.phase == "over":
            return
        if self.phase == "training":
            self.trained.add(door)
            return
        self.calls.setdefault(door)
        if door not in self.entered and door not in self.trained:
            caller = next(stack(frame.f_back), None)
            if caller is None or caller[0] != door[0]:
                self.entered.add(door)

    def changed(self, *_: Any) -> None:
        """Something is durable, is gone or leaves, just now."""
        if self.phase == "forgetting":
            self.acting.update(stack(sys._getframe(1)))

    def noting(self, change: Callable[..., Any]) -> Callable[..., Any]:
        """The same change, noticed."""

        def noted(*args: Any, **options: Any) -> Any:
            self.changed()
            return change(*args, **options)

        return noted

    @property
    def must(self) -> set[str]:
        """Modules that change something, by a function that training does not call.

        How a token travels is the same in every walk, and depends on how fast it goes: modules of
        ``handover`` may be drawn, and need not be.
        """
        found = {module for module, _ in self.acting - self.trained}
        return {module for module in found if not module.startswith(WALK)}

    @property
    def may(self) -> set[str]:
        """Modules that the deletion enters and training does not."""
        return {module for module, _ in self.entered}


async def forgotten(here: Hamlet, seen: Followed) -> None:
    """Train, look at the page of a peer, ask it to forget by a command, and get the certificate."""
    u = 1
    for chapters in here.peers.values():
        assert chapters.records is not None
        chapters.store.fault = chapters.records.fault = seen.changed
    token, ids = here.folder / "http.token", here.folder / "ids.txt"
    ids.write_text("\n".join(ids_of(u, 1)))
    desk = HttpDesk(Reception(here.peers[u]), "127.0.0.1:0", token)
    await desk.start()
    asker = Asker(desk.url, token.read_text().strip())
    await here.until(here.trained)
    for look in (asker.status, asker.requests, asker.certificates):
        await asyncio.to_thread(look)
    seen.phase = "forgetting"
    words = ("forget", "--peer", desk.url, "--token", token, "--ids", ids, "--grade", "exact")
    done = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, words), "--wait"])
    assert "certificate: chapter-1" in done.output
    await asyncio.to_thread(asker.certificate, "chapter-1")
    seen.phase = "over"
    await desk.stop()


@pytest.fixture(scope="module")
def one_deletion(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    seen = Followed()
    with pytest.MonkeyPatch.context() as patch:
        for module, pause in QUICK:
            patch.setattr(module, pause, 0.05)
        for name in ("replace", "rename", "unlink", "remove"):
            patch.setattr(os, name, seen.noting(getattr(os, name)))
        patch.setattr(Memory, "reach", seen.noting(Memory.reach))
        connection = http.client.HTTPConnection
        patch.setattr(connection, "request", seen.noting(connection.request))
        with watched(seen.look):
            folder = tmp_path_factory.mktemp("followed")
            hamlet(
                folder, lambda here: forgotten(here, seen), peers=3, real=True, lease=30.0, **SHORT
            )
    return seen


def page() -> str:
    return (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> list[Door]:
    short = [f"--set={phase}.hops=2" for phase in ("train", "unlearn")]
    out = str(tmp_path_factory.mktemp("counted") / "run")
    return called("run", "--task", "digits", "--method", "rrdu", "--out", out, *short)


def test_one_run_goes_through_few_modules(one_run):
    found = {module for module, _ in one_run}
    for room in ("cli/running", "runs/run", "methods/rrdu", "tasks/digits", "reports/run_page"):
        assert f"{room}.py" in found
    assert len(found) <= MOST, sorted(found)


def test_the_drawing_shows_the_modules_of_one_run_in_order(one_run):
    doors = drawn(page(), RUN)
    assert sorted(module for module, _ in doors) == sorted({module for module, _ in one_run})
    assert doors == [door for door in one_run if door in set(doors)]


def test_the_drawing_of_a_deletion_shows_every_module_that_changes_something(one_deletion):
    modules = {module for module, _ in drawn(page(), DELETION)}
    assert one_deletion.must - modules == set(), "not drawn, though it acts"
    assert modules - one_deletion.may == set(), "drawn, though training enters it as much"
    assert len(modules) <= MOST_OF_A_DELETION


def test_the_drawing_of_a_deletion_is_in_order(one_deletion):
    doors, calls = drawn(page(), DELETION), one_deletion.calls
    assert [door for door in doors if door not in calls] == []
    # A door that training has too may be passed at any time, by what is left of training.
    new = [door for door in doors if door not in one_deletion.trained]
    assert new == [door for door in calls if door in set(new)]


def test_a_drawing_is_read_line_by_line():
    rows = "    in\n    |   a/b.py  go  text\n    v\n        c.py  C  x\n"
    text = f"x\n{RUN}t\n\ntext a/b.py\n\n{rows}"
    assert drawn(text + "\n## Next\n\n    d.py e\n", RUN) == [("a/b.py", "go"), ("c.py", "C")]
