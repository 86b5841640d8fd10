"""``unwalk audit``: play the unlearning game and set what is shown beside what is claimed."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unwalk.cli.terminal import (
    ExportOption,
    FolderOptions,
    JobsOption,
    JsonOption,
    RayAddressOption,
    WalkOptions,
    cell_options,
    check_export,
    export_to,
    loading,
    main_and_others,
    print_whole,
    progress,
    show,
)

if TYPE_CHECKING:
    from unwalk.settings.config import Config


def audit(
    given: WalkOptions,
    methods: str = typer.Option("rrdu", help="Comma-separated, or all."),
    pairs: int = typer.Option(100, help="Runs of each of the two worlds."),
    observer: list[str] | None = typer.Option(
        None, help="released, peer:K, coalition:K,L or coalition:others; may be repeated."
    ),
    coins: str = typer.Option(
        "fresh", help="fresh per run, or fixed: the attacker knows all but the noise."
    ),
    seeds: str = typer.Option(
        "paired", help="paired: runs of one number share a seed; or independent."
    ),
    canary: str | None = typer.Option(
        None,
        help="Records to plant: none, mislabelled, blank or gradient; left out: none, or with "
        "--one-run mislabelled.",
    ),
    one_run: bool = typer.Option(
        False, help="One run of each method, each forgotten record a canary."
    ),
    jobs: JobsOption = 1,
    ray_address: RayAddressOption = None,
    *,
    folder: FolderOptions,
    export: ExportOption = "",
    json_: JsonOption = False,
) -> None:
    """Play the unlearning game many times: how much epsilon an attacker shows, beside the claims.

    Exit code 1: a claim that is proved was refuted.
    """
    check_export(export, folder.out)
    with progress(folder.out) as bars:
        with loading():
            from unwalk.audits.audit import audit as audit_game
            from unwalk.audits.game import Game

        config = given.config(main_and_others(methods))
        if one_run:
            _one_run(config, canary or "mislabelled", folder.out, json_)
            return
        game = Game(config, tuple(observer or ["released"]), coins, seeds, canary or "none")
        document = audit_game(game, pairs, **cell_options(folder, jobs, ray_address, bars))
    export_to(folder.out, export, document)
    if json_:
        print(json.dumps(document, allow_nan=False))
    else:
        _show(document)
        if folder.out is not None:
            show(f"report: {folder.out / 'report.html'}", soft_wrap=True)
    if document["refuted"]:
        raise typer.Exit(1)


def _one_run(config: Config, canary: str, out: Path | None, json_: bool) -> None:
    """One run of each method, and what the guesses about its canaries show."""
    from unwalk.audits.one_run import one_run
    from unwalk.core.errors import InvalidInput, UnwalkError
    from unwalk.reports.audit_page import one_run_table
    from unwalk.runs.run import methods_of

    if out is not None:
        raise InvalidInput("--out is for audits of many runs; allowed with --one-run: --json.")
    ended: list[dict[str, Any]] = []
    failed: dict[str, UnwalkError] = {}
    for name in methods_of(config):
        try:
            ended.append(one_run(replace(config, method=name, compare=[]), canary).to_json())
        except UnwalkError as error:
            failed[name] = error
    if not ended:
        raise next(iter(failed.values()))
    if json_:
        reasons = {name: str(refusal) for name, refusal in failed.items()}
        print(json.dumps({"rows": ended, "failed": reasons}, allow_nan=False))
        return
    print_whole(one_run_table(ended))
    for name, refusal in failed.items():
        show(f"{name} was not played: {refusal}")


def _show(document: dict[str, Any]) -> None:
    from unwalk.reports.audit_page import audit_table, verdict_lines

    print_whole(audit_table(document))
    for one in document["failed"]:
        show(f"{one['label']} was not played: {one['reason']}")
    show()
    for line in verdict_lines(document):
        show(line)
