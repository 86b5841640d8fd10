"""Repeats a run over several seeds: means, deviations, and paired gaps to retraining."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from unwalk.certificates import certificate_of
from unwalk.certificates.document import model_of
from unwalk.certificates.signing import load_key
from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.core.grades import badge_of
from unwalk.core.validation import check_count
from unwalk.engines.choose import goes_together
from unwalk.measures.intervals import mean_interval
from unwalk.methods import METHODS
from unwalk.reports import render, trade_picture
from unwalk.reports.exports import Exported
from unwalk.runs.assemble import Assembled, assemble, with_something_to_forget
from unwalk.runs.metrics import distances, loss_on_test
from unwalk.runs.run import (
    Runner,
    Tell,
    Walked,
    finish,
    forget,
    growing_folder,
    methods_of,
    silent,
    train,
)
from unwalk.runs.sharing import Memory, walk_name
from unwalk.runs.store import write_file
from unwalk.runs.sweep import Cell, Count, Failed, Say, keep, kept, sweep, uncounted, unsaid
from unwalk.settings.config import Config
from unwalk.tasks.task import ShardedTask


class SweepOptions(TypedDict, total=False):
    """How a comparison, a sweep over a grid or an audit is carried out, each in cells.

    ``task`` is one that was brought along.  With ``out`` there is a folder of results, where every
    cell that has ended is kept; ``resume`` goes on with the others, ``overwrite`` begins again.
    ``command`` is what was typed.  ``jobs`` cells are carried out at once, on the Ray cluster
    ``cluster`` if there is one; with one job here ``tell`` is told of their walks.  ``count`` is
    told how many have ended, and ``say`` which.
    """

    task: ShardedTask | None
    out: Path | None
    resume: bool
    overwrite: bool
    command: str
    jobs: int
    cluster: str | None
    tell: Tell
    count: Count
    say: Say


USUAL: SweepOptions = {
    "task": None,
    "out": None,
    "resume": False,
    "overwrite": False,
    "command": "",
    "jobs": 1,
    "cluster": None,
    "tell": silent,
    "count": uncounted,
    "say": unsaid,
}
"""What the options are where they are left out."""


def swept(
    cells: Sequence[Cell], how: SweepOptions, noun: str, folder: Path | None = None
) -> Iterator[tuple[str, Any]]:
    """The results of the cells, as :func:`unwalk.runs.sweep.sweep` gives them."""
    jobs, cluster, count, say = how["jobs"], how["cluster"], how["count"], how["say"]
    return sweep(cells, folder=folder, jobs=jobs, cluster=cluster, count=count, say=say, noun=noun)


def teller(how: SweepOptions) -> Tell:
    """Who is told of the walks: nobody, where these are in other processes."""
    return how["tell"] if how["jobs"] == 1 and how["cluster"] is None else silent


@dataclass(frozen=True, eq=False)
class Comparison(Exported):
    """One seed's result with a summary over all seeds under ``seeds``."""

    result: dict[str, Any]
    runs: list[dict[str, Any]]

    def mean(self, method: str, measure: str) -> float | None:
        """Mean over seeds of a final measure, a gap (``gap.asr``) or a cost (``cost.bytes``)."""
        return self._summary(method, "mean").get(measure)

    def std(self, method: str, measure: str) -> float | None:
        """Standard deviation over seeds; None where there is one seed alone."""
        return self._summary(method, "std").get(measure)

    def _summary(self, method: str, kind: str) -> dict[str, float]:
        for one in self.result["seeds"]["methods"]:
            if one["name"] == method:
                values: dict[str, float] = one[kind]
                return values
        why = [one["reason"] for one in self.result["failed"] if one["name"] == method]
        raise InvalidInput(f"{method} has no numbers: {why[0] if why else 'it was not asked for.'}")


def compare(
    config: Config,
    seeds: int,
    **options: Unpack[SweepOptions],
) -> Comparison:
    """Run ``config`` with seeds ``config.seed``, ..., ``config.seed + seeds - 1``.

    A seed is a cell of the sweep (:mod:`unwalk.runs.sweep`).  Where a fleet carries out the walks
    (``performance.engine``), this process finishes all seeds at the same time.

    Where data of the user's own name nothing to forget, it is records drawn at random.

    A method that cannot be run is left out, with its reason under ``failed``.  If no method can,
    the first reason is raised.
    """
    how = USUAL | options
    task, command = how["task"], how["command"]
    check_count("seeds", seeds, low=1)
    check_count("jobs", how["jobs"], low=1)
    if task is None:
        config = with_something_to_forget(config)
    assembled = assemble(config, task)
    if config.certificate.key:
        load_key(Path(config.certificate.key))
    with growing_folder(
        how["out"],
        config,
        assembled,
        resume=how["resume"],
        overwrite=how["overwrite"],
        seeds=seeds,
    ) as folder:
        place = None if folder is None else folder.partial / "seeds"
        seeded = [replace(config, seed=config.seed + number) for number in range(seeds)]
        tell = teller(how)
        tells = [_numbered(tell, n, seeds) if tell is not silent else silent for n in range(seeds)]
        cells = [
            Cell(str(one.seed), _seed, (one, task, command, told))
            for one, told in zip(seeded, tells, strict=True)
        ]
        left = [cell for cell in cells if kept(place, cell.name) is None]
        by_seed = _in_a_fleet(left, assembled, place)
        rest = [cell for cell in cells if cell.name not in by_seed]
        by_seed |= dict(swept(rest, how, "seed", place))
        summary, results = _summary({one.seed: by_seed[str(one.seed)] for one in seeded})
        if folder is not None:
            write_file(folder.partial / "result.json", _json(summary, indent=1))
            write_file(folder.partial / "runs.json", _json(results))
            write_file(folder.partial / "report.html", render(summary))
            if picture := trade_picture(summary):
                write_file(folder.partial / "pareto.svg", picture)
    return Comparison(summary, results)


def _seed(config: Config, task: ShardedTask | None, command: str, tell: Tell) -> dict[str, Any]:
    """The result of one seed."""
    (result,) = results_of([(config, task, command, tell)], Memory())
    return result


def _in_a_fleet(cells: list[Cell], assembled: Assembled, place: Path | None) -> dict[str, Any]:
    """Results of the cells whose walks a fleet carries out; empty if none can, or it fails."""
    engine = assembled.config.performance.engine
    if len(cells) < 2 or not goes_together([assembled.training()] * 2, engine):
        return {}
    try:
        results = results_of([cell.arguments for cell in cells], Memory())
    except UnwalkError:  # one seed's, perhaps: each tells its own
        return {}
    by_name = {cell.name: result for cell, result in zip(cells, results, strict=True)}
    for name, result in by_name.items():
        keep(place, name, result)
    return by_name


def results_of(runs: Sequence[tuple[Any, ...]], memory: Memory) -> list[dict[str, Any]]:
    """The results of runs whose walks are carried out together, and the methods that failed.

    Each run is a configuration, its task, the command and who is told; their methods are the same.
    """
    runners = [Runner(memory.assemble(config, task), tell=tell) for config, task, _, tell in runs]
    config: Config = runs[0][0]
    engine, names = config.performance.engine, methods_of(config)
    unfit = {name: failed for name in names if (failed := _unfit(runners[0], name))}
    if len(unfit) == len(names):
        raise unfit[names[0]].raised()
    trained = train(runners, engine, memory.carry)
    before = [runner.answers(walk) for runner, walk in zip(runners, trained, strict=True)]
    ends: list[dict[str, Walked | Failed]] = [dict(unfit) for _ in runners]
    for name in names:
        if name not in unfit:
            forgotten = _forgotten(runners, trained, name, engine, memory)
            for own, end in zip(ends, forgotten, strict=True):
                own[name] = end
    return [
        _found(runner, answers, {name: own[name] for name in names}, given[2])
        for runner, answers, own, given in zip(runners, before, ends, runs, strict=True)
    ]


def _unfit(runner: Runner, name: str) -> Failed | None:
    """Why a method cannot be run with these settings, as far as that is known before training."""
    try:
        runner.assembled.unlearning(name)
    except Exception as error:
        return Failed.by(error)
    return None


def _forgotten(
    runners: Sequence[Runner], trained: Sequence[Walked], name: str, engine: str, memory: Memory
) -> list[Walked | Failed]:
    """The walks of a method, carried out together, or one by one where that is not possible."""
    try:
        return list(forget(runners, trained, name, engine, memory.carry))
    except Exception as error:
        if len(runners) == 1:
            return [Failed.by(error)]
    pairs = zip(runners, trained, strict=True)
    return [end for one, walk in pairs for end in _forgotten([one], [walk], name, engine, memory)]


def _found(
    runner: Runner,
    before: list[dict[str, float | int]],
    ends: dict[str, Walked | Failed],
    command: str,
) -> dict[str, Any]:
    """The result of one seed; the first method that ran is the main one."""
    walks = {name: end for name, end in ends.items() if isinstance(end, Walked)}
    failed = {name: end for name, end in ends.items() if isinstance(end, Failed)}
    if not walks:
        raise next(iter(failed.values())).raised()
    result = finish(runner, before, walks, command).result
    device = torch.device(runner.config.device)
    models = {name: walk.model for name, walk in walks.items()}
    apart = distances(models, runner.assembled.task, device)
    for one in result["methods"]:
        walk = walks[one["name"]]
        document = certificate_of(walk.outcome.transcript, model_of(walk.saved()))
        loss = loss_on_test(walk.model, runner.assembled.task, device)
        one |= {"grade": badge_of(document), "measures": {**apart.get(one["name"], {}), **loss}}
        one["walk"] = walk_name(runner.config, walk.outcome.plan)
    reasons = [
        {"name": name, "label": METHODS[name].title, "reason": why.reason}
        for name, why in failed.items()
    ]
    trained = walk_name(runner.config, runner.assembled.training())
    return {**result, "failed": reasons, "trained": trained}


def _numbered(tell: Tell, number: int, seeds: int) -> Tell:
    """Report progress with the number of the seed in front."""

    def told(walk: str, done: int, hops: int) -> None:
        tell(f"seed {number + 1}/{seeds} {walk}", done, hops)

    return told


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def _summary(found: dict[int, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first seed in which most methods ran, with a summary over all; and all seeds' results."""
    lost = {seed: one for seed, one in found.items() if isinstance(one, Failed)}
    results = [one for seed, one in found.items() if seed not in lost]
    if not results:
        raise next(iter(lost.values())).raised()
    shown = max(results, key=lambda one: len(one["methods"]))
    return {**shown, "failed": failures(found), "seeds": summarise(results)}, results


def failures(found: dict[int, Any]) -> list[dict[str, Any]]:
    """Methods that failed, with reason and seeds; a failed seed is an entry without a method."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for seed, result in found.items():
        whole = isinstance(result, Failed)
        every = {"name": "", "label": "every method", "reason": result.reason if whole else ""}
        for one in [every] if whole else result["failed"]:
            row = rows.setdefault((one["name"], one["reason"]), {**one, "seeds": []})
            row["seeds"].append(seed)
    return list(rows.values())


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of every final measure and gap, per method."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for one in result["methods"]:
            methods.setdefault(one["name"], []).append(one)
    summary = {"runs": len(results), "methods": [_spread(ones) for ones in methods.values()]}
    before = [one for result in results if (one := _before(result)) is not None]
    return {**summary, "before": _spread(before)} if before else summary


def _before(result: dict[str, Any]) -> dict[str, Any] | None:
    """The model before anything was forgotten, as if it were a method; None if none was read."""
    hops = result["phases"]["train"]
    oracle = next((m["final"] for m in result["methods"] if m["name"] == "retrain"), None)
    for one in result["methods"]:
        for point in one["series"]:
            if one["name"] != "retrain" and (point["phase"], point["hop"]) == ("train", hops):
                final = {k: v for k, v in point.items() if k not in ("phase", "hop")}
                gap = None if oracle is None else {k: _less(final[k], oracle[k]) for k in final}
                named = {"name": "before", "label": "before forgetting"}
                return {**named, "final": final, "gap": gap, "cost": {}, "series": []}
    return None


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _spread(ones: list[dict[str, Any]]) -> dict[str, Any]:
    """One method over the seeds in which it ran."""
    columns: dict[str, list[float]] = {}
    for one in ones:
        values = {**one["final"]}
        values |= {f"gap.{k}": v for k, v in (one["gap"] or {}).items()}
        values |= {f"cost.{k}": v for k, v in one["cost"].items()}
        values |= {f"measure.{k}": v for k, v in (one.get("measures") or {}).items()}
        for key, value in values.items():
            if value is not None:
                columns.setdefault(key, []).append(value)
    grades = dict.fromkeys(one["grade"] for one in ones if one.get("grade"))
    return {
        "name": ones[0]["name"],
        "label": ones[0]["label"],
        "runs": len(ones),
        "grade": " or ".join(grades),
        "mean": {k: statistics.fmean(v) for k, v in columns.items()},
        "std": {k: statistics.stdev(v) for k, v in columns.items() if len(v) > 1},
        "interval": {k: _ends(v) for k, v in columns.items() if k.startswith("gap.") and v[1:]},
        **_series(ones),
    }


def _ends(values: list[float]) -> list[float | None]:
    """The ends of the interval of 95 % of a mean."""
    interval = mean_interval(values)
    return [interval.low, interval.high]


def _series(ones: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and deviations of what was measured along the walks, hop by hop."""
    at: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for one in ones:
        for point in one["series"]:
            at.setdefault((point["hop"], point["phase"]), []).append(point)
    means, deviations = [], []
    for (hop, phase), points in at.items():
        mean: dict[str, Any] = {"hop": hop, "phase": phase}
        deviation: dict[str, Any] = {"hop": hop, "phase": phase}
        for key in points[0].keys() - {"hop", "phase"}:
            values = [point[key] for point in points if point[key] is not None]
            mean[key] = statistics.fmean(values) if values else None
            deviation[key] = statistics.stdev(values) if len(values) > 1 else None
        means.append(mean)
        deviations.append(deviation)
    return {"series": means, "deviations": deviations}
