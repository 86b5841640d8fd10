"""Makes a picture of a page a file of its own: the light palette and the rules written in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from unwalk.reports import charts, page

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def svg_file(body: Sequence[Markup], width: float, height: float, sheet: str) -> str:
    """Elements as an SVG file, with the rules of ``templates/SHEET.css`` for their classes."""
    whole = charts.tag(
        "svg",
        charts.tag("style", _rules("".join(body), sheet)),
        charts.tag("rect", width=width, height=height, fill="var(--card)"),
        *body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {charts.number(width)} {charts.number(height)}",
        width=width,
        height=height,
        font_family=FONT,
        font_size="13",
    )
    return re.sub(r"var\(--([\w-]+)\)", lambda match: page.LIGHT[match[1]], str(whole)) + "\n"


def placed(drawn: Markup, x: float, y: float, width: float, height: float) -> Markup:
    """A picture at a place in a larger one."""
    at = f'<svg x="{charts.number(x)}" y="{charts.number(y)}" width="{charts.number(width)}" '
    return Markup(str(drawn).replace("<svg ", f'{at}height="{charts.number(height)}" ', 1))


def _rules(body: str, sheet: str) -> str:
    """The page's rules for what is in the picture."""
    rules = page.rules("common") + page.rules(sheet).partition("@media")[0]
    classes = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    used = [
        f"{selector}{{{rule}}}"
        for selector, rule in re.findall(r"\.picture (\.[\w.-]+)\{([^}]*)\}", rules)
        if selector[1:] in classes
    ]
    own = [".heading{font-size:16px;font-weight:600}", ".sub{font-size:14px;font-weight:600}"]
    return ".heading,.sub,.key{fill:var(--ink)}" + "".join(own + used)
