"""The accounting benchmark asks both sides the same and says so when unwalk is too slow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from dp_accounting.rdp import RdpAccountant

from benchmarks import accounting
from unwalk.privacy.gaussian import gaussian_sigma

FAST = accounting.Line("fast", 0.001, 0.02, 0.002, 3.0, 3.0, 3.1)


def test_exit_code_and_output(monkeypatch, capsys):
    monkeypatch.setattr(accounting, "lines", lambda rounds: [FAST])
    assert accounting.main([]) == 0
    assert "20     2.0   3 | 3 | 3.1" in capsys.readouterr().out
    assert accounting.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["question"] == "fast"
    slow = [replace(FAST, pld=0.009), replace(FAST, question="slower", rdp=0.0005)]
    monkeypatch.setattr(accounting, "lines", lambda rounds: slow)
    assert accounting.main([]) == 1
    assert capsys.readouterr().err.count("too slow") == 2


def test_a_race_takes_medians_and_answers():
    line = accounting.race("x", lambda: 1.0, lambda: 2.0, lambda: 3.0, 2)
    assert (line.answer, line.pld_answer, line.rdp_answer) == (1.0, 2.0, 3.0)
    assert min(line.unwalk, line.pld, line.rdp) > 0.0


def test_dp_accounting_is_asked_for_the_same_noise():
    guess = gaussian_sigma(1.0, 1e-5, 2.0)
    theirs = accounting.composed(RdpAccountant, 4, guess)
    assert theirs == pytest.approx(guess, rel=0.1)
    assert theirs > guess  # Renyi is looser than exact
