"""Public streams: known answers, uniformity, one walk's draws against those of many, version 1."""

import dataclasses
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from tests.engines.test_contract import train, unlearn
from tests.tiny import plan
from unwalk import walks
from unwalk.core.philox import philox
from unwalk.core.seeds import LONG, PublicSeeds, Stream, Streams, below, drawn_words, order
from unwalk.engines.inprocess import InProcess
from unwalk.methods.network_sgd import LocalWork

ONES = 2**64 - 1
PI = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
KNOWN = {
    ((0, 0, 0, 0), (0, 0)): (
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    ),
    ((ONES,) * 4, (ONES,) * 2): (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    ),
    (PI, (0x452821E638D01377, 0xBE5466CF34E90C6C)): (
        0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6,
    ),
}  # fmt: skip
"""Random123's known answers for philox4x64 with ten rounds."""


def words(*numbers):
    return tuple(np.array([number], np.uint64) for number in numbers)


def test_the_generator_gives_the_known_answers_of_random123():
    for (counter, key), answer in KNOWN.items():
        assert [int(w[0]) for w in philox(words(*counter), words(*key))] == list(answer)


def test_many_streams_at_once_are_numpy_s_generator():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, ONES, (5, 2), np.uint64)
    hops = np.array([1, 2, 2, 1000, 2**32 - 1], np.uint64)
    for count in (1, 11, LONG, LONG + 1):
        drawn = drawn_words(keys, hops, count, draws=3, first=2)
        for row, draw in product(range(5), range(3)):
            counter = np.array([0, 2 + draw, hops[row], 0], np.uint64)
            numpys = np.random.Philox(counter=counter, key=keys[row]).random_raw(count)
            assert (drawn[row, draw] == numpys).all()


def test_one_walk_draws_what_it_draws_among_many():
    keys = np.stack([PublicSeeds(s).stream_key("train", "route") for s in range(6)])
    hops = np.arange(3, 9)
    many = Streams(keys, hops)
    first, second, third = many.random(), many.integers(17), many.integers(np.arange(1, 7))
    for row in range(6):
        one = PublicSeeds(row).stream("train", "route", 3 + row)
        assert one.random() == first[row]
        assert one.integers(17) == second[row]
        assert one.integers(1 + row) == third[row]


def test_numbers_are_uniform_and_stay_below_their_bound():
    stream = Stream((1, 2), hop=1)
    drawn = stream.choice(np.arange(37), 100_000)
    assert stats.chisquare(np.bincount(drawn, minlength=37)).pvalue > 1e-4
    assert below(np.array([0, ONES], np.uint64), 2**32 - 1).tolist() == [0, 2**32 - 2]
    coins = [Stream((1, 2), hop).random() for hop in range(20_000)]
    assert stats.kstest(coins, "uniform").pvalue > 1e-4
    assert 0.0 <= min(coins) < max(coins) < 1.0


def test_permutations_hold_every_row_once_and_all_orders_are_equally_likely():
    rows = np.array([3, 5, 6, 9])
    places = {order: n for n, order in enumerate(permutations(rows.tolist()))}
    seeds = PublicSeeds(4)
    seen = [
        places[tuple(seeds.stream("train", "batches", hop).permutation(rows).tolist())]
        for hop in range(12_000)
    ]
    assert stats.chisquare(np.bincount(seen, minlength=24)).pvalue > 1e-4
    long = Stream((7, 7), 1).permutation(5000)
    assert (np.sort(long) == np.arange(5000)).all()
    few = Stream((7, 7), 1).choice(np.arange(50), 20, replace=False)
    assert len(set(few.tolist())) == 20


def test_in_long_permutations_every_row_is_equally_likely_at_every_place():
    """Places in blocks of twelve: rows against places, over many hops of many walks."""
    keys = np.stack([PublicSeeds(s).stream_key("train", "batches") for s in range(40)])
    table = np.zeros((144, 12), np.int64)
    for hop in range(1, 51):
        drawn = order(drawn_words(keys, np.full(40, hop, np.uint64), 144)[:, 0])
        np.add.at(table, (drawn, np.arange(144) // 12), 1)
    expected = 40 * 50 / 12
    statistic = float(((table - expected) ** 2 / expected).sum())
    assert 1e-4 < stats.chi2.sf(statistic, 143 * 11) < 1 - 1e-4


@pytest.mark.parametrize(
    ("graph", "route"),
    [
        (walks.complete(5), walks.Uniform()),
        (walks.ring(5), walks.Uniform()),
        (walks.complete(5), walks.UniformPeer()),
    ],
    ids=["complete", "ring", "anyone"],
)
def test_walks_go_to_every_neighbour_equally_often_from_everywhere(graph, route):
    """From neighbouring seeds, hop after hop, as one walk draws it and as a fleet does."""
    many, hops = 500, 20
    keys = np.stack([PublicSeeds(s).stream_key("train", "route") for s in range(many)])
    at = np.array(
        [route.next(graph, -1, {}, PublicSeeds(s).stream("train", "route", 1)).receiver
         for s in range(many)]
    )  # fmt: skip
    assert stats.chisquare(np.bincount(at, minlength=5)).pvalue > 1e-4
    table = np.zeros((5, 5), np.int64)
    for hop in range(2, hops + 1):
        went = route.next_all(graph, at, {}, Streams(keys, np.full(many, hop))).receivers
        one = PublicSeeds(7).stream("train", "route", hop)
        assert route.next(graph, int(at[7]), {}, one).receiver == went[7]
        np.add.at(table, (at, went), 1)
        at = went
    for peer in range(5):
        near = np.arange(5) if isinstance(route, walks.UniformPeer) else graph.neighbours(peer)
        assert table[peer].sum() == table[peer, near].sum() > 0
        assert stats.chisquare(table[peer, near]).pvalue > 1e-4


@pytest.mark.parametrize("count", [1, 2, 3, 144, 4096])
def test_words_are_sorted_as_numpy_sorts_them_stably_equal_ones_included(count):
    rng = np.random.default_rng(count)
    for high in (3, 2**20, 2**64 - 1):  # most words are equal, some, none
        words = rng.integers(0, high, (3, count), np.uint64, endpoint=True)
        assert (order(words) == np.argsort(words, axis=1, kind="stable")).all()


@pytest.mark.parametrize(
    "other",
    [
        lambda s, h: PublicSeeds(0).stream("train", "route", h),
        lambda s, h: PublicSeeds(0).stream("unlearn", "batches", h),
        lambda s, h: PublicSeeds(1).stream("train", "batches", h),
        lambda s, h: PublicSeeds(0).stream("train", "batches", h + 1),
        lambda s, h: PublicSeeds(0).stream("train", "batches", h, 1),
        lambda s, h: s,
    ],
    ids=["purpose", "phase", "seed", "hop", "attempt", "draw"],
)
def test_streams_of_another_purpose_phase_seed_hop_attempt_or_draw_are_independent(other):
    table = np.zeros((8, 8), np.int64)
    for hop in range(1, 4001):
        stream = PublicSeeds(0).stream("train", "batches", hop)
        mine = stream.integers(8)
        table[mine, other(stream, hop).integers(8)] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_version_1_walks_as_it_always_did():
    """The numbers were written down before there was a version 2."""
    made = dataclasses.replace(plan(train(hops=8), unlearn(hops=8), seed=5))
    old = dataclasses.replace(made, seeds=PublicSeeds(5, streams=1))
    (outcome,) = InProcess().run([old])
    receivers = [0, 3, 1, 2, 1, 3, 0, 2, 0, 0, 2, 1, 1, 1, 2, 1]
    assert [h.receiver for h in outcome.transcript.hops] == receivers
    assert outcome.transcript.chain == (
        "fdb0ff5ee7568329f27ab7b7898249371b988b0c60c10d92316e4c00d03e4d1a"
    )
    assert "streams" not in outcome.transcript.header
    seeds = PublicSeeds(5, streams=1)
    drawn, _ = LocalWork(batch=4).batches(np.arange(8), seeds.stream("train", "batches", 3))
    assert drawn.tolist() == [[[4, 3, 2, 1]], [[5, 7, 0, 6]]]
    assert seeds.stream("train", "route", 3, attempt=2).integers(1000) == 347


def test_version_2_is_named_and_walks_otherwise():
    (outcome,) = InProcess().run([plan(train(hops=8), unlearn(hops=8), seed=5)])
    assert outcome.transcript.header["streams"] == 2
    assert [h.receiver for h in outcome.transcript.hops] == [
        3,
        0,
        2,
        3,
        0,
        1,
        2,
        3,
        1,
        0,
        3,
        2,
        0,
        0,
        0,
        0,
    ]
