"""``unwalk evaluate``: every measure of forgetting for a finished run."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from pathlib import Path

import typer

from unwalk.cli.terminal import (
    JobsOption,
    JsonOption,
    RayAddressOption,
    command_line,
    loading,
    print_whole,
    progress,
    show,
)


def evaluate(
    run_dir: Path = typer.Argument(help="The folder of a finished run or comparison."),
    measures: str = typer.Option(
        "", help="Comma-separated; all of them if left out. docs/measures.md has them."
    ),
    members: int = typer.Option(16, help="Trainings per method; U-LiRA wants 64 or more."),
    out: Path | None = typer.Option(
        None, help="Folder for the results; RUN_DIR/evaluation if left out."
    ),
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    minutes: float | None = typer.Option(
        None, help="Begin no walk after this time; the same command goes on with the others."
    ),
    json_: JsonOption = False,
) -> None:
    """Train, forget and retrain with other seeds, and measure what was forgotten."""
    with progress(None) as bars:
        with loading():
            from unwalk.runs.evaluate import evaluate as evaluate_run

        result = evaluate_run(
            run_dir,
            measures=[name.strip() for name in measures.split(",") if name.strip()],
            members=members,
            out=out,
            jobs=jobs,
            cluster=ray_address,
            minutes=minutes,
            command=command_line(),
            count=bars.count,
            say=bars.say,
        )
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    from unwalk.reports.evaluation_page import evaluation_table, lines_below

    print_whole(evaluation_table(result))
    for line in lines_below(result):
        show(line)
    show()
    page = (run_dir / "evaluation" if out is None else out) / "evaluate.html"
    show(f"page: {page}; numbers: evaluate.json and evaluate.csv beside it", soft_wrap=True)
