"""The command line: ``unwalk run``, ``compare``, ``methods``, ``tasks``, ``settings``."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

import unwalk
from unwalk import cli_data
from unwalk.core.errors import UnwalkError
from unwalk.runs import partial_of

if TYPE_CHECKING:
    from unwalk.runs.config import Config

FIRST_STEPS = (
    "Start with: unwalk run --out runs/first\n\n"
    "That trains on handwritten digits while one peer is poisoned, forgets the poison in three "
    "ways, prints a table and writes runs/first/report.html, in less than a minute."
)
MEANINGS = {
    "clean": "clean: accuracy on the test set",
    "forget": "forget: accuracy on the records that had to be forgotten",
    "asr": "ASR: attack success, the share of triggered pictures answered with the target class",
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train one model by passing it from peer to peer, and make it forget again.",
    epilog=FIRST_STEPS,
)
app.add_typer(cli_data.app, name="data")
out_console = Console()
err_console = Console(stderr=True)

File = Annotated[Path | None, typer.Argument(help="Settings as TOML.", metavar="FILE.toml")]
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
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with what was stopped, in the folder --out.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing folder of results.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _changes(pairs: list[str] | None, **options: Any) -> dict[str, Any]:
    """Options that were given, then ``--set`` pairs, as flat settings."""
    from unwalk.runs.config import parse_set

    keys = {"model": "model.name"}
    given = {keys.get(k, k): v for k, v in options.items() if v is not None}
    return {**given, **parse_set(pairs or [])}


def _command() -> str:
    return shlex.join(["unwalk", *sys.argv[1:]])


def _config(file: Path | None, changes: dict[str, Any]) -> Config:
    from unwalk.runs.assemble import resolve
    from unwalk.runs.config import read_toml

    if file is None:
        return resolve(changes)
    return resolve(changes, read_toml(file), file_name=str(file))


class _Bars:
    """Progress on the terminal's error stream: a line for each of the last few walks."""

    SHOWN = 5

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(),
            console=err_console,
            transient=True,
            disable=not err_console.is_terminal,
        )
        self.lines: dict[str, TaskID] = {}
        self.loading = self.progress.add_task("loading", total=None, count="")

    def tell(self, walk: str, done: int, hops: int) -> None:
        """Show how far a walk got."""
        if walk not in self.lines:
            self.progress.update(self.loading, visible=False)
            self.lines[walk] = self.progress.add_task(walk, total=hops, count="")
            for old in list(self.lines.values())[: -self.SHOWN]:
                self.progress.update(old, visible=False)
        self.progress.update(self.lines[walk], completed=done, count=f"{done}/{hops} hops")


@contextmanager
def _loading() -> Generator[None]:
    """Put an interrupt off to the end: an import that is cut short leaves broken modules."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def _progress(out: Path | None) -> Generator[_Bars]:
    """Bars while something runs; when it is stopped, one line that says how to go on."""
    bars = _Bars()
    try:
        with bars.progress:
            yield bars
    except KeyboardInterrupt:
        if out is not None and partial_of(out).exists():
            words = [a for a in sys.argv[1:] if a != "--resume"]
            text = f"go on with: {shlex.join(['unwalk', *words, '--resume'])}"
        else:
            text = "nothing was kept"
        _say(f"unwalk: stopped; {text}")
        raise typer.Exit(130) from None


def _say(text: str) -> None:
    err_console.print(text, markup=False, highlight=False, soft_wrap=True)


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
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
) -> None:
    """Train by token walk, forget, and measure; with --out, leave a report behind."""
    with _progress(out) as bars:
        with _loading():
            from unwalk.runs.run import run as run_config

        changes = _changes(
            set_, task=task, method=method, preset=preset, seed=seed, device=device, model=model
        )
        result = run_config(
            _config(file, changes),
            out=out,
            resume=resume,
            overwrite=overwrite,
            command=_command(),
            tell=bars.tell,
        ).result
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    _print_start(result)
    _print_end(result, out)


def _print_start(result: dict[str, Any]) -> None:
    """One line on the model before anything was forgotten."""
    from unwalk.reports.numbers import percent

    hops = result["phases"]["train"]
    readings = (r for m in result["methods"] for r in m["series"])
    start = next((r for r in readings if r["phase"] == "train" and r["hop"] == hops), None)
    if start is not None:
        ends = [f"{MEANINGS[k].partition(':')[0]} {percent(start[k])}" for k in _shown(result)]
        _print(f"before unlearning, after {hops} hops: {', '.join(ends)}\n")


def _print_end(result: dict[str, Any], out: Path | None) -> None:
    """The table, what is claimed, and where the rest is."""
    from unwalk.reports import summary_table

    _print_whole(summary_table(result))
    for key in _shown(result):
        _print(MEANINGS[key])
    _print()
    for claim in result["claims"]:
        numbers = ""
        if claim["epsilon"] is not None:
            numbers = f" (epsilon {claim['epsilon']:g}, delta {claim['delta']:g})"
        _print(f"guarantee {claim['grade']}{numbers}: {claim['reason']}")
    kept = "add --out DIR to keep the model, the transcript and a report"
    _print(kept if out is None else f"report: {out / 'report.html'}", soft_wrap=True)


def _print_whole(table: Table) -> None:
    """Print a table of numbers; where the terminal is too narrow, lines wrap: none is cut."""
    room = out_console.options.update(max_width=1000)
    needed = out_console.measure(table, options=room).maximum
    Console(width=max(needed, out_console.width)).print(table)


def _shown(result: dict[str, Any]) -> list[str]:
    """The measures that the table shows."""
    final = result["methods"][0]["final"]
    return [
        k for k in ("clean", "forget" if final["asr"] is None else "asr") if final[k] is not None
    ]


def _print(text: str = "", *, soft_wrap: bool = False) -> None:
    out_console.print(text, markup=False, highlight=False, soft_wrap=soft_wrap)


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
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
) -> None:
    """Run several methods over several seeds and print means and deviations."""
    with _progress(out) as bars:
        with _loading():
            from unwalk.runs.compare import compare as compare_config

        main, *others = [name.strip() for name in methods.split(",") if name.strip()] or [""]
        changes = _changes(set_, task=task, preset=preset, seed=seed, device=device, model=model)
        result = compare_config(
            _config(file, {**changes, "method": main, "compare": others}),
            seeds,
            out=out,
            resume=resume,
            overwrite=overwrite,
            command=_command(),
            tell=bars.tell,
        ).result
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    _print_end(result, out)


@app.command()
def methods(json_: JsonOption = False) -> None:
    """List the unlearning methods."""
    from unwalk.runs.catalogue import METHODS

    rows = [
        {"method": name, "guarantee": entry.grade, "description": entry.description}
        for name, entry in METHODS.items()
    ]
    _listing(rows, json_)


@app.command()
def tasks(json_: JsonOption = False) -> None:
    """List the tasks."""
    from unwalk.tasks import TASKS

    rows = [{"task": name, "description": entry.about} for name, entry in TASKS.items()]
    own = "your own: a function without arguments that returns inputs and labels"
    _listing([*rows, {"task": "package.module:function", "description": own}], json_)


@app.command()
def settings(
    task: TaskOption = None, preset: PresetOption = None, json_: JsonOption = False
) -> None:
    """List every setting, with its value where nothing else is said."""
    from unwalk.runs.assemble import resolve
    from unwalk.runs.config import describe, flatten

    defaults = flatten(resolve(_changes(None, task=task, preset=preset)))
    rows = [
        {"setting": k, "default": defaults[k], "meaning": meaning} for k, _, meaning in describe()
    ]
    _listing(rows, json_)


def _listing(rows: list[dict[str, Any]], json_: bool) -> None:
    if json_:
        print(json.dumps(rows))
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    out_console.print(table)


def _cell(value: Any) -> str:
    """A value as ``--set`` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(value)
    return "" if value is None else str(value)


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
        _say(f"unwalk: {error}")
        raise SystemExit(2) from None
