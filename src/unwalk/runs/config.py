"""Every setting of a run, with its default, its meaning and its check.

Settings are frozen dataclasses; a key is written ``section.name`` (``unlearn.p``) or, at the top,
``name`` (``seed``).  Defaults are overridden by the preset, then by a TOML file, then by
``--set``; an empty value means that the task, or training, decides.  The whole resolved
configuration can be written back as TOML, and a run can be repeated from that file.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import near
from unwalk.runs.sections import (
    CertificateConfig,
    EvaluateConfig,
    NoiseConfig,
    NoisyStartConfig,
    PerformanceConfig,
    RestartConfig,
    RewindConfig,
    SealConfig,
    SumsConfig,
    TriggerConfig,
    setting,
)

Value = str | int | float | bool | None | list[str]


@dataclass(frozen=True)
class GraphConfig:
    """Who may hand the token to whom."""

    kind: str = setting(
        "complete", "complete, ring, torus, star, random-regular, erdos-renyi or edge-list"
    )
    degree: int = setting(4, "degree of the random regular graph")
    probability: float = setting(0.3, "edge probability of the Erdos-Renyi graph")
    path: str = setting("", "file for kind = edge-list: two peer numbers a line")


@dataclass(frozen=True)
class ModelConfig:
    """What is trained."""

    name: str | None = setting(None, "a named model, or package.module:factory; empty: the task's")
    precision: str = setting("float32", "inputs and parameters: float32, or float64 to certify")


@dataclass(frozen=True)
class DataConfig:
    """How records reach peers.  Empty values are the task's own."""

    partition: str | None = setting(None, "iid, dirichlet, label, quantity or natural")
    alpha: float | None = setting(None, "dirichlet, quantity: the smaller, the more skewed")
    classes_per_peer: int | None = setting(None, "label: number of classes that a peer holds")
    min_records: int | None = setting(None, "records that every peer gets at least")
    records: int | None = setting(None, "blobs: records per peer")
    features: int | None = setting(None, "blobs: number of features")
    classes: int | None = setting(None, "blobs: number of classes")
    spread: float | None = setting(None, "blobs: standard deviation within a class")
    cosines: int | None = setting(None, "mnist-gabor: random waves; 0: Gabor features themselves")
    holdout: float | None = setting(None, "heart, file: share of records that is the test set")
    path: str | None = setting(None, "file: a .csv, .tsv, .parquet or .npz file, or a folder")
    test_path: str | None = setting(None, "file: the test set; empty: data.holdout of the records")
    label_column: str | None = setting(None, "file: column of the label; empty: label")
    id_column: str | None = setting(None, "file: column of the record id; empty: id, if there")
    group_column: str | None = setting(None, "file: column of the peer; empty: group, if there")
    columns: str | None = setting(None, "file, records: features, as in age|sex; empty: the others")
    shape: str | None = setting(None, "records: shape of an input, as in 1x28x28")
    norm: float | None = setting(None, "records: longer inputs are shortened to this length")
    labels: str | None = setting(None, "file: the classes, as in low|high; empty: as they occur")
    categories: str | None = setting(None, "file: values of text columns, as in sex=f|m; ward=a|b")
    normalisation: str | None = setting(
        None, "own arrays: published or without-forgotten, if scaling is free of the forgotten"
    )
    scale: str | None = setting(None, "file: centre:reach of columns, as in age=50:30; size=0:9")


@dataclass(frozen=True)
class TrainConfig:
    """Training by token walk."""

    hops: int = setting(100, "hops of the training walk (the paper's T)")
    optimizer: str = setting("momentum", "sgd, momentum or adam")
    learning_rate: float = setting(0.05, "step size")
    momentum: float = setting(0.9, "factor of the momentum optimizer")
    weight_decay: float = setting(0.0, "L2 regularisation added to every gradient")
    state: str = setting("carried", "where optimizer state lives: carried, local or fresh")
    work: str = setting(
        "epochs", "a visit: epochs, averaged (s batches, one step), full, iid, slots"
    )
    epochs: int = setting(1, "local epochs a visit (work = epochs)")
    minibatches: int = setting(4, "minibatches a visit (averaged: the paper's s; iid: steps)")
    batch: int = setting(64, "minibatch size")
    slots: int = setting(1, "steps of a pass (work = slots)")
    shards: int = setting(1, "groups of peers, each with a walk and model of its own (sisa)")
    slices: int = setting(1, "records enter in so many slices, one after the other (sisa)")
    capacity: int | None = setting(
        None, "most records of a peer (work = slots); empty: the task's published size"
    )
    clip: float | None = setting(None, "bound on the norm of every step's gradient")
    schedule: str = setting("constant", "step sizes: constant, sqrt or inverse")
    smoothness: float = setting(1.0, "schedules: the loss is this smooth")
    diameter: float = setting(1.0, "schedule sqrt: diameter R of the feasible set")
    gradient_bound: float = setting(1.0, "schedule sqrt: bound G on gradients")
    convexity: float = setting(1.0, "schedule inverse: strong convexity")
    feasible_radius: float | None = setting(None, "radius of the feasible ball round the origin")
    keep: str = setting("last", "which iterate is the result: last, average or random")


@dataclass(frozen=True)
class UnlearnConfig:
    """The walk that forgets.  Empty values are taken from training."""

    hops: int = setting(100, "hops of the unlearning walk (the paper's T_u)")
    p: float | None = setting(None, "probability of routing to the forgetting peer; empty: 1/peers")
    max_visits: int | None = setting(None, "cap on visits to the forgetting peer")
    direction: str = setting("retain", "rrdu at u: retain (EXACT), forget (LIGHTWEIGHT), corrected")
    visit: str = setting("pass", "rrdu at u: pass (an epoch), minibatch or full (one step)")
    visit_optimizer: str = setting("same", "rrdu at u: the token's optimizer (same) or plain (sgd)")
    epsilon: float = setting(1.0, "target epsilon of the noise calibration")
    delta: float = setting(1e-5, "target delta of the noise calibration")
    calibration: str = setting("paper", "noise: paper (Corollary 5.2, unit constant) or none")
    sigma: float | None = setting(None, "noise scale; overrides the calibration")
    noise_on: str = setting("weights", "noise once on the weights, or on every gradient")
    clip: float | None = setting(None, "bound L on the correction's gradient")
    trust_radius: float | None = setting(None, "radius of the trust ball; empty: no projection")
    trust_centre: str = setting("start", "centre of the trust ball: start or initial")
    optimizer: str | None = setting(None, "as train.optimizer")
    learning_rate: float | None = setting(None, "as train.learning_rate")
    momentum: float | None = setting(None, "as train.momentum")
    weight_decay: float | None = setting(None, "as train.weight_decay")
    work: str | None = setting(None, "as train.work")
    reset_optimizer: bool = setting(False, "start unlearning with empty optimizer state")
    keep: str = setting("last", "which iterate is the result: last, average or random")


@dataclass(frozen=True)
class DDPConfig:
    """DDP, network-private SGD.  Epsilon, delta and hops are those of the unlearning walk."""

    clip: float = setting(1.0, "bound L on the norm of every step's gradient")
    radius: float | None = setting(10.0, "size R of the feasible ball; empty: none")
    centre: str = setting("origin", "its centre: origin, initial or start (of the phase)")
    radius_means: str = setting(
        "diameter", "R is the ball's diameter (section 6) or radius (App. D)"
    )
    sigma_rule: str = setting("alg2", "noise on every gradient: alg2, table2 (times m) or lemma")
    constant: float = setting(1.0, "constant factor of the sigma rule (C of the lemma)")
    sigma: float | None = setting(None, "noise on every gradient; overrides the rule")
    reading: str = setting(
        "continued", "continued from the trained model, or from-start: noisy training, U = A(D)"
    )
    optimizer: str = setting("plain", "plain SGD as in Algorithm 2, or the token's (same)")
    work: str | None = setting(None, "a visit: epochs, averaged or full; empty: as the walk's")
    noise_on: str = setting("gradient", "noise on every gradient, or once a visit on the weights")


@dataclass(frozen=True)
class DPSGDConfig:
    """DP-SGD.  Epsilon, delta and hops are those of the unlearning walk."""

    clip: float = setting(5.0, "bound C on the norm of every record's gradient")
    noise_multiplier: float | None = setting(None, "noise on the sum over C; empty: calibrated")
    reading: str = setting(
        "continued", "continued from the trained model, or from-start: noisy training, U = A(D)"
    )
    optimizer: str = setting("same", "the token's optimizer (same) or plain SGD")
    work: str | None = setting(None, "a visit: epochs, averaged or full; empty: as the walk's")


@dataclass(frozen=True)
class ForgetConfig:
    """What has to be forgotten.  Empty values are the task's own."""

    kind: str | None = setting(None, "backdoor, records, class, peer or nothing")
    size: int | None = setting(None, "number of records (backdoor, records)")
    label: int | None = setting(None, "which class (kind = class)")
    peer: int = setting(0, "the peer that has to forget")
    cap: int | None = setting(None, "account for this many records, to hide how many they are")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    task: str = setting("digits", "the task; unwalk tasks lists them")
    method: str = setting("rrdu", "the unlearning method; unwalk methods lists them")
    preset: str = setting("practical", "practical, paper-matched, paper or certified")
    compare: list[str] = field(
        default_factory=lambda: ["finetune", "retrain"],
        metadata={"help": "methods that run beside it"},
    )
    seed: int = setting(0, "public seed: model, route, batches")
    device: str = setting("cpu", "cpu or cuda")
    peers: int | None = setting(None, "number of peers; empty: the task's own")
    graph: GraphConfig = field(default_factory=GraphConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    unlearn: UnlearnConfig = field(default_factory=UnlearnConfig)
    ddp: DDPConfig = field(default_factory=DDPConfig)
    dpsgd: DPSGDConfig = field(default_factory=DPSGDConfig)
    seal: SealConfig = field(default_factory=SealConfig)
    rewind: RewindConfig = field(default_factory=RewindConfig)
    restart: RestartConfig = field(default_factory=RestartConfig)
    sums: SumsConfig = field(default_factory=SumsConfig)
    noisy_start: NoisyStartConfig = field(default_factory=NoisyStartConfig)
    forget: ForgetConfig = field(default_factory=ForgetConfig)
    trigger: TriggerConfig = field(default_factory=TriggerConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    certificate: CertificateConfig = field(default_factory=CertificateConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    performance: PerformanceConfig = field(default_factory=PerformanceConfig)


def flatten(config: Config) -> dict[str, Value]:
    """Every setting under its key.

    >>> flatten(Config())["unlearn.delta"]
    1e-05
    """
    flat: dict[str, Value] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            for inner in dataclasses.fields(value):
                flat[f"{item.name}.{inner.name}"] = getattr(value, inner.name)
        else:
            flat[item.name] = value
    return flat


def describe() -> Iterator[tuple[str, Value, str]]:
    """Key, default and meaning of every setting."""
    defaults = flatten(Config())
    for cls, prefix in _sections():
        for item in dataclasses.fields(cls):
            key = prefix + item.name
            if key in defaults:
                yield key, defaults[key], str(item.metadata["help"])


def _sections() -> Iterator[tuple[type[Any], str]]:
    yield Config, ""
    for name, kind in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(kind):
            yield typing.cast(type[Any], kind), f"{name}."


@functools.cache
def _types() -> Mapping[str, Any]:
    kinds: dict[str, Any] = {}
    for cls, prefix in _sections():
        for name, kind in typing.get_type_hints(cls).items():
            if not dataclasses.is_dataclass(kind):
                kinds[prefix + name] = kind
    return kinds


def apply(config: Config, changes: Mapping[str, Value], *, where: str) -> Config:
    """A new configuration with ``changes`` (flat keys) made; ``where`` names their source.

    >>> apply(Config(), {"unlearn.p": "0.2"}, where="the command line").unlearn.p
    0.2
    """
    kinds = _types()
    flat = flatten(config)
    for key, value in changes.items():
        if key not in kinds:
            raise InvalidInput(
                f"{where} sets {key!r}, which is not a setting{_meant(key, kinds)}; "
                "unwalk settings lists them all."
            )
        flat[key] = _typed(key, value, kinds[key], where)
    return _unflatten(flat)


def _meant(key: str, keys: Iterable[str]) -> str:
    """A hint for a key without its section (``hops`` for ``train.hops``), or mistyped."""
    inner = [k for k in keys if k.endswith(f".{key}")]
    return f" (did you mean {' or '.join(inner)}?)" if inner else near(key, keys)


def _unflatten(flat: Mapping[str, Value]) -> Config:
    given: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(kind):
            inner = {f.name: flat[f"{name}.{f.name}"] for f in dataclasses.fields(kind)}
            given[name] = typing.cast(type[Any], kind)(**inner)
        else:
            given[name] = flat[name]
    return Config(**given)


def _typed(key: str, value: Value, kind: Any, where: str) -> Value:
    """``value`` as the setting's type, reading text as ``--set`` gives it."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    base, optional = options[0], type(None) in options
    if optional and (value is None or value in ("", "none")):
        return None
    found = _READ[typing.get_origin(base) or base](value)
    if found is None:
        allowed = _WORDS[typing.get_origin(base) or base] + (", or none" if optional else "")
        raise InvalidInput(f"{where} sets {key} to {value!r}; allowed: {allowed}.")
    return found


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


_READ: Mapping[Any, Callable[[Value], Value]] = {
    bool: _read_flag,
    int: _read_count,
    float: _read_number,
    str: _read_text,
    list: _read_names,
}
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    list: "names, separated by commas",
}


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


def to_toml(config: Config) -> str:
    """TOML that :func:`read_toml` reads back to the same settings; empty is written ``none``."""
    flat = flatten(config)
    top = [k for k in flat if "." not in k]
    lines = [_toml_line(k, flat[k]) for k in top]
    section = ""
    for key, value in flat.items():
        name, _, inner = key.partition(".")
        if not inner:
            continue
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
