"""One run: train, forget by the chosen method and others, measure on the way, write.

:class:`Watch` watches a walk: a sink that measures, times, saves and reports; :func:`carry` carries
out several walks at once.  In a run with shards several models answer together.  Their walks are
phases of one plan, one after the other, each from the initial model.  :class:`Constituents` keeps
the token at the end of each; the phase that forgets replaces the token of the walk that it repeats.
"""

from __future__ import annotations

import copy
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save as save_safetensors
from torch import nn

from unwalk.certificates import certificate_of
from unwalk.certificates.document import FILE, MODEL, model_of, text_of
from unwalk.certificates.signing import load_key, sign
from unwalk.certificates.words import in_words
from unwalk.core import __version__
from unwalk.core.errors import Diverged, InvalidInput, Refused, told
from unwalk.core.grades import badge_of
from unwalk.core.outside import travelling
from unwalk.core.plan import Engine, Outcome, Plan, Progress
from unwalk.core.token import Layout, Token, Workspace, build_model
from unwalk.core.transcript import Transcript, canonical
from unwalk.core.validation import check_choice
from unwalk.engines.choose import carriers
from unwalk.engines.inprocess import InProcess
from unwalk.methods import METHODS
from unwalk.reports import render
from unwalk.reports.exports import Exported
from unwalk.runs import metrics
from unwalk.runs.assemble import Assembled, assemble
from unwalk.runs.metrics import Meter, Reading, worth
from unwalk.runs.planner import Log, Planned, Planner, free_readings
from unwalk.runs.store import Folder, WalkFile, data_digest, write_file
from unwalk.settings.config import Config, Value, flatten
from unwalk.tasks import can_be_named
from unwalk.tasks.task import ShardedTask


@final
class Together(nn.Module):
    """The logarithm of the mean of the members' softmax probabilities."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = torch.stack([member(x).log_softmax(1) for member in self.members])
        return torch.logsumexp(logs, 0) - torch.tensor(float(len(logs)), device=x.device).log()


@dataclass(eq=False)
class Constituents:
    """The tokens at the ends of a plan's walks; ``touched`` is the shard that has to forget."""

    plan: Plan
    touched: int
    ends: dict[int, Token] = field(default_factory=dict)

    def shard(self, hop: int) -> int:
        """The shard in whose model a hop of the plan works."""
        number, _ = self.plan.phase_of(hop)
        return self.touched if number == len(self.plan.phases) - 1 else number

    def after(self, hop: int, token: Token) -> None:
        """Keep a copy of the token where a walk ends."""
        number, phase_hop = self.plan.phase_of(hop)
        if phase_hop == self.plan.phases[number].hops:
            self.ends[self.shard(hop)] = token.clone()

    def together(self, hop: int, work: Workspace) -> nn.Module:
        """The models after a hop; the one in ``work`` replaces its shard's."""
        now = {**self.ends, self.shard(hop): work.token(hop=hop, at=-1, memory={})}
        return Together([self._model(now[shard], work.device) for shard in sorted(now)]).eval()

    def _model(self, token: Token, device: torch.device) -> nn.Module:
        model = build_model(self.plan.task.model, self.plan.seeds.integer("model")).to(device)
        views = Layout.of(model).views(token.parameters)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in views:
                    parameter.copy_(views[name])
            for name, buffer in travelling(model).items():
                buffer.copy_(token.buffers[name])
        return model


Tell = Callable[[str, int, int], None]
"""Progress: (walk, hops done, hops in all)."""


def silent(walk: str, done: int, hops: int) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Hop:
    """A hop that was made: of which walk, in which phase, and what was measured after it, if so."""

    walk: str
    hop: int
    hops: int
    phase: str
    seconds: float
    measures: dict[str, float] = field(default_factory=dict)


Callback = Callable[[Hop], None]
"""What is called after every hop."""

LOCAL = ("noise.secret_file", "certificate.key")
"""Settings that a logger is not told: paths of secrets on this machine."""


class Logger(ABC):
    """A tracker: told of the settings, of numbers at hops, and of the end."""

    def begin(self, settings: Mapping[str, Value]) -> None:  # noqa: B027  # some need no settings
        """The run begins, with these settings."""

    @abstractmethod
    def write(self, values: Mapping[str, float], hop: int) -> None:
        """Numbers after a hop, named ``walk/measure``."""

    def end(self) -> None:  # noqa: B027  # some have nothing to close
        """The run has ended, or failed."""

    def __call__(self, hop: Hop) -> None:
        """Write the time of every hop, and what was measured after it."""
        values = {"seconds": hop.seconds, **hop.measures}
        self.write({f"{hop.walk}/{key}": value for key, value in values.items()}, hop.hop)


@contextmanager
def _logged(callbacks: Sequence[Callback], config: Config) -> Iterator[None]:
    """Tell the loggers among the callbacks of the settings, and at last of the end."""
    loggers = [one for one in callbacks if isinstance(one, Logger)]
    for one in loggers:
        one.begin({k: v for k, v in flatten(config).items() if k not in LOCAL})
    try:
        yield
    finally:
        for one in loggers:
            one.end()


@dataclass(eq=False)
class Watch:
    """A sink for one walk: measures, times, saves and reports progress.

    It measures after every ``every`` hops and after the hops in ``marks``.  The first ``earlier``
    hops belong to the walk that this one continues; progress does not count them.
    """

    name: str
    plan: Plan
    meter: Meter
    every: int
    marks: frozenset[int]
    earlier: int
    pause: float
    file: WalkFile | None
    tell: Tell
    constituents: Constituents | None = None
    callbacks: Sequence[Callback] = ()
    readings: list[Reading] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    saved_at: float = field(default_factory=time.perf_counter)
    resumed_at: float = field(default_factory=time.perf_counter)

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        self.seconds.append(round(time.perf_counter() - self.resumed_at, 6))
        hop, hops = progress.hop, self.plan.hops
        measures: dict[str, float] = {}
        if self.constituents is not None:
            self.constituents.after(hop, progress.token)
        if hop % self.every == 0 or hop in self.marks:
            self.readings.append(self._read(hop, look()))
            read = self.readings[-1].values()
            measures = {key: value for key, value in read.items() if value is not None}
        now = time.perf_counter()
        if self.file is not None and (now - self.saved_at >= self.pause or hop == hops):
            ends = {} if self.constituents is None else self.constituents.ends
            self.file.save(progress, self.readings, self.seconds, ends)
            self.saved_at = time.perf_counter()
            if self.pause:  # saving takes at most a twentieth of the time
                self.pause = max(self.pause, 20.0 * (self.saved_at - now))
        self.tell(self.name, hop - self.earlier, hops - self.earlier)
        for callback in self.callbacks:
            phase = self.plan.phases[self.plan.phase_of(hop)[0]].name
            callback(Hop(self.name, hop, hops, phase, self.seconds[-1], measures))
        self.resumed_at = time.perf_counter()

    def _read(self, hop: int, work: Workspace) -> Reading:
        name = self.plan.phases[self.plan.phase_of(hop)[0]].name
        if self.constituents is None:
            with work.looked_at() as model:
                return self.meter.read(model, hop, name)
        phase = name if hop > self.plan.hops - self.plan.phases[-1].hops else "train"
        return self.meter.read(self.constituents.together(hop, work), hop, phase)


@dataclass(eq=False)
class Walked:
    """A finished walk with what was measured."""

    name: str
    outcome: Outcome
    readings: list[Reading]
    seconds: list[float]
    constituents: Constituents | None = None

    @property
    def model(self) -> torch.nn.Module:
        """The model, in evaluation mode; with shards, their models as one ensemble.

        It is a copy, since running a model may change its buffers.
        """
        if self.constituents is not None:
            return self.constituents.together(self.outcome.plan.hops, self.outcome.workspace)
        model = self.outcome.workspace.model
        try:
            return copy.deepcopy(model).eval()
        except Exception as error:  # a user's model may raise anything
            raise InvalidInput(
                f"the model {type(model).__name__} cannot be copied ({told(error)}); leave out of "
                "it what cannot be copied."
            ) from error

    def saved(self) -> bytes:
        """The token as a model's file: parameters and buffers under the model's own names."""
        if self.constituents is None:
            return save_safetensors(self.outcome.workspace.state_dict(self.outcome.token))
        return save_safetensors({k: v.to("cpu") for k, v in self.model.state_dict().items()})


@dataclass(frozen=True, eq=False)
class Begun:
    """A walk that is about to be carried out, from its start or its last checkpoint."""

    watch: Watch
    progress: Progress | None

    def end(self, outcome: Outcome) -> Walked:
        """The finished walk with its outcome."""
        watch = self.watch
        return Walked(watch.name, outcome, watch.readings, watch.seconds, watch.constituents)


class _Watches:
    """The sink of several walks.  The time of a hop does not include the measuring of others."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self.resumed_at = time.perf_counter()

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        watch = self.watches[index]
        watch.resumed_at = self.resumed_at
        watch.after(0, progress, look)
        self.resumed_at = watch.resumed_at


def carry(begun: Sequence[Begun], engine: Engine | str) -> list[Walked]:
    """Carry out walks with an engine, or with those that ``performance.engine`` names."""
    plans = [one.watch.plan for one in begun]
    chosen = carriers(plans, engine) if isinstance(engine, str) else [(engine, range(len(plans)))]
    ended: dict[int, Walked] = {}
    for carrier, numbers in chosen:
        walks = [begun[n] for n in numbers]
        before = [len(one.watch.seconds) for one in walks]
        resume = {n: one.progress for n, one in enumerate(walks) if one.progress is not None}
        sink = _Watches([one.watch for one in walks])
        outcomes = list(carrier.run([plans[n] for n in numbers], sink, resume))
        if carrier.together:
            _share_out([one.watch.seconds for one in walks], before)
        ended |= {n: begun[n].end(o) for n, o in zip(numbers, outcomes, strict=True)}
    return [ended[n] for n in range(len(begun))]


def _share_out(seconds: Sequence[list[float]], before: Sequence[int]) -> None:
    """Share the time of a hop equally among walks that hop together, after ``before`` hops each.

    >>> took = [[9.0, 3.0, 1.0], [0.0]]
    >>> _share_out(took, [1, 0])
    >>> took
    [[9.0, 1.5, 1.0], [1.5]]
    """
    most = max(len(one) - start for one, start in zip(seconds, before, strict=True))
    for hop in range(most):
        active = [
            (one, start + hop)
            for one, start in zip(seconds, before, strict=True)
            if start + hop < len(one)
        ]
        share = sum(one[at] for one, at in active) / len(active)
        for one, at in active:
            one[at] = round(share, 6)


@dataclass(eq=False)
class RunResult(Exported):
    """The result of a run: models, transcripts and the result dictionary."""

    config: Config
    result: dict[str, Any]
    walks: dict[str, Walked]

    @property
    def model(self) -> torch.nn.Module:
        """The model after unlearning by the main method."""
        return self.walks[self.config.method].model

    @property
    def transcript(self) -> Transcript:
        """Every hop and privacy event of the main method's walk."""
        return self.walks[self.config.method].outcome.transcript

    def final(self, method: str | None = None) -> dict[str, float | None]:
        """Final measures of a method (the main one by default)."""
        name = method or self.config.method
        check_choice("method", name, self.walks)
        return self.walks[name].readings[-1].values()

    def html(self) -> str:
        """The report as one self-contained page."""
        return render(self.result)


def _engine(config: Config) -> Engine | str:
    """The reference engine, or the name of the engine that replaces it."""
    name = config.performance.engine
    return InProcess() if name == "inprocess" else name


def run(
    config: Config,
    *,
    task: ShardedTask | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "",
    tell: Tell = silent,
    engine: Engine | None = None,
    callbacks: Sequence[Callback] = (),
    grade: str | None = None,
) -> RunResult:
    """Carry out a whole run; with ``out``, leave its folder behind.

    ``callbacks`` are called after every hop of every walk, in order.  With a ``grade``, the method
    is the cheapest that reaches it, by :mod:`unwalk.runs.planner`.
    """
    assembled, planned = assemble(config, task), None
    if grade is not None:
        planned = Planner(assembled).plan(grade)
        planned.chosen()
        assert planned.config is not None
        config = planned.config
        assembled = assemble(config, assembled.task)
    if config.certificate.key:
        load_key(Path(config.certificate.key))
    for name in methods_of(config):
        assembled.unlearning(name)
    growing = growing_folder(out, config, assembled, resume=resume, overwrite=overwrite)
    with growing as folder, _logged(callbacks, config):
        runner = Runner(assembled, folder, tell, engine or _engine(config), callbacks)
        runner.planned = planned
        result = runner.result(command)
        if folder is not None:
            _write(folder, result)
    return result


@contextmanager
def growing_folder(
    out: Path | None,
    config: Config,
    assembled: Assembled,
    *,
    resume: bool,
    overwrite: bool,
    seeds: int | None = None,
) -> Iterator[Folder | None]:
    """The folder of results, or None without ``out``; completed at the end, removed on an error.

    A resumed folder stays where an option is refused, such as a wrong address of a cluster.
    """
    if out is None:
        if resume:
            raise InvalidInput("--resume needs --out, the folder of the run that was stopped.")
        yield None
        return
    data = data_digest(assembled.task, assembled.graph)
    folder = Folder(out, config, data, resume=resume, overwrite=overwrite, seeds=seeds)
    try:
        yield folder
        folder.finish()
    except (InvalidInput, Diverged, Refused) as error:
        if not (resume and isinstance(error, InvalidInput)):
            folder.discard()
        raise
    finally:
        folder.release()


def _check_same_walk(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a walk whose public facts, such as the loss, are other ones now."""
    for key in [*now, *before]:
        if canonical({key: before.get(key)}) != canonical({key: now.get(key)}):
            raise InvalidInput(
                f"the walk {name!r} was begun with {key} {before.get(key)!r}, and now that is "
                f"{now.get(key)!r}; --resume needs the same task, model and loss."
            )


def methods_of(config: Config) -> list[str]:
    """The main method first, no method twice."""
    return list(dict.fromkeys([config.method, *config.compare]))


class Runner:
    """Carries out and measures the walks of one configuration; with a folder, saves them too."""

    def __init__(
        self,
        assembled: Assembled,
        folder: Folder | None = None,
        tell: Tell = silent,
        engine: Engine | str = "inprocess",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.callbacks = callbacks
        self.assembled = assembled
        self.config = assembled.config
        self.folder = folder
        self.tell = tell
        self.engine = engine
        self.planned: Planned | None = None
        device = torch.device(self.config.device)
        speed = self.config.performance
        self.meter = Meter(assembled.task, device, speed.precision, compiled=speed.compiled)

    def result(self, command: str) -> RunResult:
        """Train, forget by every method, and measure."""
        names = methods_of(self.config)
        trained = train([self], self.engine)
        before = self.answers(trained[0])
        if self.planned is not None:
            self.planned = self.planned.informed(_log(trained[0], self.planned.first_contact))
        walks = {name: forget([self], trained, name, self.engine)[0] for name in names}
        return finish(self, before, walks, command)

    def forget(self, name: str, trained: Walked) -> Begun:
        """The walk of one method."""
        plan = self.assembled.unlearning(name, trained.outcome.transcript)
        return self.begin(name, plan, trained)

    def walk(self, name: str, plan: Plan, trained: Walked | None) -> Walked:
        """Carry out one plan, continuing from ``trained`` unless it starts from scratch."""
        (walked,) = carry([self.begin(name, plan, trained)], self.engine)
        return walked

    def begin(
        self, name: str, plan: Plan, trained: Walked | None, every: int | None = None
    ) -> Begun:
        """Prepare what :meth:`walk` carries out, measured every so many hops (as set)."""
        file = None if self.folder is None else WalkFile(self.folder, name)
        kept = file.load() if file is not None else None
        train = self.config.train.hops
        shared = trained is not None and self.assembled.shares_training(name)
        earlier = train if shared else 0
        constituents = self._constituents(name, plan)
        if kept is not None:
            progress, readings, seconds, models = kept
            _check_same_walk(name, progress.transcript.header, plan.header())
            if constituents is not None:
                constituents.ends.update(models)
        elif trained is not None and earlier:
            ends = plan.hops == train or self.config.performance.digests
            progress = trained.outcome.progress.fork(plan.header(), end_digest=ends)
            readings, seconds = list(trained.readings), list(trained.seconds)
        else:
            progress, readings, seconds = None, [], []
        config = self.config
        watch = Watch(
            name=name,
            plan=plan,
            meter=self.meter,
            every=every or config.evaluate.every,
            marks=frozenset({train, plan.hops}),
            earlier=earlier,
            pause=config.performance.checkpoint,
            file=file,
            tell=self.tell,
            constituents=constituents,
            callbacks=self.callbacks,
            readings=readings,
            seconds=seconds,
        )
        return Begun(watch, progress)

    def _constituents(self, name: str, plan: Plan) -> Constituents | None:
        record = METHODS.get(name)
        shard = None if record is None or record.shard is None else record.shard(self.config)
        return None if shard is None else Constituents(plan, shard)

    def answers(self, walk: Walked) -> list[dict[str, float | int]]:
        samples, device = self.assembled.task.samples, torch.device(self.config.device)
        return [] if samples is None else metrics.confidences(walk.model, samples.x.to(device))


Carry = Callable[[Sequence[Begun], Engine | str], list[Walked]]
"""What carries walks out: :func:`carry`, or a memory of those that were."""


def train(runners: Sequence[Runner], engine: Engine | str, by: Carry = carry) -> list[Walked]:
    """The walks that learn, of runs that differ in seeds or settings but not in methods."""
    return by([r.begin("train", r.assembled.training(), None) for r in runners], engine)


def forget(
    runners: Sequence[Runner],
    trained: Sequence[Walked],
    name: str,
    engine: Engine | str,
    by: Carry = carry,
) -> list[Walked]:
    """The walks of one method, each from its own trained model."""
    return by([r.forget(name, walk) for r, walk in zip(runners, trained, strict=True)], engine)


def finish(
    runner: Runner, before: list[dict[str, float | int]], walks: dict[str, Walked], command: str
) -> RunResult:
    """The result of a run; ``walks`` starts with the main one, ``before`` is before unlearning."""
    after = {name: runner.answers(walk) for name, walk in walks.items()}
    result = _result(runner.assembled, walks, before, after, command)
    if runner.planned is not None:
        for one in result["methods"]:
            one["grade"] = badge_of(certificate_of(walks[one["name"]].outcome.transcript))
        result["plan"] = _beside(runner.planned, result["methods"][0])
    return RunResult(runner.config, result, walks)


def _log(trained: Walked, contact: int | None) -> Log:
    """What training noted that does not depend on the records to be forgotten."""
    return Log(
        trained.seconds,
        [hop.gradients for hop in trained.outcome.transcript.hops],
        free_readings(((r.hop, r.phase, r.clean) for r in trained.readings), contact),
    )


def _beside(planned: Planned, main: dict[str, Any]) -> dict[str, Any]:
    """What was predicted, and beside it what came."""
    outcome = {key: main["cost"][key] for key in ("hops", "bytes", "gradients", "seconds")}
    outcome |= {"accuracy": main["final"]["clean"], "grade": main["grade"]}
    return {**planned.to_json(), "outcome": outcome}


def _result(
    assembled: Assembled,
    walks: dict[str, Walked],
    before: list[dict[str, float | int]],
    after: dict[str, list[dict[str, float | int]]],
    command: str,
) -> dict[str, Any]:
    config, task, graph = assembled.config, assembled.task, assembled.graph
    name, main = next(iter(walks.items()))
    document = certificate_of(main.outcome.transcript, model_of(main.saved()))
    if key := config.certificate.key:
        document = sign(document, load_key(Path(key)))
    series = {name: walk.readings for name, walk in walks.items()}
    oracle = walks["retrain"].readings[-1] if "retrain" in walks else None
    edges = None
    if not graph.complete and graph.peers <= 400:
        edges = [[a, int(b)] for a in range(graph.peers) for b in graph.neighbours(a) if a < b]
    return {
        "format": 1,
        "unwalk": __version__,
        "command": command,
        "run": assembled.run_id,
        "seed": config.seed,
        "config": flatten(config),
        "task": {
            "name": task.name,
            "brought": not can_be_named(config.task),
            "classes": task.classes,
            **({} if task.predicts == "class" else {"predicts": task.predicts}),
            **({"unscaled": list(task.source.unscaled)} if task.source.unscaled else {}),
            "model": task.model_name,
            "parameters": assembled.model.parameters,
            "peers": task.peers,
            "records": task.training_records,
            "unlearner": config.forget.peer,
            "forget": {
                "kind": task.forget_kind,
                "size": int(task.records(config.forget.peer).forgotten.size),
                "target": task.target,
                "trigger": task.trigger_text,
            },
        },
        "graph": {"kind": graph.kind, "peers": graph.peers, "edges": edges},
        "phases": {"train": config.train.hops, "unlearn": config.unlearn.hops},
        "methods": [
            _method_result(assembled, walk, oracle, main=walk is main) for walk in walks.values()
        ],
        "walk": metrics.walk_of(main.outcome.progress),
        "samples": _samples(task, before, after),
        "claims": document["claims"],
        "certificate": {
            "document": document,
            "words": in_words(document),
            "worth": worth(name, document, task.classes, series),
        },
    }


def _method_result(
    assembled: Assembled, walk: Walked, oracle: Reading | None, *, main: bool
) -> dict[str, Any]:
    config, record = assembled.config, METHODS[walk.name]
    phase = walk.outcome.plan.phases[-1]
    first = walk.outcome.plan.hops - phase.hops
    spent: dict[str, Any] = metrics.cost(walk.outcome.transcript, [phase.name], config.forget.peer)
    spent["seconds"] = round(sum(walk.seconds[first:]), 3)
    result = {
        "name": walk.name,
        "label": record.title,
        "preset": config.preset,
        "main": main,
        "series": [asdict(r) for r in walk.readings],
        "final": walk.readings[-1].values(),
        "gap": metrics.gap(walk.readings[-1], oracle),
        "matched": metrics.matched(walk.readings, phase.name, first, oracle),
        "cost": spent,
    }
    if walk.name == "retrain":
        at = (r for r in walk.readings if r.hop == config.train.hops)
        result["final_at_train_hops"] = next(at).values()
    return result


def _samples(
    task: ShardedTask,
    before: list[dict[str, float | int]],
    after: dict[str, list[dict[str, float | int]]],
) -> list[dict[str, Any]]:
    if task.samples is None:
        return []
    return [
        {
            "image": image.tolist(),
            "label": int(label),
            "before": before[number],
            "after": {name: answers[number] for name, answers in after.items()},
        }
        for number, (image, label) in enumerate(
            zip(task.sample_images, task.samples.y, strict=True)
        )
    ]


def _write(folder: Folder, result: RunResult) -> None:
    place = folder.partial
    main = result.walks[result.config.method]
    write_file(place / "transcript.jsonl", main.outcome.transcript.text())
    write_file(place / FILE, text_of(result.result["certificate"]["document"]))
    write_file(place / MODEL, main.saved())
    lines = [
        json.dumps({"walk": name, "hop": hop, "seconds": seconds})
        for name, walk in result.walks.items()
        for hop, seconds in enumerate(walk.seconds, 1)
    ]
    write_file(place / "timing.jsonl", "\n".join(lines) + "\n")
    write_file(place / "result.json", json.dumps(result.result, indent=1, allow_nan=False) + "\n")
    write_file(place / "report.html", result.html())
