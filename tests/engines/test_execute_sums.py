"""Sums in fixed point: exact in any order, and the ridge head that they determine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.tiny import TinyTask, plan
from unwalk import walks
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.packing import size_of
from unwalk.core.plan import Phase
from unwalk.core.token import Token
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods.sums import Sums
from unwalk.tasks.gabor import ridge_solution

ENGINES = pytest.mark.parametrize("engine", [InProcess(), Fleet()], ids=["inprocess", "fleet"])


def head() -> nn.Module:
    return nn.Linear(3, 2, bias=False, dtype=torch.float64)


TASK = TinyTask(peers=5, size=20, forgotten={0: 7}, factory=head)


def summing(order, data="all", strength=0.5, **form):
    return Phase("train", Sums(strength, data, **form), walks.Fixed(order), len(order))


def forgetting(strength=0.5, **form):
    method = Sums(strength, **form)
    return Phase("unlearn", method, walks.Fixed((0,)), 1, carries_forgotten=True)


def run(engine, *phases, task=TASK):
    (outcome,) = engine.run([plan(*phases, task=task)])
    return outcome


@ENGINES
def test_forgetting_is_one_hop_and_ends_with_the_bits_of_retraining(engine):
    forgot = run(engine, summing((0, 1, 2, 3, 4)), forgetting())
    anew = run(engine, summing((3, 0, 4, 1, 2), "retained"))
    assert torch.equal(forgot.token.parameters, anew.token.parameters)
    for name, total in forgot.token.sums.items():
        assert total.dtype == torch.uint8
        assert torch.equal(total, anew.token.sums[name])
    assert len(forgot.transcript.hops) == 6
    kept = run(engine, summing((0, 1, 2, 3, 4)))
    assert not torch.allclose(kept.token.parameters, forgot.token.parameters, atol=1e-4)


@ENGINES
def test_the_model_is_the_ridge_head(engine):
    outcome = run(engine, summing((0, 1, 2, 3, 4)), forgetting())
    rows = [TASK.shard(p) for p in range(5)]
    x = torch.cat([s.x[torch.from_numpy(s.records.retained)] for s in rows])
    y = torch.cat([s.y[torch.from_numpy(s.records.retained)] for s in rows])
    wanted = ridge_solution(x, y, 2, 0.5).T.reshape(-1)
    assert (outcome.token.parameters - wanted).abs().max() < 1e-9


@ENGINES
def test_visiting_twice_counts_once(engine):
    once = run(engine, summing((0, 1, 2, 3, 4)))
    twice = run(engine, summing((0, 1, 0, 2, 3, 1, 4)))
    assert torch.equal(once.token.parameters, twice.token.parameters)


def test_sums_travel_with_the_token():
    token = run(InProcess(), summing((0, 1))).token
    again = Token.from_bytes(token.to_bytes())
    assert again.digest() == token.digest()
    assert token.nbytes == 6 * 8 + size_of(6, 62) + size_of(6, 62)
    assert token.clone().sums.keys() == {"square", "product"}


@ENGINES
def test_with_few_bits_forgetting_is_exact_and_the_token_small(engine):
    form = {"bits": 6, "width": 16}
    forgot = run(engine, summing((0, 1, 2, 3, 4), **form), forgetting(**form))
    anew = run(engine, summing((3, 0, 4, 1, 2), "retained", **form))
    assert torch.equal(forgot.token.parameters, anew.token.parameters)
    assert all(torch.equal(v, anew.token.sums[k]) for k, v in forgot.token.sums.items())
    assert {k: v.numel() for k, v in forgot.token.sums.items()} == {"square": 16, "product": 16}
    fine = run(engine, summing((0, 1, 2, 3, 4)), forgetting())
    error = (forgot.token.parameters - fine.token.parameters).abs().max()
    assert 0.0 < error < 0.02


def test_a_token_of_another_width_is_refused():
    with pytest.raises(Corrupt, match="are not 6 numbers of 20 bits; they come from another"):
        run(InProcess(), summing((0, 1), bits=6, width=30), forgetting(bits=6, width=20))


def test_what_is_no_linear_head_or_too_large_is_refused():
    with pytest.raises(InvalidInput, match="one linear layer without a bias"):
        run(InProcess(), summing((0,)), task=TinyTask())
    huge = replace(TASK, peers=2, forgotten={})
    shard = huge.shard(0)
    shard.x.mul_(1e4)
    try:
        with pytest.raises(
            InvalidInput, match=r"sums reach .* allowed: below 2.1e\+06: there are mo"
        ):
            run(InProcess(), summing((0,)), task=huge)
    finally:
        shard.x.div_(1e4)
