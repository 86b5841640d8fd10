"""What every method must do, ours and a user's own, on the engines that carry it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.methods.test_seal import FLAT
from tests.runs.small import BLOBS, small, small_run
from unwalk.audits.audit import audit
from unwalk.audits.game import Game
from unwalk.cli import app
from unwalk.core.errors import InvalidInput
from unwalk.core.events import EDITS
from unwalk.core.program import Edit
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.methods import METHODS
from unwalk.methods.contract import checked
from unwalk.runs.assemble import assemble
from unwalk.runs.compare import compare
from unwalk.runs.evaluate import evaluate

OWN = "tests.methods.own_method:RECORD"
BY_FUNCTION = "tests.methods.own_method:method"
SHORT: dict[str, Any] = {**FLAT, "train.hops": 4, "unlearn.hops": 2}
NEEDS: dict[str, dict[str, Any]] = {
    "sisa": {"train.slices": 2},
    "dpsgd": {"model.name": "linear"},
    **dict.fromkeys(("seal", "release", "noisy-start", "sums", "output-noise"), SHORT),
}
"""Settings without which a method is refused."""


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Methods that a test makes known are forgotten after it."""
    monkeypatch.setattr("unwalk.runs.assemble.METHODS", METHODS)
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def carried(name: str, engine: Any) -> Any:
    needs = NEEDS.get(name, {})
    settings = needs if "task" in needs else {**BLOBS, **needs}
    return small_run(
        settings, method=name, compare="none", performance__engine=engine.name
    ).walks[name].outcome  # fmt: skip


@pytest.mark.parametrize("name", [*METHODS, OWN])
def test_a_method_keeps_its_contract_and_both_engines_agree(name, monkeypatch):
    """Programs are functions of their visits and use the rows that they name; the fleet, which
    draws what it can, records the same events and gradients, and the same model to rounding."""
    with monkeypatch.context() as patched:
        if name in METHODS:
            patched.setitem(METHODS, name, checked(METHODS[name]))
        one = carried(name, InProcess())
    monkeypatch.setattr("unwalk.engines.choose.Fleet", partial(Fleet, few=1))
    many = carried(name, Fleet())
    for alone, together in zip(one.transcript.hops, many.transcript.hops, strict=True):
        assert alone.events == together.events
        assert (alone.receiver, alone.gradients) == (together.receiver, together.gradients)
        assert alone.nbytes == together.nbytes
    assert torch.allclose(one.token.parameters, many.token.parameters, rtol=0, atol=2e-6)
    assert set(one.token.moments) == set(many.token.moments)


def test_every_edit_has_its_name_in_the_log():
    assert {kind.what for kind in Edit.__subclasses__()} == set(EDITS)


class Stop:
    """A sink that keeps the progress at one hop."""

    def __init__(self, hop: int) -> None:
        self.hop, self.kept = hop, None

    def after(self, index: int, progress: Any, look: Any) -> None:
        if progress.token.hop == self.hop:
            self.kept = progress.fork(progress.transcript.header)


@pytest.mark.parametrize("engine", [InProcess(), Fleet()], ids=lambda e: e.name)
@pytest.mark.parametrize("name", ["ssd", "salun", "scrub", "residual", "neggrad"])
def test_going_on_after_a_hop_gives_the_same_bits(name, engine):
    """What travels beside the model, and what a peer keeps, is all there."""
    made = assemble(small(method=name, compare="none")).unlearning(name)
    for hop in (4, made.hops - 2):
        sink = Stop(hop)
        (whole,) = engine.run([made], sink)
        (resumed,) = engine.run([made], None, {0: sink.kept})
        assert resumed.token.digest() == whole.token.digest()
        assert resumed.transcript.text() == whole.transcript.text()


def test_a_users_method_runs_with_its_settings_and_claims_nothing():
    result = small_run(method=OWN, compare=["finetune"], twice__times=3)
    last = result.transcript.hops[-1]
    assert sum(event.kind == "gradient-steps" for event in last.events) == 3
    assert [one["label"] for one in result.result["methods"]] == ["twice over", "fine-tuning"]
    (claim,) = result.result["claims"]
    assert (claim["grade"], claim["code"]) == ("refused", "own-method"), "though it says exact"


def test_a_users_method_stands_in_a_comparison():
    config = small(method="finetune", compare=[BY_FUNCTION], seed=1)
    found = compare(config, 2).result
    assert [one["name"] for one in found["seeds"]["methods"]] == ["finetune", BY_FUNCTION]
    assert not found["failed"]


def test_a_users_method_is_an_option_of_the_command(tmp_path):
    words = [w for k, v in BLOBS.items() for w in ("--set", f"{k}={v}")]
    out = tmp_path / "run"
    ended = CliRunner().invoke(app, ["run", "--method", OWN, *words, "--out", str(out)])
    assert ended.exit_code == 0, ended.output
    assert "Twice over" in ended.output
    assert "[twice]" in (out / "config.toml").read_text()


def test_a_users_method_is_evaluated_and_audited(tmp_path):
    small_run(method=OWN, compare=["retrain"], out=tmp_path / "run")
    found = evaluate(tmp_path / "run", members=2, measures=["accuracy", "relearn"])
    assert {row["label"] for row in found["rows"]} >= {"twice over", "retraining"}
    document = audit(Game(small(method=OWN, compare=[])), 8)
    ((label, grade),) = ((row["label"], row["grade"]) for row in document["rows"])
    assert (label, grade) == ("twice over", "refused")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lying", r"uses row \d+ in a batch of 'retained' records"),
        ("moody", "made two programs of one visit"),
        ("wordy", "allowed: a tuple of operations of unwalk.core.program"),
        ("number", "allowed: a function or class"),
        ("nothing", "has no 'nothing'"),
        ("TwiceSettings", "gave a TwiceSettings; allowed: a unwalk.methods.record.MethodRecord"),
    ],
)
def test_a_users_method_that_breaks_the_contract_is_refused_in_a_sentence(name, why):
    with pytest.raises(InvalidInput, match=why):
        small_run(method=f"tests.methods.own_method:{name}", compare="none", unlearn__hops=40)


def test_two_sections_of_one_name_are_refused(monkeypatch):
    import tests.methods.own_method as own
    from unwalk.methods.seal import SealSettings

    monkeypatch.setattr(own, "RECORD", replace(own.RECORD, settings=SealSettings))
    with pytest.raises(InvalidInput, match="calls its settings 'seal'"):
        small(method=OWN)
