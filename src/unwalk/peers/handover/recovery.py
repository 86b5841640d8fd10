"""Recovers a lost token: asks where it is when the lease runs out, goes on from a copy."""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Any

from unwalk.core.errors import Refused
from unwalk.core.plan import Move
from unwalk.peers.handover.control_messages import ControlMessages, Seen
from unwalk.peers.handover.end_vote import Ends
from unwalk.peers.handover.log_rules import opened_by, share_of
from unwalk.peers.handover.moves import move_to, words_of
from unwalk.peers.handover.walk import TRIES, Walk, longest_visit
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol.hoplog import recovery_body
from unwalk.walks import NOBODY

SLOW = 6.0
"""A peer that was released asks around after so many leases without news, and ``APART`` more for
each peer before it."""
APART = 0.5
PATIENCE = 10.0
"""A chapter is given up after so many leases in which nobody had its token."""
CONSENT = 5.0
"""After so many a peer looks whether it has begun, and votes that it is given up if it has not."""
FRESH = 3.0
"""Leases for which a peer votes by what it saw when it last looked."""
OVERRUNS = 3
"""After so many visits that took too long a peer is passed over for the rest of the chapter."""
SALT = 16
"""Bytes of the salt of an end."""


class Recovery:
    """What one service does when it hears nothing."""

    def __init__(self, walk: Walk, control_messages: ControlMessages, ends: Ends) -> None:
        self.walk, self.control_messages, self.ends = walk, control_messages, ends
        self.since = monotonic()
        self.again = 0.0
        self.refused = False  # others did not sign for this peer, though the token is lost
        self.known: list[int] = []  # the numbers that others say that they know of, or signed for
        self.asked = 0  # how often others were asked to sign
        self.late = False  # then whoever had it was too late
        self.handed: tuple[pr.Parcel, float] | None = None
        self.overruns: dict[int, int] = {}
        self.slow: set[int] = set()
        self.begun: float | None = None  # when somebody first showed that a visit was done
        self.deserted: float | None = None  # when this peer last saw that there was none

    async def watch(self) -> None:
        """When the lease has run out without news, ask everybody where the token is."""
        walk = self.walk
        walk.news = monotonic()
        while True:
            state = walk.state
            quick = state.watching or (state.stage == "offered" and state.unclear)
            lease = walk.limits.lease * (1.0 if quick else SLOW + APART * walk.me)
            left = walk.news + lease - monotonic()
            if pr.basis(state) is None:
                left, self.refused = walk.limits.lease, False
                await self._perhaps_give_up()
            if self.refused:
                await self._own_turn()
                if self.refused:
                    await self.look_around(overrun=self.late)
                continue
            if self._overrun():
                await self.look_around(overrun=True)
                continue
            if left > 0:
                await asyncio.sleep(min(left, walk.limits.lease / 4))
                continue
            walk.metrics.add("lease_expired_total")
            await self.look_around()
            walk.news = monotonic()

    async def _own_turn(self) -> None:
        """Wait for a lease, or until others sign for this peer if that is soon.

        Nothing is begun that could last until then: a peer that answers slowly could make it miss
        its turn.  In its turn it asks again and again.
        """
        walk = self.walk
        limits, soon = walk.limits, walk.turns.starts_in(walk.me)
        near = soon < limits.lease + 2.0 * limits.connect
        end = monotonic() + (max(soon, limits.lease / 4) if near else limits.lease)
        while self.refused and (left := end - monotonic()) > 0.0:
            await asyncio.sleep(min(left, limits.lease / 4))
            self.refused = pr.basis(walk.state) is not None

    def _overrun(self) -> bool:
        """Whether the peer that has the token should have handed it on, or taken it, by now.

        Nobody handed over the first token of a walk, but others have it too: they begin the walk
        instead, one after the other.
        """
        state, limits, now = self.walk.state, self.walk.limits, monotonic()
        parcel = pr.basis(state)
        if parcel is None:
            self.handed = None
            return False
        if self.handed is None or self.handed[0] != parcel:
            self.handed = (parcel, now)
        patience = TRIES * limits.lease
        if state.held is None:
            first = 0.0 if parcel.hop else limits.lease * (1 + self.walk.me)
            patience = self.walk.patience(self.handed[1]) + first
        if now - self.handed[1] <= patience:
            return False
        self.handed = (parcel, now)
        return True

    async def look_around(self, *, overrun: bool = False) -> None:
        """Ask all, decide, and go on from this peer's copy if the token is lost.

        Only then others are asked to sign.  Who was refused asks for that at once.
        """
        walk, again = self.walk, self.refused
        before, fence = pr.basis(walk.state), walk.state.fence
        self.asked = self.asked if again else 0
        self.refused, self.late = False, overrun
        chain = "" if before is None else before.chain
        for signed in (True,) if again else (False, True):
            asked = (chain, self._number()) if signed else ("", 0)
            seen = await self._ask(*asked)
            self._note_numbers(seen)
            learnt = (self.control_messages.learn(p, s.sighting) for p, s in seen.items())
            await asyncio.gather(*learnt)
            for peer, answer in list(seen.items()):
                if answer.sighting.over or answer.sighting.fence > walk.state.fence:
                    del seen[peer]  # it did not show what it says that it knows
                    overrun |= peer == pr.awaited(walk.state)
            if pr.basis(walk.state) != before or walk.state.fence != fence:
                # the answers are about something that is over
                self.refused = (again or overrun) and pr.basis(walk.state) is not None
                return
            answers = {p: s.sighting for p, s in seen.items()}
            if overrun:
                answers = pr.without_claims(walk.state, answers, walk.poll.rules.lies)
            verdict = pr.consider(walk.state, answers, overrun=overrun)
            if verdict.kind != "recover" or walk.stopping:
                break
        walk.journal.write("looked around", heard=sorted(answers), verdict=verdict.kind)
        if verdict.kind == "ahead":
            holder = answers.get(pr.awaited(walk.state))
            if holder and before and holder.reached > (before.generation, before.place):
                walk.handed = None  # that peer says itself that it has visited
            walk.put(pr.released(walk.state, *max(s.reached for s in answers.values())))
        elif verdict.kind == "recover" and not walk.stopping:
            records = [seen[p].record for p in answers]
            self.refused = not await self._go_on(asked[1], records, overrun=overrun)

    def _number(self) -> int:
        """The number of the next generation: above all that others know of or have signed for.

        Some may have made theirs up, so high that others do not sign for one above.  So of the
        highest none is left out at first, then one, up to as many as may lie, and none again.
        """
        walk = self.walk
        left_out = self.asked % (walk.poll.rules.lies + 1)
        self.asked += 1
        known = [walk.turns.promised, walk.state.fence[0], *self.known[left_out:]]
        return min(1 + max(known), codec.LAST_GENERATION)

    def _note_numbers(self, seen: dict[int, Seen]) -> None:
        """Note what others know of; nobody has signed for a number that is too high for now."""
        said = [max(s.sighting.fence[0], s.sighting.promised) for s in seen.values()]
        highest = self.walk.turns.highest
        self.known = sorted((number for number in said if number < highest), reverse=True)

    async def _go_on(self, number: int, records: list[dict[str, Any]], *, overrun: bool) -> bool:
        """Go on from this peer's copy, if others would believe that; whether it did."""
        walk, before = self.walk, pr.basis(self.walk.state)
        assert before is not None
        fence, lost, peers = walk.state.fence, pr.awaited(walk.state), len(walk.network.peers)
        full = opened_by(walk.me, before.lineage) >= share_of(peers)
        if full or number <= max(fence[0], walk.turns.promised):
            why = "no generation is left; begin a new network to train on"
            walk.journal.write("not recovered", reason=why)
            return True
        late = overrun and before.generation == fence and not walk.state.refused
        if not self._recover(number, records):
            await self.control_messages.announce()
            return False
        if late:  # this peer itself handed the token to that one
            self._count_overrun(lost)
        return True

    def _count_overrun(self, peer: int) -> None:
        """A peer had the token for too long: the third time it is passed over in this chapter."""
        self.overruns[peer] = self.overruns.get(peer, 0) + 1
        self.walk.journal.write("overrun", who=peer, times=self.overruns[peer])
        if self.overruns[peer] >= OVERRUNS:
            self.slow.add(peer)

    async def _ask(self, chain: str = "", number: int = 0) -> dict[int, Seen]:
        """What those say who count."""
        left = self.walk.chapter.left
        seen = await self.control_messages.ask_all(chain, number)
        return {p: s for p, s in seen.items() if p not in left}

    @property
    def idle(self) -> float:
        """For how many leases nothing of the chapter's token was ever here."""
        walk = self.walk
        if walk.chapter.spec is None or not pr.outside(walk.state):
            self.since = monotonic()
        return (monotonic() - self.since) / walk.limits.lease

    @property
    def consents(self) -> bool:
        """Whether this peer votes that the chapter is given up: it has just looked around."""
        limits = self.walk.limits
        if self.idle < CONSENT or self.deserted is None:
            return False
        return monotonic() - self.deserted < FRESH * limits.lease + limits.connect

    async def _perhaps_give_up(self) -> None:
        """Propose that a chapter is void which nobody who is there can begin."""
        walk, chapter = self.walk, self.walk.chapter
        if not pr.outside(walk.state):
            self.ends.void = self.deserted = None
            return
        if self.idle < CONSENT or monotonic() < self.again:
            return
        self.again = monotonic() + walk.limits.lease
        heard = await self._unbegun()
        if heard is None or not pr.outside(walk.state):
            self.ends.void = self.deserted = None
            return
        self.deserted = monotonic()
        if self.idle < PATIENCE * (1.0 + 0.1 * walk.me) or self.ends.void is not None:
            return
        if not walk.stopping and chapter.model:
            walk.journal.write("giving up", chapter=chapter.number, heard=heard)
            salt = secrets.token_hex(SALT)
            self.ends.void = pr.Value((0, 0), walk.start_chain, chapter.model, salt)

    async def _unbegun(self) -> list[int] | None:
        """Who says that nothing of the walk was ever there; None while it may go on.

        The peer that begins it has as long as a visit may take.  Anybody else has to show the
        first entry of its log, which counts for as long as liars can keep a token, one after the
        other: then it is all the same whether it was ever begun.
        """
        walk, limits = self.walk, self.walk.limits
        seen, shown = await asyncio.gather(self._ask(), self.control_messages.beginnings())
        for peer, answer in seen.items():
            await self.control_messages.learn(peer, answer.sighting)
        if shown and self.begun is None:
            self.begun = monotonic()
            walk.journal.write("begun", heard=sorted(shown))
        lies, turn = walk.poll.rules.lies, walk.turns.longest_wait
        held_up = (lies + 1) * longest_visit(limits, lies, turn)
        if shown and self.begun is not None and monotonic() - self.begun < held_up:
            return None
        (_, first), _ = walk.state.lineage[0]
        patient = self.idle * limits.lease <= limits.visit
        answers = {
            peer: answer.sighting
            for peer, answer in seen.items()
            if answer.sighting.reached[1] == pr.NOWHERE or (peer == first and patient)
        }
        return sorted(answers) if pr.deserted(walk.state, answers) else None

    def _recover(self, number: int, sightings: list[dict[str, Any]]) -> bool:
        """Go on from this peer's copy; False if others would refuse that."""
        walk, before = self.walk, self.walk.state
        parcel = pr.basis(before)
        assert parcel is not None
        held = pr.recover(before, number - 1, "").held
        assert held is not None
        lost = pr.awaited(before)
        body = recovery_body(
            run=walk.run_id,
            generation=held.generation,
            lineage=held.lineage,
            peer=walk.me,
            hop=held.hop,
            token=held.token,
            lost=lost,
            sightings=sightings,
        )
        try:
            walk.succession.recovery({**body, "previous": parcel.chain})
        except Refused as error:  # somebody else has a better copy, or the token is not lost
            walk.journal.write("not recovered", reason=str(error))
            return False
        entry = walk.sign(parcel.chain, body)
        move: dict[str, Any] = {}
        if parcel.hop == 0:  # nobody had it yet: this peer does the first visit
            memory = walk.work.move(1, NOBODY, {}, 0).memory
            move = move_to(NOBODY, 0, Move(walk.me, (), memory), (lost,))
        state = pr.recover(before, number - 1, entry["chain"])
        walk.turns.promised = number
        walk.put(state, move=move, entry=entry, arrival=walk.to_keep(state))
        walk.metrics.add("recoveries_total")
        walk.journal.write("recovered", lost=lost, **words_of(held))
        return True
