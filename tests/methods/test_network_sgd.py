import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.methods.network_sgd import LocalWork, Schedule

ROWS = np.array([3, 5, 8, 9, 12, 20, 21])


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_an_epoch_uses_each_row_at_most_once_in_full_batches(count, batch, epochs):
    rows = np.arange(count) * 2
    work = LocalWork("epochs", batch=batch, epochs=epochs)
    batches, weights = work.batches(rows, np.random.default_rng(0))
    size = min(batch, count)
    assert weights is None
    assert batches.shape == (epochs * (count // size), 1, size)
    for number in range(epochs):
        one = batches.reshape(epochs, -1)[number]
        assert len(set(one)) == one.size
        assert set(one) <= set(rows)


def test_averaged_minibatches_are_one_step_drawn_without_replacement():
    batches, weights = LocalWork("averaged", batch=4, minibatches=3).batches(
        ROWS, np.random.default_rng(0)
    )
    assert batches.shape == (1, 3, 4)
    assert weights is None
    assert all(len(set(part)) == 4 for part in batches[0])
    assert set(batches.ravel()) <= set(ROWS)


@given(st.integers(1, 30), st.integers(1, 8))
def test_the_full_gradient_weighs_every_row_alike(count, batch):
    rows = np.arange(count)
    batches, weights = LocalWork("full", batch=batch).batches(rows, np.random.default_rng(0))
    assert sorted(batches[batches >= 0]) == list(rows)
    assert weights[batches >= 0] == pytest.approx(1 / count)
    assert not weights[batches < 0].any()


def test_schedules_follow_their_formulas():
    bounded = Schedule("sqrt", smoothness=0.5, diameter=3.0, gradient_bound=2.0)
    assert [bounded.at(t, 1.0) for t in (1, 4, 9)] == pytest.approx([1.5, 0.75, 0.5])
    assert Schedule("sqrt", smoothness=10.0).at(1, 1.0) == pytest.approx(0.1)
    assert Schedule("inverse", smoothness=0.1, convexity=2.0).at(5, 1.0) == pytest.approx(0.1)
    assert Schedule().at(99, 0.3) == 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalWork("epoch"), "did you mean epochs"),
        (lambda: LocalWork(batch=0), "batch is 0"),
        (lambda: LocalWork("averaged", minibatches=0), "minibatches is 0"),
        (lambda: Schedule("cosine"), "schedule is 'cosine'"),
        (lambda: Schedule(smoothness=0.0), "smoothness is 0.0"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()
