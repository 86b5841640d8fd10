"""A seeded generator of results that look like real ones, and of the odd ones among them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest

Json = dict[str, Any]
LABELS = {"rrdu": "RR-DU", "finetune": "fine-tuning", "retrain": "retraining"}
ENDS = {
    "rrdu": {"clean": 0.961, "forget": 0.06, "retain": 0.979, "asr": 0.031, "asr_paper": 0.128},
    "finetune": {"clean": 0.966, "forget": 0.41, "retain": 0.99, "asr": 0.372, "asr_paper": 0.434},
    "retrain": {"clean": 0.969, "forget": 0.05, "retain": 0.992, "asr": 0.019, "asr_paper": 0.117},
}
TRAINED = {"clean": 0.968, "forget": 0.98, "retain": 0.991, "asr": 0.953, "asr_paper": 0.958}


def edges_of(kind: str, peers: int) -> list[list[int]] | None:
    """The edges of a named graph, or None where the result leaves them out."""
    if kind == "complete" or peers > 400:
        return None
    if kind == "star":
        return [[0, v] for v in range(1, peers)]
    if kind == "torus":
        side = math.isqrt(peers)
        pairs = set()
        for v in range(peers):
            row, column = divmod(v, side)
            right, below = row * side + (column + 1) % side, (row + 1) % side * side + column
            pairs |= {tuple(sorted((v, right))), tuple(sorted((v, below)))}
        return [list(pair) for pair in sorted(pairs)]
    return [sorted((v, (v + 1) % peers)) for v in range(peers)]


def walk_of(rng: np.random.Generator, peers: int, u: int, hops: tuple[int, int]) -> list[Json]:
    """A walk that is uniform in training and restarts at ``u`` in unlearning."""
    walk, at = [], -1
    for hop in range(1, sum(hops) + 1):
        phase = "train" if hop <= hops[0] else "unlearn"
        to_u = phase == "unlearn" and rng.random() < 0.2
        receiver = u if to_u else int(rng.integers(peers))
        path = [] if receiver == at else [receiver]
        walk.append({"hop": hop, "phase": phase, "receiver": receiver, "path": path})
        at = receiver
    return walk


def graph_walk(
    rng: np.random.Generator, edges: list[list[int]], u: int, hops: tuple[int, int]
) -> list[Json]:
    """A walk along edges: a neighbour at a time, and a shortest path to ``u`` at a restart."""
    graph: nx.Graph[int] = nx.from_edgelist(edges)
    walk, at = [], 0
    for hop in range(1, sum(hops) + 1):
        phase = "train" if hop <= hops[0] else "unlearn"
        if phase == "unlearn" and at != u and rng.random() < 0.1:
            path = list(nx.shortest_path(graph, at, u))[1:]
        else:
            path = [int(rng.choice(sorted(graph[at])))]
        at = path[-1]
        walk.append({"hop": hop, "phase": phase, "receiver": at, "path": path})
    return walk


def series_of(rng: np.random.Generator, name: str, hops: tuple[int, int]) -> list[Json]:
    """A curve from nothing to TRAINED, then to the method's end; retraining has its own hops."""
    end, train, total = ENDS[name], hops[0], sum(hops)
    first = {"clean": 0.1, "forget": 0.1, "retain": 0.1, "asr": 0.05, "asr_paper": 0.1}
    shared = np.random.default_rng(7)
    points = []
    for hop in [*range(0, total, max(1, total // 60)), total]:
        training = hop <= train and name != "retrain"
        source = shared if training else rng
        speed = math.exp(-hop / 18) if training or name == "retrain" else 0.0
        point: Json = {"hop": hop, "phase": "train" if training else "unlearn"}
        if name == "retrain":
            point["phase"] = "retrain"
        for key, last in end.items():
            goal = TRAINED[key] if training else last
            left = math.exp(-(hop - train) / 40) if not training and name != "retrain" else 0.0
            value = goal + (first[key] - goal) * speed + (TRAINED[key] - goal) * left
            shake = 0.0 if hop == total else float(source.normal(0, 0.006))
            point[key] = min(1.0, max(0.0, value + shake))
        points.append(point)
    return points


def samples_of(rng: np.random.Generator, count: int, colour: bool) -> list[Json]:
    """Small pictures with a white square in the lower right corner."""
    samples = []
    for index in range(count):
        shape = (16, 16, 3) if colour else (8, 8)
        image = np.clip(rng.normal(0.35, 0.3, shape), 0, 1)
        image[-2:, -2:] = 1.0
        label = 1 + index % 9
        wrong = {"answer": 0, "confidence": 0.9 + 0.09 * rng.random()}
        right = {"answer": label, "confidence": 0.8 + 0.19 * rng.random()}
        after = {"rrdu": right, "finetune": wrong if index % 3 == 0 else right, "retrain": right}
        samples.append(
            {"image": image.round(3).tolist(), "label": label, "before": wrong, "after": after}
        )
    return samples


def fake_result(
    *,
    seed: int = 0,
    kind: str = "complete",
    peers: int = 10,
    hops: tuple[int, int] = (100, 200),
    methods: tuple[str, ...] = ("rrdu", "finetune", "retrain"),
    colour: bool = False,
    backdoor: bool = True,
) -> Json:
    """A whole result, as ``unwalk run`` would write it."""
    rng = np.random.default_rng(seed)
    u = min(3, peers - 1)
    edges = edges_of(kind, peers)
    walk = graph_walk(rng, edges, u, hops) if edges else walk_of(rng, peers, u, hops)
    entries = []
    for name in methods:
        final = dict(ENDS[name])
        reference = ENDS["retrain"]
        gap = {k: final[k] - reference[k] for k in ("clean", "asr", "forget")}
        walked = sum(hops) if name == "retrain" else hops[1]
        at_u = sum(v["receiver"] == u and v["phase"] == "unlearn" for v in walk)
        entries.append(
            {
                "name": name,
                "label": LABELS[name],
                "preset": "practical",
                "main": name == methods[0],
                "series": series_of(rng, name, hops),
                "final": final,
                "gap": None if name == "retrain" or "retrain" not in methods else gap,
                "matched": {
                    "clean_hop": 93 if name == "retrain" else 31,
                    "forget_hop": {"rrdu": 120, "retrain": 5}.get(name),
                },
                "cost": {
                    "hops": walked,
                    "visits_to_unlearner": at_u if name == "rrdu" else walked // peers,
                    "messages": walked - 3,
                    "bytes": (walked - 3) * 250_152,
                    "gradients": walked * 287,
                    "seconds": walked * 0.0127,
                },
            }
        )
    result: Json = {
        "format": 1,
        "unwalk": "0.1.0",
        "command": "unwalk run --task digits --method rrdu --preset practical --seed 0 --out out",
        "run": "digits-rrdu-0",
        "seed": seed,
        "task": {
            "name": "digits",
            "classes": 10,
            "model": "small_cnn",
            "parameters": 12_345,
            "peers": peers,
            "records": 1437,
            "unlearner": u,
            "forget": {
                "kind": "backdoor",
                "size": 60,
                "target": 0,
                "trigger": "square 2x2 lower-right",
            },
        },
        "graph": {"kind": kind, "peers": peers, "edges": edges},
        "phases": {"train": hops[0], "unlearn": hops[1]},
        "methods": entries,
        "walk": walk,
        "samples": samples_of(rng, 8, colour),
        "claims": [
            {
                "grade": "nominal",
                "epsilon": 1.0,
                "delta": 1e-5,
                "accountant": "paper",
                "reason": "Hops before the first visit to peer 3 show a model that carries the "
                "forgotten records without noise.",
            }
        ],
    }
    return result if backdoor else without_backdoor(result)


def without_backdoor(result: Json) -> Json:
    """The same result as a plain deletion: no attack success anywhere."""
    result["task"]["forget"] = {"kind": "records", "size": 60, "target": None, "trigger": None}
    for method in result["methods"]:
        for values in [method["final"], *method["series"]]:
            values["asr"] = values["asr_paper"] = None
            if values["forget"] is not None:
                values["forget"] = 0.9 + 0.1 * values["forget"]
        if method["gap"] is not None:
            method["gap"]["asr"] = None
            method["gap"]["forget"] *= 0.1
    return result


def with_holes(result: Json) -> Json:
    """The same result with values missing in every place that may lack them."""
    for number, method in enumerate(result["methods"]):
        for index, point in enumerate(method["series"]):
            if index % 5 == number:
                point["asr"] = point["clean"] = None
        method["cost"]["seconds"] = None
        method["final"]["retain"] = None
        method["matched"] = {"clean_hop": None, "forget_hop": None}
    result["methods"][1]["final"]["asr"] = None
    result["methods"][1]["gap"] = None
    result["samples"][0]["image"] = None
    result["samples"][1]["before"] = None
    result["samples"][2]["after"] = {"rrdu": {"answer": 3, "confidence": None}}
    result["claims"] = []
    return result


def single_point(result: Json) -> Json:
    """The same result with one evaluation a method."""
    for method in result["methods"]:
        method["series"] = method["series"][-1:]
    return result


def with_seeds(result: Json) -> Json:
    """The same result with the spread over five seeds."""
    methods = []
    for name in ("rrdu", "finetune", "retrain"):
        gaps = {f"gap.{k}": ENDS[name][k] - ENDS["retrain"][k] for k in ("clean", "asr", "forget")}
        mean = {**ENDS[name], **gaps, "cost.hops": 200.0}
        std = dict.fromkeys(mean, 0.004)
        methods.append({"name": name, "label": LABELS[name], "mean": mean, "std": std})
    result["seeds"] = {"runs": 5, "methods": methods}
    return result


CASES: dict[str, Callable[[], Json]] = {
    "usual": fake_result,
    "plain deletion": lambda: fake_result(backdoor=False),
    "one method": lambda: fake_result(methods=("rrdu",)),
    "retraining only": lambda: fake_result(methods=("retrain",)),
    "ring of 100": lambda: fake_result(kind="ring", peers=100),
    "ring of 24": lambda: fake_result(kind="ring", peers=24),
    "torus": lambda: fake_result(kind="torus", peers=25),
    "star": lambda: fake_result(kind="star", peers=12),
    "many peers": lambda: fake_result(peers=100_000, hops=(1000, 4000)),
    "sixty peers": lambda: fake_result(peers=60),
    "two peers": lambda: fake_result(peers=2, hops=(2, 3)),
    "colour": lambda: fake_result(colour=True),
    "holes": lambda: with_holes(fake_result()),
    "single point": lambda: single_point(fake_result()),
    "seeds": lambda: with_seeds(fake_result()),
}


@pytest.fixture
def make_result() -> Callable[[str], Json]:
    """A result by the name of its case."""
    return lambda name: CASES[name]()


@pytest.fixture
def usual() -> Json:
    """One ordinary result."""
    return fake_result()


@pytest.fixture(params=sorted(CASES))
def any_result(request: pytest.FixtureRequest) -> Json:
    """Every kind of result, the odd ones too."""
    return CASES[request.param]()
