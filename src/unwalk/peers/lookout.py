"""Watching over a token that was handed on: asking where it is, going on from a copy if lost."""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.core.plan import Move
from unwalk.peers import protocol as pr
from unwalk.peers.hoplog import recovery_body
from unwalk.peers.intake import move_to, words_of
from unwalk.peers.talk import Seen
from unwalk.walks import NOBODY

if TYPE_CHECKING:
    from unwalk.peers.service import Service

SLOW = 6.0
"""A peer that was released asks around after so many leases without news."""
PATIENCE = 10.0
"""A chapter is given up after so many leases in which nobody had its token."""
CONSENT = 5.0
"""After so many a peer votes that it is given up, if another proposes it."""
OVERRUNS = 3
"""After so many visits that took too long a peer is passed over for the rest of the chapter."""
SALT = 16
"""Bytes of the salt of an end."""


class Lookout:
    """What one service does when it hears nothing."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.since = monotonic()
        self.again = 0.0
        self.handed: tuple[pr.Parcel, float] | None = None
        self.overruns: dict[int, int] = {}
        self.slow: set[int] = set()

    async def watch(self) -> None:
        """When the lease has run out without news, ask everybody where the token is."""
        service = self.service
        service.news = monotonic()
        while True:
            state = service.state
            quick = state.watching or (state.stage == "offered" and state.unclear)
            lease = service.limits.lease * (1.0 if quick else SLOW + 0.5 * service.me)
            left = service.news + lease - monotonic()
            if pr.basis(state) is None:
                left = service.limits.lease
                await self._perhaps_give_up()
            if self._overrun():
                await self.look_around(overrun=True)
                continue
            if left > 0:
                await asyncio.sleep(min(left, service.limits.lease / 4))
                continue
            service.metrics.add("lease_expired_total")
            await self.look_around()
            service.news = monotonic()

    def _overrun(self) -> bool:
        """Whether the peer that has the token should have done its visit by now.

        The first token of a walk nobody handed over, but others have it too: one after the other
        of them sees to it.
        """
        state, now, limits = self.service.state, monotonic(), self.service.limits
        if state.kept is None or state.held is not None:
            self.handed = None
            return False
        turn = 0.0 if state.kept.hop else limits.lease * (1 + self.service.me)
        if self.handed is None or self.handed[0] != state.kept:
            self.handed = (state.kept, now)
        elif now - self.handed[1] > limits.visit + turn:
            self.handed = (state.kept, now)
            return True
        return False

    async def look_around(self, *, overrun: bool = False) -> None:
        """Ask all, decide, and go on from this peer's copy if the token is lost."""
        service = self.service
        before = pr.basis(service.state)
        seen = await self._ask("" if before is None else before.chain)
        answers = {p: s.sighting for p, s in seen.items()}
        if pr.basis(service.state) != before:
            return  # the answers are about something that is over
        verdict = pr.consider(service.state, answers, overrun=overrun)
        service.journal.write("looked around", heard=sorted(answers), verdict=verdict.kind)
        if verdict.kind == "over":
            await self._hear_end(answers)
        elif verdict.kind == "fenced":
            for peer in sorted(answers, key=lambda p: answers[p].fence, reverse=True):
                if answers[peer].fence > service.state.fence:
                    await service.talk.hear_fence(peer, answers[peer].fence)
        elif verdict.kind == "ahead":
            service.put(pr.released(service.state, *max(s.reached for s in answers.values())))
        elif verdict.kind == "recover" and not service.stopping:
            highest = max((s.fence[0] for s in answers.values()), default=0)
            assert before is not None
            if len(answers) - overrun + 1 < service.state.quorum:
                return  # what the peer that is late says of itself does not count
            if max(highest, before.generation[0]) < service.state.fence[0]:
                await service.talk.announce()  # so that others can sign that they know of it
                return
            lost = service.state.kept_for if overrun else -1
            if overrun:
                self._count_overrun(lost)
            self._recover(highest, [s.record for p, s in seen.items() if p != lost])

    def _count_overrun(self, peer: int) -> None:
        """A peer had the token for too long: the third time it is passed over in this chapter."""
        self.overruns[peer] = self.overruns.get(peer, 0) + 1
        self.service.journal.write("overrun", who=peer, times=self.overruns[peer])
        if self.overruns[peer] >= OVERRUNS:
            self.slow.add(peer)

    async def _ask(self, chain: str = "") -> dict[int, Seen]:
        """What those say who count."""
        left = self.service.chapter.left
        return {p: s for p, s in (await self.service.talk.ask_all(chain)).items() if p not in left}

    async def _hear_end(self, answers: dict[int, pr.Sighting]) -> None:
        for peer, sighting in answers.items():
            if sighting.over:
                await self.service.talk.hear_end(peer)

    @property
    def idle(self) -> float:
        """For how many leases nothing of the chapter's token was ever here."""
        service = self.service
        if service.chapter.spec is None or not pr.outside(service.state):
            self.since = monotonic()
        return (monotonic() - self.since) / service.limits.lease

    async def _perhaps_give_up(self) -> None:
        """Propose that a chapter is void which nobody who is there can begin."""
        service, chapter = self.service, self.service.chapter
        if self.idle == 0.0 or not pr.outside(service.state):
            service.ends.void = None
            return
        if self.idle < PATIENCE * (1.0 + 0.1 * service.me) or service.ends.void is not None:
            return
        if monotonic() < self.again:
            return
        self.again = monotonic() + service.limits.lease
        answers = {p: s.sighting for p, s in (await self._ask()).items()}
        for peer, sighting in answers.items():
            await service.talk.learn(peer, sighting)
        if self.idle * service.limits.lease > service.limits.visit:
            (_, first), _ = service.state.lineage[0]
            answers.pop(first, None)  # what the peer that is late says of itself does not count
        if service.stopping or not chapter.model or not pr.deserted(service.state, answers):
            return
        service.journal.write("giving up", chapter=chapter.number, heard=sorted(answers))
        salt = secrets.token_hex(SALT)
        service.ends.void = pr.Value((0, 0), service.start_chain, chapter.model, salt)

    def _recover(self, seen: int, sightings: list[dict[str, Any]]) -> None:
        service, before = self.service, self.service.state
        parcel = pr.basis(before)
        assert parcel is not None
        held = pr.recover(before, seen, "").held
        assert held is not None
        lost = before.path[0] if before.stage == "offered" else before.kept_for
        body = recovery_body(
            run=service.run_id,
            generation=held.generation,
            lineage=held.lineage,
            peer=service.me,
            hop=held.hop,
            token=held.token,
            lost=lost,
            sightings=sightings,
        )
        entry = service.sign(parcel.chain, body)
        move: dict[str, Any] = {}
        if parcel.hop == 0:  # nobody had it yet: this peer does the first visit
            memory = service.work.move(1, NOBODY, {}, 0).memory
            move = move_to(NOBODY, 0, Move(service.me, (), memory), (lost,))
        state = pr.recover(before, seen, entry["chain"])
        service.put(state, move=move, entry=entry, arrival=service.to_keep(state))
        service.metrics.add("recoveries_total")
        service.journal.write("recovered", lost=lost, **words_of(held))
