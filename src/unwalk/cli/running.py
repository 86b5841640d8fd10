"""``unwalk run`` and ``unwalk compare``: one run, or the same run over several seeds."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unwalk.cli.planning import show_plan
from unwalk.cli.terminal import (
    ExportOption,
    FolderOptions,
    JobsOption,
    JsonOption,
    MethodsOptions,
    PeersOption,
    RayAddressOption,
    SettingOptions,
    WalkOptions,
    cell_options,
    check_export,
    command_line,
    export_to,
    loading,
    main_and_others,
    print_whole,
    progress,
    show,
    use_cluster,
)
from unwalk.core.errors import InvalidInput

if TYPE_CHECKING:
    from unwalk.runs.run import Logger
    from unwalk.settings.config import Config

HOW_TO_FORGET = (
    "To forget: --set forget.ids=FILE with one record id per line, or forget.kind=records and "
    "forget.size=5 for some drawn at random; --set forget.peer=2 says at which peer."
)
MEANINGS = {
    "clean": "clean: accuracy on the test set",
    "forget": "forget: accuracy on the records that had to be forgotten",
    "asr": "ASR: attack success, the share of triggered pictures answered with the target class",
}


def run(
    given: WalkOptions,
    method: str | None = typer.Option(
        None, help="The method; unwalk methods lists them; or package.module:method."
    ),
    peers: PeersOption = None,
    ray_address: RayAddressOption = None,
    grade: str | None = typer.Option(
        None, help="exact, certified or nominal: take the cheapest method that reaches it."
    ),
    *,
    folder: FolderOptions,
    export: ExportOption = "",
    log: list[str] | None = typer.Option(
        None, metavar="KIND:WHERE", help="tensorboard:DIR, mlflow:URI or wandb:PROJECT."
    ),
    json_: JsonOption = False,
) -> None:
    """Train by token walk, forget, and measure; with --out, leave a report behind.

    With --grade the method is the cheapest that reaches it (unwalk plan shows all); --method then
    says how to train, where a method has its own way.
    """
    check_export(export, folder.out)
    with progress(folder.out) as bars:
        with loading():
            from unwalk.runs.run import run as run_config

        config = given.config(method=method, peers=peers)
        if grade is not None and method is not None:
            _check_trains(config)
        use_cluster(ray_address, config)
        result = run_config(
            config,
            **vars(folder),
            command=command_line(),
            tell=bars.tell,
            callbacks=_loggers(log or []),
            grade=grade,
        ).result
    export_to(folder.out, export, result)
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    if "plan" in result:
        show_plan(result["plan"])
        show()
    _show_start(result)
    _show_end(result, folder.out)


def _check_trains(config: Config) -> None:
    """With a grade, a method has to say how to train: the one that forgets is chosen."""
    from unwalk.methods import METHODS
    from unwalk.methods.record import Decided

    record = METHODS[config.method]
    if record.training is None or not record.training(config, Decided(peers=config.peers or 2)):
        raise InvalidInput(
            f"--grade chooses the method that forgets, and --method is {config.method!r}, which "
            "trains like most; leave out --method, or have it run beside: --set "
            f"compare={config.method}."
        )


def _loggers(texts: list[str]) -> list[Logger]:
    """The trackers that ``--log`` names."""
    if not texts:
        return []
    from unwalk.runs.loggers import logger_of

    return [logger_of(text) for text in texts]


def _show_start(result: dict[str, Any]) -> None:
    """One line on the model before anything was forgotten."""
    from unwalk.reports.numbers import percent

    hops = result["phases"]["train"]
    readings = (r for m in result["methods"] for r in m["series"])
    start = next((r for r in readings if r["phase"] == "train" and r["hop"] == hops), None)
    if start is not None:
        ends = [f"{MEANINGS[k].partition(':')[0]} {percent(start[k])}" for k in _shown(result)]
        show(f"before unlearning, after {hops} hops: {', '.join(ends)}\n")


def _show_end(result: dict[str, Any], out: Path | None) -> None:
    """The table, what is claimed, what is guaranteed to whom, and last where the rest is."""
    from unwalk.certificates.words import claim_lines, verdict_line
    from unwalk.core.grades import badge_of
    from unwalk.reports.result import SCORES
    from unwalk.reports.tables import failed_lines, summary_table, warning_lines

    print_whole(summary_table(result))
    for line in (*warning_lines(result), *failed_lines(result)):
        show(line)
    score = SCORES[result["task"].get("predicts", "class")]
    for key in _shown(result):
        show(MEANINGS[key].replace("accuracy", score))
    show()
    document = result["certificate"]["document"]
    claims, verdict = claim_lines(document), verdict_line(document)
    if badge_of(document) == "refused":  # the last claim is what the verdict explains
        verdict += f" For specialists {claims.pop().removeprefix('refused ').rstrip('.')}."
    for line in claims:
        show(f"guarantee {line}")
    if told := result["certificate"]["worth"]:
        show(told)
    if claims or told:
        show()
    which = ""
    if "seeds" in result:
        main = next(method for method in result["methods"] if method["main"])
        which = f"{main['label']} with seed {result['seed']}: "
    show(f"{which}{verdict}")
    if badge_of(document) == "nothing":
        show(HOW_TO_FORGET)
    show()
    kept = "add --out DIR to keep the model, the transcript and a report"
    show(kept if out is None else f"report: {out / 'report.html'}", soft_wrap=True)


def _shown(result: dict[str, Any]) -> list[str]:
    """The measures that the table shows."""
    final = result["methods"][0]["final"]
    return [
        k for k in ("clean", "forget" if final["asr"] is None else "asr") if final[k] is not None
    ]


def compare(
    given: WalkOptions,
    comparison: MethodsOptions,
    peers: PeersOption = None,
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    *,
    folder: FolderOptions,
    export: ExportOption = "",
    json_: JsonOption = False,
) -> None:
    """Run several methods over several seeds and print means and deviations.

    A method that cannot be run is a row with its reason; the others go on.
    """
    check_export(export, folder.out)
    with progress(folder.out) as bars:
        with loading():
            from unwalk.runs.compare import compare as compare_config

        config = given.config(main_and_others(comparison.methods), peers=peers)
        if config.performance.engine == "ray":
            use_cluster(ray_address, config)
            ray_address = None
        options = cell_options(folder, jobs, ray_address, bars)
        result = compare_config(config, comparison.seeds, **options).result
    export_to(folder.out, export, result)
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    _show_end(result, folder.out)


def axes_of(grid: list[str]) -> dict[str, list[str]]:
    """The settings that a grid varies, with their values."""
    axes: dict[str, list[str]] = {}
    for text in grid:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise InvalidInput(
                f"--grid is {text!r}; allowed: KEY=A,B,..., as in unlearn.p=0.1,0.2."
            )
        if key in axes:
            both = ",".join([*axes[key], values])
            raise InvalidInput(
                f"--grid names {key} twice; give all of its values at once: {key}={both}."
            )
        axes[key] = values.split(",")
    return axes


def sweep(
    given: SettingOptions,
    comparison: MethodsOptions,
    grid: list[str] | None = typer.Option(
        None, metavar="KEY=A,B,...", help="The values of a setting; as often as needed."
    ),
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    *,
    folder: FolderOptions,
    export: ExportOption = "",
    json_: JsonOption = False,
) -> None:
    """Compare at every point of a grid of settings; what points share is carried out once.

    A point or a method that fails is a row with its reason.
    """
    check_export(export, folder.out)
    with progress(folder.out) as bars:
        with loading():
            from unwalk.reports.sweep_page import failed_lines, sweep_table
            from unwalk.runs.grid import points_of, sweep_grid

        axes = axes_of(grid or [])
        base = main_and_others(comparison.methods)
        result = sweep_grid(
            points_of(axes),
            lambda point: given.config({**base, **point}),
            comparison.seeds,
            **cell_options(folder, jobs, ray_address, bars),
        )
    export_to(folder.out, export, result)
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    print_whole(sweep_table(result))
    for line in failed_lines(result):
        show(line)
    kept = "add --out DIR to keep the table as JSON, CSV and a page"
    page = None if folder.out is None else folder.out / "sweep.html"
    show(kept if page is None else f"page: {page}", soft_wrap=True)
