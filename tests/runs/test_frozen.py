"""A model of which a part is not trained: it is named by a digest, and does not travel."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.runs.own_records import blobs
from tests.tasks.own_frozen import head
from tests.tasks.test_adapters import SETTINGS, Sentences
from unwalk import Deletion, from_dataset, run
from unwalk.certificates import read_certificate, verify
from unwalk.core.errors import InvalidInput
from unwalk.core.token import FrozenPart, Workspace, build_model
from unwalk.core.transcript import Transcript
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import run as run_config
from unwalk.settings.config import run_id
from unwalk.tasks import from_arrays

WALK = {
    "compare": [],
    "train.state": "fresh",
    "train.hops": 6,
    "unlearn.hops": 4,
    "evaluate.every": 100,
}


def sentences():
    forget = Deletion("records", size=4)
    return from_dataset(Sentences(), **SETTINGS, forget=forget)


@pytest.mark.parametrize("method", ["restart", "rewind"])
def test_a_run_that_forgets_exactly_names_the_part_and_never_sends_it(tmp_path, method):
    vouched = {**WALK, "data.normalisation": "published"}
    task = sentences()
    changes = {"task": task.name, "peers": 3, "method": method, **vouched}
    result = run_config(resolve(changes), task=task, out=tmp_path / "out")
    transcript = Transcript.read(tmp_path / "out" / "transcript.jsonl")
    document = read_certificate(tmp_path / "out" / "certificate.json")
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert verify(document, transcript, model=raw).problems == ()
    (claim,) = document["claims"]
    assert claim["grade"] == "exact"

    seed = assemble(resolve(changes), task).training().seeds.integer("model")
    begun = build_model(task.model, seed)
    part = FrozenPart.of(begun)
    facts = document["parameters"]
    assert (facts["frozen"], facts["frozen_digest"]) == (part.parameters, part.digest)
    assert (part.parameters, part.digest) == (
        12 * 8 + 8 * 8 + 8,
        transcript.header["frozen_digest"],
    )
    told = [text for text in claim["assumptions"] if "were not trained" in text]
    assert told == [
        f"the 168 parameters that were not trained (digest {part.digest[:16]}...) were made "
        "without the forgotten records, and every peer that was visited had the same"
    ]
    said = " ".join(result.result["certificate"]["words"]["done"])
    assert "Of the model, 168 parameters were not trained and did not travel" in said
    # 22 numbers of the adapter and eight of the buffer, whatever lies below
    assert {hop.nbytes for hop in transcript.hops if hop.path} == {4 * (22 + 8)}
    model = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in begun.state_dict().items():
        assert torch.equal(model[name], value) == (name not in ("network.up", "network.down"))


def test_a_model_that_is_trained_as_a_whole_says_nothing():
    task = from_arrays(*blobs(), peers=3, classes=2, model="logistic")
    result = run(task, settings=WALK)
    assert not {"frozen", "frozen_digest"} & result.transcript.header.keys()
    assert FrozenPart.of(task.model()) is None


def test_the_digest_names_weights_buffers_and_their_names():
    torch.manual_seed(0)
    first, digests = head(), set()
    for change in (
        lambda model: None,
        lambda model: model[1].layer.bias.data[3].add_(1e-3),
        lambda model: model[1].offset[0].sub_(1.0),
        lambda model: model[2].requires_grad_(False),
        lambda model: model[2].bias.requires_grad_(False),
    ):
        model = copy.deepcopy(first)
        change(model)
        digests.add(FrozenPart.of(model).digest)
    assert len(digests) == 5
    first[2].weight.data.add_(1.0)
    assert FrozenPart.of(first).digest in digests


def test_another_frozen_part_than_agreed_is_refused_before_anything_runs():
    task = sentences()
    changes = {**WALK, "task": task.name, "peers": 3}
    digest = assemble(resolve(changes), task).model.frozen.digest
    agreed = assemble(resolve({**changes, "model.frozen_digest": digest}), task)
    assert agreed.model.frozen.digest == digest
    with pytest.raises(InvalidInput, match=r"frozen part of the model \(168 parameters\) has the"):
        run_config(resolve({**changes, "model.frozen_digest": "0" * 64}), task=task)
    with pytest.raises(InvalidInput, match="all parameters of this model are trained"):
        run_config(resolve({"task": "digits", "model.frozen_digest": "0" * 64}))


def test_the_digest_is_in_a_run_s_name_only_where_it_is_set():
    usual = resolve({"task": "digits"})
    assert run_id(usual) == "b6f7af6b65a95802"
    assert run_id(resolve({"task": "digits", "model.frozen_digest": "0" * 64})) != run_id(usual)


def test_a_transcript_with_another_digest_is_no_longer_that_of_the_certificate(tmp_path):
    result = run(sentences(), method="restart", settings=WALK, out=tmp_path / "out")
    lines = (tmp_path / "out" / "transcript.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    header["frozen_digest"] = "0" * 64
    transcript = Transcript(header, result.transcript.hops)
    document = read_certificate(tmp_path / "out" / "certificate.json")
    found = verify(document, transcript, model=None).problems
    assert any("frozen_digest" in text for text in found), found


class Forgetful(nn.Module):
    """Counts its calls in a buffer that it does not save, and by the count it answers."""

    calls: torch.Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, 2).requires_grad_(False)
        self.head = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        answer: torch.Tensor = self.head(self.base(x) * self.calls)
        return answer


def replace_calls(model):
    model.calls = torch.ones(())


@pytest.mark.parametrize("change", [lambda model: model.calls.add_(3), replace_calls])
def test_a_buffer_of_the_part_that_is_not_saved_stays_and_is_put_back(change):
    work = Workspace(Forgetful(4))
    assert work.buffers == {}
    before = FrozenPart.of(work.model)
    change(work.model)
    assert FrozenPart.of(work.model) != before
    work.put_back(visited=True)
    assert FrozenPart.of(work.model) == before
