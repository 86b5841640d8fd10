"""A peer that no visit ever came to leaves as well, and its request is then done."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from tests.peers.deletions import Hamlet, check, network
from tests.peers.harness import carry_out
from unwalk.core.errors import InvalidInput
from unwalk.peers.daemon import has_left, run_peer
from unwalk.peers.lifecycle.leaving import LEAVING


def test_a_peer_that_was_never_visited_leaves_with_its_request_done(tmp_path):
    folder = tmp_path / "net"
    here = Hamlet(folder, network(folder, peers=3, train__hops=4))

    async def main() -> None:
        try:
            for peer in (0, 1):
                here.start(peer)
            await here.until(lambda: here.trained(0, 1))
            here.start(2)
            chapters = here.peers[2]
            assert chapters.requests is not None
            assert chapters.records is not None
            chapters.records.refresh()
            chapters.requests.submit_all("leave")
            with chapters.records.transaction(touches=False):
                chapters.records.put_fact(LEAVING, "leave")
            chapters.wake.set()
            async with asyncio.timeout(60):
                await here.tasks[2]
            chapters.store.close()
        finally:
            await here.close()

    carry_out(main())
    path = folder / "peer-2" / "store" / "records.sqlite"
    with closing(sqlite3.connect(path)) as db:
        asked = db.execute("SELECT stage, certificate FROM requests").fetchall()
    assert asked == [("done", "quiet-1")], "nobody would finish it any more"
    assert check(here, 2, "quiet-1")["peers"]["pending"] == []
    assert [has_left(folder / f"peer-{peer}" / "store") for peer in range(3)] == [
        False,
        False,
        True,
    ]
    with pytest.raises(InvalidInput, match=r"peer-2 has left the network .* for good"):
        run_peer(folder / "peer-2")
