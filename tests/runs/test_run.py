"""Whole runs: the same bits again, every method and kind of request, and the files they leave."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unwalk
from tests.runs.small import BLOBS, DIGITS, small, small_run
from unwalk.core.errors import Diverged, InvalidInput
from unwalk.core.transcript import Transcript
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.run import RunResult, run
from unwalk.settings.config import Value, read_toml
from unwalk.walks import GRAPHS

FILES = {
    "certificate.json",
    "config.toml",
    "model.safetensors",
    "report.html",
    "result.json",
    "timing.jsonl",
    "transcript.jsonl",
}
METHODS = ("rrdu", "finetune", "retrain")
REQUESTS: dict[str, dict[str, Value]] = {
    "backdoor": {"forget.kind": "backdoor", "forget.size": 40},
    "records": {"forget.kind": "records", "forget.size": 15},
    "class": {"forget.kind": "class", "forget.label": 3},
    "peer": {"forget.kind": "peer"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a small run on digits left."""
    out = tmp_path_factory.mktemp("runs") / "deep" / "first"
    small_run(DIGITS, out=out)
    return out


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def clean(result: RunResult) -> float:
    found = result.final()["clean"]
    assert found is not None
    return found


def test_same_seed_same_model_and_another_seed_another(tmp_path):
    models = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        small_run(DIGITS, seed=seed, compare=[], out=tmp_path / name)
        models[name] = (tmp_path / name / "model.safetensors").read_bytes()
    assert models["a"] == models["b"]
    assert models["a"] != models["c"]


def test_a_run_leaves_its_files_and_nothing_else(folder):
    assert {p.name for p in folder.iterdir()} == FILES
    assert [p.name for p in folder.parent.iterdir()] == ["first"]


def test_the_transcript_parses_and_its_chain_holds(folder):
    transcript = Transcript.read(folder / "transcript.jsonl")
    assert [h.hop for h in transcript.hops] == list(range(1, 13))
    assert transcript.header["method"] == "rrdu"
    assert transcript.hops[-1].digest is not None
    lines = (folder / "transcript.jsonl").read_text().splitlines()
    lines[4] = lines[4].replace('"gradients":', '"gradients":1')
    with pytest.raises(unwalk.Corrupt, match="line 5"):
        Transcript.parse(lines)


def test_times_are_kept_outside_the_transcript(folder):
    times = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    walks = [(m, hop) for m in METHODS for hop in range(1, 13)]
    assert [(t["walk"], t["hop"]) for t in times] == walks
    assert all(t["seconds"] >= 0 for t in times)
    assert "seconds" not in (folder / "transcript.jsonl").read_text()


def test_the_saved_model_gives_the_numbers_of_the_result(folder):
    result = result_of(folder)
    task = assemble(resolve({}, read_toml(folder / "config.toml"))).task
    assert task.triggered is not None
    model = task.model()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    model.eval()

    def right(held):
        return float((model(held.x).argmax(1) == held.y).double().mean())

    with torch.no_grad():
        final = result["methods"][0]["final"]
        assert final["clean"] == right(task.test)
        assert final["forget"] == right(task.forgotten)
        assert final["retain"] == right(task.retained)
        hit = model(task.triggered.x).argmax(1) == 0
        assert final["asr"] == float(hit[task.triggered.y != 0].double().mean())
        assert final["asr_paper"] == float(hit.double().mean())


def test_the_result_says_what_was_run(folder):
    result = result_of(folder)
    assert [m["name"] for m in result["methods"]] == ["rrdu", "finetune", "retrain"]
    assert [m["main"] for m in result["methods"]] == [True, False, False]
    assert result["task"]["forget"]["size"] == 60
    assert result["config"]["train.hops"] == 6
    assert result["claims"][-1]["grade"] == "refused"
    assert len(result["samples"]) == 8
    for method in result["methods"]:
        hops = [r["hop"] for r in method["series"]]
        # Every third hop and the ends; retraining is measured after T and after T + T_u hops.
        assert hops == [3, 6, 9, 12]
        assert method["final"] == {
            k: v for k, v in method["series"][-1].items() if k not in ("hop", "phase")
        }
    assert result["methods"][2]["gap"] == {"clean": 0.0, "asr": 0.0, "forget": 0.0}


def test_the_report_is_one_page_that_loads_nothing(folder):
    page = (folder / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "RR-DU" in page
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!["'#]|data:)""", page)
    assert "@import" not in page


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", REQUESTS)
def test_every_method_meets_every_request(method, kind):
    result = small_run({**DIGITS, **REQUESTS[kind]}, method=method, compare=[], evaluate__every=99)
    final = result.final()
    assert final["clean"] > 0.3
    assert (final["asr"] is None) == (kind != "backdoor")
    assert final["forget"] is not None
    phase = result.transcript.hops[-1].phase
    assert phase == ("retrain" if method == "retrain" else "unlearn")
    assert result.result["task"]["forget"]["kind"] == kind


@pytest.mark.parametrize("kind", sorted(set(GRAPHS) - {"edge-list"}))
def test_every_graph_runs(kind):
    result = small_run(peers=6, graph__kind=kind, compare=[])
    edges = result.result["graph"]["edges"]
    assert result.result["graph"]["kind"] == kind
    assert (edges is None) == (kind == "complete")
    for hop in result.result["walk"]:
        assert hop["path"][-1:] in ([], [hop["receiver"]])
    if edges:
        pairs = {tuple(e) for e in edges} | {(b, a) for a, b in edges}
        stops = [p for hop in result.result["walk"] for p in hop["path"] or [hop["receiver"]]]
        assert all(a == b or (a, b) in pairs for a, b in pairwise(stops))


def test_a_graph_from_a_file_says_how_many_peers_there_are(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("0 1\n1 2\n2 3\n3 4\n# a line of five\n")
    result = small_run(graph__kind="edge-list", graph__path=str(path), peers=None, compare=[])
    assert result.result["task"]["peers"] == 5
    assert result.result["graph"]["edges"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    with pytest.raises(InvalidInput, match="peers is 4"):
        small_run(graph__kind="edge-list", graph__path=str(path))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("state", ["carried", "local", "fresh"])
def test_optimizer_state_travels_only_when_it_is_carried(optimizer, state):
    changes = {"train.optimizer": optimizer, "train.state": state, "train.learning_rate": 0.01}
    result = small_run({**BLOBS, **changes}, compare=[])
    moments = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer] if state == "carried" else 0
    cost = result.result["methods"][0]["cost"]
    assert cost["bytes"] == cost["messages"] * (1 + moments) * 68 * 4


def test_the_kept_iterate_is_the_last_an_average_or_a_random_one():
    flat = {}
    for keep in ("last", "average", "random"):
        model = small_run(unlearn__keep=keep, method="finetune", compare=[]).model
        flat[keep] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert not torch.equal(flat["last"], flat["average"])
    ends = []
    for hops in range(1, 7):
        model = small_run(unlearn__hops=hops, method="finetune", compare=[]).model
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(ends[-1], flat["last"])
    assert torch.allclose(torch.stack(ends).mean(0), flat["average"], atol=1e-6)
    assert any(torch.equal(end, flat["random"]) for end in ends)


def test_p_zero_never_visits_and_p_one_always_does():
    for p, visits in ((0.0, 0), (1.0, 6)):
        result = small_run(unlearn__p=p, compare=[])
        assert result.result["methods"][0]["cost"]["visits_to_unlearner"] == visits


def test_visits_can_be_capped():
    result = small_run(unlearn__p=1.0, unlearn__max_visits=2, compare=[])
    assert result.result["methods"][0]["cost"]["visits_to_unlearner"] == 2


def test_the_paper_s_names_of_directions_are_known():
    for theirs, ours in (("EXACT", "retain"), ("lightweight", "forget")):
        models = [small_run(unlearn__direction=d, compare=[]).model for d in (theirs, ours)]
        mine, other = (torch.cat([p.reshape(-1) for p in m.parameters()]) for m in models)
        assert torch.equal(mine, other)


def test_a_method_named_twice_runs_once():
    told = []
    run(small(compare=["finetune", "rrdu", "finetune"]), tell=lambda *a: told.append(a))
    assert [walk for walk, done, hops in told if done == hops] == ["train", "rrdu", "finetune"]
    assert {hops for _, _, hops in told} == {6}


def test_nothing_to_forget_is_a_run_that_only_learns():
    result = small_run(forget__kind="nothing", compare=[])
    assert result.result["claims"] == []
    assert result.final()["forget"] is None
    with pytest.raises(InvalidInput, match=r"forget.size is 3, but forget.kind is 'nothing'"):
        small_run(forget__kind="nothing", forget__size=3)


def test_claims_are_nominal_only_where_there_is_noise():
    def grades(**changes):
        return [c["grade"] for c in small_run(compare=[], **changes).result["claims"]]

    assert grades() == ["refused"]
    assert grades(preset="paper") == ["nominal", "refused"]
    assert grades(preset="paper", method="finetune") == ["refused"]
    assert grades(method="retrain") == ["exact"]


def test_own_arrays_and_an_own_model_from_python(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    x = rng.normal(size=(240, 5)) + 3 * y[:, None]
    task = unwalk.from_arrays(
        x,
        y,
        peers=4,
        unlearner=2,
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        ),
        forget=unwalk.Deletion("records", size=6),
    )
    settings = {"train.hops": 6, "unlearn.hops": 4, "train.batch": 16}
    result = unwalk.run(task, settings=settings, out=tmp_path / "own")
    assert clean(result) > 0.4
    assert result.config.forget.peer == 2
    assert result.result["task"]["forget"] == {
        "kind": "records",
        "size": 6,
        "target": None,
        "trigger": None,
    }
    assert {p.name for p in (tmp_path / "own").iterdir()} == FILES
    page = (tmp_path / "own" / "report.html").read_text()
    assert "call <code>unwalk.run</code> with the same task" in page
    assert "repeats the run" not in page
    with pytest.raises(InvalidInput, match="method is 'ddp'; allowed: finetune, retrain, rrdu"):
        result.final("ddp")
    for key, value in (("forget.size", 3), ("peers", 5), ("model.name", "mlp")):
        with pytest.raises(InvalidInput, match=f"settings names '{key}'"):
            unwalk.run(task, settings={key: value})
    with pytest.raises(
        InvalidInput, match=r"forget.peer is 0, but the task that was brought has 2"
    ):
        run(replace(small(), peers=4), task=task)


def test_own_model_and_data_by_name_from_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "clinic_of_a_test.py").write_text(
        "import numpy as np\n"
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))\n"
        "def records():\n"
        "    rng = np.random.default_rng(1)\n"
        "    y = np.arange(200) % 2\n"
        "    return rng.normal(size=(200, 3)) + 2 * y[:, None], y\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    named: dict[str, Value] = {
        "task": "clinic_of_a_test:records",
        "model.name": "clinic_of_a_test:net",
    }
    config: dict[str, Value] = {
        **named,
        "peers": 4,
        "train.hops": 6,
        "unlearn.hops": 4,
        "train.batch": 16,
    }
    request: dict[str, Value] = {"forget.kind": "records", "forget.size": 5}
    result = run(resolve({**config, **request}), out=tmp_path / "out")
    assert clean(result) > 0.5
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert int(saved["1.num_batches_tracked"]) > 0
    result.walks["rrdu"].outcome.workspace.model.load_state_dict(saved)


def test_a_run_that_diverges_leaves_nothing_behind(tmp_path):
    with pytest.raises(Diverged, match="not finite"):
        small_run(train__learning_rate=1e38, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_settings_of_the_call_are_named_as_such():
    with pytest.raises(InvalidInput, match=r"^the call sets 'unlearn.q', which is not a setting"):
        unwalk.run("blobs", settings={"unlearn.q": 1})
    with pytest.raises(InvalidInput, match=r"^method is ''; allowed: "):
        unwalk.compare("blobs", methods=[])
    alone = unwalk.compare("blobs", methods="rrdu", seeds=1, settings=BLOBS)
    assert [method["name"] for method in alone.result["seeds"]["methods"]] == ["rrdu"]


def test_comparing_gives_means_deviations_and_paired_gaps():
    found = unwalk.compare("blobs", methods="finetune, retrain", seeds=3, seed=4, settings=BLOBS)
    single = [small_run(seed=4 + k, method="finetune", compare=["retrain"]) for k in range(3)]
    clean = [one.final()["clean"] for one in single]
    oracle = [one.final("retrain")["clean"] for one in single]
    assert found.mean("finetune", "clean") == pytest.approx(np.mean(clean))
    assert found.std("finetune", "clean") == pytest.approx(np.std(clean, ddof=1))
    assert found.mean("finetune", "gap.clean") == pytest.approx(np.mean(np.subtract(clean, oracle)))
    assert found.mean("finetune", "cost.hops") == 6
    assert found.mean("finetune", "asr") is None
    assert [r["seed"] for r in found.runs] == [4, 5, 6]
    assert found.result["seeds"]["runs"] == 3
