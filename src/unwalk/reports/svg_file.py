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


def alone(heading: str, pictures: Sequence[Markup], sheet: str) -> str:
    """Pictures of a page below each other, under a heading, as an SVG file."""
    margin, y, widest = 16.0, 38.0, 0.0
    body = [charts.words(heading, margin, 24.0, class_="heading")]
    for drawn in pictures:
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', str(drawn))
        assert size is not None
        width, height = float(size[1]), float(size[2])
        body.append(placed(drawn, margin, y, width, height))
        y, widest = y + height + margin, max(widest, width)
    return svg_file(body, widest + 2 * margin, y, sheet)


def _rules(body: str, sheet: str) -> str:
    """The page's rules for what is in the picture."""
    rules = page.rules("common") + page.rules(sheet).partition("@media")[0]
    classes = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    used = [
        f"{selector}{{{rule}}}"
        for several, rule in re.findall(r"(\.picture \.[^{}]*)\{([^}]*)\}", rules)
        for selector in re.findall(r"\.picture (\.[\w.-]+)", several)
        if classes.issuperset(selector[1:].split("."))
    ]
    own = [".heading{font-size:16px;font-weight:600}", ".sub{font-size:14px;font-weight:600}"]
    return ".heading,.sub,.key{fill:var(--ink)}" + "".join(own + used)
