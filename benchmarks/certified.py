"""What a certified deletion costs: hops of seal, restart and retraining to the same accuracy.

    python benchmarks/certified.py [--task digits-flat] [--records 1] [--seeds 100] [--first 100]
        [--jobs 2]

Every seed is another split.  Counted are the hops until clean accuracy first comes within one
point of retraining's final one; a walk that never gets there counts as its length plus one.
Behind each mean stands its standard error.  The preset was chosen on other records
(``choose_certified.py``).
"""

from __future__ import annotations

import argparse
import math
import statistics
from concurrent.futures import ProcessPoolExecutor

import torch

import unwalk
from unwalk.runs.run import RunResult

METHODS = ("seal", "restart", "retrain")


def sealed(task: str, records: int, seed: int) -> RunResult:
    """One split: a sealed run with its rivals, which must have been certified for (1, 1e-5)."""
    result: RunResult = unwalk.run(
        task,
        method="seal",
        preset="certified",
        seed=seed,
        settings={"forget.size": records, "compare": list(METHODS[1:])},
    )
    claims = result.result["claims"]
    if not any(
        c["grade"] == "certified" and c["epsilon"] <= 1.0 and c["delta"] <= 1e-5 for c in claims
    ):
        raise SystemExit(f"seed {seed} was not certified: {claims}")
    return result


def hops_needed(result: RunResult) -> dict[str, int]:
    """Hops of each method until clean accuracy is retraining's final one, less a point."""
    aim = result.walks["retrain"].readings[-1].clean - 0.01
    needed = {}
    for name in METHODS:
        walk = result.walks[name]
        phase = walk.outcome.plan.phases[-1]
        first = walk.outcome.plan.hops - phase.hops
        reached = [r.hop - first for r in walk.readings if r.phase == phase.name and r.clean >= aim]
        needed[name] = min(reached, default=phase.hops + 1)
    return needed


def measured(cell: tuple[str, int, int]) -> dict[str, float]:
    """The hops of one split, and the accuracies at the end of seal and retraining."""
    torch.set_num_threads(1)
    result = sealed(*cell)
    clean = {
        f"{name} %": 100.0 * result.walks[name].readings[-1].clean for name in ("seal", "retrain")
    }
    return {**hops_needed(result), **clean}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits-flat")
    parser.add_argument("--records", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    cells = [(given.task, given.records, given.first + number) for number in range(given.seeds)]
    with ProcessPoolExecutor(given.jobs) as workers:
        rows = list(workers.map(measured, cells))
    print(f"{given.task}, {given.records} records, {given.seeds} splits: hops in the mean")
    for name in rows[0]:
        values = [row[name] for row in rows]
        error = statistics.stdev(values) / math.sqrt(len(values))
        print(f"{name:10s} {statistics.fmean(values):6.2f} +- {error:.2f}")


if __name__ == "__main__":
    main()
