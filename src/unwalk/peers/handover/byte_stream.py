"""The bytes of a token as they arrive: counted, hashed and written while more are on their way.

What is done with every byte of a token on one hop, and why it cannot be left out:

* The sender copies it into a message, since gRPC takes nothing but ``bytes``; hashes it, for the
  stamp that it signs; writes and flushes it, to have it if the next peer dies.  The three go on at
  once.  It packs nothing: a token's file is its header and the workspace's own memory.
* TLS and gRPC encrypt, copy and decrypt it: about half of a hop's processor time.  A plain TLS
  socket in Python takes no less.
* The receiver hashes it, to know whether the stamp is about these bytes; writes and flushes it,
  since with its answer it is the only one who has the token; looks whether each number is finite
  and not too large, reading the pages that were just written; and copies it into the workspace,
  which belongs to the visit.  Hashing and writing go on while it arrives, flushing and looking
  beside each other when it is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from unwalk.core.errors import Corrupt
from unwalk.peers.handover.walk import Walk
from unwalk.peers.storage.store import Incoming

AHEAD = 4
"""So many pieces may have arrived that are not hashed and written yet."""


async def begun(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same once the first of them is there: an offer may come long before its token."""
    first = await anext(chunks, b"")

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return all_of_them()


async def pieces(chunks: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The pieces of ``size`` bytes; what follows them stays in ``chunks``."""
    left = size
    while left > 0:
        piece = await anext(chunks, b"")
        if not piece:
            raise Corrupt(f"the token has {size - left} bytes instead of {size}.")
        left -= len(piece)
        if left < 0:
            raise Corrupt(f"the token is longer than the {size} bytes announced.")
        yield piece


async def receive_bytes(walk: Walk, incoming: Incoming, chunks: AsyncIterator[bytes]) -> None:
    """Hash and write, each in a thread of its own, while the next pieces are on their way."""
    loop = asyncio.get_running_loop()
    working: deque[asyncio.Future[None]] = deque()
    try:
        async for chunk in pieces(chunks, incoming.size):
            working.append(loop.run_in_executor(walk.hashing, incoming.hash_part, chunk))
            working.append(loop.run_in_executor(walk.disk, incoming.put_part, chunk))
            while len(working) > 2 * AHEAD:
                await working.popleft()
    finally:
        await asyncio.gather(*working)
