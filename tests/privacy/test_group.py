"""Group privacy: the correct rule holds for the Gaussian, the paper's lemma does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.privacy.gaussian import gaussian_delta, gaussian_epsilon
from unwalk.privacy.group import group_mu, group_privacy, group_zcdp, nominal_group_privacy


@given(mu=st.floats(0.05, 1.0), epsilon=st.floats(0.05, 2.0), size=st.integers(1, 5))
def test_group_privacy_holds_for_the_gaussian(mu, epsilon, size):
    delta = gaussian_delta(epsilon, mu)
    far_epsilon, far_delta = group_privacy(epsilon, delta, size)
    assert gaussian_delta(far_epsilon, group_mu(mu, size)) <= far_delta * (1 + 1e-9) + 1e-300
    assert group_zcdp(mu * mu / 2, size) == pytest.approx(group_mu(mu, size) ** 2 / 2)


def test_the_papers_group_lemma_is_refuted_by_a_gaussian():
    mu, size, delta = 0.05, 200, 1e-12
    epsilon = gaussian_epsilon(delta, mu)
    claimed_epsilon, claimed_delta = nominal_group_privacy(epsilon, delta, size, 1e-6)
    true_delta = gaussian_delta(claimed_epsilon, group_mu(mu, size))
    assert true_delta > 100 * claimed_delta


def test_group_privacy_edges():
    assert group_privacy(0.0, 1e-6, 4) == (0.0, 4e-6)
    assert group_privacy(10.0, 1e-6, 100) == (1000.0, 1.0)
    assert group_privacy(1.0, 0.0, 3) == (3.0, 0.0)
