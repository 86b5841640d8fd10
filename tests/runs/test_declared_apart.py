"""Classes and scaling are declared apart, and what the program knows nobody overrides."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runs.small import small_run
from unwalk.runs.assemble import ModelFacts, public_facts, resolve
from unwalk.tasks import Deletion, OwnData, build_task
from unwalk.tasks.own import from_arrays

OWN = {
    "task": "file",
    "method": "restart",
    "train.hops": 4,
    "unlearn.hops": 2,
    "forget.kind": "class",
    "forget.label": 2,
}


@pytest.fixture
def table(tmp_path):
    """Three peers; only the first has records of class c, and it has to forget them."""
    path = tmp_path / "records.csv"
    rows = [f"{k % 7},{k % 5},{'ab'[k % 2]},{k % 3}" for k in range(60)]
    rows += [f"{k % 7},{k % 5},c,0" for k in range(10)]
    path.write_text("one,two,label,group\n" + "\n".join(rows) + "\n")
    return {**OWN, "data.path": str(path)}


def claim_of(settings, **changes):
    result = small_run(settings, compare=[], **changes)
    (claim,) = result.result["claims"]
    return claim, result


@pytest.mark.parametrize("said", [{}, {"data__normalisation": "published"}])
def test_a_class_that_only_the_forgotten_have_is_refused_whatever_is_said(table, said):
    claim, result = claim_of(table, **said)
    assert (claim["grade"], claim["code"]) == ("refused", "labels")
    assert result.model.state_dict().popitem()[1].shape[0] == 3, "a row for a class of D_f"


@pytest.mark.parametrize("said", [{}, {"data__normalisation": "without-forgotten"}])
def test_named_classes_are_exact(table, said):
    claim, _ = claim_of(table, data__labels="a|b|c", **said)
    assert claim["grade"] == "exact"
    words = " ".join(claim["assumptions"])
    assert "declared, not read off the data" in words
    assert "columns were scaled as declared" in words, "the program knows how it read the file"
    assert "held out" in words


def facts(task, **settings):
    config = resolve({"method": "restart", **settings})
    return public_facts(config, task, ModelFacts.of(task, config.seed), "restart", 0.5)


X, Y = np.eye(20), np.arange(20) % 2
FORGET = Deletion("records", size=1)


def test_what_a_user_says_fills_in_what_is_not_known_and_no_more():
    own = from_arrays(X, Y, peers=2, classes=2, forget=FORGET)
    assert facts(own)["normalisation"] == "unknown"
    assert facts(own, **{"data.normalisation": "published"})["normalisation"] == "published"
    digits = build_task("digits-flat", peers=3)
    said = facts(digits, **{"data.normalisation": "without-forgotten"})
    assert said["normalisation"] == "published"


def test_where_classes_come_from():
    given = {"peers": 2, "forget": FORGET}
    assert facts(from_arrays(X, Y, **given))["labels"] == "as-they-occur"
    assert facts(from_arrays(X, Y, classes=2, **given))["labels"] == "declared"
    named = from_arrays(X, Y, labels=["no", "yes", "perhaps"], **given)
    assert facts(named)["labels"] == "declared"
    assert named.classes == 3, "one that no record has counts too"
    assert facts(build_task("digits-flat", peers=3))["labels"] == "published"
    assert OwnData(X, Y).labels_from is None


def test_how_data_were_dealt_and_whose_code_it_was():
    apart = (X[:4], Y[:4])
    parts = [np.arange(10), np.arange(10, 20)]
    own = from_arrays(X, Y, parts=parts, test=apart, classes=2, model="logistic", forget=FORGET)
    said = facts(own)
    assert (said["dealing"], said["holdout"], said["code"]) == ("natural", "apart", "built-in")
    groups = from_arrays(X, Y, groups=np.arange(20) % 4, classes=2, forget=FORGET)
    assert (facts(groups)["dealing"], facts(groups)["holdout"]) == ("natural", "share")
    dealt = from_arrays(X, Y, peers=2, partition="iid", classes=2, forget=FORGET)
    assert facts(dealt)["dealing"] == "iid"
    loss = from_arrays(X, Y, peers=2, classes=2, forget=FORGET, loss=lambda o, y: o.sum(1) * y)
    assert facts(loss)["code"] == "own"
    assert facts(build_task("blobs", peers=3))["dealing"] == "natural"


def test_assumptions_are_listed_where_they_apply():
    claim, _ = claim_of({"task": "digits-flat", "peers": 3, "method": "restart", "train.hops": 4})
    words = " ".join(claim["assumptions"])
    assert "records were dealt by 'iid'" in words
    assert "held out" in words
    assert "own code" not in words
    claim, _ = claim_of(
        {
            "task": "blobs",
            "peers": 3,
            "method": "restart",
            "train.hops": 4,
            "forget.kind": "records",
            "forget.size": 2,
        }
    )
    words = " ".join(claim["assumptions"])
    assert "dealt" not in words
    assert "held out" not in words
