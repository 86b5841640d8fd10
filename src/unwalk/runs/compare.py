"""Repeats a run over several seeds: means, deviations, and paired gaps to retraining."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unwalk.core.validation import check_count
from unwalk.engines.choose import goes_together
from unwalk.reports import render
from unwalk.runs.assemble import assemble
from unwalk.runs.run import Runner, RunResult, Tell, growing_folder, run, silent
from unwalk.runs.run import results as results_of
from unwalk.runs.store import Folder, write_file
from unwalk.settings.config import Config
from unwalk.tasks import ShardedTask


@dataclass(frozen=True, eq=False)
class Comparison:
    """The first seed's result with a summary over all seeds under ``seeds``."""

    result: dict[str, Any]
    runs: list[dict[str, Any]]

    def mean(self, method: str, measure: str) -> float | None:
        """Mean over seeds of a final measure, a gap (``gap.asr``) or a cost (``cost.bytes``)."""
        return self._summary(method, "mean").get(measure)

    def std(self, method: str, measure: str) -> float | None:
        """Standard deviation over seeds."""
        return self._summary(method, "std").get(measure)

    def _summary(self, method: str, kind: str) -> dict[str, float]:
        methods = self.result["seeds"]["methods"]
        values: dict[str, float] = next(m[kind] for m in methods if m["name"] == method)
        return values


def compare(
    config: Config,
    seeds: int,
    *,
    task: ShardedTask | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    command: str = "",
    tell: Tell = silent,
) -> Comparison:
    """Run ``config`` with seeds ``config.seed``, ..., ``config.seed + seeds - 1``.

    With ``out``, every finished seed is kept, and ``resume`` continues with the next one.  Where a
    fleet carries the walks (``performance.engine``), all seeds are finished at the same time.
    """
    check_count("seeds", seeds, low=1)
    assembled = assemble(config, task)
    first = assembled.training()
    with growing_folder(out, config, assembled, resume=resume, overwrite=overwrite) as folder:
        seeded = [replace(config, seed=config.seed + number) for number in range(seeds)]
        done = {} if folder is None else _kept(folder, seeded)
        left = [one for one in seeded if one.seed not in done]
        tells = {one.seed: _numbered(tell, n, seeds) for n, one in enumerate(seeded)}
        together = goes_together([first] * min(len(left), 2), config.performance.engine)
        for one in _runs(left, task, command, tells, together=together):
            done[one.config.seed] = one.result
            if folder is not None:
                write_file(_place(folder, one.config), _json(one.result))
        results = [done[one.seed] for one in seeded]
        summary = {**results[0], "seeds": summarise(results)}
        if folder is not None:
            write_file(folder.partial / "result.json", _json(summary, indent=1))
            write_file(folder.partial / "runs.json", _json(results))
            write_file(folder.partial / "report.html", render(summary))
    return Comparison(summary, results)


def _runs(
    configs: list[Config],
    task: ShardedTask | None,
    command: str,
    tells: Mapping[int, Tell],
    *,
    together: bool,
) -> Iterator[RunResult]:
    """The run of every seed: one after the other, or all in one fleet."""
    if together:
        runners = [Runner(assemble(one, task), tell=tells[one.seed]) for one in configs]
        yield from results_of(runners, configs[0].performance.engine, command)
        return
    for one in configs:
        yield run(one, task=task, command=command, tell=tells[one.seed])


def _numbered(tell: Tell, number: int, seeds: int) -> Tell:
    """Progress under the number of its seed."""

    def told(walk: str, done: int, hops: int) -> None:
        tell(f"seed {number + 1}/{seeds} {walk}", done, hops)

    return told


def _place(folder: Folder, config: Config) -> Path:
    """The file of a finished seed."""
    place = folder.partial / "seeds"
    place.mkdir(exist_ok=True)
    return place / f"{config.seed}.json"


def _kept(folder: Folder, configs: list[Config]) -> dict[int, dict[str, Any]]:
    """The results of seeds that were finished before."""
    paths = {one.seed: folder.partial / "seeds" / f"{one.seed}.json" for one in configs}
    return {
        seed: json.loads(path.read_text(encoding="utf-8"))
        for seed, path in paths.items()
        if path.exists()
    }


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of every final measure and gap, per method."""
    methods = []
    for number, method in enumerate(results[0]["methods"]):
        columns: dict[str, list[float]] = {}
        for result in results:
            one = result["methods"][number]
            values = {**one["final"]}
            values |= {f"gap.{k}": v for k, v in (one["gap"] or {}).items()}
            values |= {f"cost.{k}": v for k, v in one["cost"].items()}
            for key, value in values.items():
                if value is not None:
                    columns.setdefault(key, []).append(value)
        methods.append(
            {
                "name": method["name"],
                "label": method["label"],
                "mean": {k: statistics.fmean(v) for k, v in columns.items()},
                "std": {k: statistics.stdev(v) if len(v) > 1 else 0.0 for k, v in columns.items()},
            }
        )
    return {"runs": len(results), "methods": methods}
