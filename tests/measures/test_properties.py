"""A model that forgot scores as chance, one that kept the records is caught."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from unwalk.measures.attacks import auc
from unwalk.measures.divergence import klom_percentile
from unwalk.measures.forgetting_quality import forgetting_quality, record_epsilons
from unwalk.measures.gaussian_poison import caught, statistics
from unwalk.measures.population import rmia
from unwalk.measures.ulira import judged, ulira


def margins_of(models: int, records: int, shift: float, seed: int) -> np.ndarray:
    """Margins of models; records differ in their means and spreads."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    means, spreads = fixed.normal(2.0, 3.0, records), fixed.uniform(0.5, 1.5, records)
    return rng.normal(means + shift, spreads, (models, records))


def test_ulira_is_at_chance_for_equal_models():
    """Over many draws: a bias as that of leaving out one model at a time would show."""
    found = [
        auc(ours, theirs)
        for seed in range(200)
        for ours, theirs in judged(*(margins_of(8, 30, 0.0, 2 * seed + n) for n in (0, 1)))
    ]
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - 0.5) < 4 * error
    assert error < 0.01


def test_ulira_catches_models_that_remember_and_those_pushed_below():
    for shift in (2.0, -2.0):
        found = ulira(margins_of(16, 60, shift, 0), margins_of(16, 60, 0.0, 1))
        assert found.auc.value > 0.85
        assert found.auc.low is not None
        assert found.auc.low > 0.8
        assert found.at_1_percent.value > 0.1 >= 10 * 0.01


def test_ulira_finds_what_a_common_threshold_does_not():
    """Records whose own margins move by less than they differ from each other."""
    ours, theirs = margins_of(64, 60, 1.0, 0), margins_of(64, 60, 0.0, 1)
    assert auc(ours, theirs) < 0.65
    assert ulira(ours, theirs).auc.value > 0.75


def test_rmia_is_at_chance_for_a_model_like_its_references():
    rng = np.random.default_rng(0)
    hard = rng.uniform(0.2, 0.9, 400)
    references = np.clip(rng.normal(hard, 0.05, (8, 400)), 0.01, 1.0)
    model = np.clip(rng.normal(hard, 0.05), 0.01, 1.0)
    halves = slice(0, 200), slice(200, 400)

    def scored(probabilities: np.ndarray) -> float:
        scores = [
            rmia(
                probabilities[h],
                references[:, h],
                probabilities[halves[1]],
                references[:, halves[1]],
            )
            for h in halves
        ]
        return auc(scores[0], scores[1])

    assert scored(model) == pytest.approx(0.5, abs=0.1)
    kept = model.copy()
    kept[halves[0]] = np.minimum(1.0, kept[halves[0]] + 0.1)
    assert scored(kept) > 0.7


def test_klom_grows_with_the_distance():
    theirs = margins_of(20, 60, 0.0, 1)
    near, far = (klom_percentile(margins_of(20, 60, s, 0), theirs) for s in (0.0, 4.0))
    assert near < far
    assert far > 5.0


def test_forgetting_quality_falls_with_the_distance():
    theirs = margins_of(64, 20, 0.0, 1)
    scores = [
        forgetting_quality(record_epsilons(margins_of(64, 20, s, 0), theirs))
        for s in (0.0, 1.0, 4.0)
    ]
    assert scores[0] > scores[1] > scores[2]


def test_the_poison_statistic_is_normal_for_a_model_that_never_saw_the_noise():
    rng = np.random.default_rng(0)
    noise, gradients = rng.normal(0.0, 0.3, (4000, 8)), rng.exponential(1.0, (4000, 8)) - 2.0
    found = statistics(noise, gradients, 0.3)
    shares = [(found > norm.ppf(1 - rate)).mean() for rate in (0.01, 0.1, 0.5)]
    assert shares == pytest.approx([0.01, 0.1, 0.5], abs=0.03)
    leaning = statistics(noise, gradients - noise, 0.3)
    low = caught(leaning).low
    assert low is not None
    assert low > 0.011
