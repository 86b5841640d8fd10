"""All settings of one run: their defaults and bounds, presets, reading, checks and TOML.

:func:`setting` makes a field that is a setting: type, default, meaning and bounds.  The sections
that every run has follow; a method's own section is in the method's file.

A key is ``section.name`` (``unlearn.p``) or, at the top, ``name`` (``seed``).  Defaults are
overridden by the preset, then by a TOML file, then by ``--set``; an empty value means that the
task, or training, decides.  :func:`table` lists every setting of a configuration; everything else
here, and ``unwalk settings``, is made from it.

Presets are named readings of the paper, and the settings that we recommend:

* ``paper`` takes the paper's words: Adam at 0.005, s averaged minibatches per hop, one noisy ascent
  step per visit to u, a ball around the starting model.
* ``paper-matched`` is the reading whose numbers fit the paper's tables: SGD with momentum, a local
  epoch per hop, one ascent pass over the forget set per visit, weight noise once, projection.
* ``practical`` is our recommendation for forgetting well.
* ``certified`` trains so that a ledger seal can be proved: plain SGD with L2 on keyed slots, a
  linear head in 64 bits, inputs of bounded length.

A preset is a table of settings for every task, refined per task.  Trust radius and clip depend
on the model, so they are given per task.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from unwalk.core.errors import InvalidInput
from unwalk.core.events import OPTIMIZERS, WORK
from unwalk.core.plan import ENGINES, KEEPS, PREDICTS
from unwalk.core.program import OPTIMIZER_STATES, SCHEDULES
from unwalk.core.seeds import VERSION
from unwalk.core.validation import check_choice, check_count, check_number, near
from unwalk.walks import GRAPHS

Value = str | int | float | bool | None | list[str]


@dataclass(frozen=True)
class Bounds:
    """The values that a setting may have; a field left out allows any of its type.

    ``low`` and ``high`` may be taken themselves, ``above`` and ``below`` may not.  ``aliases`` are
    other names of ``choices``, in any case.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[str] = ()
    aliases: Mapping[str, str] | None = None

    @property
    def edges(self) -> dict[str, float]:
        """The ends of the range, as :func:`unwalk.core.validation.check_number` takes them."""
        names = ("low", "high", "above", "below")
        return {name: end for name in names if (end := getattr(self, name)) is not None}


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Any:
    """A dataclass field that is a setting: its default, its meaning and its :class:`Bounds`."""
    bounds = Bounds(low, high, above, below, choices, aliases)
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings; ``kind`` is the type of the field, such as ``int | None``.

    >>> Setting("unlearn.p", float | None, None, "", Bounds(low=0.0)).read("0.5", "--set")
    0.5
    """

    key: str
    kind: Any
    value: Value
    help: str
    bounds: Bounds

    def read(self, value: Value, where: str) -> Value:
        """``value`` as the setting's type, reading text as ``--set`` gives it."""
        optional = type(None) in typing.get_args(self.kind)
        if optional and (value is None or value in ("", "none")):
            return None
        read, allowed = _TYPES[self.base]
        typed = read(value)
        if typed is None:
            allowed += ", or none" if optional else ""
            raise InvalidInput(f"{where} sets {self.key} to {value!r}; allowed: {allowed}.")
        return typed

    @property
    def base(self) -> Any:
        """The type without ``None`` and without what a list holds."""
        first = typing.get_args(self.kind)[0] if isinstance(self.kind, types.UnionType) else None
        return typing.get_origin(first or self.kind) or first or self.kind

    def check(self) -> None:
        """Refuse a value that is not allowed; an empty one always is."""
        value: Any = self.value
        if value is None:
            return
        if self.bounds.choices:
            if self.bounds.aliases is not None:
                value = self.bounds.aliases.get(value.lower(), value.lower())
            check_choice(self.key, value, self.bounds.choices)
        elif self.bounds.low is not None and self.base is int:
            check_count(self.key, value, low=int(self.bounds.low))
        elif edges := self.bounds.edges:
            check_number(self.key, value, **edges)


def _read_flag(value: Value) -> bool | None:
    return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value))


def _read_count(value: Value) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,30}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_number(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _read_names(value: Value) -> list[str] | None:
    if isinstance(value, str):
        value = [] if value == "none" else value.split(",")
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return None
    return [name for v in value if (name := v.strip())]


_TYPES: Mapping[Any, tuple[Callable[[Value], Value], str]] = {
    bool: (_read_flag, "true or false"),
    int: (_read_count, "a whole number"),
    float: (_read_number, "a finite number"),
    str: (_read_text, "text"),
    list: (_read_names, "names, separated by commas"),
}


DIRECTIONS = ("retain", "forget", "corrected")
ALIASES = {"exact": "retain", "lightweight": "forget"}
"""The paper's names of directions."""
VISITS = {"pass": "epochs", "minibatch": "averaged", "full": "full"}
"""What rrdu does at the forgetting peer, and the kind of work that it is."""
NOISE_ON = ("weights", "gradient")


@dataclass(frozen=True)
class GraphSettings:
    """Who may hand the token to whom."""

    kind: str = setting("complete", ", ".join(GRAPHS), choices=GRAPHS)
    degree: int = setting(4, "degree of the random regular graph")
    probability: float = setting(0.3, "edge probability of the Erdos-Renyi graph")
    path: str = setting("", "file for kind = edge-list: two peer numbers per line")


@dataclass(frozen=True)
class ModelSettings:
    """What is trained."""

    name: str | None = setting(None, "a named model, or package.module:factory; empty: the task's")
    precision: str = setting(
        "float32",
        "inputs and parameters: float32, or float64 to certify",
        choices=("float32", "float64"),
    )
    frozen_digest: str | None = setting(
        None, "digest that the parameters which are not trained must have; empty: any"
    )


@dataclass(frozen=True)
class DataSettings:
    """How records reach peers.  Empty values are the task's own."""

    partition: str | None = setting(None, "iid, dirichlet, label, quantity or natural")
    alpha: float | None = setting(
        None, "dirichlet, quantity: the smaller, the more skewed", above=0.0
    )
    classes_per_peer: int | None = setting(
        None, "label: number of classes that a peer holds", low=1
    )
    min_records: int | None = setting(None, "records that every peer gets at least", low=1)
    records: int | None = setting(None, "blobs: records per peer", low=1)
    features: int | None = setting(None, "blobs: number of features", low=1)
    classes: int | None = setting(None, "blobs: number of classes", low=2)
    spread: float | None = setting(None, "blobs: standard deviation within a class", low=0.0)
    extractor: str | None = setting(
        None, "fixed features: gabor, patches, plain, or your own package.module:extractor"
    )
    cosines: int | None = setting(
        None, "features gabor: random waves; 0: Gabor features themselves", low=0
    )
    filters: int | None = setting(
        None, "features patches: size of the bank; each is worth eight features", low=1
    )
    trained: str | None = setting(
        None,
        "own features: published, or trained apart from all records here",
        choices=("published", "apart"),
    )
    extractor_digest: str | None = setting(None, "digest that the features must have; empty: any")
    forget_set: int | None = setting(
        None, "cifar10-klom: number of the set to be forgotten; empty: 2", low=1
    )
    holdout: float | None = setting(
        None, "heart, file: share of records that is the test set", above=0.0, below=1.0
    )
    path: str | None = setting(None, "file: a .csv, .tsv, .parquet or .npz file, or a folder")
    test_path: str | None = setting(None, "file: the test set; empty: data.holdout of the records")
    label_column: str | None = setting(None, "file: column of the label; empty: label")
    id_column: str | None = setting(None, "file: column of the record id; empty: id, if there")
    group_column: str | None = setting(None, "file: column of the peer; empty: group, if there")
    columns: str | None = setting(None, "file, records: features, as in age|sex; empty: the others")
    shape: str | None = setting(None, "records: shape of an input, as in 1x28x28")
    norm: float | None = setting(
        None, "file, records, own: longer inputs or features are shortened to this", above=0.0
    )
    labels: str | None = setting(None, "file: the classes, as in low|high; empty: as they occur")
    categories: str | None = setting(None, "file: values of text columns, as in sex=f|m; ward=a|b")
    normalisation: str | None = setting(
        None,
        "own arrays: published or without-forgotten, if scaling is free of the forgotten",
        choices=("published", "without-forgotten"),
    )
    scale: str | None = setting(None, "file: centre:reach of columns, as in age=50:30; size=0:9")
    missing: str | None = setting(
        None, "file: what stands for empty, NA and NaN, as in age=50; sex=unknown"
    )
    predicts: str | None = setting(
        None,
        "file: what the label is: class, number (regression) or labels (several, as in red|round)",
        choices=PREDICTS,
    )
    huber: float | None = setting(
        None, "file: number: residuals beyond this count linearly; empty: 1", above=0.0
    )


@dataclass(frozen=True)
class TrainSettings:
    """Training by token walk."""

    hops: int = setting(100, "hops of the training walk (the paper's T)", low=1)
    optimizer: str = setting("momentum", ", ".join(OPTIMIZERS), choices=OPTIMIZERS)
    learning_rate: float = setting(0.05, "step size", above=0.0)
    momentum: float = setting(0.9, "factor of the momentum optimizer", low=0.0, below=1.0)
    weight_decay: float = setting(0.0, "L2 regularisation added to every gradient", low=0.0)
    state: str = setting(
        "carried", "where optimizer state lives: carried, local or fresh", choices=OPTIMIZER_STATES
    )
    work: str = setting(
        "epochs", "a visit: epochs, averaged (s batches, one step), full, iid, slots", choices=WORK
    )
    epochs: int = setting(1, "local epochs per visit (work = epochs)", low=1)
    minibatches: int = setting(
        4, "minibatches per visit (averaged: the paper's s; iid: steps)", low=1
    )
    batch: int = setting(64, "minibatch size", low=1)
    slots: int = setting(1, "steps of a pass (work = slots)", low=1)
    shards: int = setting(1, "groups of peers, each with a walk and model of its own (sisa)", low=1)
    slices: int = setting(
        1, "number of slices in which records enter, one after the other (sisa)", low=1
    )
    capacity: int | None = setting(
        None, "most records of a peer (work = slots); empty: the task's published size", low=1
    )
    clip: float | None = setting(None, "bound on the norm of every step's gradient", above=0.0)
    schedule: str = setting("constant", "step sizes: constant, sqrt or inverse", choices=SCHEDULES)
    smoothness: float = setting(1.0, "schedules: the loss is this smooth", above=0.0)
    diameter: float = setting(1.0, "schedule sqrt: diameter R of the feasible set", above=0.0)
    gradient_bound: float = setting(1.0, "schedule sqrt: bound G on gradients", above=0.0)
    convexity: float = setting(1.0, "schedule inverse: strong convexity", above=0.0)
    feasible_radius: float | None = setting(
        None, "radius of the feasible ball around the origin", above=0.0
    )
    keep: str = setting(
        "last", "which iterate is the result: last, average or random", choices=KEEPS
    )


@dataclass(frozen=True)
class UnlearnSettings:
    """The walk that forgets.  Empty values are taken from training."""

    hops: int = setting(100, "hops of the unlearning walk (the paper's T_u)", low=1)
    p: float | None = setting(
        None, "probability of routing to the forgetting peer; empty: 1/peers", low=0.0, high=1.0
    )
    max_visits: int | None = setting(None, "cap on visits to the forgetting peer", low=0)
    direction: str = setting(
        "retain",
        "rrdu at u: retain (EXACT), forget (LIGHTWEIGHT), corrected",
        choices=DIRECTIONS,
        aliases=ALIASES,
    )
    visit: str = setting(
        "pass", "rrdu at u: pass (an epoch), minibatch or full (one step)", choices=VISITS
    )
    visit_optimizer: str = setting(
        "same", "rrdu at u: the token's optimizer (same) or plain (sgd)", choices=("same", "plain")
    )
    epsilon: float = setting(1.0, "target epsilon of the noise calibration", above=0.0)
    delta: float = setting(1e-5, "target delta of the noise calibration", above=0.0, below=1.0)
    calibration: str = setting(
        "paper", "noise: paper (Corollary 5.2, unit constant) or none", choices=("paper", "none")
    )
    sigma: float | None = setting(None, "noise scale; overrides the calibration", low=0.0)
    noise_on: str = setting(
        "weights", "noise once on the weights, or on every gradient", choices=NOISE_ON
    )
    clip: float | None = setting(None, "bound L on the correction's gradient", above=0.0)
    trust_radius: float | None = setting(
        None, "radius of the trust ball; empty: no projection", above=0.0
    )
    trust_centre: str = setting(
        "start", "centre of the trust ball: start or initial", choices=("start", "initial")
    )
    optimizer: str | None = setting(None, "as train.optimizer", choices=OPTIMIZERS)
    learning_rate: float | None = setting(None, "as train.learning_rate", above=0.0)
    momentum: float | None = setting(None, "as train.momentum", low=0.0, below=1.0)
    weight_decay: float | None = setting(None, "as train.weight_decay", low=0.0)
    work: str | None = setting(None, "as train.work", choices=WORK)
    reset_optimizer: bool = setting(False, "start unlearning with empty optimizer state")
    keep: str = setting(
        "last", "which iterate is the result: last, average or random", choices=KEEPS
    )


@dataclass(frozen=True)
class ForgetSettings:
    """What has to be forgotten.  Empty values are the task's own."""

    kind: str | None = setting(None, "backdoor, records, class, peer, listed or nothing")
    size: int | None = setting(None, "number of records (backdoor, records)")
    label: int | None = setting(None, "which class (kind = class)")
    ids: str | None = setting(None, "listed: a file with the records' ids, one per line")
    peer: int = setting(0, "the peer that has to forget", low=0)
    cap: int | None = setting(
        None, "account for this many records, to hide how many they are", low=1
    )


@dataclass(frozen=True)
class TriggerSettings:
    """The BadNets trigger.  Empty values are the task's own."""

    shape: str | None = setting(None, "square, cross or checkerboard")
    place: str | None = setting(None, "a corner (lower-right, ...) or centre")
    size: int | None = setting(None, "side length in pixels")
    value: float | None = setting(None, "brightness, 0 to 1")
    target: int | None = setting(None, "the class that triggered images are labelled")
    mode: str | None = setting(None, "replace records of the peer, or add stamped copies")


@dataclass(frozen=True)
class NoiseSettings:
    """Where privacy noise comes from."""

    source: str = setting(
        "simulated",
        "simulated (a known seed, protects nobody) or secret",
        choices=("simulated", "secret"),
    )
    secret_file: str = setting("", "source = secret: a file of 32 bytes or more, of mode 0600")
    attempt: int = setting(
        1, "how often noise was drawn for this request; above 1 is a redraw", low=1
    )


@dataclass(frozen=True)
class CertificateSettings:
    """The certificate of a run."""

    key: str = setting("", "file of an Ed25519 key that signs it; empty: unwalk sign, later")


@dataclass(frozen=True)
class EvaluateSettings:
    """What is measured along the way."""

    every: int = setting(5, "number of hops between two measurements", low=1)


@dataclass(frozen=True)
class PerformanceSettings:
    """Settings that may change speed and rounding, never the mechanism."""

    threads: int = setting(1, "torch threads; results are bit-equal for equal numbers only", low=1)
    digests: bool = setting(False, "digest of the token at every hop, not only at the end")
    precision: str = setting("float32", "cuda: float32 or bfloat16 for forward and backward")
    compiled: bool = setting(False, "cuda: fused kernels where they know the layers")
    engine: str = setting(
        "inprocess",
        "inprocess, fleet (several walks as one batch), ray (on a cluster) or auto",
        choices=ENGINES,
    )
    hosts: int | None = setting(
        None, "ray: processes that host the peers; empty: one per CPU of the cluster", low=1
    )
    checkpoint: float = setting(
        2.0, "seconds between checkpoints for --resume; 0: after every hop", low=0.0
    )


class MethodSettings(Protocol):
    """A section that a method brings: a frozen dataclass of settings with the section's name."""

    key: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


S = TypeVar("S", bound=MethodSettings)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run.  ``own`` are the methods' own sections; :func:`unwalk.methods.defaults` makes a
    configuration with all of them."""

    task: str = setting("digits", "the task; unwalk tasks lists them")
    method: str = setting("rrdu", "a method of unwalk methods, or package.module:method")
    preset: str = setting("practical", "practical, paper-matched, paper or certified")
    compare: list[str] = field(
        default_factory=lambda: ["finetune", "retrain"],
        metadata={"help": "methods that run beside it", "bounds": Bounds()},
    )
    seed: int = setting(0, "public seed: model, route, batches", low=0)
    streams: int = setting(
        VERSION, "version of the draws of routes and batches; 1 repeats older runs", low=1
    )
    device: str = setting("cpu", "cpu, cuda, or mps, which is untested")
    peers: int | None = setting(None, "number of peers; empty: the task's own", low=2)
    graph: GraphSettings = field(default_factory=GraphSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    unlearn: UnlearnSettings = field(default_factory=UnlearnSettings)
    own: tuple[MethodSettings, ...]
    forget: ForgetSettings = field(default_factory=ForgetSettings)
    trigger: TriggerSettings = field(default_factory=TriggerSettings)
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    certificate: CertificateSettings = field(default_factory=CertificateSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    performance: PerformanceSettings = field(default_factory=PerformanceSettings)

    def of(self, kind: type[S]) -> S:
        """A method's own section."""
        return next(section for section in self.own if isinstance(section, kind))

    def having(self, *sections: MethodSettings) -> Config:
        """A copy in which these sections replace those of the same type."""
        given = {section.key: section for section in sections}
        return replace(self, own=tuple(given.get(old.key, old) for old in self.own))

    @property
    def sections(self) -> dict[str, Any]:
        """Every section by its name, in the order of the TOML text; ``""`` is the top."""
        sections: dict[str, Any] = {"": self}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name == "own":
                sections |= {section.key: section for section in self.own}
            elif dataclasses.is_dataclass(value):
                sections[item.name] = value
        return sections


def table(config: Config) -> dict[str, Setting]:
    """Every setting by its key, with its value in ``config``.

    >>> from unwalk.methods import defaults
    >>> table(defaults())["unlearn.delta"].value
    1e-05
    """
    rows = {}
    for name, section in config.sections.items():
        for inner, kind, help, bounds in _settings_of(section.__class__):
            key = f"{name}.{inner}" if name else inner
            rows[key] = Setting(key, kind, getattr(section, inner), help, bounds)
    return rows


@functools.cache
def _settings_of(section: type[Any]) -> list[tuple[str, Any, str, Bounds]]:
    """Name, type, meaning and bounds of each setting of a section."""
    kinds = typing.get_type_hints(section)
    return [
        (item.name, kinds[item.name], item.metadata["help"], item.metadata["bounds"])
        for item in dataclasses.fields(section)
        if "help" in item.metadata
    ]


def flatten(config: Config) -> dict[str, Value]:
    """Every setting's value under its key."""
    return {key: row.value for key, row in table(config).items()}


def apply(config: Config, changes: Mapping[str, Value], *, where: str) -> Config:
    """A new configuration with ``changes`` (flat keys) made; ``where`` names their source.

    >>> from unwalk.methods import defaults
    >>> apply(defaults(), {"unlearn.p": "0.2"}, where="the command line").unlearn.p
    0.2
    """
    rows = table(config)
    changed: dict[str, dict[str, Value]] = {}
    for key, value in changes.items():
        if key not in rows:
            raise InvalidInput(
                f"{where} sets {key!r}, which is not a setting{_meant(key, rows)}; "
                "unwalk settings lists them all."
            )
        section, _, name = key.rpartition(".")
        changed.setdefault(section, {})[name] = rows[key].read(value, where)
    top: dict[str, Any] = changed.pop("", {})
    own = []
    for name, values in changed.items():
        section = replace(config.sections[name], **values)
        if hasattr(config, name):
            top[name] = section
        else:
            own.append(section)
    return replace(config.having(*own), **top)


def _meant(key: str, keys: Iterable[str]) -> str:
    """A hint for a key without its section (``hops`` for ``train.hops``), or mistyped."""
    inner = [k for k in keys if k.endswith(f".{key}")]
    return f" (did you mean {' or '.join(inner)}?)" if inner else near(key, keys)


def read_toml(path: Path) -> dict[str, Value]:
    """The flat settings of a TOML file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not a TOML file: {error}.") from error
    flat: dict[str, Value] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": v for inner, v in value.items()})
        else:
            flat[name] = value
    return flat


UNSAID: Mapping[str, Value] = {"streams": 1}
"""Settings of a run whose file does not name them: they were all that there was."""


FIRST = frozenset({"ddp", "dpsgd", "seal", "rewind", "restart", "sums", "noisy_start"})
"""Sections of methods that the name of every run counts; others count where they were changed."""


LATER: Mapping[str, Value] = {
    "model.frozen_digest": None,
    "data.extractor": None,
    "data.filters": None,
    "data.trained": None,
    "data.extractor_digest": None,
    "data.forget_set": None,
    "data.predicts": None,
    "data.huber": None,
    "data.missing": None,
    "forget.ids": None,
    "sums.bits": None,
    "dpsgd.visits": None,
}
"""Settings that came after runs were named, with what they were before: these do not count."""


def read_written(path: Path) -> dict[str, Value]:
    """The flat settings of a file that :func:`to_toml` wrote, now or in an earlier version."""
    return {**UNSAID, **read_toml(path)}


def parse_set(assignments: list[str]) -> dict[str, Value]:
    """``key=value`` pairs as given to ``--set``.

    >>> parse_set(["unlearn.p=0.1"])
    {'unlearn.p': '0.1'}
    """
    flat: dict[str, Value] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"--set got {text!r}; allowed: key=value, as in unlearn.p=0.1.")
        flat[key.strip()] = value.strip()
    return flat


def to_toml(config: Config, leave_out: Collection[str] = ()) -> str:
    """TOML that :func:`read_written` reads back to the same settings; empty is written ``none``.

    Sections and settings to ``leave_out`` are not written, nor is what a file of version 1 did not
    name.
    """
    lines: list[str] = []
    section = ""
    for key, value in flatten(config).items():
        if (key, value) in UNSAID.items() or {key, key.partition(".")[0]} & {*leave_out}:
            continue
        name, _, inner = key.rpartition(".")
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        lines.append(_toml_line(inner, value))
    return "\n".join(lines) + "\n"


def _toml_line(key: str, value: Value) -> str:
    if isinstance(value, bool):
        return f"{key} = {str(value).lower()}"
    if value is None:
        return f'{key} = "none"'
    if isinstance(value, list):
        return f"{key} = [{', '.join(_toml_text(v) for v in value)}]"
    return f"{key} = {_toml_text(value) if isinstance(value, str) else repr(value)}"


def _toml_text(value: str) -> str:
    """A basic string: JSON's escapes are TOML's, except that TOML wants DEL escaped as well."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def settings_digest(config: Config) -> str:
    """A SHA-256 digest of the settings that a run is named by.

    Which engine carries the walks, with how many hosts, and how often it is saved are not among
    them since version 2 of streams: the same draw of noise on another engine is the same run's.
    Nor are sections of methods and settings that came later, as long as nobody changed them: a run
    keeps its name when a method or a setting is added.
    """
    if config.streams > 1:
        usual = PerformanceSettings()
        neutral = replace(
            config.performance, engine=usual.engine, hosts=usual.hosts, checkpoint=usual.checkpoint
        )
        config = replace(config, performance=neutral)
    later = {own.key for own in config.own if own.key not in FIRST and own == type(own)()}
    later |= {key for key, row in table(config).items() if (key, row.value) in LATER.items()}
    return hashlib.sha256(to_toml(config, later).encode()).hexdigest()


def run_id(config: Config) -> str:
    """Names a run: the beginning of its settings' digest."""
    return settings_digest(config)[:16]


Settings = dict[str, Value]

PRESETS: dict[str, dict[str, Settings]] = {
    "paper": {
        "*": {
            "train.optimizer": "adam",
            "train.learning_rate": 0.005,
            "train.work": "averaged",
            "train.minibatches": 4,
            "unlearn.direction": "forget",
            "unlearn.visit": "minibatch",
            "unlearn.visit_optimizer": "plain",
            "unlearn.noise_on": "gradient",
            "unlearn.clip": 0.5,
            "unlearn.trust_radius": 10.82,
        },
        "cifar10": {"unlearn.clip": 0.2, "unlearn.trust_radius": 56.30},
    },
    "paper-matched": {
        "*": {
            "train.optimizer": "momentum",
            "train.learning_rate": 0.005,
            "unlearn.direction": "forget",
            "unlearn.visit": "pass",
            "unlearn.clip": 0.5,
            "unlearn.trust_radius": 10.82,
            "ddp.noise_on": "weights",
            "ddp.optimizer": "same",
            "ddp.centre": "start",
            "ddp.radius_means": "radius",
        },
        "digits": {"unlearn.hops": 200},
        "mnist": {"train.learning_rate": 0.01, "train.weight_decay": 5e-4},
        "cifar10": {
            "model.name": "resnet18-plain",
            "train.weight_decay": 1e-4,
            "unlearn.clip": 0.2,
            "unlearn.trust_radius": 56.30,
        },
    },
    "practical": {
        "*": {
            "unlearn.direction": "forget",
            "unlearn.visit": "pass",
            "unlearn.clip": 0.5,
            "unlearn.calibration": "none",
        },
        "digits": {"unlearn.hops": 200},
        "heart": {"train.optimizer": "sgd", "train.learning_rate": 1.0},
        # Inputs of length 1 at most: steps may be long.
        "mnist-gabor": {"train.learning_rate": 1.0},
        "a9a": {"train.optimizer": "sgd", "train.learning_rate": 2.0},
    },
    "certified": {
        "*": {
            "method": "seal",
            "model.name": "linear",
            "model.precision": "float64",
            "train.optimizer": "sgd",
            "train.work": "slots",
            "train.learning_rate": 3.7,
            "train.weight_decay": 0.003,
            "train.epochs": 3,
            "unlearn.hops": 60,
            "seal.local_epochs": 240,
            "evaluate.every": 1,
            "forget.kind": "records",
        },
        "heart": {
            "train.learning_rate": 1.0,
            "train.weight_decay": 0.03,
            "train.epochs": 1,
            "train.hops": 60,
            "unlearn.hops": 40,
            "seal.local_epochs": 0,
        },
    },
}


def preset_settings(preset: str, task: str) -> Settings:
    """The settings a preset makes for a task."""
    tables = PRESETS[check_choice("preset", preset, PRESETS)]
    return {**tables.get("*", {}), **tables.get(task, {})}
