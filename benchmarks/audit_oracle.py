"""Writes the bounds that jax_privacy finds in seeded scores, for our own to be compared with.

It runs in an environment of its own, where jax-privacy is installed (pip install jax-privacy):
python benchmarks/audit_oracle.py > tests/audits/jax_privacy.json.  Without jax-privacy it says so.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

DELTA = 1e-5


def scores() -> dict[str, tuple[Any, Any]]:
    """Scores with and without the records: apart, near, equal, from few values, of uneven sizes."""
    rng = np.random.default_rng(20)
    sets = {
        "apart": (rng.normal(6.0, 1.0, 150), rng.normal(0.0, 1.0, 150)),
        "near": (rng.normal(1.0, 1.0, 200), rng.normal(0.0, 1.0, 200)),
        "equal": (rng.normal(0.0, 1.0, 80), rng.normal(0.0, 1.0, 80)),
        "few values": (rng.integers(1, 5, 120), rng.integers(0, 4, 120)),
        "uneven": (rng.normal(2.0, 2.0, 60), rng.normal(0.0, 1.0, 240)),
    }
    return {name: tuple(np.round(s.astype(float), 4) for s in two) for name, two in sets.items()}  # type: ignore[misc]


def main() -> None:
    try:
        import jax_privacy.auditing as other  # type: ignore[import-not-found]
    except ImportError:
        print("jax-privacy is not installed here; see the first lines of this file.")
        return
    cases = []
    for name, (with_, without) in scores().items():
        auditor = other.CanaryScoreAuditor(with_, without)
        frontier = list(zip(auditor._tn_counts.tolist(), auditor._fn_counts.tolist(), strict=True))
        at = [float(np.quantile(np.concatenate([with_, without]), q)) for q in (0.3, 0.5, 0.8)]
        cases.append(
            {
                "name": name,
                "with": with_.tolist(),
                "without": without.tolist(),
                "frontier": frontier,
                "gaussian": float(auditor.epsilon_from_gdp(0.05, DELTA)),
                "all": float(auditor.epsilon_clopper_pearson(0.05, DELTA, one_sided=False)),
                "thresholds": [
                    {
                        "threshold": threshold,
                        "clopper_pearson": float(
                            auditor.epsilon_clopper_pearson(
                                0.05,
                                DELTA,
                                one_sided=False,
                                threshold_strategy=other.Explicit(threshold),
                            )
                        ),
                        "one_run": float(
                            auditor.epsilon_one_run(
                                0.05, DELTA, threshold_strategy=other.Explicit(threshold)
                            )
                        ),
                        "one_run_gaussian": float(
                            auditor.epsilon_one_run_fdp(
                                0.05, DELTA, threshold_strategy=other.Explicit(threshold)
                            )
                        ),
                    }
                    for threshold in at
                ],
            }
        )
    try:
        by = f"jax-privacy {version('jax-privacy')}"
    except PackageNotFoundError:
        by = "jax-privacy"
    print(json.dumps({"by": by, "delta": DELTA, "cases": cases}))


if __name__ == "__main__":
    main()
