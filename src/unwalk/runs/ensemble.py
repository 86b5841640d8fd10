"""The models that measures need: many trainings on the same records, each with another seed.

A *member* is one seed: the model before forgetting, after forgetting by each method, and retrained.
The first member has the run's own seed and repeats the run.  Records, deletion and graph are the
run's in all of them.  Noise is simulated: to draw from the run's secret again would be a second
release.

What is kept of a model is what it answers, never its parameters.  A file for each part, method and
seed lies in a folder whose name is a digest of settings and data, so that another evaluation of the
same configuration finds it there.  These files are about the forgotten records: whoever has to
erase those has to delete the folder too.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from unwalk import walks
from unwalk.core import __version__
from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.core.plan import Method, Phase, Plan
from unwalk.core.program import Records
from unwalk.core.seeds import PublicSeeds
from unwalk.engines.choose import carries
from unwalk.engines.fleet import Fleet
from unwalk.engines.inprocess import InProcess
from unwalk.measures.gaussian_poison import statistics
from unwalk.methods.finetune import Finetune
from unwalk.methods.network_sgd import NetworkSGD, unlearn_descent
from unwalk.runs.assemble import Assembled, assemble, noise_of
from unwalk.runs.metrics import CHUNK, MOST, Meter, Reading, cost, logits_of, matched, sets_of
from unwalk.runs.run import Begun, Runner, Walked, Watch, carry, silent
from unwalk.runs.store import data_digest, write_file
from unwalk.runs.sweep import Cell, Count, Failed, Say, check_seen, sweep, uncounted, unsaid
from unwalk.settings.config import Config, flatten, settings_digest
from unwalk.tasks.task import ShardedTask

BEFORE = "trained"
"""The name of the model before anything was forgotten."""
PARTS = ("outputs", "relearn", "poison")
GOES_ON = "the same command makes the others"
FAILED = "failed"
"""What a file holds instead of arrays: why there are none."""
POISON = 0.32**0.5
"""Standard deviation of the poison, in standard deviations of the inputs (Pawelczyk et al.)."""
NEUTRAL = ("method", "compare", "certificate.", "noise.", "performance.")
"""Settings that no member depends on."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The members: ``found`` by part, method and seed; ``failed`` says why a method has none."""

    assembled: Assembled
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    labels: Mapping[str, npt.NDArray[np.int64]]
    found: dict[tuple[str, str, int], Arrays]
    failed: dict[tuple[str, str], str]

    def has(self, part: str, method: str) -> bool:
        """Whether every member has this part of this method."""
        return all((part, method, seed) in self.found for seed in self.seeds)

    def stacked(self, part: str, method: str, name: str) -> npt.NDArray[Any]:
        """One array over all members, the seeds first."""
        return np.stack([self.found[part, method, seed][name] for seed in self.seeds])

    def facts(self, part: str, method: str) -> list[dict[str, Any]]:
        """What is no array, member by member."""
        every = [self.found[part, method, seed]["facts"] for seed in self.seeds]
        return [json.loads(str(one)) for one in every]


def gather(
    assembled: Assembled,
    members: int,
    methods: Sequence[str],
    parts: Sequence[str],
    *,
    cache: Path,
    task: ShardedTask | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    until: float = math.inf,
    count: Count = uncounted,
    say: Say = unsaid,
) -> Ensemble:
    """The members of a run, made where they are not yet in ``cache``.

    ``task`` is the run's task if that was brought along; a named one is built by each worker.  All
    machines of a ``cluster`` must see the cache.  No walk is begun after the time ``until``:
    members that were not retrained by then are left out, and methods that another member lacks are
    in ``failed``.
    """
    base = replace(assembled.config, method=methods[0], compare=list(methods[1:]))
    seeds = tuple(base.seed + number for number in range(members))
    labels = {name: held.y.numpy() for name, held in sets_of(assembled.task).items()}
    place = cache.absolute() / _key(assembled)
    place.mkdir(parents=True, exist_ok=True)
    (place / "README").write_text(
        "Answers of models to forgotten records and others. Delete this folder with the records.\n",
        encoding="utf-8",
    )
    cells = []
    for group in (("outputs", "relearn"), ("poison",)):  # parts of the same walks
        wanted = tuple(part for part in group if part in parts)
        left = [s for s in seeds if not all(_whole(place, p, methods, s) for p in wanted)]
        size = max(1, -(-len(left) // jobs) if _in_fleets(assembled, assembled.training()) else 1)
        for first in range(0, len(left), size):
            chunk = tuple(left[first : first + size])
            arguments = (base, task, chunk, tuple(methods), wanted, place, until)
            cells.append(Cell(f"{wanted[0]} {chunk[0]}", _make, arguments))
    failed: dict[tuple[str, str], str] = {}
    arrays: dict[tuple[str, str, int], Arrays] = {}
    ends = sweep(cells, jobs=jobs, cluster=cluster, count=count, say=say, noun="member")
    for name, result in ends:
        part = name.split()[0]
        if not isinstance(result, Failed):
            reasons = {(one, method): why for one, method, why in result}
        elif part == "outputs":
            raise result.raised()
        else:
            reasons = {(part, method): result.reason for method in methods}
        failed = {**reasons, **failed}
    retrained = tuple(s for s in seeds if _file(place, "outputs", "retrain", s).exists())
    seeds = retrained or seeds
    for part in parts:
        for method in (BEFORE, *methods):
            for seed in seeds:
                if (kept := _read(place, part, method, seed)) is None:
                    continue
                if FAILED in kept:
                    failed.setdefault((part, method), str(kept[FAILED]))
                else:
                    arrays[part, method, seed] = kept
            made = sum((part, method, seed) in arrays for seed in seeds)
            if made < len(seeds) and (part, method) != ("relearn", BEFORE):
                reason = f"{made} of {len(seeds)} members are made; {GOES_ON}"
                failed.setdefault((part, method), reason)
    return Ensemble(assembled, seeds, tuple(methods), labels, arrays, failed)


def _key(assembled: Assembled) -> str:
    """Names a configuration: the run's settings that matter, and its data."""
    settings = {k: v for k, v in flatten(assembled.config).items() if not k.startswith(NEUTRAL)}
    data = data_digest(assembled.task, assembled.graph)
    told = json.dumps([__version__, MOST, settings, data], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _file(place: Path, part: str, method: str, seed: int) -> Path:
    return place / f"{part}-{method}-{seed}.npz"


def _read(place: Path, part: str, method: str, seed: int) -> Arrays | None:
    path = _file(place, part, method, seed)
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def _whole(place: Path, part: str, methods: Sequence[str], seed: int) -> bool:
    return all(_file(place, part, method, seed).exists() for method in methods)


def _write(place: Path, part: str, method: str, seed: int, arrays: Mapping[str, Any]) -> None:
    raw = io.BytesIO()
    np.savez_compressed(raw, **arrays)
    write_file(_file(place, part, method, seed), raw.getvalue())


def _in_fleets(assembled: Assembled, plan: Plan) -> bool:
    """Whether a fleet carries walks of this kind: where it can, whatever carried the run itself.

    On a CPU batched convolutions are slower than one walk after the other.
    """
    model = assembled.task.model()
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    slow = assembled.config.device == "cpu" and convolves
    return not slow and carries(plan, model)


def _carried(runners: Sequence[Runner], begun: Sequence[Begun]) -> list[Walked]:
    """Walks carried out by a fleet, or one after the other; one alone is faster without."""
    fleet = len(begun) > 1 and _in_fleets(runners[0].assembled, begun[0].watch.plan)
    return carry(begun, Fleet() if fleet else InProcess())


def _make(
    config: Config,
    own: ShardedTask | None,
    seeds: Sequence[int],
    methods: Sequence[str],
    parts: Sequence[str],
    place: Path,
    until: float,
) -> list[tuple[str, str, str]]:
    """Make parts of some members and write them; part, method and reason of what failed."""
    check_seen(place)
    if time.time() > until:
        return []
    base = assemble(config, own)
    task = base.task
    assembled = [member(base, seed) for seed in seeds]
    noised: list[Noised] = []
    if "poison" in parts:
        noised = [_poisoned(task, seed) for seed in seeds]
        pairs = zip(assembled, noised, strict=True)
        assembled = [replace(one, task=other.task) for one, other in pairs]
    runners = [Runner(one) for one in assembled]
    plans = [runner.assembled.training() for runner in runners]
    begun = [r.begin("train", plan, None) for r, plan in zip(runners, plans, strict=True)]
    trained = _carried(runners, begun)
    retrained: list[Walked] | None = None
    relearn = Relearning(runners, trained) if "relearn" in parts else None
    failed: list[tuple[str, str, str]] = []

    def made_of(part: str, walked: Sequence[Walked]) -> Made:
        if part == "outputs":
            return _outputs(runners, walked, retrained)
        if part == "relearn" and relearn is not None:
            return relearn.of(walked)
        return _statistics(task, noised, walked)

    def give_up(part: str, name: str, error: Exception) -> None:
        """A refusal is kept, since it would come again; a fault of the program is not."""
        failed.append((part, name, Failed.by(error).reason))
        if isinstance(error, UnwalkError):
            for seed in seeds:
                _write(place, part, name, seed, {FAILED: np.array(str(error))})

    for name in dict.fromkeys((BEFORE, "retrain", *methods)):
        wanted = [p for p in parts if not (p == "relearn" and name == BEFORE)]
        left = [p for p in wanted if not all(_file(place, p, name, s).exists() for s in seeds)]
        if not left and name != "retrain":
            continue
        if time.time() > until:
            break
        try:
            walked = trained
            if name != BEFORE:
                begun = [r.forget(name, w) for r, w in zip(runners, trained, strict=True)]
                walked = _carried(runners, begun)
        except Exception as error:
            for part in left:
                give_up(part, name, error)
            continue
        if name == "retrain":
            retrained = walked
        for part in left:
            try:
                made = made_of(part, walked)
            except Exception as error:
                give_up(part, name, error)
                continue
            for seed, arrays in zip(seeds, made, strict=True):
                _write(place, part, name, seed, arrays)
    return failed


def member(base: Assembled, seed: int) -> Assembled:
    """The same records and graph, walked with another seed and simulated noise."""
    noise = replace(base.config.noise, source="simulated", secret_file="", attempt=1)
    config = replace(base.config, seed=seed, noise=noise)
    return replace(base, config=config, noise=noise_of(config, settings_digest(config), base.task))


Made = list[dict[str, Any]]
"""Arrays to be kept, for each member."""


def _outputs(
    runners: Sequence[Runner], walked: Sequence[Walked], retrained: Sequence[Walked] | None
) -> Made:
    """Logits on every set, the readings along the walk, and the cost of each hop."""
    sets = sets_of(runners[0].assembled.task)
    made: Made = []
    for number, walk in enumerate(walked):
        config = runners[number].config
        arrays: dict[str, Any] = {
            key: logits_of(walk.model, held.x, torch.device(config.device))
            for key, held in sets.items()
        }
        oracle = None if retrained is None else retrained[number]
        facts = _facts(walk, config.forget.peer, oracle)
        made.append({**arrays, "facts": np.array(json.dumps(facts))})
    return made


def _facts(walk: Walked, unlearner: int, retrained: Walked | None) -> dict[str, Any]:
    plan = walk.outcome.plan
    phase = plan.phases[-1]
    first = plan.hops - phase.hops
    hops = walk.outcome.transcript.hops[first:]
    per_hop = [
        {
            "hops": 1,
            "visits_to_unlearner": int(hop.receiver == unlearner),
            "bytes": hop.nbytes,
            "gradients": hop.gradients,
        }
        for hop in hops
    ]
    oracle = None if retrained is None else retrained.readings[-1]
    return {
        "final": walk.readings[-1].values(),
        "matched": matched(walk.readings, phase.name, first, oracle),
        "cost": cost(walk.outcome.transcript, [phase.name], unlearner),
        "hops": per_hop,
        "seconds": [round(s, 6) for s in walk.seconds[first:]],
        "series": [asdict(reading) for reading in walk.readings],
    }


class Relearning:
    """The measure of forgetting along two walks that go on: with half of D_f, and without it."""

    def __init__(self, runners: Sequence[Runner], trained: Sequence[Walked]) -> None:
        task, self.config = runners[0].assembled.task, runners[0].config
        shard, rows = task.shard(task.unlearner), task.records(task.unlearner).forgotten
        used, kept_out = (rows, rows) if len(rows) == 1 else (rows[::2], rows[1::2])
        absent = np.setdiff1d(rows, used)
        again = task.with_shard(replace(shard, records=Records(shard.records.size, absent=absent)))
        device = torch.device(self.config.device)
        unused = Meter(task, device)
        unused.forgotten = Held(*shard.take(torch.from_numpy(kept_out), None)).to(device)
        descent = unlearn_descent(self.config)
        self.arms: list[tuple[str, ShardedTask, Method, Meter]] = [
            ("some", again, NetworkSGD(descent), unused),
            ("none", task, Finetune(descent), Meter(task, device)),
        ]
        self.runners = runners
        (self.key,) = {meter.only_forgetting() for *_, meter in self.arms}
        self.levels = {
            arm: [self._value(meter.read(walk.model, 0, "before")) for walk in trained]
            for arm, _, _, meter in self.arms
        }

    def of(self, walked: Sequence[Walked]) -> Made:
        """Both arms from where the walks of a method ended."""
        if walked[0].constituents is not None:
            raise InvalidInput("several models answer together, and no walk goes on from them")
        config = self.config
        facts: list[dict[str, Any]] = [{"horizon": config.unlearn.hops} for _ in walked]
        for arm, on, method, meter in self.arms:
            phase = Phase(arm, method, walks.Uniform(), config.unlearn.hops, reset_optimizer=True)
            begun = [_going_on(walk, on, phase, meter, config.evaluate.every) for walk in walked]
            first = [self._value(meter.read(walk.model, 0, "end")) for walk in walked]
            for number, walk in enumerate(_carried(self.runners, begun)):
                start = walked[number].outcome.plan.hops
                later = [[r.hop - start, self._value(r)] for r in walk.readings]
                facts[number][arm] = {
                    "before": self.levels[arm][number],
                    "series": [[0, first[number]], *later],
                }
        return [{"facts": np.array(json.dumps(one))} for one in facts]

    def _value(self, reading: Reading) -> float:
        value = reading.values()[self.key]
        assert value is not None
        return value


def _going_on(walk: Walked, task: ShardedTask, phase: Phase, meter: Meter, every: int) -> Begun:
    """A walk that goes on from where another one ended."""
    before = walk.outcome.plan
    plan = replace(before, task=task, phases=(*before.phases, phase), keeps="none")
    watch = Watch(
        name=phase.name,
        plan=plan,
        meter=meter,
        every=every,
        marks=frozenset({plan.hops}),
        earlier=before.hops,
        pause=0.0,
        file=None,
        tell=silent,
    )
    return Begun(watch, walk.outcome.progress.fork(plan.header()))


@dataclass(frozen=True, eq=False)
class Noised:
    """A task whose forgotten inputs have Gaussian noise, and that noise."""

    task: ShardedTask
    noise: torch.Tensor
    std: float


def _poisoned(task: ShardedTask, seed: int) -> Noised:
    shard, rows = task.shard(task.unlearner), task.records(task.unlearner).forgotten
    if task.source.feature_norm is not None or not shard.x.is_floating_point():
        raise InvalidInput(
            "inputs are features of bounded length or whole numbers, to which no Gaussian noise "
            "can be added."
        )
    std = POISON * float(shard.x.float().std())
    rng = PublicSeeds(seed).numpy("evaluate", "poison")
    noise = torch.from_numpy(rng.normal(0.0, std, (len(rows), *shard.x.shape[1:]))).to(
        shard.x.dtype
    )
    x = shard.x.clone()
    x[torch.from_numpy(rows)] += noise
    return Noised(task.with_shard(replace(shard, x=x)), noise, std)


def _statistics(task: ShardedTask, tasks: Sequence[Noised], walked: Sequence[Walked]) -> Made:
    """How far each model leans to the noise of its own forgotten inputs, at the clean inputs."""
    made: Made = []
    for noised, walk in zip(tasks, walked, strict=True):
        clean = task.forgotten.to(next(walk.model.parameters()).device)
        gradients = _input_gradients(walk.model, clean, task)
        scores = statistics(noised.noise.numpy(), gradients.cpu().numpy(), noised.std)
        made.append({"statistics": scores})
    return made


def _input_gradients(model: nn.Module, held: Held, task: ShardedTask) -> torch.Tensor:
    """The gradient of each record's loss with respect to its input."""
    gradients = []
    for x, y in zip(held.x.split(CHUNK), held.y.split(CHUNK), strict=True):
        at = x.detach().clone().requires_grad_(True)
        output = model.eval()(at)
        loss = nn.functional.cross_entropy(output, y, reduction="none")
        if task.loss is not None:
            loss = task.loss(output, y)
        gradients.append(torch.autograd.grad(loss.sum(), at)[0])
    return torch.cat(gradients)
