r"""Deletion capacity, measured: how many records can be forgotten at once, beside the formulas.

The excess of a model is its test loss less that of retraining without the records, with the same
seed and the same L2 regularisation.  The capacity at a tolerance :math:`\gamma` is the largest m of
those tried up to which the mean excess stays at most :math:`\gamma`.  The paper's definition takes
the worst records and the least loss there is; here records are drawn at random and retraining is a
walk, so that what is measured is from above.

DDP and DP training are measured from the start, where forgetting does nothing.  These and RR-DU
take steps of :math:`R/(G\sqrt T)`, as the bounds have it, with :math:`G^2 = L^2 + p\,d\sigma^2`;
seals, release and retraining those of the preset.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from unwalk.core import __version__
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Plan, Progress
from unwalk.core.token import Workspace
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.engines.inprocess import InProcess
from unwalk.methods import METHODS
from unwalk.methods.ddp import DDPSettings
from unwalk.methods.dpsgd import DPSGDSettings
from unwalk.methods.private import local_work
from unwalk.privacy.capacity import CAPACITIES, alignment_bias, nominal_alignment_bias
from unwalk.privacy.nominal import PaperSetting, corrected_sigma
from unwalk.privacy.utility import (
    effective_variance,
    last_risk,
    nominal_effective_variance,
    nominal_table_1,
)
from unwalk.reports.capacity_page import largest, lines_of, picture_of, render_capacity
from unwalk.reports.exports import csv_text
from unwalk.runs.assemble import Assembled, assemble
from unwalk.runs.compare import USUAL, SweepOptions, swept, teller
from unwalk.runs.grid import Point, carried_out, points_of
from unwalk.runs.planner import Planner, Way
from unwalk.runs.sharing import Memory
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Cell, Failed
from unwalk.settings.config import Config, Value, flatten, run_id

FORMAT = 1
LIPSCHITZ = math.sqrt(2.0)
"""A bound on the gradients of softmax regression on inputs of length 1 at most."""
BASE: Mapping[str, Value] = {
    "preset": "certified",
    "unlearn.hops": 100,
    "unlearn.direction": "forget",
    "unlearn.visit": "full",
    "unlearn.visit_optimizer": "plain",
    "unlearn.noise_on": "gradient",
    "unlearn.clip": LIPSCHITZ,
    "unlearn.trust_radius": 10.0,
    "ddp.reading": "from-start",
    "ddp.sigma_rule": "table2",
    "ddp.work": "full",
    "ddp.optimizer": "same",
    "ddp.clip": LIPSCHITZ,
    "ddp.radius": 20.0,
    "dpsgd.reading": "from-start",
    "dpsgd.optimizer": "same",
    "dpsgd.clip": 0.5,
    "evaluate.every": 1000,
}
"""Settings of all methods, for a linear head on inputs of length 1 at most."""
OWN: Mapping[str, Mapping[str, Value]] = {
    "rrdu": {"unlearn.work": "averaged"},
    "ddp": {},
    "seal": {},
    "release": {},
    "dpsgd": {"train.epochs": 1},
    "retrain": {},
}
"""The methods that are measured, with settings of their own."""
PREDICTED = ("seal", "release")
"""Methods of which the plan knows a bound on what their noise adds to the loss."""
GAMMAS = tuple(10.0 ** (power / 8.0) for power in range(-24, 41))
FACTORS = tuple(10.0 ** (power / 8.0) for power in range(-8, 17))
LEAST: Mapping[str, float] = {"epsilon": 0.0, "peers": 3, "records": 1, "dimension": 1}
"""Quantities of the formulas that are varied, each by :data:`FACTORS`, with its least value."""
VARIANCE_HOPS = 500
"""Hops over which the second moment of a hop is measured."""

Make = Callable[[Mapping[str, Value], Mapping[str, Value]], Config]
"""Makes a configuration of usual settings, over them the user's own, over them fixed ones."""


def setting_at(assembled: Assembled) -> PaperSetting:
    """A configuration in the paper's notation."""
    config, task = assembled.config, assembled.task
    unlearn, ddp = config.unlearn, config.of(DDPSettings)
    if unlearn.trust_radius is None or unlearn.clip is None or ddp.radius is None:
        raise InvalidInput(
            "unlearn.trust_radius, unlearn.clip or ddp.radius is empty; allowed: numbers above 0, "
            "without which the formulas say nothing."
        )
    return PaperSetting(
        radius=unlearn.trust_radius,
        lipschitz=unlearn.clip,
        dimension=assembled.model.parameters,
        records=int(task.records(config.forget.peer).all.size),
        epsilon=unlearn.epsilon,
        delta=unlearn.delta,
        peers=task.peers,
        hops=unlearn.hops,
        p=assembled.p,
        averaging=config.train.minibatches,
        forgotten=int(task.records(config.forget.peer).forgotten.size),
        ddp_diameter=ddp.radius if ddp.radius_means == "diameter" else 2.0 * ddp.radius,
        ddp_lipschitz=ddp.clip,
    )


def _step(method: str, assembled: Assembled) -> dict[str, Value]:
    """The step size :math:`R/(G\\sqrt T)` of a method whose noise is on gradients."""
    at, config, dimension = setting_at(assembled), assembled.config, assembled.model.parameters
    scale, key, hops = assembled.calibrated(method).scale, "train.learning_rate", config.train.hops
    if method == "rrdu":
        key, hops, diameter = "unlearn.learning_rate", at.hops, at.diameter
        variance = effective_variance(at.lipschitz, at.p, dimension, scale)
    else:
        diameter, bound = at.ddp_diameter, at.ddp_lipschitz
        if method == "dpsgd":
            own = config.of(DPSGDSettings)
            work = local_work(config, own)
            hops *= work.epochs * work.slots
            bound, scale = own.clip, scale * own.clip / work.nominal_batch
        variance = effective_variance(bound, 1.0, dimension, scale)
    return {key: diameter / math.sqrt(variance * hops)}


@dataclass(eq=False)
class _Tried:
    """A point of the axes: the configurations of every method with every m that fits."""

    settings: Point
    base: Assembled
    at: PaperSetting
    configs: dict[tuple[str, int], Config] = field(default_factory=dict)


def capacity(
    make: Make,
    axes: Mapping[str, Sequence[Value]],
    records: Sequence[int],
    gamma: float,
    seeds: int,
    methods: Sequence[str],
    **options: Unpack[SweepOptions],
) -> dict[str, Any]:
    """Excess loss of ``methods`` after forgetting each number of ``records``, and the formulas.

    At the settings that ``make`` makes, and at each value of each axis, one changed at a time.
    With ``out`` every finished walk is kept there, and the same call goes on with the others.
    """
    how = USUAL | options
    check_count("seeds", seeds, low=1)
    check_number("gamma", gamma, above=0.0)
    for name in methods or [""]:
        check_choice("methods", name, [known for known in OWN if known != "retrain"])
    if "forget.size" in axes:
        raise InvalidInput("the grid varies 'forget.size'; allowed: other settings, and --records.")
    if not records or sorted(set(records)) != list(records):
        raise InvalidInput(f"records are {list(records)}; allowed: whole numbers, each larger than "
                           "the one before.")  # fmt: skip
    check_count("records", records[0], low=1)
    memory, names = Memory(), [*methods, "retrain"]
    points: list[Point] = [{}, *(p for key in axes for p in points_of({key: axes[key]}))]
    tried = [_tried(make, point, records, names, memory) for point in points]
    out = how["out"]
    place = None if out is None else out.absolute() / "walks"
    cells = []
    for name in names:
        chosen = [config for one in tried for (n, _), config in one.configs.items() if n == name]
        for number in range(seeds):
            seeded = [replace(config, seed=config.seed + number) for config in chosen]
            given = (seeded, None, how["command"], place, teller(how))
            cells.append(Cell(f"{name}-{seeded[0].seed}", carried_out, given))
    ended: dict[str, Any] = {}
    of = {cell.name: [run_id(config) for config in cell.arguments[0]] for cell in cells}
    for name, ends in swept(cells, how, "cell"):
        ended |= dict.fromkeys(of[name], ends) if isinstance(ends, Failed) else ends
    found = [_measured(one, ended, seeds, gamma, methods) for one in tried]
    if not any(row["excess"] for row in found[0]["measured"]):
        raise InvalidInput(f"nothing could be measured: {found[0]['measured'][0]['reason']}")
    result = {
        "format": FORMAT,
        "unwalk": __version__,
        "command": how["command"],
        "task": tried[0].base.config.task,
        "gamma": gamma,
        "delta": tried[0].at.delta,
        "records": list(records),
        "seeds": [tried[0].base.config.seed + number for number in range(seeds)],
        "formulas": {name: list(one[:3]) for name, one in CAPACITIES.items()},
        "labels": {name: METHODS[name].title for name in methods},
        "points": found,
        "curves": _curves(tried[0].at, gamma),
        "beside": _beside(tried[0], found[0]["measured"], seeds, how, place),
    }
    if out is not None:
        write_file(out / "capacity.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
        write_file(out / "capacity.csv", csv_text(lines_of(result)))
        write_file(out / "capacity.svg", picture_of(result))
        write_file(out / "capacity.html", render_capacity(result))
    return result


def _tried(
    make: Make, point: Point, records: Sequence[int], names: Sequence[str], memory: Memory
) -> _Tried:
    """Everything that is to be carried out at a point."""
    fixed = {"compare": [], **point, "method": "retrain", "forget.size": records[0]}
    base = memory.assemble(make(BASE, fixed), None)
    if base.task.predicts != "class" or base.task.source.feature_norm != 1.0:
        raise InvalidInput(
            f"the task is {base.task.name!r}; allowed: one that predicts classes from inputs of "
            "length 1 at most, such as digits-flat or mnist-gabor, for which the formulas' L is "
            "known."
        )
    known = flatten(base.config)
    one = _Tried({key: known[key] for key in point}, base, setting_at(base))
    for name in names:
        for count in records:
            if count > one.at.records:
                continue
            own, fixed = {**BASE, **OWN[name]}, {**fixed, "method": name, "forget.size": count}
            config = make(own, fixed)
            if name in ("rrdu", "ddp", "dpsgd"):
                config = make({**own, **_step(name, memory.assemble(config, None))}, fixed)
            one.configs[name, count] = config
    return one


def _measured(
    one: _Tried, ended: Mapping[str, Any], seeds: int, gamma: float, methods: Sequence[str]
) -> dict[str, Any]:
    """The excess of every method at a point, its capacity, and what the formulas say."""

    def losses(name: str, count: int) -> list[Any]:
        config = one.configs[name, count]
        return [ended[run_id(replace(config, seed=config.seed + n))] for n in range(seeds)]

    rows = []
    for name in methods:
        row: dict[str, Any] = {"method": name, "excess": [], "grade": "", "reason": ""}
        for known, count in one.configs:
            if known != name:
                continue
            pairs = list(zip(losses(name, count), losses("retrain", count), strict=True))
            if lost := [end for pair in pairs for end in pair if isinstance(end, Failed)]:
                row["reason"] = row["reason"] or lost[0].reason
                continue
            apart = [_loss(ours) - _loss(theirs) for ours, theirs in pairs]
            std = statistics.stdev(apart) if seeds > 1 else None
            row["excess"].append([count, statistics.fmean(apart), std])
            row["grade"] = " or ".join(dict.fromkeys(e["methods"][0]["grade"] for e, _ in pairs))
        rows.append({**row, "capacity": largest(row["excess"], gamma)})
    predicted = {}
    for name in PREDICTED:
        planned = {m: c for (n, m), c in one.configs.items() if n == name}
        if planned:
            bounds = [[m, _added(name, config)] for m, config in planned.items()]
            predicted[name] = {"bound": bounds, "capacity": largest(bounds, gamma)}
    return {
        "settings": one.settings,
        "at": asdict(one.at),
        "formulas": _formulas(gamma, one.at),
        "measured": rows,
        "predicted": predicted,
    }


def _loss(result: Mapping[str, Any]) -> float:
    loss: float = result["methods"][0]["measures"]["loss"]
    return loss


def _added(method: str, config: Config) -> float | None:
    """The most that the noise of a method adds to the loss, by its plan; None if not possible."""
    return Planner(assemble(config)).offer(Way(method, method)).loss


def _curves(at: PaperSetting, gamma: float) -> dict[str, Any]:
    """What the formulas say over the tolerance, and over epsilon, N, n_u and d."""
    curves = {"gamma": [[value, _formulas(value, at)] for value in GAMMAS]}
    for name, least in LEAST.items():
        now = getattr(at, name)
        values = sorted({max(least, type(now)(now * factor)) for factor in FACTORS})
        changed = [(value, replace(at, **{name: value})) for value in values]
        curves[name] = [[value, _formulas(gamma, there)] for value, there in changed]
    return curves


def _formulas(gamma: float, at: PaperSetting) -> dict[str, float]:
    return {name: formula.at(gamma, at) for name, formula in CAPACITIES.items()}


@dataclass(eq=False)
class _Trail:
    """Keeps the parameters after every hop from ``first`` on."""

    first: int
    kept: list[torch.Tensor] = field(default_factory=list)

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        if progress.hop >= self.first:
            self.kept.append(progress.token.parameters.double().cpu().clone())


def _updates(config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """What each hop of RR-DU's walk added to the parameters, over the step size; which are at u."""
    plan: Plan = assemble(config).unlearning("rrdu")
    trail = _Trail(config.train.hops)
    (outcome,) = InProcess().run([plan], trail)
    step = config.unlearn.learning_rate or config.train.learning_rate
    hops = outcome.transcript.hops[config.train.hops :]
    at_u = torch.tensor([hop.receiver == config.forget.peer for hop in hops])
    return torch.stack(trail.kept).diff(dim=0) / step, at_u


def _seen(noisy: Config, walks: Sequence[Config], p: float) -> dict[str, Any]:
    """Second moment of a hop over routes, and how far LIGHTWEIGHT's mean update is from EXACT's.

    Elsewhere than at u the two do the same, so that they are apart by p times what they differ by
    at u.
    """
    bias = []
    for config in walks:
        once = replace(config.unlearn, trust_radius=None, clip=None, sigma=0.0, hops=1, p=1.0)
        light, exact = (
            _updates(replace(config, unlearn=replace(once, direction=direction)))[0]
            for direction in ("forget", "retain")
        )
        bias.append(p * float((light - exact).norm()))
    updates, at_u = _updates(noisy)
    moments = updates.square().sum(1)
    shares = [(p, moments[at_u]), (1.0 - p, moments[~at_u])]
    moment = sum(share * float(there.mean()) for share, there in shares if len(there))
    return {"variance": moment, "bias": bias}


def _beside(
    one: _Tried,
    measured: Sequence[Mapping[str, Any]],
    seeds: int,
    how: SweepOptions,
    place: Path | None,
) -> dict[str, Any]:
    """Effective variance, alignment bias and excess risk of RR-DU beside the paper's formulas."""
    at = one.at
    walks = {count: config for (name, count), config in one.configs.items() if name == "rrdu"}
    if not walks:
        return {}
    first = next(iter(walks.values()))
    sigma = assemble(first).calibrated("rrdu").scale
    free = replace(first.unlearn, trust_radius=None, sigma=sigma, weight_decay=0.0)
    noisy = replace(first, unlearn=replace(free, hops=VARIANCE_HOPS))
    cells = []
    for number in range(seeds):
        seeded = [replace(config, seed=first.seed + number) for config in (noisy, *walks.values())]
        cells.append(Cell(f"beside-{run_id(seeded[0])}", _seen, (seeded[0], seeded[1:], at.p)))
    folder = None if place is None else place / "-".join(map(str, walks))
    ends = [end for _, end in swept(cells, how, "cell", folder)]
    if lost := next((end for end in ends if isinstance(end, Failed)), None):
        raise lost.raised()
    exact = corrected_sigma(at.epsilon, at.delta, at.lipschitz, at.hops, at.p)
    variance = effective_variance(at.lipschitz, at.p, at.dimension, exact)
    excess = next(row["excess"] for row in measured if row["method"] == "rrdu")
    return {
        "sigma": {"nominal": sigma, "corrected": exact},
        "variance": {
            "nominal": nominal_effective_variance(
                at.lipschitz, at.p, at.averaging, at.dimension, sigma
            ),
            "corrected": effective_variance(at.lipschitz, at.p, at.dimension, sigma),
            "measured": [end["variance"] for end in ends],
        },
        "bias": [
            {
                "records": count,
                "nominal": nominal_alignment_bias(at.lipschitz, count, at.records),
                "corrected": alignment_bias(at.lipschitz, count, at.records, at.p),
                "measured": [end["bias"][number] for end in ends],
            }
            for number, count in enumerate(walks)
        ],
        "risk": {
            "nominal": sum(nominal_table_1("convex", at)),
            "corrected": last_risk(at.diameter, at.hops, variance),
            "measured": excess,
        },
    }
