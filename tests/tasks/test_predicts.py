"""Tasks whose models predict a number or several labels: files, arrays, runs, guarantees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.losses import Huber
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import run
from unwalk.settings.config import Value
from unwalk.tasks import Deletion, build_task, from_arrays

ROWS = 80


def numbers(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 4)) / 3
    return x, x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.05 * rng.normal(size=ROWS)


def write_csv(path, label, values):
    x, _ = numbers()
    rows = [[*map(str, row), str(value)] for row, value in zip(x, values, strict=True)]
    path.write_text("\n".join(",".join(row) for row in [["a", "b", "c", "d", label], *rows]))
    return {"task": "file", "data.path": str(path), "data.label_column": label, "peers": 4}


@pytest.fixture
def prices(tmp_path):
    return write_csv(tmp_path / "house.csv", "price", 100.0 + 10.0 * numbers()[1])


@pytest.fixture
def tags(tmp_path):
    cells = [
        "|".join(n for n, on in zip("rs", (y > 0, y > -0.2), strict=True) if on)
        for y in numbers()[1]
    ]
    return write_csv(tmp_path / "tags.csv", "tags", cells)


QUICK: dict[str, Value] = {
    "data.extractor": "plain",
    "data.norm": 1.0,
    "forget.kind": "records",
    "forget.size": 2,
    "compare": ["retrain"],
    "train.hops": 12,
    "unlearn.hops": 6,
    "evaluate.every": 6,
}
NUMBER: dict[str, Value] = {"data.predicts": "number", "data.scale": "price=100:10"}
LABELS: dict[str, Value] = {"data.predicts": "labels", "data.labels": "r|s"}
CERTIFIED: dict[str, Value] = {
    "preset": "certified",
    "method": "seal",
    "train.capacity": 30,
    "train.learning_rate": 0.8,
    "unlearn.learning_rate": 0.8,
    "forget.size": 1,
}


def test_a_quantity_is_refused_with_the_option_that_makes_it_a_regression(prices):
    with pytest.raises(InvalidInput, match=r"looks like a quantity.*set data\.predicts=number"):
        assemble(resolve(prices))


def test_a_regression_head_by_sums_forgets_exactly(prices):
    result = run(resolve({**prices, **QUICK, **NUMBER, "method": "sums"}))
    assert result.result["methods"][0]["final"]["clean"] > 0.9  # R² of a linear relation
    assert result.result["claims"][-1]["grade"] == "exact"
    assert result.result["task"]["predicts"] == "number"
    assert "R²" in result.html()
    assert "ccuracy" not in result.html().split("<body")[1].split("certificate")[0]
    task = build_task(
        "file",
        peers=4,
        options={
            k.removeprefix("data."): v
            for k, v in {**prices, **QUICK, **NUMBER}.items()
            if k.startswith("data.")
        },
        forget=Deletion("records", size=2),
    )
    assert task.shard(0).y.dtype == torch.float64
    shards = [task.shard(peer) for peer in range(4)]
    x = torch.cat([s.x[torch.from_numpy(s.records.retained)] for s in shards]).double()
    y = torch.cat([s.y[torch.from_numpy(s.records.retained)] for s in shards])
    wanted = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]).double(), x.T @ y)
    found = next(result.model.parameters()).detach().double().reshape(-1)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("what", ["number", "labels"])
def test_the_ledger_certifies_both(what, prices, tags):
    given = {**prices, **NUMBER} if what == "number" else {**tags, **LABELS}
    result = run(resolve({**QUICK, **given, **CERTIFIED}))
    claim = result.result["claims"][-1]
    assert (claim["grade"], claim["accountant"]) == ("certified", "ledger")
    loss = result.transcript.header["loss"]
    assert loss == {"number": "huber", "labels": "binary"}[what]
    assert result.result["certificate"]["document"]["parameters"]["loss"] == loss


@pytest.mark.parametrize("what", ["number", "labels"])
def test_a_fleet_takes_the_same_steps(what, prices, tags):
    given = {**prices, **NUMBER} if what == "number" else {**tags, **LABELS}
    plan = assemble(resolve({**QUICK, **given, **CERTIFIED})).training()
    (one,), (other,) = (list(engine.run([plan])) for engine in (InProcess(), Fleet()))
    assert torch.allclose(one.token.parameters, other.token.parameters, rtol=1e-9, atol=1e-12)
    assert one.transcript.hops[-1].events == other.transcript.hops[-1].events


def test_a_loss_made_from_hubers_is_the_users_own_and_not_certified(prices):
    class Steep(Huber):
        def residual(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 1.9 * (output - y.unsqueeze(-1))

    config = resolve({**QUICK, **prices, **NUMBER, **CERTIFIED})
    task = replace(assemble(config).task, loss=Steep())
    assert task.own_code
    with pytest.raises(Refused, match='loss "the task\'s own"'):
        run(config, task=task)


def test_labels_are_learnt_and_scored_by_f1(tags):
    result = run(
        resolve(
            {
                **QUICK,
                **tags,
                **LABELS,
                "model.name": "mlp",
                "train.hops": 40,
                "method": "restart",
                "unlearn.hops": 40,
            }
        )
    )
    assert result.result["methods"][0]["final"]["clean"] > 0.8
    assert "Clean F1" in result.html()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forget.kind": "class", "forget.label": 0}, r"forget\.kind is 'class', which needs"),
        ({"data.partition": "dirichlet"}, "'dirichlet', which needs classes"),
        ({"data.labels": "a|b"}, "no classes and no labels"),
        ({"data.huber": 0.0}, r"huber is 0\.0; allowed"),
        ({"data.predicts": "labels", "data.huber": 1.0}, "belongs to data.predicts=number"),
        ({"data.predicts": "two"}, "data.predicts is 'two'"),
    ],
)
def test_what_needs_classes_is_refused(changes, message, prices):
    given = {**QUICK, **prices, **NUMBER, **changes}
    if given["forget.kind"] != "records":
        del given["forget.size"]
    if given["data.predicts"] == "labels":
        del given["data.scale"]
    with pytest.raises(InvalidInput, match=message):
        assemble(resolve(given))


@pytest.mark.parametrize(
    ("y", "settings", "message"),
    [
        ([1.0, float("nan")] * 40, {"predicts": "number"}, "y has nan in row 1"),
        (np.zeros((80, 2)), {"predicts": "number"}, r"shape \(80, 2\).*one number per record"),
        (np.full((80, 2), 0.5), {"predicts": "labels"}, "0.5 in row 0, column 0; allowed: 0 or 1"),
        (np.zeros(80), {"predicts": "labels"}, "a 0 or 1 for each label"),
    ],
)
def test_bad_arrays_are_refused_with_their_place(y, settings, message):
    with pytest.raises(InvalidInput, match=message):
        from_arrays(numbers()[0], y, peers=4, **settings)


def test_arrays_of_numbers_and_of_labels():
    x, y = numbers()
    task = from_arrays(x, y, peers=4, predicts="number", huber=2.0, model="linear")
    assert (task.classes, task.predicts, task.own_code) == (1, "number", False)
    assert task.loss is not None
    marks = np.stack([y > 0, y > 1], 1)
    both = from_arrays(x, marks, peers=4, predicts="labels", model="linear")
    assert both.classes == 2
    assert tuple(both.model()(both.test.x).shape) == (len(both.test.y), 2)


def test_an_archive_of_marks_and_one_of_numbers(tmp_path):
    x, y = numbers()
    np.savez(tmp_path / "marks.npz", x=x, y=np.stack([y > 0, y > 1], 1))
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    for name, predicts, outputs in (("marks", "labels", 2), ("numbers", "number", 1)):
        options = {"path": str(tmp_path / f"{name}.npz"), "predicts": predicts}
        assert build_task("file", peers=4, options=options).classes == outputs
    with pytest.raises(InvalidInput, match=r"for a regression set data\.predicts=number"):
        build_task("file", peers=4, options={"path": str(tmp_path / "numbers.npz")})


def test_evaluations_and_audits_need_classes(tmp_path, prices):
    from unwalk.audits.game import Game
    from unwalk.runs.evaluate import evaluate

    config = resolve({**QUICK, **prices, **NUMBER, "method": "restart"})
    run(config, out=tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"probabilities of classes, but task 'house\.csv'"):
        evaluate(tmp_path / "out")
    with pytest.raises(InvalidInput, match="audit attacks by the probabilities of classes"):
        Game(config).assembled()


def test_a_task_with_a_loss_of_its_own_still_counts_as_own_code():
    x, y = numbers()
    task = from_arrays(x, y, peers=4, predicts="number", model="linear")
    assert replace(task, loss=lambda output, target: output.square().sum(1)).own_code
