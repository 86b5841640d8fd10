"""Makes a page from a template: one HTML file without scripts or outside addresses.

Templates are in ``templates/``.  They escape every text.  Two things pass as they are: the style
sheet, and pictures of :mod:`~unwalk.reports.charts`, which escapes what it is given.

Every colour that carries text keeps a contrast of at least 4.5 to both backgrounds of its palette.
The training line, the main method, retraining and the first other method stay apart for the three
kinds of colour blindness; shapes and labels tell lines apart as well.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unwalk.reports import numbers

LIGHT = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1b2028",
    "soft": "#566070",
    "line": "#dde1e8",
    "node": "#8a94a6",
    "main": "#235cf0",
    "oracle": "#17683b",
    "other-1": "#b5520a",
    "other-2": "#65187e",
    "other-3": "#d6057a",
    "other-4": "#0410a1",
    "other-5": "#566070",
    "unlearner": "#a8246f",
    "right": "#08705a",
    "wrong": "#a83208",
}
DARK = {
    "page": "#101318",
    "card": "#181c23",
    "ink": "#e8ebf0",
    "soft": "#a3adbc",
    "line": "#2f3641",
    "node": "#6f7a8c",
    "main": "#5f93e0",
    "oracle": "#6cf5a6",
    "other-1": "#ea6d25",
    "other-2": "#e28197",
    "other-3": "#9ef110",
    "other-4": "#f2b8fe",
    "other-5": "#e1af5d",
    "unlearner": "#f47fbf",
    "right": "#4fc9a8",
    "wrong": "#ff9d70",
}

LIGHT_MARKS = {
    "agree": "#07614e",
    "agree-tint": "#dcf2ea",
    "near": "#6f4700",
    "near-tint": "#fbeecb",
    "differ": "#96270a",
    "differ-tint": "#fce1d8",
}
"""Marks of agreement on the reproduction's page, each on its own tint."""

DARK_MARKS = {
    "agree": "#7fe0c2",
    "agree-tint": "#123a30",
    "near": "#f3cf7a",
    "near-tint": "#3b3013",
    "differ": "#ffb8a0",
    "differ-tint": "#4a231a",
}


def rules(name: str) -> str:
    """The rules of ``templates/NAME.css``."""
    return files("unwalk.reports").joinpath(f"templates/{name}.css").read_text(encoding="utf-8")


def style_sheet(name: str) -> str:
    """The whole style sheet of one page: palettes, what all pages share, what is its own."""
    marks = name == "reproduction"
    light = _variables(LIGHT | LIGHT_MARKS if marks else LIGHT)
    dark = _variables(DARK | DARK_MARKS if marks else DARK)
    palettes = f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return "\n".join((palettes, rules("common"), rules(name)))


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@cache
def environment() -> Environment:
    """The templates, with the functions that they call."""
    made = templates_of("unwalk.reports")
    made.globals.update(numbers=numbers, policy=POLICY)
    return made


def templates_of(package: str) -> Environment:
    """The templates of a package; every text that they are given is escaped."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )


def render_page(name: str, **content: Any) -> str:
    """The page ``templates/NAME.html`` with the style sheet of its name."""
    sheet = Markup(style_sheet(name))
    return environment().get_template(f"{name}.html").render(sheet=sheet, **content)
