r"""DDP, network-private SGD (the paper's Algorithm 2, App. B.2).

Every hop draws its peer uniformly over all of V, the holder included
(:class:`unwalk.walks.UniformPeer`).  Every step there is

.. math:: \theta \leftarrow \Pi_\Theta\big(\theta - \eta (g_t + Z_t)\big), \qquad
          \|g_t\| \le L, \quad Z_t \sim \mathcal N(0, \sigma^2 I),

with :math:`g_t` a minibatch gradient clipped to L and :math:`\Theta` a ball around the origin.  The
algorithm starts in :math:`\Theta`, so the first visit of a phase projects before its first step.

Two readings.  *Continued* (App. B.1): the walk continues from the trained model on the retained
records.  *From the start* (Theorem 3.5): training itself is this walk, on all records, and
forgetting does nothing, :math:`U = A(D)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.program import AddNoise, Ball, Drawing, Program, Project, Records, Steps, Visit
from unwalk.core.validation import check_choice, check_number
from unwalk.methods import private
from unwalk.methods.network_sgd import Descending, each_step
from unwalk.methods.record import Calibrated, Decided, Nominal
from unwalk.privacy import formulas
from unwalk.privacy.nominal import nominal_ddp_sigma
from unwalk.settings.config import Config, setting

RADIUS_MEANS = ("diameter", "radius")
NOISE_ON = ("gradient", "weights")
CENTRES = ("origin", "initial", "start")
SIGMA_RULES = {"alg2": "algorithm", "table2": "table", "lemma": "lemma"}
_FORMULAS = {
    "alg2": "Algorithm 2 (sigma^2 = 8 L^2 ln(1.25/delta)/epsilon^2), made for a single step",
    "table2": "Table 2 (sigma = (m L/epsilon) sqrt(T ln(1/delta) ln N/N)), unit constant, factor m",
    "lemma": "the view lemma (D_alpha <= C alpha L^2 (T/N) ln N/(sigma^2 N)), its constant C "
    "not known",
}


@dataclass(frozen=True)
class DDPSettings:
    """DDP, network-private SGD.  Epsilon, delta and hops are those of the unlearning walk."""

    key: ClassVar[str] = "ddp"
    clip: float = setting(1.0, "bound L on the norm of every step's gradient", above=0.0)
    radius: float | None = setting(10.0, "size R of the feasible ball; empty: none", above=0.0)
    centre: str = setting(
        "origin", "its centre: origin, initial or start (of the phase)", choices=CENTRES
    )
    radius_means: str = setting(
        "diameter", "R is the ball's diameter (section 6) or radius (App. D)", choices=RADIUS_MEANS
    )
    sigma_rule: str = setting(
        "alg2", "noise on every gradient: alg2, table2 (times m) or lemma", choices=SIGMA_RULES
    )
    constant: float = setting(1.0, "constant factor of the sigma rule (C of the lemma)", above=0.0)
    sigma: float | None = setting(None, "noise on every gradient; overrides the rule", low=0.0)
    reading: str = private.reading_setting()
    optimizer: str = setting(
        "plain", "plain SGD as in Algorithm 2, or the token's (same)", choices=("plain", "same")
    )
    work: str | None = private.work_setting()
    noise_on: str = setting(
        "gradient", "noise on every gradient, or once per visit on the weights", choices=NOISE_ON
    )


def feasible_ball(size: float, means: str, centre: str = "origin") -> Ball:
    """Theta: the ball around ``centre`` of which ``size`` is the diameter or the radius.

    The paper's R = 10 is a diameter in section 6 and a radius in App. D.

    >>> feasible_ball(10.0, "diameter")
    Ball(centre='origin', radius=5.0)
    """
    check_number("radius", size, above=0.0)
    check_choice("radius_means", means, RADIUS_MEANS)
    check_choice("centre", centre, CENTRES)
    return Ball(centre, size / 2.0 if means == "diameter" else size)


@dataclass(frozen=True)
class DDP(Descending):
    """Noise and projection at every step of every peer.

    ``descent`` brings clip L, noise sigma and the feasible ball; ``data`` is ``retained``
    (continued) or ``all`` (from the start).  ``noise_on`` ``gradient`` is the algorithm as it is
    written; ``weights`` adds eta sigma Z and projects once, after a visit's last step.  Only with
    this reading is the model still useful after a visit of many steps.
    """

    data: str = "retained"
    noise_on: str = "gradient"
    name: str = field(default="ddp", init=False)

    def __post_init__(self) -> None:
        check_choice("data", self.data, ("retained", "all"))
        check_choice("noise_on", self.noise_on, NOISE_ON)
        rule, work = self.descent.rule, self.descent.work
        if rule.slots and rule.state == "fresh" and work.kind == "epochs":
            raise InvalidInput(
                f"state is 'fresh' with optimizer {rule.optimizer!r}; allowed for ddp, which "
                "projects after every step: carried or local, or the plain optimizer."
            )

    def visit(self, visit: Visit) -> Program:
        ball = self.descent.feasible
        if self.noise_on == "weights":
            program = self._noisy_visit(visit)
        else:
            program = _step_by_step(self.descent.program(visit, self.data))
        if visit.phase_hop == 1 and ball is not None:
            return (Project((ball,)), *program)
        return program

    def drawing(self, visit: Visit) -> Drawing | None:
        plain = self.descent.drawing(visit, self.data)
        if self.noise_on == "weights" or plain is None or plain.steps is None:
            return None
        return plain if plain.steps.batches.shape[0] == 1 else None

    def _noisy_visit(self, visit: Visit) -> Program:
        """Steps without noise, then noise on the weights and the projection, once."""
        quiet = replace(self.descent, noise=0.0, feasible=None).program(visit, self.data)
        step_size = self.descent.schedule.at(visit.phase_hop, self.descent.rule.learning_rate)
        noisy = (*quiet, AddNoise(step_size * self.descent.noise, rounded=False))
        ball = self.descent.feasible
        return noisy if ball is None else (*noisy, Project((ball,)))


def _step_by_step(program: Program) -> Program:
    """The same steps, each followed by the projection that came after the last."""
    projections = [op for op in program if isinstance(op, Project)]
    steps = [each_step(op, *projections) for op in program if isinstance(op, Steps)]
    return tuple(op for one in steps for op in one)


def ddp_noise(config: Config, peers: int, p: float, records: Records) -> Calibrated:
    """DDP's noise std on every gradient, by ``ddp.sigma_rule`` or as given."""
    ddp, target = config.of(DDPSettings), config.unlearn
    if ddp.sigma is not None:
        return Calibrated(ddp.sigma, reading=ddp.reading)
    hops = private.noisy_hops(config, ddp.reading)
    scale = nominal_ddp_sigma(
        SIGMA_RULES[ddp.sigma_rule],
        target.epsilon,
        target.delta,
        ddp.clip,
        hops=hops,
        peers=peers,
        forgotten=max(int(records.forgotten.size), 1),
        constant=ddp.constant,
    )
    formula = f"the noise scale is {_FORMULAS[ddp.sigma_rule]}"
    numbers = {
        "rule": SIGMA_RULES[ddp.sigma_rule],
        "clip": ddp.clip,
        "hops": hops,
        "constant": ddp.constant,
    }
    return Calibrated(scale, "paper", formula, ddp.reading, numbers)


def _method(config: Config, decided: Decided) -> DDP:
    ddp = config.of(DDPSettings)
    ball = None if ddp.radius is None else feasible_ball(ddp.radius, ddp.radius_means, ddp.centre)
    base = private.descent(config, ddp)
    descent = replace(base, clip=ddp.clip, noise=decided.sigma, feasible=ball)
    return DDP(descent, private.data_of(ddp.reading), ddp.noise_on)


LISTING = ("ddp", "DDP", "network-private SGD: noise and projection at every step of every peer")
NOMINAL = Nominal(ddp_noise, formulas.DDP, private.nominal_reason)
RECORD = private.record(DDPSettings, _method, walks.UniformPeer(), LISTING, NOMINAL)
