"""Makes plans and public facts from settings: the one place where all packages are connected.

The transcript's header states the public facts before the first hop, and accountants read them
there.  They must not depend on the records to be forgotten, except for their number (or the cap
announced instead).
"""

# Imports in functions: settings are resolved and listed without waiting for torch.

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from unwalk import walks
from unwalk.core import __version__
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Graph, Performance, Phase, Plan, Task
from unwalk.core.seeds import VERSION, PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.core.validation import check_choice, check_count, check_private_file
from unwalk.methods import METHODS, defaults
from unwalk.methods.contract import own
from unwalk.methods.network_sgd import train_descent, train_phase
from unwalk.methods.record import Calibrated, Decided, MethodRecord, Request
from unwalk.methods.seal import SealSettings
from unwalk.settings.config import (
    Config,
    Value,
    apply,
    preset_settings,
    run_id,
    settings_digest,
    table,
)
from unwalk.tasks import TASKS, Deletion, Trigger, build_task, can_be_named
from unwalk.tasks.forgetting import read_ids

if TYPE_CHECKING:
    from unwalk.core.noise import NoiseSource
    from unwalk.core.token import FrozenPart
    from unwalk.engines.execute import BareLinear
    from unwalk.tasks.task import ShardedTask

T = TypeVar("T", Deletion, Trigger)


def resolve(
    changes: Mapping[str, Value],
    file: Mapping[str, Value] | None = None,
    *,
    where: str = "the command line",
    file_name: str = "the file",
) -> Config:
    """Defaults, then the preset's, then the file's, then ``changes``, which come from ``where``."""

    for given in (file or {}, changes):
        load_methods(given.get("method"), given.get("compare"))

    def put_on(config: Config) -> Config:
        return apply(apply(config, file or {}, where=file_name), changes, where=where)

    first = put_on(defaults())
    preset = preset_settings(first.preset, first.task)
    return check(put_on(apply(defaults(), preset, where=f"preset {first.preset}")))


def check(config: Config) -> Config:
    """Refuse values that no run can use; what needs the data is checked when they are loaded."""
    check_choice("method", config.method, METHODS)
    for name in config.compare:
        check_choice("compare", name, METHODS)
    for row in table(config).values():
        row.check()
    check_count("streams", config.streams, low=1, high=VERSION)
    _check_device(config.device, config.model.precision)
    return config


COMPARED_ON = 8
"""How many records methods are compared on, where nobody names any."""


def with_something_to_forget(config: Config) -> Config:
    """The same settings, for comparisons and audits, which need something to be forgotten.

    Records drawn at random, where data of the user's own name none and the settings do not either.
    """
    recipe, forget = TASKS.get(config.task), config.forget
    nothing = can_be_named(config.task) and (recipe is None or recipe.forget.kind == "nothing")
    if forget.kind is not None or forget.ids or not nothing:
        return config
    size = COMPARED_ON if forget.size is None else forget.size
    return replace(config, forget=replace(forget, kind="records", size=size))


def load_methods(*names: Value) -> None:
    """Make the user's own methods among ``names`` (``package.module:method``) known."""
    for given in names:
        listed = given.split(",") if isinstance(given, str) else given
        for name in map(str.strip, listed if isinstance(listed, list) else []):
            if ":" in name and name not in METHODS:
                METHODS[name] = _own_method(name)


def _own_method(name: str) -> MethodRecord:
    """What a user's name stands for: a record, or a function that returns one."""
    from unwalk.tasks.models import call_named, load_named, load_object

    record = load_object(name, "method")
    if not isinstance(record, MethodRecord):
        record = call_named(load_named(name, "method"), name, "method")
    if not isinstance(record, MethodRecord):
        raise InvalidInput(
            f"method {name!r} gave a {type(record).__name__}; allowed: a "
            "unwalk.methods.record.MethodRecord, or a function that returns one."
        )
    if record.settings is not None and record.settings.key in defaults().sections:
        raise InvalidInput(
            f"method {name!r} calls its settings {record.settings.key!r}; allowed: a name that no "
            "other section has."
        )
    return own(record, name)


def _check_device(device: str, precision: str) -> None:
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,3})?", device):
        raise InvalidInput(f"device is {device!r}; allowed: cpu, cuda, cuda:NUMBER or mps.")
    if device == "cpu":
        return
    import torch

    if device == "mps":
        if not torch.backends.mps.is_available():
            raise InvalidInput("device is 'mps', but this machine shows no Apple GPU; take cpu.")
        if precision == "float64":
            raise InvalidInput(
                "device is 'mps', which has no 64-bit floats, but model.precision is float64; take "
                "cpu."
            )
        return
    devices = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= devices:
        raise InvalidInput(
            f"device is {device!r}, but this machine shows {devices or 'no'} CUDA "
            f"device{'' if devices == 1 else 's'}."
        )


@dataclass(frozen=True, eq=False)
class Assembled:
    """A configuration with its task and graph built; what plans need is computed once."""

    config: Config
    task: ShardedTask
    graph: Graph
    noise: NoiseSource
    _calibrated: dict[str, Calibrated] = field(default_factory=dict, init=False, repr=False)
    _public: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def p(self) -> float:
        """Routing probability; 1/N matches the natural visit rate."""
        given = self.config.unlearn.p
        return 1.0 / self.task.peers if given is None else given

    @cached_property
    def run_id(self) -> str:
        """Names the run: a digest of its configuration."""
        return run_id(self.config)

    @cached_property
    def model(self) -> ModelFacts:
        """The public facts of the initial model."""
        return ModelFacts.of(self.task, self.config.seed)

    def calibrated(self, method: str) -> Calibrated:
        """A method's noise scale, and the formula that gave it."""
        if method not in self._calibrated:
            records = self.task.records(self.config.forget.peer)
            self._calibrated[method] = METHODS[method].calibrated(
                self.config, self.task.peers, self.p, records
            )
        return self._calibrated[method]

    def public(self, method: str) -> dict[str, Any]:
        """The public facts in the header of a method's transcript, or of training's."""
        if method not in self._public:
            facts = public_facts(self.config, self.task, self.model, method, self.p)
            if method in METHODS:
                calibrated, record = self.calibrated(method), METHODS[method]
                facts["nominal"] = nominal_facts(self.config, record, calibrated, self.noise.origin)
            self._public[method] = facts
        return self._public[method]

    def plan(self, *phases: Phase, method: str, public: Mapping[str, Any] | None = None) -> Plan:
        """A plan of these phases on this task and graph; ``public`` replaces the method's facts."""
        performance = self.config.performance
        return Plan(
            run=self.run_id,
            task=self.task,
            graph=self.graph,
            phases=phases,
            seeds=PublicSeeds(self.config.seed, self.config.streams),
            noise=self._noise_for(method),
            unlearner=self.config.forget.peer,
            public=self.public(method) if public is None else public,
            performance=Performance(
                threads=performance.threads,
                device=self.config.device,
                digests=performance.digests,
                precision=performance.precision,
                compiled=performance.compiled,
                hosts=performance.hosts,
            ),
            keeps=self._keeps(),
            salt=salt_of(self.noise),
        )

    def _noise_for(self, method: str) -> NoiseSource:
        """The noise of one method; no two methods share noise.

        Where training itself is noisy, the register has all records of the visited peer: another
        training that is asked to forget others of them would draw for the same ones again.
        """
        from unwalk.core.noise import SecretNoise
        from unwalk.runs.releases import RunRegister

        if not isinstance(self.noise, SecretNoise):
            return self.noise
        register, record = self.noise.register, METHODS.get(method)
        if record is not None and record.guarantee.threat.training_time_view:
            assert isinstance(register, RunRegister)
            register = replace(register, trained=self.task)
        return replace(self.noise, run=f"{self.noise.run}/{method}", register=register)

    def _keeps(self) -> str:
        """Which arrivals the forgetting peer has to keep for the methods of this run."""
        records = [METHODS[name] for name in (self.config.method, *self.config.compare)]
        ways = {r.way_back(self.config) for r in records if r.way_back is not None}
        if not ways:
            return "none"
        return "all" if "first-use" in ways else "first"

    def training(self) -> Plan:
        """The walk that learns."""
        return self.plan(train_phase(self.config), method="network-sgd")

    def shares_training(self, method: str) -> bool:
        """Whether a method continues from the model of the common training walk."""
        record = METHODS[method]
        if record.from_scratch or record.training is None:
            return not record.from_scratch
        return not record.training(self.config, self._known(method, Decided()))

    def unlearning(self, method: str, trained: Transcript | None = None) -> Plan:
        """The whole walk of a method, training included unless it starts from scratch.

        ``trained`` is what training recorded; without it, what depends on training stays undecided.
        """
        from unwalk.core.token import build_model
        from unwalk.engines.per_example import check_per_example

        record = METHODS[method]
        if record.per_example:
            check_per_example(build_model(self.task.model, 0))
        if record.head:
            check_head(self.model, method)
        header = {"unlearner": self.config.forget.peer, **self.public(method)}
        most = most_records(self.config, self.task)
        request = Request(self.config, self.task, header, self.model.buffers, trained, most)
        decided = self._known(method, record.decide(request))
        phase = record.phase(self.config, decided)
        if record.from_scratch:
            return self.plan(phase, method=method)
        own = () if record.training is None else record.training(self.config, decided)
        return self.plan(*(own or (train_phase(self.config),)), phase, method=method)

    def _known(self, method: str, decided: Decided) -> Decided:
        """``decided`` with what needs no request: routing probability, noise scale and peers."""
        sigma = self.calibrated(method).scale
        return replace(decided, p=self.p, sigma=sigma, peers=self.task.peers)


def assemble(config: Config, task: ShardedTask | None = None) -> Assembled:
    """Build graph and task; ``task`` may be given instead.

    A graph from a file says how many peers there are; every other graph is as large as the task.
    """
    load_methods(config.method, config.compare)
    if config.graph.kind == "edge-list" and task is None:
        graph = _graph(config, config.peers)
        return _assembled(config, _task(config, graph.peers), graph)
    task = _task(config, config.peers) if task is None else _in_precision(config, task)
    for key, asked, actual in (
        ("peers", config.peers, task.peers),
        ("forget.peer", config.forget.peer, task.unlearner),
    ):
        if asked not in (None, actual):
            raise InvalidInput(f"{key} is {asked}, but the task that was brought has {actual}.")
    return _assembled(config, task, _graph(config, task.peers))


def _assembled(config: Config, task: ShardedTask, graph: Graph) -> Assembled:
    if config.train.work == "slots" and config.train.capacity is None:
        config = replace(config, train=replace(config.train, capacity=capacity(task)))
    noise = noise_of(config, settings_digest(config), task)
    assembled = Assembled(config, task, graph, noise)
    if config.model.frozen_digest is not None:
        check_frozen(assembled.model, config.model.frozen_digest)
    return assembled


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
    """The named task, with its defaults overridden by the settings."""
    import torch

    recipe = TASKS.get(config.task)
    given = {f.name: getattr(config.data, f.name) for f in fields(config.data)}
    del given["partition"], given["normalisation"]
    base = Deletion("nothing") if recipe is None else recipe.forget
    if config.forget.ids:
        base = Deletion("listed", ids=read_ids(Path(config.forget.ids)))
    forget = _over(base, config.forget, "peer", "cap", "ids")
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
    """A task that was given, in 64 bits if the settings say so."""
    import torch

    if config.model.precision == "float64" and task.dtype != torch.float64:
        return replace(task, dtype=torch.float64)
    return task


def _over(base: T, given: object, *leave: str) -> T:
    """``base`` with every field that ``given`` (a section) sets."""
    names = [f.name for f in fields(given) if f.name not in leave]  # type: ignore[arg-type]
    return replace(base, **{n: v for n in names if (v := getattr(given, n)) is not None})


def noise_of(config: Config, run: str, task: ShardedTask) -> NoiseSource:
    """The noise source that the settings name.

    To draw secret noise again, the attempt has to be raised, which the transcript records and a
    certificate refuses.  Other settings are another run, and other numbers before the noise another
    draw: the register of draws finds both (:mod:`unwalk.runs.releases`).
    """
    from unwalk.core.noise import SecretNoise, SimulatedNoise
    from unwalk.runs.releases import Draws, RunRegister, marks_of

    noise = config.noise
    if noise.source == "simulated":
        labels = ("simulated-noise",) if noise.attempt == 1 else ("simulated-noise", noise.attempt)
        return SimulatedNoise(PublicSeeds(config.seed).integer(*labels))
    if not noise.secret_file:
        raise InvalidInput("noise.source is 'secret', which needs noise.secret_file.")
    path = Path(noise.secret_file)
    check_private_file(path)
    if path.stat().st_nlink > 1:
        raise InvalidInput(
            f"{path} has {path.stat().st_nlink} names (hard links), each with a register of draws "
            "of its own; allowed: a secret with one name."
        )
    try:
        secret = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    register = RunRegister(Draws(path, secret), marks_of(task, secret))
    return SecretNoise(f"{run}/{noise.attempt}", secret, register)


def salt_of(noise: NoiseSource) -> bytes:
    """A secret that turns the transcript's digests into commitments; none in a simulation."""
    from unwalk.core.noise import SecretNoise

    if not isinstance(noise, SecretNoise):
        return b""
    message = f"unwalk/digest-salt/{noise.run}".encode()
    return hmac.new(noise.secret, message, hashlib.sha256).digest()


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """The public facts of the initial model, which is built once for them.

    ``head`` is its linear layer, or in words what the model is instead; ``initial_norm`` the length
    of that layer's parameters.  Trained parameters and buffers have ``nbytes`` bytes, one vector of
    these parameters ``vector_bytes``; ``frozen`` are the others.
    """

    parameters: int
    precision: str
    buffers: tuple[str, ...]
    head: BareLinear | str
    initial_norm: float
    nbytes: int
    vector_bytes: int
    frozen: FrozenPart | None = None

    @staticmethod
    def of(task: Task, seed: int) -> ModelFacts:
        """The facts of the model that a run with this seed begins with."""
        from unwalk.core.outside import travelling
        from unwalk.core.token import FrozenPart, build_model, flat
        from unwalk.engines.execute import bare_linear, length_of

        model = build_model(task.model, PublicSeeds(seed).integer("model"))
        parameters, head = list(model.parameters()), bare_linear(model)
        vector, buffers = flat(model), travelling(model)
        norm = 0.0 if isinstance(head, str) else length_of(vector)
        return ModelFacts(
            parameters=sum(p.numel() for p in parameters),
            precision=str(vector.dtype).removeprefix("torch."),
            buffers=tuple(sorted(buffers)),
            head=head,
            initial_norm=norm,
            nbytes=vector.nbytes + sum(b.nbytes for b in buffers.values()),
            vector_bytes=vector.nbytes,
            frozen=FrozenPart.of(model),
        )


def check_frozen(model: ModelFacts, wanted: str) -> None:
    """Refuse a model whose frozen part has another digest than the settings say."""
    if model.frozen is None:
        raise InvalidInput(
            f"model.frozen_digest is {wanted[:16]}..., but all parameters of this model are "
            "trained; allowed: a model with a frozen part, or no digest."
        )
    if model.frozen.digest != wanted:
        raise InvalidInput(
            f"the frozen part of the model ({model.frozen.parameters:,} parameters) has the digest "
            f"{model.frozen.digest[:16]}..., and what was agreed on is {wanted[:16]}...: all peers "
            "need the same frozen parameters, which never travel."
        )


def check_head(model: ModelFacts, method: str) -> None:
    """Refuse a model that is not one linear layer without a bias."""
    if isinstance(model.head, str) or model.head.bias:
        why = model.head if isinstance(model.head, str) else "a bias"
        raise InvalidInput(
            f"{method} needs a model that is one linear layer without a bias, and this one has "
            f"{why}: set model.name=linear, or take --features, of which one is a constant."
        )


def public_facts(
    config: Config, task: ShardedTask, model: ModelFacts, method: str, p: float
) -> dict[str, Any]:
    """The facts that a header states of a run by one method."""
    facts: dict[str, Any] = {
        "unwalk": __version__,
        "method": method,
        "forget": announced(config, task),
        "epsilon": config.unlearn.epsilon,
        "delta": config.unlearn.delta,
        "attempt": config.noise.attempt,
        **_of_the_data(config, task),
        "iterate": config.train.keep,
        "precision": _precision(config, model),
        **_batching(config),
        **_loss(task, model),
    }
    if model.frozen is not None:
        facts |= {"frozen": model.frozen.parameters, "frozen_digest": model.frozen.digest}
    if config.train.slices > 1:
        facts["slices"] = config.train.slices
    if method in METHODS:
        facts |= METHODS[method].facts(config, task.records(config.forget.peer), p)
    return facts


def announced(config: Config, task: ShardedTask) -> int:
    """The number of forgotten records that the run accounts for: the cap, or their true number."""
    size = int(task.records(config.forget.peer).forgotten.size)
    cap = config.forget.cap
    if cap is None:
        return size
    if visits := config.of(SealSettings).visits:
        raise InvalidInput(
            "forget.cap hides how many records are forgotten, but visits after a seal "
            f"(seal.visits is {visits}) tell; allowed: one of them."
        )
    if cap < size:
        raise InvalidInput(f"forget.cap is {cap}; allowed: {size} or more, the records to forget.")
    return cap


def _of_the_data(config: Config, task: ShardedTask) -> dict[str, Any]:
    """Where scales and classes come from, how data were dealt, and whose code computes.

    What the user declares about scaling counts only if the program does not know it.
    """
    source = task.source
    known, given = source.normalisation, config.data.normalisation
    facts: dict[str, Any] = {
        "normalisation": given if given is not None and known == "unknown" else known,
        "labels": source.labels_from,
        "dealing": task.holdings.dealing,
        "holdout": source.holdout,
        "code": "own" if task.own_code else "built-in",
        **({} if task.predicts == "class" else {"predicts": task.predicts}),
        **_features(task),
    }
    outside_state = task.outside_state
    return facts if outside_state is None else {**facts, "outside_state": outside_state}


def _features(task: ShardedTask) -> dict[str, Any]:
    """The fixed features that models see, by name and digest, and what these were made from."""
    if task.features is None:
        return {}
    extractor = task.features.extractor
    return {
        "features": extractor.name,
        "features_digest": extractor.digest,
        "features_from": extractor.origin,
    }


def _precision(config: Config, model: ModelFacts) -> str:
    """The number format of gradients; ``performance.precision`` acts on CUDA devices only."""
    if config.device != "cpu" and config.performance.precision != "float32":
        return config.performance.precision
    return model.precision


def _batching(config: Config) -> dict[str, Any]:
    work = train_descent(config).work
    if work.kind != "slots":
        return {"batching": work.kind}
    return {
        "batching": "slots",
        "slots": work.slots,
        "nominal_batch": work.nominal_batch,
        "slot_cap": work.nominal_batch,
    }


def _loss(task: ShardedTask, model: ModelFacts) -> dict[str, Any]:
    """The loss, where it is of a linear layer, with what its rounding depends on."""
    from unwalk.core.losses import Huber, is_built_in
    from unwalk.core.rounding import length

    loss, head = task.loss, model.head
    if not (loss is None or is_built_in(loss)):
        return {"loss": "the task's own"}
    if isinstance(head, str):
        return {"loss": f"of a model with {head}"}
    facts = {
        "loss": "softmax" if loss is None else loss.name,
        **({"loss_bound": loss.bound} if isinstance(loss, Huber) else {}),
        "inputs": head.inputs + head.bias,
        "outputs": head.outputs,
        "initial_norm": model.initial_norm,
    }
    norm = task.source.feature_norm
    if norm is None or task.source.augment is not None:
        return facts
    return {**facts, "feature_norm": length([norm, 1.0 if head.bias else 0.0])}


def nominal_facts(
    config: Config, record: MethodRecord, calibrated: Calibrated, origin: str
) -> list[dict[str, Any]]:
    """The paper's numbers, announced with the formula they come from; none without noise."""
    nominal = record.nominal
    if nominal is None or not calibrated.formula or calibrated.scale == 0.0:
        return []
    entry = {
        "epsilon": config.unlearn.epsilon,
        "delta": config.unlearn.delta,
        **calibrated.numbers,
        "formula": nominal.formula.name,
        "accountant": calibrated.accountant,
        "sigma": calibrated.scale,
        "reason": nominal.reason(calibrated, origin),
    }
    return [entry]


def most_records(config: Config, task: ShardedTask) -> int | None:
    """How many records all peers hold at most, from what is published or declared.

    Never a count of the records at hand; None where nothing is published or declared.
    """
    added = task.deletion.size or 0 if task.forget_kind == "backdoor" else 0  # m is public
    if config.train.capacity is not None:
        return config.train.capacity * task.peers
    published = task.source.published
    return None if published is None else sum(published) + added


def capacity(task: ShardedTask) -> int:
    """The largest number of records of a peer, from what is published about the task.

    B, by which every gradient sum of ``slots`` is divided, comes from it: a count of the records
    at hand would change with those to be forgotten.  So it is a constant of the task and its
    settings where records are dealt evenly or have natural peers, and asked for elsewhere.
    """
    published, dealing = task.source.published, task.holdings.dealing
    if published is not None and dealing == "iid":
        return -(-sum(published) // task.peers)
    if published is not None and dealing == "natural":
        return max(published)
    why = (
        "nothing is published of how many records it has"
        if published is None
        else f"with partition {dealing!r} a peer's share depends on the records"
    )
    raise InvalidInput(
        f"train.work is 'slots' and train.capacity is not set; of task {task.name!r} {why}, and a "
        "capacity that is counted on the data would tell of the records to be forgotten; allowed: "
        "the most records that any peer may hold, chosen without looking at those to be forgotten."
    )
