"""The game: two worlds that differ in the records alone, and views that hold what was seen."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs.small import BLOBS, DIGITS, small
from tests.tasks.own_frozen import head
from unwalk.audits.canaries import CANARIES
from unwalk.audits.game import Game, Played, Views, play
from unwalk.audits.views import LONGEST, SLOTS, Examiner, Observer
from unwalk.audits.worlds import WITH, WITHOUT, Worlds
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Progress
from unwalk.core.token import Token, Workspace, build_model
from unwalk.engines.fleet import Fleet, _Convoy
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import assemble

SETTINGS: dict[str, Any] = {
    **BLOBS,
    "forget.kind": "records",
    "forget.size": 10,
    "compare": [],
    "unlearn.direction": "forget",
}
PAPER = {**SETTINGS, "preset": "paper", "unlearn.hops": 8, "train.hops": 3}


def played(settings: dict[str, Any], pairs: int = 4, **game: Any) -> Any:
    config = small(settings)
    return play(Game(config, **game), 0, pairs)[config.method]


def walked(worlds: Worlds, world: int, number: int) -> Any:
    return next(iter(InProcess().run([worlds.training(world, number)])))


# Worlds


def test_the_records_are_absent_from_one_world_and_nothing_else_changes():
    base = assemble(small(SETTINGS))
    worlds = Worlds.of(base)
    ours, theirs = base.task.shard(0), worlds.bereft_task.shard(0)
    assert theirs.records.forgotten.size == 0
    assert np.array_equal(theirs.records.all, ours.records.retained)
    assert torch.equal(ours.x, theirs.x)
    for peer in range(1, 4):
        assert torch.equal(base.task.shard(peer).x, worlds.bereft_task.shard(peer).x)


def test_training_without_the_records_is_training_on_a_copy_that_never_had_them():
    """The same walk on records whose contents differ in D_f alone gives the same model."""
    base = assemble(small(SETTINGS))
    other = replace(base.task)
    shard = other.shard(0)
    x = shard.x.clone()
    x[torch.from_numpy(shard.records.forgotten)] = 99.0
    other._shards[0] = replace(shard, x=x)
    ends = [
        walked(Worlds.of(one), WITHOUT, 0).token.parameters
        for one in (base, replace(base, task=other))
    ]
    assert torch.equal(*ends)
    with_ = walked(Worlds.of(base), WITH, 0).token.parameters
    assert not torch.equal(with_, ends[0])


@pytest.mark.parametrize("coins", ["fresh", "fixed"])
@pytest.mark.parametrize("seeds", ["paired", "independent"])
def test_runs_have_the_randomness_that_is_asked_for(coins, seeds):
    worlds = Worlds.of(assemble(small(SETTINGS)), coins, seeds)
    plans = {(w, n): worlds.training(w, n) for w in (WITH, WITHOUT) for n in (0, 1)}
    public = {key: plan.seeds.root for key, plan in plans.items()}
    noise = {key: getattr(plan.noise, "seed") for key, plan in plans.items()}  # noqa: B009
    assert len(set(public.values())) == {"fixed": 1, "fresh": 2 if seeds == "paired" else 4}[coins]
    assert len(set(noise.values())) == (2 if seeds == "paired" else 4)
    assert all(noise[w, 0] != noise[w, 1] for w in (WITH, WITHOUT))


def test_noise_on_a_gradient_is_added_where_there_is_nothing_to_forget():
    """LIGHTWEIGHT at u: the same noise, step for step, on a gradient of zero."""
    worlds = Worlds.of(assemble(small({**PAPER, "unlearn.p": 1.0})), "fixed")
    plans = {}
    for world in (WITH, WITHOUT):
        trained = walked(worlds, world, 0)
        (plan,) = worlds.unlearning(world, [0], "rrdu", [trained.transcript])
        progress = trained.progress.fork(plan.header(), end_digest=False)
        plans[world] = next(iter(InProcess().run([plan], None, {0: progress})))
    hops = {world: one.transcript.hops[3:] for world, one in plans.items()}
    steps = [e for hop in hops[WITH] for e in hop.events if e.kind == "gradient-steps"]
    noise = [e.std for hop in hops[WITHOUT] for e in hop.events if e.kind == "gaussian-noise"]
    assert [e.step_size * e.noise for e in steps] == noise
    assert min(noise) > 0.0
    assert all(e.data == "forgotten" for e in steps)
    assert not any(e.kind == "gradient-steps" for hop in hops[WITHOUT] for e in hop.events)


def test_a_seal_is_as_noisy_in_both_worlds():
    settings = {
        "preset": "certified",
        "task": "digits-flat",
        "peers": 4,
        "train.hops": 2,
        "unlearn.hops": 2,
        "seal.local_epochs": 0,
        "seal.visits": 1,
        "unlearn.p": 1.0,
        "compare": [],
    }
    worlds = Worlds.of(assemble(small(settings)), "fixed")
    found = []
    for world in (WITH, WITHOUT):
        trained = walked(worlds, world, 0)
        (plan,) = worlds.unlearning(world, [0], "seal", [trained.transcript])
        progress = trained.progress.fork(plan.header(), end_digest=False)
        ended = next(iter(InProcess().run([plan], None, {0: progress})))
        found.append([e.std for _, e in ended.transcript.events() if e.kind == "gaussian-noise"])
    assert found[0] == found[1]
    assert min(found[0]) > 0.0


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("retrain", marks=pytest.mark.soak),
        pytest.param("restart", marks=pytest.mark.soak),
        "rewind",
    ],
)
def test_exact_methods_give_the_same_bits_in_paired_runs(method):
    """First contact and fresh starts: runs of one pair end with the same model in both worlds."""
    one = played({**SETTINGS, "method": method})
    assert isinstance(one, Played)
    with_, without = (one.views["released", w].messages["released"] for w in (WITH, WITHOUT))
    assert np.array_equal(with_, without)
    assert len({row.tobytes() for row in with_}) == len(with_)


def test_what_cannot_be_played_is_refused():
    with pytest.raises(InvalidInput, match="nothing is to be forgotten"):
        played({**SETTINGS, "forget.kind": "nothing", "forget.size": None})
    config = small(SETTINGS)
    secret = replace(config, noise=replace(config.noise, source="secret"))
    drawn_in_secret = replace(assemble(config), config=secret)
    with pytest.raises(InvalidInput, match=r"noise\.source = simulated"):
        Worlds.of(drawn_in_secret)
    failed = played({**SETTINGS, "method": "rewind"}, coins="fixed")
    assert "--coins fresh" in failed.reason
    with pytest.raises(InvalidInput, match="--coins"):
        Game(small(SETTINGS), coins="stale")


# Views


@pytest.mark.parametrize("text", ["peer:0", "peer:4", "peer:x", "coalition:1,9", "nobody", "peer:"])
def test_an_observer_is_another_peer(text):
    with pytest.raises(InvalidInput, match="--observer"):
        Observer.named(text, 4, 0)


class Everything:
    """A sink that keeps every token: a slow, plain reading of a view."""

    def __init__(self, start: Token) -> None:
        self.tokens = [start]

    def after(self, index: int, progress: Progress, look: Any) -> None:
        self.tokens.append(progress.token.clone())


@pytest.mark.parametrize(
    "name",
    [
        "peer:1",
        pytest.param("coalition:2,3", marks=pytest.mark.soak),
        pytest.param("coalition:others", marks=pytest.mark.soak),
    ],
)
def test_the_messages_kept_are_those_of_the_transcript(name):
    config = small(PAPER)
    game = Game(config, (name,))
    worlds = Worlds.of(game.assembled())
    observer = Observer.named(name, 4, 0)
    one = play(game, 0, 3)["rrdu"]
    examiner = Examiner(worlds.base.task, 0)
    for number in range(3):
        trained = walked(worlds, WITH, number)
        (plan,) = worlds.unlearning(WITH, [number], "rrdu", [trained.transcript])
        progress = trained.progress.fork(plan.header(), end_digest=False)
        every = Everything(progress.token.clone())
        ended = next(iter(InProcess().run([plan], every, {0: progress})))
        hops = ended.transcript.hops[config.train.hops :]
        seen = [
            (at, every.tokens[at])
            for at, hop in enumerate(hops)
            if hop.path
            and ({hop.sender, *hop.path} if at else {*hop.path}) & observer.peers
            and (at or hop.receiver != 0)
        ]
        visit = next((at for at, hop in enumerate(hops) if hop.receiver == 0), len(hops))
        later = [token for at, token in seen if at > visit]
        expected = {
            "first": [token for _, token in seen][:1],
            "after u": later[:1],
            "next": later[1:2],
        }
        for slot, tokens in expected.items():
            kept = one.views[name, WITH].messages[slot][number]
            if tokens:
                assert np.array_equal(kept, examiner.seen(tokens[:1])[0].message), slot
            else:
                assert not kept.any()
        released = one.views[name, WITH].messages["released"][number]
        assert np.array_equal(released, ended.token.parameters.double().numpy())


def test_four_messages_are_kept_with_the_moments_that_travel_in_all_but_the_last():
    one = played(PAPER, observers=("coalition:others",))
    messages = one.views["coalition:others", WITH].messages
    assert list(messages) == list(SLOTS)
    assert len(SLOTS) == 4
    assert messages["first"].shape[1] == 3 * messages["released"].shape[1]  # Adam's two


def test_long_messages_are_folded_alike():
    examiner = Examiner(assemble(small(SETTINGS)).task, 0)
    rng = np.random.default_rng(0)
    both = torch.from_numpy(rng.normal(size=(2, 3 * LONGEST + 5)))
    assert examiner.folded(both[:, :LONGEST]).equal(both[:, :LONGEST])
    a, b = examiner.folded(both)
    assert a.numel() == LONGEST
    assert torch.allclose(a + b, examiner.folded(both.sum(0)[None])[0])
    assert 0.9 < float(a.norm() / both[0].norm()) < 1.1
    assert examiner.folded(both[1:])[0].equal(b)
    one = torch.zeros(1, 3 * LONGEST + 5)
    one[0, 7] = -2.0
    assert examiner.folded(one).abs().sum() == 2.0


@pytest.mark.parametrize("method", ["rrdu", "sisa", "restart", "dpsgd"])
def test_a_fleet_shows_what_the_reference_shows(monkeypatch, method):
    """Told of many messages at once, the observer keeps the same ones."""
    monkeypatch.setattr("unwalk.engines.choose.Fleet", partial(Fleet, few=1))
    settings = {**PAPER, "method": method, "train.shards": 2, "model.name": "linear"}
    ends = [
        played({**settings, "performance.engine": engine}, observers=("peer:1",))
        for engine in ("inprocess", "fleet")
    ]
    for key, views in ends[0].views.items():
        for slot, table in views.messages.items():
            assert np.allclose(table, ends[1].views[key].messages[slot], atol=1e-4), (key, slot)
    assert ends[0].claims == ends[1].claims


@pytest.mark.parametrize("coins", ["fresh", "fixed"])
def test_views_survive_being_kept(tmp_path, coins):
    names = ("released", "peer:1")
    one = played(PAPER, pairs=3, observers=names, coins=coins)
    one.save(tmp_path / "one.npz")
    watching = [Observer.named(name, 4, 0) for name in names]
    again = Played.load([tmp_path / "one.npz"] * 2, watching, one.claims * 2)
    assert again.views.keys() == one.views.keys()
    for key, views in one.views.items():
        twice = again.views[key]
        assert len(twice) == 6
        assert list(twice.messages) == list(views.messages)
        for slot, table in views.messages.items():
            assert np.array_equal(twice.messages[slot][3:], table)
            assert np.array_equal(twice.answers[slot][:3], views.answers[slot])
        assert {k: v.tobytes() for k, v in twice.centres.items()} == {
            k: v.tobytes() for k, v in views.centres.items()
        }
        assert bool(views.centres) == (coins == "fixed")
    assert isinstance(again.views["peer:1", WITH].rows(0, 2), Views)


@torch.no_grad()
def test_models_answer_together_as_they_do_alone():
    """Asked in one batch, one by one where a model cannot be mapped, and by hand."""
    task = assemble(small(DIGITS, compare="none")).task
    examiner = Examiner(task, 0)
    works = [Workspace(build_model(task.model, seed)) for seed in range(3)]
    tokens = [Token(work.parameters.clone(), {}) for work in works]
    seen = examiner.seen(tokens)
    examiner.ask([*seen, seen[0]])
    assert all(one.model is None for one in seen)
    for one, work in zip(seen, works, strict=True):
        assert one.answers is not None
        held = task.forgotten
        logits = work.model.eval()(held.x)
        loss = float(torch.nn.functional.cross_entropy(logits, held.y))
        sure = float(logits.softmax(1).gather(1, held.y.unsqueeze(1)).mean())
        assert one.answers[[0, 2]] == pytest.approx([loss, sure], rel=1e-5)
    alone = Examiner(replace(task, factory=_unmappable), 0)
    slow = alone.answers([Token(w.parameters.clone(), {}) for w in map(_made, range(2))])
    for row, seed in zip(slow, range(2), strict=True):
        logits = _made(seed).model(task.forgotten.x)
        expected = float(torch.nn.functional.cross_entropy(logits, task.forgotten.y))
        assert row[0] == pytest.approx(expected, rel=1e-5)


class Unmappable(torch.nn.Linear):
    """A model that looks at its numbers, which cannot be mapped over models."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x.flatten(1))
        return out if bool(self.weight.sum() > -1e9) else -out


def _unmappable() -> torch.nn.Module:
    return Unmappable(64, 10)


def _made(seed: int) -> Workspace:
    return Workspace(build_model(_unmappable, seed))


# Canaries


@pytest.mark.parametrize("canary", CANARIES)
def test_a_canary_replaces_the_forgotten_records_only(canary):
    config = small({"task": "digits-flat", "compare": [], "forget.kind": "records"}, forget__size=5)
    plain, planted = (Game(config, canary=c).assembled().task for c in ("none", canary))
    ours, theirs = plain.shard(0), planted.shard(0)
    kept = torch.from_numpy(ours.records.retained)
    gone = torch.from_numpy(ours.records.forgotten)
    assert torch.equal(ours.x[kept], theirs.x[kept])
    assert torch.equal(ours.y[kept], theirs.y[kept])
    same = torch.equal(ours.x[gone], theirs.x[gone]) and torch.equal(ours.y[gone], theirs.y[gone])
    assert same == (canary == "none")
    norm = plain.source.feature_norm
    assert norm is not None
    assert float(theirs.x.norm(dim=1).max()) <= norm * (1.0 + 1e-6)


def test_an_unknown_canary_is_refused():
    with pytest.raises(InvalidInput, match="--canary"):
        Game(small(SETTINGS), canary="parrot").assembled()


def test_fleets_that_have_ended_do_not_fill_the_memory(monkeypatch):
    """Their walks refer to each other: without a collection they stay, captured graphs and all."""
    alive, carried = [], Fleet.run

    def run(self, *arguments):
        alive.append(sum(type(one) is _Convoy for one in gc.get_objects()))
        return carried(self, *arguments)

    monkeypatch.setattr(Fleet, "run", run)
    methods: dict[str, Any] = {"method": "finetune", "compare": ["restart", "rrdu"]}
    done = play(Game(small({**SETTINGS, **methods, "performance.engine": "fleet"})), 0, 2)
    assert all(isinstance(one, Played) for one in done.values()), done
    assert len(alive) == 8
    assert max(alive) <= 1


def test_a_frozen_part_that_every_game_would_draw_anew_is_refused():
    own: dict[str, Any] = {"task": "blobs", "data.features": 6, "data.classes": 3}
    task = assemble(small({**own, "model.name": "tests.tasks.own_frozen:head"})).task
    with pytest.raises(InvalidInput, match="own_frozen:head' has parameters that are not trained"):
        Examiner(task, 0)
    weights = head()
    assert len(Examiner(replace(task, factory=lambda: copy.deepcopy(weights)), 0).forgotten.y)
