"""``unwalk methods``, ``tasks`` and ``settings``: what there is to choose from."""

from __future__ import annotations

from unwalk.cli.terminal import JsonOption, PresetOption, TaskOption, changes_of, listing


def methods(json_: JsonOption = False) -> None:
    """List the unlearning methods."""
    from unwalk.runs.catalogue import METHODS

    rows = [
        {"method": name, "guarantee": entry.grade, "description": entry.description}
        for name, entry in METHODS.items()
    ]
    listing(rows, json_)


def tasks(json_: JsonOption = False) -> None:
    """List the tasks."""
    from unwalk.tasks import TASKS

    rows = [{"task": name, "description": entry.about} for name, entry in TASKS.items()]
    own = "your own: a function without arguments that returns inputs and labels"
    listing([*rows, {"task": "package.module:function", "description": own}], json_)


def settings(
    task: TaskOption = None, preset: PresetOption = None, json_: JsonOption = False
) -> None:
    """List every setting, with its value where nothing else is said."""
    from unwalk.runs.assemble import resolve
    from unwalk.runs.config import describe, flatten

    defaults = flatten(resolve(changes_of(None, task=task, preset=preset)))
    rows = [
        {"setting": k, "default": defaults[k], "meaning": meaning} for k, _, meaning in describe()
    ]
    listing(rows, json_)
