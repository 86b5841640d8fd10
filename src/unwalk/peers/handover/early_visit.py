"""Begins a visit early: while the token that it works on is still being written down.

A visit changes nothing but the workspace and one mark, that records were used, which is taken back
(:class:`~unwalk.peers.handover.visit.Mark`).  So it may begin as soon as a token's content is known
to be in order, before its stamp has come, before it is flushed and before it is accepted.  What it
did counts only if that very token is then accepted; otherwise it is thrown away.  A visit that
draws noise does not begin early: a draw cannot be taken back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from unwalk.core.errors import Corrupt, Refused
from unwalk.core.plan import Move
from unwalk.peers.handover.checks import Offer
from unwalk.peers.handover.visit import Mark, Unusable, Visited
from unwalk.peers.handover.walk import Walk
from unwalk.peers.protocol.handover import Parcel
from unwalk.peers.storage.store import Incoming, KeptLocal
from unwalk.peers.storage.token_files import TokenFile, open_token
from unwalk.peers.transport.wire import MemoryPieces


@dataclass(frozen=True, eq=False)
class Begun:
    """A visit that is under way, and what it rests on."""

    incoming: Incoming
    file: TokenFile
    move: Move
    kept: KeptLocal | None
    mark: Mark
    result: asyncio.Future[Visited]


class EarlyVisits:
    """Visits of one service, begun early or in their turn.

    ``reading`` is true while the workspace shows a token that is still being written; ``leaving``
    is the token that is being sent from it.  Until both are over, no other visit may use it.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.begun: Begun | None = None
        self.for_nothing: asyncio.Future[Visited] | None = None
        self.reading = False
        self.leaving: MemoryPieces | None = None

    @property
    def free(self) -> bool:
        """Whether nobody reads the workspace."""
        return not self.reading and (self.leaving is None or self.leaving.gone.is_set())

    def begin(
        self, incoming: Incoming, offer: Offer, file: TokenFile, kept: KeptLocal | None
    ) -> None:
        """Begin the visit of a token that has arrived, if it ends here and nothing else runs."""
        walk = self.walk
        if len(offer.path) > 1 or walk.state.held is not None or not self.free or self.begun:
            return
        if self.for_nothing is not None and not self.for_nothing.done():
            return  # one at a time, or tokens that are not accepted could pile up work
        if walk.work.draws(offer.parcel.hop + 1):
            return
        mark = Mark()
        result = self._start(file, offer.move, kept, mark, first=False)
        self.begun = Begun(incoming, file, offer.move, kept, mark, result)

    def leave(self, incoming: Incoming) -> None:
        """The token was not accepted."""
        if self.begun is not None and self.begun.incoming is incoming:
            self.close()

    def close(self) -> None:
        """No token will be visited for which a visit has begun."""
        begun, self.begun = self.begun, None
        if begun is not None:
            self._give_up(begun)

    def _give_up(self, begun: Begun) -> None:
        """Before any other visit is begun: the same visit would count on the mark."""
        begun.mark.take_back()
        begun.result.add_done_callback(_forget)
        self.for_nothing = begun.result

    async def visit(
        self,
        parcel: Parcel,
        opened: tuple[str, TokenFile] | None,
        move: Move,
        kept: KeptLocal | None,
    ) -> Visited:
        """The visit of the token that is held."""
        begun, self.begun = self.begun, None
        file = opened[1] if opened is not None and opened[0] == parcel.token else None
        if begun is not None:
            if begun.file is file and (begun.move, begun.kept) == (move, kept):
                return await begun.result
            self._give_up(begun)
        if self.leaving is not None:
            await self.leaving.gone.wait()
        if file is None:
            walk, loop = self.walk, asyncio.get_running_loop()
            await loop.run_in_executor(walk.hashing, walk.store.check_file, parcel.token)
            file = await self._opened(parcel)
        return await self._start(file, move, kept, Mark(), first=parcel.hop == 0)

    async def _opened(self, parcel: Parcel) -> TokenFile:
        """The token that is held, from its file: taken before this peer was started."""
        walk, path = self.walk, self.walk.store.file(parcel.token)
        if not parcel.hop:  # what the walk begins with comes from another walk, or from nobody
            return open_token(path, len(walk.network.peers))
        try:
            file = walk.gate.open(path)
            walk.gate.content(parcel, file)
            walk.gate.agrees(file, await walk.place(parcel.chain))
        except (Corrupt, Refused) as error:
            raise Unusable(str(error)) from error
        return file

    def _start(
        self, file: TokenFile, move: Move, kept: KeptLocal | None, mark: Mark, *, first: bool
    ) -> asyncio.Future[Visited]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self.walk.visits, self._work, file, move, kept, mark, first)

    def _work(
        self, file: TokenFile, move: Move, kept: KeptLocal | None, mark: Mark, first: bool
    ) -> Visited:
        walk = self.walk
        local = walk.store.read_local(kept)
        return walk.work.visit(
            file.token(),
            move,
            local,
            first=first,
            read=file.give_back,
            mark=mark,
            largest=walk.limits.weight,
        )


def _forget(result: asyncio.Future[Visited]) -> None:
    if not result.cancelled():
        result.exception()
