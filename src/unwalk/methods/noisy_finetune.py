r"""Noisy fine-tuning with clipping (Koloskova et al. 2025, arXiv:2506.06985, gradient clipping).

The trained model is clipped to norm :math:`C_0`.  Then :math:`T` steps on retained records follow,

.. math:: x_{t+1} = x_t - \gamma\,(\mathrm{clip}_{C_1}(g_t) + \lambda x_t) + \mathcal N(0, \sigma^2
          I),

one at every visit, and the rest of the walk is fine-tuning without noise.  Whoever sees nothing but
the model after these steps sees two worlds that began at most :math:`2C_0` apart, with every step's
noise on top.  Nothing is asked of the loss.

On a walk that is a promise to outsiders only: the first peer receives the trained model before any
noise.  The number is nominal here.  The proof is for real numbers, and this noise is added in
floating point; batch statistics that travel with the model have no noise at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from unwalk import walks
from unwalk.core.plan import Phase
from unwalk.core.program import AddNoise, Ball, Program, Project, Records, StepRule, Visit
from unwalk.core.validation import check_count, check_number
from unwalk.methods.network_sgd import Descending, Descent, unlearn_descent, unlearn_phase
from unwalk.methods.record import (
    UNPROVED_OUTSIDE,
    Calibrated,
    Decided,
    MethodRecord,
    Nominal,
    noise_source,
)
from unwalk.privacy import formulas
from unwalk.privacy.published import published_noisy_finetuning_sigma
from unwalk.settings.config import Config, setting


@dataclass(frozen=True)
class NoisyFinetuneSettings:
    """Noisy fine-tuning.  Epsilon, delta and hops are those of the unlearning walk."""

    key: ClassVar[str] = "noisy_finetune"
    radius: float = setting(0.003, "bound C_0 on the norm of the model it starts from", above=0.0)
    clip: float = setting(1.0, "bound C_1 on the norm of every noisy step's gradient", above=0.0)
    step_size: float = setting(1e-4, "gamma of the noisy steps", above=0.0)
    weight_decay: float = setting(0.0, "lambda of the noisy steps", low=0.0)
    share: float = setting(
        0.5, "share of the walk's hops that are noisy steps, one step each", above=0.0, high=1.0
    )
    sigma: float | None = setting(
        None, "noise on the parameters at every noisy step; empty: calibrated", low=0.0
    )


@dataclass(frozen=True)
class NoisyFinetune(Descending):
    """A projection on ``ball``, ``noisy`` visits of one clipped step and noise, then ``descent``.

    ``step`` is the descent of a noisy visit, ``sigma`` the std of its noise on the parameters.  A
    peer that has no records left adds the noise alone.
    """

    step: Descent
    ball: Ball
    sigma: float
    noisy: int
    name: str = field(default="noisy-finetune", init=False)

    def __post_init__(self) -> None:
        check_number("sigma", self.sigma, low=0.0)
        check_count("noisy", self.noisy, low=1)

    def visit(self, visit: Visit) -> Program:
        if visit.phase_hop > self.noisy:
            return self.descent.program(visit, "retained")
        program = (*self.step.program(visit, "retained"), AddNoise(self.sigma, rounded=False))
        return (Project((self.ball,)), *program) if visit.phase_hop == 1 else program


def _noisy_hops(config: Config) -> int:
    share = config.of(NoisyFinetuneSettings).share
    return max(1, int(share * config.unlearn.hops))


def noisy_finetuning_noise(config: Config, peers: int, p: float, records: Records) -> Calibrated:
    """The noise std of every noisy step, by the published bound or as given."""
    own, target = config.of(NoisyFinetuneSettings), config.unlearn
    if own.sigma is not None:
        return Calibrated(own.sigma)
    numbers: dict[str, Any] = {
        "radius": own.radius,
        "clip": own.clip,
        "step_size": own.step_size,
        "weight_decay": own.weight_decay,
        "steps": _noisy_hops(config),
    }
    scale = published_noisy_finetuning_sigma(target.epsilon, target.delta, **numbers)
    formula = (
        "the noise is that of noisy fine-tuning with gradient clipping (Koloskova et al. 2025), "
        f"for {numbers['steps']} steps of which only the last is seen"
    )
    return Calibrated(scale, "rdp", formula, numbers=numbers)


def _phase(config: Config, decided: Decided) -> Phase:
    own, base = config.of(NoisyFinetuneSettings), unlearn_descent(config)
    rule = StepRule("sgd", learning_rate=own.step_size, weight_decay=own.weight_decay)
    step = Descent(rule, replace(base.work, kind="averaged"), clip=own.clip)
    method = NoisyFinetune(
        base, step, Ball("origin", own.radius), decided.sigma, _noisy_hops(config)
    )
    return unlearn_phase(config, method, walks.Uniform(), reset_optimizer=True)


def _reason(calibrated: Calibrated, origin: str) -> str:
    return (
        f"{calibrated.formula}; peers see the trained model and every step, so that it says "
        "nothing about them; the noise is added in floating point, and it came from "
        f"{noise_source(origin)}; no proof covers this run."
    )


RECORD = MethodRecord(
    name="noisy-finetune",
    label="noisy fine-tuning",
    description="the model clipped, noisy clipped steps, then fine-tuning (Koloskova et al. 2025)",
    phase=_phase,
    settings=NoisyFinetuneSettings,
    guarantee=UNPROVED_OUTSIDE,
    nominal=Nominal(noisy_finetuning_noise, formulas.NOISY_FINETUNING, _reason),
)
