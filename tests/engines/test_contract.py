"""What every engine must do.  A new engine is added to ``ENGINES`` and gets all of it."""

import itertools

import pytest
import torch
from torch import nn

from tests.tiny import TinyTask, descent, plan
from unwalk import walks
from unwalk.core import events as ev
from unwalk.core.errors import Diverged
from unwalk.core.noise import SecretNoise
from unwalk.core.plan import Phase
from unwalk.core.program import Ball, StepRule
from unwalk.core.transcript import Transcript
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.engines.ray_engine import Ray
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD
from unwalk.methods.rrdu import RRDU, Correction


class DrawnFleet(Fleet):
    """A fleet that draws hops together even if it has one walk."""

    name = "fleet, drawn"

    def __init__(self):
        super().__init__(few=1)


ENGINES = [InProcess, Fleet, DrawnFleet, pytest.param(Ray, marks=pytest.mark.soak)]
"""Ray needs a cluster: ``test_ray.py`` has a part of this for every day."""


@pytest.fixture(params=ENGINES, ids=lambda e: e.name)
def engine(request):
    return request.param()


def train(hops=6, keep="last", **rule):
    return Phase("train", NetworkSGD(descent(**rule)), walks.Uniform(), hops, keep=keep)


def unlearn(hops=6, **options):
    rule = StepRule("momentum", learning_rate=0.1)
    correction = Correction(
        "forget", LocalWork(batch=2), rule, sigma=0.1, clip=0.5, trust=(Ball("start", 2.0),)
    )
    method = RRDU(Descent(rule, LocalWork(batch=4)), correction)
    return Phase("unlearn", method, walks.Restart(0, 0.5), hops, carries_forgotten=True, **options)


class Stop:
    """A sink that forks the progress at one hop and records what it was shown."""

    def __init__(self, hop=None):
        self.hop, self.kept, self.seen = hop, None, []

    def after(self, index, progress, look):
        self.seen.append((index, progress.token.hop))
        if progress.token.hop == self.hop:
            self.kept = progress.fork(progress.transcript.header)


def run(engine, *args, **kwargs):
    (outcome,) = engine.run(*args, **kwargs)
    return outcome


def test_the_same_plan_gives_the_same_bits(engine):
    first, second = (run(engine, [plan(train(), unlearn())]) for _ in range(2))
    assert first.token.digest() == second.token.digest()
    assert first.transcript.text() == second.transcript.text()


def test_another_seed_gives_another_walk(engine):
    first, second = (run(engine, [plan(train(), seed=s)]) for s in (0, 1))
    assert [h.receiver for h in first.transcript.hops] != [
        h.receiver for h in second.transcript.hops
    ]
    assert first.token.digest() != second.token.digest()


@pytest.mark.parametrize("stop", [1, 5, 6, 7, 11, 12])
@pytest.mark.parametrize("state", ["carried", "local", "fresh"])
def test_going_on_after_any_hop_gives_the_same_bits(engine, stop, state):
    made = plan(train(optimizer="adam", rate=0.01, state=state), unlearn(keep="average"))
    sink = Stop(stop)
    whole = run(engine, [made], sink)
    resumed = run(engine, [made], None, {0: sink.kept})
    assert resumed.token.digest() == whole.token.digest()
    assert resumed.transcript.text() == whole.transcript.text()


def test_state_that_is_wiped_between_phases_does_not_travel(engine):
    made = plan(train(optimizer="adam", rate=0.01), unlearn(reset_optimizer=True))
    sink = Stop(6)
    whole = run(engine, [made], sink)
    resumed = run(engine, [made], None, {0: sink.kept})
    hop = whole.transcript.hops[6]
    assert hop.nbytes == 8 * 8 * len(hop.path)
    assert resumed.transcript.text() == whole.transcript.text()


def test_plans_come_back_in_order_and_the_sink_sees_every_hop(engine):
    sink = Stop()
    plans = [plan(train(hops=h), seed=h) for h in (3, 5)]
    outcomes = list(engine.run(plans, sink))
    assert [o.plan for o in outcomes] == plans
    assert sorted(sink.seen) == [(0, h) for h in range(1, 4)] + [(1, h) for h in range(1, 6)]


def test_the_transcript_tells_the_walk_and_its_chain_holds(engine):
    outcome = run(engine, [plan(train(), unlearn())])
    hops = outcome.transcript.hops
    assert [h.hop for h in hops] == list(range(1, 13))
    assert [h.phase for h in hops] == ["train"] * 6 + ["unlearn"] * 6
    assert all(b.sender == a.receiver for a, b in itertools.pairwise(hops))
    assert all(h.nbytes == 0 for h in hops if not h.path)
    assert all(h.nbytes > 0 for h in hops if h.path)
    parsed = Transcript.parse(outcome.transcript.text().splitlines(keepends=True))
    assert parsed.hops == hops
    assert hops[-1].digest == outcome.token.digest()
    assert [h.digest for h in hops[:-1]] == [None] * 11


def test_events_tell_what_happened_at_u_and_elsewhere(engine):
    outcome = run(engine, [plan(train(), unlearn(hops=20))])
    hops = outcome.transcript.hops[6:]
    start = hops[0].events[0]
    assert isinstance(start, ev.Start)
    assert start.carries_forgotten
    assert "momentum" in start.travels
    for hop in hops[1:]:
        kinds = [e.kind for e in hop.events]
        expected = ["gradient-steps"]
        if hop.receiver == 0:
            expected += ["gaussian-noise", "projection"]
        assert kinds == expected
    assert {h.receiver == 0 for h in hops} == {True, False}


def test_digests_at_every_hop_when_asked_for(engine):
    outcome = run(engine, [plan(train(), digests=True)])
    digests = [h.digest for h in outcome.transcript.hops]
    assert len(set(digests)) == 6
    assert None not in digests


def test_global_randomness_is_left_alone_and_without_influence(engine):
    task = TinyTask(
        factory=lambda: nn.Sequential(
            nn.Linear(3, 8, dtype=torch.float64), nn.Dropout(0.5), nn.Linear(8, 2).double()
        )
    )
    torch.manual_seed(1)
    first = run(engine, [plan(train(), task=task)])
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    torch.manual_seed(2)
    second = run(engine, [plan(train(), task=task)])
    assert first.token.digest() == second.token.digest()


def test_noise_source_decides_noise_and_nothing_else(engine):
    made = [plan(train(), unlearn(), noise=SecretNoise("test", bytes([k]) * 32)) for k in (1, 2)]
    first, second = engine.run(made)
    assert [h.receiver for h in first.transcript.hops] == [
        h.receiver for h in second.transcript.hops
    ]
    assert first.token.digest() != second.token.digest()
    assert first.transcript.header["noise"] == "secret"


def test_no_seed_of_noise_is_in_token_or_transcript(engine):
    secret = b"0123456789abcdef" * 2
    outcome = run(engine, [plan(train(), unlearn(), noise=SecretNoise("test", secret))])
    assert secret not in outcome.token.to_bytes()
    assert secret.decode() not in outcome.transcript.text()
    assert secret.hex() not in outcome.transcript.text()


@pytest.mark.parametrize("keep", ["average", "random"])
def test_the_kept_iterate_is_the_result(engine, keep):
    iterates = []

    class Record:
        def after(self, index, progress, look):
            iterates.append(look().parameters.clone())

    run(engine, [plan(train(keep="last"))], Record())
    result = run(engine, [plan(train(keep=keep))]).token.parameters
    if keep == "average":
        assert torch.allclose(result, torch.stack(iterates).mean(0), atol=1e-12)
    else:
        assert any(torch.equal(result, one) for one in iterates)


def test_optimizer_state_travels_only_when_carried(engine):
    sizes = {
        state: run(engine, [plan(train(optimizer="adam", rate=0.01, state=state))]).token.nbytes
        for state in ("carried", "local", "fresh")
    }
    assert sizes["carried"] == 3 * sizes["local"]
    assert sizes["local"] == sizes["fresh"]


def test_a_step_that_is_not_finite_stops_the_walk(engine):
    with pytest.raises(Diverged, match=r"hop \d+ at peer \d"):
        run(engine, [plan(train(hops=50, rate=1e308))])


def test_cost_of_a_hop_counts_relays(engine):
    task = TinyTask(peers=6)
    phase = Phase("unlearn", unlearn().method, walks.Restart(0, 1.0), 2)
    made = plan(
        Phase("train", NetworkSGD(descent()), walks.Fixed((3,)), 1), phase, task=task,
        graph=walks.ring(6),
    )  # fmt: skip
    outcome = run(engine, [made])
    hop = outcome.transcript.hops[1]
    assert hop.path in ((2, 1, 0), (4, 5, 0))
    assert hop.nbytes == 3 * 8 * 8
