r"""DDP, network-private SGD (the paper's Algorithm 2, App. B.2).

Every hop draws its peer uniformly over all of V, the holder included
(:class:`unwalk.walks.UniformPeer`).  Every step there is

.. math:: \theta \leftarrow \Pi_\Theta\big(\theta - \eta (g_t + Z_t)\big), \qquad
          \|g_t\| \le L, \quad Z_t \sim \mathcal N(0, \sigma^2 I),

with :math:`g_t` a minibatch gradient clipped to L and :math:`\Theta` a ball round the origin.  The
algorithm starts in :math:`\Theta`, so the first visit of a phase projects before its first step.

Two readings.  *Continued* (App. B.1): the walk goes on from the trained model on the retained
records.  *From the start* (Theorem 3.5): training itself is this walk, on all records, and
forgetting does nothing, :math:`U = A(D)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from unwalk.core.errors import InvalidInput
from unwalk.core.program import AddNoise, Ball, Op, Program, Project, Steps, Visit
from unwalk.core.validation import check_choice, check_number
from unwalk.methods.local_work import Descent

RADIUS_MEANS = ("diameter", "radius")
NOISE_ON = ("gradient", "weights")
CENTRES = ("origin", "initial", "start")


def feasible_ball(size: float, means: str, centre: str = "origin") -> Ball:
    """Theta: the ball round ``centre`` of which ``size`` is the diameter or the radius.

    The paper's R = 10 is a diameter in section 6 and a radius in App. D.

    >>> feasible_ball(10.0, "diameter")
    Ball(centre='origin', radius=5.0)
    """
    check_number("radius", size, above=0.0)
    check_choice("radius_means", means, RADIUS_MEANS)
    check_choice("centre", centre, CENTRES)
    return Ball(centre, size / 2.0 if means == "diameter" else size)


@dataclass(frozen=True)
class DDP:
    """Noise and projection at every step of every peer.

    ``descent`` brings clip L, noise sigma and the feasible ball; ``data`` is ``retained``
    (continued) or ``all`` (from the start).  ``noise_on`` ``gradient`` is the algorithm as it is
    written; ``weights`` adds eta sigma Z and projects once, after a visit's last step: the reading
    under which a visit of many steps leaves anything of the model.
    """

    descent: Descent
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

    @property
    def travels(self) -> tuple[str, ...]:
        return self.descent.travels

    def visit(self, visit: Visit) -> Program:
        ball = self.descent.feasible
        if self.noise_on == "weights":
            program = self._noisy_visit(visit)
        else:
            program = tuple(_step_by_step(self.descent.program(visit, self.data)))
        if visit.phase_hop == 1 and ball is not None:
            return (Project((ball,)), *program)
        return program

    def _noisy_visit(self, visit: Visit) -> Program:
        """Quiet steps, then noise on the weights and the projection, once."""
        quiet = replace(self.descent, noise=0.0, feasible=None).program(visit, self.data)
        step_size = self.descent.schedule.at(visit.phase_hop, self.descent.rule.learning_rate)
        noisy = (*quiet, AddNoise(step_size * self.descent.noise, rounded=False))
        ball = self.descent.feasible
        return noisy if ball is None else (*noisy, Project((ball,)))


def _step_by_step(program: Program) -> Iterator[Op]:
    """The same steps, each followed by the projection that stood after the last."""
    projections = [op for op in program if isinstance(op, Project)]
    for op in program:
        if isinstance(op, Steps):
            for step in range(op.batches.shape[0]):
                one = slice(step, step + 1)
                weights = None if op.weights is None else op.weights[one]
                yield replace(op, batches=op.batches[one], weights=weights)
                yield from projections
