"""Daemons that lie, and daemons that believe: called in a peer's process before it begins.

The first ones are for a liar.  The others take a check out of honest peers: with them the same lies
have to do harm, or the tests that tell them could not fail.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

FAR = 2**31 - 1


def wild_weights() -> None:
    """Every token that leaves holds 1e30, under a good signature."""
    from unwalk.peers.handover.visit import Visited, Work

    visit = Work.visit

    def wild(self: Work, *args: Any, **options: Any) -> Visited:
        found = visit(self, *args, **options)
        found.token.parameters.fill_(1e30)
        return found

    Work.visit = wild  # type: ignore[method-assign]


def never_visits() -> None:
    """Takes the token, says that all is well, and never visits."""
    from unwalk.peers.handover.service import Service

    async def never(self: Service) -> None:
        await asyncio.sleep(3600.0)

    Service._visit = never  # type: ignore[method-assign]


def _says(**changes: Any) -> None:
    from unwalk.peers.protocol import handover as pr

    plain = pr.sighting

    def said(state: pr.PeerState) -> pr.Sighting:
        return replace(plain(state), **changes)

    pr.sighting = said


def never_visits_and_says_that_it_is_over() -> None:
    """The same, and says to all who ask that the walk has ended."""
    never_visits()
    _says(over=True)


def never_visits_and_says_that_it_knows_a_later_generation() -> None:
    """The same, with a generation of 2^31 - 1, which it cannot show."""
    never_visits()
    _says(fence=(FAR, 0))


def never_visits_and_says_that_it_is_ahead() -> None:
    """The same, right before the end."""
    never_visits()
    from unwalk.peers.protocol import handover as pr

    plain = pr.sighting

    def said(state: pr.PeerState) -> pr.Sighting:
        found = plain(state)
        return replace(found, reached=(found.fence, (state.hops - 1, 0)))

    pr.sighting = said


def says_to_every_offer_that_it_is_over() -> None:
    """Takes no token: the walk has ended, it says, and shows nothing."""
    from unwalk.peers.handover.receiving import Receiving
    from unwalk.peers.protocol import codec
    from unwalk.peers.protocol.handover import Reply

    async def over(self: Receiving, *_: Any) -> dict[str, Any]:
        return codec.reply_to(Reply("over"))

    Receiving.take = over  # type: ignore[method-assign,assignment]


def never_answers_an_offer() -> None:
    """Lets every token wait until the sender gives up, and answers everything else."""
    from unwalk.peers.handover.receiving import Receiving

    async def never(self: Receiving, *_: Any) -> dict[str, Any]:
        await asyncio.sleep(3600.0)
        return {}

    Receiving.take = never  # type: ignore[method-assign,assignment]


LIES: Mapping[str, Callable[[], None]] = {
    lie.__name__: lie
    for lie in (
        wild_weights,
        never_visits,
        never_visits_and_says_that_it_is_over,
        never_visits_and_says_that_it_knows_a_later_generation,
        never_visits_and_says_that_it_is_ahead,
        says_to_every_offer_that_it_is_over,
        never_answers_an_offer,
    )
}


# Checks that are taken out


def believes_every_decision() -> None:
    """A decision needs no quorum, and votes need no signature of whom they name."""
    from unwalk.peers.decisions import votes
    from unwalk.peers.protocol import consensus as decisions

    decisions.check_decision = lambda rules, decision: True
    votes.Checker.check = lambda self, matter, vote: None  # type: ignore[method-assign]


def believes_every_log() -> None:
    """An entry of the log may follow any other, off the route and off the plan.

    For walks whose route remembers nothing: the memory is drawn with the route.
    """
    from unwalk.peers.handover.log_rules import Succession
    from unwalk.peers.handover.visit import Work

    Work.counted = lambda self, before, hop, events: None  # type: ignore[method-assign]
    Succession.entry = lambda self, entry, before: None  # type: ignore[method-assign]
    Succession._led = lambda self, body, place: {}  # type: ignore[method-assign]
    Succession._told = lambda self, body, place: ()  # type: ignore[method-assign]


def takes_every_weight() -> None:
    """Tokens may hold what they like."""
    gate: Any = importlib.import_module("unwalk.peers.handover.checks")
    plain = gate.check_token

    def check(file: Any, expected: Any, largest: float) -> None:
        plain(file, expected)

    gate.check_token = check


def waits_for_every_visit() -> None:
    """Whoever has the token may keep it."""
    from unwalk.peers.handover.recovery import Recovery

    Recovery._overrun = lambda self: False  # type: ignore[method-assign]
