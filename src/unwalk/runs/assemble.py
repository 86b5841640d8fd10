"""From settings to plans: the one place where every room is plugged into the next."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.noise import NoiseSource, SecretNoise
from unwalk.core.plan import Graph, Performance, Phase, Plan
from unwalk.core.program import OPTIMIZER_STATES, OPTIMIZERS
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.core.workspace import build_model
from unwalk.engines.choose import ENGINES
from unwalk.engines.per_example import check_per_example
from unwalk.methods.ddp import CENTRES, NOISE_ON, RADIUS_MEANS
from unwalk.methods.local_work import SCHEDULES, WORK
from unwalk.methods.rewind import WAYS
from unwalk.methods.rrdu import ALIASES, DIRECTIONS
from unwalk.privacy.nominal import nominal_sigma
from unwalk.runs.baselines import READINGS, SIGMA_RULES, Calibrated, ddp_noise, dpsgd_noise
from unwalk.runs.catalogue import KEEPS, METHODS, VISITS
from unwalk.runs.config import Config, Value, apply, flatten, to_toml
from unwalk.runs.entries import Noise, train_phase
from unwalk.runs.facts import nominal_facts, public_facts
from unwalk.runs.presets import preset_settings
from unwalk.runs.requests import capacity, decide, keeps
from unwalk.runs.secrets import noise_of, salt_of
from unwalk.tasks import TASKS, Deletion, ShardedTask, Trigger, build_task

T = TypeVar("T", Deletion, Trigger)

CHOICES: dict[str, Collection[str]] = {
    "method": METHODS,
    "graph.kind": walks.GRAPHS,
    "model.precision": ("float32", "float64"),
    "train.optimizer": OPTIMIZERS,
    "train.state": OPTIMIZER_STATES,
    "train.work": WORK,
    "train.schedule": SCHEDULES,
    "train.keep": KEEPS,
    "unlearn.optimizer": OPTIMIZERS,
    "unlearn.work": WORK,
    "unlearn.keep": KEEPS,
    "unlearn.visit": VISITS,
    "unlearn.visit_optimizer": ("same", "plain"),
    "unlearn.calibration": ("paper", "none"),
    "unlearn.noise_on": NOISE_ON,
    "unlearn.trust_centre": ("start", "initial"),
    "rewind.way": WAYS,
    "noise.source": ("simulated", "secret"),
    "performance.engine": ENGINES,
    "data.normalisation": ("published", "without-forgotten"),
    "ddp.centre": CENTRES,
    "ddp.noise_on": NOISE_ON,
    "ddp.radius_means": RADIUS_MEANS,
    "ddp.sigma_rule": SIGMA_RULES,
    **{f"{k}.reading": READINGS for k in ("ddp", "dpsgd")},
    **{f"{k}.optimizer": ("plain", "same") for k in ("ddp", "dpsgd")},
    **{f"{k}.work": WORK for k in ("ddp", "dpsgd")},
}
LEAST: dict[str, int] = {
    "peers": 2,
    "seed": 0,
    "data.records": 1,
    "data.features": 1,
    "data.classes": 2,
    "data.classes_per_peer": 1,
    "data.min_records": 1,
    "data.cosines": 0,
    "train.hops": 1,
    "train.epochs": 1,
    "train.minibatches": 1,
    "train.batch": 1,
    "train.slots": 1,
    "train.shards": 1,
    "train.slices": 1,
    "train.capacity": 1,
    "seal.local_epochs": 0,
    "seal.visits": 0,
    "restart.local_steps": 0,
    "noisy_start.visits": 1,
    "noise.attempt": 1,
    "forget.cap": 1,
    "unlearn.hops": 1,
    "unlearn.max_visits": 0,
    "forget.peer": 0,
    "evaluate.every": 1,
    "performance.threads": 1,
}
EDGES: dict[str, dict[str, float]] = {
    **{f"train.{k}": {"above": 0.0} for k in ("learning_rate", "clip", "feasible_radius")},
    **{f"train.{k}": {"above": 0.0} for k in ("smoothness", "diameter", "gradient_bound")},
    **{f"unlearn.{k}": {"above": 0.0} for k in ("learning_rate", "clip", "trust_radius")},
    **{k: {"above": 0.0} for k in ("train.convexity", "unlearn.epsilon")},
    **{k: {"low": 0.0, "below": 1.0} for k in ("train.momentum", "unlearn.momentum")},
    **{k: {"low": 0.0} for k in ("train.weight_decay", "unlearn.weight_decay")},
    **{k: {"low": 0.0} for k in ("data.spread", "unlearn.sigma", "performance.checkpoint")},
    **{k: {"above": 0.0} for k in ("ddp.clip", "ddp.radius", "ddp.constant", "dpsgd.clip")},
    **{k: {"low": 0.0} for k in ("ddp.sigma", "dpsgd.noise_multiplier")},
    **{k: {"above": 0.0} for k in ("seal.radius", "seal.ratio", "sums.strength")},
    **{k: {"low": 0.0} for k in ("seal.std", "noisy_start.std")},
    "seal.share": {"above": 0.0, "below": 1.0},
    **{k: {"above": 0.0} for k in ("data.alpha", "data.norm")},
    "data.holdout": {"above": 0.0, "below": 1.0},
    "unlearn.p": {"low": 0.0, "high": 1.0},
    "unlearn.delta": {"above": 0.0, "below": 1.0},
}


def resolve(
    changes: Mapping[str, Value],
    file: Mapping[str, Value] | None = None,
    *,
    where: str = "the command line",
    file_name: str = "the file",
) -> Config:
    """Defaults, then the preset's, then the file's, then ``changes``, which come from ``where``."""

    def put_on(config: Config) -> Config:
        return apply(apply(config, file or {}, where=file_name), changes, where=where)

    first = put_on(Config())
    preset = preset_settings(first.preset, first.task)
    return check(put_on(apply(Config(), preset, where=f"preset {first.preset}")))


def check(config: Config) -> Config:
    """Refuse values that no run can use; what needs the data is checked when they are loaded."""
    given: dict[str, Any] = {k: v for k, v in flatten(config).items() if v is not None}
    for key, choices in CHOICES.items():
        if key in given:
            check_choice(key, given[key], choices)
    for name in config.compare:
        check_choice("compare", name, METHODS)
    direction = config.unlearn.direction.lower()
    check_choice("unlearn.direction", ALIASES.get(direction, direction), DIRECTIONS)
    for key, least in LEAST.items():
        if key in given:
            check_count(key, given[key], low=least)
    for key, edges in EDGES.items():
        if key in given:
            check_number(key, given[key], **edges)
    _check_device(config.device)
    return config


def _check_device(device: str) -> None:
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device):
        raise InvalidInput(f"device is {device!r}; allowed: cpu, cuda or cuda:NUMBER.")
    there = torch.cuda.device_count() if device != "cpu" else 0
    if device != "cpu" and int(device.partition(":")[2] or 0) >= there:
        raise InvalidInput(
            f"device is {device!r}, but this machine shows {there or 'no'} CUDA "
            f"device{'' if there == 1 else 's'}."
        )


@dataclass(frozen=True, eq=False)
class Assembled:
    """A configuration with its task and graph built."""

    config: Config
    task: ShardedTask
    graph: Graph
    noise: NoiseSource

    @property
    def p(self) -> float:
        """Routing probability; 1/N matches the natural visit rate."""
        given = self.config.unlearn.p
        return 1.0 / self.task.peers if given is None else given

    @property
    def run_id(self) -> str:
        """Names the run: a digest of its configuration."""
        return run_id(self.config)

    @property
    def sigma(self) -> float:
        """Noise scale at u: given, none, or the paper's Corollary 5.2 with unit constant."""
        unlearn = self.config.unlearn
        if unlearn.sigma is not None:
            return unlearn.sigma
        if unlearn.calibration == "none" or self.p == 0.0:
            return 0.0
        return nominal_sigma(
            unlearn.epsilon,
            unlearn.delta,
            unlearn.clip if unlearn.clip is not None else 1.0,
            unlearn.hops,
            self.p,
            self.task.peers,
        )

    def plan(self, *phases: Phase, method: str) -> Plan:
        """A plan of these phases on this task and graph."""
        performance = self.config.performance
        return Plan(
            run=self.run_id,
            task=self.task,
            graph=self.graph,
            phases=phases,
            seeds=PublicSeeds(self.config.seed),
            noise=self._noise_for(method),
            unlearner=self.config.forget.peer,
            public=self._public(method),
            performance=Performance(
                threads=performance.threads,
                device=self.config.device,
                digests=performance.digests,
                precision=performance.precision,
                compiled=performance.compiled,
            ),
            keeps=keeps(self.config, [self.config.method, *self.config.compare]),
            salt=salt_of(self.noise),
        )

    def _noise_for(self, method: str) -> NoiseSource:
        """Every method has noise of its own: none is ever used twice."""
        if isinstance(self.noise, SecretNoise):
            return replace(self.noise, run=f"{self.noise.run}/{method}")
        return self.noise

    def _public(self, method: str) -> dict[str, Any]:
        """The public facts of the header."""
        facts = public_facts(self.config, self.task, method, self.p)
        if method in METHODS:
            found = self.calibrated(method)
            said = nominal_facts(self.config, method, found, self.p, self.noise.origin)
            facts["nominal"] = said
        return facts

    def training(self) -> Plan:
        """The walk that learns."""
        return self.plan(train_phase(self.config), method="network-sgd")

    def calibrated(self, method: str) -> Calibrated:
        """A method's noise scale, and by which formula it was found."""
        records = self.task.records(self.config.forget.peer)
        if method == "ddp":
            return ddp_noise(self.config, self.task.peers, int(records.forgotten.size))
        if method == "dpsgd":
            return dpsgd_noise(self.config, self.task.peers, records)
        return Calibrated(self.sigma)

    def shares_training(self, method: str) -> bool:
        """Whether a method goes on from the model that the common training walk made."""
        return not METHODS[method].from_scratch and not self._own_training(method)

    def unlearning(self, method: str, trained: Transcript | None = None) -> Plan:
        """The whole walk of a method, training included unless it starts from scratch.

        ``trained`` is what training recorded; without it, what depends on it is left open.
        """
        entry = METHODS[method]
        if method == "dpsgd":
            check_per_example(build_model(self.task.model, 0))
        noise = self._noise(method, trained)
        phase = entry.phase(self.config, noise)
        if entry.from_scratch:
            return self.plan(phase, method=method)
        own = () if entry.training is None else entry.training(self.config, noise)
        return self.plan(*(own or (train_phase(self.config),)), phase, method=method)

    def _own_training(self, method: str) -> tuple[Phase, ...]:
        training = METHODS[method].training
        return () if training is None else training(self.config, self._noise(method))

    def _noise(self, method: str, trained: Transcript | None = None) -> Noise:
        header = {"unlearner": self.config.forget.peer, **self._public(method)}
        decided = decide(method, self.config, self.task, header, trained)
        return Noise(self.p, self.calibrated(method).scale, self.task.peers, decided)


def settings_digest(config: Config) -> str:
    """All 256 bits of a digest of the settings: no two are found that share it."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()


def run_id(config: Config) -> str:
    """Names a run: the beginning of its settings' digest."""
    return settings_digest(config)[:16]


def assemble(config: Config, task: ShardedTask | None = None) -> Assembled:
    """Build graph and task; ``task`` may be brought along instead.

    A graph from a file says how many peers there are; every other graph is as large as the task.
    """
    if config.graph.kind == "edge-list" and task is None:
        graph = _graph(config, config.peers)
        return _assembled(config, _task(config, graph.peers), graph)
    task = _task(config, config.peers) if task is None else _in_precision(config, task)
    for key, asked, there in (
        ("peers", config.peers, task.peers),
        ("forget.peer", config.forget.peer, task.unlearner),
    ):
        if asked not in (None, there):
            raise InvalidInput(f"{key} is {asked}, but the task that was brought has {there}.")
    return _assembled(config, task, _graph(config, task.peers))


def _assembled(config: Config, task: ShardedTask, graph: Graph) -> Assembled:
    if config.train.work == "slots" and config.train.capacity is None:
        config = replace(config, train=replace(config.train, capacity=capacity(task)))
    return Assembled(config, task, graph, noise_of(config, settings_digest(config), task))


def _graph(config: Config, peers: int | None) -> Graph:
    return walks.build(
        config.graph.kind,
        peers,
        degree=config.graph.degree,
        probability=config.graph.probability,
        path=config.graph.path or None,
        rng=PublicSeeds(config.seed).numpy("graph"),
    )


def _task(config: Config, peers: int | None) -> ShardedTask:
    """The named task, with what the settings say put over what suits it."""
    recipe = TASKS.get(config.task)
    given = {f.name: getattr(config.data, f.name) for f in fields(config.data)}
    del given["partition"], given["normalisation"]
    base = Deletion("nothing") if recipe is None else recipe.forget
    forget = _over(base, config.forget, "peer", "cap")
    for name in ("size", "label"):
        value = getattr(config.forget, name)
        if forget.kind == "nothing" and value is not None:
            raise InvalidInput(
                f"forget.{name} is {value}, but forget.kind is 'nothing'; "
                f"allowed: another kind, or no forget.{name}."
            )
    trigger = _over(Trigger() if recipe is None else recipe.trigger, config.trigger)
    return build_task(
        config.task,
        peers=peers,
        seed=config.seed,
        unlearner=config.forget.peer,
        partition=config.data.partition,
        model=config.model.name,
        forget=forget,
        trigger=trigger,
        options={k: v for k, v in given.items() if v is not None},
        dtype=getattr(torch, config.model.precision),
    )


def _in_precision(config: Config, task: ShardedTask) -> ShardedTask:
    """A task that was brought along, in 64 bits where the settings say so."""
    if config.model.precision == "float64" and task.dtype != torch.float64:
        return replace(task, dtype=torch.float64)
    return task


def _over(base: T, given: object, *leave: str) -> T:
    """``base`` with every field that ``given`` (a section) sets."""
    names = [f.name for f in fields(given) if f.name not in leave]  # type: ignore[arg-type]
    return replace(base, **{n: v for n in names if (v := getattr(given, n)) is not None})
