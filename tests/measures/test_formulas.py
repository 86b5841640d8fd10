"""Each measure on cases small enough to compute by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unwalk.core.errors import InvalidInput
from unwalk.measures.attacks import auc, true_positives_at
from unwalk.measures.divergence import kl_to_retraining, klom, klom_percentile
from unwalk.measures.forgetting_quality import (
    attack_errors,
    challenge_score,
    epsilon,
    forgetting_quality,
    record_epsilons,
)
from unwalk.measures.gaussian_poison import caught, statistics
from unwalk.measures.intervals import mean_interval, paired, resampled, share_interval
from unwalk.measures.margins import label_losses, log_probabilities, margins
from unwalk.measures.matched_cost import cost_until, level_at
from unwalk.measures.population import by_confidence, by_loss, rmia
from unwalk.measures.relearning import relearn_difference, relearn_time, resurfaced
from unwalk.measures.ulira import log_ratio, ulira


def test_a_margin_is_the_log_odds_of_the_label():
    logits = np.log([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]])
    labels = np.array([0, 1])
    assert margins(logits, labels) == pytest.approx([math.log(0.7 / 0.3), math.log(0.25 / 0.75)])
    assert label_losses(logits, labels) == pytest.approx([-math.log(0.7), -math.log(0.25)])
    assert np.exp(log_probabilities(logits + 5.0)).sum(1) == pytest.approx([1.0, 1.0])


def test_a_margin_stays_finite_where_the_probability_rounds_to_one():
    assert margins([[400.0, 0.0]], np.array([0])).tolist() == [400.0]
    assert margins([[400.0, 0.0]], np.array([1])).tolist() == [-400.0]


def test_an_attack_is_counted_with_ties():
    assert auc([3.0, 2.0], [1.0, 0.0]) == 1.0
    assert auc([1.0, 1.0], [1.0, 1.0]) == 0.5
    assert auc([0.0], [1.0, 2.0]) == 0.0
    assert auc([2.0, 0.0], [1.0, 0.0]) == (1 + 1 + 0 + 0.5) / 4


def test_true_positives_keep_the_false_ones_below_the_rate():
    others = np.arange(100.0)
    assert true_positives_at([98.5, 99.5], others, 0.01) == 1.0  # above 98; only 99 is wrong
    assert true_positives_at([98.5, 99.5], others, 0.001) == 0.5  # none may be wrong
    assert true_positives_at([0.0], [0.0], 1.0) == 1.0
    with pytest.raises(InvalidInput, match="empty"):
        true_positives_at([], [0.0], 0.1)


def test_intervals_by_hand():
    found = paired([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    half = 4.302652729696142 * 1.0 / math.sqrt(3)  # Student, 2 degrees of freedom
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0 - half, 1.0 + half))
    assert mean_interval([2.0]).low is None
    full = share_interval(10, 10)
    assert (full.value, full.high) == (1.0, 1.0)
    assert full.low == pytest.approx(0.025 ** (1 / 10))
    assert found.minus(1.0).value == 0.0


def test_resampling_models_keeps_the_value_and_surrounds_it():
    rows = np.random.default_rng(1).normal(3.0, 1.0, (40, 2))
    found = resampled(lambda a: float(a.mean()), [rows])
    assert found.value == rows.mean()
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high < found.low + 1.0


def test_the_likelihood_ratio_is_that_of_two_gaussians():
    seen, unseen = np.array([[3.0], [5.0]]), np.array([[-1.0], [1.0]])  # variance 2 both
    expected = (-((4.0 - 4.0) ** 2) + (4.0 - 0.0) ** 2) / (2 * 2.0)
    assert log_ratio(np.array([[4.0]]), seen, unseen)[0, 0] == pytest.approx(expected)


def test_few_models_share_one_variance_and_many_do_not():
    rng = np.random.default_rng(0)
    wide = rng.normal(0.0, [1.0, 5.0], (100, 2))
    at = np.array([[2.0, 2.0]])
    own, shared = log_ratio(at, wide + 1.0, wide), log_ratio(at, wide[:50] + 1.0, wide[:50])
    variances = wide.var(0, ddof=1)
    assert own[0] == pytest.approx((3.0 - 2 * wide.mean(0)) / (2 * variances) + 0.0, abs=1e-9)
    same = wide[:50].var(0, ddof=1).mean()
    assert shared[0] == pytest.approx((3.0 - 2 * wide[:50].mean(0)) / (2 * same), abs=1e-9)


def test_ulira_refuses_too_few_models():
    with pytest.raises(InvalidInput, match="64"):
        ulira(np.zeros((3, 2)), np.zeros((8, 2)))


def test_population_scores_by_hand():
    logits = np.log([[0.7, 0.3], [0.4, 0.6]])
    assert by_loss(logits, np.array([1, 1])) == pytest.approx(np.log([0.3, 0.6]))
    assert by_confidence(logits) == pytest.approx([0.7, 0.6])


def test_rmia_by_hand():
    # a = 0.3: p(x) = (1.3 * 0.5 + 0.7) / 2 = 0.675, ratio 0.9 / 0.675 = 4/3
    # population: 0.6 / 0.675 = 0.889 is beaten, 0.95 / 0.675 = 1.407 is not
    references = np.array([[0.4], [0.6]])
    population = np.array([[0.5, 0.5]])
    assert rmia([0.9], references, [0.6, 0.95], population).tolist() == [0.5]
    assert rmia([0.9], references, [0.6, 0.95], population, gamma=2.0).tolist() == [0.0]
    with pytest.raises(InvalidInput, match="reference"):
        rmia([0.9], np.empty((0, 1)), [0.5], population)


def test_kl_by_hand():
    kl = kl_to_retraining(np.log([[0.5, 0.5]]), np.log([[0.75, 0.25]]))
    assert kl == pytest.approx([0.75 * math.log(1.5) + 0.25 * math.log(0.5)])
    assert kl_to_retraining([[1.0, 2.0]], [[1.0, 2.0]]).tolist() == [0.0]


def test_klom_by_hand():
    # Margins 0 and 1 fall into the first and the last of 20 bins.
    p, q = [[0.0], [0.0], [0.0], [1.0]], [[0.0], [1.0], [1.0], [1.0]]
    expected = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.75)
    assert klom(p, q) == pytest.approx([expected])
    # Where retrained models have nothing, they are given 1e-5, and all is normalised.
    missing = math.log(1.0 / (1e-5 / (1 + 1e-5)))
    assert klom([[1.0], [1.0]], [[0.0], [0.0]]) == pytest.approx([missing])
    # Margins beyond 100 are cut: both are 100 here.
    assert klom([[150.0]], [[900.0]]).tolist() == [0.0]
    with pytest.raises(InvalidInput, match="models by records"):
        klom([[0.0]], [[0.0, 1.0]])


def test_the_percentile_of_klom_is_over_records():
    p = np.zeros((2, 101))
    p[:, 0] = 1.0
    assert klom_percentile(p, np.zeros((2, 101))) == 0.0  # one record of 101 is not 5 %
    p[:, :10] = 1.0
    assert klom_percentile(p, np.zeros((2, 101))) > 10.0


def test_the_epsilon_of_an_attack():
    rates = np.array([0.1]), np.array([0.2])
    assert epsilon(*rates, delta=0.0) == pytest.approx(
        max(math.log(0.9 / 0.2), math.log(0.8 / 0.1))
    )
    assert epsilon(*rates, delta=0.1) == pytest.approx(math.log(0.7 / 0.1))
    assert epsilon(np.array([0.0]), np.array([0.0])) == math.inf
    assert epsilon(np.array([0.0]), np.array([0.9])) == 0.0  # by chance with few models
    assert epsilon(np.array([0.5]), np.array([0.5])) == 0.0  # never negative


def test_attacks_have_one_or_two_thresholds():
    fpr, fnr = attack_errors(np.array([2.0, 2.0]), np.array([1.0, 3.0]))
    assert ((fpr == 0) & (fnr == 0)).any()  # between 1 and 2: two thresholds
    fpr, fnr = attack_errors(np.array([1.0, 3.0]), np.array([1.0, 3.0]))
    assert fpr + fnr == pytest.approx(np.ones(len(fpr)))


def test_forgetting_quality_by_hand():
    ours, theirs = np.array([[5.0, 1.0], [6.0, 2.0]]), np.array([[1.0, 1.0], [2.0, 2.0]])
    assert record_epsilons(ours, theirs).tolist() == [math.inf, 0.0]
    assert forgetting_quality([math.inf, 0.0]) == (2 / 2**13 + 1) / 2
    assert forgetting_quality([0.49, 0.5, 1.0]) == pytest.approx((1 + 0.5 + 0.25) / 3)
    assert challenge_score(0.5, (0.9, 1.0), (0.6, 0.8)) == pytest.approx(0.5 * 0.9 * 0.75)
    with pytest.raises(InvalidInput, match="accuracy is 0"):
        challenge_score(0.5, (0.9, 0.0), (0.6, 0.8))


def test_the_poison_statistic_by_hand():
    found = statistics([[1.0, 2.0], [2.0, 0.0]], [[0.0, -3.0], [4.0, 0.0]], 0.5)
    assert found.tolist() == [2.0 / 0.5, -2.0 / 0.5]
    pictures = statistics(np.ones((1, 2, 2)), -np.ones((1, 2, 2)), 1.0)
    assert pictures == pytest.approx([2.0])
    assert caught([2.4, 2.3]).value == 0.5  # the threshold is 2.326
    with pytest.raises(InvalidInput, match="more than 0"):
        statistics([[1.0]], [[1.0]], 0.0)


def test_relearning_by_hand():
    series = [(0, 0.1), (4, 0.6), (8, 0.895), (12, 0.95)]
    assert relearn_time(series, 0.9) == 8  # within one point
    assert relearn_time(series, 0.99) is None
    assert relearn_difference(8, 12, 40) == -4
    assert relearn_difference(None, 12, 40) == 28
    assert resurfaced(series) == pytest.approx(0.85)
    with pytest.raises(InvalidInput):
        resurfaced([])


def test_cost_at_matched_accuracy_by_hand():
    hops = [
        {"bytes": 10, "gradients": 1},
        {"bytes": 20, "gradients": 2},
        {"bytes": 40, "gradients": 4},
    ]
    assert level_at({"clean_hop": 2, "forget_hop": 1}) == 2
    assert level_at({"clean_hop": 2, "forget_hop": None}) is None
    assert cost_until(hops, 2) == {"bytes": 30, "gradients": 3}
    assert cost_until(hops, None) is None
