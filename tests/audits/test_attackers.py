"""Attackers find what is there, find nothing where nothing is, and are chosen on other runs."""

from __future__ import annotations

import numpy as np
import pytest

from unwalk.audits import attackers
from unwalk.audits.attackers import ATTACKERS, attacked, parts, split
from unwalk.audits.bounds import Tally, cap, clopper_pearson
from unwalk.audits.game import Played, Views
from unwalk.audits.verdict import Claim, Row, judged, refuted, rows_of, uncovered
from unwalk.audits.views import ANSWERS
from unwalk.audits.worlds import WITH, WITHOUT
from unwalk.methods import METHODS, defaults

SIZE, RUNS = 40, 120


def views(messages, answers=None, slots=("released",)):
    asked = np.zeros((len(messages), len(ANSWERS))) if answers is None else answers
    return Views(dict.fromkeys(slots, messages), dict.fromkeys(slots, asked))


def drawn(seed, shift=0.0, runs=RUNS):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(runs, SIZE)) + shift * np.eye(SIZE)[3]


def best(with_, without, name, delta=0.0):
    found = [(r, t) for r, t in attacked(with_, without, delta) if r.name.startswith(f"{name}:")]
    return clopper_pearson(found[0][1], delta)


@pytest.mark.parametrize("name", ["projection", "whitened projection", "distinguisher"])
def test_white_box_attackers_find_a_shifted_mean(name):
    assert best(views(drawn(0, 8.0)), views(drawn(1)), name) > 2.0
    assert best(views(drawn(0)), views(drawn(1)), name) == 0.0


def test_values_that_differ_by_next_to_nothing_do_not_stop_the_distinguisher():
    """A confidence can be exp(-700)."""
    told = np.zeros((RUNS, len(ANSWERS)))
    told[:, 0] = 1e-200 * np.random.default_rng(0).random(RUNS)
    assert best(views(drawn(0, 8.0), told), views(drawn(1), told), "distinguisher") > 2.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_answers_are_found_whichever_way_they_point(sign):
    told = np.zeros((RUNS, len(ANSWERS)))
    told[:, 0] = sign * 5.0 + np.random.default_rng(0).normal(size=RUNS)
    quiet = np.zeros_like(told)
    quiet[:, 0] = np.random.default_rng(1).normal(size=RUNS)
    same = np.zeros((RUNS, SIZE))
    assert best(views(same, told), views(same, quiet), "answers") > 2.0


def test_a_difference_of_messages_shows_what_each_of_them_hides():
    rng = np.random.default_rng(2)
    tables = []
    for shift in (1.0, 0.0):
        first = 100.0 * rng.normal(size=(RUNS, SIZE))
        second = first + shift * np.eye(SIZE)[3] + 0.05 * rng.normal(size=(RUNS, SIZE))
        quiet = np.zeros((RUNS, len(ANSWERS)))
        both = {"after u": first, "next": second}
        tables.append(Views(both, dict.fromkeys(both, quiet)))
    bounds = {
        rule.name: clopper_pearson(tally, 0.0)
        for rule, tally in attacked(tables[0], tables[1], 0.0)
    }
    assert bounds["projection: next - after u"] > 2.0
    assert bounds["projection: next"] == bounds["projection: after u"] == 0.0


@pytest.mark.parametrize("reused", [True, False])
def test_noise_that_is_used_twice_is_taken_away_by_both_messages_together(reused):
    rng = np.random.default_rng(5)
    tables = []
    for shift in (1.0, 0.0):
        centre = shift * np.eye(SIZE)[3]
        noise = 100.0 * rng.normal(size=(RUNS, SIZE))
        more = noise if reused else 100.0 * rng.normal(size=(RUNS, SIZE))
        both = {"first": centre + noise, "released": centre + noise + 1e-3 * more}
        quiet = dict.fromkeys(both, np.zeros((RUNS, len(ANSWERS))))
        tables.append(Views(both, quiet, dict.fromkeys(both, centre)))
    with_, without = tables
    assert (best(with_, without, "joint projection") > 2.0) == reused
    assert best(with_, without, "projection") == best(with_, without, "distinguisher") == 0.0


def test_the_number_format_betrays_what_noise_was_added_to():
    """Values whose sum with the noise is small end in zeros; equally large ones do not."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(2 * RUNS, SIZE)).astype(np.float32)
    big = (np.float32(1000.0) + noise) - np.float32(1000.0)
    with_, without = views(big[:RUNS].astype(float)), views(noise[RUNS:].astype(float))
    assert best(with_, without, "number format") > 2.0
    assert best(with_, without, "projection") == 0.0


def test_reachable_sums_tell_two_known_centres_apart():
    """Noise that is added to floats; both centres known, a thousandth of the noise apart."""
    rng = np.random.default_rng(4)
    centres = rng.normal(size=(2, 650)).astype(np.float32)
    centres[1] = centres[0] + np.float32(1e-4) * rng.normal(size=650).astype(np.float32)
    made = []
    for centre in centres:
        noise = (0.1 * rng.normal(size=(RUNS, 650))).astype(np.float32)
        views_ = views((centre + noise).astype(float))
        views_.centres = {"released": centre.astype(float)}
        made.append(views_)
    assert best(made[0], made[1], "number format") > 2.0
    assert best(made[0], made[1], "projection") == 0.0


def test_a_run_has_the_same_score_whatever_other_runs_are_scored_with_it():
    """Else what runs of one world have in common would count as if each of them betrayed it."""
    rng = np.random.default_rng(6)
    tables = []
    for shift in (1.0, 0.0):
        centre = (rng.normal(size=SIZE) + shift * 1e-4).astype(np.float32)
        noise = (0.1 * rng.normal(size=(RUNS, SIZE))).astype(np.float32)
        asked = rng.normal(size=(RUNS, len(ANSWERS)))
        tables.append(views((centre + noise).astype(float), asked))
        tables[-1].centres = {"released": centre.astype(float)}
    tables[0].messages["released"][-1] += 2.0**-40  # one message is of 64 bits
    for rule, _ in attacked(tables[0], tables[1], 0.0):
        together = rule.score(tables[0])
        alone = [rule.score(tables[0].rows(at, at + 1))[0] for at in range(RUNS)]
        assert np.allclose(together, alone, rtol=1e-9), rule.name


def test_runs_that_count_are_not_looked_at_before(monkeypatch):
    """Whatever the runs of the second half say, attackers and thresholds are the same."""
    one, other = drawn(0, 2.0), drawn(1)
    again, twisted = one.copy(), other.copy()
    again[RUNS // 2 :] *= -7.0
    twisted[RUNS // 2 :] += 3.0
    rules = [
        {r.name: (r.sign, r.threshold, r.chosen) for r, _ in attacked(views(a), views(b), 0.0)}
        for a, b in ((one, other), (again, twisted))
    ]
    assert rules[0] == rules[1]


def test_the_three_parts_share_no_run():
    fit, choose, count = parts(300)
    assert [*fit, *choose, *count] == list(range(300))
    marked = views(np.arange(300.0)[:, None])
    assert [v.messages["released"][0, 0] for v in split(marked)] == [0.0, 75.0, 150.0]


def test_a_message_that_comes_in_one_world_only_is_seen():
    assert best(views(drawn(0)), views(np.zeros((RUNS, 1))), "number format") > 2.0


def test_every_attacker_is_listed():
    made = {
        rule.name.partition(":")[0] for rule, _ in attacked(views(drawn(0)), views(drawn(1)), 0)
    }
    assert made <= set(ATTACKERS)
    assert attackers.projection in ATTACKERS.values()


# Verdicts


def proved(epsilon, delta=0.0, grade="certified"):
    return [{"grade": grade, "epsilon": epsilon, "delta": delta, "reason": "for a test"}]


def played(shift, claims, seed=0):
    tables = {
        ("released", WITH): views(drawn(seed, shift)),
        ("released", WITHOUT): views(drawn(seed + 1)),
    }
    return Played([claims] * RUNS, tables)


def test_a_true_claim_stands_and_a_false_one_is_refuted():
    made = rows_of(
        {
            "seal": played(8.0, proved(9.0)),
            "ball-seal": played(8.0, proved(0.5), 10),
            "restart": played(0.0, proved(0.0, grade="exact"), 20),
            "rrdu": played(8.0, proved(0.5, grade="nominal"), 30),
            "finetune": played(8.0, [{**proved(0.0)[0], "grade": "refused", "epsilon": None}], 40),
        }.items(),
        defaults(),
    )
    rows = judged(made)
    verdicts = {row.method: row.verdict for row in rows}
    assert verdicts == {
        "seal": "too few runs",
        "ball-seal": "refuted",
        "restart": "not refuted",
        "rrdu": "exceeded",
        "finetune": "no claim",
    }
    assert refuted(rows)
    assert not refuted([row for row in rows if row.method != "ball-seal"])
    assert judged([Row.from_json(row.to_json()) for row in rows]) == rows


def test_the_family_wise_bound_pays_for_every_row_and_attacker():
    made = rows_of(
        {"seal": played(8.0, proved(9.0)), "rrdu": played(8.0, proved(0.5), 10)}.items(), defaults()
    )
    tests = sum(len(row.tried) for row in made)
    (alone,) = judged(made[:1])
    row, _ = judged(made)
    runs = row.runs
    assert row.family_cap == cap(runs, 0.95, row.delta, tests) < row.cap
    assert row.family == max(
        clopper_pearson(Tally(t.false_alarms, runs, t.misses, runs), row.delta, 0.95, tests)
        for t in row.tried
    )
    assert 0.0 < row.family < alone.family
    assert row.audited == alone.audited


def test_an_assumed_shape_refutes_nothing():
    """At mu = 4 the Gaussian bound is far above 2.9, and what 60 runs show without it is not."""
    (row,) = judged(rows_of({"seal": played(4.0, proved(2.9, 1e-5))}.items(), defaults()))
    assert row.gaussian is not None
    assert row.gaussian > 2.9 > row.audited
    assert row.verdict != "refuted"


def test_many_rows_of_nothing_refute_nothing():
    """True claims of epsilon 0, each attacked by everybody: none may fall."""
    many = {
        name: played(0.0, proved(0.0, grade="exact"), 100 + 2 * at)
        for at, name in enumerate(METHODS)
        if uncovered(name, "peer:1", defaults()) is None
    }
    assert not refuted(judged(rows_of(many.items(), defaults())))


def test_the_weakest_claim_of_all_runs_is_judged():
    runs = [proved(0.5, 1e-6), proved(0.9, 1e-5), proved(0.7, 1e-6)]
    claim = Claim.over(runs, 1e-3)
    assert (claim.grade, claim.epsilon, claim.delta) == ("certified", 0.9, 1e-5)
    refusal = {"grade": "refused", "epsilon": None, "delta": None, "reason": "no noise"}
    claim = Claim.over([*runs, [refusal]], 1e-3)
    assert (claim.grade, claim.epsilon, claim.delta) == ("refused", None, 1e-3)
    mixed = [[*proved(1.0, grade="nominal"), refusal]] * 2
    assert Claim.over(mixed, 1e-3).grade == "nominal"


def test_a_claim_for_outsiders_says_nothing_about_peers():
    config = defaults()
    assert "outsiders" in (uncovered("release", "peer:1", config) or "")
    assert uncovered("release", "released", config) is None
    outsiders = {"release", "sisa", "noisy-finetune", "langevin"}
    assert {m for m in METHODS if uncovered(m, "peer:1", config)} == outsiders
