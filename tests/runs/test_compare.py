"""Comparisons: methods that fail, several processes, a process that is killed."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

import pytest

from tests.runs.small import BLOBS, DIGITS, options, small, untimed
from unwalk.cli.terminal import Bars
from unwalk.core.errors import InvalidInput
from unwalk.methods import METHODS, named
from unwalk.reports import render
from unwalk.reports.charts import run_chart
from unwalk.reports.result import read
from unwalk.reports.tables import summary_table, warning_lines
from unwalk.runs import compare as comparing
from unwalk.runs.assemble import resolve
from unwalk.runs.compare import compare
from unwalk.runs.run import forget

REFUSED = "hop 1, start at peer 0: the token carries 'momentum'"
UNFIT = "sisa needs train.shards or train.slices"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A comparison in which two of four methods cannot be run, the main one among them."""
    out = tmp_path_factory.mktemp("compared") / "out"
    methods = {"method": "seal", "compare": ["finetune", "sisa", "retrain"]}
    return compare(small(train__optimizer="momentum", **methods), 2, out=out), out


def test_a_method_that_cannot_be_run_is_a_row_with_its_reason(found):
    compared, out = found
    result = compared.result
    assert [m["name"] for m in result["methods"]] == ["finetune", "retrain"]
    assert [m["main"] for m in result["methods"]] == [True, False]
    seal, sisa = result["failed"]
    assert (seal["name"], seal["label"], seal["seeds"]) == ("seal", "ledger seal", [0, 1])
    assert seal["reason"].startswith(REFUSED)
    assert sisa["reason"].startswith(UNFIT)
    assert json.loads((out / "result.json").read_text()) == result
    assert compared.mean("finetune", "gap.clean") is not None
    with pytest.raises(InvalidInput, match=r"^seal has no numbers: hop 1, start at peer 0"):
        compared.mean("seal", "clean")
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_page_has_the_row(found):
    page = (found[1] / "report.html").read_text()
    row = page[page.index('<tr class="is-failed">') :]
    assert row.index("Ledger seal") < row.index("Hop 1, start at peer 0") < row.index("</tr>")
    assert UNFIT[0].upper() + UNFIT[1:] in page
    assert "Everything else on this page is seed 0" in page


def test_the_model_before_forgetting_is_a_row(found):
    compared, out = found
    runs = json.loads((out / "runs.json").read_text())
    before = []
    for one in runs:
        (finetune,) = (m for m in one["methods"] if m["name"] == "finetune")
        before += [p["clean"] for p in finetune["series"] if (p["hop"], p["phase"]) == (6, "train")]
    row = compared.result["seeds"]["before"]
    assert len(before) == 2
    assert row["mean"]["clean"] == pytest.approx(sum(before) / 2)
    ends = [m["final"]["clean"] for one in runs for m in one["methods"] if m["name"] == "retrain"]
    assert row["mean"]["gap.clean"] == pytest.approx((sum(before) - sum(ends)) / 2)
    names = [str(cell) for cell in summary_table(compared.result).columns[0].cells]
    assert names == [
        "Before forgetting",
        "Fine-tuning",
        "Retraining",
        "Ledger seal",
        "Shards and slices",
    ]
    assert (out / "report.html").read_text().count("Before forgetting") == 2  # both tables


def test_every_method_has_a_grade(found):
    compared, out = found
    grades = {m["name"]: m["grade"] for m in compared.result["methods"]}
    assert grades == {"finetune": "refused", "retrain": "exact"}
    assert [m["grade"] for m in compared.result["seeds"]["methods"]] == ["refused", "exact"]
    page = (out / "report.html").read_text()
    assert page.count("= exact") == 2
    assert "Guarantee" in page


def test_the_charts_show_means_and_bands_over_seeds(found):
    compared, out = found
    runs = json.loads((out / "runs.json").read_text())
    ends = [m["final"]["clean"] for one in runs for m in one["methods"] if m["name"] == "retrain"]
    chart = run_chart(read(compared.result), "clean")
    assert chart is not None
    retrain = next(line for line in chart.lines if line.oracle)
    assert retrain.final == pytest.approx(100 * statistics.fmean(ends))
    (band,) = retrain.bands
    assert max(y for x, y in band if x == 12) == pytest.approx(
        100 * (statistics.fmean(ends) + statistics.stdev(ends))
    )
    assert len(chart.shared_bands) == 1
    assert 'class="band"' in (out / "report.html").read_text()
    assert "bands are one standard deviation wide" in (out / "report.html").read_text()


def test_distances_to_retraining_are_columns(found):
    compared, out = found
    finetune, retrain = compared.result["seeds"]["methods"]
    assert retrain["mean"]["measure.mia"] == retrain["mean"]["measure.kl"] == 0.0
    assert finetune["mean"]["measure.kl"] > 0.0
    runs = json.loads((out / "runs.json").read_text())
    each = [one["methods"][0]["measures"]["mia"] for one in runs]
    assert finetune["mean"]["measure.mia"] == pytest.approx(statistics.fmean(each))
    assert "KL of answers" in (out / "report.html").read_text()


def test_a_paired_difference_has_an_interval(found):
    compared, out = found
    runs = json.loads((out / "runs.json").read_text())
    gaps = [one["methods"][0]["gap"]["clean"] for one in runs]
    low, high = compared.result["seeds"]["methods"][0]["interval"]["gap.clean"]
    half = 12.706204736 * statistics.stdev(gaps) / 2**0.5  # Student, 1 degree of freedom
    assert (low, high) == pytest.approx(
        (statistics.fmean(gaps) - half, statistics.fmean(gaps) + half)
    )
    assert "95 %:" in (out / "report.html").read_text()


def test_one_seed_has_no_bands():
    chart = run_chart(read(compare(small(compare=["retrain"]), 1).result), "clean")
    assert chart is not None
    assert not any(line.bands for line in chart.lines)
    assert not chart.shared_bands


def test_a_backdoor_that_never_took_is_warned_of(tmp_path):
    never = compare(small(DIGITS, forget__size=1, compare=["retrain"]), 1)
    (line,) = warning_lines(never.result)
    assert line.startswith("warning: the backdoor never took: it succeeded in")
    assert "train.hops" in line
    page = render(never.result)
    assert "The backdoor never took" in page
    assert "In forgetting it is level" not in page
    series = never.result["methods"][0]["series"]
    took = {**never.result["seeds"]["before"]["mean"], "asr": 0.9}
    seeds = {**never.result["seeds"], "before": {**never.result["seeds"]["before"], "mean": took}}
    assert warning_lines({**never.result, "seeds": seeds}) == []
    assert series[0]["asr"] < 0.9


def test_a_method_that_fails_with_some_seeds_has_the_numbers_of_the_others(monkeypatch):
    def failing(runners, trained, name, engine, by):
        if name == "finetune" and runners[0].config.seed == 0:
            raise ZeroDivisionError("by nothing")
        return forget(runners, trained, name, engine, by)

    monkeypatch.setattr(comparing, "forget", failing)
    compared = compare(small(method="finetune", compare=["retrain"]), 3)
    (failed,) = compared.result["failed"]
    assert failed["reason"] == "ZeroDivisionError: by nothing, which is a fault of the program"
    assert failed["seeds"] == [0]
    runs = {m["name"]: m["runs"] for m in compared.result["seeds"]["methods"]}
    assert runs == {"finetune": 2, "retrain": 3}
    assert compared.result["seed"] == 1, "a seed with every method is shown"
    assert compared.mean("finetune", "clean") is not None


def test_every_method_runs_or_says_why_not():
    names = named("all")
    result = compare(small(method=names[0], compare=names[1:]), 1).result
    ran, failed = ([one["name"] for one in result[key]] for key in ("methods", "failed"))
    assert sorted(ran + failed) == sorted(METHODS)
    assert {"rrdu", "restart", "rewind", "scrub", "newton"} <= set(ran)
    assert all(
        one["reason"] and "fault of the program" not in one["reason"] for one in result["failed"]
    )


@pytest.mark.parametrize("task", ["blobs", "tests.runs.own_records:blobs"])
def test_the_same_table_on_other_data_by_changing_one_option(task):
    """Data that name nothing to forget: some records, as the settings of the result say."""
    settings = {"peers": 3, "train.hops": 3, "unlearn.hops": 2, "langevin.steps": 2}
    compared = compare(resolve({"task": task, "compare": named("all"), **settings}), 1).result
    rows = {one["name"] for one in (*compared["methods"], *compared["failed"])}
    assert rows == set(METHODS)
    ran = {one["name"]: one for one in compared["methods"]}
    assert {"rrdu", "finetune", "scrub", "salun", "rewind", "restart"} <= set(ran)
    assert all(one["final"]["forget"] is not None for one in compared["methods"])
    assert compared["config"]["forget.kind"] == (None if task == "blobs" else "records")
    assert "nothing to claim" not in json.dumps(compared)


def test_one_seed_has_no_deviation():
    found = compare(small(compare=[]), 1)
    assert found.mean("rrdu", "clean") is not None
    assert found.std("rrdu", "clean") is None
    assert "±" not in render(found.result)
    table = summary_table(found.result)
    assert str(table.title) == "blobs, 1 seed"
    assert not any("±" in str(cell) for column in table.columns for cell in column.cells)


def test_two_processes_give_the_same_bits(tmp_path):
    one, two = (compare(small(), 3, jobs=jobs, out=tmp_path / str(jobs)) for jobs in (1, 2))
    assert untimed(one.runs) == untimed(two.runs)
    assert untimed(one.result) == untimed(two.result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_without_a_terminal_a_line_is_said(capsys):
    Bars().say("a worker was killed")
    assert capsys.readouterr().err == "a worker was killed\n"


def asked(*words):
    settings = options({**BLOBS, "train.hops": 300})
    return [sys.executable, "-m", "unwalk", "compare", "--task", "blobs", *settings, *words]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_sweep_that_is_killed_goes_on_with_the_seeds_that_are_left(tmp_path):
    out, seeds = tmp_path / "out", tmp_path / "out.partial" / "seeds"
    words = asked("--seeds", "8", "--jobs", "2", "--out", str(out))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not list(seeds.glob("*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    workers = children(process.pid)
    process.kill()
    process.wait()
    assert len(workers) >= 2
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{worker}") for worker in workers):
        assert time.monotonic() < deadline, "its workers outlive it"
        time.sleep(0.1)
    before = {path.name: path.stat().st_mtime_ns for path in seeds.iterdir()}
    assert 1 <= len(before) < 8
    subprocess.run([*words, "--resume"], check=True, stdout=subprocess.DEVNULL)
    again = subprocess.run(asked("--seeds", "8", "--json"), check=True, capture_output=True)
    result = json.loads((out / "result.json").read_text())
    assert untimed(result) == untimed(json.loads(again.stdout))


@pytest.mark.soak
def test_a_sweep_that_is_interrupted_says_how_to_go_on(tmp_path):
    out = tmp_path / "out"
    words = asked("--seeds", "8", "--jobs", "2", "--out", str(out))
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    assert re.fullmatch(rb"seed [01] is done, 1 of 8\n", process.stderr.readline())
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    *_, stopped = said.decode().splitlines()
    assert stopped.startswith("unwalk: stopped; go on with: unwalk compare")


def children(pid):
    """The processes that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True)
    return [int(word) for word in listed.stdout.split()]
