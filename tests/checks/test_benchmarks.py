"""The benchmark runs, compares equal work, and says so when something is too slow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import walk
from unwalk.tasks import Deletion, build_task

NOISY = 2.0  # other processes share the cores with the tests, and the quick version is short


def test_the_quick_benchmark_stays_near_its_limits(capsys):
    code = walk.main(["--quick", "--json"])
    results = json.loads(capsys.readouterr().out)
    assert [r["limit"] for r in results] == [1.05, 1.15] + 4 * [walk.GROWTH_LIMIT]
    assert all(r["difference"] <= walk.ROUNDING for r in results[:2])
    assert not [r for r in results if not 0.0 < r["ratio"] <= NOISY * r["limit"]]
    assert code == (0 if all(r["ok"] for r in results) else 1)


def test_the_cnn_is_the_one_that_the_limit_is_about():
    model = walk.flnet()
    assert sum(p.numel() for p in model.parameters()) == 62_538
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_digits_hop_is_two_steps():
    assert {walk.digits().records(peer).size // 64 for peer in range(10)} == {2}


def test_other_work_does_not_count(monkeypatch):
    task = build_task("blobs", peers=10, forget=Deletion("nothing"))
    assert walk.race("blobs", task, 10.0, hops=3, warm=1).difference == pytest.approx(0, abs=1e-6)
    bare_hop = walk.bare_hop

    def lazy_hop(model, optimizer, x, y, batches):
        bare_hop(model, optimizer, x, y, batches[1:])

    monkeypatch.setattr(walk, "bare_hop", lazy_hop)
    with pytest.raises(SystemExit, match="apart"):
        walk.race("blobs", task, 10.0, hops=3, warm=1)


def test_a_missed_limit_is_shown_and_ends_with_1(monkeypatch, capsys):
    fast = walk.Result("fast", "bare loop", 0.0104, 0.01, ratio=1.04, limit=1.05, hops=9)
    slow = replace(fast, name="slow", ratio=1.06)
    monkeypatch.setattr(walk, "measure", lambda quick: [fast, slow])
    assert walk.main([]) == 1
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["fast", "10.400", "bare", "loop", "10.000", "1.040", "1.05", "ok"]
    assert second.endswith("1.060   1.05  too slow")
    monkeypatch.setattr(walk, "measure", lambda quick: [fast])
    assert walk.main([]) == 0
