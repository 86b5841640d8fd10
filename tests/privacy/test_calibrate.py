"""The one door: golden answers, both ways, and every way of asking wrongly."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput, Refused
from unwalk.privacy import calibrate, list_accountants
from unwalk.privacy.calibrate import ACCOUNTANTS
from unwalk.privacy.visits import visits_log_delta

COIN = {"delta": 1e-5, "sensitivity": 0.5, "hops": 100, "p": 0.1}


def test_golden_answers():
    (sigma,) = calibrate("visits", epsilon=1, **COIN).values()
    assert sigma == pytest.approx(6.547, abs=5e-4)
    (epsilon,) = calibrate("visits", sigma=2.5744, **COIN).values()
    assert epsilon == pytest.approx(2.882, abs=5e-4)
    assert calibrate("seal", epsilon=1, delta=1e-5, ratio=5) == {"steps": 137}
    paper = calibrate("paper", epsilon=1, **COIN)
    assert paper == {"sigma": pytest.approx(2.5744, abs=5e-5), "grade": "nominal"}
    assert calibrate("paper", sigma=2.5744, **COIN, peers=10)["epsilon"] == pytest.approx(
        1.0, abs=1e-4
    )
    (ten,) = calibrate("gaussian", epsilon=1, delta=1e-5, sensitivity=0.5, visits=10).values()
    assert ten == pytest.approx(5.899, abs=5e-4)
    (rdp,) = calibrate("visits-rdp", sigma=2.5744, **COIN).values()
    assert rdp == pytest.approx(3.229, abs=5e-4)


def test_the_ball_seal_in_all_its_forms():
    given_ = {"delta": 1e-5, "radius": 1.0}
    (sigma,) = calibrate("seal", epsilon=1, steps=6, **given_).values()
    assert calibrate("seal", epsilon=1, sigma=sigma, **given_) == {"steps": 6}
    (epsilon,) = calibrate("seal", sigma=sigma, steps=6, **given_).values()
    assert epsilon == pytest.approx(1.0, rel=1e-6)
    assert calibrate("seal", delta=1e-5, ratio=2 / sigma, steps=6)["epsilon"] == pytest.approx(
        epsilon, rel=1e-9
    )
    with pytest.raises(Refused, match="1,000,000"):
        calibrate("seal", epsilon=1, delta=1e-5, ratio=50)


CASES = {
    "gaussian": {"delta": 1e-6, "sensitivity": 2.0, "visits": 3},
    "visits": COIN,
    "visits-rdp": COIN,
    "capped": {"delta": 1e-6, "sensitivity": 2.0, "cap": 4},
    "ledger": {"delta": 1e-6, "distance": 0.3},
    "noisy-start": {
        "delta": 1e-6,
        "sensitivity": 1.0,
        "visits": 5,
        "step_size": 0.1,
        "batch": 32,
    },
    "dp-training": {"delta": 1e-6, "visits": 12, "forgotten": 3},
    "network": {"delta": 1e-6, "sensitivity": 2.0, "hops": 20, "peers": 10},
    "paper": COIN,
}


@pytest.mark.parametrize(("name", "given_"), CASES.items())
@pytest.mark.parametrize("target", [0.05, 1.0, 20.0])
def test_sigma_gives_back_an_epsilon_that_does_not_exceed_the_target(name, given_, target):
    if name == "network" and target != 1.0:
        target = 3.0
    sigma = calibrate(name, epsilon=target, **given_)["sigma"]
    epsilon = calibrate(name, sigma=sigma, **given_)["epsilon"]
    assert epsilon <= target * (1 + (0.0 if name == "network" else 1e-9))
    assert epsilon == pytest.approx(target, rel=1e-4)


@given(
    epsilon=st.floats(1e-3, 1e3),
    log_delta=st.floats(-69.0, -1.0),
    hops=st.integers(1, 300),
    p=st.floats(0.01, 1.0),
)
@settings(max_examples=60)
def test_visits_sigma_meets_any_target(epsilon, log_delta, hops, p):
    delta = math.exp(log_delta)
    sigma = calibrate("visits", epsilon=epsilon, delta=delta, sensitivity=1.0, hops=hops, p=p)[
        "sigma"
    ]
    if sigma > 0.0:
        assert visits_log_delta(epsilon, 1.0 / sigma, hops, p) <= math.log(delta)


def test_pld_agrees_with_the_exact_mixture():
    small = {"delta": 1e-5, "sensitivity": 1.0, "hops": 10, "p": 0.3}
    exact = calibrate("visits", sigma=4.0, **small)["epsilon"]
    assert calibrate("visits-pld", sigma=4.0, **small)["epsilon"] == pytest.approx(exact, rel=1e-2)


def test_caps_and_seals_compose():
    capped = calibrate("visits", epsilon=1, cap=10, **COIN)["sigma"]
    assert capped < calibrate("visits", epsilon=1, **COIN)["sigma"]
    alone = calibrate("seal", delta=1e-5, ratio=2, steps=6)["epsilon"]
    both = calibrate("seal-visits", delta=1e-5, ratio=2, steps=6, mu=0.2)["epsilon"]
    assert both > alone


def test_ddp_readings_are_nominal():
    table = calibrate(
        "paper-ddp-table", epsilon=1, delta=1e-5, sensitivity=1, hops=100, peers=10, forgotten=1000
    )
    assert table == {"sigma": pytest.approx(16_281.7, abs=0.1), "grade": "nominal"}
    assert (
        calibrate("paper-ddp-algorithm", epsilon=1, delta=1e-5, sensitivity=1)["grade"] == "nominal"
    )


def test_every_accountant_is_described():
    listed = list_accountants()
    assert set(listed) == set(ACCOUNTANTS)
    assert all(text and "\n" not in text and len(text) < 100 for text in listed.values())
    assert all(
        ("not a guarantee" in text) == name.startswith("paper") for name, text in listed.items()
    )


@pytest.mark.parametrize(
    ("name", "given_", "said"),
    [
        ("visit", {}, "did you mean visits"),
        ("visits", {**COIN}, "no target; allowed: exactly one of epsilon or sigma"),
        ("visits", {**COIN, "epsilon": 1, "sigma": 2}, "epsilon and sigma; allowed: exactly one"),
        ("visits", {"epsilon": 1, "delta": 1e-5}, "needs sensitivity and hops and p"),
        ("visits", {**COIN, "epsilon": 1, "ratio": 3}, "does not take ratio"),
        ("visits", {**COIN, "epsilon": 1, "hops": 2.5}, "hops is 2.5; allowed: a whole number"),
        ("visits", {**COIN, "epsilon": -1}, "epsilon is -1"),
        ("visits", {**COIN, "sigma": 0}, "sigma is 0"),
        ("visits", {**COIN, "epsilon": 1, "p": 1.5}, "p is 1.5"),
        ("visits", {**COIN, "epsilon": math.nan}, "epsilon is nan"),
        ("seal", {"epsilon": 1, "delta": 1e-5}, "exactly one of epsilon with ratio or"),
        ("gaussian", {"epsilon": 1, "delta": 2.0}, "delta is 2.0"),
        ("gaussian", {"epsilonn": 1, "delta": 1e-5}, "did you mean epsilon"),
    ],
)
def test_bad_questions_get_one_clear_sentence(name, given_, said):
    with pytest.raises(InvalidInput) as caught:
        calibrate(name, **given_)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_targets_out_of_reach_are_refused():
    with pytest.raises(Refused, match="out of reach"):
        calibrate("visits-rdp", epsilon=1e-6, **{**COIN, "delta": 1e-30})
    with pytest.raises(Refused, match="out of reach"):
        calibrate("network", epsilon=1e-3, delta=1e-30, sensitivity=1, hops=3, peers=3)
    assert calibrate("visits", epsilon=1, **{**COIN, "p": 0.0}) == {"sigma": 0.0}
    assert calibrate("visits-rdp", epsilon=1, **{**COIN, "p": 0.0})["sigma"] < 1e-9


def test_none_counts_as_not_given():
    assert calibrate("seal", epsilon=1, delta=1e-5, ratio=5, sigma=None, hops=None) == {
        "steps": 137
    }


def test_import_needs_no_torch():
    code = (
        "import sys, unwalk.privacy\n"
        "bad = {'torch', 'dp_accounting', 'scipy.stats'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
