"""``unwalk methods``, ``tasks`` and ``settings``: list what can be chosen."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import typer

from unwalk.cli.terminal import JsonOption, PresetOption, TaskOption, changes_of, listing
from unwalk.core.errors import InvalidInput


def methods(json_: JsonOption = False) -> None:
    """List the unlearning methods."""
    from unwalk.methods import METHODS

    rows = [
        {"method": name, "guarantee": record.grade, "description": record.description}
        for name, record in METHODS.items()
    ]
    listing(rows, json_)


def tasks(json_: JsonOption = False) -> None:
    """List the tasks."""
    from unwalk.tasks import TASKS

    rows = [{"task": name, "description": entry.about} for name, entry in TASKS.items()]
    own = "your own: a function without arguments that returns inputs and labels"
    listing([*rows, {"task": "package.module:function", "description": own}], json_)


def settings(
    part: str = typer.Argument("", help="Only settings with this in their name, as in data."),
    task: TaskOption = None,
    preset: PresetOption = None,
    json_: JsonOption = False,
) -> None:
    """List every setting, with its default."""
    from unwalk.runs.assemble import resolve
    from unwalk.settings.config import table

    config = resolve(changes_of(None, task=task, preset=preset))
    rows = [
        {"setting": key, "default": row.value, "meaning": row.help}
        for key, row in table(config).items()
        if part in key
    ]
    if not rows:
        raise InvalidInput(f"no setting has {part!r} in its name; unwalk settings lists all.")
    listing(rows, json_)
