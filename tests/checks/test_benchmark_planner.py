"""The planner's benchmark: what it draws, what it counts as right, and that it goes on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from benchmarks import planner
from benchmarks.planner import PARTS, Asked, judged, summary


def way(cost: float | None, grade: str = "exact", hops: int = 10) -> dict[str, object]:
    """A way of forgetting that came as it was foreseen."""
    counts = [hops, hops, 1000, 64, grade]
    return {"foreseen": counts, "came": counts, "counted": cost, "clocked": cost, "matched": cost}


def row(pick: str | None, hops: int | None = None, **ways: dict[str, object]) -> dict[str, object]:
    """A request for grade certified that was met."""
    return {"part": "digits", "grade": "certified", "hops": hops, "pick": pick, "ways": ways}


@pytest.mark.parametrize(
    ("request_", "costs"),
    [
        (row("seal", rewind=way(3.0), seal=way(2.0, "certified")), (2.0, 2.0)),
        (row("rewind", rewind=way(3.0), seal=way(2.0, "certified")), (3.0, 2.0)),
        (row("rewind", rewind=way(3.0), RRDU=way(1.0, "nominal")), (3.0, 3.0)),
        (row("rewind", 10, rewind=way(3.0), seal=way(2.0, "certified", 11)), (3.0, 3.0)),
        (row("seal", 10, rewind=way(3.0), seal=way(2.0, "certified", 11)), (math.inf, 3.0)),
        (row("RRDU", rewind=way(3.0), RRDU=way(1.0, "nominal")), (math.inf, 3.0)),
        (row("seal", rewind=way(3.0), seal=way(None, "certified")), (math.inf, 3.0)),
        (row(None, rewind=way(3.0)), (math.inf, 3.0)),
        (row(None, 9, rewind=way(3.0)), None),
        (row("rewind", rewind=way(None)), None),
        (row("none", none=way(0.0, hops=0), rewind=way(3.0)), (0.0, 0.0)),
    ],
)
def test_a_pick_is_judged_by_the_cheapest_way_that_did_what_was_asked(request_, costs):
    assert judged(request_, "counted") == costs


def test_the_table_counts_picks_within_the_limit():
    rows = [
        row("seal", rewind=way(3.0), seal=way(2.0, "certified")),
        row("rewind", rewind=way(2.2), seal=way(2.0, "certified")),
        row("rewind", rewind=way(3.0), seal=way(2.0, "certified")),
        row(None, rewind=way(3.0)),
        row(None, 9, rewind=way(3.0)),
    ]
    rows[0]["ways"]["seal"]["came"] = [9, 9, 900, 64, "certified"]  # type: ignore[index]
    found = summary(rows)
    assert (found["requests"], found["without"], found["as_foreseen"]) == (5, 2, 4)
    assert found["counted"] == {
        "judged": 4,
        "within": 2,
        "short": 1,
        "in_all": 1.2,
        "worst": 1.5,
    }


def test_requests_are_the_same_again_and_ask_for_everything():
    drawn = [Asked.drawn(part, n, 0) for part in PARTS for n in range(PARTS[part].requests)]
    assert drawn == [Asked.drawn(one.part, one.number, 0) for one in drawn]
    assert len(drawn) >= 200
    assert {(a.part, a.training) for a in drawn} == {
        (part, training) for part in PARTS for training in PARTS[part].trainings
    }
    assert {a.grade for a in drawn} == {"exact", "certified", "nominal"}
    assert {a.hops is None for a in drawn} == {True, False}


def test_the_file_holds_all_requests_and_the_page_what_they_say():
    found = json.loads((planner.ROOT / "results" / "planner.json").read_text())
    rows = found["requests"]
    drawn = [Asked.drawn(part, n, 0) for part in PARTS for n in range(PARTS[part].requests)]
    held = [Asked(**{key: row[key] for key in asdict(drawn[0])}) for row in rows]
    assert sorted(held, key=str) == sorted(drawn, key=str)
    everything = found["all"]
    assert everything == summary(rows)
    assert everything["as_foreseen"] == everything["requests"] == 200
    page = " ".join((planner.ROOT / "docs" / "methods.md").read_text().split())
    counted, clocked, matched = (everything[measure] for measure in planner.MEASURES)
    for told in (
        f"All {everything['ways']} ways",
        f"{everything['without']} requests had no way",
        f"For the other {counted['judged']} the pick cost {more(counted['worst'])} more at most",
        f"{more(counted['in_all'])} over all, at the rates",
        f"it was {more(clocked['worst'])} at most",
        f"in {matched['within']} of the {matched['judged']} requests",
        f"{more(matched['in_all'])} dearer over all",
        f"In {matched['short']} it did not",
    ):
        assert told in page


def more(ratio: float) -> str:
    """By how many parts in a hundred a ratio is above one."""
    return f"{100 * (ratio - 1):.1f} %"


def test_two_requests_are_met_and_are_not_met_again(tmp_path, monkeypatch, capsys):
    out = tmp_path / "planner.json"
    assert planner.main(["--quick", "--json", str(out)]) == 0
    first = json.loads(out.read_text())
    assert len(first["requests"]) == first["all"]["as_foreseen"] == 2
    for one in first["requests"]:
        assert one["ways"][one["pick"]]["counted"] == pytest.approx(
            min(way["counted"] for way in one["ways"].values())
        )
    table = capsys.readouterr().out
    assert table.splitlines()[-1].split()[:2] == ["all", "2"]
    monkeypatch.setattr(planner, "met", lambda asked: pytest.fail(f"{asked} was met before"))
    assert planner.main(["--quick", "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == first
