"""Holds training back until the peers that the network file names are up.

Each peer judges for itself, by what others say over their own connections.  Training begins where
every peer that has to be up was heard of within a lease, or a quorum of operators has said that it
may begin without it (``unwalk net begin``).  A peer that comes later believes that training has
begun once more peers say so than may lie.  Until then it takes no token and signs for no walk of
its own: so a member that begins alone finds nobody who goes on with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.peers.handover.doorway import Answer
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.lifecycle.next_chapter import NextChapter
from unwalk.peers.lifecycle.progress import Progress
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.storage.database import BEGINNING
from unwalk.runs.store import write_file

WITHOUT = "begin.json"
"""In the bundle: the peers without which training may begin, says this peer's operator."""
LOOK = 1.0
"""Seconds between looks at who is up."""


class Beginning:
    """Whether training has begun, as one peer sees it."""

    def __init__(self, progress: Progress, next_chapter: NextChapter) -> None:
        self.progress, self.next_chapter = progress, next_chapter
        self.rules = progress.network.rules()
        self.heard: dict[int, tuple[float, ms.AgendaBegin]] = {}
        self.missing: tuple[int, ...] = ()
        self.begun = False
        self.looking = asyncio.Lock()
        next_chapter.answers[ms.AgendaBegin] = self._answer
        state = progress.service.state
        walked = bool(progress.specs) or state.committed is not None or state.reached[1] > (0, 0)
        if walked or not progress.network.first_up or self._written().get("begun") is True:
            self.begun = True
        else:
            self._judge()

    async def wait(self) -> None:
        """Return once training has begun, or this peer is to stop."""
        walk = self.progress.service
        while not self.begun and not walk.stopping:
            await self.look()
            if not self.begun:
                walk.changed.clear()
                await walk.pause(min(LOOK, self.progress.network.limits.lease / 4))

    async def check(self) -> None:
        """Refuse a token of training before it has begun."""
        if not self.begun:
            await self.look()
        if not self.begun:
            raise Refused(f"training has not begun here: {self._names()} not up yet.")

    async def look(self) -> None:
        """Ask those who were not heard of lately; who asks is heard of as well."""
        async with self.looking:
            now, soon = monotonic(), self.progress.network.limits.lease / 2
            await self._ask([p for p in self._others() if now - self._heard_at(p) >= soon])

    def _others(self) -> list[int]:
        return [p for p in self.rules.members if p != self.progress.me]

    def _heard_at(self, peer: int) -> float:
        return self.heard[peer][0] if peer in self.heard else float("-inf")

    async def _ask(self, peers: list[int]) -> None:
        message = self.next_chapter.words(ms.AgendaBegin, **self._said())

        async def ask(peer: int) -> None:
            answer = await self.next_chapter.ask(peer, message, "begin")
            with suppress(Corrupt):
                head = ms.head(self.progress.network.name, self.next_chapter.run_id)
                record = {**head, "kind": "agenda-begin", **codec.fields_of(answer, *FIELDS)}
                self._hear(peer, codec.typed(record, ms.AgendaBegin, "an answer"))

        await asyncio.gather(*map(ask, peers))
        self._judge()

    def _answer(self, sender: int, said: ms.AgendaBegin) -> Answer:
        self._hear(sender, said)
        return {"begin": self._said()}

    def _hear(self, peer: int, said: ms.AgendaBegin) -> None:
        if said.without != sorted({*said.without} & {*range(len(self.progress.network.peers))}):
            raise Corrupt("without does not name peers of the network, each once, in order.")
        self.heard[peer] = (monotonic(), said)
        self._judge()

    def _said(self) -> dict[str, Any]:
        return {"begun": self.begun, "without": sorted(without(self.progress.bundle))}

    def _judge(self) -> None:
        """Whether training may begin now; written down, and told to all, when that changes."""
        progress, rules = self.progress, self.rules
        if self.begun:
            return
        before, now, lease = self.missing, monotonic(), progress.network.limits.lease
        said = [said for _, said in self.heard.values()]
        excused = [set(s.without) for s in said] + [without(progress.bundle)]
        up = {p for p in self.heard if now - self._heard_at(p) < lease} | {progress.me}
        self.missing = tuple(
            peer
            for peer in sorted(progress.network.first_up - up)
            if sum(peer in names for names in excused) < rules.quorum
        )
        self.begun = not self.missing or sum(s.begun for s in said) > rules.lies
        if self.begun or self.missing != before:
            self._write()
        if self.begun and self.heard:
            progress.later(self._ask(self._others()))

    def _names(self) -> str:
        names = [self.progress.network.peers[p].name for p in self.missing]
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"

    def _written(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            record = json.loads(
                (self.progress.bundle.store / BEGINNING).read_text(encoding="utf-8")
            )
            return record if isinstance(record, dict) else {}
        return {}

    def _write(self) -> None:
        progress = self.progress
        waits_for = [] if self.begun else [progress.network.peers[p].name for p in self.missing]
        record = {"begun": self.begun, "waits_for": waits_for}
        if record != self._written():
            try:
                write_file(progress.bundle.store / BEGINNING, json.dumps(record) + "\n")
            except OSError as error:  # no room: it is only known to this process
                progress.journal.write("beginning not written", reason=str(error)[:300])
            event = "training begins" if self.begun else "training waits"
            progress.journal.write(event, waits_for=waits_for)
        progress.service.changed.set()


def begin_without(folder: Path, names: Sequence[str]) -> None:
    """Write down that this peer's operator lets training begin without some peers."""
    bundle = Bundle.read(folder)
    if bundle.name in names:
        raise InvalidInput(
            f"{folder} is {bundle.name} itself; allowed: the folder of another peer."
        )
    waited_for = [bundle.network.peers[p].name for p in sorted(bundle.network.first_up)]
    for name in names:
        bundle.network.index(name)
        if name not in waited_for:
            raise InvalidInput(
                f"training does not wait for {name}; it waits for: {', '.join(waited_for)}."
            )
    write_file(folder / WITHOUT, json.dumps({"without": sorted(set(names))}) + "\n")


FIELDS = ("what a peer says of the beginning", "begun", "without")


def without(bundle: Bundle) -> set[int]:
    """The peers without which training may begin, says the operator of this bundle."""
    path = bundle.folder / WITHOUT
    if not path.exists():
        return set()
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["without"]
        return {bundle.network.index(name) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path} cannot be read; make it again with unwalk net begin."
        ) from error
