"""The recipe of a named task: how it is loaded, and its usual model and deletion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import near
from unwalk.tasks.forgetting import Deletion, Trigger
from unwalk.tasks.partitions import Dealing
from unwalk.tasks.sources import Holdings, Source

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """The arguments of a loader."""

    peers: int
    partition: Dealing
    seeds: PublicSeeds
    options: Options


@dataclass(frozen=True)
class Recipe:
    """A named task.

    ``about`` is its one line in ``unwalk tasks``.  ``options`` holds the task's own settings with
    their defaults; the rest are defaults.
    """

    name: str
    about: str
    load: Callable[[Request], tuple[Source, Holdings]]
    model: str
    forget: Deletion
    peers: int = 10
    partition: str = "iid"
    trigger: Trigger = field(default_factory=Trigger)
    options: Options = field(default_factory=dict)

    def complete(self, options: Options) -> Options:
        """The task's options with ``options`` put in; unknown ones are refused."""
        for key in options:
            if key not in self.options:
                known = ", ".join(self.options) or "none"
                raise InvalidInput(
                    f"task {self.name!r} has no option {key!r}{near(key, self.options)}; "
                    f"allowed: {known}."
                )
        return {**self.options, **options}
