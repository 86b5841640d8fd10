"""How long the runs took that made the page: the wall clock's time, call by call.

A record ``timing-...`` is what one call of ``unwalk reproduce`` leaves: ``task``, ``begun``,
``preset``, ``seconds``, ``jobs`` and the ``cells`` it ran.  Calls that overlap are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.reproduction_documents import EXPERIMENTS, FIRST, TASKS
from unwalk.reports.reproduction_tables import scrolled, task_title
from unwalk.reports.svg import tag

FURTHER = ("tuning", "precision")
"""Experiments that the paper does not have."""

NOTE = (
    "Wall time of the calls that left these results, as far as it was written down. Calls that "
    "overlap are counted once, and so are runs that several tables share."
)


@dataclass(frozen=True)
class Call:
    """One call: when it worked, on what, with how many processes."""

    task: str
    preset: str
    begun: float
    seconds: float
    jobs: int
    cells: tuple[str, ...]

    @property
    def experiments(self) -> tuple[str, ...]:
        """What was run, as experiments are named."""
        known = (*EXPERIMENTS, *FURTHER)
        return tuple(e for e in known if any(c.startswith(f"{e}-") for c in self.cells))

    @property
    def group(self) -> tuple[str, str, bool]:
        """Calls that are counted together: the paper's experiments apart from ours."""
        return self.task, self.preset, not set(self.experiments) - set(FURTHER)


def calls(records: Mapping[str, Mapping[str, Any]]) -> list[Call]:
    """The records, read."""
    found = []
    for name, record in sorted(records.items()):
        try:
            begun = datetime.fromisoformat(str(record["begun"])).timestamp()
            counted = float(record["seconds"]), int(record["jobs"])
            cells = tuple(map(str, record["cells"]))
            found.append(Call(str(record["task"]), str(record["preset"]), begun, *counted, cells))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{name} does not hold a time: {error!r}.") from error
    return found


def wall(found: Sequence[Call]) -> float:
    """Seconds in which at least one call worked.

    >>> wall([Call("mnist", "", 0.0, 60.0, 1, ()), Call("mnist", "", 40.0, 50.0, 1, ())])
    90.0
    """
    total, until = 0.0, float("-inf")
    for call in sorted(found, key=lambda c: c.begun):
        end = call.begun + call.seconds
        total += max(0.0, end - max(call.begun, until))
        until = max(until, end)
    return total


def duration(seconds: float) -> str:
    """Seconds, or minutes and seconds.

    >>> [duration(s).replace(numbers.SPACE, " ") for s in (9.34, 59.96, 754.0)]
    ['9.3 s', '1 min 0 s', '12 min 34 s']
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}{numbers.SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,}{numbers.SPACE}min {rest}{numbers.SPACE}s"


def took(records: Mapping[str, Mapping[str, Any]]) -> str:
    """A section with the wall time of each dataset and preset; nothing where none is known."""
    found = calls(records)
    if not found:
        return ""
    order = {task: place for place, task in enumerate(TASKS)}
    groups = sorted(
        dict.fromkeys(c.group for c in found),
        key=lambda g: (g[2], order.get(g[0], len(order)), g[1] not in FIRST, g[1]),
    )
    body = [_line([c for c in found if c.group == group]) for group in groups]
    if len(body) > 1:
        whole = [tag("td", "")] * 4 + [tag("td", duration(wall(found)))]
        body.append(tag("tr", tag("th", "Together", scope="row"), *whole, class_="is-main"))
    heads = ("Dataset", "Preset", "What", "Runs", "Processes", "Wall time")
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    table = scrolled(tag("table", head, tag("tbody", *body)), "How long it took")
    return tag(
        "section",
        tag("h2", "How long it took", id="times"),
        tag("p", NOTE, class_="note"),
        tag("div", tag("div", table, class_="card set times"), class_="sets stacked"),
    )


def _line(mine: Sequence[Call]) -> str:
    names = [e for e in (*EXPERIMENTS, *FURTHER) if any(e in c.experiments for c in mine)]
    what = "all" if names == list(EXPERIMENTS) else ", ".join(names)
    processes = sorted({c.jobs for c in mine})
    cells = (
        tag("code", escape(mine[0].preset)),
        escape(what),
        numbers.fixed(sum(len(c.cells) for c in mine), 0),
        " or ".join(str(jobs) for jobs in processes),
        duration(wall(mine)),
    )
    name = tag("th", escape(task_title(mine[0].task)), scope="row")
    return tag("tr", name, *(tag("td", text) for text in cells))
