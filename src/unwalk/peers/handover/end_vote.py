"""One peer's vote on how a walk ends: with one last token, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from unwalk.core.errors import Corrupt, InvalidInput, UnwalkError
from unwalk.peers.decisions import history
from unwalk.peers.decisions.ballot import Poll, end_of, pace_of
from unwalk.peers.decisions.votes import Clerk, Matter, decision_to
from unwalk.peers.decisions.walk_end import (
    Closing,
    closing_of,
    end_digest,
    end_from,
    end_text,
    model_digest,
    visits_digest,
    void_closing,
)
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.log_fetch import LogFetch
from unwalk.peers.handover.walk import Walk
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.consensus import Decision
from unwalk.peers.protocol.handover import Value
from unwalk.peers.protocol.hoplog import Entry

MOST_CLOSINGS = 32
"""Ends whose visits and model are remembered as computed here, at most."""
SOON, AGAIN = 0.1, 5.0
"""Seconds before a log that is not whole is asked for again, at first and at most."""


class Ends:
    """The vote on the end of one service's walk.

    ``void`` is the end without a visit, set once this peer wants the walk given up.  ``closings``
    are those that this peer computed itself, from the whole log and the bytes of an end.
    ``consents`` says whether this peer has just seen that nobody can begin the walk.
    """

    def __init__(
        self, walk: Walk, control_messages: ControlMessages, consents: Callable[[], bool]
    ) -> None:
        self.walk, self.control_messages, self.consents = walk, control_messages, consents
        self.void: Value | None = None
        self.closings: dict[Value, Closing] = {}
        self.visits: dict[str, str] = {}
        self.computing: set[Value] = set()
        chapter = walk.chapter
        rules = walk.network.rules(chapter.left, first=chapter.number)
        self.poll = Poll(
            Clerk(walk.bundle, walk.trust),
            walk.store,
            walk.journal,
            Matter(end_of(walk.run_id), chapter.number, rules),
            judge=self.stands_for,
            offer=self._offers,
            told=self._decided,
            tell=self.control_messages.show,
            pace=pace_of(walk.limits),
            digest=end_digest,
        )

    # What is computed of an end before it is voted for

    def checked(self, chain: str, entries: Sequence[Entry]) -> None:
        """The log that leads to ``chain`` is here, every entry of it checked."""
        if len(self.visits) >= MOST_CLOSINGS:
            kept = {end.chain for end in self.walk.state.ends}
            self.visits = {known: v for known, v in self.visits.items() if known in kept}
        self.visits[chain] = visits_digest(history.bare_visits(entries))

    def look(self) -> None:
        """Compute what this peer would vote for, of each end that it has whole."""
        for value in self.walk.state.ends:
            self._compute(value)

    def _compute(self, value: Value) -> None:
        if value not in self.closings and value not in self.computing:
            self.computing.add(value)
            self.control_messages.later(self._close(value))

    async def _close(self, value: Value) -> None:
        pause = SOON
        try:
            while self.walk.state.committed is None and self._has(value):
                if await self._closed(value):
                    return
                await asyncio.sleep(pause)
                pause = min(2.0 * pause, AGAIN)
        finally:
            self.computing.discard(value)

    async def _closed(self, value: Value) -> bool:
        walk, loop = self.walk, asyncio.get_running_loop()
        try:
            if value.chain not in self.visits:
                entries = await LogFetch(walk, self.control_messages, value).whole()
                self.checked(value.chain, entries)
            file = walk.store.file(value.token)
            try:
                await loop.run_in_executor(walk.hashing, walk.store.check_file, value.token)
            except Corrupt as error:
                walk.break_off(error)
                raise
            model = await loop.run_in_executor(walk.hashing, model_digest, file, value.salt)
        except (UnwalkError, OSError, ValueError, LookupError, TypeError) as error:
            walk.journal.write("end not whole", reason=str(error)[:300])
            return False
        if len(self.closings) >= MOST_CLOSINGS:
            ends = walk.state.ends
            self.closings = {end: c for end, c in self.closings.items() if end in ends}
        self.closings[value] = closing_of(value, self.visits[value.chain], model)
        return True

    def _has(self, value: Value) -> bool:
        """Whether this peer has that end, maybe under another salt."""
        return any(replace(end, salt=value.salt) == value for end in self.walk.state.ends)

    # The vote

    def _offers(self) -> str | None:
        """The end that this peer proposes: the last token, if it is here."""
        state = self.walk.state
        if state.committed is not None:
            return None
        fence = pr.shown(state)[0]
        known = [e for e in state.ends if e.generation >= fence and e in self.closings]
        value = max(known, key=lambda e: e.generation, default=None)
        if value is not None:
            return end_text(value, self.closings[value])
        return None if self.void is None else end_text(self.void, void_closing(self.void))

    def stands_for(self, text: str, polled: bool) -> bool:
        """Whether this peer votes for an end: it has the whole log and the bytes.

        Visits and model have to be what this peer computes; the salt may be another than the one
        it knows the end by.  ``polled``: a quorum has voted for it before, so that it may be
        decided already; then it does not matter whether a later generation is under way.
        """
        walk, proposed = self.walk, end_from(text)
        state, chapter = walk.state, walk.chapter
        if proposed is None or state.committed is not None:
            return False
        value, closing = proposed
        if value.chain == walk.start_chain:
            same = value.token == chapter.model if chapter.model else self._is_known(value.token)
            same = same and closing == void_closing(value)
            return chapter.spec is not None and same and (polled or self.consents())
        if not self._has(value) or not (polled or value.generation >= pr.shown(state)[0]):
            return False
        if value not in self.closings:
            self._compute(value)
            return False
        return self.closings[value] == closing

    def _is_known(self, model: str) -> bool:
        """Whether a model is the one that stays, by the word of more peers than may lie.

        A peer that was away when it was decided on does not have it.
        """
        poll, state = self.poll, self.poll.state
        votes = state.votes.union(*state.chain, *state.proof)
        said = [(vote.voter, poll.texts.get(vote.value, "")) for vote in votes]
        ends = [(peer, end_from(text)) for peer, text in (*said, *poll.offers.items())]
        start = self.walk.start_chain
        peers = {p for p, e in ends if e and (e[0].chain, e[0].token) == (start, model)}
        return len(peers - {self.walk.me}) > poll.rules.lies

    def wanted(self) -> frozenset[str]:
        """The chains of the ends that are voted on now, or may have been decided."""
        ends = (end_from(text) for text in self.poll.texts.values())
        return frozenset(end[0].chain for end in ends if end is not None)

    def _decided(self, text: str, decision: Decision) -> None:
        end = end_from(text)
        if end is None:
            raise Corrupt("what was decided is no end of a walk.")
        value, closing = end
        walk = self.walk
        history.put_end(walk.store, walk.run_id, closing.text, decision_to(decision))
        walk.put(pr.commit(walk.state, value))

    async def take_part(self) -> None:
        """Vote on the end; a fork ends this peer."""
        poll, decided = self.poll, self.poll.decided
        if decided is not None and self.walk.state.committed is None and poll.texts:
            self._decided(poll.texts[decided.value], decided)
        self.look()
        await poll.run()
        await poll.forked.wait()
        raise InvalidInput(str(poll.fork))
