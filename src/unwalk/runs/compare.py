"""The same run over several seeds: means, deviations and paired gaps to retraining."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unwalk.core.errors import Diverged, InvalidInput
from unwalk.core.validation import check_count
from unwalk.reports import render
from unwalk.runs.assemble import assemble
from unwalk.runs.config import Config
from unwalk.runs.run import Tell, open_folder, run, silent
from unwalk.runs.store import write_file
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
        found: dict[str, float] = next(m[kind] for m in methods if m["name"] == method)
        return found


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

    With ``out``, every finished seed is kept, and ``resume`` goes on with the next one.
    """
    check_count("seeds", seeds, low=1)
    assemble(config, task)
    folder = open_folder(out, config, resume=resume, overwrite=overwrite)
    try:
        results: list[dict[str, Any]] = []
        for number in range(seeds):
            seeded = replace(config, seed=config.seed + number)

            def told(walk: str, done: int, hops: int, number: int = number) -> None:
                tell(f"seed {number + 1}/{seeds} {walk}", done, hops)

            kept = None if folder is None else folder.partial / "seeds" / f"{seeded.seed}.json"
            if kept is not None and kept.exists():
                results.append(json.loads(kept.read_text(encoding="utf-8")))
                continue
            results.append(run(seeded, task=task, command=command, tell=told).result)
            if kept is not None:
                kept.parent.mkdir(exist_ok=True)
                write_file(kept, _json(results[-1]))
        summary = {**results[0], "seeds": summarise(results)}
        if folder is not None:
            write_file(folder.partial / "result.json", _json(summary, indent=1))
            write_file(folder.partial / "runs.json", _json(results))
            write_file(folder.partial / "report.html", render(summary))
            folder.finish()
    except (InvalidInput, Diverged):
        if folder is not None:
            folder.discard()
        raise
    return Comparison(summary, results)


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
