"""``unwalk capacity``: how many records can be forgotten at once, measured beside the formulas."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unwalk.cli.running import axes_of
from unwalk.cli.terminal import (
    DeviceOption,
    JobsOption,
    JsonOption,
    RayAddressOption,
    Set,
    changes_of,
    command_line,
    config_of,
    loading,
    print_whole,
    progress,
    show,
)
from unwalk.core.errors import InvalidInput

if TYPE_CHECKING:
    from unwalk.settings.config import Config, Value


def capacity(
    task: str = typer.Option("digits-flat", help="A task with inputs of length 1 at most."),
    set_: Set = None,
    seed: int | None = typer.Option(None, help="Public seed of the first run."),
    device: DeviceOption = None,
    methods: str = typer.Option("rrdu,ddp,seal,release,dpsgd", help="Comma-separated."),
    records: str = typer.Option("1,2,5,10,20,50,100", help="Numbers of records to forget."),
    gamma: float = typer.Option(0.1, help="Most excess test loss that is tolerated."),
    grid: list[str] | None = typer.Option(
        None, metavar="KEY=A,B,...", help="Values of a setting, the others unchanged; repeatable."
    ),
    seeds: int = typer.Option(3, help="Number of seeds."),
    out: Path | None = typer.Option(None, help="Folder for all results; same command goes on."),
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    *,
    json_: JsonOption = False,
) -> None:
    """Measure how many records can be forgotten at once, and draw the formulas beside it."""
    with progress(None) as bars:
        with loading():
            from unwalk.reports.capacity_page import capacity_table, failed_lines
            from unwalk.runs.capacity import capacity as measure

        changes = changes_of(set_, task=task, seed=seed, device=device)

        def make(usual: Mapping[str, Value], fixed: Mapping[str, Value]) -> Config:
            return config_of(None, {**usual, **changes, **fixed})

        result = measure(
            make,
            axes_of(grid or []),
            _counts(records),
            gamma,
            seeds,
            [name.strip() for name in methods.split(",") if name.strip()],
            out=out,
            command=command_line(),
            jobs=jobs,
            cluster=ray_address,
            tell=bars.tell,
            count=bars.count,
            say=bars.say,
        )
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    print_whole(capacity_table(result))
    for line in failed_lines(result):
        show(line)
    kept = "add --out DIR to keep the numbers, the picture and a page"
    show(kept if out is None else f"page: {out / 'capacity.html'}", soft_wrap=True)


def _counts(text: str) -> list[int]:
    """Numbers of records.

    >>> _counts("1, 20")
    [1, 20]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--records is {text!r}; allowed: whole numbers, as in 1,10,100."
        ) from None
