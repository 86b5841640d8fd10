"""The benchmark of KLOM: its table comes from margins alone, and it goes on where it stopped."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch

from benchmarks import klom
from tests.tasks.test_klom import lay_out
from unwalk.measures import divergence
from unwalk.measures.divergence import klom_percentile
from unwalk.runs.sweep import Failed

MODELS = 12


def hand_made(method_at: float = 0.0) -> dict[str, np.ndarray]:
    """Margins of three records in twelve models an arm; forgetting leaves them ``method_at``."""
    found = {}
    for place, (name, shift) in enumerate(
        {"trained": 9.0, "rrdu": method_at, "retrain": 0.0}.items()
    ):
        for seed in range(MODELS):
            drawn = np.random.default_rng([place, seed]).normal(shift, 0.1, (3, 3))
            for row, which in enumerate(klom.POINTS):
                found[f"2/{name}/{seed}/{which}"] = drawn[row].astype(np.float32)
            found[f"2/{name}/{seed}/accuracy"] = np.array([0.5 + shift / 100], np.float32)
            found[f"2/{name}/{seed}/seconds"] = np.array([1.0], np.float32)
    return found


def test_the_table_of_margins():
    found = hand_made()
    rows = klom.table(found, [2], ["rrdu"])
    assert [(r["records"], r["method"]) for r in rows] == [
        (which, name) for which in klom.POINTS for name in ("trained", "rrdu")
    ]
    before, after = rows[:2]
    assert before["models"] == before["oracles"] == MODELS
    assert before["accuracy"] == pytest.approx(0.59)
    assert before["accuracy_retraining"] == pytest.approx(0.5)
    ours, oracles = (
        np.stack([found[f"2/{name}/{seed}/forget"] for seed in range(MODELS)]).astype(float)
        for name in ("trained", "retrain")
    )
    assert before["klom"] == klom_percentile(ours, oracles)
    assert before["klom"] == pytest.approx(np.log(1 / 1e-5), rel=0.01), "no bin is shared"
    assert before["margin_gap"] == pytest.approx(ours.mean() - oracles.mean())
    assert before["margin_gap_low"] < before["margin_gap"] < before["margin_gap_high"]
    assert before["klom"] > before["klom_level"], "one that kept the records is told from oracles"
    assert before["p_value"] == 1 / (1 + divergence.DEALS)
    assert after["klom"] <= after["klom_level"], "and one that forgot them is not"
    assert after["margin_gap_low"] <= 0 <= after["margin_gap_high"]


def test_the_level_is_exceeded_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(divergence, "DEALS", 19)
    rng, exceeded = np.random.default_rng(1), 0
    for _ in range(200):
        ours, oracles = rng.normal(size=(2, 6, 2))
        dealt = divergence.klom_dealt(ours, oracles)
        exceeded += klom_percentile(ours, oracles) > max(dealt)
    assert exceeded <= 21, "200 draws of probability 1/20: the tail beyond is 1e-3"


def test_the_text_shows_every_method():
    text = klom.told(klom.table(hand_made(), [2], ["rrdu"]))
    assert "forget set 2 (3 records)" in text
    assert f"rrdu          {MODELS}/{MODELS}" in text


def test_few_models_make_no_row():
    found = {k: v for k, v in hand_made().items() if int(k.split("/")[2]) < 3}
    assert klom.table(found, [2], ["rrdu"]) == []


def test_it_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    found = hand_made()
    lost = {"2/retrain/4/forget", "2/rrdu/7/forget"}
    kept = {k: v for k, v in found.items() if k not in lost}
    klom._write(tmp_path, kept)
    asked = []

    def walked(cells, jobs):
        for cell in cells:
            asked.append(cell.name)
            seed = int(cell.name.split("-")[-1])
            if seed == 7:
                yield cell.name, Failed("too large")
            else:
                yield cell.name, {k: v for k, v in found.items() if k.split("/")[2] == str(seed)}

    monkeypatch.setattr(klom, "sweep", walked)
    command = ["--out", str(tmp_path), "--device", "cpu", "--sets", "2", "--methods", "rrdu"]
    assert klom.main([*command, "--models", str(MODELS)]) == 1
    assert asked == ["retrained-2-4", "unlearned-7"]
    assert "failed: unlearned-7: too large" in capsys.readouterr().out
    document = json.loads((tmp_path / "klom.json").read_text())
    assert document["failed"] == {"unlearned-7": "too large"}
    assert [r["models"] for r in document["rows"] if r["records"] == "forget"] == [12, 11]
    klom._write(tmp_path, found)
    asked.clear()
    assert klom.main([*command, "--models", str(MODELS)]) == 0
    assert asked == []


def test_models_are_trained_once_and_forget_every_set(tmp_path, monkeypatch):
    lay_out(tmp_path, monkeypatch)
    settings = {
        **klom.SETTINGS,
        "peers": 4,
        "model.name": "logistic",
        "train.hops": 2,
        "train.batch": 4,
        "unlearn.hops": 1,
    }
    frozen = tuple(settings.items())
    until = time.time() + 600
    try:
        found = klom.unlearned(frozen, 1, (2, 5), ("rrdu",), until)
        found |= klom.retrained(frozen, 1, 5, until)
        assert klom.retrained(frozen, 1, 5, 0.0) == {}, "after the last minute nothing begins"
    finally:
        klom.assembled.cache_clear()
        klom.points.cache_clear()
    assert {key.rsplit("/", 1)[0] for key in found} == {
        *("2/trained/1", "2/rrdu/1", "5/trained/1", "5/rrdu/1", "5/retrain/1")
    }
    assert [found[f"{n}/trained/1/forget"].size for n in (2, 5)] == [3, 2]
    assert found["2/trained/1/forget"][0] == found["5/trained/1/forget"][0], "record 3 in one model"
    assert found["5/retrain/1/validation"].size == 20
    assert not np.array_equal(found["2/rrdu/1/forget"], found["2/trained/1/forget"])


def test_without_a_device_nothing_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert klom.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "this machine shows no CUDA device; nothing measured\n"
    assert not (tmp_path / "out").exists()
