"""A user's own data: arrays, tensors or a dataset, checked and dealt to peers.

What a model predicts of them is one class, a number, or any of several labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import Augment, Held, shortened
from unwalk.core.errors import InvalidInput
from unwalk.core.losses import loss_for
from unwalk.core.plan import PREDICTS, Loss
from unwalk.core.program import Rows
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.tasks.checks import (
    checked_ids,
    checked_inputs,
    checked_labels,
    checked_marks,
    checked_numbers,
    checked_parts,
)
from unwalk.tasks.datasets import arrays_of, is_dataset
from unwalk.tasks.features import Extraction, featured
from unwalk.tasks.forgetting import Deletion, Trigger
from unwalk.tasks.models import Model, resolve_model, usual_model
from unwalk.tasks.sources import (
    Cells,
    Dealing,
    Holdings,
    Scale,
    Source,
    Split,
    Table,
    checked,
    dealing,
    split,
)
from unwalk.tasks.task import ShardedTask

PEERS = 10
NO_CLASSES = "data.predicts is 'number', which has no classes and no labels."


@dataclass(frozen=True, eq=False)
class OwnData:
    """Inputs ``x`` (one row per record), labels ``y``, and their origin.

    ``predicts`` says what labels are: ``class``, whole numbers from 0; ``number``, which a
    regression predicts with Huber's loss of bound ``huber``; or ``labels``, a 0 or 1 for each of
    several.

    ``test`` is a pair (x, y), or the share of every peer's records that is held out.  Who holds
    what is said by ``groups`` (a name or number for each record: one peer per group), by ``parts``
    (rows of each peer; rows in no part are left out), or left to a partition.  ``scale`` says how
    pixels became inputs, where they are pictures; without it they are taken as 0 to 1.

    ``classes`` is their number, or ``labels`` names them; without both they are read from the data,
    and no guarantee is given.  ``normalisation`` and ``labels_from`` say where scales and classes
    come from (see :class:`Source`), and ``cells`` what the records' values were by the names of
    columns, for readers of files who know it.  With ``norm``, longer inputs are shortened to that
    length, each by itself: a bound for every input there could be.  ``unscaled`` names columns of
    large values without a scale, of which a run warns.
    """

    x: Any
    y: Any
    test: tuple[Any, Any] | float = 0.2
    groups: Any = None
    parts: Sequence[Any] | None = None
    classes: int | None = None
    ids: Any = None
    labels: Sequence[str] | None = None
    scale: Scale | None = None
    augment: Augment | None = None
    name: str = "own"
    normalisation: str = "unknown"
    labels_from: str | None = None
    cells: Cells | None = None
    norm: float | None = None
    predicts: str = "class"
    huber: float | None = None
    unscaled: tuple[str, ...] = ()


def from_arrays(
    x: Any,
    y: Any,
    *,
    test: tuple[Any, Any] | float = 0.2,
    peers: int | None = None,
    partition: str | Dealing | None = None,
    groups: Any = None,
    parts: Sequence[Any] | None = None,
    classes: int | None = None,
    ids: Any = None,
    labels: Sequence[str] | None = None,
    scale: Scale | None = None,
    augment: Augment | None = None,
    name: str = "own",
    model: Model | None = None,
    loss: Loss | None = None,
    forget: Deletion | None = None,
    trigger: Trigger | None = None,
    seed: int = 0,
    unlearner: int = 0,
    dtype: torch.dtype | None = torch.float32,
    norm: float | None = None,
    extractor: Extraction | Model | None = None,
    predicts: str = "class",
    huber: float | None = None,
) -> ShardedTask:
    """A task from arrays; see :class:`OwnData` for the data and ``build_task`` for the rest.

    ``dtype`` is what inputs and parameters are turned into; None leaves both as they come.
    Without ``forget`` nothing has to be forgotten.  ``extractor`` names fixed features that the
    model sees instead of ``x`` (see :mod:`unwalk.tasks.features`); ``norm`` is their length then.

    >>> x, y = np.eye(20), np.arange(20) % 2
    >>> task = from_arrays(x, y, peers=4, model="logistic", forget=Deletion("records", size=2))
    >>> task.peers, task.classes, task.records(0).retained.size, len(task.test.y)
    (4, 2, 2, 4)
    """
    features = extraction(extractor, norm)
    shorter = norm if features is None else None
    data = OwnData(
        x,
        y,
        test,
        groups,
        parts,
        classes,
        ids,
        labels,
        scale,
        augment,
        name,
        norm=shorter,
        predicts=predicts,
        huber=huber,
    )
    return own_task(
        data,
        peers=peers,
        partition=partition,
        seed=seed,
        unlearner=unlearner,
        model=model,
        forget=forget,
        trigger=trigger,
        loss=loss,
        dtype=dtype,
        features=features,
    )


def extraction(extractor: Extraction | Model | None, norm: float | None) -> Extraction | None:
    """The fixed features that a call asks for, with ``norm`` as their length."""
    if extractor is None:
        return None
    asked = extractor if isinstance(extractor, Extraction) else Extraction(extractor)
    return asked if norm is None else replace(asked, norm=norm)


def from_dataset(
    dataset: Any,
    *,
    test: Any = 0.2,
    inputs: str | Sequence[str] | None = None,
    label: str | None = None,
    **settings: Any,
) -> ShardedTask:
    """A task from a torch ``Dataset`` or one of Hugging Face; ``settings`` as in from_arrays.

    Items are pairs (input, label), or mappings: then ``label`` names the key of the label
    (``label`` or ``labels`` if not given), ``inputs`` that of the input, or those of several
    numbers or arrays side by side (the only other key if not given).  ``test`` is another dataset
    or a share.  Pictures of Pillow become channels, rows, columns with values from 0 to 1.

    Every item is read once, now: a random transform inside the dataset is frozen.  Bring it as
    ``augment`` instead.
    """
    x, y = arrays_of(dataset, inputs, label)
    held_out = arrays_of(test, inputs, label) if is_dataset(test) else test
    return from_arrays(x, y, test=held_out, **settings)


def own_data(brought: object, name: str) -> OwnData:
    """What a user's function may return, as :class:`OwnData`.

    That is OwnData itself, a pair (x, y), a dataset, or a tuple (training, test) of two
    datasets or of two such pairs, each a tuple.
    """
    match brought:
        case OwnData():
            return brought
        case _ if is_dataset(brought):
            x, y = arrays_of(brought)
            return OwnData(x, y, name=name)
        case (train, test) if is_dataset(train) and is_dataset(test):
            x, y = arrays_of(train)
            return OwnData(x, y, test=arrays_of(test), name=name)
        case ((x, y), (test_x, test_y)) if all(isinstance(part, tuple) for part in brought):
            return OwnData(x, y, test=(test_x, test_y), name=name)
        case (x, y):
            return OwnData(x, y, name=name)
    raise InvalidInput(
        f"task {name!r} returned a {type(brought).__name__}; allowed: unwalk.tasks.OwnData, "
        "a pair (x, y), a Dataset, or (training, test) of two pairs or two Datasets."
    )


def own_task(
    data: OwnData,
    *,
    peers: int | None = None,
    partition: str | Dealing | None = None,
    deals: Mapping[str, object] | None = None,
    seed: int = 0,
    unlearner: int = 0,
    model: Model | None = None,
    forget: Deletion | None = None,
    trigger: Trigger | None = None,
    loss: Loss | None = None,
    dtype: torch.dtype | None = torch.float32,
    features: Extraction | None = None,
) -> ShardedTask:
    """The data dealt to peers, with a model; ``deals`` are settings of the partition."""
    seeds = PublicSeeds(check_count("seed", seed))
    how = _dealing(data, partition, deals or {})
    _check_predicts(data, how, forget)
    source, holdings = load_own(data, peers, how, seeds, dtype)
    made, usual = None, usual_model(source.shape)
    if features is not None:
        source, made = featured(features, source, holdings)
        usual = "linear"
    return ShardedTask(
        source=source,
        holdings=holdings,
        factory=resolve_model(model or usual, source.shape, source.classes),
        seeds=seeds,
        unlearner=unlearner,
        deletion=forget or Deletion("nothing"),
        trigger=trigger or Trigger(),
        loss=loss or loss_for(data.predicts, data.huber),
        dtype=dtype,
        features=made,
    )


def _check_predicts(data: OwnData, how: Dealing | None, forget: Deletion | None) -> None:
    """Refuse what needs classes where there are none."""
    check_choice("data.predicts", data.predicts, PREDICTS)
    if data.huber is not None and data.predicts != "number":
        raise InvalidInput(
            f"data.huber is {data.huber!r}, which belongs to data.predicts=number; "
            f"data.predicts is {data.predicts!r}."
        )
    if data.predicts == "class":
        return
    for key, value, bad in (
        ("data.partition", how and how.kind, ("dirichlet", "label")),
        ("forget.kind", forget and forget.kind, ("backdoor", "class")),
    ):
        if value in bad:
            raise InvalidInput(
                f"{key} is {value!r}, which needs classes, but data.predicts is "
                f"{data.predicts!r}; allowed: another {key}."
            )
    if data.predicts == "number" and (data.classes or data.labels):
        raise InvalidInput(NO_CLASSES)


def load_own(
    data: OwnData,
    peers: int | None,
    how: Dealing | None,
    seeds: PublicSeeds,
    dtype: torch.dtype | None = torch.float32,
) -> tuple[Source, Holdings]:
    """The data checked and dealt to peers; ``how`` is None where ``parts`` says it."""
    x = _inputs(data, data.x, "x", dtype)
    y = _answers(data, data.y, "y", len(x))
    pool = Table(x, y, checked_ids(data.ids, len(x)), _groups(data, len(x)), data.cells)
    parts = None if data.parts is None else checked(pool, checked_parts(data.parts)).parts
    owners = _owners(pool, parts)
    if isinstance(data.test, tuple):
        test_x = _inputs(data, data.test[0], "the test x", dtype)
        test = Held(test_x, _answers(data, data.test[1], "the test y", len(test_x)))
        if test_x.shape[1:] != x.shape[1:]:
            raise InvalidInput(
                f"inputs of the test set have shape {tuple(test_x.shape[1:])}; "
                f"those of the training set {tuple(x.shape[1:])}."
            )
        kept = np.arange(len(x))
    else:
        rng = seeds.numpy("task", "own", "test")
        out = _held_out(owners, check_number("test", data.test, above=0.0, below=1.0), rng)
        held = pool.take(np.flatnonzero(out))
        test, kept = Held(held.x, held.y), np.flatnonzero(~out)
    classes, labels_from = _outputs(data, y, test)
    source = Source(
        data.name,
        classes,
        test,
        _names(data.labels, classes),
        data.scale or (Scale() if x.dim() > 2 else None),
        data.augment,
        normalisation=data.normalisation,
        labels_from=data.labels_from or labels_from,
        holdout="apart" if isinstance(data.test, tuple) else "share",
        own_code=data.augment is not None,
        feature_norm=data.norm,
        predicts=data.predicts,
        unscaled=data.unscaled,
    )
    return source, _deal(pool, kept, parts, peers, how, seeds)


def _answers(data: OwnData, y: Any, where: str, records: int) -> torch.Tensor:
    """What models are to predict, checked."""
    if data.predicts == "number":
        return checked_numbers(y, where, records)
    if data.predicts == "labels":
        named = len(data.labels) if data.labels else None
        return checked_marks(y, where, records, data.classes or named)
    return checked_labels(y, where, records, data.classes)


def _outputs(data: OwnData, y: torch.Tensor, test: Held) -> tuple[int, str]:
    """How many outputs a model has, and where that comes from."""
    if data.predicts == "number":
        return 1, "declared"
    told = "as-they-occur" if data.classes is None and data.labels is None else "declared"
    if data.predicts == "labels":
        if y.shape[1:] != test.y.shape[1:]:
            raise InvalidInput(
                f"the test y has {test.y.shape[1]} labels and y has {y.shape[1]}; allowed: the "
                "same ones."
            )
        return y.shape[1], told  # how many columns there are is no record's doing
    occur = max(int(y.max()), int(test.y.max()), 1) + 1
    return data.classes or max(occur, len(data.labels or ())), told


def _inputs(data: OwnData, x: Any, where: str, dtype: torch.dtype | None) -> torch.Tensor:
    """Inputs, checked, and shortened where they may have a length only."""
    inputs = checked_inputs(x, where, dtype)
    if data.norm is None:
        return inputs
    norm = check_number("data.norm", data.norm, above=0.0, below=math.inf)
    if not inputs.is_floating_point():
        raise InvalidInput(f"data.norm is {norm:g}, but {where} holds whole numbers.")
    return shortened(inputs, norm)


def _groups(data: OwnData, records: int) -> Rows | None:
    if data.groups is None:
        return None
    if data.parts is not None:
        raise InvalidInput("groups and parts are both given; allowed: one of them.")
    groups = np.asarray(data.groups)
    if groups.shape != (records,):
        raise InvalidInput(
            f"groups has shape {groups.shape}; allowed: {(records,)}, one entry per record."
        )
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _owners(pool: Table, parts: Sequence[Rows] | None) -> Rows:
    """Who holds each record, as far as the data say: -1 for nobody."""
    if parts is None:
        return np.zeros(len(pool), np.int64) if pool.groups is None else pool.groups
    owners = np.full(len(pool), -1, np.int64)
    for peer, rows in enumerate(parts):
        owners[rows] = peer
    return owners


def _held_out(owners: Rows, share: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which records are the test set: ``share`` of each owner's, rounded down."""
    order = rng.permutation(len(owners))
    order = order[np.argsort(owners[order], kind="stable")]
    _, first, sizes = np.unique(owners[order], return_index=True, return_counts=True)
    place = np.arange(len(owners)) - np.repeat(first, sizes)
    out = np.zeros(len(owners), bool)
    out[order] = (place < np.repeat((share * sizes).astype(np.int64), sizes)) & (owners[order] >= 0)
    if not out.any():
        raise InvalidInput(
            f"test is {share:g}, which leaves no record of {len(owners)} for the test set; "
            "bring a test set or a larger share."
        )
    return out


def _dealing(
    data: OwnData, partition: str | Dealing | None, deals: Mapping[str, object]
) -> Dealing | None:
    """How records are dealt; None where ``parts`` says it."""
    if data.parts is None:
        return dealing(partition or ("iid" if data.groups is None else "natural"), deals)
    for name, value in (("partition", partition), *deals.items()):
        if value:
            raise InvalidInput(f"{name} is {value!r}, but parts already says who holds what.")
    return None


def _deal(
    everything: Table,
    kept: Rows,
    parts: Sequence[Rows] | None,
    peers: int | None,
    how: Dealing | None,
    seeds: PublicSeeds,
) -> Split:
    """Deal the ``kept`` records out; ``parts`` names rows of the whole table."""
    pool = everything.take(kept)
    if how is not None or parts is None:
        groups = PEERS if pool.groups is None else int(pool.groups.max()) + 1
        count = groups if peers is None else peers
        return split(pool, how or "iid", count, seeds.numpy("task", "partition"))
    if peers not in (None, len(parts)):
        raise InvalidInput(f"peers is {peers}, but parts names the rows of {len(parts)} peers.")
    place = np.full(len(everything), -1, np.int64)
    place[kept] = np.arange(len(kept))
    return checked(pool, [place[rows][place[rows] >= 0] for rows in parts])


def _names(labels: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    if labels is None:
        return tuple(str(k) for k in range(classes))
    if len(labels) != classes:
        raise InvalidInput(f"labels has {len(labels)} names; there are {classes} classes.")
    return tuple(labels)
