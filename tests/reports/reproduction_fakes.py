"""Seeded documents as ``unwalk reproduce`` writes them, and the odd ones among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Json = dict[str, Any]
VALUES = {
    "table-p": ("0", "0.1", "1"),
    "table-rho": ("baseline", "5", "25"),
    "table-l": ("baseline", "0.1"),
    "table-epsilon": ("0.1", "10"),
    "table-delta": ("0.0001", "1e-06"),
}


@dataclass(frozen=True)
class End:
    clean: float | None
    asr: float | None


REPORTED = {
    "mnist": {
        "rrdu": End(99.15, 10.0),
        "finetune": End(99.15, 18.0),
        "ddp": End(96.7, 35.0),
        "retrain": End(99.5, 10.0),
    },
    "cifar10": {"rrdu": End(88.5, None), "retrain": End(89.0, 10.0)},
}
HOPS = (6, 8)


def document(task: str, rows: list[Json], **changes: Any) -> Json:
    command = "unwalk reproduce all --seeds 3"
    return {"machine": "H200", "commit": "abc123", "command": command, "task": task} | {
        "rows": rows,
        **changes,
    }


def figure(task: str, presets: tuple[str, ...], seeds: int) -> Json:
    rows = []
    for preset in presets:
        for number, method in enumerate(("rrdu", "finetune", "ddp", "retrain")):
            for seed in range(seeds):
                shared = np.random.default_rng(seed)
                own = np.random.default_rng([seed, number, len(preset)])
                for hop in range(0 if method == "retrain" else 1, sum(HOPS) + 1):
                    training = method != "retrain" and hop <= HOPS[0]
                    clean, asr = (shared if training else own).random(2)
                    values = {"clean": 0.9 + clean / 10, "asr": asr / 2, "asr_paper": 0.1 + asr / 2}
                    rows.append(
                        {"method": method, "preset": preset, "seed": seed, "hop": hop, **values}
                    )
    return document(task, rows)


def fake_documents(
    presets: tuple[str, ...] = ("paper-matched",),
    tasks: tuple[str, ...] = ("mnist", "cifar10"),
    seeds: int = 3,
) -> dict[str, Json]:
    rng = np.random.default_rng(5)
    documents = {f"figure1-{task}": figure(task, presets, seeds) for task in tasks}
    for task in tasks:
        for name, values in VALUES.items():
            rows = []
            for preset in presets:
                for value in values:
                    far = float(rng.choice([0.0, 0.03, 0.3]))
                    for seed in range(seeds):
                        clean, asr = rng.normal([0.9, 0.2 + far], 0.01)
                        rows.append(
                            {
                                "row": value,
                                "preset": preset,
                                "seed": seed,
                                "clean": float(clean),
                                "asr": float(asr) - 0.1,
                                "asr_paper": float(asr),
                                "reported_clean": 90.12 if task != "digits" else None,
                                "reported_asr": 20.4 if task != "digits" else None,
                                "sigma": 2.5744,
                            }
                        )
            documents[f"{name}-{task}"] = document(task, rows)
    return documents


def with_holes(documents: dict[str, Json]) -> dict[str, Json]:
    del documents["table-l-mnist"], documents["table-delta-mnist"], documents["table-delta-cifar10"]
    for number, row in enumerate(documents["figure1-mnist"]["rows"]):
        if row["hop"] in (3, 9) or number % 7 == 0:
            row["clean"] = row["asr_paper"] = None
    for row in documents["table-rho-mnist"]["rows"][:3]:
        row["clean"] = row["reported_asr"] = None
        row["asr"] = math.nan
    for row in documents["table-p-mnist"]["rows"]:
        row["sigma"] = None
    return documents


CASES: dict[str, Callable[[], dict[str, Json]]] = {
    "usual": fake_documents,
    "one seed": lambda: fake_documents(seeds=1),
    "two presets": lambda: fake_documents(("paper", "paper-matched")),
    "digits": lambda: fake_documents(tasks=("digits",), seeds=1),
    "holes": lambda: with_holes(fake_documents()),
    "one table": lambda: {"table-rho-mnist": fake_documents()["table-rho-mnist"]},
    "one hop": lambda: {
        "figure1-mnist": document("mnist", figure("mnist", ("paper",), 2)["rows"][:1])
    },
    "nothing": dict,
}
