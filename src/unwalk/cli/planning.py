"""``unwalk plan``: every way to meet a deletion request, and the cheapest that reaches a grade."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unwalk.cli.terminal import (
    JsonOption,
    PeersOption,
    WalkOptions,
    loading,
    print_whole,
    show,
)
from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_choice

if TYPE_CHECKING:
    from unwalk.runs.planner import Budget, Planned, Rates

Count = Annotated[int | None, typer.Option(help="Budget: at most so many.")]
MEANINGS = (
    "hops, moved, computing: of the walk that forgets alone; computing as the log's own times say",
    "noise : model: the length of the noise, and a bound on that of the model it is added to",
    "expected clean: accuracy of the last logged model that had not met the records and was no "
    "farther trained",
)


@dataclass(frozen=True)
class RequestOptions:
    """What is to be forgotten, with which guarantee."""

    grade: Annotated[str, typer.Option(help="exact, certified or nominal.")] = "exact"
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of grade certified.")] = None
    delta: Annotated[float | None, typer.Option(help="Delta of grade certified.")] = None
    records: Annotated[int | None, typer.Option(help="How many records are to be forgotten.")] = (
        None
    )
    at: Annotated[int | None, typer.Option(help="The peer that has to forget them.")] = None

    def changes(self) -> dict[str, Any]:
        """The same as settings."""
        settings = {
            "forget.size": self.records,
            "forget.peer": self.at,
            "unlearn.epsilon": self.epsilon,
            "unlearn.delta": self.delta,
        }
        return {key: value for key, value in settings.items() if value is not None}


@dataclass(frozen=True)
class CostOptions:
    """What a way may take, and at which rates costs are compared."""

    most_hops: Count = None
    most_bytes: Count = None
    most_seconds: Annotated[float | None, typer.Option(help="Budget: at most so many.")] = None
    rates: Annotated[
        str,
        typer.Option(
            metavar="NAME=SECONDS,...",
            help="Seconds per message, byte, visit and gradient of a record, as in message=0.1.",
        ),
    ] = ""

    def budget(self) -> Budget:
        """The budget."""
        from unwalk.runs.planner import Budget

        return Budget(self.most_hops, self.most_bytes, self.most_seconds)

    def prices(self) -> Rates:
        """The rates."""
        from unwalk.runs.planner import Rates

        given = {}
        for pair in self.rates.split(",") if self.rates else ():
            name, _, number = pair.partition("=")
            check_choice("--rates", name.strip(), vars(Rates()))
            try:
                given[name.strip()] = float(number)
            except ValueError:
                raise InvalidInput(f"--rates got {pair!r}; allowed: NAME=SECONDS.") from None
        return Rates(**given)


def plan(
    given: WalkOptions,
    method: str | None = typer.Option(None, help="How to train, where a method has its own way."),
    peers: PeersOption = None,
    *,
    request: RequestOptions,
    costs: CostOptions,
    json_: JsonOption = False,
) -> None:
    """List every way to forget with what it costs and proves, and name the cheapest.

    FILE.toml may be the folder of a finished run: then the request is about that run, and its log
    says how long hops take.  Nothing is trained, and nothing depends on what is in the records.
    """
    with loading():
        from unwalk.runs import finished, planner  # noqa: F401

    planned = _planned(given, request, costs, {"method": method, "peers": peers}).to_json()
    if json_:
        print(json.dumps(planned, allow_nan=False))
    else:
        show_plan(planned, whole=True)
    if planned["best"] is None:
        raise typer.Exit(3)


def _planned(
    given: WalkOptions, request: RequestOptions, costs: CostOptions, more: dict[str, Any]
) -> Planned:
    from unwalk.runs.assemble import assemble
    from unwalk.runs.finished import FinishedRun
    from unwalk.runs.planner import Planner

    asked = (request.grade, costs.prices(), costs.budget())
    if given.file is not None and given.file.is_dir():
        changes = {**request.changes(), **given.changes(**more)}
        return FinishedRun.read(given.file, changes).plan(*asked)
    return Planner(assemble(given.config(request.changes(), **more))).plan(*asked)


def show_plan(found: dict[str, Any], *, whole: bool = False) -> None:
    """The ways and which is taken; ``whole``: also why the others are not possible."""
    from unwalk.reports.plans import not_possible, pick_line, plan_table, rates_line

    print_whole(plan_table(found))
    if whole:
        for way, reason in not_possible(found):
            show(f"not {way}: {reason}", soft_wrap=True)
        show()
        for line in (*MEANINGS, rates_line(found["rates"])):
            show(line)
    show()
    show(pick_line(found))
