"""Measures a walk: accuracies, attack success, messages and bytes.

* ``clean``: accuracy on the test set.  Of numbers it is :math:`R^2`, one less the mean square error
  over the variance of the test set's numbers, on every set; of several labels F1, the harmonic mean
  of precision and recall over all records and labels.
* ``forget``, ``retain``: accuracy on the forgotten records as they were trained on, and on
  retained ones.
* ``asr``: share of triggered test images *of other classes* that are answered with the target
  class (the field's convention).  ``asr_paper`` counts images of the target class too, which
  gives it a floor near 1/classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from unwalk.core.data import Held
from unwalk.core.errors import Diverged
from unwalk.core.plan import Progress
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.engines.cuda import FusedEvaluation, executor_for
from unwalk.measures.attacks import auc
from unwalk.measures.divergence import kl_to_retraining
from unwalk.measures.population import by_loss
from unwalk.methods import METHODS
from unwalk.privacy.utility import noise_loss, restart_loss
from unwalk.reports.numbers import counted
from unwalk.tasks.task import ShardedTask

Answer = Callable[[torch.Tensor], torch.Tensor]

CHUNK = 4096
CLEAN_MARGIN = 0.01
FORGET_MARGIN = 0.05
MOST = {"forget": 1000, "retain": 1000, "test": 2000}
"""How many records of each set models are compared on."""


@dataclass(frozen=True)
class Reading:
    """One measurement; None where the task has no such set."""

    hop: int
    phase: str
    clean: float
    forget: float | None
    retain: float | None
    asr: float | None
    asr_paper: float | None

    def values(self) -> dict[str, float | None]:
        """The measures alone."""
        kept = asdict(self)
        del kept["hop"], kept["phase"]
        return kept


class Meter:
    """Measures a model on a task's sets, which stay on the device.

    On a CUDA device the model runs in ``precision``, and each reading copies its numbers from the
    device once, so that measuring does not stall training.
    """

    def __init__(
        self,
        task: ShardedTask,
        device: torch.device,
        precision: str = "float32",
        *,
        compiled: bool = False,
    ) -> None:
        self.halved = device.type == "cuda" and precision != "float32"
        self.compiled = self.halved and compiled
        self.test = self._placed(task.test, device)
        self.forgotten = self._placed(task.forgotten, device) if len(task.forgotten.y) else None
        self.retained = self._placed(task.retained, device) if len(task.retained.y) else None
        self.triggered = None if task.triggered is None else self._placed(task.triggered, device)
        self.predicts = task.predicts
        self.target = -1 if task.target is None else task.target
        self.finite = torch.tensor(True)
        self.executor = executor_for(device)
        self.fused: tuple[nn.Module, FusedEvaluation | None] | None = None

    def only_forgetting(self) -> str:
        """Measure forgetting alone from now on, in a fraction of the time; the measure's name.

        Attack success where there is a backdoor, else accuracy on forgotten records.  Clean
        accuracy is that on one record, and says nothing.
        """
        self.retained, self.test = None, Held(self.test.x[:1], self.test.y[:1])
        if self.triggered is None:
            return "forget"
        self.forgotten = None
        return "asr"

    def read(self, model: nn.Module, hop: int, phase: str) -> Reading:
        """Measure; the model is left in evaluation mode."""
        model.eval()
        answer = self._way(model)
        self.finite = torch.ones((), dtype=torch.bool, device=self.test.y.device)
        shares = {"clean": self._accuracy(answer, self.test)}
        if self.forgotten is not None:
            shares["forget"] = self._accuracy(answer, self.forgotten)
        if self.retained is not None:
            shares["retain"] = self._accuracy(answer, self.retained)
        if self.triggered is not None:
            hit = self._answers(answer, self.triggered.x).eq(self.target).double()
            others = self.triggered.y.ne(self.target)
            shares["asr"] = (hit * others).sum() / others.sum().clamp(min=1)
            shares["asr_paper"] = hit.mean()
        shares["finite"] = self.finite.double()
        values = dict(zip(shares, torch.stack(list(shares.values())).tolist(), strict=True))
        _check(values["finite"] == 1.0)
        return Reading(
            hop=hop,
            phase=phase,
            clean=values["clean"],
            forget=values.get("forget"),
            retain=values.get("retain"),
            asr=values.get("asr"),
            asr_paper=values.get("asr_paper"),
        )

    def _placed(self, held: Held, device: torch.device) -> Held:
        """The set on the device; pictures in the layout of the half-precision convolutions."""
        placed = held.to(device)
        if not self.halved or placed.x.dim() != 4:
            return placed
        return replace(placed, x=placed.x.to(torch.bfloat16, memory_format=torch.channels_last))

    def _way(self, model: nn.Module) -> Answer:
        """The function that runs the model: through fused kernels if requested and possible."""
        if not self.compiled or self.executor is None:
            return model
        if self.fused is None or self.fused[0] is not model:
            self.fused = (model, self.executor.evaluation(model))
        network = self.fused[1]
        if network is None:
            return model
        network.load()
        return network

    def _accuracy(self, answer: Answer, held: Held) -> torch.Tensor:
        if self.predicts == "class":
            return self._answers(answer, held.x).eq(held.y).double().mean()
        with torch.no_grad():
            output = torch.cat([answer(part) for part in held.x.split(CHUNK)]).double()
        self.finite = self.finite & torch.isfinite(output).all()
        if self.predicts == "labels":
            given, predicted = held.y > 0.5, output > 0.0
            named = (given.sum() + predicted.sum()).double()
            return torch.where(named > 0, 2.0 * (given & predicted).sum() / named, 1.0)
        error = (output.squeeze(-1) - held.y).square().mean()
        spread = self.test.y.var(correction=0).clamp(min=torch.finfo(torch.float64).tiny)
        return 1.0 - error / spread

    def _answers(self, answer: Answer, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.halved):
            classes, finite = _answers(answer, x)
        self.finite = self.finite & finite
        return classes


@torch.no_grad()
def _answers(answer: Answer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The class that a model predicts for each input, and whether all its outputs are finite."""
    outputs = [answer(part) for part in x.split(CHUNK)]
    finite = torch.stack([torch.isfinite(o).all() for o in outputs]).all()
    return torch.cat([o.argmax(1) for o in outputs]), finite


def answers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The class that a model predicts for each input."""
    classes, finite = _answers(model, x)
    _check(bool(finite))
    return classes


def _check(finite: bool) -> None:
    if not finite:
        raise Diverged(
            "the model's outputs are not finite, though its parameters are; "
            "a smaller learning rate or a clip usually helps."
        )


@torch.no_grad()
def confidences(model: nn.Module, x: torch.Tensor) -> list[dict[str, float | int]]:
    """Predicted class and softmax confidence for each input."""
    model.eval()
    output: torch.Tensor = model(x)
    _check(bool(torch.isfinite(output).all()))
    best = output.softmax(1).max(1)
    return [
        {"answer": int(a), "confidence": float(c)}
        for c, a in zip(best.values, best.indices, strict=True)
    ]


def sets_of(task: ShardedTask) -> dict[str, Held]:
    """The records on which models are compared, by set."""
    sets = {"forget": task.forgotten, "retain": task.retained, "test": task.test}
    chosen = {}
    for name, held in sets.items():
        order = PublicSeeds(0).numpy("evaluate", name).permutation(len(held.y))
        rows = torch.from_numpy(np.sort(order[: MOST[name]]))
        chosen[name] = Held(held.x[rows], held.y[rows])
    return chosen


@torch.no_grad()
def logits_of(model: nn.Module, x: torch.Tensor, device: torch.device) -> npt.NDArray[np.float32]:
    """What a model answers to each input, before the softmax."""
    model = model.eval().to(device)
    parts = [model(part.to(device)).float().cpu() for part in x.split(CHUNK)]
    logits: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return logits


def loss_on_test(model: nn.Module, task: ShardedTask, device: torch.device) -> dict[str, float]:
    """``loss``: the mean cross-entropy on the test set; nothing where no classes are predicted."""
    if task.predicts != "class" or not len(task.test.y):
        return {}
    logits = torch.from_numpy(logits_of(model, task.test.x, device)).double()
    return {"loss": float(nn.functional.cross_entropy(logits, task.test.y))}


def distances(
    models: dict[str, nn.Module], task: ShardedTask, device: torch.device
) -> dict[str, dict[str, float]]:
    """How far each model's answers are from those of ``retrain``; nothing where that did not run.

    ``mia`` is the AUC of a loss attack on the forgotten records less retraining's, ``kl`` the mean
    KL divergence of the answers to them.
    """
    if task.predicts != "class" or "retrain" not in models:
        return {}
    if not len(task.forgotten.y) or not len(task.test.y):
        return {}
    sets = sets_of(task)
    forget, test = sets["forget"], sets["test"]
    answers = {name: logits_of(model, forget.x, device) for name, model in models.items()}
    attack = {
        name: auc(
            by_loss(answers[name], forget.y.numpy()),
            by_loss(logits_of(model, test.x, device), test.y.numpy()),
        )
        for name, model in models.items()
    }
    return {
        name: {
            "mia": attack[name] - attack["retrain"],
            "kl": float(kl_to_retraining(answers[name], answers["retrain"]).mean()),
        }
        for name in models
    }


def cost(transcript: Transcript, phases: Iterable[str], unlearner: int) -> dict[str, int]:
    """What the hops of these phases cost."""
    wanted = set(phases)
    hops = [h for h in transcript.hops if h.phase in wanted]
    return {
        "hops": len(hops),
        "visits_to_unlearner": sum(h.receiver == unlearner for h in hops),
        "messages": sum(len(h.path) for h in hops),
        "bytes": sum(h.nbytes for h in hops),
        "gradients": sum(h.gradients for h in hops),
    }


def gap(final: Reading, oracle: Reading | None) -> dict[str, float | None] | None:
    """Difference to retraining; an ASR below retraining is over-unlearning, not success."""
    if oracle is None:
        return None
    ours, theirs = final.values(), oracle.values()
    differences: dict[str, float | None] = {}
    for name in ("clean", "asr", "forget"):
        a, b = ours[name], theirs[name]
        differences[name] = None if a is None or b is None else a - b
    return differences


def matched(
    series: list[Reading], phase: str, first: int, oracle: Reading | None
) -> dict[str, int | None]:
    """Hops of ``phase`` until clean accuracy and forgetting match retraining, and stay so.

    Clean accuracy matches within 1 point; forgetting matches when ``asr`` (or, without a
    backdoor, forget accuracy) is at most 5 points above retraining's.
    """

    def since(good: list[tuple[int, bool]]) -> int | None:
        start: int | None = None
        for hop, ok in good:
            if not ok:
                start = None
            elif start is None:
                start = hop
        return start

    if oracle is None:
        return {"clean_hop": None, "forget_hop": None}
    here = [r for r in series if r.phase == phase and r.hop > first]
    name = "asr" if oracle.asr is not None else "forget"
    clean = [(r.hop - first, r.clean >= oracle.clean - CLEAN_MARGIN) for r in here]
    aim = oracle.values()[name]
    forgot = [
        (r.hop - first, value <= aim + FORGET_MARGIN)
        for r in here
        if aim is not None and (value := r.values()[name]) is not None
    ]
    return {"clean_hop": since(clean), "forget_hop": since(forgot)}


def walk_of(progress: Progress) -> list[dict[str, Any]]:
    """Receivers and paths, for the picture of the walk."""
    return [
        {"hop": h.hop, "phase": h.phase, "receiver": h.receiver, "path": list(h.path)}
        for h in progress.transcript.hops
    ]


NO_CHEAPER = "no cheaper than a restart"


def hops_until(readings: list[Reading], goal: float) -> int | None:
    """Hops of the unlearning phase until clean accuracy first reaches ``goal``."""
    phase = readings[-1].phase
    here = [r for r in readings if r.phase == phase]
    before = [r.hop for r in readings if r.phase != phase]
    first = max(before, default=0)
    return next((r.hop - first for r in here if r.clean >= goal), None)


def worth(
    method: str, document: dict[str, Any], classes: int, series: dict[str, list[Reading]]
) -> str:
    """Whether noise was worth it, in one or two sentences; empty for methods that add none.

    The first does not need the walk: it says if the noise raises the loss as much as a restart
    would.  The second compares hops, if a restart or retraining was run as well.
    """
    parameters = document["parameters"]
    if not METHODS[method].beside_restart or not parameters["noise_std"]:
        return ""
    std, norm = max(parameters["noise_std"]), parameters.get("feature_norm")
    told = []
    if norm is not None and parameters.get("loss") == "softmax":
        cost, whole = noise_loss(std, classes, norm), restart_loss(classes)
        noise = f"the noise (std {std:.3g}) can raise the loss by {cost:.2g}"
        text = f"By a bound known before the walk, {noise}, a restart by {whole:.2g}"
        exact = f": {NO_CHEAPER}, which is exact." if cost >= whole else "."
        told.append(text + exact)
    if "retrain" in series:
        told += _measured(method, series)
    return " ".join(told)


def _measured(method: str, series: dict[str, list[Reading]]) -> list[str]:
    goal = series["retrain"][-1].clean - CLEAN_MARGIN
    hops_to_goal = {
        n: hops_until(series[n], goal) for n in (method, "restart", "retrain") if n in series
    }
    rivals = {n: hops for n, hops in hops_to_goal.items() if n != method and hops is not None}
    if not rivals:
        return []
    rival, theirs = min(rivals.items(), key=lambda item: item[1])
    own_hops = hops_to_goal[method]
    name = "a restart" if rival == "restart" else "retraining"
    near = "came within one point of retraining's clean accuracy"
    if own_hops is None:
        return [f"It never {near}; {name} did after {counted(theirs, 'hop')}: {NO_CHEAPER}."]
    end = f": {NO_CHEAPER}." if own_hops >= theirs else "."
    return [f"It {near} after {counted(own_hops, 'hop')}, {name} after {theirs}{end}"]
