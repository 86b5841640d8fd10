"""Every record at one peer, no peer without one, and the same split for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.tasks.partitions import PARTITIONS, checked, split
from unwalk.tasks.sources import Table


def pool(records: int, groups: list[int] | None = None) -> Table:
    x = torch.arange(records, dtype=torch.float32)[:, None]
    named = None if groups is None else np.array(groups)
    return Table(x, torch.zeros(records, dtype=torch.int64), np.arange(records), named)


@given(st.integers(1, 200), st.data())
def test_iid_deals_everything_out_evenly(records, data):
    peers = data.draw(st.integers(1, records))
    parts = split(pool(records), "iid", peers, np.random.default_rng(0)).parts
    assert len(parts) == peers
    assert sorted(np.concatenate(parts).tolist()) == list(range(records))
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) <= 1


def test_iid_is_drawn_from_the_generator():
    first, again, other = (
        split(pool(50), "iid", 5, np.random.default_rng(seed)).parts for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_natural_gives_each_group_a_peer():
    parts = split(pool(6, [2, 0, 2, 5, 0, 2]), "natural", 3, np.random.default_rng(0)).parts
    assert [rows.tolist() for rows in parts] == [[1, 4], [0, 2, 5], [3]]


def test_a_table_is_copied_out_of_the_pool():
    everything = pool(6)
    table = split(everything, "iid", 2, np.random.default_rng(0)).table(0)
    before = everything.x.clone()
    table.x.zero_()
    assert torch.equal(everything.x, before)
    assert (
        table.ids.tolist()
        == split(everything, "iid", 2, np.random.default_rng(0)).parts[0].tolist()
    )


@pytest.mark.parametrize(
    ("kind", "peers", "groups", "words"),
    [
        ("iid", 11, None, r"peers is 11; there are 10 training records .* allowed: 1 to 10"),
        ("iid", 0, None, r"peers is 0; allowed: a whole number, 1 or more"),
        ("idd", 2, None, r"partition is 'idd' \(did you mean iid\?\)"),
        ("natural", 2, None, r"do not name the group"),
        ("natural", 3, [0, 1] * 5, r"peers is 3; the records belong to 2 groups"),
    ],
)
def test_what_cannot_be_dealt_is_refused(kind, peers, groups, words):
    with pytest.raises(InvalidInput, match=words):
        split(pool(10, groups), kind, peers, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[0, 1], []], "peer 1 would hold no record"),
        ([[0, 1], [2, 10]], "peer 1 is given row 10; allowed: rows 0 to 9"),
        ([[-1]], "peer 0 is given row -1"),
        ([[0, 1], [1, 2]], "row 1 is given to peer 0 and to peer 1"),
        ([[3, 3]], "peer 0 is given a row twice"),
    ],
)
def test_parts_that_overlap_or_lack_something_are_refused(parts, words):
    with pytest.raises(InvalidInput, match=words):
        checked(pool(10), [np.array(rows, dtype=np.int64) for rows in parts])


def test_every_partitioner_keeps_the_rules():
    groups = [0, 1, 2] * 5
    for kind in PARTITIONS:
        parts = split(pool(15, groups), kind, 3, np.random.default_rng(0)).parts
        assert sorted(np.concatenate(parts).tolist()) == list(range(15)), kind
