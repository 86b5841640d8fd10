"""Shards: several walks of disjoint peers, of which one has to be walked again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.certificates.test_worlds import world
from tests.runs.small import small, small_run
from unwalk import walks
from unwalk.certificates import claims_of
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Phase
from unwalk.core.transcript import Transcript
from unwalk.methods.network_sgd import Descent
from unwalk.methods.retrain import Retrain
from unwalk.methods.sisa import hops_of, members, shard_of
from unwalk.runs.assemble import assemble
from unwalk.runs.run import Together, run

SHARDS: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "method": "sisa",
    "train.shards": 3,
    "peers": 7,
    "train.hops": 31,
    "evaluate.every": 5,
    "forget.size": 9,
    "compare": [],
}


def test_peers_and_hops_are_dealt_out():
    assert sorted(p for s in range(3) for p in members(s, 3, 7)) == list(range(7))
    assert all(shard_of(p, 3) == s for s in range(3) for p in members(s, 3, 7))
    assert sum(hops_of(s, 3, 31) for s in range(3)) == 31
    with pytest.raises(InvalidInput, match=r"train\.shards is 4; allowed: 1 to 3"):
        members(0, 4, 7)
    with pytest.raises(InvalidInput, match=r"train\.hops is 2"):
        small_run({**SHARDS, "train.hops": 2})


@pytest.fixture(scope="module")
def done() -> Any:
    return small_run(SHARDS, forget__peer=4)


def test_each_model_is_of_its_own_peers_alone(done):
    transcript = done.transcript
    for hop in transcript.hops:
        name = "train-2" if hop.phase == "unlearn" else hop.phase
        assert f"train-{hop.receiver % 3 + 1}" == name
    begun = [e for _, e in transcript.events() if e.kind == "start"]
    assert [e.start for e in begun] == ["initial", "initial", "initial", "arrival"]
    (claim,) = done.result["claims"]
    assert (claim["grade"], claim["epsilon"]) == ("exact", 0.0)
    assert "the other 2 models" in claim["reason"]
    words = done.result["certificate"]["words"]["done"][0]
    assert words.startswith("There are 3 models, each trained by other peers")


def test_only_the_model_that_met_the_records_is_walked_again(done):
    """Bit for bit what its peers get who walk alike and never have the records."""
    walked = done.walks["sisa"]
    plan, ends = walked.outcome.plan, walked.constituents.ends
    *training, unlearn = plan.phases
    engine_of = {}
    for number, phase in enumerate(training):
        alone = replace(plan, phases=(phase,), keeps="none")
        (engine_of[number],) = _run(alone)
    for number in (0, 2):
        assert torch.equal(ends[number].parameters, engine_of[number].token.parameters)
    touched = engine_of[1].token.parameters
    assert not torch.equal(ends[1].parameters, touched)
    start = unlearn.method.start_hop
    assert done.result["methods"][0]["cost"]["hops"] == training[1].hops - start + 1 <= 11
    descent: Descent = unlearn.method.descent
    before = Phase(training[1].name, Retrain(descent), training[1].route, start - 1)
    after = replace(
        unlearn, start="token", start_hop=None, method=replace(unlearn.method, way="first-contact")
    )
    phases = (before, after) if start > 1 else (replace(after, start="initial"),)
    (never,) = _run(replace(plan, phases=phases, keeps="none"))
    assert torch.equal(never.token.parameters, ends[1].parameters)


def _run(plan: Any) -> Any:
    from unwalk.engines.inprocess import InProcess

    return InProcess().run([plan])


def test_contents_of_the_forgotten_records_do_not_matter():
    config = small({**SHARDS, "peers": 4, "train.shards": 2, "train.slices": 2})
    mine, theirs = (run(config, task=world(other)).model for other in (False, True))
    for (name, a), b in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_late_slices_cost_less():
    plain = small({**SHARDS, "forget.size": 1, "train.work": "epochs", "train.batch": 8})
    sliced = replace(plain, train=replace(plain.train, slices=5))
    costs = {}
    for config in (plain, sliced):
        spent = []
        for seed in range(8):
            made = assemble(replace(config, seed=seed)).unlearning("sisa")
            spent.append(made.phases[-1].hops)
        costs[config.train.slices] = np.mean(spent)
    assert costs[5] < costs[1] <= 11


def test_answers_are_mean_probabilities():
    torch.manual_seed(0)
    parts = [torch.nn.Linear(4, 3) for _ in range(3)]
    x = torch.randn(6, 4)
    wanted = torch.stack([part(x).softmax(1) for part in parts]).mean(0)
    assert torch.allclose(Together(parts)(x).exp(), wanted, atol=1e-6)
    assert torch.allclose(Together(parts)(x).softmax(1), wanted, atol=1e-6)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    config = small({**SHARDS, "performance.checkpoint": 0})
    run(config, out=tmp_path / "whole")

    def stop(walk: str, hop: int, hops: int) -> None:
        if (walk, hop) == ("sisa", 25):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "stopped", tell=stop)
    run(config, out=tmp_path / "stopped", resume=True)
    for name in ("model.safetensors", "transcript.jsonl", "certificate.json"):
        whole, stopped = ((tmp_path / d / name).read_bytes() for d in ("whole", "stopped"))
        assert whole == stopped, name
    assert {k.split(".")[1] for k in load_file(tmp_path / "whole" / "model.safetensors")} == {
        "0",
        "1",
        "2",
    }


def test_together_they_answer_well():
    """The models together, after forgetting, and the first of them alone."""
    result = small_run({**SHARDS, "peers": 10, "train.hops": 60, "evaluate.every": 1}, seed=100)
    series = result.walks["sisa"].readings
    alone = next(reading.clean for reading in series if reading.hop == 20)
    assert result.final("sisa")["clean"] > max(0.85, alone - 0.02)
    assert {reading.phase for reading in series} == {"train", "unlearn"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda hop: replace(hop, receiver=2, path=(2,)) if hop.hop == 5 else hop, "not of shard"),
        (
            lambda hop: (
                replace(hop, events=(replace(hop.events[0], start="token"), *hop.events[1:]))
                if hop.phase == "train-2" and hop.phase_hop == 1
                else hop
            ),
            "did not begin from the initial model",
        ),
        (
            lambda hop: (
                replace(hop, receiver=0, path=(0,))
                if hop.phase == "unlearn" and hop.phase_hop == 2
                else hop
            ),
            "not of shard 2 of 3",
        ),
    ],
)
def test_shards_that_are_not_disjoint_are_refused(done, change, words):
    forged = Transcript(done.transcript.header)
    for hop in done.transcript.hops:
        forged.add(change(hop))
    (claim,) = claims_of(forged)
    assert claim["grade"] == "refused"
    assert words in claim["reason"]


def test_fewer_walks_than_shards_are_refused(done):
    header = {**done.transcript.header, "shards": 2}
    forged = Transcript(header)
    for hop in done.transcript.hops:
        forged.add(hop)
    (claim,) = claims_of(forged)
    assert "2 shards and 3 walks" in claim["reason"]


def test_a_walk_among_members_is_uniform():
    route, rng = walks.Among((1, 4, 6)), np.random.default_rng(0)
    drawn = np.array([route.receiver(4, rng) for _ in range(4000)])
    assert set(drawn) == {1, 6}
    assert abs((drawn == 1).mean() - 0.5) < 0.03
    first = np.array([route.receiver(walks.NOBODY, rng) for _ in range(6000)])
    assert all(abs((first == m).mean() - 1 / 3) < 0.03 for m in route.members)
    with pytest.raises(InvalidInput, match="two peers or more"):
        walks.Among((3,))
