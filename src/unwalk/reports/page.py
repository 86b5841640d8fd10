"""Makes a page from a template: one HTML file that needs no outside address and no script.

Templates lie in ``templates/``.  They escape every text.  Two things pass as they are: the style
sheet, and pictures of :mod:`~unwalk.reports.drawing`, which escapes what it is given.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unwalk.reports import numbers
from unwalk.reports.style import style_sheet

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@cache
def environment() -> Environment:
    """The templates, with the functions that they call."""
    made = Environment(
        loader=PackageLoader("unwalk.reports"),
        autoescape=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.globals.update(numbers=numbers, policy=POLICY)
    return made


def render_page(name: str, **content: Any) -> str:
    """The page ``templates/NAME.html`` with the style sheet of its name."""
    sheet = Markup(style_sheet(name))
    return environment().get_template(f"{name}.html").render(sheet=sheet, **content)
