"""From settings to plans: the one place where every room is plugged into the next."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.noise import NoiseSource, SimulatedNoise
from unwalk.core.plan import Graph, Performance, Phase, Plan
from unwalk.core.program import OPTIMIZER_STATES, OPTIMIZERS
from unwalk.core.seeds import PublicSeeds
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.methods.rrdu import direction_named
from unwalk.runs.catalogue import METHODS, VISITS, Noise, train_phase
from unwalk.runs.config import Config, Value, apply, to_toml
from unwalk.runs.presets import preset_settings
from unwalk.tasks import TASKS, Deletion, ShardedTask, Trigger, build_task

T = TypeVar("T", Deletion, Trigger)
KEEPS = ("last", "average", "random")


def resolve(changes: dict[str, Value], file: dict[str, Value] | None = None) -> Config:
    """Defaults, then the preset's, then the file's, then ``changes``."""
    file = file or {}
    first = apply(apply(Config(), file, where="the file"), changes, where="the command line")
    config = apply(Config(), preset_settings(first.preset, first.task), where="the preset")
    config = apply(config, file, where="the file")
    return check(apply(config, changes, where="the command line"))


def check(config: Config) -> Config:
    """Refuse values that no run can use; what needs the data is checked when they are loaded."""
    check_choice("method", config.method, METHODS)
    for name in config.compare:
        check_choice("compare", name, METHODS)
    if config.peers is not None:
        check_count("peers", config.peers, low=2)
    check_count("seed", config.seed)
    check_count("train.hops", config.train.hops, low=1)
    check_count("unlearn.hops", config.unlearn.hops, low=1)
    check_count("evaluate.every", config.evaluate.every, low=1)
    check_count("performance.threads", config.performance.threads, low=1)
    check_count("forget.peer", config.forget.peer)
    for section, name in ((config.train, "train"), (config.unlearn, "unlearn")):
        check_choice(f"{name}.optimizer", section.optimizer or "sgd", OPTIMIZERS)
        check_choice(f"{name}.keep", section.keep, KEEPS)
        if section.learning_rate is not None:
            check_number(f"{name}.learning_rate", section.learning_rate, above=0.0)
        if section.momentum is not None:
            check_number(f"{name}.momentum", section.momentum, low=0.0, below=1.0)
        if section.weight_decay is not None:
            check_number(f"{name}.weight_decay", section.weight_decay, low=0.0)
        if section.clip is not None:
            check_number(f"{name}.clip", section.clip, above=0.0)
    check_choice("train.state", config.train.state, OPTIMIZER_STATES)
    unlearn = config.unlearn
    if unlearn.p is not None:
        check_number("unlearn.p", unlearn.p, low=0.0, high=1.0)
    if unlearn.max_visits is not None:
        check_count("unlearn.max_visits", unlearn.max_visits)
    check_number("unlearn.epsilon", unlearn.epsilon, above=0.0)
    check_number("unlearn.delta", unlearn.delta, above=0.0, below=1.0)
    check_choice("unlearn.visit", unlearn.visit, VISITS)
    check_choice("unlearn.visit_optimizer", unlearn.visit_optimizer, ("same", "plain"))
    check_choice("unlearn.calibration", unlearn.calibration, ("paper", "none"))
    check_choice("unlearn.trust_centre", unlearn.trust_centre, ("start", "initial"))
    for key, radius in (
        ("train.feasible_radius", config.train.feasible_radius),
        ("unlearn.trust_radius", unlearn.trust_radius),
    ):
        if radius is not None:
            check_number(key, radius, above=0.0)
    direction_named(unlearn.direction)
    check_choice("device", config.device.split(":")[0], ("cpu", "cuda"))
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInput(f"device is {config.device!r}, but this machine shows no CUDA device.")
    return config


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
        return hashlib.sha256(to_toml(self.config).encode()).hexdigest()[:16]

    @property
    def sigma(self) -> float:
        r"""Noise scale at u: given, none, or the paper's Corollary 5.2 with unit constant.

        :math:`\sigma = \frac{L}{\varepsilon}\sqrt{p T_u \ln(1/\delta) \ln N / N}`.
        """
        unlearn, peers = self.config.unlearn, self.task.peers
        if unlearn.sigma is not None:
            return unlearn.sigma
        if unlearn.calibration == "none":
            return 0.0
        bound = unlearn.clip if unlearn.clip is not None else 1.0
        inside = self.p * unlearn.hops * math.log(1 / unlearn.delta) * math.log(peers) / peers
        return bound / unlearn.epsilon * math.sqrt(inside)

    def plan(self, *phases: Phase, method: str) -> Plan:
        """A plan of these phases on this task and graph."""
        performance = self.config.performance
        return Plan(
            run=self.run_id,
            task=self.task,
            graph=self.graph,
            phases=phases,
            seeds=PublicSeeds(self.config.seed),
            noise=self.noise,
            unlearner=self.config.forget.peer,
            public={
                "method": method,
                "forget": int(self.task.records(self.config.forget.peer).forgotten.size),
            },
            performance=Performance(performance.threads, self.config.device, performance.digests),
        )

    def training(self) -> Plan:
        """The walk that learns."""
        return self.plan(train_phase(self.config), method="network-sgd")

    def unlearning(self, method: str) -> Plan:
        """The whole walk of a method, training included unless it starts from scratch."""
        entry = METHODS[method]
        phase = entry.phase(self.config, Noise(self.p, self.sigma))
        if entry.from_scratch:
            return self.plan(phase, method=method)
        return self.plan(train_phase(self.config), phase, method=method)


def assemble(config: Config, task: ShardedTask | None = None) -> Assembled:
    """Build task and graph; ``task`` may be brought along instead."""
    task = task or _task(config)
    if config.peers is not None and task.peers != config.peers:
        raise InvalidInput(f"peers is {config.peers}; the task has {task.peers}.")
    seeds = PublicSeeds(config.seed)
    graph = walks.build(
        config.graph.kind,
        task.peers,
        degree=config.graph.degree,
        probability=config.graph.probability,
        path=config.graph.path,
        rng=seeds.numpy("graph"),
    )
    noise = SimulatedNoise(seeds.integer("simulated-noise"))
    return Assembled(config, task, graph, noise)


def _task(config: Config) -> ShardedTask:
    """The named task, with what the settings say put over what suits it."""
    recipe = TASKS.get(config.task)
    given = {f.name: getattr(config.data, f.name) for f in fields(config.data)}
    del given["partition"]
    forget = _over(Deletion("nothing") if recipe is None else recipe.forget, config.forget, "peer")
    trigger = _over(Trigger() if recipe is None else recipe.trigger, config.trigger)
    return build_task(
        config.task,
        peers=config.peers,
        seed=config.seed,
        unlearner=config.forget.peer,
        partition=config.data.partition,
        model=config.model.name,
        forget=forget,
        trigger=trigger,
        options={k: v for k, v in given.items() if v is not None},
    )


def _over(base: T, given: object, *leave: str) -> T:
    """``base`` with every field that ``given`` (a section) sets."""
    names = [f.name for f in fields(given) if f.name not in leave]  # type: ignore[arg-type]
    return replace(base, **{n: v for n in names if (v := getattr(given, n)) is not None})
