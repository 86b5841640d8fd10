r"""RR-DU, randomized-restart decentralized unlearning (the paper's section 4 and App. B.3).

The route sends the token to the unlearning peer u with probability p.  Elsewhere the visit is
Network-SGD.  At u it is a corrective step along :math:`g_u`, noise, and a projection on the trust
ball.  Three directions are offered:

========== ================================================= ====================================
direction  :math:`g_u`                                       paper's name
========== ================================================= ====================================
retain     :math:`-\nabla\ell_{u\setminus f}`                EXACT
forget     :math:`+\frac{m}{n_u}\nabla\ell_f`                LIGHTWEIGHT
corrected  :math:`-\nabla\ell_u + \frac{m}{n_u}\nabla\ell_f` (parallel to the right direction; times
                                                             n_u/(n_u - m) it is EXACT)
========== ================================================= ====================================

Nothing here is a guarantee: the starting model was trained on the forgotten records, and no noise
was added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import (
    AddNoise,
    Ball,
    Drawing,
    Program,
    Project,
    Records,
    Rows,
    StepRule,
    Steps,
    Visit,
)
from unwalk.core.seeds import Draws
from unwalk.core.validation import check_choice, check_number
from unwalk.methods.network_sgd import Descent, LocalWork, feasible, unlearn_descent, unlearn_phase
from unwalk.methods.record import Calibrated, Decided, MethodRecord, Nominal, noise_source
from unwalk.privacy import formulas
from unwalk.privacy.nominal import nominal_sigma
from unwalk.settings.config import ALIASES, DIRECTIONS, NOISE_ON, VISITS, Config


def direction_named(name: str) -> str:
    """The direction for our name or the paper's, in any case.

    >>> direction_named("EXACT")
    'retain'
    """
    lowered = name.lower()
    return check_choice("direction", ALIASES.get(lowered, lowered), DIRECTIONS)


@dataclass(frozen=True)
class Correction:
    """What u does: along ``direction``, over its rows as ``work`` says, by ``rule``.

    ``sigma`` is the noise scale on a gradient.  ``noise_on`` ``gradient`` adds it to every
    step's gradient, as the algorithm is written; ``weights`` adds eta sigma Z once, after the
    visit's last step.  ``clip`` is the paper's effective gradient bound L.
    """

    direction: str
    work: LocalWork
    rule: StepRule
    sigma: float = 0.0
    noise_on: str = "weights"
    clip: float | None = None
    trust: tuple[Ball, ...] = ()

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, DIRECTIONS)
        check_choice("noise_on", self.noise_on, NOISE_ON)
        check_number("sigma", self.sigma, low=0.0)
        if self.clip is not None:
            check_number("clip", self.clip, above=0.0)

    def steps(self, visit: Visit, step_size: float) -> Steps | None:
        """The corrective steps, or None when u has no rows to take them on."""
        records = visit.records
        rows = self._rows(records)
        if rows.size == 0:
            return None
        batches, weights = self.work.batches(rows, visit.rng)
        forgotten = records.forgotten
        if self.data == "mixed" and self.work.kind == "full":
            weights = np.where(np.isin(batches, forgotten), 0.0, (batches >= 0) / rows.size)
        elif self.data == "mixed" and forgotten.size:
            batches, weights = paired(batches, forgotten, _share(records), visit.rng)
        return self._on(records, step_size, batches, weights)

    def drawing(self, visit: Visit, step_size: float) -> Drawing | None:
        """:meth:`steps` before anything is drawn, where all batches are drawn alike."""
        rows = self._rows(visit.records)
        if rows.size == 0:
            return Drawing(None, rows, 0, 0)
        drawn = None if self.data == "mixed" else self.work.drawing(rows)
        if drawn is None:
            return None
        batches, passes, used = drawn
        return Drawing(self._on(visit.records, step_size, batches, None), rows, passes, used)

    @property
    def data(self) -> str:
        """The records of the steps, as events call them."""
        return {"retain": "retained", "forget": "forgotten", "corrected": "mixed"}[self.direction]

    def _rows(self, records: Records) -> Rows:
        return records.all if self.data == "mixed" else records.rows(self.data)

    def _on(
        self,
        records: Records,
        step_size: float,
        batches: Rows,
        weights: npt.NDArray[np.float64] | None,
    ) -> Steps:
        """The steps on these batches."""
        return Steps(
            batches=batches,
            weights=weights,
            data=self.data,
            rule=self.rule,
            step_size=step_size,
            direction=1 if self.direction == "forget" else -1,
            scale=_share(records) if self.direction == "forget" else 1.0,
            clip=self.clip,
            noise=self.sigma if self.noise_on == "gradient" else 0.0,
            batching="other" if self.data == "mixed" else self.work.kind,
        )

    def sensitivity(self, steps: Steps | None) -> float | None:
        """How far this visit's steps can carry parameters because of the forgotten records.

        Descent on retained rows moves nothing that depends on them.  Plain clipped steps on
        forgotten rows move at most eta L each, and none in the world without those rows; mixed ones
        move in both worlds, so the worlds move apart by at most twice that.  With moments, or
        without a clip, there is no bound.
        """
        if steps is None or steps.data == "retained":
            return 0.0
        if steps.rule.optimizer != "sgd" or steps.clip is None or steps.rule.weight_decay:
            return None
        count: int = steps.batches.shape[0]
        worlds = 2 if steps.data == "mixed" else 1
        return worlds * steps.step_size * steps.clip * count


def _share(records: Records) -> float:
    """The forgotten records' share of all."""
    return records.forgotten.size / max(records.all.size, 1)


def paired(
    batches: np.ndarray, forgotten: np.ndarray, share: float, rng: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """Each batch of D_u beside one of D_f, weighted so that the sum is the corrected gradient."""
    steps, minibatches, size = batches.shape
    small = min(size, forgotten.size)
    against = np.full((steps, minibatches, size), -1, np.int64)
    for place in np.ndindex(steps, minibatches):
        against[place][:small] = rng.choice(forgotten, small, replace=False)
    both = np.concatenate([batches, against], axis=1)
    weights = np.concatenate(
        [
            np.full(batches.shape, 1.0 / (size * minibatches)),
            np.where(against >= 0, -share / (small * minibatches), 0.0),
        ],
        axis=1,
    )
    return both, weights


@dataclass(frozen=True)
class RRDU:
    """Network-SGD away from u, a noisy projected correction at u."""

    descent: Descent
    correction: Correction
    name: str = field(default="rrdu", init=False)

    @property
    def travels(self) -> tuple[str, ...]:
        slots = {*self.descent.travels}
        if self.correction.rule.state == "carried":
            slots |= {*self.correction.rule.slots}
        return tuple(sorted(slots))

    def visit(self, visit: Visit) -> Program:
        if not visit.at_unlearner:
            return self.descent.program(visit, "all")
        step_size = self._step_size(visit)
        steps = self.correction.steps(visit, step_size)
        after = self._after(steps, step_size)
        return after if steps is None else (steps, *after)

    def drawing(self, visit: Visit) -> Drawing | None:
        if not visit.at_unlearner:
            return self.descent.drawing(visit, "all")
        step_size = self._step_size(visit)
        ascent = self.correction.drawing(visit, step_size)
        if ascent is None or self.descent.schedule.kind != "constant":
            return None
        return replace(ascent, after=self._after(ascent.steps, step_size))

    def _step_size(self, visit: Visit) -> float:
        return self.descent.schedule.at(visit.phase_hop, self.correction.rule.learning_rate)

    def _after(self, steps: Steps | None, step_size: float) -> Program:
        """What follows the steps at u."""
        correction = self.correction
        after: Program = ()
        if correction.sigma and correction.noise_on == "weights":
            std, sensitivity = step_size * correction.sigma, correction.sensitivity(steps)
            after = (AddNoise(std, sensitivity, rounded=False),)
        return (*after, Project(correction.trust)) if correction.trust else after


def _phase(config: Config, decided: Decided) -> Phase:
    unlearn, descent = config.unlearn, unlearn_descent(config)
    rule = descent.rule
    if unlearn.visit_optimizer == "plain":
        rule = replace(rule, optimizer="sgd", weight_decay=0.0)
    balls = (
        [] if unlearn.trust_radius is None else [Ball(unlearn.trust_centre, unlearn.trust_radius)]
    )
    theta = feasible(config)
    correction = Correction(
        direction=direction_named(unlearn.direction),
        work=replace(descent.work, kind=VISITS[unlearn.visit], epochs=1, minibatches=1),
        rule=rule,
        sigma=decided.sigma,
        noise_on=unlearn.noise_on,
        clip=unlearn.clip,
        trust=tuple(balls if theta is None else [theta, *balls]),
    )
    route = walks.Restart(config.forget.peer, decided.p, unlearn.max_visits)
    return unlearn_phase(config, RRDU(descent, correction), route)


def _noise(config: Config, peers: int, p: float, records: Records) -> Calibrated:
    """Noise scale at u: given, none, or the paper's Corollary 5.2 with unit constant."""
    unlearn = config.unlearn
    if unlearn.sigma is not None:
        return Calibrated(unlearn.sigma)
    if unlearn.calibration == "none" or p == 0.0:
        return Calibrated(0.0)
    clip = unlearn.clip if unlearn.clip is not None else 1.0
    return Calibrated(
        nominal_sigma(unlearn.epsilon, unlearn.delta, clip, unlearn.hops, p, peers),
        "paper",
        "the paper's Corollary 5.2 with unit constant",
        numbers={"clip": clip, "hops": unlearn.hops, "p": p},
    )


def _reason(calibrated: Calibrated, origin: str) -> str:
    source = noise_source(origin)
    return (
        f"{calibrated.formula}, for which no proof covers this run; the noise came from {source}."
    )


def _facts(config: Config, records: Records, p: float) -> dict[str, Any]:
    return {"p": p}


RECORD = MethodRecord(
    name="rrdu",
    label="RR-DU",
    description="randomized restarts at the forgetting peer: correction, noise, projection",
    phase=_phase,
    facts=_facts,
    nominal=Nominal(_noise, formulas.COROLLARY, _reason),
)
