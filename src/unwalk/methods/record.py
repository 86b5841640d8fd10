"""The record of a method: everything that other packages need to know about it.

A method is a file of this package with a record in it, listed in :data:`unwalk.methods.METHODS`.
A record says what is particular to its method.  What it leaves out has a default: no settings of
its own, nothing to decide, no noise, no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from unwalk.core.plan import Phase, Task
from unwalk.core.program import Records
from unwalk.core.seeds import Draws
from unwalk.core.transcript import Transcript
from unwalk.privacy.accountants import Proof, events_claim
from unwalk.privacy.formulas import Formula
from unwalk.settings.config import Config, MethodSettings


class Coins(Protocol):
    """The public generator of a training hop."""

    def __call__(self, hop: int) -> Draws: ...


@dataclass(frozen=True)
class ThreatModel:
    """Against whom a claim holds: observers, coalition, views of training, adaptive requests."""

    observers: str
    coalition: str
    training_time_view: bool = False
    adaptive_requests: bool = False

    def to_json(self) -> dict[str, Any]:
        """The form that a certificate holds."""
        return asdict(self)


NOBODY = ThreatModel("nobody: no guarantee is given", "none")
SEES_THE_MODEL = "everyone who sees the model after the request, and whoever has the released one"
SEES_IT_SEALED = (
    "everyone who sees the model after it has left the forgetting peer, and whoever has the "
    "released one"
)
ANY_WITHOUT_U = "any, without the forgetting peer"
OUTSIDERS = ThreatModel(
    "outsiders, who see the released model and nothing before it", "none: peers saw more"
)
FROM_THE_START = ThreatModel(
    "everyone who sees hops, of training too, and whoever has the model",
    ANY_WITHOUT_U,
    training_time_view=True,
)


@dataclass(frozen=True)
class Calibrated:
    """A noise scale and, where a formula gave it, the name of the formula.

    ``reading`` says when noise was added: after the request (``continued``) or from hop 1.
    ``numbers`` are what the formula was given, so that anybody can compute it again.
    """

    scale: float
    accountant: str = "none"
    formula: str = ""
    reading: str = "continued"
    numbers: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, eq=False)
class Request:
    """Everything that a method may use when a deletion request arrives.

    ``header`` holds the public facts of the run, ``buffers`` the names of the model's buffers,
    ``trained`` what training recorded: None before training; then only what can already be refused
    is decided.  ``most_records`` is how many records all peers hold at most, by what is published
    or declared; None where nothing is.
    """

    config: Config
    task: Task
    header: Mapping[str, Any]
    buffers: tuple[str, ...]
    trained: Transcript | None = None
    most_records: int | None = None

    @property
    def records(self) -> Records:
        """The rows of the peer that has to forget."""
        return self.task.records(self.config.forget.peer)


@dataclass(frozen=True)
class Decided:
    """What is settled before a method's walk is planned.

    ``p`` is the routing probability to u and ``sigma`` the calibrated noise scale, in a network of
    ``peers``.  The rest is settled once a request arrives, from public facts of the training that
    happened: ``std`` and ``later_std`` are noise on the parameters, ``steps`` those of a ball seal,
    ``reach`` is the radius of a public ball around the origin for the model with its noise.  The
    walk continues from the arrival at ``start_hop`` for ``hops`` hops; ``coins`` are training's.
    ``start_hop`` counts from the beginning of a walk that had ``earlier`` hops of others before it.
    Sums have ``bits`` binary places and ``width`` bits in all.
    """

    p: float = 0.0
    sigma: float = 0.0
    peers: int = 0
    std: float = 0.0
    later_std: float = 0.0
    reach: float | None = None
    steps: int = 1
    start_hop: int | None = None
    earlier: int = 0
    hops: int = 0
    coins: Coins | None = field(default=None, repr=False)
    bits: int = 40
    width: int = 62


def nothing_to_decide(request: Request) -> Decided:
    """For methods whose walk is planned before training."""
    return Decided()


def no_facts(config: Config, records: Records, p: float) -> dict[str, Any]:
    """For methods that need no facts of their own in the header."""
    return {}


@dataclass(frozen=True)
class Guarantee:
    """The ``grade`` that a method can reach, and the ``proof`` that reads it from the transcript.

    ``threat`` says against whom the proof holds, ``certifier`` what the run is then hard to tell
    from.
    """

    grade: str
    proof: Proof
    threat: ThreatModel
    certifier: str | None


UNPROVED = Guarantee("none", events_claim, NOBODY, None)
UNPROVED_OUTSIDE = Guarantee("none", events_claim, OUTSIDERS, None)


def noise_source(origin: str) -> str:
    """Where noise came from, as reasons for a nominal grade say it."""
    return "a known seed (simulation)" if origin == "simulation" else "a secret of the peer"


@dataclass(frozen=True)
class Nominal:
    """A noise scale that nothing proves: ``calibrate`` makes it from settings, peers, p and u's
    records, ``formula`` checks the number that is announced with it, and ``reason`` says why that
    is no guarantee, given where the noise came from.
    """

    calibrate: Callable[[Config, int, float, Records], Calibrated]
    formula: Formula
    reason: Callable[[Calibrated, str], str]


@dataclass(frozen=True, kw_only=True)
class MethodRecord:
    """One method as users name it.

    **Listing.**  ``name``, ``description``, and the ``label`` that reports show; empty: the name.

    **Walk.**  ``phase`` makes the phase that forgets.  ``from_scratch`` methods have no training
    before it; the others continue from the model of the common training walk, or, where
    ``training`` gives phases, from what these train.  ``settings`` is its own section.
    ``decide`` gives what it settles when a request arrives.  ``per_example`` says that it clips
    each record's gradient, which not every model allows; ``head`` that the model has to be one
    linear layer without a bias.

    **Going back.**  ``way_back`` names the arrival that it goes back to, ``first-contact`` or
    ``first-use``.  ``shard`` is the number of the model that it replaces, where several answer
    together.

    **Claims.**  ``guarantee`` is what can be proved, ``nominal`` the noise scale where nothing
    is.  ``facts`` are public facts that its proof needs in the header.
    ``beside_restart`` says that reports compare its noise with what a restart costs.

    **Real peers.**  ``line`` says how many visits of the line a chapter keeps: those up to its
    ``position``, ``none``, or ``all`` of them; empty where peers do not offer the method.
    """

    name: str
    label: str = ""
    description: str
    phase: Callable[[Config, Decided], Phase]
    from_scratch: bool = False
    training: Callable[[Config, Decided], tuple[Phase, ...]] | None = None
    settings: type[MethodSettings] | None = None
    decide: Callable[[Request], Decided] = nothing_to_decide
    per_example: bool = False
    head: bool = False
    way_back: Callable[[Config], str] | None = None
    shard: Callable[[Config], int | None] | None = None
    guarantee: Guarantee = UNPROVED
    nominal: Nominal | None = None
    facts: Callable[[Config, Records, float], dict[str, Any]] = no_facts
    beside_restart: bool = False
    line: str = ""

    @property
    def title(self) -> str:
        """How reports call the method."""
        return self.label or self.name.replace("-", " ")

    @property
    def grade(self) -> str:
        """The grade that it can reach."""
        unproved = self.guarantee.grade == "none"
        return "nominal" if unproved and self.nominal is not None else self.guarantee.grade

    def calibrated(self, config: Config, peers: int, p: float, records: Records) -> Calibrated:
        """Its nominal noise scale; 0 for methods without one."""
        if self.nominal is None:
            return Calibrated(0.0)
        return self.nominal.calibrate(config, peers, p, records)
