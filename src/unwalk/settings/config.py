"""All settings of one run: read from files and the command line, checked, written as TOML.

A key is ``section.name`` (``unlearn.p``) or, at the top, ``name`` (``seed``).  Defaults are
overridden by the preset, then by a TOML file, then by ``--set``; an empty value means that the
task, or training, decides.  :func:`table` lists every setting of a configuration; everything else
here, and ``unwalk settings``, is made from it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import near
from unwalk.settings.fields import Bounds, Setting, Value, setting
from unwalk.settings.sections import (
    CertificateSettings,
    DataSettings,
    EvaluateSettings,
    ForgetSettings,
    GraphSettings,
    ModelSettings,
    NoiseSettings,
    PerformanceSettings,
    TrainSettings,
    TriggerSettings,
    UnlearnSettings,
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
    method: str = setting("rrdu", "the unlearning method; unwalk methods lists them")
    preset: str = setting("practical", "practical, paper-matched, paper or certified")
    compare: list[str] = field(
        default_factory=lambda: ["finetune", "retrain"],
        metadata={"help": "methods that run beside it", "bounds": Bounds()},
    )
    seed: int = setting(0, "public seed: model, route, batches", low=0)
    device: str = setting("cpu", "cpu or cuda")
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
    lines: list[str] = []
    section = ""
    for key, value in flatten(config).items():
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
    """A SHA-256 digest of the settings."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()


def run_id(config: Config) -> str:
    """Names a run: the beginning of its settings' digest."""
    return settings_digest(config)[:16]
