"""The public facts of a run, which the transcript's header states before the first hop.

Accountants read them there.  They must not depend on the records to be forgotten, except for their
number (or the cap announced instead).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unwalk.core import __version__
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Task
from unwalk.core.seeds import PublicSeeds
from unwalk.core.token import build_model
from unwalk.engines.linear import BareLinear, bare_linear
from unwalk.methods import METHODS
from unwalk.methods.network_sgd import train_descent
from unwalk.methods.record import Calibrated, MethodRecord
from unwalk.methods.seal import SealSettings
from unwalk.settings.config import Config
from unwalk.tasks import ShardedTask


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """The public facts of the initial model, which is built once for them.

    ``head`` is its linear layer, or in words what the model is instead; ``initial_norm`` the length
    of that layer's parameters.
    """

    parameters: int
    precision: str
    buffers: tuple[str, ...]
    head: BareLinear | str
    initial_norm: float

    @staticmethod
    def of(task: Task, seed: int) -> ModelFacts:
        """The facts of the model that a run with this seed begins with."""
        model = build_model(task.model, PublicSeeds(seed).integer("model"))
        parameters, head, norm = list(model.parameters()), bare_linear(model), 0.0
        if not isinstance(head, str):
            start = [p.detach().to(torch.float64).reshape(-1) for p in parameters]
            norm = length(torch.cat(start).tolist())
        return ModelFacts(
            parameters=sum(p.numel() for p in parameters),
            precision=str(parameters[0].dtype).removeprefix("torch."),
            buffers=tuple(sorted(dict(model.named_buffers()))),
            head=head,
            initial_norm=norm,
        )


def public_facts(
    config: Config, task: ShardedTask, model: ModelFacts, method: str, p: float
) -> dict[str, Any]:
    """The facts that a header states of a run by one method."""
    facts: dict[str, Any] = {
        "unwalk": __version__,
        "method": method,
        "forget": announced(config, task),
        "epsilon": config.unlearn.epsilon,
        "delta": config.unlearn.delta,
        "attempt": config.noise.attempt,
        **_of_the_data(config, task),
        "iterate": config.train.keep,
        "precision": _precision(config, model),
        **_batching(config),
        **_loss(task, model),
    }
    if config.train.slices > 1:
        facts["slices"] = config.train.slices
    if method in METHODS:
        facts |= METHODS[method].facts(config, task.records(config.forget.peer), p)
    return facts


def announced(config: Config, task: ShardedTask) -> int:
    """The number of forgotten records that the run accounts for: the cap, or their true number."""
    size = int(task.records(config.forget.peer).forgotten.size)
    cap = config.forget.cap
    if cap is None:
        return size
    if visits := config.of(SealSettings).visits:
        raise InvalidInput(
            "forget.cap hides how many records are forgotten, but visits after a seal "
            f"(seal.visits is {visits}) tell; allowed: one of them."
        )
    if cap < size:
        raise InvalidInput(f"forget.cap is {cap}; allowed: {size} or more, the records to forget.")
    return cap


def _of_the_data(config: Config, task: ShardedTask) -> dict[str, Any]:
    """Where scales and classes come from, how data were dealt, and whose code computes.

    What the user declares about scaling counts only if the program does not know it.
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
    outside_state = task.outside_state
    return facts if outside_state is None else {**facts, "outside_state": outside_state}


def _precision(config: Config, model: ModelFacts) -> str:
    """The number format of gradients; ``performance.precision`` acts on CUDA devices only."""
    if config.device != "cpu" and config.performance.precision != "float32":
        return config.performance.precision
    return model.precision


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


def _loss(task: ShardedTask, model: ModelFacts) -> dict[str, Any]:
    """The loss, where it is softmax regression, with what its rounding depends on."""
    if task.loss is not None:
        return {"loss": "the task's own"}
    head = model.head
    if isinstance(head, str):
        return {"loss": f"of a model with {head}"}
    facts = {
        "loss": "softmax",
        "inputs": head.inputs + head.bias,
        "outputs": head.outputs,
        "initial_norm": model.initial_norm,
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
    config: Config, record: MethodRecord, calibrated: Calibrated, origin: str
) -> list[dict[str, Any]]:
    """The paper's numbers, announced with the formula they come from; none without noise."""
    if record.formula is None or not calibrated.formula or calibrated.scale == 0.0:
        return []
    entry = {
        "epsilon": config.unlearn.epsilon,
        "delta": config.unlearn.delta,
        **calibrated.numbers,
        "formula": record.formula.name,
        "accountant": calibrated.accountant,
        "sigma": calibrated.scale,
        "reason": record.reason(calibrated, origin),
    }
    return [entry]


def capacity(task: ShardedTask) -> int:
    """The largest number of records of a peer, from what is published about the task.

    B, by which every gradient sum of ``slots`` is divided, comes from it: a count of the records
    at hand would change with those to be forgotten.  So it is a constant of the task and its
    settings where records are dealt evenly or have natural peers, and asked for elsewhere.
    """
    published, dealing = task.source.published, task.holdings.dealing
    if published is not None and dealing == "iid":
        return -(-sum(published) // task.peers)
    if published is not None and dealing == "natural":
        return max(published)
    why = (
        "nothing is published of how many records it has"
        if published is None
        else f"with partition {dealing!r} a peer's share depends on the records"
    )
    raise InvalidInput(
        f"train.work is 'slots' and train.capacity is not set; of task {task.name!r} {why}, and a "
        "capacity that is counted on the data would tell of the records to be forgotten; allowed: "
        "the most records that any peer may hold, chosen without looking at those to be forgotten."
    )
