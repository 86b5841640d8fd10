"""Fixed features between peers: one map for all, computed once, erased with the record."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest
import torch

from tests.peers.deletions import SEALED, ask, check, ended, hamlet, network, trained_on
from tests.peers.own_files import FEATURES, make_csv, peer
from tests.tasks.own_features import Doubled
from unwalk.core.errors import InvalidInput
from unwalk.peers.forgetting.plans import Book
from unwalk.peers.records.record_store import Records
from unwalk.peers.records.sources import DataSettings
from unwalk.tasks.declared import declare, declared_task
from unwalk.tasks.features import Extraction, extractor_for

OWN = "tests.tasks.own_features:doubled"
DECLARED = declare(
    {"features": FEATURES, "labels": "well|ill", "extractor": OWN, "norm": 1.0, "trained": "apart"}
)


def test_a_peer_keeps_features_computed_once_and_erased_with_the_record(tmp_path, monkeypatch):
    names, rows = make_csv(tmp_path / "patients.csv")
    peer(tmp_path, hold_out=0.0).close()
    calls = []
    whole = Doubled.forward

    def counted(network, x):
        calls.append(len(x))
        return whole(network, x)

    assert DECLARED.features is not None
    monkeypatch.setattr(Doubled, "forward", counted)
    records = Records(tmp_path, DECLARED)
    records.take_over(DataSettings(tmp_path / "patients.csv", hold_out=0.0))
    wanted = DECLARED.features.extractor(torch.from_numpy(rows))
    assert calls[:51] == [1] * 51  # the first one a second time
    calls.clear()
    place = {records.hash(name): row for row, name in enumerate(names)}
    with closing(sqlite3.connect(records.path)) as db:
        kept = dict(db.execute("SELECT hash, x FROM records"))
    assert {h: np.frombuffer(x, "<f4").tolist() for h, x in kept.items()} == {
        h: wanted[row].tolist() for h, row in place.items()
    }
    records.refresh()
    assert records.shard().x.shape == records.shard().x.shape == (50, 1 + 2 * FEATURES)
    assert records.hold_out().x.shape == (0, 1 + 2 * FEATURES)
    assert calls == []
    gone = records.hash(names[7])
    records.erase([gone])
    raw, features = rows[7].tobytes(), kept[gone]
    for path in (tmp_path / "store").iterdir():
        data = path.read_bytes()
        assert raw[:12] not in data
        assert features[4:16] not in data
    records.close()


def test_with_another_map_all_records_are_taken_in_anew(tmp_path):
    records = peer(tmp_path, hold_out=0.0)
    assert records.shard().x.shape == (50, FEATURES)
    records.close()
    again = Records(tmp_path, DECLARED)
    changes = again.refresh()
    assert (changes.added, changes.changed, changes.removed) == (0, 50, 0)
    assert again.shard().x.shape == (50, 1 + 2 * FEATURES)
    again.close()


def test_the_public_task_has_a_head_for_the_features():
    task = declared_task(DECLARED, 3)
    assert task.source.shape == (1 + 2 * FEATURES,)
    assert (task.model_name, task.source.feature_norm) == ("linear", 1.0)
    assert task.shard(1).x.shape == (0, 1 + 2 * FEATURES)


def test_a_peer_with_another_map_is_refused(tmp_path, monkeypatch):
    made = network(tmp_path / "net", peers=3, data__extractor=OWN, data__trained="apart")
    digest = made.settings["data.extractor_digest"]
    task = declared_task(declare({"features": 6, "classes": 3}), 3)
    assert digest == extractor_for(Extraction(OWN), task.source).digest
    assert Book(made).assembled.task.source.shape == (13,)

    whole = Doubled.__init__

    def other(self) -> None:
        whole(self)
        self.weight.data += 1.0

    monkeypatch.setattr(Doubled, "__init__", other)
    with pytest.raises(InvalidInput, match="all peers need the same map, weights included"):
        _ = Book(made).assembled


def test_a_seal_on_features_is_certified_and_names_them(tmp_path):
    async def script(here):
        await here.until(here.trained)
        row = trained_on(here, 2)[0]
        ask(here, 2, "a", row, grade="certified", epsilon=1.0, delta=1e-5)
        await here.until(ended(here, a=2))

    settings = {**SEALED, "data__extractor": OWN, "data__trained": "apart", "unlearn__hops": 4}
    here = hamlet(tmp_path, script, **settings, seal__local_epochs=5)
    document = check(here, 2, "chapter-1")
    (claim,) = document["claims"]
    assert claim["grade"] == "certified"
    assert document["parameters"]["features"] == OWN
    assert document["parameters"]["features_from"] == "apart"
    assert any("trained apart from all records here" in text for text in claim["assumptions"])
