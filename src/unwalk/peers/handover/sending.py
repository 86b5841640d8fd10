"""Sends the token: offers it until the next peer answers, or certainly did not get it."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from unwalk.core.errors import Corrupt, UnwalkError
from unwalk.peers.handover.control_messages import ControlMessages
from unwalk.peers.handover.log_rules import MOST_ENTRIES
from unwalk.peers.handover.moves import words_of
from unwalk.peers.handover.walk import Walk
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Parcel, PeerState, Reply
from unwalk.peers.storage.store import Arrival
from unwalk.peers.transport.wire import MESSAGE, FilePieces, MemoryPieces, Unreachable
from unwalk.walks import NOBODY

PAUSE = 0.2
"""Seconds before the same peer is tried again."""


class TokenSender:
    """The sending side of one walk."""

    def __init__(self, walk: Walk, control_messages: ControlMessages) -> None:
        self.walk, self.control_messages = walk, control_messages
        self.early: tuple[Parcel, asyncio.Task[bytes]] | None = None
        self.offered = 0.0
        self._gathered: tuple[str, int, bytes] = ("", NOBODY, b"")
        self._worded: tuple[Any, bytes] = (None, b"")

    def envelope(self, state: PeerState, move: dict[str, Any], size: int) -> bytes:
        """What goes before a token of that size."""
        assert state.held is not None
        about = state.held, state.path, move, size
        if self._worded[0] != about:
            public_move = {k: v for k, v in move.items() if k not in ("passed_over", "sender")}
            words = self.control_messages.words(
                ms.Offer,
                parcel=codec.bare_parcel_of(state.held),
                path=state.path,
                move=ms.Way(**public_move),
                passed_over=move.get("passed_over", []),
                size=size,
            )
            self._worded = about, words
        return self._worded[1]

    def send(
        self, state: PeerState, move: dict[str, Any], pieces: FilePieces | MemoryPieces
    ) -> asyncio.Task[bytes]:
        """Start to hand the token over."""
        walk = self.walk
        envelope = self.envelope(state, move, pieces.size)
        hand = walk.transport.hand(state.path[0], envelope, pieces, walk.limits.lease)
        self.offered = monotonic()
        task = asyncio.create_task(hand)
        task.add_done_callback(lambda _: pieces.close())
        self.control_messages.tasks[task] = None
        task.add_done_callback(self.control_messages.ended)
        return task

    def log(self, chain: str, target: int) -> bytes:
        """The entries up to ``chain`` that ``target`` may not know, the latest first."""
        if self._gathered[:2] != (chain, target):
            self._gathered = chain, target, self._gather(chain, target)
        return self._gathered[2]

    def _gather(self, chain: str, target: int) -> bytes:
        entries: list[Any] = []
        store, run = self.walk.store, self.walk.run_id
        while len(entries) < MOST_ENTRIES and (entry := store.entry(run, chain)) is not None:
            body = entry["body"]
            if body["peer"] == target:  # it made that one, and knew what came before
                break
            entries.append(entry)
            chain = body["previous"]
        while len(data := codec.dump({"log": entries})) > MESSAGE:
            entries = entries[: len(entries) // 2]
        return data

    async def offer(self) -> None:
        """Offer the token that is here to whoever is next."""
        walk = self.walk
        state, parcel = walk.state, walk.state.held
        assert parcel is not None
        target = state.path[0]
        begun, self.early = self.early, None
        if begun is None or begun[0] != parcel:
            entry = walk.store.entry(walk.run_id, parcel.chain) or {}
            log = self.log(entry.get("body", {}).get("previous", ""), target)
            pieces = FilePieces(walk.store.file(parcel.token), codec.dump(entry), log)
            begun = parcel, self.send(state, walk.open_move, pieces)
        size = walk.store.file(parcel.token).stat().st_size  # later it may be gone
        try:
            record = codec.parse(await begun[1], 1 << 18)
            reply, reason = codec.reply_from(record)
        except (UnwalkError, TimeoutError, OSError) as error:
            certain = isinstance(error, Unreachable) and error.certain
            await self._not_delivered(parcel, target, certain=certain, why=str(error))
            return
        except asyncio.CancelledError:
            begun[1].cancel()
            raise
        if reply.kind in ("refused", "busy"):
            await self._look_at_file(parcel)
            await self._not_delivered(parcel, target, certain=True, why=reason or reply.kind)
            return
        if reply.kind in ("stale", "over"):
            if not await self._shown(target, reply):  # so it refuses the token, for any reason
                why = f"{reply.kind}, not shown how"
                await self._not_delivered(parcel, target, certain=True, why=why)
            return
        before = int(walk.open_move.get("sender", NOBODY))
        opened = walk.state.public is not None
        kept = None
        if record["first"] is True and reply.kind == "accepted" and walk.state.held == parcel:
            kept = Arrival(parcel.generation, parcel.hop, target, parcel.token)
        walk.put(pr.answered(walk.state, parcel, reply), arrival=kept)
        if reply.kind == "accepted":
            walk.metrics.add("tokens_handed_total")
            walk.metrics.add("bytes_handed_total", size)
            times = {"offered": self.offered, "at": monotonic()}
            walk.journal.write("handed", to=target, **times, **words_of(parcel))
            self.control_messages.after_handing(parcel, before, opened=opened)

    async def _look_at_file(self, parcel: Parcel) -> None:
        """A token was refused: this peer stops if its own file of it is damaged."""
        walk, loop = self.walk, asyncio.get_running_loop()
        try:
            await loop.run_in_executor(walk.hashing, walk.store.check_file, parcel.token)
        except (Corrupt, FileNotFoundError):
            if walk.state.held == parcel:  # else it was not needed any more
                raise

    async def _shown(self, target: int, reply: Reply) -> bool:
        """Whether a peer that knows of a later generation, or of the end, has shown it."""
        walk = self.walk
        if reply.kind == "stale":
            return await self.control_messages.hear_fence(target, reply.fence)
        await self.control_messages.hear_end(target)
        return walk.state.committed is not None

    async def _not_delivered(self, parcel: Parcel, target: int, *, certain: bool, why: str) -> None:
        walk = self.walk
        if walk.state.held == parcel and walk.state.stage == "offered":
            walk.put(pr.failed(walk.state, certain=certain))
            if walk.state.stage == "visited":
                walk.metrics.add("passed_over_total")
                walk.journal.write("passed over", to=target, why=why[:300], **words_of(parcel))
            else:
                walk.journal.write("unclear", to=target, why=why[:300], **words_of(parcel))
        if walk.state.unclear:
            await walk.pause(PAUSE)
