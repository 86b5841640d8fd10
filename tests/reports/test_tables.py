"""The terminal's table: the same numbers, in eighty columns."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from unwalk.reports import numbers, summary_table
from unwalk.reports.result import read
from unwalk.reports.tables import summary_rows

Json = dict[str, Any]


def shown(result: Json, width: int = 80) -> str:
    console = Console(width=width, record=True, force_terminal=False, quiet=False, file=None)
    with console.capture() as capture:
        console.print(summary_table(result))
    return capture.get()


def test_rows_hold_the_numbers_of_the_result(usual: Json) -> None:
    rows = summary_rows(read(usual))
    assert [row["method"] for row in rows] == ["RR-DU", "Fine-tuning", "Retraining"]
    for method, row in zip(usual["methods"], rows, strict=True):
        final, cost = method["final"], method["cost"]
        assert row["clean, %"] == f"{100 * final['clean']:.1f}"
        assert row["ASR, %"] == f"{100 * final['asr']:.1f}"
        assert row["hops"] == str(cost["hops"])
        assert row["moved, MB"] == f"{cost['bytes'] / 1e6:.1f}"
        assert row["gradients"] == f"{cost['gradients']:,}"
        assert row["time, s"] == f"{cost['seconds']:.1f}"
    assert [row["ASR gap, pts"] for row in rows] == ["+1.2", "+35.3", "–"]
    assert [row["clean gap, pts"] for row in rows] == ["−0.8", "−0.3", "–"]


def test_every_case_fits_eighty_columns_uncut(any_result: Json) -> None:
    text = shown(any_result)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for row in summary_rows(read(any_result)):
        assert any(all(cell in line for cell in row.values()) for line in text.splitlines())


def test_plain_deletion_shows_forget_accuracy(make_result: Any) -> None:
    row = summary_rows(read(make_result("plain deletion")))[0]
    assert "forget, %" in row
    assert "forget gap, pts" in row
    assert not any("ASR" in head for head in row)


def test_one_method_has_no_gap(make_result: Any) -> None:
    result = make_result("one method")
    assert not any("gap" in head for head in summary_rows(read(result))[0])
    assert "gap" not in shown(result)


def test_seeds_give_mean_and_deviation(make_result: Any) -> None:
    result = make_result("seeds")
    rows = summary_rows(read(result))
    assert [row["ASR, %"] for row in rows] == ["3.1 ± 0.4", "37.2 ± 0.4", "1.9 ± 0.4"]
    assert [row["ASR gap, pts"] for row in rows] == ["+1.2", "+35.3", "–"]
    assert "over 5 seeds" in shown(result)


def test_markup_in_names_is_only_text(usual: Json) -> None:
    usual["methods"][0]["label"] = "[red]x[/red]"
    usual["task"]["name"] = "[bold]t"
    text = shown(usual, 120)
    assert "[red]x[/red]" in text
    assert "[bold]t" in text


@given(st.floats(-1, 1))
def test_points_are_signed_and_never_minus_zero(value: float) -> None:
    text = numbers.points(value)
    assert text not in ("+0.0", "−0.0")
    assert abs(float(text.replace("−", "-")) - 100 * value) <= 0.0501


@given(st.floats(0, 1e15))
def test_bytes_are_humanised(value: float) -> None:
    size, unit = numbers.human_bytes(value).split(numbers.SPACE)
    scale = {unit: size for size, unit in numbers.BYTE_UNITS}[unit]
    half = 0.501 if unit == "B" else 0.0501
    assert abs(float(size.replace(",", "")) * scale - value) <= half * scale
