"""Every record at one peer, no peer without one, and the same split for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unwalk.core.errors import InvalidInput
from unwalk.tasks import build_task, from_arrays
from unwalk.tasks.own import OwnData, own_task
from unwalk.tasks.sources import PARTITIONS, Dealing, Table, checked, split

ALPHAS = (1e-6, 1e-3, 0.1, 1.0, 100.0, 1e6, 1e9)


def pool(records: int, groups: list[int] | None = None, classes: int = 1) -> Table:
    x = torch.arange(records, dtype=torch.float32)[:, None]
    named = None if groups is None else np.array(groups)
    return Table(x, torch.arange(records) % classes, np.arange(records), named)


def dealt(table: Table, how: Dealing | str, peers: int, seed: int = 0) -> list[list[int]]:
    parts = split(table, how, peers, np.random.default_rng(seed)).parts
    return [rows.tolist() for rows in parts]


def dealt_or_none(table: Table, how: Dealing, peers: int, seed: int) -> list[list[int]] | None:
    try:
        return dealt(table, how, peers, seed)
    except InvalidInput:
        return None


@st.composite
def dealings(draw: st.DrawFn) -> tuple[Table, Dealing, int]:
    """A pool, a way to deal it out, and a number of peers for which there is enough."""
    peers, least = draw(st.integers(1, 30)), draw(st.integers(1, 4))
    records = draw(st.integers(peers * least, peers * least + 200))
    table = pool(records, classes=draw(st.integers(1, min(records, 12))))
    kind = draw(st.sampled_from(["iid", "dirichlet", "quantity", "label"]))
    alpha = draw(st.sampled_from(ALPHAS)) if kind in ("dirichlet", "quantity") else None
    held = draw(st.integers(1, 12)) if kind == "label" else None
    return table, Dealing(kind, alpha, held, least), peers


@settings(max_examples=300)
@given(dealings(), st.integers(0, 5))
def test_everything_is_dealt_once_and_nobody_gets_too_little(drawn, seed):
    table, how, peers = drawn
    parts = dealt_or_none(table, how, peers, seed)
    assert parts is not None or how.kind == "label", "only a promise on classes can fail"
    assume(parts is not None)
    assert parts is not None
    assert len(parts) == peers
    assert sorted(row for rows in parts for row in rows) == list(range(len(table)))
    assert min(map(len, parts)) >= how.min_records
    assert all(rows == sorted(rows) for rows in parts)
    assert parts == dealt(table, how, peers, seed), "the same seed gives the same split"


@given(st.integers(1, 20), st.integers(1, 10), st.data())
def test_label_gives_every_peer_exactly_its_classes(peers, classes, data):
    held = data.draw(st.integers(-(-classes // peers), classes))
    table = pool(classes * peers * 2, classes=classes)
    labels = table.y.numpy()
    parts = split(table, Dealing("label", classes_per_peer=held), peers, np.random.default_rng(0))
    assert [len(set(labels[rows].tolist())) for rows in parts.parts] == [held] * peers
    holders = [sum(c in labels[rows] for rows in parts.parts) for c in range(classes)]
    assert max(holders) - min(holders) <= 1
    for c in range(classes):
        shares = [int((labels[rows] == c).sum()) for rows in parts.parts if c in labels[rows]]
        assert max(shares) - min(shares) <= 1


def label_skew(alpha: float, seed: int) -> float:
    """Mean distance between a peer's mix of classes and everybody's: 0 to 1."""
    table = pool(6000, classes=10)
    parts = split(table, Dealing("dirichlet", alpha), 10, np.random.default_rng(seed)).parts
    labels = table.y.numpy()
    mixes = [np.bincount(labels[rows], minlength=10) / len(rows) for rows in parts]
    return float(np.mean([np.abs(mix - 0.1).sum() / 2 for mix in mixes]))


def size_skew(alpha: float, seed: int) -> float:
    """Share of the records that the largest of ten peers has."""
    how = Dealing("quantity", alpha)
    parts = split(pool(6000), how, 10, np.random.default_rng(seed)).parts
    return max(map(len, parts)) / 6000


@pytest.mark.parametrize(("skew", "even"), [(label_skew, 0.0), (size_skew, 0.1)])
def test_skew_grows_as_alpha_falls(skew, even):
    means = [np.mean([skew(alpha, seed) for seed in range(8)]) for alpha in sorted(ALPHAS)[1:6]]
    assert means == sorted(means, reverse=True)
    assert means[0] > 0.8
    assert means[-1] == pytest.approx(even, abs=0.02)


def test_quantity_mixes_classes_alike():
    table = pool(6000, classes=2)
    parts = split(table, Dealing("quantity", 1.0), 5, np.random.default_rng(3)).parts
    for rows in parts:
        assert table.y.numpy()[rows].mean() == pytest.approx(0.5, abs=4 * 0.5 / len(rows) ** 0.5)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_many_peers_and_extreme_skew_neither_hang_nor_leave_anybody_out(kind, alpha):
    parts = dealt(pool(20_000, classes=10), Dealing(kind, alpha, min_records=3), 5_000)
    assert min(map(len, parts)) >= 3
    assert sum(map(len, parts)) == 20_000


def test_a_class_of_one_record_is_dealt_too():
    table = Table(torch.zeros(7, 1), torch.tensor([0, 0, 0, 0, 0, 0, 5]), np.arange(7))
    parts = dealt(table, "dirichlet", 3)
    assert sorted(row for rows in parts for row in rows) == list(range(7))


@pytest.mark.parametrize(
    ("how", "peers", "words"),
    [
        ({"kind": "dirichlet", "alpha": 0.0}, 2, r"alpha is 0.0; allowed: .* \[1e-06, 1e\+09\]"),
        ({"kind": "dirichlet", "alpha": float("nan")}, 2, "alpha is nan"),
        ({"kind": "quantity", "alpha": float("inf")}, 2, "alpha is inf"),
        ({"kind": "iid", "alpha": 1.0}, 2, "alpha is 1.0, but partition 'iid' does not use it; a"),
        ({"kind": "label", "alpha": 1.0}, 2, "allowed with: dirichlet, quantity"),
        ({"kind": "iid", "classes_per_peer": 2}, 2, "does not use it; allowed with: label"),
        ({"kind": "label", "classes_per_peer": 0}, 2, "classes_per_peer is 0"),
        ({"kind": "label", "classes_per_peer": 6}, 2, "of 5 classes .* allowed: 3 to 5"),
        ({"kind": "label", "classes_per_peer": 1}, 4, "all have to be dealt, so allowed: 2 to 5"),
        ({"kind": "label", "classes_per_peer": 5}, 5, "class 0 has 4 records for 5 of them"),
        ({"kind": "label", "min_records": 5}, 4, "none of 20 draws gave every peer min_records, 5"),
        ({"kind": "iid", "min_records": 0}, 2, "min_records is 0"),
        ({"kind": "iid", "min_records": 11}, 2, "needs min_records, 11, so allowed: 1 to 1"),
        ({"kind": "natural", "min_records": 5}, 4, "peer 3 would hold 4 records; .*min_records, 5"),
        ({"kind": "dirchlet"}, 2, r"partition is 'dirchlet' \(did you mean dirichlet\?\)"),
    ],
)
def test_skew_that_cannot_be_had_is_refused(how, peers, words):
    table = pool(20, [0] * 5 + [1] * 5 + [2] * 6 + [3] * 4, classes=5)
    with pytest.raises(InvalidInput, match=words):
        split(table, Dealing(**how), peers, np.random.default_rng(0))


def test_settings_reach_the_partition_from_every_side():
    options = {"alpha": 0.05, "min_records": 7}
    named = build_task("digits", partition="dirichlet", options=options)
    made = build_task("digits", partition=Dealing("dirichlet", 0.05, min_records=7))
    sizes = [named.records(v).size for v in range(10)]
    assert sizes == [made.records(v).size for v in range(10)]
    assert min(sizes) >= 7
    assert max(sizes) > 250
    x, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 4
    own = from_arrays(x, y, peers=8, partition=Dealing("label", classes_per_peer=1))
    assert {len(set(own.shard(v).y.tolist())) for v in range(8)} == {1}
    with pytest.raises(InvalidInput, match="min_records is 9, but parts already says"):
        own_task(OwnData(x, y, parts=[[0, 1]], test=(x, y)), deals={"min_records": 9})


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
        parts = split(pool(15, groups, classes=3), kind, 3, np.random.default_rng(0)).parts
        assert sorted(np.concatenate(parts).tolist()) == list(range(15)), kind
