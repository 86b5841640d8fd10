"""Tables and pictures of a result as files: CSV, JSON and TeX; SVG, PDF and PNG.

In comes a result as a dictionary: of a run, comparison, sweep, audit or evaluation.  CSV and JSON
hold its numbers as they were measured, TeX what the page shows (``booktabs``).  PDF and PNG are
made from the SVG by CairoSVG, an extra (``unwalk[export]``).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unwalk.core.errors import InvalidInput
from unwalk.core.grades import SHOWN
from unwalk.core.validation import check_choice
from unwalk.reports import (
    audit_page,
    evaluation_page,
    numbers,
    run_page,
    sweep_page,
    tables,
)
from unwalk.reports.page import environment
from unwalk.reports.result import Result, read
from unwalk.reports.svg_file import alone
from unwalk.reports.tables import Cell, Table

if TYPE_CHECKING:
    import pandas as pd

Document = Mapping[str, Any]
Line = Mapping[str, Any]

FORMATS = ("csv", "json", "svg", "pdf", "png", "tex")
DRAWN = ("pdf", "png")
SCALE = 2.0
"""Pixels of a PNG for each unit of the picture."""


class Sheet(NamedTuple):
    """A table: its lines with numbers as they are, and as the page shows it, where it does."""

    name: str
    lines: Sequence[Line]
    shown: Table | None = None


class Drawing(NamedTuple):
    """A picture as an SVG file."""

    name: str
    svg: str


def formats_of(text: str | Sequence[str]) -> list[str]:
    """The formats that a text with commas names; PDF and PNG only where they can be made.

    >>> formats_of("csv, svg,csv")
    ['csv', 'svg']
    """
    named = text.split(",") if isinstance(text, str) else text
    formats = list(dict.fromkeys(one.strip() for one in named))
    for one in formats:
        check_choice("export", one, FORMATS)
        if one in DRAWN:
            _cairosvg()
    return formats


def export(document: Document, folder: Path, formats: str | Sequence[str]) -> list[Path]:
    """Write every table and picture of ``document`` into ``folder``, in each of ``formats``."""
    wanted = formats_of(formats)
    files = {
        f"{name}.{kind}": content
        for kind in wanted
        for name, content in _contents(document, kind).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def _contents(document: Document, kind: str) -> dict[str, bytes]:
    if kind == "csv":
        return {one.name: csv_text(one.lines).encode() for one in sheets_of(document)}
    if kind == "json":
        return {one.name: _json(one.lines).encode() for one in sheets_of(document)}
    if kind == "tex":
        return {
            one.name: tex(one.shown).encode()
            for one in sheets_of(document)
            if one.shown is not None
        }
    return {one.name: _drawn(one.svg, kind) for one in drawings_of(document)}


def csv_text(lines: Sequence[Line]) -> str:
    """Lines as CSV; a column is there if any line has it."""
    text = io.StringIO()
    heads = dict.fromkeys(key for line in lines for key in line)
    writer = csv.DictWriter(text, list(heads), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _json(lines: Sequence[Line]) -> str:
    return json.dumps(list(lines), indent=1, allow_nan=False) + "\n"


def _cairosvg() -> Any:
    try:
        import cairosvg  # an extra: most users draw no PDF
    except (ImportError, OSError) as error:  # the second: the system has no cairo
        raise InvalidInput(
            f"export to pdf or png needs CairoSVG, which cannot be loaded ({error}); install "
            "unwalk[export] and the cairo library of your system, or export svg."
        ) from None
    return cairosvg


def _drawn(svg: str, kind: str) -> bytes:
    if kind == "svg":
        return svg.encode()
    # CairoSVG knows no paint-order: it would draw the outline of a name over the name.
    svg = re.sub(r"paint-order:stroke;[^}]*", "", svg)
    made: bytes
    if kind == "pdf":
        made = _cairosvg().svg2pdf(bytestring=svg.encode())
    else:
        made = _cairosvg().svg2png(bytestring=svg.encode(), scale=SCALE)
    return made


def sheets_of(document: Document) -> list[Sheet]:
    """Every table of a result, and the numbers behind its pictures."""
    if "grid" in document:
        return _sweep_sheets(document)
    if "game" in document:
        return _audit_sheets(document)
    if "members" in document:
        shown = evaluation_page.page_table(document)
        return [Sheet("evaluate", document["rows"], shown)]
    return _run_sheets(document, read(document))


def drawings_of(document: Document) -> list[Drawing]:
    """Every picture of a result; a sweep has none, nor has an evaluation."""
    if "grid" in document or "members" in document:
        return []
    if "game" in document:
        return [Drawing("audit", audit_page.chart_file(document))]
    view = read(document)
    seeds = numbers.counted(view.runs, "seed") if view.runs > 1 else f"seed {view.seed}"
    made = []
    for key in tables.measured(view):
        figure = run_page.chart(view, key)
        if figure is not None:
            heading = f"{figure.title}: {view.task.name}, {seeds}"
            made.append(Drawing(key, alone(heading, figure.pictures[:1], "run")))
    for figure in run_page.walks(view):
        name = f"walk-{re.sub('[^a-z0-9]+', '-', figure.title.lower()).strip('-')}"
        heading = f"{figure.title}: {view.task.name}, seed {view.seed}"
        made.append(Drawing(name, alone(heading, figure.pictures, "run")))
    trade = run_page.trade_picture(document)
    return made if trade is None else [*made, Drawing("pareto", trade)]


def _run_sheets(document: Document, view: Result) -> list[Sheet]:
    first = ("name", "label", "preset", "grade")
    methods = [
        {
            **{key: one[key] for key in first if one.get(key)},
            **(one.get("final") or {}),
            **_under("gap", one.get("gap")),
            **_under("measure", one.get("measures")),
        }
        for one in document["methods"]
    ]
    costs = [
        {"name": one["name"], **_under("cost", one.get("cost")), **_under("hop", one["matched"])}
        for one in document["methods"]
    ]
    series = [
        {"name": one["name"], **point} for one in document["methods"] for point in one["series"]
    ]
    sheets = [
        Sheet("methods", methods, run_page.methods(view)),
        Sheet("costs", costs, run_page.costs(view)),
        Sheet("series", series),
        Sheet("walk", [_visit(one) for one in document["walk"]]),
        Sheet("claims", document["claims"], _claims(view)),
    ]
    if view.spreads:
        before = document["seeds"].get("before")
        every = [*([] if before is None else [before]), *document["seeds"]["methods"]]
        sheets.append(Sheet("seeds", list(map(spread_line, every)), tables.seeds_table(view)))
        sheets.append(Sheet("series-seeds", [line for one in every for line in _bands(one)]))
    if document.get("failed"):
        failed = [{**one, "seeds": " ".join(map(str, one["seeds"]))} for one in document["failed"]]
        sheets.append(Sheet("failed", failed))
    return sheets


def _under(prefix: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in (values or {}).items()}


def _visit(one: Line) -> Line:
    return {**one, "path": " ".join(map(str, one["path"]))}


def spread_line(one: Line) -> dict[str, Any]:
    """Means, deviations and intervals of a method over seeds, in columns."""
    line = {key: one[key] for key in ("name", "label", "runs", "grade") if key in one}
    for key, mean in one["mean"].items():
        line |= {f"{key} mean": mean, f"{key} std": one["std"].get(key)}
        if key in one.get("interval", {}):
            low, high = one["interval"][key]
            line |= {f"{key} low": low, f"{key} high": high}
    return line


def _bands(one: Line) -> Iterable[Line]:
    for mean, std in zip(one.get("series", []), one.get("deviations", []), strict=True):
        values = {key: value for key, value in mean.items() if key not in ("hop", "phase")}
        spread = {f"{key} mean": value for key, value in values.items()}
        spread |= {f"{key} std": std[key] for key in values}
        yield {"name": one["name"], "phase": mean["phase"], "hop": mean["hop"], **spread}


def _claims(view: Result) -> Table | None:
    if not view.claims:
        return None
    rows = [
        tables.Row(
            Cell(claim.grade),
            [Cell(run_page.bound(claim) or numbers.DASH), Cell(numbers.sentence(claim.reason))],
        )
        for claim in view.claims
    ]
    return tables.plain_table("What is claimed", ("Grade", "Bound", "Reason"), rows)


def _sweep_sheets(document: Document) -> list[Sheet]:
    lines = [{**point, **spread_line(row)} for row in document["rows"] for point in row["settings"]]
    failed = [
        {**point, "name": row["name"], "reason": row["reason"]}
        for row in document["failed"]
        for point in row["settings"]
    ]
    sheets = [Sheet("sweep", lines, sweep_page.page_table(document))]
    return [*sheets, Sheet("failed", failed)] if failed else sheets


def _audit_sheets(document: Document) -> list[Sheet]:
    lines = [{k: v for k, v in row.items() if k != "tried"} for row in document["rows"]]
    attackers = [
        {"method": row["method"], "observer": row["observer"], **one}
        for row in document["rows"]
        for one in row["tried"]
    ]
    sheets = [
        Sheet("audit", lines, audit_page.page_table(document)),
        Sheet("attackers", attackers),
    ]
    return [*sheets, Sheet("failed", document["failed"])] if document["failed"] else sheets


TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        numbers.MINUS: "$-$",
        numbers.DASH: "--",
        numbers.SPACE: "~",
        "±": r"$\pm$",
        "×": r"$\times$",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
    }
)
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def tex_text(text: str) -> str:
    r"""Text as TeX sets it; the signs of grades are left out, the word beside them says it.

    >>> tex_text("a_b & 5 %"), tex_text("10⁻⁵"), tex_text("✗ refused")
    ('a\\_b \\& 5 \\%', '10$^{-5}$', 'refused')
    """
    for sign in {shown.sign for shown in SHOWN.values()}:
        text = text.replace(f"{sign} ", "")
    text = text.translate(TEX)
    return re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: f"$^{{{m[0].translate(RAISED)}}}$", text)


def tex(table: Table) -> str:
    """A table for TeX, with the rules of ``booktabs``."""
    lines = [f"% {tex_text(table.name)}; needs \\usepackage{{booktabs}}"]
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(table.heads) - 1)}}}", r"\toprule"]
    if table.groups:
        cells, rules, at = [""], [], 2
        for text, span in table.groups:
            cells.append(f"\\multicolumn{{{span}}}{{c}}{{{tex_text(text)}}}")
            rules += [f"\\cmidrule(lr){{{at}-{at + span - 1}}}"] if text else []
            at += span
        lines += [_tex_line(cells), " ".join(rules)]
    lines += [
        _tex_line(
            tex_text(head.text) + (f", {tex_text(head.unit)}" if head.unit else "")
            for head in table.heads
        )
    ]
    for body in table.bodies:
        lines.append(r"\midrule")
        if body.title:
            width = len(table.heads)
            lines.append(_tex_line([f"\\multicolumn{{{width}}}{{l}}{{{tex_text(body.title)}}}"]))
        lines += [_tex_line([_tex_cell(row.head), *map(_tex_cell, row.cells)]) for row in body.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _tex_cell(cell: Cell) -> str:
    text = tex_text(" ".join([cell.text, *(f"({one})" for one in cell.small if one)]))
    if cell.span == 1:
        return text
    return f"\\multicolumn{{{cell.span}}}{{l}}{{{text}}}"


class Exported:
    """What every result can be made into: files, a frame of pandas, a table in a notebook."""

    result: Any

    def export(self, folder: str | Path, formats: str | Sequence[str] = "csv,svg") -> list[Path]:
        """Write every table and picture into ``folder``; ``formats`` are among ``csv``, ``json``,
        ``tex``, ``svg``, ``pdf`` and ``png``."""
        return export(self.result, Path(folder), formats)

    def to_frame(self, table: str = "") -> pd.DataFrame:
        """One table as a frame of pandas; the first one, if none is named."""
        sheets = {one.name: one for one in sheets_of(self.result)}
        name = table or next(iter(sheets))
        check_choice("table", name, sheets)
        try:
            import pandas as pd  # an extra: the results do not need it
        except ImportError:
            raise InvalidInput("to_frame needs pandas; install unwalk[export].") from None
        return pd.DataFrame(list(sheets[name].lines))

    def _repr_html_(self) -> str:
        """The tables that the page has, for notebooks."""
        shown = [one.shown for one in sheets_of(self.result) if one.shown is not None]
        macros: Any = environment().get_template("parts.html").module
        return "".join(str(macros.table(one)) for one in shown)


class Report(dict[str, Any], Exported):
    """A result that is a dictionary, as JSON has it."""

    @property
    def result(self) -> Document:
        """The dictionary itself."""
        return self
