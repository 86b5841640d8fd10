"""Networks of either version of public streams: what receivers draw again from the seed.

``version_1`` holds the file of a network and a certificate with its signed visits, both made before
there was a version 2.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.peers.deletions import vouched
from unwalk.certificates.document import read_certificate
from unwalk.core.seeds import VERSION
from unwalk.core.transcript import Transcript
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.certificate_archive import unpack
from unwalk.peers.forgetting.plans import Book
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.identity.credentials import read_certificate as read_authority
from unwalk.peers.identity.network_file import Member, Network
from unwalk.peers.identity.trust import read_network
from unwalk.peers.provision import make_network

SETTINGS = {"task": "blobs", "data.records": 20, "train.hops": 6, "train.batch": 8}
OLD = Path(__file__).parent / "version_1"
ADDRESSES = [f"127.0.0.1:{9000 + number}" for number in range(4)]


def moves(network):
    work = Work(plan_of(network), 0)
    return [work.move(hop, 1, {}, again).receiver for hop in range(2, 7) for again in (0, 1, 2)]


def test_a_network_file_that_says_nothing_keeps_its_run_and_its_routes():
    """The numbers were written down before there was a version 2."""
    members = tuple(Member(f"peer-{n}", address) for n, address in enumerate(ADDRESSES))
    old = Network("old", members, SETTINGS, noise="simulation")
    assert old.run_id == "72d4097e4323d4ac815a1bd949d252bf"
    assert moves(old) == [2, 3, 3, 3, 0, 0, 3, 3, 2, 3, 0, 2, 2, 0, 0]
    assert "streams" not in plan_of(old).header()


def test_a_certificate_of_an_earlier_network_is_verified_and_its_routes_are_drawn_again(
    tmp_path, monkeypatch
):
    made = dt.datetime(2026, 11, 17, tzinfo=dt.UTC)  # who signed it was known for a year
    monkeypatch.setattr(peer_certificate, "now", lambda: made)
    place = unpack(OLD / "chapter-1.zip", tmp_path)
    vouched(place, OLD / "ca.pem")
    assert [claim["grade"] for claim in read_certificate(place)["claims"]] == ["exact"]
    network = read_network(OLD / "network.json", read_authority(OLD / "ca.pem"))
    assert "streams" not in network.settings
    transcript = Transcript.read(tmp_path / "transcript.jsonl")
    training = Book(network).training
    assert training.seeds.streams == 1
    work, at = Work(training, 0), -1
    memory: Mapping[str, int] = {}
    trained = [hop for hop in transcript.hops if hop.phase == "train"]
    assert len(trained) == training.hops == 5
    for hop in trained:
        move = work.move(hop.phase_hop, at, memory, 0)
        assert move.receiver == hop.receiver
        at, memory = move.receiver, move.memory


def test_a_new_network_names_its_version(tmp_path):
    folder = tmp_path / "network"
    new = make_network(
        folder, name="new", addresses=ADDRESSES, settings=SETTINGS, noise="simulation"
    )
    assert new.settings["streams"] == VERSION == 2
    assert plan_of(new).header()["streams"] == 2
    named = replace(new, settings={**new.settings, "streams": 1})
    unsaid = {key: value for key, value in new.settings.items() if key != "streams"}
    assert moves(named) == moves(replace(new, settings=unsaid)) != moves(new)
