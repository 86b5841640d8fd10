"""Training begins when those are up that the network file names, or a quorum does without them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.peers.deletions import Hamlet, network
from tests.peers.harness import ROUTE, carry_out
from unwalk.core.errors import InvalidInput
from unwalk.peers.identity.network_file import Network
from unwalk.peers.lifecycle.beginning import begin_without
from unwalk.peers.protocol import messages as ms
from unwalk.peers.status import status
from unwalk.peers.storage.database import BEGINNING


def lived(tmp_path, script, peers=4, **more):
    """``script(hamlet)`` with no peer up yet."""
    folder = tmp_path / "net"
    here = Hamlet(folder, network(folder, peers=peers, **{"begin_with": None, **more}))

    async def main() -> None:
        try:
            await script(here)
        finally:
            await here.close()

    carry_out(main())
    return here


def hop(here: Hamlet, *peers: int) -> int:
    return max(here.peers[p].service.state.reached[1][0] for p in peers or here.peers)


def begun(here: Hamlet, peer: int) -> bool:
    return here.peers[peer].beginning.begun


def named(here: Hamlet, peer: int):
    return status(here.folder / f"peer-{peer}").get("waits_for")


def test_training_waits_for_the_last_peer_which_takes_part_from_the_beginning(tmp_path):
    async def script(here):
        for peer in (0, 1, 2):
            here.start(peer)
        await here.until(lambda: all(named(here, p) == ["peer-3"] for p in range(3)))
        await asyncio.sleep(60.0)  # ten leases and more: nobody takes the first token for lost
        assert hop(here) == 0
        assert all(p.service.state.fence[0] == 0 for p in here.peers.values())
        here.start(3)
        await here.until(here.trained)
        assert {named(here, p) for p in range(4)} == {None}

    here = lived(tmp_path, script)
    assert "training waits" in {e["event"] for e in here.events}


def test_only_those_are_waited_for_that_the_network_file_names(tmp_path):
    async def script(here):
        here.start(0)
        here.start(1)
        await here.until(lambda: named(here, 0) == named(here, 1) == ["peer-2"])
        here.start(2)
        await here.until(lambda: here.trained(0, 1, 2))

    lived(tmp_path, script, begin_with=["peer-0", "peer-2"])


def test_a_quorum_of_operators_does_without_a_peer_that_comes_later(tmp_path):
    async def script(here):
        for peer in (0, 1, 2):
            here.start(peer)
        for peer in (0, 1):
            begin_without(here.folder / f"peer-{peer}", ["peer-3"])
        await asyncio.sleep(20.0)
        assert not any(begun(here, p) for p in range(3))  # two of four are no quorum
        begin_without(here.folder / "peer-2", ["peer-3"])
        await here.until(lambda: here.trained(0, 1, 2))
        here.start(3)  # it hears from more peers than may lie that training has begun
        await here.until(here.trained)

    lived(tmp_path, script)


def test_a_peer_that_starts_again_goes_on_while_another_is_away(tmp_path):
    async def script(here):
        for peer in range(4):
            here.start(peer)
        await here.until(lambda: hop(here) > 2)
        await here.crash(1)
        await here.crash(2)
        here.start(2)
        assert begun(here, 2)  # it stands in its store
        (here.folder / "peer-1" / "store" / BEGINNING).unlink()
        await here.until(lambda: here.trained(0, 2, 3))

    lived(tmp_path, script, train__hops=40)


def test_a_member_that_begins_alone_finds_nobody_who_takes_its_token(tmp_path):
    async def script(here):
        for peer in range(3):
            here.start(peer)
        await here.until(lambda: all(named(here, p) == ["peer-3"] for p in range(3)))
        liar = next(p for p in range(3) if here.peers[p].service.state.held is not None)
        here.peers[liar].beginning.begun = True
        here.peers[liar].service.changed.set()
        honest = [p for p in range(3) if p != liar]
        await here.until(lambda: here.peers[liar].service.state.reached[1][0] == 1)
        await asyncio.sleep(30.0)
        assert not any(begun(here, p) for p in honest)
        assert hop(here, *honest) <= 0
        assert any("training has not begun here: peer-3 is" in str(e) for e in here.events)
        here.start(3)
        await here.until(here.trained)

    # the walk begins at one of the three that are up
    lived(tmp_path, script, seed=ROUTE)


def test_made_up_answers_do_not_begin_training(tmp_path):
    """One of four says that it has begun, and that its operator does without everybody."""

    async def script(here):
        for peer in range(3):
            here.start(peer)
        await here.until(lambda: named(here, 0) == ["peer-3"])
        next_chapter = here.peers[1].next_chapter
        for fields in ({"begun": True, "without": [0, 1, 2, 3]}, {"begun": False, "without": [3]}):
            said = ms.decode(next_chapter.words(ms.AgendaBegin, **fields), 4096)
            for _ in range(5):
                here.peers[0].beginning._answer(1, said)
        assert not begun(here, 0)
        wrong = ({"begun": 1, "without": []}, {"begun": True, "without": [-1]})
        answers: list[Any] = [None, [], {}, *wrong]
        for answer in answers:

            async def lying(peer, message, field, answer=answer):
                return answer

            here.peers[0].next_chapter.ask = lying
            await here.peers[0].beginning.look()
        assert not begun(here, 0)

    lived(tmp_path, script)


def test_what_an_operator_may_say(tmp_path):
    made = network(tmp_path / "net", peers=3, begin_with=["peer-1", "peer-2"])
    bundle = tmp_path / "net" / "peer-1"
    for name, why in (
        ("peer-1", "is peer-1 itself; allowed: the folder of another peer"),
        ("peer-9", "is no peer of network"),
        ("peer-0", "training does not wait for peer-0; it waits for: peer-1, peer-2"),
    ):
        with pytest.raises(InvalidInput, match=why):
            begin_without(bundle, [name])
    assert not (bundle / "begin.json").exists()
    begin_without(bundle, ["peer-2"])
    (bundle / "begin.json").write_text("[1")
    with pytest.raises(InvalidInput, match=r"begin\.json cannot be read; make it again"):
        Hamlet(tmp_path / "net", made).start(1)


def test_the_network_file_says_with_whom(tmp_path):
    made = network(tmp_path / "net", begin_with=["peer-2"])
    assert made.first_up == {2}
    again = Network.from_json(json.loads(json.dumps(made.to_json())), "a file")
    assert again == made
    old = made.to_json()
    del old["begin_with"]
    assert Network.from_json(old, "a file").first_up == {0, 1, 2, 3}
    with pytest.raises(InvalidInput, match="'peer-7' is no peer of network"):
        network(tmp_path / "other", begin_with=["peer-7"])
