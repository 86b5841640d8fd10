"""Public facts of a run: what the transcript's header states before the first hop.

Accountants read them there.  Nothing in them may depend on the records to be forgotten, but for
their number (or the cap announced in its place).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import unwalk
from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import PublicSeeds
from unwalk.core.workspace import build_model
from unwalk.engines.linear import bare_linear
from unwalk.runs.baselines import Calibrated, nominal_reason
from unwalk.runs.config import Config
from unwalk.runs.entries import GOING_BACK, train_descent, way_back
from unwalk.tasks import ShardedTask


def public_facts(config: Config, task: ShardedTask, method: str, p: float) -> dict[str, Any]:
    """The header's facts that are the same for every walk of a run."""
    facts: dict[str, Any] = {
        "unwalk": unwalk.__version__,
        "method": method,
        "forget": announced(config, task),
        "epsilon": config.unlearn.epsilon,
        "delta": config.unlearn.delta,
        "attempt": config.noise.attempt,
        **_of_the_data(config, task),
        "iterate": config.train.keep,
        "precision": _precision(config, task),
        **_batching(config),
        **_loss(config, task),
    }
    if method in GOING_BACK or config.train.slices > 1:
        facts["slices"] = config.train.slices
    if method in GOING_BACK:
        facts["rewind"] = way_back(config, method)
        facts["emptied"] = task.records(config.forget.peer).retained.size == 0
    if method == "sisa" and config.train.shards > 1:
        facts["shards"] = config.train.shards
    if method == "rrdu" or (method == "seal" and config.seal.visits):
        facts["p"] = p
    return facts


def announced(config: Config, task: ShardedTask) -> int:
    """How many forgotten records the run is accounted for: the cap, or how many there are."""
    size = int(task.records(config.forget.peer).forgotten.size)
    cap = config.forget.cap
    if cap is None:
        return size
    if config.seal.visits:
        raise InvalidInput(
            "forget.cap hides how many records are forgotten, but visits after a seal "
            f"(seal.visits is {config.seal.visits}) tell; allowed: one of them."
        )
    if cap < size:
        raise InvalidInput(f"forget.cap is {cap}; allowed: {size} or more, the records to forget.")
    return cap


def _of_the_data(config: Config, task: ShardedTask) -> dict[str, Any]:
    """Where scales and classes come from, how data were dealt, and whose code computes.

    What the user says of the scaling counts only where the program does not know better.
    """
    source = task.source
    known, given = source.normalisation, config.data.normalisation
    facts: dict[str, Any] = {
        "normalisation": given if given is not None and known == "unknown" else known,
        "labels": source.labels_from,
        "dealing": task.holdings.dealing,
        "holdout": source.holdout,
        "code": "own" if task.own_code else "built-in",
    }
    found = task.outside_state
    return facts if found is None else {**facts, "outside_state": found}


def _precision(config: Config, task: ShardedTask) -> str:
    """What gradients are computed in; ``performance.precision`` acts on CUDA devices only."""
    if config.device != "cpu" and config.performance.precision != "float32":
        return config.performance.precision
    return str(next(build_model(task.model, 0).parameters()).dtype).removeprefix("torch.")


def _batching(config: Config) -> dict[str, Any]:
    work = train_descent(config).work
    if work.kind != "slots":
        return {"batching": work.kind}
    return {
        "batching": "slots",
        "slots": work.slots,
        "nominal_batch": work.nominal_batch,
        "slot_cap": work.nominal_batch,
    }


def _loss(config: Config, task: ShardedTask) -> dict[str, Any]:
    """The loss, where it is softmax regression, with what its rounding depends on."""
    if task.loss is not None:
        return {"loss": "the task's own"}
    model = build_model(task.model, PublicSeeds(config.seed).integer("model"))
    head = bare_linear(model)
    if isinstance(head, str):
        return {"loss": f"of a model with {head}"}
    start = [p.detach().to(torch.float64).reshape(-1) for p in model.parameters()]
    facts = {
        "loss": "softmax",
        "inputs": head.inputs + head.bias,
        "outputs": head.outputs,
        "initial_norm": length(torch.cat(start).tolist()),
    }
    norm = task.source.feature_norm
    if norm is None or task.source.augment is not None:
        return facts
    return {**facts, "feature_norm": length([norm, 1.0 if head.bias else 0.0])}


def length(vector: Sequence[float]) -> float:
    """The length of a vector, rounded up.

    >>> length([0.0, 0.0]), length([1.0]), 1.0 < length([1.0, 1e-9]) < 1.0 + 1e-15
    (0.0, 1.0, True)
    """
    values = [value for value in vector if value]
    near = math.hypot(*values)  # within one unit in the last place
    return near if len(values) < 2 else math.nextafter(math.nextafter(near, math.inf), math.inf)


def nominal_facts(
    config: Config, method: str, found: Calibrated, p: float, origin: str
) -> list[dict[str, Any]]:
    """The paper's numbers, announced with the formula they come from; none without noise."""
    target = config.unlearn
    numbers = {"epsilon": target.epsilon, "delta": target.delta}
    if method == "rrdu" and found.scale > 0.0 and target.sigma is None:
        known = "a known seed (simulation)" if origin == "simulation" else "a secret of the peer"
        reason = (
            "the paper's Corollary 5.2 with unit constant, for which no proof covers this run; "
            f"the noise came from {known}."
        )
        said = {
            "formula": "corollary-5.2",
            "accountant": "paper",
            "sigma": found.scale,
            "clip": target.clip if target.clip is not None else 1.0,
            "hops": target.hops,
            "p": p,
            "reason": reason,
        }
        return [{**numbers, **said}]
    if found.formula and found.scale > 0.0:
        said = {**found.numbers, "formula": method, "accountant": found.accountant}
        return [{**numbers, **said, "sigma": found.scale, "reason": nominal_reason(found)}]
    return []
