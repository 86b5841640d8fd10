"""``unwalk peer data``: where a peer's records lie, and taking them in."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unwalk.cli.terminal import JsonOption, need_peers, show
from unwalk.core.errors import InvalidInput


def data(
    bundle: Annotated[Path, typer.Argument(help="The peer's folder.", metavar="BUNDLE")],
    from_: Annotated[
        Path | None, typer.Option("--from", help="File or folder of the records.", metavar="PATH")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the record id.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Share of records that is never trained on.")
    ] = None,
    erase_source: Annotated[
        bool | None,
        typer.Option(
            "--erase-source/--keep-source", help="Erase forgotten records from PATH as well."
        ),
    ] = None,
    allow_again: Annotated[
        Path | None,
        typer.Option(help="File of ids, one a line, that may come back after being forgotten."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Say where a peer's records lie and take them in; without options, look again and count."""
    need_peers()
    from unwalk.peers.forgetting.requests import read_ids
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.records.own_task import open_records
    from unwalk.peers.records.sources import SETTINGS, DataSettings
    from unwalk.runs.assemble import resolve

    checked = Bundle.read(bundle)
    settings = {**checked.network.settings, "peers": len(checked.network.peers)}
    config = resolve(settings, where="the network file")
    given = {
        "id_column": id_column,
        "label_column": label_column,
        "hold_out": hold_out,
        "erase_source": erase_source,
    }
    said = {name: value for name, value in given.items() if value is not None}
    before = DataSettings.read(bundle) if (bundle / SETTINGS).exists() else None
    if from_ is None and before is None:
        raise InvalidInput(f"{bundle} has no records yet; say where they lie with --from PATH.")
    ids = read_ids(allow_again) if allow_again is not None else ()
    records = open_records(bundle, config)
    if records is None:
        raise InvalidInput(
            f"the network's task is {config.task!r}, which brings its own data; a network whose "
            "peers bring theirs is made with task 'records'."
        )
    try:
        changes = records.take_over(DataSettings.over(before, from_, said), ids)
        counts = records.counts()
    finally:
        records.close()
    if json_:
        print(json.dumps({**asdict(counts), "changes": asdict(changes)}))
        return
    show(
        f"{counts.train} records to train on, {counts.hold_out} held out, {counts.excluded} about "
        f"to be forgotten, {counts.forgotten} forgotten"
    )
    show(f"{changes.added} were added, {changes.changed} changed, {changes.removed} removed")
