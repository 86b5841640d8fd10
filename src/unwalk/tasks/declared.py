"""``records``: every peer brings its own records; only their format is agreed on.

A network file declares the shape of an input, the classes and what columns mean.  No record is
needed to declare them, and none is looked at.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import SHORTER, Held
from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_count, check_number
from unwalk.tasks.catalogue import RECORDS, TASKS
from unwalk.tasks.features import Extraction, Features, extraction_among, extractor_for
from unwalk.tasks.files import columns_of
from unwalk.tasks.forgetting import Deletion
from unwalk.tasks.models import Model, resolve_model, usual_model
from unwalk.tasks.sources import Holdings, Scale, Source, Table
from unwalk.tasks.tables import Columns
from unwalk.tasks.task import Options, Request, ShardedTask

SHAPE = re.compile(r"[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){0,2}")


@dataclass(frozen=True)
class Declared:
    """How every record of a network looks.

    ``columns`` says what a table's columns mean, with the classes in ``columns.labels``.  With
    ``norm``, inputs longer than that are shortened to it, each by itself: a bound that holds for
    every record there could be.  With an ``extraction`` models see features of the inputs, and a
    peer keeps these in the place of the inputs: they are computed once, and erased with the record.
    """

    shape: tuple[int, ...]
    columns: Columns
    norm: float | None = None
    extraction: Extraction | None = None

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        return tuple(map(str, self.columns.labels or ()))

    @cached_property
    def source(self) -> Source:
        """The source of a task with these declarations and no records."""
        return Source(
            RECORDS,
            len(self.labels),
            Held(torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64)),
            self.labels,
            Scale() if len(self.shape) == 3 else None,
            feature_norm=self.norm,
            normalisation="declared",
            labels_from="declared",
        )

    @cached_property
    def features(self) -> Features | None:
        """The map from inputs to what models see, where there is one."""
        if self.extraction is None:
            return None
        return Features(extractor_for(self.extraction, self.source), self.source, NOBODY)

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of what a peer keeps of a record, and models see."""
        return self.shape if self.features is None else self.features.source.shape

    def at_peer(self, id_column: str | None, label_column: str | None) -> Columns:
        """The columns of a peer whose table has names of its own for id and label."""
        return replace(
            self.columns,
            id=id_column or self.columns.id or "id",
            label=label_column or self.columns.label,
        )

    def inputs(self, x: npt.NDArray[Any], where: Path) -> npt.NDArray[np.float32]:
        """What models see of inputs in their declared shape; refused where they have another.

        A number too large for 32 bits becomes infinity.
        """
        flat = math.prod(x.shape[1:])
        if tuple(x.shape[1:]) != self.shape and (x.ndim != 2 or flat != math.prod(self.shape)):
            shape = "x".join(map(str, x.shape[1:]))
            raise InvalidInput(
                f"inputs in {where} have shape {shape}; allowed: {'x'.join(map(str, self.shape))}, "
                "as the network declares."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later
            narrow = x.reshape(len(x), flat).astype(np.float32)
            if self.norm is not None:
                wide = narrow.astype(np.float64)
                # Each record by itself, so that its last bits do not depend on the others.
                length = np.sqrt([[np.add.reduce(row * row)] for row in wide])
                wide *= np.minimum(1.0, self.norm * SHORTER / np.maximum(length, 1e-300))
                narrow = wide.astype(np.float32)
        narrow = narrow.reshape(len(x), *self.shape)
        if self.features is None or not np.isfinite(narrow).all():
            return narrow
        return self.features.of(torch.from_numpy(narrow)).numpy()

    def to_json(self) -> dict[str, Any]:
        """For comparison with what was declared before."""
        columns = self.columns
        return {
            "shape": list(self.shape),
            "norm": self.norm,
            **({} if self.features is None else {"extractor": self.features.extractor.digest}),
            "labels": list(self.labels),
            "label": columns.label,
            "id": columns.id,
            "features": None if columns.features is None else list(columns.features),
            "categories": {k: list(v) for k, v in columns.categories.items()},
            "scale": {k: list(v) for k, v in columns.scale.items()},
        }


def declare(options: Options) -> Declared:
    """What the settings ``data.*`` of task ``records`` declare.

    >>> declare({"columns": "age|sex", "categories": "sex=f|m", "classes": 2}).shape
    (3,)
    """
    options = TASKS[RECORDS].complete(options)
    columns = columns_of(options)
    classes = options["classes"]
    if columns.labels is None:
        if classes is None:
            raise InvalidInput(
                "task 'records' needs its classes: set data.classes to their number, or "
                "data.labels to their names, as in well|ill."
            )
        names = [str(k) for k in range(check_count("data.classes", classes, low=2))]
        columns = replace(columns, labels=names)
    elif classes not in (None, len(columns.labels)):
        raise InvalidInput(f"data.classes is {classes}; data.labels names {len(columns.labels)}.")
    if options["norm"] is not None:
        check_number("data.norm", options["norm"], above=0.0, below=math.inf)
    extraction = extraction_among(options)
    norm = options["norm"] if extraction is None else None
    return Declared(_shape(options, columns), columns, norm, extraction)


def _shape(options: Options, columns: Columns) -> tuple[int, ...]:
    declared: dict[str, tuple[int, ...]] = {}
    if options["shape"] is not None:
        text = str(options["shape"])
        if not SHAPE.fullmatch(text):
            raise InvalidInput(f"data.shape is {text!r}; allowed: as in 20, or 1x28x28.")
        declared["data.shape"] = tuple(map(int, text.split("x")))
    if options["features"] is not None:
        declared["data.features"] = (check_count("data.features", options["features"], low=1),)
    if columns.features is not None:
        widths = [len(columns.categories.get(name, (0,))) for name in columns.features]
        declared["data.columns"] = (sum(widths),)
    if not declared:
        raise InvalidInput(
            "task 'records' needs the shape of an input: set data.shape, data.features or "
            "data.columns."
        )
    first, shape = next(iter(declared.items()))
    for key, other in declared.items():
        if math.prod(other) != math.prod(shape):
            raise InvalidInput(
                f"{first} makes {math.prod(shape)} inputs and {key} {math.prod(other)}; "
                "allowed: the same number."
            )
    return shape


@dataclass(frozen=True)
class Elsewhere:
    """Holdings of which only the holders are known."""

    peers: int
    empty: Table
    records: int = 0
    dealing: str = "natural"

    def table(self, peer: int) -> Table:
        """No records: only the peer itself knows what it holds."""
        return self.empty


def declared_task(
    declared: Declared,
    peers: int,
    *,
    seed: int = 0,
    unlearner: int = 0,
    model: Model | None = None,
) -> ShardedTask:
    """The task as everybody knows it: a model for inputs of this shape, and no records."""
    features = declared.features
    source = declared.source if features is None else features.source
    seen = declared.source.test
    table = Table(seen.x, seen.y, np.empty(0, dtype=np.str_))
    return ShardedTask(
        source=source,
        holdings=Elsewhere(check_count("peers", peers, low=1), table),
        factory=resolve_model(
            model or ("linear" if features else usual_model(source.shape)),
            source.shape,
            source.classes,
        ),
        features=features,
        seeds=PublicSeeds(check_count("seed", seed)),
        unlearner=unlearner,
        deletion=Deletion("nothing"),
    )


NOBODY = Elsewhere(
    0, Table(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), np.empty(0, dtype=np.str_))
)
"""Holdings for a map that is not asked for anybody's records."""


def load(request: Request) -> tuple[Source, Holdings]:
    """Always refused: a simulator has no peer's records."""
    raise InvalidInput(
        "task 'records' leaves its records with the peers of a network (unwalk peer data); to "
        "simulate with a file of your own, use task 'file'."
    )
