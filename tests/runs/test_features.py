"""Runs on fixed features: sums forget exactly in one hop, a seal is certified, who made the map is
said in the certificate, and a network that nobody vouches for is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runs.own_records import blobs
from unwalk.certificates import verify
from unwalk.core.errors import InvalidInput, Refused
from unwalk.runs.assemble import resolve
from unwalk.runs.releases import marks_of
from unwalk.runs.run import run
from unwalk.settings.config import Value, run_id
from unwalk.tasks import Deletion, build_task, from_arrays

OWN = "tests.tasks.own_features:doubled"
SUMS: dict[str, Value] = {
    "method": "sums",
    "compare": [],
    "task": "digits",
    "peers": 4,
    "data.extractor": "plain",
    "data.norm": 1.0,
    "model.precision": "float64",
    "evaluate.every": 100,
}


def claim(result):
    return result.result["certificate"]["document"]["claims"][-1]


def facts(result):
    return result.result["certificate"]["document"]["parameters"]


def test_sums_on_features_of_pictures_forget_poison_in_one_hop():
    result = run(resolve({**SUMS, "forget.size": 40, "evaluate.every": 1}))
    (method,) = result.result["methods"]
    assert (claim(result)["grade"], method["cost"]["hops"]) == ("exact", 1)
    assert facts(result)["features"] == "plain"
    assert len(facts(result)["features_digest"]) == 64
    assert facts(result)["features_from"] == "constants"
    told = " ".join(result.result["certificate"]["words"]["done"])
    assert "through fixed features, 'plain' (digest " in told
    assert any("fixed features 'plain'" in text for text in claim(result)["assumptions"])
    before, after = (reading.asr or 0.0 for reading in result.walks["sums"].readings[-2:])
    assert before > 0.3 > 0.1 > after


def test_the_model_after_one_hop_is_that_of_a_world_without_the_records():
    forget: dict[str, Value] = {"forget.kind": "records", "forget.size": 7}
    forgot = run(resolve({**SUMS, **forget, "sums.bits": 20})).model.state_dict()
    gone = build_task(
        "digits",
        peers=4,
        options={"extractor": "plain", "norm": 1.0},
        forget=Deletion("records", size=7),
    )
    square = torch.zeros(65, 65, dtype=torch.float64)
    product = torch.zeros(65, 10, dtype=torch.float64)
    for peer in range(4):
        shard = gone.shard(peer)
        rows = torch.from_numpy(shard.records.retained)
        x = shard.x[rows].double()
        square += x.T @ x
        product += x.T @ torch.nn.functional.one_hot(shard.y[rows], 10).double()
    wanted = torch.linalg.solve(square + torch.eye(65), product).T
    assert torch.allclose(forgot["1.weight"], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("trained", "grade"), [(None, "refused"), ("apart", "exact"), ("published", "exact")]
)
def test_a_network_of_the_users_own_has_to_be_vouched_for(trained, grade):
    changes = {**SUMS, "data.extractor": OWN, "data.trained": trained, "forget.kind": "records"}
    result = run(resolve({**changes, "forget.size": 3}))
    assert claim(result)["grade"] == grade
    if trained is None:
        assert claim(result)["code"] == "features"
        assert "trained on D_f carries it" in claim(result)["reason"]
    else:
        assert facts(result)["features"] == OWN
        assert facts(result)["features_from"] == trained


SEALED: dict[str, Value] = {
    "preset": "certified",
    "compare": [],
    "peers": 3,
    "train.hops": 6,
    "unlearn.hops": 4,
    "train.learning_rate": 1.0,
    "train.capacity": 40,
    "seal.local_epochs": 5,
    "forget.size": 1,
    "evaluate.every": 100,
}


def patients(path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["id,age,size,label"]
    for number in range(90):
        age, size = rng.normal(50, 15), rng.normal(3, 1)
        rows.append(f"p{number},{age:.0f},{size:.2f},{'ill' if age > 52 else 'well'}")
    path.write_text("\n".join(rows))


@pytest.mark.parametrize(
    "inputs",
    [
        {"data.norm": 1.0},
        {"data.norm": 1.0, "model.name": "logistic"},
        {"data.norm": 1.0, "data.extractor": "plain"},
    ],
)
def test_a_seal_on_a_users_own_table_is_certified(tmp_path, inputs):
    patients(tmp_path / "patients.csv")
    named: dict[str, Value] = {
        "task": "file",
        "data.path": str(tmp_path / "patients.csv"),
        "data.labels": "well|ill",
        "data.scale": "age=50:30; size=3:3",
    }
    result = run(resolve({**SEALED, **named, **inputs}), out=tmp_path / "out")
    assert claim(result)["grade"] == "certified"
    document = result.result["certificate"]["document"]
    assert verify(document, result.transcript, model=None).problems == ()
    assert facts(result)["feature_norm"] == pytest.approx(2**0.5 if "model.name" in inputs else 1.0)
    with pytest.raises(Refused, match="gradients are not bounded"):
        run(resolve({**SEALED, **named}))


def test_a_seal_on_own_arrays_is_certified():
    x, y = blobs()
    task = from_arrays(
        x,
        y,
        peers=3,
        classes=2,
        norm=1.0,
        model="linear",
        forget=Deletion("records", size=1),
        dtype=torch.float64,
    )
    given = {k: v for k, v in SEALED.items() if not k.startswith("forget") and k != "peers"}
    changes = {**given, "data.normalisation": "published"}
    result = run(resolve({**changes, "task": "own", "peers": 3, "forget.peer": 0}), task=task)
    assert claim(result)["grade"] == "certified"


def test_a_record_is_known_again_under_other_features_and_another_id():
    x, y = blobs()

    def marks(name, **asked):
        ids, forget = [f"{name}{i}" for i in range(90)], Deletion("records", size=2)
        task = from_arrays(x, y, peers=3, classes=2, ids=ids, forget=forget, **asked)
        return marks_of(task, b"s" * 32)

    bare, plain = marks("a"), marks("b", extractor="plain")
    assert len(bare & plain) == len(plain & marks("c", extractor="plain", norm=1.0)) == 2


def test_a_run_keeps_its_name_though_settings_were_added():
    usual = resolve({"task": "digits"})
    assert run_id(usual) == "b6f7af6b65a95802"
    waves = resolve({"task": "mnist-gabor", "data.cosines": 30})
    assert run_id(waves) == "6b861c9a0f0f1b0c"
    assert run_id(usual) != run_id(resolve({"task": "digits", "data.extractor": "plain"}))


def test_another_digest_than_agreed_is_refused_before_anything_runs():
    with pytest.raises(InvalidInput, match="all peers need the same map"):
        run(resolve({**SUMS, "data.extractor_digest": "0" * 64}))
