"""``unwalk reproduce``: reruns the paper's figure and tables and compares the numbers."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from pathlib import Path

import typer

from unwalk.cli.terminal import (
    DeviceOption,
    JobsOption,
    JsonOption,
    RayAddressOption,
    Set,
    changes_of,
    command_line,
    loading,
    print_whole,
    progress,
    show,
)


def reproduce(
    which: str = typer.Argument(
        "all",
        help="figure1, table-p, table-rho, table-l, table-epsilon, table-delta or all of them; "
        "by name only: tuning (settings that were tried), precision (bfloat16 beside float32).",
    ),
    task: str | None = typer.Option(None, help="mnist or cifar10; empty: both."),
    preset: str = typer.Option("paper-matched", help="The reading of the paper."),
    seeds: int | None = typer.Option(None, help="Seeds per cell; empty: as many as the paper has."),
    quick: bool = typer.Option(
        False, "--quick", help="digits, one seed, short walks: shows that it runs."
    ),
    device: DeviceOption = None,
    set_: Set = None,
    out: Path = typer.Option(Path("results"), help="Folder for results and finished parts."),
    collect: bool = typer.Option(
        False, "--collect", help="Run nothing: make the page from finished parts."
    ),
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    json_: JsonOption = False,
) -> None:
    """Rebuild the paper's experiments; finished parts in --out are not run again."""
    with progress(None) as bars:
        with loading():
            from unwalk.experiments.reproduce import failures, summary
            from unwalk.experiments.reproduce import reproduce as rebuild

        written = rebuild(
            which,
            out,
            task=task,
            preset=preset,
            seeds=seeds,
            quick=quick,
            settings=changes_of(set_, device=device),
            command=command_line(),
            tell=bars.tell,
            collect=collect,
            jobs=jobs,
            cluster=ray_address,
            count=bars.count,
        )
        failed = failures(out)
    if json_:
        print(json.dumps({"written": [str(path) for path in written], "failed": failed}))
        return
    print_whole(summary(out))
    for name, reason in failed.items():
        show(f"{name} failed: {reason}")
    for path in (p for p in written if p.stem.startswith(("tuning-", "precision-"))):
        show(f"numbers: {path}", soft_wrap=True)
    show(f"page: {out / 'reproduction.html'}", soft_wrap=True)
