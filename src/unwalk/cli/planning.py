"""``unwalk plan``: every way to meet a deletion request, and the cheapest that reaches a grade."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unwalk.cli.terminal import (
    FeaturesOption,
    JsonOption,
    MethodOption,
    ModelOption,
    PeersOption,
    PresetOption,
    SeedOption,
    Set,
    TaskOption,
    changes_of,
    config_of,
    loading,
    print_whole,
    show,
)

if TYPE_CHECKING:
    from unwalk.runs.planner import Planned

MEANINGS = (
    "hops, moved, computing: of the walk that forgets alone; computing as the log's own times say",
    "noise : model: the length of the noise, and a bound on that of the model it is added to",
    "expected clean: accuracy of the last logged model that had not met the records and was no "
    "farther trained",
)


def plan(
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder of a finished run, or settings as TOML.", metavar="RUN"),
    ] = None,
    set_: Set = None,
    grade: Annotated[str, typer.Option(help="exact, certified or nominal.")] = "exact",
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of grade certified.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of grade certified.")] = None,
    records: Annotated[
        int | None, typer.Option(help="How many records are to be forgotten.")
    ] = None,
    at: Annotated[int | None, typer.Option(help="The peer that has to forget.")] = None,
    most_hops: Annotated[int | None, typer.Option(help="Budget: hops.")] = None,
    most_bytes: Annotated[int | None, typer.Option(help="Budget: bytes that are moved.")] = None,
    most_seconds: Annotated[float | None, typer.Option(help="Budget: seconds of cost.")] = None,
    rates: Annotated[
        str,
        typer.Option(
            metavar="NAME=SECONDS,...",
            help="Seconds per message, byte and gradient of a record, as in message=0.1.",
        ),
    ] = "",
    task: TaskOption = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    peers: PeersOption = None,
    model: ModelOption = None,
    features: FeaturesOption = None,
    json_: JsonOption = False,
) -> None:
    """List every way to forget with what it costs and proves, and name the cheapest.

    Nothing is trained, and nothing depends on what is in the records to be forgotten.
    """
    with loading():
        from unwalk.runs.planner import Budget

    asked = {
        "forget.size": records,
        "forget.peer": at,
        "unlearn.epsilon": epsilon,
        "unlearn.delta": delta,
    }
    settings = {"task": task, "method": method, "preset": preset, "seed": seed, "peers": peers}
    options = changes_of(set_, **settings, model=model, features=features)
    changes = {**{k: v for k, v in asked.items() if v is not None}, **options}
    budget = Budget(most_hops, most_bytes, most_seconds)
    found = _planned(run, changes, grade, rates, budget).to_json()
    if json_:
        print(json.dumps(found, allow_nan=False))
        return
    show_plan(found, meanings=True)
    if found["best"] is None:
        raise typer.Exit(3)


def _planned(
    run: Path | None, changes: dict[str, Any], grade: str, rates: str, budget: Any
) -> Planned:
    from unwalk.runs.assemble import assemble
    from unwalk.runs.finished import FinishedRun
    from unwalk.runs.planner import Planner

    prices = _rates(rates)
    if run is not None and run.is_dir():
        return FinishedRun.read(run, changes).plan(grade, prices, budget)
    return Planner(assemble(config_of(run, changes))).plan(grade, prices, budget)


def _rates(text: str) -> Any:
    """Rates as they are typed."""
    from dataclasses import fields

    from unwalk.core.errors import InvalidInput
    from unwalk.core.validation import check_choice
    from unwalk.runs.planner import Rates

    given = {}
    for pair in text.split(",") if text else ():
        name, _, number = pair.partition("=")
        check_choice("--rates", name.strip(), [one.name for one in fields(Rates)])
        try:
            given[name.strip()] = float(number)
        except ValueError:
            raise InvalidInput(f"--rates got {pair!r}; allowed: NAME=SECONDS.") from None
    return Rates(**given)


def show_plan(found: dict[str, Any], *, meanings: bool = False) -> None:
    """The ways, those that are not possible with their reasons, and which is taken."""
    from unwalk.reports.plans import not_possible, pick_line, plan_table, rates_line

    print_whole(plan_table(found))
    for way, reason in not_possible(found) if meanings else ():
        show(f"not {way}: {reason}", soft_wrap=True)
    if meanings:
        show()
        for line in (*MEANINGS, rates_line(found["rates"])):
            show(line)
        show()
    show(pick_line(found))
