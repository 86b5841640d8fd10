"""The benchmark of hops on a cluster says when a limit is missed."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cluster import LIMIT, TIMES, Result, rival_line
from benchmarks.rivals.environments import Measured

OURS = Result(
    overhead_ms=2.0, p90_ms=3.0, visit_ms=20.0, bare_ms=4.0, hops=100, hosts=2, ray="2.60.0"
)
FLOWER = Measured("Flower, simulation", version="1.41.0", overhead_ms=2.0 * TIMES, hops=50)


def test_a_hop_that_takes_too_long_is_not_ok():
    assert replace(OURS, overhead_ms=LIMIT).ok
    assert not replace(OURS, overhead_ms=LIMIT + 0.01).ok


def test_a_rival_is_slow_enough_or_too_close_or_left_out():
    line, good = rival_line(OURS, FLOWER)
    assert good
    assert "10.0 times unwalk's" in line
    line, good = rival_line(OURS, replace(FLOWER, overhead_ms=19.0))
    assert not good
    assert "too close" in line
    line, good = rival_line(OURS, Measured("Flower, simulation", reason="no network"))
    assert line == "Flower, simulation: left out, no network"
