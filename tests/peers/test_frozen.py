"""A model of which a part is not trained, at real peers: agreed on by its digest, and not sent."""

from __future__ import annotations

import pytest
import torch

from tests.peers.deletions import ask, check, ended, hamlet, network, trained_on
from tests.tasks.own_frozen import Base
from unwalk.core.errors import InvalidInput
from unwalk.core.token import Token, Workspace, build_model
from unwalk.peers.forgetting.plans import Book
from unwalk.peers.handover.visit import assembled_of, plan_of, token_size
from unwalk.peers.storage.token_files import open_token

HEAD = "tests.tasks.own_frozen:head"


def test_a_peer_with_another_frozen_part_is_refused_before_the_first_visit(tmp_path, monkeypatch):
    made = network(tmp_path / "net", peers=3, model__name=HEAD)
    digest = made.settings["model.frozen_digest"]
    assert digest == Book(made).assembled.model.frozen.digest
    whole = Base.__init__

    def other(self, inputs: int) -> None:
        whole(self, inputs)
        self.layer.weight.data[3, 1] += 1e-3

    monkeypatch.setattr(Base, "__init__", other)
    with pytest.raises(InvalidInput, match="need the same frozen parameters, which never travel"):
        plan_of(made)


def test_peers_forget_exactly_on_top_of_it(tmp_path):
    measured = []

    async def script(here):
        await here.until(here.trained)
        measured.append(accuracies(here.peers[1]))
        ask(here, 2, "a", trained_on(here, 2)[0], grade="exact")
        await here.until(ended(here, a=2))
        file = open_token(here.peers[2].store.file(here.peers[2].service.state.committed.token), 3)
        travelled = {name: tuple(tensor.shape) for name, tensor in file.tensors.items()}
        assert travelled == {"parameters": (27,), "buffer/1.offset": (8,)}

    settings = {"train__hops": 4, "train__state": "local", "model__name": HEAD}
    here = hamlet(tmp_path, script, peers=3, hold_out=0.5, **settings)
    document = check(here, 2, "chapter-1")
    (claim,) = document["claims"]
    assert claim["grade"] == "exact"
    facts = document["parameters"]
    digest = here.network.settings["model.frozen_digest"]
    assert (facts["frozen"], facts["frozen_digest"]) == (56, digest)
    assert token_size(assembled_of(here.network)) < 1200
    ((shown, right),) = measured
    assert shown == right


def accuracies(peer) -> tuple[float, float]:
    """What a peer's page shows of its last token, and what is right."""
    digest, held = peer.service.state.committed.token, peer.records.hold_out()
    path, plan = peer.store.file(digest), peer.service.work.plan
    work = Workspace(build_model(plan.task.model, plan.seeds.integer("model")))
    work.load(Token.from_bytes(path.read_bytes()))
    with torch.no_grad():
        right = (work.model.eval()(held.x).argmax(1) == held.y).float().mean()
    return peer.accuracy_meter._measure(path, digest, held), float(right)
