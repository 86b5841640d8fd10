"""What noise costs beside a restart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unwalk.privacy.utility import noise_loss, restart_loss


def loss(theta, x, y):
    logits = x @ theta
    top = logits.max(axis=1, keepdims=True)
    whole = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return float((whole - logits[np.arange(len(y)), y]).mean())


def test_the_bound_on_the_trace_is_reached():
    """At zero all classes are equally likely: there the second-order bound is attained."""
    rng = np.random.default_rng(0)
    classes, std = 5, 0.05
    x = rng.normal(size=(40, 6))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(classes, size=40)
    start = np.zeros((6, classes))
    raised = [loss(rng.normal(size=start.shape) * std, x, y) for _ in range(4000)]
    found = float(np.mean(raised)) - math.log(classes)
    assert found == pytest.approx(noise_loss(std, classes), rel=0.15)
    sure = np.zeros_like(start)
    sure[0, 0] = 30.0
    moved = [loss(sure + rng.normal(size=start.shape) * std, x, y) for _ in range(500)]
    assert float(np.mean(moved)) - loss(sure, x, y) < noise_loss(std, classes)


def test_a_restart_costs_no_more_than_guessing():
    assert restart_loss(2) == pytest.approx(math.log(2))
    assert noise_loss(0.0, 10) == 0.0
    assert noise_loss(1.0, 10, norm=2.0) == pytest.approx(4 * noise_loss(1.0, 10))
