"""The command line as a person or a script meets it."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

import unwalk
from tests.conftest import ROOT
from tests.processes import start_unwalk
from tests.runs.small import BLOBS, DIGITS, options
from unwalk import cli
from unwalk.cli import terminal
from unwalk.core.grades import REFUSALS
from unwalk.methods import defaults
from unwalk.runs.store import WalkFile, partial_of
from unwalk.settings.config import Value, flatten

SMALL = options(BLOBS)
SMALL_DIGITS = options(DIGITS)


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Said]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Calls ``unwalk`` with these words in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "80")

    def called(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["unwalk", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    return called


def test_unwalk_alone_says_what_to_do_next(call):
    said = call()
    text = said.out + said.err
    for command in ("run", "compare", "sweep", "methods", "tasks", "settings"):
        assert f"│ {command} " in text
    assert "Start with: unwalk run --out runs/first" in text
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize(
    "command", ["", "run", "compare", "verify", "forget", "net up", "peer start", "data fetch"]
)
def test_help_shows_no_value_for_a_flag(call, command):
    said = call(*command.split(), "--help")
    assert said.code == 0, said.err
    assert "--help" in said.out
    assert "<bool>" not in said.out


def test_version(call):
    said = call("--version")
    assert (said.code, said.out.strip()) == (0, unwalk.__version__)


def test_run_prints_a_table_what_is_claimed_and_what_was_before(call, tmp_path):
    said = call("run", *SMALL_DIGITS, "--preset", "paper", "--out", "runs/first")
    assert said.code == 0, said.err
    for words in (
        "before unlearning, after 6 hops: clean",
        "digits, seed 0",
        "RR-DU",
        "Fine-tuning",
        "Retraining",
        "ASR: attack success",
        "guarantee nominal (epsilon 1, delta 1e-05): the paper's Corollary 5.2",
        "report: runs/first/report.html",
    ):
        assert words in said.out
    told = " ".join(said.out.split())
    where = "For specialists (no-noise): hop 7, start at peer"
    assert told.count("refused") == told.count(where) == 1, "one refusal is told once"
    assert "trained on the forgotten records" in told
    assert "D_f" not in told
    assert said.out.splitlines()[-1].startswith("report: ")
    assert max(len(line) for line in said.out.splitlines()) <= 80
    assert said.err == ""
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for path in (tmp_path / "runs" / "first").iterdir():
        assert f"`{path.name}`" in page, "the page lists what --out gets"


FLAT = options(
    {
        "task": "digits-flat",
        "peers": 4,
        "train.hops": 6,
        "unlearn.hops": 3,
        "compare": "none",
        "seed": 2,
    }
)


def verdict_in(text: str) -> str:
    """The paragraph before the last one, which says where the report is."""
    return " ".join(text.rstrip().split("\n\n")[-2].split())


def test_a_run_ends_with_what_is_guaranteed_to_whom_and_the_report(call, tmp_path):
    rehearsal = call("run", "--preset", "certified", *FLAT, "--out", "sealed")
    said = verdict_in(rehearsal.out)
    assert said.startswith("rehearsal: would be certified. Nothing is guaranteed to anybody: ")
    assert "guarantee rehearsal: would be certified (epsilon 1, delta 1e-05): " in " ".join(
        rehearsal.out.split()
    )
    assert "guarantee certified" not in rehearsal.out
    checked = call("verify", "sealed")
    assert checked.code == 3
    assert checked.out.splitlines()[-1] == said
    assert "\ncertified" not in checked.out
    asked = call("verify", "sealed", "--json").json
    assert (asked["claims"][0]["grade"], asked["badge"]) == ("certified", "rehearsal")
    assert asked["words"][-1] == said

    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    drawn = options({"noise.source": "secret", "noise.secret_file": str(secret)})
    said = verdict_in(call("run", "--preset", "certified", *FLAT, *drawn).out)
    assert said.startswith("certified. Guaranteed to everyone who sees the model after it has left")
    assert "rehearsal" not in said

    said = verdict_in(call("run", "--method", "restart", *FLAT).out)
    assert said.startswith("exact. Guaranteed to everyone who sees the model after the request")


def test_a_refused_run_ends_with_what_to_do_instead(call):
    said = call("run", *SMALL_DIGITS, "--out", "refused")
    known = REFUSALS["no-noise"]
    told = f"refused. Nothing is guaranteed to anybody: {known.plain}. What to do instead: "
    told += f"{known.instead}."
    assert verdict_in(said.out).startswith(f"{told} For specialists (no-noise): hop 7, start at")
    assert max(len(line) for line in said.out.splitlines()) <= 80
    checked = call("verify", "refused").out.splitlines()
    assert checked[-1] == told
    assert any(line.startswith("refused (no-noise): hop 7, start at peer") for line in checked)


SLOTS = ["--set", "train.optimizer=sgd", "--set", "train.work=slots"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--method", "seal"], "travelling-state"),
        (["--method", "release", "--set", "train.optimizer=sgd"], "batching"),
        (["--method", "release", *SLOTS], "loss"),
        (["--preset", "certified"], "inputs"),
        (["--preset", "certified", *FLAT, "--set", "train.keep=average"], "iterate"),
        (["--method", "rewind", "--set", "train.keep=average"], "iterate"),
    ],
)
def test_what_is_refused_before_a_run_says_what_to_do_instead(call, words, code):
    said = call("run", *words, "--out", "out/first")
    assert (said.code, said.out) == (2, "")
    sentence, meaning, instead = said.err.splitlines()
    assert sentence.startswith("unwalk: ")
    assert meaning == f"what it means ({code}): {REFUSALS[code].plain}"
    assert instead == f"what to do instead: {REFUSALS[code].instead}"
    assert files() == []


def test_the_way_out_of_a_refusal_is_one(call):
    """What ``--method seal`` is told to do instead, word by word."""
    words = REFUSALS["travelling-state"].instead
    command, *rest = words.partition(" (or heart")[0].split()
    assert (command, rest[0]) == ("unwalk", "run")
    assert ", or --method restart, which is exact" in words
    assert call(*rest, *FLAT).code == 0
    said = call("run", "--method", "restart", *SMALL_DIGITS, "--set", "compare=none")
    assert verdict_in(said.out).startswith("exact. ")


@pytest.mark.parametrize("accountant", ["visits", "paper"])
def test_calibrate_says_of_what_by_which_formula_and_how_to_use_it(call, accountant):
    budget = ["--epsilon", "1", "--delta", "1e-5", "--sensitivity", "0.5"]
    said = call("calibrate", "--accountant", accountant, *budget, "--hops", "100", "--p", "0.1")
    lines = dict(line.split(": ", 1) for line in said.out.splitlines())
    number, meaning = lines["sigma"].split(" ", 1)
    assert "standard deviation of the Gaussian noise" in meaning
    assert lines["for"] == "epsilon 1, delta 1e-05, sensitivity 0.5, hops 100, p 0.1"
    assert lines["by"].startswith(f"{accountant}, ")
    unwalk_, *words = lines["to use it"].split()
    assert unwalk_ == "unwalk"
    ran = call(*words, *SMALL, "--set", "compare=none", "--json")
    assert ran.json["config"]["unlearn.sigma"] == float(number)


def test_run_without_out_writes_nothing_and_says_how_to_keep_results(call, tmp_path):
    said = call("run", *SMALL)
    assert said.code == 0
    assert "forget: accuracy on the records that had to be forgotten" in said.out
    assert "add --out DIR to keep the model, the transcript and a report" in said.out
    assert not list(tmp_path.iterdir())


def test_every_option_that_scripts_rely_on_reaches_the_settings(call):
    words = {
        "--task": "digits",
        "--method": "finetune",
        "--preset": "paper",
        "--seed": "3",
        "--device": "cpu",
        "--model": "logistic",
        "--peers": "5",
    }
    pairs: dict[str, Value] = {
        "train.hops": 2,
        "unlearn.hops": 2,
        "unlearn.p": 0.5,
        "unlearn.epsilon": 2.0,
        "unlearn.delta": 1e-6,
        "graph.kind": "ring",
        "forget.size": 7,
        "compare": "none",
    }
    said = call("run", "--json", *(w for pair in words.items() for w in pair), *options(pairs))
    config = said.json["config"]
    named = {"--model": "model.name"}
    assert {o: str(config[named.get(o, o[2:])]) for o in words} == words
    assert {k: config[k] for k in pairs} == {**pairs, "compare": []}
    assert said.json["command"].startswith("unwalk run --json --task digits")
    assert said.json["task"]["forget"]["size"] == 7


def test_a_file_gives_settings_and_set_overrides_it(call, tmp_path):
    (tmp_path / "run.toml").write_text('task = "blobs"\npeers = 4\n[train]\nhops = 9\n')
    said = call("run", "run.toml", *options({**BLOBS, "train.hops": 3}), "--json")
    assert said.json["config"]["train.hops"] == 3
    said = call("run", "run.toml", "--set", "unlearn.hops=2", "--json")
    assert said.json["config"]["train.hops"] == 9
    assert said.json["task"]["name"] == "blobs"


def test_a_run_is_repeated_from_its_own_file(call, tmp_path):
    assert call("run", *SMALL, "--seed", "4", "--out", "a").code == 0
    assert call("run", "a/config.toml", "--out", "b").code == 0
    for name in ("model.safetensors", "transcript.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_own_model_and_own_data_from_the_current_directory(call, tmp_path):
    (tmp_path / "shop_of_a_test.py").write_text(
        "import numpy as np\n"
        "from torch import nn\n"
        "def records():\n"
        "    y = np.arange(120) % 2\n"
        "    return np.random.default_rng(0).normal(size=(120, 3)) + y[:, None], y\n"
        "def net():\n"
        "    return nn.Linear(3, 2)\n"
        "def wrong():\n"
        "    return nn.Linear(3, 5)\n"
    )
    words = ["run", "--task", "shop_of_a_test:records", "--set", "peers=3"]
    hops = ["--set", "train.hops=3", "--set", "unlearn.hops=2", "--set", "forget.kind=peer"]
    said = call(*words, *hops, "--model", "shop_of_a_test:net", "--json")
    assert said.json["task"]["model"] == "shop_of_a_test:net"
    assert said.json["task"]["parameters"] == 8
    refused(call, [*words, *hops, "--model", "shop_of_a_test:wrong"], "shape (2, 5)", "(2, 2)")


def test_large_columns_without_a_scale_are_named(call, tmp_path):
    lines = [f"{'ab'[k % 2]},{k},{k % 7},{['f', 'm'][k % 3 > 0]},{100 + k}" for k in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["group,age,visits,sex,label", *lines]))
    words = ["run", "--task", "file", "--set", "data.path=own.csv", "--set", "train.hops=2"]
    words += ["--set", "data.categories=sex=f|m", "--set", "data.predicts=number"]
    said = " ".join(call(*words, "--set", "data.huber=1e9").out.split())
    assert "warning: no scale for age, label, with values beyond 10: little is learned so" in said
    said = call(*words, "--set", "data.scale=age=30:30; label=130:30")
    assert said.code == 0
    assert "warning" not in said.out


def test_named_records_of_an_own_table_are_forgotten(call, tmp_path):
    lines = [f"c{k},{'ab'[k % 2]},{k % 7},{['no', 'yes'][k % 3 > 0]}" for k in range(60)]
    (tmp_path / "shop.csv").write_text("\n".join(["no,shop,visits,back", *lines]))
    roles = ("label_column=back", "id_column=no", "group_column=shop", "labels=no|yes")
    words = ["--task", "file", "--set", "data.path=shop.csv", "--set", "train.hops=3"]
    words += [word for role in roles for word in ("--set", f"data.{role}")]
    run = ["run", *words, "--method", "restart", "--set", "compare=none"]
    said = call(*run, "--out", "nothing")
    assert "nothing to claim" in said.out
    assert "--set forget.ids=FILE" in " ".join(said.out.split())
    (tmp_path / "gone.txt").write_text("c3\nc7\n")
    asked = ["--set", "forget.ids=gone.txt"]
    refused(call, [*run, *asked], "c3", "peer 1 holds", "forget.peer is 0")
    asked += ["--set", "forget.peer=1"]
    said = call(*run, *asked, "--out", "two", "--json")
    assert [said.json["task"]["forget"][key] for key in ("kind", "size")] == ["listed", 2]
    assert said.json["claims"][0]["grade"] == "exact"
    assert call("verify", "two").code == 3
    several = ["compare", *words, *asked, "--methods", "restart", "--seeds", "3"]
    told = " ".join(call(*several).out.split())
    assert "failed with seed 1: forget.ids names 'c3'" in told
    assert "the test set, which the seed draws; leave it out, or bring a test set" in told
    said = call(*several, "--set", "data.test_path=shop.csv", "--json")
    assert said.json["seeds"]["runs"] == 3


def test_compare_prints_means_and_json_holds_them(call, tmp_path):
    words = ["compare", *SMALL, "--seeds", "2", "--methods", "finetune, retrain"]
    said = call(*words, "--out", "both")
    assert said.code == 0
    assert "blobs, mean ± standard deviation over 2 seeds" in said.out
    assert "report: both/report.html" in said.out
    said = call(*words, "--json")
    assert [m["name"] for m in said.json["seeds"]["methods"]] == ["finetune", "retrain"]
    assert said.json["seeds"]["runs"] == 2
    assert {p.name for p in (tmp_path / "both").iterdir()} >= {"result.json", "runs.json"}


def test_a_narrow_terminal_cuts_no_number(call, monkeypatch):
    said = call("run", *SMALL)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = call("run", *SMALL)
    assert "…" not in narrow.out
    rows = [[line for line in s.out.splitlines() if "Retraining" in line] for s in (said, narrow)]
    assert rows[0][0].split()[:-1] == rows[1][0].split()[:-1]  # the last is the time


def test_methods_and_tasks_are_listed(call):
    assert {"rrdu", "finetune", "retrain"} <= {m["method"] for m in call("methods", "--json").json}
    assert {"digits", "blobs"} <= {t["task"] for t in call("tasks", "--json").json}
    said = call("methods")
    assert "randomized restarts" in said.out
    assert "ships inside" in call("tasks").out


def test_settings_are_listed_as_a_run_would_take_them(call):
    listed = {s["setting"]: s["default"] for s in call("settings", "--json").json}
    assert listed.keys() == flatten(defaults()).keys()
    assert (listed["unlearn.direction"], listed["unlearn.hops"]) == ("forget", 200)
    part = [s["setting"] for s in call("settings", "forget.", "--json").json]
    assert part == [key for key in listed if key.startswith("forget.")]
    said = call("settings", "forgot")
    assert (said.code, said.err) == (
        2,
        "unwalk: no setting has 'forgot' in its name; unwalk settings lists all.\n",
    )
    paper = call("settings", "--preset", "paper", "--task", "blobs", "--json").json
    assert {s["setting"]: s["default"] for s in paper}["train.optimizer"] == "adam"
    said = call("settings")
    assert "performance.checkpoint" in said.out
    assert "finetune,retrain" in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 80


def files() -> list[Path]:
    return sorted(p for p in Path.cwd().rglob("*") if "__pycache__" not in p.parts)


def refused(call: Call, words: list[str], *named: str) -> None:
    """One sentence on stderr that names these things, exit code 2, and nothing left behind."""
    before = files()
    said = call(*words, "--out", "out/first")
    assert said.code == 2
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("unwalk: ")
    assert line.endswith(".")
    assert "Traceback" not in line
    for text in named:
        assert text in line
    assert files() == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "unlearn.p=1.5"], ["unlearn.p is 1.5", "allowed: a number in [0, 1]"]),
        (["--set", "unlearn.p=-1"], ["unlearn.p is -1.0", "allowed: a number in [0, 1]"]),
        (
            ["--set", "forget.size=2000"],
            ["forget.size is 2000", "peer 0 has 144 records", "allowed: 1 to 144"],
        ),
        (["--task", "digit"], ["task is 'digit' (did you mean digits?)", "allowed: ", "blobs"]),
        (["--method", "rddu"], ["method is 'rddu' (did you mean rrdu?)", "retrain"]),
        (["--preset", "practicle"], ["'practicle' (did you mean practical?)", "paper-matched"]),
        (["--model", "mpl"], ["model is 'mpl' (did you mean mlp?)", "small-cnn"]),
        (["--set", "trigger.target=10"], ["trigger.target is 10", "a class from 0 to 9"]),
        (
            ["--set", "forget.kind=class", "--set", "forget.label=11"],
            ["forget.label is 11", "a class from 0 to 9"],
        ),
        (["--set", "forget.peer=10"], ["forgetting peer is 10", "0 to 9"]),
        (["--set", "unlern.p=0.1"], ["'unlern.p'", "did you mean unlearn.p?"]),
        (["--set", "unlearn.p"], ["--set got 'unlearn.p'", "key=value"]),
        (["--set", "train.hops=many"], ["train.hops to 'many'", "a whole number"]),
        (["--set", "graph.kind=edge-list"], ["graph.path is missing"]),
        (["--set", "graph.kind=edge-list", "--set", "graph.path=no.txt"], ["'no.txt' cannot be"]),
        (["--device", "cuda:77"], ["device is 'cuda:77'"]),
        (["--seed", "-1"], ["seed is -1", "0 or more"]),
        (["--resume"], ["out/first.partial does not exist", "nothing to resume"]),
        (["nowhere.toml"], ["FILE.toml is 'nowhere.toml', which does not exist"]),
        (["--resume", "true"], ["FILE.toml is 'true'", "--resume takes no value"]),
        (["--model", "nowhere.net:make"], ["no module 'nowhere.net'"]),
        (["--set", "train.learning_rate=1e38"], ["hop ", "not finite", "smaller learning rate"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_leaves_nothing(call, words, named):
    refused(call, ["run", *words], *named)


def test_a_graph_that_falls_apart_is_refused(call, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n3 4\n")
    graph = ["--set", "graph.kind=edge-list", "--set", "graph.path=edges.txt"]
    refused(call, ["run", *graph], "peer 3")


def test_a_typo_in_a_file_is_refused_with_the_near_setting(call, tmp_path):
    (tmp_path / "run.toml").write_text("[unlearn]\nepsilom = 1.0\n")
    refused(call, ["run", "run.toml"], "run.toml sets 'unlearn.epsilom'", "mean unlearn.epsilon?")
    refused(call, ["compare", "run.toml"], "run.toml sets 'unlearn.epsilom'")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--seeds", "0"], ["seeds is 0", "1 or more"]),
        (["--methods", "rrdu,retrian"], ["compare is 'retrian' (did you mean retrain?)"]),
        (["--methods", ","], ["method is ''", "rrdu"]),
        (["--set", "train.learning_rate=1e38"], ["not finite"]),
    ],
)
def test_bad_input_to_compare_leaves_nothing(call, words, named):
    refused(call, ["compare", *SMALL, *words], *named)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--grid", "unlearn.p"], ["--grid is 'unlearn.p'", "KEY=A,B"]),
        (["--grid", "peers=4", "--grid", "peers=5"], ["--grid names peers twice", "peers=4,5"]),
    ],
)
def test_a_bad_grid_leaves_nothing(call, words, named):
    refused(call, ["sweep", *SMALL, *words], *named)


def test_results_are_not_replaced_by_accident(call):
    assert call("run", *SMALL, "--out", "first").code == 0
    said = call("run", *SMALL, "--out", "first")
    assert said.code == 2
    assert said.err == ("unwalk: first exists already; choose another --out, or add --overwrite.\n")
    assert call("run", *SMALL, "--seed", "1", "--out", "first", "--overwrite").code == 0


def held() -> None:
    """Wait for an interrupt once progress was saved, however fast that is; and heed it.

    A shell that puts its commands into the background has them ignore interrupts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    save = WalkFile.save

    def saved(*args: Any) -> None:
        save(*args)
        time.sleep(600)

    WalkFile.save = saved  # type: ignore[assignment, method-assign]


def test_an_interrupt_says_how_to_go_on_and_that_works(call, tmp_path):
    long = options({**BLOBS, "train.hops": 60, "unlearn.hops": 60})
    words = ["run", *long, "--out", "a folder"]
    said = tmp_path / "said.txt"
    process = start_unwalk(*words, folder=tmp_path, out=said, before=held)
    try:
        state = partial_of(tmp_path / "a folder") / "walks" / "train.safetensors"
        for _ in range(60_000):
            if state.exists() or not process.is_alive():
                break
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
    finally:
        process.kill()
    assert process.exitcode == 130
    (line,) = said.read_text().splitlines()
    stopped, _, again = line.partition("; go on with: ")
    assert stopped == "unwalk: stopped"
    assert shlex.split(again) == ["unwalk", *words, "--resume"]
    assert call(*shlex.split(again)[1:]).code == 0
    assert call(*words[:-1], "whole").code == 0
    for name in ("model.safetensors", "transcript.jsonl"):
        assert (tmp_path / "a folder" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


def test_a_full_disk_says_how_to_go_on_and_that_works(call, monkeypatch, tmp_path):
    flush, flushed = os.fsync, []

    def full(handle: int) -> None:
        flushed.append(handle)
        if len(flushed) == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    monkeypatch.setattr(os, "fsync", full)
    words = ["run", *SMALL, "--out", "first"]
    said = call(*words)
    again = shlex.join(["unwalk", *words, "--resume"])
    text = f"unwalk: no room is left on the disk; make some, then go on with: {again}\n"
    assert (said.code, said.err) == (2, text)
    assert call(*words, "--resume").code == 0


def test_an_interrupt_before_anything_was_kept_says_so(call, monkeypatch):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unwalk.runs.run.run", interrupted)
    said = call("run", *SMALL, "--out", "first")
    assert (said.code, said.err) == (130, "unwalk: stopped; nothing was kept\n")


def test_an_interrupt_while_loading_waits_for_the_end_of_it():
    reached = []

    def load() -> None:
        with terminal.loading():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        load()
    assert reached == ["the end"]


def test_only_the_last_few_walks_have_a_bar():
    bars = terminal.Bars()
    for number in range(9):
        bars.tell(f"walk {number}", 1, 2)
        bars.tell(f"walk {number}", 2, 2)
    shown = [t.description for t in bars.progress.tasks if t.visible]
    assert shown == [f"walk {n}" for n in range(4, 9)]
    assert bars.progress.tasks[-1].fields["count"] == "2/2 hops"


def test_a_sweep_has_one_bar_with_the_time_left(monkeypatch):
    """At the pace of the cells that ended now: those that had ended before say nothing of it."""
    out, now = io.StringIO(), [100.0]
    monkeypatch.setattr(terminal, "err_console", Console(file=out, force_terminal=True, width=90))
    bars = terminal.Bars()
    bars.progress.get_time = lambda: now[0]
    bars.progress.live.auto_refresh = False
    with bars.progress:
        bars.count(4, 10)
        now[0] = 160.0
        bars.count(6, 10)
        (line,) = [t for t in bars.progress.tasks if t.visible]
        left = terminal.TimeLeft()
        assert left.render(line).plain == "0:02:00"
        bars.progress.refresh()
        now[0] = 170.0
        assert left.render(line).plain == "0:01:50"
        bars.count(0, 10)
        (line,) = [t for t in bars.progress.tasks if t.visible]
        assert left.render(line).plain == "-:--:--", "the next sweep begins anew"
    assert "6 of 10 done" in out.getvalue()
