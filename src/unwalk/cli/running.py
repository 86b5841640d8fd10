"""``unwalk run`` and ``unwalk compare``: one run, or the same run over several seeds."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unwalk.cli.terminal import (
    DeviceOption,
    EngineOption,
    ExportOption,
    FeaturesOption,
    File,
    JobsOption,
    JsonOption,
    MethodOption,
    MethodsOption,
    ModelOption,
    OutOption,
    OverwriteOption,
    PeersOption,
    PresetOption,
    RayAddressOption,
    ResumeOption,
    SeedOption,
    SeedsOption,
    Set,
    TaskOption,
    changes_of,
    check_export,
    command_line,
    config_of,
    export_to,
    loading,
    print_whole,
    progress,
    show,
    use_cluster,
)

if TYPE_CHECKING:
    from unwalk.runs.run import Logger

MEANINGS = {
    "clean": "clean: accuracy on the test set",
    "forget": "forget: accuracy on the records that had to be forgotten",
    "asr": "ASR: attack success, the share of triggered pictures answered with the target class",
}


def run(
    file: File = None,
    set_: Set = None,
    task: TaskOption = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    peers: PeersOption = None,
    device: DeviceOption = None,
    model: ModelOption = None,
    features: FeaturesOption = None,
    engine: EngineOption = None,
    ray_address: RayAddressOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    export: ExportOption = "",
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND:WHERE", help="tensorboard:DIR, mlflow:URI or wandb:PROJECT."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Train by token walk, forget, and measure; with --out, leave a report behind."""
    check_export(export, out)
    with progress(out) as bars:
        with loading():
            from unwalk.runs.run import run as run_config

        changes = changes_of(
            set_,
            task=task,
            method=method,
            preset=preset,
            seed=seed,
            peers=peers,
            device=device,
            model=model,
            features=features,
            engine=engine,
        )
        config = config_of(file, changes)
        use_cluster(ray_address, config)
        result = run_config(
            config,
            out=out,
            resume=resume,
            overwrite=overwrite,
            command=command_line(),
            tell=bars.tell,
            callbacks=_loggers(log or []),
        ).result
    export_to(out, export, result)
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    _show_start(result)
    _show_end(result, out)


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
    from unwalk.reports.tables import failed_lines, summary_table, warning_lines

    print_whole(summary_table(result))
    for line in (*warning_lines(result), *failed_lines(result)):
        show(line)
    for key in _shown(result):
        show(MEANINGS[key])
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
    file: File = None,
    set_: Set = None,
    methods: MethodsOption = "rrdu,finetune,retrain",
    seeds: SeedsOption = 5,
    task: TaskOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    peers: PeersOption = None,
    device: DeviceOption = None,
    model: ModelOption = None,
    features: FeaturesOption = None,
    jobs: JobsOption = 1,
    engine: EngineOption = None,
    ray_address: RayAddressOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    export: ExportOption = "",
    json_: JsonOption = False,
) -> None:
    """Run several methods over several seeds and print means and deviations.

    A method that cannot be run is a row with its reason; the others go on.
    """
    check_export(export, out)
    with progress(out) as bars:
        with loading():
            from unwalk.methods import named
            from unwalk.runs.compare import compare as compare_config

        main, *others = named(methods)
        changes = changes_of(
            set_,
            task=task,
            preset=preset,
            seed=seed,
            peers=peers,
            device=device,
            model=model,
            features=features,
            engine=engine,
        )
        config = config_of(file, {**changes, "method": main, "compare": others})
        by_engine = config.performance.engine == "ray"
        if by_engine:
            use_cluster(ray_address, config)
        result = compare_config(
            config,
            seeds,
            out=out,
            resume=resume,
            overwrite=overwrite,
            command=command_line(),
            jobs=jobs,
            cluster=None if by_engine else ray_address,
            tell=bars.tell,
            count=bars.count,
            say=bars.say,
        ).result
    export_to(out, export, result)
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    _show_end(result, out)


def sweep(
    file: File = None,
    set_: Set = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,...", help="The values of a setting; as often as needed."),
    ] = None,
    methods: MethodsOption = "rrdu,finetune,retrain",
    seeds: SeedsOption = 5,
    task: TaskOption = None,
    preset: PresetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    model: ModelOption = None,
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    export: ExportOption = "",
    json_: JsonOption = False,
) -> None:
    """Compare at every point of a grid of settings; what points share is carried out once.

    A point or a method that fails is a row with its reason.
    """
    check_export(export, out)
    with progress(out) as bars:
        with loading():
            from unwalk.methods import named
            from unwalk.reports.sweep_page import failed_lines, sweep_table
            from unwalk.runs.grid import points_of, sweep_grid

        main, *others = named(methods)
        changes = changes_of(set_, task=task, preset=preset, seed=seed, device=device, model=model)
        base = {**changes, "method": main, "compare": others}
        axes = {key: values.split(",") for key, values in changes_of(grid).items()}
        result = sweep_grid(
            points_of(axes),
            lambda point: config_of(file, {**base, **point}),
            seeds,
            out=out,
            resume=resume,
            overwrite=overwrite,
            command=command_line(),
            jobs=jobs,
            cluster=ray_address,
            tell=bars.tell,
            count=bars.count,
            say=bars.say,
        )
    export_to(out, export, result)
    if json_:
        print(json.dumps(result, allow_nan=False))
        return
    print_whole(sweep_table(result))
    for line in failed_lines(result):
        show(line)
    kept = "add --out DIR to keep the table as JSON, CSV and a page"
    show(kept if out is None else f"page: {out / 'sweep.html'}", soft_wrap=True)
