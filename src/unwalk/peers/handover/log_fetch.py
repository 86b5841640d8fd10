"""Fetches the log that leads to an end of a walk, in pages; what was checked is kept between tries.

Who asks goes back from the end to the last entry that is known here, and remembers only where pages
begin: nothing of them is checked yet, and somebody may have made them up.  From the known entry on
it then asks for the same pages again and checks them in order, each entry once.  So what is kept
was walked, but for the last visits of whoever lies, and what is known here is not checked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from unwalk.core.errors import Refused, UnwalkError
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.log_rules import MOST_RECOVERIES, Place
from unwalk.peers.handover.walk import Walk
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.hoplog import Entry
from unwalk.peers.protocol.messages import PAGE
from unwalk.walks import NOBODY

A_VISIT = 0.04
"""Seconds that a try may take for each visit of the walk, besides ``limits.connect`` a peer."""


@dataclass(frozen=True)
class Mark:
    """The last entry of a page: its chain, its visit, and how many recoveries may precede it."""

    chain: str
    hop: int
    recoveries: int


class LogFetch:
    """The log that leads to ``value``, asked for of the peer ``first`` before the others.

    ``marks`` are the pages that are still missing, the earliest last.  ``found`` are the entries
    that were not known here, checked and in order; they follow the known entry ``base``, and
    ``head`` is the last of them, and ``place`` is where the walk is after it.
    """

    def __init__(
        self, walk: Walk, control_messages: ControlMessages, value: pr.Value, first: int = NOBODY
    ) -> None:
        self.walk, self.control_messages = walk, control_messages
        self.value, self.first = value, first
        self.marks = [Mark(value.chain, walk.work.hops, MOST_RECOVERIES)]
        if value.chain == walk.start_chain:  # given up: there is no log
            self.marks = []
        self.base: str | None = walk.start_chain if not self.marks else None
        self.head = self.base
        self.found: list[Entry] = []
        self.wrong = False
        self.task: asyncio.Task[None] | None = None
        self._before: Mapping[str, Any] | None = None
        self.place = Place()
        others = [p for p in range(len(walk.network.peers)) if p != walk.me]
        self._spent = dict.fromkeys(sorted(others, key=lambda p: p != first), 0.0)
        self._asked, self._began = dict.fromkeys(others, 0), monotonic()

    def begin(self) -> asyncio.Task[None]:
        """Go on in a task of its own, unless that is under way, or all is here."""
        if self.task is None or (self.task.done() and self.marks and not self.wrong):
            self.task = self.control_messages.later(self._try())
        return self.task

    async def _try(self) -> None:
        walk = self.walk
        seconds = walk.limits.connect * len(walk.network.peers) + A_VISIT * walk.work.hops
        try:
            async with asyncio.timeout(seconds):
                await self.go_on()
        except TimeoutError as error:
            raise Refused("the log that leads to that end did not come; bring it again.") from error

    async def whole(self) -> list[Entry]:
        """The whole log, once all of it was fetched and checked."""
        await self.go_on()
        return self.log()

    def log(self) -> list[Entry]:
        """The log, all of which is here."""
        walk = self.walk
        assert self.base is not None
        known = walk.store.chain(walk.run_id, self.base, walk.start_chain)
        if known is None:
            raise Refused("the log that leads to that end is not here any more.")
        return known + self.found

    async def go_on(self) -> None:
        """Fetch and check what is missing; refused if that cannot be had now, or is ``wrong``."""
        walk = self.walk
        if self.marks and self.base is None:
            here = walk.store.entry(walk.run_id, self.value.chain)
            if here is not None:
                self.wrong = True
                self._check_end(here["body"])
                await self._join(here["chain"])
                self.wrong = False
                self.marks.clear()
        while self.marks:
            if walk.closed:
                raise Refused("this peer is stopping.")
            await self._next_page()

    def _early(self, peer: int) -> float:
        """Seconds until a peer may be asked again: half of the calls are left for votes."""
        half = self.walk.limits.messages / 2.0
        return max(0.0, self._asked[peer] / half - 2.0 - (monotonic() - self._began))

    async def _next_page(self) -> None:
        """The page with the next mark, of the peer that has cost the least time so far.

        A peer that does not have it, or shows something wrong, is asked last from then on.  An
        entry's signature is not part of its chain: a page that is wrong here may be right at the
        next peer.
        """
        error: UnwalkError | None = None
        unheard = False
        for peer in sorted(self._spent, key=lambda p: (self._early(p) > 0.0, self._spent[p])):
            await asyncio.sleep(self._early(peer))
            self._asked[peer] += PAGE
            began, good = monotonic(), False
            try:
                page = await self.control_messages.page(peer, self.marks[-1].chain)
                if page:
                    with codec.reading("a log"):
                        await self._take(page)
                    good = True
                    return
                unheard = unheard or page is None
            except UnwalkError as failed:
                error = failed
            finally:
                self._spent[peer] += monotonic() - began
                self._spent[peer] += 0.0 if good else self.walk.limits.connect
        self.wrong = error is not None and not unheard  # else somebody may have a right one
        raise error or Refused("the log that leads to that end is not whole; bring it again.")

    async def _take(self, page: list[Entry]) -> None:
        """Check a page that goes on from the last checked entry, or go further back."""
        fresh, hop, left = list[Entry](), self.marks[-1].hop, self.marks[-1].recoveries
        if len(self.marks) == 1:
            self._check_end(page[0]["body"])
        for entry in page:
            body = entry["body"]
            if body["hop"] != hop:
                raise Refused(f"a log entry is about visit {body['hop']}, not {hop}.")
            fresh.append(entry)
            hop, left = (hop - 1, left) if body["kind"] == "hop" else (hop, left - 1)
            if hop < 0 or left < 0:
                raise Refused("the log that leads to that end does not begin.")
            if self._is_known(body["previous"]):
                if self.base is None:
                    await self._join(body["previous"])
                self._check(fresh[::-1])
                self.marks.pop()
                return
        self.marks.append(Mark(fresh[-1]["body"]["previous"], hop, left))

    def _is_known(self, chain: str) -> bool:
        """Whether the log goes on here from what was checked."""
        walk = self.walk
        if self.base is not None:
            return chain == self.head
        return chain == walk.start_chain or walk.store.entry(walk.run_id, chain) is not None

    async def _join(self, chain: str) -> None:
        """The log goes on from an entry that is known here, and so was checked."""
        walk = self.walk
        self.place = await walk.place(chain)
        entry = walk.store.entry(walk.run_id, chain)
        self._before = None if entry is None else entry["body"]
        self.base = self.head = chain

    def _check(self, entries: list[Entry]) -> None:
        """Keep entries that follow the last checked one, if each may, and is on the route."""
        succession = self.walk.succession
        before, place = self._before, self.place
        for entry in entries:
            succession.entry(entry, before)
            place, before = succession.after(place, entry["body"]), entry["body"]
        self._before, self.place = before, place
        self.found += entries
        self.head = entries[-1]["chain"]

    def _check_end(self, body: Mapping[str, Any]) -> None:
        """Whether an entry with ``body`` is the end itself."""
        ends = (body["kind"], body["hop"], tuple(body["generation"]), body["token"])
        value = self.value
        if ends != ("hop", self.walk.work.hops, value.generation, value.token):
            raise Refused("that is not the end of the log that leads to it.")
