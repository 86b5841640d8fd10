"""Takes part in one decision: votes on disk and on the wire, time-outs from a clock.

The rules are in :mod:`unwalk.peers.protocol.consensus`.  A peer writes its votes down before it
shows them.  It shows every other peer all that it needs to catch up: whenever its own part changes,
and once in a while.  The answer shows the same of the other peer.  So a peer that was away catches
up with one message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import Corrupt, Refused, UnwalkError
from unwalk.peers.decisions.votes import (
    HEARD,
    LONGEST_TEXT,
    Clerk,
    Matter,
    state_from,
    state_to,
)
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import consensus as de
from unwalk.peers.protocol.consensus import Decision, State, Votes

if TYPE_CHECKING:
    from unwalk.peers.storage.store import Store
    from unwalk.peers.telemetry import Journal

SCHEMA = """
CREATE TABLE IF NOT EXISTS polls (
    matter TEXT PRIMARY KEY, state TEXT NOT NULL, texts TEXT NOT NULL);
"""
AGAIN = 1.0
"""Seconds after which a peer shows what it knows once more; longer among more than ten, since all
show it to all."""
TICK, IDLE = 0.02, 0.1
"""Seconds between looks at what can be done, while there is something to decide or nothing."""
SLOWER = 1.25
LONGEST = 10.0
"""Seconds that a step waits at most; each round waits a little longer than the one before."""
TEXTS = 2
"""Texts that are shown with votes: of what is proposed, and of the latest polka."""
FIELDS = (*HEARD, "texts", "offer")

Tell = Callable[[int, dict[str, Any]], Awaitable[Any]]


class Fork(UnwalkError):
    """Two things were decided where one can be: more peers lie than the network allows for."""


def end_of(run: str) -> str:
    """The name of the matter that a walk's end is."""
    return f"the end of {run}"


def pace_of(limits: Limits) -> float:
    """Seconds that the first round of a vote waits for a step."""
    return min(2.0, max(0.15, limits.connect / 10.0))


def stored(store: Store, matter: str) -> tuple[dict[str, Any], dict[str, str]] | None:
    """What is on disk of a decision: this peer's part in it, and the values by digest."""
    store.db.executescript(SCHEMA)
    row = store.db.execute("SELECT state, texts FROM polls WHERE matter = ?", (matter,)).fetchone()
    return None if row is None else (json.loads(row[0]), json.loads(row[1]))


def keep(store: Store, matter: str, state: State, texts: dict[str, str]) -> None:
    """Write votes down, before anybody is shown them."""
    store.db.executescript(SCHEMA)
    row = (matter, json.dumps(state_to(state)), json.dumps(texts))
    with store.transaction(promise=True) as db:
        db.execute("INSERT OR REPLACE INTO polls VALUES (?, ?, ?)", row)


def forget_texts(store: Store, matter: str) -> None:
    """Erase what was decided; the votes stay, which tell nothing without it."""
    store.db.executescript(SCHEMA)
    with store.transaction() as db:
        db.execute("UPDATE polls SET texts = '{}' WHERE matter = ?", (matter,))


class Poll:
    """One peer's part in one decision.

    ``judge`` says whether this peer stands for a value now, given its text and whether a quorum
    has voted for it before.  ``offer`` is what it would have decided itself, if anything.  ``told``
    hears of the decision, once it is written down.  ``tell`` shows something to another peer.
    ``digest`` makes of a text the value that is voted on; a text that it refuses is not kept.
    """

    def __init__(
        self,
        clerk: Clerk,
        store: Store,
        journal: Journal,
        matter: Matter,
        *,
        judge: Callable[[str, bool], bool],
        offer: Callable[[], str | None],
        told: Callable[[str, Decision], None],
        tell: Tell,
        pace: float,
        digest: Callable[[str], str],
    ) -> None:
        self.clerk, self.store, self.journal, self.matter = clerk, store, journal, matter
        self.judge, self.offer, self.told, self.tell, self.pace = judge, offer, told, tell, pace
        self.digest, self.me = digest, clerk.bundle.index
        self.texts: dict[str, str] = {}
        self.offers: dict[int, str] = {}
        self.fork: str | None = None
        self.forked = asyncio.Event()
        self.state, self.network = State(self.me), clerk.trust.network
        found = stored(store, matter.name)
        if found is not None:
            state = state_from(found[0], len(clerk.bundle.network.peers))
            self.texts = found[1] if state.decided else self._read(found[1].values())
            self.state = clerk.sign(matter, clerk.in_force(matter, state))
        self.since = monotonic()
        self.news = asyncio.Event()

    @property
    def rules(self) -> de.Rules:
        return self.matter.rules

    @property
    def decided(self) -> Decision | None:
        return self.state.decided

    @property
    def counts(self) -> bool:
        """Whether this peer is one of those who decide."""
        return self.me in self.rules.members

    @property
    def active(self) -> bool:
        """Whether there is anything to decide that this peer can help with.

        Another peer's vote or proposal that this peer does not support is no reason to go through
        a round; a quorum's vote is one, and so is a decision that others may not know.
        """
        state = self.state
        if state.decided is not None or state.chain or state.locked != de.NEVER:
            return True
        wished = (text for text in self.offers.values() if self.judge(text, False))
        return self.offer() is not None or bool(self._good(state)) or any(wished)

    def _named(self, state: State) -> set[str]:
        """The values that matter now: proposed, voted for, locked on, or decided."""
        if state.decided is not None:
            return {state.decided.value}
        return _proposed(state) | _polled(state) | ({state.lock} - {de.NIL})

    def _shown(self, state: State) -> set[str]:
        """The values whose texts others need; a leader that proposes two has none of them shown."""
        if state.decided is not None:
            return {state.decided.value}
        proposed, found = _proposed(state), de.head(state.chain)
        return (proposed if len(proposed) == 1 else set()) | (
            set() if found is None else {found[1]}
        )

    def _read(self, texts: Iterable[str]) -> dict[str, str]:
        """Texts by the values that they stand for, without those that are refused here."""
        found = {}
        for text in texts:
            try:
                found[self.digest(text)] = text
            except UnwalkError as error:
                self.journal.write("refused", reason=str(error)[:300])
        return found

    def _good(self, state: State) -> set[str]:
        """The values that this peer stands for."""
        known = [(v, self.texts[v]) for v in self._named(state) if v in self.texts]
        return {v for v, text in known if self.judge(text, v in _polled(state))}

    # What is shown

    def record(self) -> dict[str, Any]:
        """All that another peer is shown; as long as a message may be, whoever lies."""
        self._look_again()
        texts = [self.texts[v] for v in sorted(self._shown(self.state)) if v in self.texts]
        offer = self.offer() if self.state.decided is None and self.counts else None
        return {**self.clerk.show(self.state), "texts": texts, "offer": offer}

    def hear(self, sender: int, record: Any) -> None:
        """Take over what another peer shows; refused where anything in it is wrong."""
        self._look_again()
        found = codec.fields_of(record, "what a peer shows", *FIELDS)
        texts = codec.listed(found["texts"], "texts", most=TEXTS)
        offers = [] if found["offer"] is None else [found["offer"]]
        for text in (*texts, *offers):
            if not isinstance(text, str) or not text.isascii() or long_text(text):
                raise Corrupt("a value is no short plain text.")
        known = self._read(text for text in texts if text not in self.texts.values())
        with codec.reading("what a peer shows"):
            heard = self.clerk.heard(self.matter, found, self.state)
        self._check_fork(heard.decided)
        if self.state.decided is not None:
            return
        fresh = sender in self.rules.members and self.offers.get(sender) not in offers
        if offers and fresh and self._read(offers):
            self.offers[sender] = offers[0]
        if heard.decided is not None and heard.decided.value not in {**self.texts, **known}:
            raise Refused("a decision came without what was decided.")
        self.texts = {**known, **self.texts}
        self._put(self._stepped(self._after(heard)))

    def _after(self, heard: de.Heard) -> State:
        """What follows from what was heard; nothing from votes for what nobody here can read."""
        latest = de.head(self.state.chain)
        newer = {c for c in heard.chains if latest is None or _head(c)[0] > latest[0]}
        unread = {c for c in newer if _head(c)[1] not in self.texts}
        heard = replace(heard, chains=tuple(c for c in heard.chains if c not in unread))
        after = de.hear(self.state, self.rules, heard)
        found = de.head(after.chain)
        if found is None or found[1] in self.texts:
            return after
        votes = frozenset(v for v in heard.votes if v.value in {*self.texts, de.NIL})
        return de.hear(self.state, self.rules, replace(heard, votes=votes))

    def _look_again(self) -> None:
        """Once the network file has changed: what was voted with revoked certificates is gone."""
        if self.network is not self.clerk.trust.network:
            self.network = self.clerk.trust.network
            self._put(self.clerk.in_force(self.matter, self.state))

    def answer(self, sender: int, record: Any) -> dict[str, Any]:
        """The answer to what another peer shows."""
        self.hear(sender, record)
        return self.record()

    def _check_fork(self, other: Decision | None) -> None:
        mine = self.state.decided
        if other is None or mine is None or other.value == mine.value:
            return
        if de.check_decision(self.rules, other):
            names = self.clerk.bundle.network.peers
            liars = sorted(de.blame(mine, other))
            said = ", ".join(names[p].name for p in liars)
            self.fork = (
                f"two things were decided about {self.matter.name}, which only lies make "
                f"possible; two votes that no honest peer casts both are signed by: {said}."
            )
            self.forked.set()
            self.journal.write("fork", matter=self.matter.name, liars=liars)
            raise Fork(self.fork)

    # What this peer does by itself

    def _stepped(self, state: State) -> State:
        """Everything that follows now, without waiting."""
        if not self.counts:
            return state
        good = self._good(state)
        if de.may_propose(state, self.rules):
            value = de.to_propose(state)
            text = None if value else self._to_offer()
            if text is not None:
                value = self.digest(text)
                self.texts[value] = text
                good = good | {value}
            if value:
                return de.propose(state, self.rules, value, good)
        return de.advance(state, self.rules, good)

    def _to_offer(self) -> str | None:
        """What to propose: this peer's own, or what another would have and this one stands for."""
        own = self.offer()
        if own is not None:
            return own
        count = len(self.rules.members)
        turns = sorted(self.offers, key=lambda p: (p - self.state.round) % count)
        return next((self.offers[p] for p in turns if self.judge(self.offers[p], False)), None)

    def _put(self, state: State) -> None:
        """Written first, then true."""
        before, state = self.state, self.clerk.sign(self.matter, state)
        named = self._named(state)
        self.texts = {v: text for v, text in self.texts.items() if v in named}
        if self._mine(state) != self._mine(before):
            keep(self.store, self.matter.name, state, self.texts)
            self.state = state
            self.store.fault("vote written")
            self.news.set()
            self.news = asyncio.Event()
        self.state = state
        if (state.round, state.step) != (before.round, before.step):
            self.since = monotonic()
        for one, other in state.evidence[len(before.evidence) :]:
            self.journal.write(
                "liar", who=one.voter, matter=self.matter.name, votes=[_words(one), _words(other)]
            )
        if state.decided is not None and before.decided is None:
            self.told(self.texts[state.decided.value], state.decided)

    def _mine(self, state: State) -> Any:
        own = frozenset(v for v in state.votes if v.voter == self.me)
        return state.round, state.step, own, de.head(state.chain), state.decided, state.evidence

    def step(self) -> None:
        """What can be done now; a step that has waited long enough ends."""
        self._look_again()
        if self.state.decided is not None or not self.counts:
            return
        if not self.active:
            self.since = monotonic()
            return
        after = self._stepped(self.state)
        if after == self.state and monotonic() - self.since > self.patience:
            after = de.timed_out(self.state, self.rules, self._good(self.state))
            self.since = monotonic()
        if after != self.state:
            self._put(after)

    @property
    def patience(self) -> float:
        """Seconds that the present step waits."""
        return min(LONGEST, self.pace * SLOWER ** min(self.state.round, 40))

    async def run(self) -> None:
        """Take part until it is decided and everybody who can be reached knows."""
        others = [p for p in range(len(self.clerk.bundle.network.peers)) if p != self.me]
        showing = [asyncio.create_task(self._show(p)) for p in others]
        try:
            while self.state.decided is None:
                self.step()
                await asyncio.sleep(TICK if self.active else IDLE)
            await asyncio.wait(showing, timeout=LONGEST) if showing else None
        finally:
            for task in showing:
                task.cancel()
            await asyncio.gather(*showing, return_exceptions=True)

    async def _show(self, peer: int) -> None:
        """Show one other peer what is known here, until it is decided.

        Votes are shown once also where there is nothing to decide: only so is one who votes
        otherwise to each peer found out.
        """
        shown: Votes = frozenset()
        again = max(AGAIN, AGAIN * len(self.network.peers) / 10.0)
        while True:
            news, decided, votes = self.news, self.state.decided, self.state.votes
            if self.active or votes != shown:
                shown = votes if await self.show(peer) else shown
                if decided is not None:
                    return
            try:
                async with asyncio.timeout(again):
                    await news.wait()
            except TimeoutError:
                continue

    async def show(self, peer: int) -> bool:
        """Show another peer what is known here, and hear what it knows; whether it answered."""
        record = await self.tell(peer, self.record())
        if record is None:
            return False
        try:
            self.hear(peer, record)
        except Fork:
            raise
        except UnwalkError as error:
            self.journal.refused(peer, error)
            return False
        return True


def long_text(text: str) -> bool:
    """Whether a text is longer in a message than a value may be."""
    return len(json.dumps(text)) > LONGEST_TEXT


def _proposed(state: State) -> set[str]:
    return {v.value for v in state.votes if v.kind == de.PROPOSE}


def _head(chain: de.Chain) -> tuple[int, str, int]:
    found = de.head(chain)
    assert found is not None
    return found


def _polled(state: State) -> set[str]:
    """The values that a quorum has voted for, as far as is known."""
    chains = (state.chain, state.proof)
    return {head[1] for chain in chains if (head := de.head(chain)) is not None}


def _words(vote: de.Vote) -> str:
    return f"{vote.kind} {vote.round} {vote.value[:16] or 'nothing'} since {vote.since}"
