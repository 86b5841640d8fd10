"""``unwalk data``: shows, downloads and locates the official data files."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from unwalk.cli.terminal import App, JsonOption, err_console, out_console
from unwalk.core.errors import InvalidInput

if TYPE_CHECKING:
    from unwalk.tasks.official import Status

app = App(help="Official data files: what is there, getting them, and where they belong.")
TaskName = Annotated[str | None, typer.Argument(help="mnist, cifar10, heart or a9a.")]


@app.command()
def status(json_: JsonOption = False) -> None:
    """Show for every task whether its files are present and are the official ones."""
    from unwalk.tasks import official

    entries = official.status()
    if json_:
        print(json.dumps([_plain(entry) for entry in entries]))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("task", "state", "place"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        table.add_row(entry.task, entry.state, str(entry.place))
    out_console.print(table)
    for entry in entries:
        for file in entry.files:
            if file.problem is not None:
                out_console.print(f"{file.name} {file.problem}", highlight=False, soft_wrap=True)
            elif file.state == "missing" and entry.state == "partial":
                out_console.print(f"{file.name} is missing", highlight=False, soft_wrap=True)


def _plain(entry: Status) -> dict[str, Any]:
    files = [{"name": f.name, "state": f.state, "problem": f.problem} for f in entry.files]
    return {"task": entry.task, "state": entry.state, "place": str(entry.place), "files": files}


@app.command()
def fetch(
    tasks: list[str] | None = typer.Argument(None, help="mnist, cifar10, heart, a9a."),
    all_: bool = typer.Option(False, "--all", help="The files of every task."),
    mirror: str | None = typer.Option(
        None, help="Download from this mirror of the data folder, not from the publishers."
    ),
    json_: JsonOption = False,
) -> None:
    """Download missing files, check them, and put them in the data folder."""
    from unwalk.tasks import official

    if all_ == bool(tasks):
        raise InvalidInput("name the tasks whose files are wanted, or give --all instead.")
    names = list(official.DATASETS) if all_ else tasks or []
    for name in names:
        official.path(name)  # a name that is not known is refused before anything is downloaded
    bar = _Bar()
    written = []
    with bar.progress:
        for name in names:
            written += official.fetch(name, mirror=mirror, tell=bar.tell)
    if json_:
        print(json.dumps({"written": [str(place) for place in written]}))
        return
    for place in written:
        out_console.print(str(place), highlight=False, soft_wrap=True)
    if not written:
        out_console.print("everything is there already")


@app.command()
def path(task: TaskName = None, json_: JsonOption = False) -> None:
    """Print the data folder, or the folder where a task's files belong."""
    from unwalk.tasks import official

    place = str(official.path(task))
    print(json.dumps({"path": place}) if json_ else place)


class _Bar:
    """A bar for each file on the terminal's error stream."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=err_console,
            transient=True,
            disable=not err_console.is_terminal,
        )
        self.lines: dict[str, TaskID] = {}

    def tell(self, name: str, done: int, size: int) -> None:
        if name not in self.lines:
            self.lines[name] = self.progress.add_task(name, total=size)
        self.progress.update(self.lines[name], completed=done)
