"""The named tasks, and the one function that builds any of them.

What a recipe says of its task needs no torch.
"""

# Imports in functions: a listing of the tasks loads no records, and does not wait for torch.

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_choice, check_count, near
from unwalk.tasks.forgetting import Deletion, Trigger

if TYPE_CHECKING:
    import torch

    from unwalk.core.plan import Loss
    from unwalk.tasks.features import Extraction
    from unwalk.tasks.models import Model
    from unwalk.tasks.sources import Dealing, Holdings, Source
    from unwalk.tasks.task import Options, Request, ShardedTask

FILE, RECORDS = "file", "records"


@dataclass(frozen=True)
class Recipe:
    """A named task.

    ``about`` is its one line in ``unwalk tasks``.  ``options`` holds the task's own settings with
    their defaults; the rest are defaults.  ``features`` holds the settings of those that it has
    where none are asked for.  ``loader`` is ``module.function`` in this room: the module is loaded
    when records are needed.
    """

    name: str
    about: str
    loader: str
    model: str
    forget: Deletion
    peers: int = 10
    partition: str = "iid"
    trigger: Trigger = field(default_factory=Trigger)
    options: Options = field(default_factory=dict)
    features: Options = field(default_factory=dict)

    def load(self, request: Request) -> tuple[Source, Holdings]:
        """The records, and who holds which."""
        module, _, function = self.loader.partition(".")
        load = getattr(importlib.import_module(f"unwalk.tasks.{module}"), function)
        loaded: tuple[Source, Holdings] = load(request)
        return loaded

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


TASKS: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits",
            about="1,797 handwritten digits, 8 x 8 pixels, 10 classes; ships inside scikit-learn",
            loader="digits.load",
            model="small-cnn",
            forget=Deletion("backdoor", size=60),
        ),
        Recipe(
            name="digits-flat",
            about="digits as vectors of length 1 at most, for a linear head that can be certified",
            loader="digits.load_flat",
            model="linear",
            forget=Deletion("records", size=1),
        ),
        Recipe(
            name="blobs",
            about="synthetic Gaussian classes, made per peer on demand; any number of peers",
            loader="blobs.load",
            model="logistic",
            forget=Deletion("records", size=20),
            options={"records": 200, "features": 16, "classes": 4, "spread": 1.0},
        ),
        Recipe(
            name="mnist",
            about="70,000 handwritten digits, 28 x 28 pixels, 10 classes; unwalk data fetch mnist",
            loader="mnist.load",
            model="flnet",
            forget=Deletion("backdoor", size=1000),
            trigger=Trigger(size=4),
        ),
        Recipe(
            name="mnist-gabor",
            about="mnist as fixed Gabor features of length 1 at most, for a linear head",
            loader="mnist.load",
            model="linear",
            forget=Deletion("records", size=100),
            features={"extractor": "gabor"},
        ),
        Recipe(
            name="cifar10",
            about="60,000 colour pictures, 32 x 32 pixels, 10 classes; unwalk data fetch cifar10",
            loader="cifar10.load",
            model="resnet18",
            forget=Deletion("backdoor", size=1000),
            trigger=Trigger(size=4),
        ),
        Recipe(
            name="cifar10-klom",
            about="cifar10 and the forget sets of data-unlearning-bench, at peer 0; see docs/tasks",
            loader="klom.load",
            model="resnet9",
            forget=Deletion("listed"),
            peers=20,
            options={"forget_set": 2},
        ),
        Recipe(
            name="heart",
            about=(
                "920 heart patients of four hospitals, four natural peers; unwalk data fetch heart"
            ),
            loader="heart.load",
            model="logistic",
            forget=Deletion("records", size=20),
            peers=4,
            partition="natural",
            options={"holdout": 0.2},
        ),
        Recipe(
            name="a9a",
            about="48,842 census records, 123 binary features, 2 classes; unwalk data fetch a9a",
            loader="a9a.load",
            model="logistic",
            forget=Deletion("records", size=100),
        ),
        Recipe(
            name=FILE,
            about="your own .csv, .tsv, .parquet or .npz file, or a folder of pictures: data.path",
            loader="files.load",
            model="",
            forget=Deletion("nothing"),
            options={
                "path": None,
                "test_path": None,
                "holdout": 0.2,
                "label_column": None,
                "id_column": None,
                "group_column": None,
                "columns": None,
                "labels": None,
                "categories": None,
                "scale": None,
                "missing": None,
                "norm": None,
                "predicts": None,
                "huber": None,
            },
        ),
        Recipe(
            name=RECORDS,
            about="every peer's own records, in a network of peers: unwalk peer data",
            loader="declared.load",
            model="",
            forget=Deletion("nothing"),
            options={
                "shape": None,
                "features": None,
                "columns": None,
                "classes": None,
                "labels": None,
                "categories": None,
                "scale": None,
                "extractor": None,
                "cosines": None,
                "filters": None,
                "norm": None,
                "trained": None,
                "extractor_digest": None,
                "label_column": None,
                "id_column": None,
            },
        ),
    )
}


def can_be_named(name: str) -> bool:
    """Whether :func:`build_task` can build the task; a task that was brought along has to be again.

    >>> can_be_named("digits"), can_be_named("my_data:load"), can_be_named("own")
    (True, True, False)
    """
    from unwalk.tasks.models import is_name

    return name in TASKS or is_name(name)


def build_task(
    name: str,
    *,
    peers: int | None = None,
    seed: int = 0,
    unlearner: int = 0,
    partition: str | Dealing | None = None,
    model: Model | None = None,
    forget: Deletion | None = None,
    trigger: Trigger | None = None,
    options: Options | None = None,
    loss: Loss | None = None,
    dtype: torch.dtype | None = None,
) -> ShardedTask:
    """The task called ``name``; whatever is left out is the task's own default.

    ``name`` is one of :data:`TASKS` or ``package.module:function``, a function that returns the
    user's own data: see :func:`unwalk.tasks.own.own_data`.  The trigger counts only when
    ``forget`` is a backdoor.  ``options`` holds the task's own settings, those of the partition
    (:data:`unwalk.tasks.sources.SETTINGS`) and those of fixed features
    (:class:`unwalk.tasks.features.Extraction`).  Without ``dtype`` inputs and parameters are 32-bit
    floating-point numbers.

    >>> task = build_task("blobs", peers=100_000, unlearner=7)
    >>> task.peers, task.classes, task.records(7).forgotten.size
    (100000, 4, 20)
    """
    import torch

    from unwalk.tasks.features import featured
    from unwalk.tasks.files import READERS, from_options
    from unwalk.tasks.models import call_named, is_name, load_named, resolve_model
    from unwalk.tasks.own import own_data, own_task
    from unwalk.tasks.sources import SETTINGS, dealing
    from unwalk.tasks.task import Request, ShardedTask

    dtype = torch.float32 if dtype is None else dtype
    given = dict(options or {})
    deals = {k: given.pop(k) for k in SETTINGS if k in given}
    asked = _features(name, given)
    options, own = given, None
    if is_name(name):
        norm = options.pop("norm", None)
        if options:
            raise InvalidInput(f"task {name!r} has no option {next(iter(options))!r}; it has none.")
        own = own_data(call_named(load_named(name, "task"), name, "task"), name)
        own = own if norm is None else replace(own, norm=norm)
    elif name == FILE:
        own = from_options(TASKS[name].complete(options))
    if own is not None:
        return own_task(
            own,
            peers=peers,
            partition=partition,
            deals=deals,
            seed=seed,
            unlearner=unlearner,
            model=model,
            forget=forget,
            trigger=trigger,
            loss=loss,
            dtype=dtype,
            features=asked,
        )
    if Path(name).suffix.lower() in READERS:
        raise InvalidInput(f"task is {name!r}; a file is --task file --set data.path={name}.")
    recipe = TASKS[check_choice("task", name, TASKS)]
    seeds = PublicSeeds(check_count("seed", seed))
    request = Request(
        peers=recipe.peers if peers is None else peers,
        partition=dealing(partition or recipe.partition, deals),
        seeds=seeds,
        options=recipe.complete(options),
    )
    source, holdings = recipe.load(request)
    features, usual = None, recipe.model
    if asked is not None:
        source, features = featured(asked, replace(source, name=name), holdings)
        usual = "linear"
    return ShardedTask(
        source=source,
        holdings=holdings,
        factory=resolve_model(model or usual, source.shape, source.classes),
        seeds=seeds,
        unlearner=unlearner,
        deletion=forget or recipe.forget,
        trigger=trigger or recipe.trigger,
        loss=loss,
        dtype=dtype,
        features=features,
    )


def _features(name: str, options: dict[str, Any]) -> Extraction | None:
    """The fixed features that a task is to have, taken out of ``options``."""
    from unwalk.tasks.features import KEYS, extraction_among

    usual = TASKS[name].features if name in TASKS else {}
    named = "extractor" in options or bool(usual)
    keys = [k for k in KEYS if k in options and (named or k != "norm")]
    given = {k: options.pop(k) for k in keys}
    if "extractor" not in given:
        given = {**usual, **given}
    return extraction_among(given) if given else None
