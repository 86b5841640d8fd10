"""A dry run says beforehand what a walk will do: every hop, path, byte, event and gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.runs.small import BLOBS
from unwalk.certificates.document import claims_of
from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop
from unwalk.engines.inprocess import InProcess
from unwalk.methods import METHODS
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.dry_run import dry_run
from unwalk.settings.config import Value

SGD: dict[str, Value] = {"train.optimizer": "sgd"}
SETTINGS: dict[str, dict[str, Value]] = {
    "as it is": {},
    "plain SGD": SGD,
    "Adam, an average": {"train.optimizer": "adam", "train.keep": "average"},
    "a random iterate on a ring": {"train.keep": "random", "graph.kind": "ring"},
    "slices": {**SGD, "train.slices": 3},
    "shards": {**SGD, "train.shards": 2},
    "sums": {"model.name": "linear", "data.extractor": "plain", "data.norm": 1.0},
    "first use": {"rewind.way": "first-use", "train.work": "averaged", "train.minibatches": 1},
    "certified": {
        "preset": "certified",
        "data.extractor": "plain",
        "data.norm": 1.0,
        "train.capacity": 80,
        "train.learning_rate": 1.0,
        "seal.local_epochs": 3,
    },
}

QUICK = ("as it is", "sums", "certified")


def bare(hop: Hop) -> Hop:
    """A hop without what only the walk can tell."""
    events = tuple(
        replace(e, draw=None) if isinstance(e, ev.GaussianNoise) else e for e in hop.events
    )
    return replace(hop, events=events, digest=None)


def compared(name: str, **changes: Value) -> int:
    config = resolve({**BLOBS, "forget.size": 5, "method": name, "compare": [], **changes})
    assembled = assemble(config)
    trained = dry_run(assembled.training(), assembled.model)
    try:
        plan = assembled.unlearning(name, trained)
    except (Refused, InvalidInput):
        return 0
    found = dry_run(plan, assembled.model)
    (outcome,) = InProcess().run([plan])
    assert [bare(h) for h in outcome.transcript.hops] == [bare(h) for h in found.hops]
    assert outcome.transcript.header == found.header

    def told(claims: list[dict[str, Any]]) -> list[tuple[str, object]]:
        return [(claim["grade"], claim["epsilon"]) for claim in claims]

    assert told(claims_of(outcome.transcript)) == told(claims_of(found))
    return len(found.hops)


@pytest.mark.parametrize(
    "settings",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in SETTINGS],
)
def test_what_is_foreseen_is_what_happens(settings):
    hops = {name: compared(name, **SETTINGS[settings]) for name in METHODS}
    planned = {name for name, count in hops.items() if count}
    expected = {
        "as it is": {"rrdu", "rewind", "restart", "retrain", "scrub", "ssd", "salun"},
        "sums": {"sums", "rewind", "restart"},
        "certified": {"seal", "release", "noisy-start", "output-noise", "ball-seal", "restart"},
        "shards": {"sisa", "restart"},
        "slices": {"sisa", "restart"},
    }
    assert planned >= expected.get(settings, {"restart"})


def test_what_was_walked_is_not_walked_again():
    config = resolve({**BLOBS, "forget.size": 5, "method": "rewind", "compare": []})
    assembled = assemble(config)
    (trained,) = InProcess().run([assembled.training()])
    plan = assembled.unlearning("rewind", trained.transcript)
    found = dry_run(plan, assembled.model, trained.transcript)
    train = config.train.hops
    assert [bare(h) for h in found.hops[:train]] == [bare(h) for h in trained.transcript.hops]
    assert found.hops[train - 1] is trained.transcript.hops[-1]
    assert found.hops == dry_run(plan, assembled.model).hops or found.hops[train - 1].digest
