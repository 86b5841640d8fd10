"""The command line: ``unwalk run``, ``compare``, ``methods``, ``tasks``, ``settings``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import unwalk
from unwalk.core.errors import UnwalkError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train one model by passing it from peer to peer, and make it forget again.",
)
out_console = Console()
err_console = Console(stderr=True)

File = Annotated[Path | None, typer.Argument(help="Settings as TOML.", metavar="[FILE.toml]")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting; unwalk settings lists them."),
]
TaskOption = Annotated[str | None, typer.Option(help="The task; unwalk tasks lists them.")]
MethodOption = Annotated[str | None, typer.Option(help="The method; unwalk methods lists them.")]
PresetOption = Annotated[str | None, typer.Option(help="practical, paper-matched or paper.")]
SeedOption = Annotated[int | None, typer.Option(help="Public seed.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda.")]
ModelOption = Annotated[str | None, typer.Option(help="A named model, or package.module:factory.")]
OutOption = Annotated[Path | None, typer.Option(help="Folder for all results.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
OverwriteOption = Annotated[bool, typer.Option(help="Replace an existing output folder.")]


def _changes(pairs: list[str] | None, **options: Any) -> dict[str, Any]:
    """Options that were given, then ``--set`` pairs, as flat settings."""
    from unwalk.runs.config import parse_set

    keys = {"model": "model.name"}
    given = {keys.get(k, k): v for k, v in options.items() if v is not None}
    return {**given, **parse_set(pairs or [])}


def _command() -> str:
    return shlex.join(["unwalk", *sys.argv[1:]])


class _Bar:
    """A progress bar on the terminal's error stream, one line a walk."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("hops"),
            TimeRemainingColumn(),
            console=err_console,
            transient=True,
            disable=not err_console.is_terminal,
        )
        self.tasks: dict[str, Any] = {}

    def tell(self, walk: str, done: int, hops: int) -> None:
        if walk not in self.tasks:
            self.tasks[walk] = self.progress.add_task(walk, total=hops)
        self.progress.update(self.tasks[walk], completed=done)


@app.command()
def run(
    file: File = None,
    set_: Set = None,
    task: TaskOption = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    model: ModelOption = None,
    out: OutOption = None,
    resume: Annotated[bool, typer.Option(help="Go on with a run that was stopped.")] = False,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
) -> None:
    """Train by token walk, forget, and measure; with --out, leave a report behind."""
    from unwalk.reports import summary_table
    from unwalk.runs.assemble import resolve
    from unwalk.runs.config import read_toml
    from unwalk.runs.run import run as run_config

    changes = _changes(
        set_, task=task, method=method, preset=preset, seed=seed, device=device, model=model
    )
    config = resolve(changes, None if file is None else read_toml(file))
    bar = _Bar()
    with bar.progress:
        result = run_config(
            config,
            out=out,
            resume=resume,
            overwrite=overwrite,
            command=_command(),
            tell=bar.tell,
        )
    if json_:
        print(json.dumps(result.result, allow_nan=False))
        return
    out_console.print(summary_table(result.result))
    _print_claims(result.result)
    if out is not None:
        out_console.print(f"report: {out / 'report.html'}", soft_wrap=True)


def _print_claims(result: dict[str, Any]) -> None:
    for claim in result["claims"]:
        numbers = ""
        if claim["epsilon"] is not None:
            numbers = f" epsilon {claim['epsilon']:g}, delta {claim['delta']:g}:"
        out_console.print(f"{claim['grade']}:{numbers} {claim['reason']}", highlight=False)


@app.command()
def compare(
    file: File = None,
    set_: Set = None,
    methods: Annotated[str, typer.Option(help="Comma-separated; the first is the main one.")] = (
        "rrdu,finetune,retrain"
    ),
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    task: TaskOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    model: ModelOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
) -> None:
    """Run several methods over several seeds and print means and deviations."""
    from unwalk.reports import summary_table
    from unwalk.runs.assemble import resolve
    from unwalk.runs.compare import compare as compare_config
    from unwalk.runs.config import read_toml

    main, *others = [name.strip() for name in methods.split(",") if name.strip()] or [""]
    changes = _changes(set_, task=task, preset=preset, seed=seed, device=device, model=model)
    changes = {**changes, "method": main, "compare": others}
    config = resolve(changes, None if file is None else read_toml(file))
    bar = _Bar()
    with bar.progress:
        comparison = compare_config(
            config, seeds, out=out, overwrite=overwrite, command=_command(), tell=bar.tell
        )
    if json_:
        print(json.dumps(comparison.result, allow_nan=False))
        return
    out_console.print(summary_table(comparison.result))
    if out is not None:
        out_console.print(f"report: {out / 'report.html'}", soft_wrap=True)


@app.command()
def methods(json_: JsonOption = False) -> None:
    """List the unlearning methods."""
    from unwalk.runs.catalogue import METHODS

    rows = [
        {"method": name, "grade": entry.grade, "description": entry.description}
        for name, entry in METHODS.items()
    ]
    _listing(rows, json_)


@app.command()
def tasks(json_: JsonOption = False) -> None:
    """List the tasks."""
    from unwalk.tasks import TASKS

    rows = [{"task": name, "description": entry.about} for name, entry in TASKS.items()]
    _listing(rows, json_)


@app.command()
def settings(json_: JsonOption = False) -> None:
    """List every setting with its default."""
    from unwalk.runs.config import describe

    rows = [
        {"setting": key, "default": default, "meaning": meaning}
        for key, default, meaning in describe()
    ]
    _listing(rows, json_)


def _listing(rows: list[dict[str, Any]], json_: bool) -> None:
    if json_:
        print(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*("" if v is None else str(v) for v in row.values()))
    out_console.print(table)


def _version(value: bool) -> None:
    if value:
        print(unwalk.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""


def main() -> None:
    """Entry point: an error that unwalk raises on purpose is one sentence and exit code 2."""
    try:
        app()
    except UnwalkError as error:
        err_console.print(f"unwalk: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(2) from None
