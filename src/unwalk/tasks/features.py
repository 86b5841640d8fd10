"""Fixed features: a map that each record goes through by itself, before a model sees it.

What is learned is then a linear head, whose training can be certified or undone exactly.  A map is
a constant of the run: it depends on no record, and its digest names it.  Each record is mapped in a
call of its own, so that no other record influences its features, not even in the last bit.

:data:`EXTRACTORS` lists the maps that have a name; a frozen network of the user's own is named
``package.module:extractor``.  :class:`Extraction` is what was asked for, :func:`extractor_for` the
map for inputs of a shape, and :class:`Features` the map at work on the records of a task.

Features of official data sets are kept in the data folder, and may be deleted there at any time.
Those of anybody's own records are kept in memory only, since a file of them would survive the
records; real peers keep them in the place of the inputs, in the store that they erase records from.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from unwalk.core.data import Held, shortened
from unwalk.core.errors import InvalidInput, told
from unwalk.core.outside import Surroundings
from unwalk.core.program import Rows
from unwalk.core.token import build_model, digest_of
from unwalk.core.validation import check_choice, check_number
from unwalk.tasks import official
from unwalk.tasks.gabor import GaborMap
from unwalk.tasks.models import Factory, Model, is_name, load_factory, resolve_model
from unwalk.tasks.patches import PatchMap
from unwalk.tasks.sources import Holdings, Scale, Source, Split

BIAS = 0.5
"""The constant among features of length 1 at most."""
CHUNK = 4096
"""Records that are taken out of a pool at once."""
COSINES, FILTERS = 1000, 512
TRAINED = ("published", "apart")
"""What may be declared of a network: it is published, or was trained apart from all records."""


class Extractor(Protocol):
    """A map from inputs to features.

    ``origin`` says what it was made from: ``constants``, public ``photographs``, what was declared
    of a user's network (:data:`TRAINED`), or ``unknown``.  ``norm`` bounds the length of what it
    makes, None where nothing does.  ``digest`` names it: another map has another one.
    """

    @property
    def name(self) -> str: ...
    @property
    def origin(self) -> str: ...
    @property
    def norm(self) -> float | None: ...
    @property
    def width(self) -> int:
        """How many features a record has."""

    @property
    def digest(self) -> str: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Features (records, width) in 32 bits, each record's computed by itself."""


@dataclass(frozen=True)
class Extraction:
    """The features that were asked for, by the settings ``data.*`` of the same names.

    ``extractor`` is a name of :data:`EXTRACTORS`, ``package.module:function`` (a function without
    arguments that returns a module), or in Python a module or such a function.  ``norm`` is the
    length that features may have, where the map does not settle it; ``trained`` what is declared of
    a network, one of :data:`TRAINED`.  With ``extractor_digest`` a map of another digest is
    refused.
    """

    extractor: Model
    cosines: int | None = None
    filters: int | None = None
    norm: float | None = None
    trained: str | None = None
    extractor_digest: str | None = None

    def __post_init__(self) -> None:
        if self.norm is not None:
            check_number("data.norm", self.norm, above=0.0, below=math.inf)
        if self.trained is not None:
            check_choice("data.trained", self.trained, TRAINED)
        named = EXTRACTORS.get(self.extractor) if isinstance(self.extractor, str) else None
        uses = OWN_USES if named is None else named.uses
        for key in ("cosines", "filters", "norm", "trained"):
            if getattr(self, key) is not None and key not in uses:
                raise InvalidInput(
                    f"data.{key} is {getattr(self, key)!r}, which features {self.extractor!r} do "
                    f"not use; allowed with them: {', '.join(uses) or 'none of these'}."
                )


def extraction_among(options: Mapping[str, Any]) -> Extraction | None:
    """The features that settings ask for; None where they name none."""
    given = {key: options[key] for key in KEYS if options.get(key) is not None}
    if "extractor" in given:
        return Extraction(**given)
    for key in given.keys() - {"norm"}:  # inputs may have a length of their own
        raise InvalidInput(
            f"data.{key} is {given[key]!r}, which belongs to fixed features; name those as well, "
            "with --features or data.extractor."
        )
    return None


KEYS = ("extractor", "cosines", "filters", "norm", "trained", "extractor_digest")
"""The settings of an :class:`Extraction`."""


@dataclass(frozen=True, eq=False)
class _OfPictures:
    """A map of this package at work on the pixels of pictures."""

    name: str
    origin: str
    shape: tuple[int, ...]
    scale: Scale
    map: GaborMap | PatchMap
    norm: float = 1.0

    @property
    def width(self) -> int:
        return self.map.features(self.shape)

    @cached_property
    def digest(self) -> str:
        return self.map.digest(self.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(self.scale.pixels(x.to(torch.float32)))


def _pixels(name: str, source: Source) -> Scale:
    if source.scale is None or len(source.shape) != 3:
        raise InvalidInput(
            f"features {name!r} are of pictures (channels, height, width); the inputs of "
            f"{source.name!r} have shape {source.shape}: allowed: plain, or a network of your own."
        )
    return source.scale


def _gabor(asked: Extraction, source: Source) -> Extractor:
    cosines = COSINES if asked.cosines is None else asked.cosines
    scale = _pixels("gabor", source)
    return _OfPictures("gabor", "constants", source.shape, scale, GaborMap(cosines))


def _patches(asked: Extraction, source: Source) -> Extractor:
    filters = FILTERS if asked.filters is None else asked.filters
    scale = _pixels("patches", source)
    return _OfPictures("patches", "photographs", source.shape, scale, PatchMap(filters))


def with_constant(values: torch.Tensor, norm: float | None) -> torch.Tensor:
    """Each row with a constant in front; with ``norm`` the whole row is that long at most.

    >>> with_constant(torch.tensor([[3.0, 4.0]]), None).tolist()
    [[1.0, 3.0, 4.0]]
    >>> [round(v, 3) for v in with_constant(torch.tensor([[3.0, 4.0]]), 1.0)[0].tolist()]
    [0.5, 0.52, 0.693]
    """
    values, constant = values.flatten(1).to(torch.float32), 1.0
    if norm is not None:
        constant = norm * BIAS
        values = shortened(values, norm * math.sqrt(1.0 - BIAS**2))
    return torch.cat([torch.full((len(values), 1), constant), values], 1)


@dataclass(frozen=True)
class _Plain:
    """The inputs themselves as a vector, with a constant in front."""

    shape: tuple[int, ...]
    norm: float | None
    name: str = "plain"
    origin: str = "constants"

    @property
    def width(self) -> int:
        return 1 + math.prod(self.shape)

    @property
    def digest(self) -> str:
        return _named("plain", 1, self.shape, self.norm, BIAS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return with_constant(x, self.norm)


def _plain(asked: Extraction, source: Source) -> Extractor:
    return _Plain(source.shape, asked.norm)


@dataclass(frozen=True)
class Entry:
    """A named map, what the command line says about it, and the settings that it uses."""

    build: Callable[[Extraction, Source], Extractor]
    about: str
    uses: tuple[str, ...]


EXTRACTORS: Mapping[str, Entry] = {
    "gabor": Entry(_gabor, "Gabor waves in cells of a picture, and random waves", ("cosines",)),
    "patches": Entry(
        _patches, "patches of two public photographs, found in a picture", ("filters",)
    ),
    "plain": Entry(_plain, "the inputs themselves, with a constant in front", ("norm",)),
}
OWN_USES = ("norm", "trained")


@dataclass(frozen=True, eq=False)
class _Network:
    """A user's own network, frozen, with a constant in front of what it makes.

    It takes the inputs of the task as they are.
    """

    name: str
    network: nn.Module
    shape: tuple[int, ...]
    norm: float | None
    origin: str
    width: int

    @staticmethod
    def of(factory: Factory, asked: Extraction, source: Source) -> _Network:
        """The network that the factory makes, with a try on an input of zeros."""
        network = build_model(factory, 0).eval().requires_grad_(False)
        origin = asked.trained or "unknown"
        made = _Network(factory.name, network, source.shape, asked.norm, origin, 0)
        return replace(made, width=1 + made._features(torch.zeros(1, *source.shape)).numel())

    @cached_property
    def digest(self) -> str:
        return _named("network", 1, self.shape, self.norm, BIAS, self._code(), self._state())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        before, around = self._state(), Surroundings(self.network)
        around.frozen.clear()  # compared below, once, and not copied for every record
        made = []
        for record in (*x.split(1), x[:1]):
            made.append(self._features(record.clone()))
            around.put_back()
        if self._state() != before or not torch.equal(made[0], made.pop()):
            raise InvalidInput(
                f"features {self.name!r} change while they are computed, so that a record's depend "
                "on the records before it; allowed: a network that keeps nothing of its inputs."
            )
        return with_constant(torch.cat(made), self.norm)

    def _features(self, record: torch.Tensor) -> torch.Tensor:
        try:
            with torch.no_grad():
                made = self.network(record)
        except Exception as error:  # a user's network may raise anything
            raise InvalidInput(
                f"features {self.name!r} cannot take inputs of shape {tuple(record.shape[1:])}: "
                f"{told(error)}."
            ) from error
        if not isinstance(made, torch.Tensor) or len(made) != 1 or not made.is_floating_point():
            raise InvalidInput(
                f"features {self.name!r} of one record are no tensor with one row of numbers; "
                "allowed: a module whose output has one row for each record."
            )
        if not bool(torch.isfinite(made).all()):
            raise InvalidInput(f"features {self.name!r} of a record are not finite.")
        return made.detach().flatten(1)

    def _state(self) -> str:
        return digest_of(self.network.state_dict())

    def _code(self) -> list[str]:
        """The layers in words, and the source of those that are the user's own."""
        kinds = {type(module) for module in self.network.modules()}
        own = [kind for kind in kinds if not kind.__module__.startswith("torch.")]
        return [repr(self.network), *sorted(map(_source_of, own))]


def _source_of(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt: its name has to do
        return kind.__qualname__


def _named(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def extractor_for(asked: Extraction, source: Source) -> Extractor:
    """The map that was asked for, for the inputs of ``source``."""
    wanted = asked.extractor
    made: Extractor
    if isinstance(wanted, str) and not is_name(wanted):
        made = EXTRACTORS[check_choice("data.extractor", wanted, EXTRACTORS)].build(asked, source)
    else:
        if isinstance(wanted, str):
            factory = load_factory(wanted, "data.extractor")
        else:
            factory = resolve_model(wanted, (), 0)
        made = _Network.of(factory, asked, source)
    if asked.extractor_digest not in (None, made.digest):
        raise InvalidInput(
            f"features {made.name!r} have the digest {made.digest[:16]}..., and what was agreed on "
            f"is {str(asked.extractor_digest)[:16]}...: all peers need the same map, weights "
            "included."
        )
    return made


def featured(asked: Extraction, source: Source, holdings: Holdings) -> tuple[Source, Features]:
    """The source that models see, and how it is made of ``source``."""
    features = Features(extractor_for(asked, source), source, holdings)
    return features.source, features


@dataclass(frozen=True, eq=False)
class Features:
    """A map at work on the records of a task; ``seen`` is the source of the inputs that it takes.

    >>> from unwalk.tasks.sources import Table
    >>> seen = Source("two", 2, Held(torch.eye(2), torch.arange(2)), ("0", "1"))
    >>> pool = Split(Table(torch.eye(2), torch.arange(2), np.arange(2)), [np.arange(2)])
    >>> source, features = featured(Extraction("plain"), seen, pool)
    >>> source.shape, features.of(torch.eye(2))[1].tolist()
    ((3,), [1.0, 0.0, 1.0])
    """

    extractor: Extractor
    seen: Source
    holdings: Holdings
    _pool: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The features of inputs; none of none."""
        return self.extractor(x) if len(x) else torch.empty(0, self.extractor.width)

    @cached_property
    def source(self) -> Source:
        """The source of a task whose inputs are the features: no pictures, and no augmentation."""
        pool = self._kept()
        x = self.of(self.seen.test.x) if pool is None else pool["test"]
        return replace(
            self.seen,
            test=Held(x, self.seen.test.y),
            scale=None,
            augment=None,
            own_code=False,
            feature_norm=self.extractor.norm,
        )

    def of_peer(self, peer: int, x: torch.Tensor, changed: Rows) -> torch.Tensor:
        """The features of a peer's inputs, of which ``changed`` are not as its holdings have them.

        Inputs behind those of the holdings were added.
        """
        pool = self._kept()
        if pool is None:
            return self.of(x)
        assert isinstance(self.holdings, Split)
        rows = self.holdings.parts[peer]
        fresh = np.arange(len(x)) >= len(rows)
        fresh[changed] = True
        known, own = np.flatnonzero(~fresh), torch.from_numpy(np.flatnonzero(fresh))
        made = torch.empty(len(x), self.extractor.width)
        made[torch.from_numpy(known)] = pool["train"][torch.from_numpy(rows[known])]
        made[own] = self.of(x[own])
        return made

    def _kept(self) -> dict[str, torch.Tensor] | None:
        """Features of an official data set, whole; None for other records."""
        if not self.seen.archive or not isinstance(self.holdings, Split):
            return None
        if not self._pool:
            files = "".join(f.checksum for f in official.DATASETS[self.seen.archive].files)
            digest = hashlib.sha256((self.extractor.digest + files).encode()).hexdigest()
            name = f"{self.seen.archive}-{self.extractor.name}-{digest[:16]}".replace(":", ".")
            sizes = {"train": len(self.holdings.pool), "test": len(self.seen.test.y)}
            wanted = {key: (size, self.extractor.width) for key, size in sizes.items()}
            self._pool.update(cached(name, wanted, self._whole))
        return self._pool

    def _whole(self) -> dict[str, torch.Tensor]:
        assert isinstance(self.holdings, Split)
        split = self.holdings
        rows = np.arange(len(split.pool))
        train = torch.empty(len(rows), self.extractor.width)
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            train[start : start + CHUNK] = self.of(split.taken(part).x)
        return {"train": train, "test": self.of(self.seen.test.x)}


Make = Callable[[], dict[str, torch.Tensor]]


def cached(name: str, wanted: dict[str, tuple[int, int]], make: Make) -> dict[str, torch.Tensor]:
    """Tensors of these shapes from the file ``name`` in the data folder, or made and stored there.

    A file that cannot be read or does not fit is made again; where the folder cannot be written,
    tensors are made every time.
    """
    place = official.data_root() / "features" / f"{name}.safetensors"
    with suppress(OSError, SafetensorError), safe_open(place, framework="pt") as stored:
        tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        if {key: tuple(tensor.shape) for key, tensor in tensors.items()} == wanted:
            return tensors
    made = make()
    passing = place.with_name(f".{place.name}.{os.getpid()}.part")
    with suppress(OSError, SafetensorError):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            save_file(made, passing)
            passing.replace(place)
        finally:
            passing.unlink(missing_ok=True)
    return made
