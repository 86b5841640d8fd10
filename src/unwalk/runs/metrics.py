"""What is measured along a walk: accuracies, attack success, and what the walk cost.

* ``clean``: accuracy on the test set.
* ``forget``, ``retain``: accuracy on the forgotten records as they were trained on, and on
  retained ones.
* ``asr``: share of triggered test images *of other classes* that are answered with the target
  class (the field's convention).  ``asr_paper`` counts images of the target class too, which
  gives it a floor near 1/classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from unwalk.core.data import Held
from unwalk.core.errors import Diverged
from unwalk.core.plan import Progress
from unwalk.core.transcript import Transcript
from unwalk.tasks import ShardedTask

CHUNK = 4096
CLEAN_MARGIN = 0.01
FORGET_MARGIN = 0.05


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
    """Measures a model on a task's sets, which stay on the device."""

    target: int

    def __init__(self, task: ShardedTask, device: torch.device) -> None:
        self.test = task.test.to(device)
        self.forgotten = None if len(task.forgotten.y) == 0 else task.forgotten.to(device)
        self.retained = None if len(task.retained.y) == 0 else task.retained.to(device)
        self.triggered = None if task.triggered is None else task.triggered.to(device)
        self.target = -1 if task.target is None else task.target

    def read(self, model: nn.Module, hop: int, phase: str) -> Reading:
        """Measure; the model is left in evaluation mode."""
        model.eval()
        asr = asr_paper = None
        if self.triggered is not None:
            hit = answers(model, self.triggered.x).eq(self.target)
            others = self.triggered.y.ne(self.target)
            asr, asr_paper = _share(hit[others]), _share(hit)
        return Reading(
            hop=hop,
            phase=phase,
            clean=self._accuracy(model, self.test),
            forget=None if self.forgotten is None else self._accuracy(model, self.forgotten),
            retain=None if self.retained is None else self._accuracy(model, self.retained),
            asr=asr,
            asr_paper=asr_paper,
        )

    @staticmethod
    def _accuracy(model: nn.Module, held: Held) -> float:
        return _share(answers(model, held.x) == held.y)


def _share(hits: torch.Tensor) -> float:
    return float(hits.double().mean()) if hits.numel() else 0.0


@torch.no_grad()
def _outputs(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(x)
    if not torch.isfinite(output).all():
        raise Diverged(
            "the model's outputs are not finite, though its parameters are; "
            "a smaller learning rate or a clip usually helps."
        )
    return output


def answers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The class a model answers for each input."""
    return torch.cat([_outputs(model, part).argmax(1) for part in x.split(CHUNK)])


def confidences(model: nn.Module, x: torch.Tensor) -> list[dict[str, float | int]]:
    """Answer and softmax confidence for each input."""
    model.eval()
    best = _outputs(model, x).softmax(1).max(1)
    return [
        {"answer": int(a), "confidence": float(c)}
        for c, a in zip(best.values, best.indices, strict=True)
    ]


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
    mine, theirs = final.values(), oracle.values()
    differences: dict[str, float | None] = {}
    for name in ("clean", "asr", "forget"):
        a, b = mine[name], theirs[name]
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
