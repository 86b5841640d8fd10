"""The named tasks, and the one function that builds any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Loss
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_choice, check_count
from unwalk.tasks import a9a, blobs, cifar10, declared, digits, files, heart, klom, mnist
from unwalk.tasks.features import COSINES, KEYS, Extraction, extraction_among, featured
from unwalk.tasks.forgetting import Deletion, Trigger
from unwalk.tasks.models import Model, call_named, is_name, load_named, resolve_model
from unwalk.tasks.own import own_data, own_task
from unwalk.tasks.sources import SETTINGS, Dealing, dealing
from unwalk.tasks.task import Options, Recipe, Request, ShardedTask

TASKS: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits",
            about="1,797 handwritten digits, 8 x 8 pixels, 10 classes; ships inside scikit-learn",
            load=digits.load,
            model="small-cnn",
            forget=Deletion("backdoor", size=60),
        ),
        Recipe(
            name="digits-flat",
            about="digits as vectors of length 1 at most, for a linear head that can be certified",
            load=digits.load_flat,
            model="linear",
            forget=Deletion("records", size=1),
        ),
        Recipe(
            name="blobs",
            about="synthetic Gaussian classes, made per peer on demand; any number of peers",
            load=blobs.load,
            model="logistic",
            forget=Deletion("records", size=20),
            options={"records": 200, "features": 16, "classes": 4, "spread": 1.0},
        ),
        Recipe(
            name="mnist",
            about="70,000 handwritten digits, 28 x 28 pixels, 10 classes; unwalk data fetch mnist",
            load=mnist.load,
            model="flnet",
            forget=Deletion("backdoor", size=1000),
            trigger=Trigger(size=4),
        ),
        Recipe(
            name="mnist-gabor",
            about="mnist as fixed Gabor features of length 1 at most, for a linear head",
            load=mnist.load,
            model="linear",
            forget=Deletion("records", size=100),
            features=Extraction("gabor", cosines=COSINES),
        ),
        Recipe(
            name="cifar10",
            about="60,000 colour pictures, 32 x 32 pixels, 10 classes; unwalk data fetch cifar10",
            load=cifar10.load,
            model="resnet18",
            forget=Deletion("backdoor", size=1000),
            trigger=Trigger(size=4),
        ),
        Recipe(
            name="cifar10-klom",
            about="cifar10 and the forget sets of data-unlearning-bench, at peer 0; see docs/tasks",
            load=klom.load,
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
            load=heart.load,
            model="logistic",
            forget=Deletion("records", size=20),
            peers=len(heart.HOSPITALS),
            partition="natural",
            options={"holdout": 0.2},
        ),
        Recipe(
            name="a9a",
            about="48,842 census records, 123 binary features, 2 classes; unwalk data fetch a9a",
            load=a9a.load,
            model="logistic",
            forget=Deletion("records", size=100),
        ),
        Recipe(
            name=files.NAME,
            about="your own .csv, .tsv, .parquet or .npz file, or a folder of pictures: data.path",
            load=files.load,
            model="",
            forget=Deletion("nothing"),
            options={
                "path": None,
                "test_path": None,
                "holdout": files.HOLDOUT,
                "label_column": None,
                "id_column": None,
                "group_column": None,
                "columns": None,
                "labels": None,
                "categories": None,
                "scale": None,
                "norm": None,
            },
        ),
        declared.RECIPE,
    )
}


def can_be_named(name: str) -> bool:
    """Whether :func:`build_task` can build the task; a task that was brought along has to be again.

    >>> can_be_named("digits"), can_be_named("my_data:load"), can_be_named("own")
    (True, True, False)
    """
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
    dtype: torch.dtype = torch.float32,
) -> ShardedTask:
    """The task called ``name``; whatever is left out is the task's own default.

    ``name`` is one of :data:`TASKS` or ``package.module:function``, a function that returns the
    user's own data: see :func:`unwalk.tasks.own.own_data`.  The trigger counts only when
    ``forget`` is a backdoor.  ``options`` holds the task's own settings, those of the partition
    (:data:`unwalk.tasks.sources.SETTINGS`) and those of fixed features
    (:class:`unwalk.tasks.features.Extraction`).

    >>> task = build_task("blobs", peers=100_000, unlearner=7)
    >>> task.peers, task.classes, task.records(7).forgotten.size
    (100000, 4, 20)
    """
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
    elif name == files.NAME:
        own = files.from_options(TASKS[name].complete(options))
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
    recipe = TASKS.get(name)
    usual = None if recipe is None else recipe.features
    named = "extractor" in options or usual is not None
    keys = [k for k in KEYS if k in options and (named or k != "norm")]
    given = {k: options.pop(k) for k in keys}
    if usual is not None and "extractor" not in given:
        return replace(usual, **given)
    return extraction_among(given) if given else None
