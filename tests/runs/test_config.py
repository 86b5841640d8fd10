"""Settings: every way in, the way back to TOML, and what is refused."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.small import BLOBS, small_run
from unwalk.core.errors import InvalidInput
from unwalk.methods import defaults
from unwalk.runs.assemble import resolve
from unwalk.runs.run import run
from unwalk.settings.config import (
    Value,
    apply,
    flatten,
    parse_set,
    read_toml,
    run_id,
    table,
    to_toml,
)

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(10**15), 10**15),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXTS,
    list[str]: st.lists(NAMES, max_size=3),
}


def value_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a setting's type; text that stands for nothing is left to its own test."""
    if isinstance(kind, types.UnionType):
        base = next(k for k in typing.get_args(kind) if k is not type(None))
        return st.none() | VALUES[base].filter(lambda v: v not in ("", "none"))
    return VALUES[kind]


FLAT = st.fixed_dictionaries(
    {}, optional={key: value_of(row.kind) for key, row in table(defaults()).items()}
)


@given(changes=FLAT)
def test_toml_reads_back_to_the_same_settings(changes, tmp_path_factory):
    config = apply(defaults(), changes, where="here")
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert apply(defaults(), read_toml(path), where="the file") == config
    assert {k: flatten(config)[k] for k in changes} == changes


@given(changes=FLAT)
def test_flat_settings_are_the_whole_configuration(changes):
    config = apply(defaults(), changes, where="here")
    assert apply(defaults(), flatten(config), where="here") == config


def test_every_setting_is_described():
    rows = table(defaults())
    assert {key: row.value for key, row in rows.items()} == flatten(defaults())
    assert all(row.help for row in rows.values())


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        defaults().train.hops = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.hops=7", "train.hops", 7),
        ("train.hops = 7 ", "train.hops", 7),
        ("unlearn.p=0.25", "unlearn.p", 0.25),
        ("unlearn.p=1", "unlearn.p", 1.0),
        ("unlearn.p=none", "unlearn.p", None),
        ("unlearn.p=", "unlearn.p", None),
        ("peers=none", "peers", None),
        ("model.name=none", "model.name", None),
        ("unlearn.calibration=none", "unlearn.calibration", "none"),
        ("unlearn.delta=1e-6", "unlearn.delta", 1e-6),
        ("unlearn.reset_optimizer=true", "unlearn.reset_optimizer", True),
        ("compare=retrain, finetune", "compare", ["retrain", "finetune"]),
        ("compare=", "compare", []),
        ("compare=none", "compare", []),
        ("graph.path=a=b", "graph.path", "a=b"),
    ],
)
def test_set_reads_text_as_the_type_of_the_setting(text, key, value):
    found = flatten(apply(defaults(), parse_set([text]), where="--set"))[key]
    assert found == value
    assert type(found) is type(value)


def test_set_needs_an_equals_sign():
    with pytest.raises(InvalidInput, match=r"^--set got 'unlearn.p'; allowed: key=value"):
        parse_set(["unlearn.p"])


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("train.hops", "many", "a whole number"),
        ("train.hops", 2.5, "a whole number"),
        ("train.hops", "--5", "a whole number"),
        ("train.hops", "²", "a whole number"),
        ("train.hops", True, "a whole number"),
        ("train.hops", "none", "a whole number"),
        ("peers", "few", "a whole number, or none"),
        ("train.learning_rate", "fast", "a finite number"),
        ("train.learning_rate", "nan", "a finite number"),
        ("train.learning_rate", float("inf"), "a finite number"),
        ("train.learning_rate", False, "a finite number"),
        ("unlearn.reset_optimizer", "maybe", "true or false"),
        ("unlearn.reset_optimizer", 1, "true or false"),
        ("task", 3, "text"),
        ("task", None, "text"),
        ("compare", [1], "names, separated by commas"),
        ("forget.size", {"a": 1}, "a whole number, or none"),
    ],
)
def test_a_wrong_type_is_named(key, value, allowed):
    with pytest.raises(InvalidInput) as refused:
        apply(defaults(), {key: value}, where="run.toml")
    assert str(refused.value) == f"run.toml sets {key} to {value!r}; allowed: {allowed}."


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[train]\nhosp = 3\n", "'train.hosp', which is not a setting (did you mean train.hops?)"),
        ("[trian]\nhops = 3\n", "'trian.hops', which is not a setting (did you mean train.hops?)"),
        ("sed = 3\n", "'sed', which is not a setting (did you mean seed?)"),
        ("hops = 3\n", "(did you mean train.hops or unlearn.hops?)"),
        ("train = 3\n", "'train', which is not a setting"),
        ("[train.clip]\nnorm = 3\n", "sets train.clip to {'norm': 3}; allowed: a finite number"),
        ("[zebra]\nx = 3\n", "'zebra.x', which is not a setting; unwalk settings lists"),
    ],
)
def test_a_typo_in_a_file_is_named_with_the_near_setting(tmp_path, text, hint):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        resolve({}, read_toml(path), file_name=str(path))
    assert hint in str(refused.value)
    assert str(refused.value).startswith(f"{path} sets ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"train.hops = ", "is not a TOML file: "),
        (b"a = 1\na = 2", "is not a TOML file: "),
        (b"\xff\xfe", "is not a TOML file: "),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, words):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        read_toml(path)
    assert str(refused.value).startswith(f"{path} {words}")
    assert str(refused.value).endswith(".")
    assert not str(refused.value).endswith("..")


def test_defaults_give_way_to_the_preset_the_file_and_the_command_line():
    key = "train.learning_rate"
    assert flatten(defaults())[key] == 0.05
    assert flatten(resolve({"preset": "paper"}))[key] == 0.005
    assert flatten(resolve({"preset": "paper"}, {key: 0.03}))[key] == 0.03
    assert flatten(resolve({"preset": "paper", key: 0.02}, {key: 0.03}))[key] == 0.02
    assert resolve({}, {"preset": "paper"}).train.optimizer == "adam"
    assert resolve({"preset": "practical"}, {"preset": "paper"}).train.optimizer == "momentum"


def test_none_takes_a_presets_value_back():
    assert resolve({"preset": "paper"}).unlearn.trust_radius == 10.82
    assert resolve({"preset": "paper", "unlearn.trust_radius": "none"}).unlearn.trust_radius is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("method", "rrud", "method is 'rrud' (did you mean rrdu?); allowed: "),
        ("preset", "papers", "preset is 'papers' (did you mean paper?); allowed: "),
        ("compare", ["retrian"], "compare is 'retrian' (did you mean retrain?)"),
        ("unlearn.p", 1.5, "unlearn.p is 1.5; allowed: a number in [0, 1]."),
        ("unlearn.p", -0.1, "unlearn.p is -0.1; allowed: a number in [0, 1]."),
        ("unlearn.delta", 0.0, "unlearn.delta is 0.0; allowed: a number in (0, 1)."),
        ("unlearn.epsilon", 0.0, "unlearn.epsilon is 0.0; allowed: a number in (0, inf)."),
        ("unlearn.sigma", -1.0, "unlearn.sigma is -1.0; allowed: a number in [0, inf)."),
        ("unlearn.direction", "exat", "unlearn.direction is 'exat'"),
        ("unlearn.noise_on", "nothing", "unlearn.noise_on is 'nothing'; allowed: gradient, weight"),
        ("train.work", "epoch", "train.work is 'epoch' (did you mean epochs?)"),
        ("train.batch", 0, "train.batch is 0; allowed: a whole number, 1 or more."),
        ("train.momentum", 1.0, "train.momentum is 1.0; allowed: a number in [0, 1)."),
        ("train.schedule", "cosine", "train.schedule is 'cosine'"),
        ("graph.kind", "rnig", "graph.kind is 'rnig' (did you mean ring?)"),
        ("peers", 1, "peers is 1; allowed: a whole number, 2 or more."),
        ("performance.checkpoint", -1, "performance.checkpoint is -1.0; allowed: a number in [0, "),
        ("device", "gpu", "device is 'gpu'; allowed: cpu, cuda, cuda:NUMBER or mps."),
        ("device", "cpu:x", "device is 'cpu:x'; allowed: cpu, cuda, cuda:NUMBER or mps."),
        ("device", "cuda:99", "device is 'cuda:99', but this machine shows "),
    ],
)
def test_a_value_out_of_range_is_refused_under_its_full_name(key, value, words):
    with pytest.raises(InvalidInput) as refused:
        resolve({key: value})
    assert str(refused.value).startswith(words)


def test_apples_device_is_accepted_where_it_is_and_has_no_64_bit_floats(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="'mps', but this machine shows no Apple GPU; take cpu"):
        resolve({"device": "mps"})
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve({"device": "mps"}).device == "mps"
    with pytest.raises(InvalidInput, match="which has no 64-bit floats, but"):
        resolve({"device": "mps", "task": "digits-flat", "preset": "certified"})


def test_a_run_can_be_repeated_from_its_config_file(tmp_path):
    changes: dict[str, Value] = {
        "unlearn.p": 0.3,
        "unlearn.sigma": 0.01,
        "graph.kind": "ring",
        "seed": 5,
    }
    first = small_run({**BLOBS, **changes}, out=tmp_path / "first")
    repeated = resolve({}, read_toml(tmp_path / "first" / "config.toml"))
    assert repeated == first.config
    run(repeated, out=tmp_path / "second")
    for name in ("model.safetensors", "transcript.jsonl", "config.toml"):
        assert _bytes(tmp_path / "first" / name) == _bytes(tmp_path / "second" / name)


def _bytes(path: Path) -> bytes:
    data = path.read_bytes()
    assert data
    return data


def test_who_carries_a_run_does_not_name_it():
    """Noise is drawn for a run by its name: the same walk on another engine is no second draw."""
    name = run_id(resolve({}))
    for same in (
        {"performance.engine": "ray"},
        {"performance.hosts": 3},
        {"performance.checkpoint": 0.0},
    ):
        assert run_id(resolve(same)) == name
    assert run_id(resolve({"performance.threads": 2})) != name
