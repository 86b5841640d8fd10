"""What the commands share: options, consoles, progress bars, listings."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from unwalk.core.errors import NO_ROOM, InvalidInput, NoRoom, Refused
from unwalk.core.grades import explained

if TYPE_CHECKING:
    from unwalk.runs.compare import SweepOptions
    from unwalk.settings.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])

out_console = Console()
err_console = Console(stderr=True)

File = Annotated[Path | None, typer.Argument(help="Settings as TOML.", metavar="FILE.toml")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting; unwalk settings lists them."),
]
TaskOption = Annotated[str | None, typer.Option(help="The task; unwalk tasks lists them.")]
PresetOption = Annotated[
    str | None, typer.Option(help="practical, paper-matched, paper or certified.")
]
FeaturesOption = Annotated[
    str | None,
    typer.Option(help="Fixed features: gabor, patches, plain, or package.module:extractor."),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, or mps (Apple; untested).")]
PeersOption = Annotated[int | None, typer.Option(help="Number of peers.")]
EngineOption = Annotated[
    str | None, typer.Option(help="inprocess, fleet, ray or auto; short for performance.engine.")
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(help="The Ray cluster to join: auto or HOST:PORT; empty: only this machine."),
]
JobsOption = Annotated[int, typer.Option(help="Processes that work at once.")]
ExportOption = Annotated[
    str,
    typer.Option(
        metavar="csv,json,tex,svg,pdf,png",
        help="Every table and picture in these formats, in the folder export of --out.",
    ),
]
BundleArgument = Annotated[Path, typer.Argument(help="The peer's folder.", metavar="BUNDLE")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True)
class SettingOptions:
    """A file of settings, the settings with an option of their own, and ``--set`` for the rest."""

    file: File = None
    set_: Set = None
    task: TaskOption = None
    preset: PresetOption = None
    seed: Annotated[int | None, typer.Option(help="Public seed.")] = None
    device: DeviceOption = None
    model: Annotated[str | None, typer.Option(help="A named model, or package.module:factory.")] = (
        None
    )

    def changes(self, **more: Any) -> dict[str, Any]:
        """What was given besides the file, as flat settings; ``more`` are further options."""
        own = {name: value for name, value in vars(self).items() if name not in ("file", "set_")}
        return changes_of(self.set_, **own, **more)

    def config(self, fixed: dict[str, Any] | None = None, **more: Any) -> Config:
        """The configuration; ``fixed`` are settings that ``--set`` cannot change."""
        return config_of(self.file, {**self.changes(**more), **(fixed or {})})


@dataclass(frozen=True)
class WalkOptions(SettingOptions):
    """The same, with the features of the records and what carries out the walks."""

    features: FeaturesOption = None
    engine: EngineOption = None


@dataclass(frozen=True)
class MethodsOptions:
    """Which methods are compared, over how many seeds."""

    methods: Annotated[
        str, typer.Option(help="Comma-separated, the first is the main one; or all.")
    ] = "rrdu,finetune,retrain"
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5


@dataclass(frozen=True)
class FolderOptions:
    """Where results go, and what to do with those that are there."""

    out: Annotated[Path | None, typer.Option(help="Folder for all results.")] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the stopped run in the folder --out.")
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing folder of results.")
    ] = False


def _spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command``, in which each parameter that is a dataclass is one option for every field."""
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if inspect.isclass(parameter.annotation) and is_dataclass(parameter.annotation)
    }
    if not groups:
        return command
    members = {
        name: inspect.signature(group, eval_str=True).parameters.values()
        for name, group in groups.items()
    }

    @wraps(command)
    def called(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in members[name]})
        return command(**given)

    options = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        for option in members.get(name, [parameter])
    ]
    called.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _untyped(params: list[Any]) -> list[Any]:
    """Options as help shows them: a flag takes no value, so none is shown."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))


class App(typer.Typer):
    """A group of commands whose help shows what an option takes, and nothing for a flag.

    A parameter of a command may be a dataclass of options, such as :class:`FolderOptions`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, **options)

    def command(self, *args: Any, **options: Any) -> Callable[[Command], Command]:
        """Add a command."""
        add = super().command(*args, cls=_Command, **options)

        def added(command: Command) -> Command:
            add(_spread(command))
            return command

        return added


def changes_of(pairs: list[str] | None, **options: Any) -> dict[str, Any]:
    """Options that were given, then ``--set`` pairs, as flat settings."""
    from unwalk.settings.config import parse_set

    keys = {
        "model": "model.name",
        "engine": "performance.engine",
        "features": "data.extractor",
    }
    given = {keys.get(k, k): v for k, v in options.items() if v is not None}
    return {**given, **parse_set(pairs or [])}


def main_and_others(methods: str) -> dict[str, Any]:
    """The main method and those beside it, as settings."""
    from unwalk.methods import named

    main, *others = named(methods)
    return {"method": main, "compare": others}


def command_line() -> str:
    """What was typed."""
    return shlex.join(["unwalk", *sys.argv[1:]])


def config_of(file: Path | None, changes: dict[str, Any]) -> Config:
    """The configuration of a file and what was changed on the command line."""
    from unwalk.runs.assemble import resolve
    from unwalk.settings.config import read_toml

    if file is None:
        return resolve(changes)
    if not file.exists():
        raise InvalidInput(
            f"FILE.toml is {str(file)!r}, which does not exist; allowed: a file with settings. A "
            "flag such as --resume takes no value."
        )
    return resolve(changes, read_toml(file), file_name=str(file))


def check_export(formats: str, out: Path | None) -> None:
    """Refuse formats that cannot be written, before anything is carried out."""
    if not formats:
        return
    from unwalk.reports.exports import formats_of

    if out is None:
        raise InvalidInput("--export needs --out, the folder that the files are written to.")
    formats_of(formats)


def export_to(out: Path | None, formats: str, result: Mapping[str, Any]) -> None:
    """Write the tables and pictures of a result beside it, and say where they are."""
    if not formats or out is None:
        return
    from unwalk.reports.exports import export, formats_of

    files = export(result, out / "export", formats)
    made = {path.suffix[1:] for path in files}
    none = ", ".join(kind for kind in formats_of(formats) if kind not in made)
    say(f"exported: {len(files)} files in {out / 'export'}" + (none and f"; no picture for {none}"))


def use_cluster(address: str | None, config: Config) -> None:
    """Name the Ray cluster of this process."""
    if address is None:
        return
    if config.performance.engine != "ray":
        raise InvalidInput(
            "--ray-address names a Ray cluster, which needs --engine ray; add it, or leave the "
            "address out."
        )
    from unwalk.engines.ray_cluster import ADDRESS

    os.environ[ADDRESS] = address


def need_peers() -> None:
    """Refuse a command of peers where the packages that they need are not installed."""
    for package in ("cryptography", "grpc", "h11", "starlette"):
        if find_spec(package) is None:
            raise InvalidInput(
                f"peers need the package {package}; install unwalk with its extra 'peers'."
            )


class TimeLeft(TimeRemainingColumn):
    """Time left; of a sweep at the pace of all its cells so far, since each may take minutes."""

    def render(self, task: Task) -> Text:
        """Hours, minutes and seconds, or dashes as long as nothing is known."""
        if task.fields.get("began") is None:
            return super().render(task)
        began, before, at = task.fields["began"], task.fields["before"], task.fields["at"]
        ended = task.completed - before
        if not ended or task.total is None:
            return Text("-:--:--", style="progress.remaining")
        pace = (at - began) / ended
        left = max(0, round((task.total - task.completed) * pace - (task.get_time() - at)))
        return Text(str(timedelta(seconds=left)), style="progress.remaining")


class Bars:
    """Progress on the terminal's error stream: a line for each of the last few walks.

    A sweep has one above them.
    """

    SHOWN = 5

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeLeft(),
            console=err_console,
            transient=True,
            disable=not err_console.is_terminal,
        )
        self.lines: dict[str, TaskID] = {}
        self.loading = self.progress.add_task("loading", total=None, count="")
        self.sweep = self.loading
        self.counted: tuple[int, int] | None = None

    def tell(self, walk: str, done: int, hops: int) -> None:
        """Show how far a walk got."""
        if walk not in self.lines:
            self.progress.update(self.loading, visible=False)
            self.lines[walk] = self.progress.add_task(walk, total=hops, count="")
            for old in list(self.lines.values())[: -self.SHOWN]:
                self.progress.update(old, visible=False)
        self.progress.update(self.lines[walk], completed=done, count=f"{done}/{hops} hops")

    def count(self, done: int, cells: int) -> None:
        """Show how many cells of a sweep have ended, and when all will have."""
        now = self.progress.get_time()
        if self.counted is None or cells != self.counted[1] or done < self.counted[0]:
            self.progress.update(self.sweep, visible=False)
            self.sweep = self.progress.add_task(
                "all", total=cells, completed=done, count="", began=now, before=done, at=now
            )
        self.counted = done, cells
        shown = f"{done} of {cells} done"
        self.progress.update(self.sweep, completed=done, count=shown, at=now)

    def say(self, text: str) -> None:
        """One line, where there are no bars."""
        if not err_console.is_terminal:
            say(text)


@contextmanager
def loading() -> Generator[None]:
    """Delay an interrupt until the end: an interrupted import leaves broken modules."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def cell_options(folder: FolderOptions, jobs: int, cluster: str | None, bars: Bars) -> SweepOptions:
    """How a comparison, a sweep or an audit is carried out; ``bars`` show how far it is."""
    return {
        "out": folder.out,
        "resume": folder.resume,
        "overwrite": folder.overwrite,
        "command": command_line(),
        "jobs": jobs,
        "cluster": cluster,
        "tell": bars.tell,
        "count": bars.count,
        "say": bars.say,
    }


@contextmanager
def progress(out: Path | None) -> Generator[Bars]:
    """Bars while something runs; when it is stopped, one line that says how to go on."""
    bars = Bars()
    try:
        with bars.progress:
            yield bars
    except KeyboardInterrupt:
        say(f"unwalk: stopped; {_next(out) or 'nothing was kept'}")
        raise typer.Exit(130) from None
    except (OSError, NoRoom) as error:
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            raise
        after = _next(out) or "give the same command again"
        say(f"unwalk: {NoRoom()}; make some, then {after}")
        raise typer.Exit(2) from None


def _next(out: Path | None) -> str:
    """How to go on with what was kept for ``out``; empty if nothing was."""
    from unwalk.runs.store import partial_of

    if out is None or not partial_of(out).exists():
        return ""
    words = [a for a in sys.argv[1:] if a != "--resume"]
    return f"go on with: {shlex.join(['unwalk', *words, '--resume'])}"


def say(text: str) -> None:
    """One line on the error stream."""
    err_console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_refused(refusal: Refused) -> None:
    """A refusal on the error stream: its sentence, what that means, and what to do instead."""
    say(f"unwalk: {refusal}")
    if refusal.code:
        known = explained(refusal.code)
        say(f"what it means ({refusal.code}): {known.plain}")
        say(f"what to do instead: {refusal.instead or known.instead}")


def print_whole(table: Table) -> None:
    """Print a table of numbers; in a narrow terminal lines wrap and none is cut."""
    room = out_console.options.update(max_width=1000)
    needed = out_console.measure(table, options=room).maximum
    Console(width=max(needed, out_console.width)).print(table)


def show(text: str = "", *, soft_wrap: bool = False) -> None:
    """One line on the output stream."""
    out_console.print(text, markup=False, highlight=False, soft_wrap=soft_wrap)


def listing(rows: list[dict[str, Any]], json_: bool) -> None:
    """Rows as a table, or as JSON."""
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
