"""How a walk ends, as one peer votes on it: with one last token, or given up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unwalk.core.errors import Corrupt, InvalidInput, UnwalkError
from unwalk.core.transcript import canonical
from unwalk.peers import codec
from unwalk.peers import protocol as pr
from unwalk.peers.decisions import Decision, to_propose
from unwalk.peers.poll import Poll, end_of, pace_of
from unwalk.peers.protocol import Value
from unwalk.peers.votes import Clerk, Matter

if TYPE_CHECKING:
    from unwalk.peers.service import Service


class Ends:
    """The vote on the end of one service's walk.

    ``void`` is the end without a visit, once this peer would have the walk given up.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.void: Value | None = None
        chapter = service.chapter
        rules = service.network.rules(chapter.left, first=chapter.number)
        self.poll = Poll(
            Clerk(service.bundle, service.trust),
            service.store,
            service.journal,
            Matter(end_of(service.run_id), chapter.number, rules),
            judge=self.stands_for,
            offer=self._offers,
            told=self._decided,
            tell=service.talk.show,
            pace=pace_of(service.limits),
        )

    def _offers(self) -> str | None:
        """The end that this peer would have decided: the last token, if it is here, or none."""
        state = self.service.state
        if state.committed is not None:
            return None
        fence = pr.shown(state)[0]
        known = [e for e in state.ends if e.generation >= fence]
        value = max(known, key=lambda e: e.generation, default=self.void)
        return None if value is None else end_text(value)

    def stands_for(self, text: str, polled: bool) -> bool:
        """Whether this peer votes for an end: it has the whole log and the bytes.

        ``polled``: a quorum has voted for it before, so that it may be decided already; then it
        does not matter whether a later generation is under way.
        """
        service, value = self.service, end_from(text)
        state, chapter = service.state, service.chapter
        if value is None or state.committed is not None:
            return False
        if value.chain == service.start_chain:
            same = chapter.model != "" and value.token == chapter.model
            return chapter.spec is not None and same and (polled or service.lookout.consents)
        return value in state.ends and (polled or value.generation >= pr.shown(state)[0])

    def wanted(self) -> Value | None:
        """The end that may have been decided, as far as is known here."""
        return end_from(self.poll.texts.get(to_propose(self.poll.state), ""))

    def _decided(self, text: str, decision: Decision) -> None:
        value = end_from(text)
        if value is None:
            raise Corrupt("what was decided is no end of a walk.")
        self.service.put(pr.commit(self.service.state, value))

    async def take_part(self) -> None:
        """Vote on the end; a fork ends this peer."""
        poll, decided = self.poll, self.poll.decided
        if decided is not None and self.service.state.committed is None and poll.texts:
            self._decided(poll.texts[decided.value], decided)
        await poll.run()
        await poll.forked.wait()
        raise InvalidInput(str(poll.fork))


def end_text(value: Value) -> str:
    """An end as it is voted on."""
    return canonical(codec.value_to(value) or {})


def end_from(text: str) -> Value | None:
    """The end in a text; None if it is none, or not in its one form."""
    try:
        value = codec.value_from(json.loads(text))
    except (UnwalkError, ValueError, RecursionError):
        return None
    return value if end_text(value) == text else None
