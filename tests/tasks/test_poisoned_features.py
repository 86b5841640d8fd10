"""Sums on MNIST's Gabor features: 1,000 poisoned records, forgotten exactly in one hop."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.tiny import plan
from unwalk import walks
from unwalk.core.data import Shard
from unwalk.core.plan import Phase
from unwalk.engines.inprocess import InProcess
from unwalk.methods.sums import Sums
from unwalk.tasks import Deletion, ShardedTask, Trigger, build_task
from unwalk.tasks.gabor import GaborMap, ridge_solution

U, STRENGTH = 3, 1.0


@dataclass(frozen=True, eq=False)
class Features:
    """A task's records seen through the Gabor map, its poisoned pictures stamped before."""

    task: ShardedTask
    shards: tuple[Shard, ...]
    features: int
    loss = None
    name = "mnist-gabor-poisoned"

    @property
    def peers(self):
        return self.task.peers

    def model(self):
        return nn.Linear(self.features, 10, bias=False, dtype=torch.float64)

    def records(self, peer):
        return self.task.records(peer)

    def shard(self, peer):
        return self.shards[peer]


def seen(gabor, pictures):
    return torch.cat([gabor(part) for part in pictures.split(2000)]).double()


def made_of(task, cosines):
    gabor = GaborMap(cosines)
    shards = tuple(
        Shard(seen(gabor, s.x), s.y, s.records) for s in map(task.shard, range(task.peers))
    )
    return gabor, Features(task, shards, gabor.features((1, 28, 28)))


def walk(features, *phases):
    (outcome,) = InProcess().run([plan(*phases, task=features, unlearner=U)])
    return outcome


def visits(data, route, name="train"):
    return Phase(name, Sums(STRENGTH, data), walks.Fixed(route), len(route))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_thousand_poisoned_records_are_forgotten_in_one_hop(official_data):
    official_data("mnist")
    task = build_task(
        "mnist", unlearner=U, forget=Deletion("backdoor", size=1000), trigger=Trigger(size=4)
    )
    gabor, features = made_of(task, 1000)
    everybody = tuple(range(task.peers))
    poisoned = walk(features, visits("all", everybody))
    forgot = walk(features, visits("all", everybody), visits("retained", (U,), "unlearn"))
    retrained = walk(features, visits("retained", everybody))

    assert len(forgot.transcript.hops) == task.peers + 1
    difference = (forgot.token.parameters - retrained.token.parameters).abs().max()
    assert float(difference) < 1e-9
    keep = [s.records.retained for s in features.shards]
    x = torch.cat([s.x[rows] for s, rows in zip(features.shards, keep, strict=True)])
    y = torch.cat([s.y[rows] for s, rows in zip(features.shards, keep, strict=True)])
    reference = ridge_solution(x, y, 10, STRENGTH).T.reshape(-1)
    assert float((forgot.token.parameters - reference).abs().max()) < 1e-9

    assert task.triggered is not None
    triggered, clean = seen(gabor, task.triggered.x), seen(gabor, task.test.x)
    others = task.test.y != task.target

    def measured(outcome):
        weight = outcome.token.parameters.view(10, -1)
        hits = (triggered @ weight.T).argmax(1)[others] == task.target
        right = (clean @ weight.T).argmax(1) == task.test.y
        return float(hits.double().mean()), float(right.double().mean())

    before, after = measured(poisoned), measured(forgot)
    print({"asr before": before[0], "asr after": after[0], "clean after": after[1]})
    assert before[0] > 0.5
    assert after[0] < 0.01
    assert after[1] > 0.98
