"""The page on scaling says what its formulas give, and the formulas what a simulation counts."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import scale
from benchmarks import scale_model as sm

FOUND = json.loads(scale.RESULTS.read_text())


def test_the_tables_of_the_page_are_those_of_the_formulas():
    page = scale.PAGE.read_text()
    assert sm.filled(page, sm.Model(FOUND)) == page, "run python benchmarks/scale.py --table"


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(SystemExit, match="no place for the table 'constants'"):
        sm.filled("# A page\n", sm.Model(FOUND))


def test_other_constants_give_other_tables():
    slower = {
        **FOUND,
        "peers": [{**r, "overhead_ms": 2 * r["overhead_ms"]} for r in FOUND["peers"]],
    }
    assert sm.hop_table(sm.Model(slower)) != sm.hop_table(sm.Model(FOUND))
    assert sm.hops_table(sm.Model(slower)) == sm.hops_table(sm.Model(FOUND))


def test_the_file_holds_what_was_measured_in_full():
    assert set(FOUND["parts"]) == set(scale.PARTS)
    size = scale.Size()
    assert {r["peers"] for r in FOUND["simulator"]} == set(size.peers)
    assert [v["n"] for v in FOUND["votes"]] == list(size.voters)
    assert [r["bytes"] for r in FOUND["peers"]] == [459_496, 44_702_600]


@pytest.mark.parametrize("graph", scale.GRAPHS)
def test_the_formulas_hold_in_a_simulation(graph):
    peers = 2_000
    found = scale.routes(graph, peers)
    assert found["visited"] == pytest.approx(sm.visited(peers, peers, graph), rel=0.05)
    assert found["half"] == pytest.approx(sm.hops_to_visit(peers, 0.5, graph), rel=0.08)
    assert found["first_contact"] == pytest.approx(sm.first_contact(peers, graph), rel=0.08)
    assert found["rewind"] == pytest.approx(sm.rewind_hops(peers, peers, graph), rel=0.08)
    spread = 3 * sm.cover_spread(peers, graph)
    assert found["all"] == pytest.approx(sm.hops_to_cover(peers, graph), abs=spread)
    assert found["travel"] == pytest.approx(sm.travel(peers, graph), rel=0.15)


@pytest.mark.parametrize("what", ["visited", "first contact", "rewind"])
def test_the_numbers_of_the_file_agree_with_the_formulas(what):
    rows = [r for r in sm.checks(FOUND) if what in r["what"] and r["peers"] >= 10_000]
    assert len(rows) >= 4
    for row in rows:
        limit = 0.05 * row["predicted"]
        if "all" in row["what"]:  # one walk, whose last peers take as long as chance has it
            limit = 3 * sm.cover_spread(row["peers"], row["graph"])
        assert row["simulated"] == pytest.approx(row["predicted"], abs=limit), row


def test_a_walk_of_the_engine_moves_a_token_a_hop():
    found = scale.engine("random-regular", 40, 60)
    assert found["bytes"] == 59 * found["token_bytes"]
    assert 1 < found["visited"] <= 40
    assert found["first_us"] > 0


def test_votes_are_counted_and_as_long_as_the_page_says():
    found = scale.votes(3)
    known = FOUND["votes"][0]
    assert found["n"] == known["n"]
    assert found["rounds"] == 1
    assert found["messages"] >= 2 * 3 * 2, "each asks each other at least once, and is answered"
    assert found["longest"] == pytest.approx(known["longest"], rel=0.05)
    assert found["decision"] == pytest.approx(known["decision"], rel=0.05)


def test_a_line_is_fitted():
    assert sm.line_through([(1, 5.0), (2, 7.0), (3, 9.0)]) == pytest.approx((3.0, 2.0))


def test_numbers_are_short_and_in_their_units():
    assert [sm.number(v) for v in (0, 0.0123, 4.56, 1234.5, 2.5e9)] == [
        "0",
        "0.012",
        "4.6",
        "1,200",
        "2.5e9",
    ]
    assert [sm.time_text(v) for v in (0.004, 90, 7200, 4e5, 1e9)] == [
        "4.0 ms",
        "1.5 min",
        "2.0 h",
        "4.6 d",
        "32 y",
    ]
    assert [sm.bytes_text(v) for v in (512, 4e5, 4e10)] == ["510 B", "400 KB", "40 GB"]


def test_a_token_goes_no_faster_than_a_piece_a_round_trip():
    assert sm.Link(0.001, 125e6).speed == 125e6
    assert sm.Link(0.1, 125e6).speed == pytest.approx(10 * 2**20)


def test_a_rewind_of_a_long_walk_costs_nearly_all_of_it():
    assert sm.rewind_hops(100, 10_000, "complete") == pytest.approx(9_900)
    assert sm.rewind_hops(10**6, 100, "complete") == pytest.approx(0.005, rel=0.01)
    assert math.isclose(sm.visited(100, 100, "complete"), 1 - 1 / math.e)


@pytest.mark.soak
def test_the_quick_benchmark_measures_every_part(tmp_path, capsys):
    place = tmp_path / "scale.json"
    assert scale.main(["--quick", "--json", str(place)]) == 0
    found = json.loads(place.read_text())
    assert set(found["parts"]) == set(scale.PARTS)
    printed = capsys.readouterr().out
    assert all(f"{name}\n\n|" in printed for name in sm.TABLES)
