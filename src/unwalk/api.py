"""The functions that most users call: :func:`run`, :func:`compare`, :func:`sweep`
and :func:`evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_choice
from unwalk.methods import named
from unwalk.reports.exports import Report
from unwalk.runs import compare as comparing
from unwalk.runs import evaluate as evaluating
from unwalk.runs import grid as gridding
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.finished import FinishedRun
from unwalk.runs.planner import Budget, Planned, Planner, Rates
from unwalk.runs.run import Callback, RunResult
from unwalk.runs.run import run as run_config
from unwalk.settings.config import Config, Value
from unwalk.tasks.task import ShardedTask

SETTLED = ("task", "peers", "model.", "data.", "forget.", "trigger.")
"""Settings that a task that is brought along has settled already."""


def _configure(
    task: str | ShardedTask, given: dict[str, Value], settings: Mapping[str, Value] | None
) -> tuple[Config, ShardedTask | None]:
    changes = {**given, **(settings or {})}
    where = "the call"
    if isinstance(task, str):
        return resolve({"task": task, **changes}, where=where), None
    for key in settings or {}:
        if key.startswith(SETTLED):
            raise InvalidInput(
                f"settings names {key!r}, but a task that is brought along has settled that; "
                "say it where the task is made."
            )
    own: dict[str, Value] = {"task": task.name, "peers": task.peers, "forget.peer": task.unlearner}
    return resolve({**own, **changes}, where=where), task


def _check_names(what: str, given: Mapping[str, Any] | None, kind: type[Budget | Rates]) -> None:
    for name in given or {}:
        check_choice(what, name, [one.name for one in fields(kind)])


def _named(methods: str | Sequence[str]) -> Sequence[str]:
    return named(methods) if isinstance(methods, str) else methods or [""]


def run(
    task: str | ShardedTask = "digits",
    *,
    method: str = "rrdu",
    preset: str = "practical",
    seed: int = 0,
    settings: Mapping[str, Value] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    grade: str | None = None,
) -> RunResult:
    """Train by token walk, forget, and measure.

    ``task`` is a name or a task of your own (:func:`unwalk.from_arrays`); ``settings`` holds any
    key that ``unwalk settings`` lists, such as ``{"train.hops": 50, "unlearn.p": 0.2}``.  With
    ``out``, results are written to that folder; ``resume`` continues a run that was stopped.
    Each of ``callbacks`` is called after every hop with an :class:`unwalk.Hop`; those that are
    an :class:`unwalk.Logger` are told of the settings and of the end as well.  With a ``grade``
    (``exact``, ``certified`` or ``nominal``) the method is the cheapest that reaches it, as
    :func:`plan` says, and ``method`` counts only if it trains in a way of its own.
    """
    given: dict[str, Value] = {"method": method, "preset": preset, "seed": seed}
    config, own = _configure(task, given, settings)
    place = None if out is None else Path(out)
    return run_config(
        config,
        task=own,
        out=place,
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
        grade=grade,
    )


def plan(
    task: str | ShardedTask = "digits",
    *,
    run_dir: str | Path | None = None,
    grade: str = "exact",
    preset: str = "practical",
    seed: int = 0,
    settings: Mapping[str, Value] | None = None,
    budget: Mapping[str, Any] | None = None,
    rates: Mapping[str, float] | None = None,
) -> Planned:
    """Every way to meet a deletion request, with what it costs and proves, and the cheapest.

    With ``run_dir``, the request is about that finished run, whose log says how long hops take;
    ``settings`` then say what is to be forgotten and how (``forget.``, ``unlearn.``), and a task
    that was brought along is brought again.  ``budget`` may bound ``hops``, ``bytes`` and
    ``seconds``; ``rates`` are seconds per ``message``, ``byte``, ``visit`` and
    ``gradient``, at which costs are compared.
    """
    _check_names("budget", budget, Budget)
    _check_names("rates", rates, Rates)
    limits, prices = Budget(**(budget or {})), Rates(**(rates or {}))
    if run_dir is None:
        config, own = _configure(task, {"preset": preset, "seed": seed}, settings)
        return Planner(assemble(config, own)).plan(grade, prices, limits)
    own = None if isinstance(task, str) else task
    run = FinishedRun.read(Path(run_dir), settings or {}, own)
    return run.plan(grade, prices, limits)


def compare(
    task: str | ShardedTask = "digits",
    *,
    methods: str | Sequence[str] = ("rrdu", "finetune", "retrain"),
    preset: str = "practical",
    seeds: int = 5,
    seed: int = 0,
    settings: Mapping[str, Value] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
) -> comparing.Comparison:
    """Run several methods over ``seeds`` seeds, the first being ``seed``, ``jobs`` at once.

    ``methods`` are names, or one text with commas between them; ``all`` is every method.  The
    result holds means and deviations; a method that cannot be run is listed under ``failed`` with
    its reason.  The other arguments are those of :func:`run`.
    """
    main, *others = _named(methods)
    given: dict[str, Value] = {"method": main, "preset": preset, "seed": seed, "compare": others}
    config, own = _configure(task, given, settings)
    place = None if out is None else Path(out)
    return comparing.compare(
        config, seeds, task=own, out=place, resume=resume, overwrite=overwrite, jobs=jobs
    )


def sweep(
    task: str | ShardedTask = "digits",
    *,
    grid: Mapping[str, Sequence[Value]],
    methods: str | Sequence[str] = ("rrdu", "finetune", "retrain"),
    preset: str = "practical",
    seeds: int = 5,
    seed: int = 0,
    settings: Mapping[str, Value] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
) -> Report:
    """:func:`compare` at every point of ``grid``, which has the values of some settings.

    What points have in common, such as training, is carried out once.  The result is what
    ``sweep.json`` holds: under ``rows`` a row for each method and setting, under ``failed`` those
    that could not be run, with reasons.
    """
    main, *others = _named(methods)
    given: dict[str, Value] = {"method": main, "preset": preset, "seed": seed, "compare": others}
    place = None if out is None else Path(out)
    swept = gridding.sweep_grid(
        gridding.points_of(grid),
        lambda point: _configure(task, given, {**(settings or {}), **point})[0],
        seeds,
        task=None if isinstance(task, str) else task,
        out=place,
        resume=resume,
        overwrite=overwrite,
        jobs=jobs,
    )
    return Report(swept)


def evaluate(
    run_dir: str | Path,
    *,
    task: ShardedTask | None = None,
    measures: Sequence[str] = (),
    members: int = evaluating.MEMBERS,
    out: str | Path | None = None,
    jobs: int = 1,
    minutes: float | None = None,
) -> Report:
    """Measure what a finished run forgot, beside retraining, over ``members`` trainings.

    ``task`` is the run's own task, where that was brought along.  After ``minutes`` no walk is
    begun, and the same call goes on with the others.  The result is what ``evaluate.json`` holds;
    ``docs/measures.md`` explains each measure.
    """
    measured = evaluating.evaluate(
        Path(run_dir),
        task=task,
        measures=measures,
        members=members,
        out=None if out is None else Path(out),
        jobs=jobs,
        minutes=minutes,
    )
    return Report(measured)
