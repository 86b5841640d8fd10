"""Plans a deletion: every way to meet a request, what it costs, and the cheapest that is proved.

A way is tried out by a dry run (:mod:`unwalk.runs.dry_run`): its grade is what the accountants say
of the transcript that it would leave, its cost is what that transcript moves.  Everything follows
from public seeds, from how many records peers hold and where the forgotten ones stand among them,
so that the choice says nothing about what is in them.

All ways end with a model that is as far trained: a restart walks as many hops as training did, a
rewind those that are left of them, and a seal so many as its noise needs (:func:`hops_after`).
Ways that only claim something walk ``unlearn.hops``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from unwalk.certificates.document import claims_of
from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.grades import advised, shown_grade
from unwalk.core.plan import Plan
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.validation import check_choice, check_count, check_number
from unwalk.methods import METHODS
from unwalk.privacy.utility import noise_loss, restart_loss
from unwalk.runs.assemble import Assembled, ModelFacts, check
from unwalk.runs.dry_run import dry_run
from unwalk.settings.config import Config, Value, apply

GRADES = ("exact", "certified", "nominal")
"""What can be asked for, the strongest first."""
MORE = 1.05
"""A way whose grade is stronger may cost so many times what the cheapest does."""
WALKING = "network-sgd"
"""The training that most ways go on from."""


@dataclass(frozen=True)
class Way:
    """One way to forget: its name, the method, and the settings that make it this way."""

    name: str
    method: str
    settings: Mapping[str, Value] = field(default_factory=dict)


FIRST_USE: Mapping[str, Value] = {"rewind.way": "first-use"}
WAYS = (
    Way("nothing to do", "rewind", FIRST_USE),
    Way("first use", "rewind", FIRST_USE),
    Way("rewind", "rewind", {"rewind.way": "first-contact"}),
    Way("sums", "sums"),
    Way("sisa", "sisa"),
    Way("seal", "seal"),
    Way("noise from the start", "noisy-start"),
    Way("DP training", "dpsgd", {"dpsgd.reading": "from-start"}),
    Way("restart", "restart"),
    Way("retrain", "retrain"),
)
"""The ways that can be proved.  Where two cost the same, the first is taken."""


@dataclass(frozen=True)
class Rates:
    """What things cost in seconds: a message, a byte, the gradient of one record, and a visit.

    ``visit`` is what a visit computes whatever its steps are, such as hashes and events.
    ``gradient`` is an estimate until a log of this training says how long one takes.
    """

    message: float = 0.1
    byte: float = 8e-8
    gradient: float = 2e-5
    visit: float = 1e-3

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_number(f"rates.{name}", value, low=0.0)

    def seconds(self, offer: Offer) -> float:
        """What a way costs in seconds."""
        return offer.messages * self.message + offer.bytes * self.byte + offer.work(self)


@dataclass(frozen=True)
class Budget:
    """The most that a way may take; None where there is no bound."""

    hops: int | None = None
    bytes: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("hops", "bytes"):
            if getattr(self, name) is not None:
                check_count(f"budget of {name}", getattr(self, name))
        if self.seconds is not None:
            check_number("budget of seconds", self.seconds, low=0.0)

    def broken(self, offer: Offer, seconds: float) -> str:
        """What a way takes too much of, as a sentence; empty if it keeps to the budget."""
        for name, most, needed in (
            ("hops", self.hops, offer.hops),
            ("bytes", self.bytes, offer.bytes),
            ("seconds", self.seconds, seconds),
        ):
            if most is not None and needed > most:
                return f"it takes {needed:,.10g} {name}, and the budget has {most:,.10g}."
        return ""


@dataclass(frozen=True)
class Offer:
    """One way to meet the request, as far as that is known beforehand.

    ``reason`` says why it is not possible; empty if it is.  ``grade`` is what the accountants will
    say, as people are shown it.  ``noise`` is the length of the noise that is added to the model,
    ``model`` a bound on the length of the model that forgets, ``loss`` a bound on what the noise
    adds to the loss.  ``trained`` is how many hops of training the model has behind it at the end,
    ``accuracy`` that of a model of the log with as many or fewer.
    """

    way: str
    method: str
    settings: Mapping[str, Value]
    reason: str = ""
    grade: str = ""
    epsilon: float | None = None
    delta: float | None = None
    hops: int = 0
    messages: int = 0
    bytes: int = 0
    gradients: int = 0
    seconds: float | None = None
    noise: float | None = None
    model: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    trained: int = 0

    @property
    def possible(self) -> bool:
        """Whether it can be done."""
        return not self.reason

    def work(self, rates: Rates) -> float:
        """Seconds of computing."""
        return self.hops * rates.visit + self.gradients * rates.gradient

    def reaches(self, grade: str) -> bool:
        """Whether it is possible and its grade is at least this one."""
        return (
            self.possible
            and self.grade in GRADES
            and GRADES.index(self.grade) <= GRADES.index(grade)
        )


@dataclass(frozen=True, eq=False)
class Planned:
    """All ways to meet one request, and the cheapest that reaches its grade.

    ``best`` is None where none does; a way of a weaker grade may be cheaper, by :data:`MORE` at
    most.  ``config`` are the settings with which that way is run.
    """

    grade: str
    epsilon: float
    delta: float
    peer: int
    records: int
    trained: int
    first_contact: int | None
    rates: Rates
    budget: Budget
    offers: tuple[Offer, ...]
    best: Offer | None
    config: Config | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, Value]:
        """What to set for the cheapest way: its method, and what makes it this way."""
        best = self.chosen()
        return {"method": best.method, **best.settings}

    def to_json(self) -> dict[str, Any]:
        """What a result and ``--json`` hold."""
        kept = {
            key: value
            for key, value in vars(self).items()
            if key not in ("config", "offers", "best", "rates", "budget")
        }
        rows = [
            {**asdict(one), "settings": dict(one.settings), "possible": one.possible}
            for one in self.offers
        ]
        return {
            **kept,
            "rates": asdict(self.rates),
            "budget": asdict(self.budget),
            "ways": rows,
            "best": None if self.best is None else self.best.way,
        }

    def chosen(self) -> Offer:
        """The cheapest way that reaches the grade; refused where there is none."""
        if self.best is not None:
            return self.best
        near = min(
            (one for one in self.offers if replace(one, reason="").reaches(self.grade)),
            key=self.rates.seconds,
            default=None,
        )
        if near is None:
            raise Refused(
                f"no way reaches grade {self.grade!r} with these settings; unwalk plan says of "
                "each why not.",
                "grade",
                instead="ask for grade exact, which restart reaches with any model",
            )
        raise Refused(
            f"no way reaches grade {self.grade!r} within the budget; the cheapest, {near.way}, "
            f"takes {near.hops} hops and {near.bytes:,} bytes.",
            "grade",
            instead="allow more hops, bytes or seconds",
        )

    def informed(self, log: Log) -> Planned:
        """The same plan, with the seconds and the accuracy that a log foretells."""
        rates = log.measured(self.rates)
        offers = tuple(log.foretell(one, rates) for one in self.offers)
        best = None if self.best is None else _named(offers, self.best.way)
        return replace(self, rates=rates, offers=offers, best=best)


@dataclass(frozen=True)
class Log:
    """What a training run noted, as far as it does not depend on the records to be forgotten.

    ``seconds`` are those of its hops, ``gradients`` how many each computed.  ``readings`` are
    clean accuracies by hops: of models that had not met the records yet, or that never did.
    """

    seconds: Sequence[float] = ()
    gradients: Sequence[int] = ()
    readings: Sequence[tuple[int, float]] = ()

    @property
    def counted(self) -> int:
        """Gradients of the hops whose seconds are known."""
        return sum(self.gradients[: len(self.seconds)])

    def measured(self, rates: Rates) -> Rates:
        """The rates with the seconds that a gradient took: those of hops, less those of visits.

        >>> Log([0.002, 0.004], [10, 30]).measured(Rates(visit=0.001)).gradient
        0.0001
        """
        if not self.counted:
            return rates
        spent = math.fsum(self.seconds) - len(self.seconds) * rates.visit
        return replace(rates, gradient=max(0.0, spent / self.counted))

    def foretell(self, offer: Offer, rates: Rates) -> Offer:
        """A way with its seconds and its accuracy, that of the last reading no farther trained."""
        known = [clean for hops, clean in self.readings if hops <= offer.trained]
        return replace(
            offer,
            seconds=offer.work(rates) if self.counted else None,
            accuracy=known[-1] if known and offer.possible else None,
        )


def free_readings(
    readings: Iterable[tuple[int, str, float]], contact: int | None
) -> list[tuple[int, float]]:
    """Clean accuracies of models that had not met the records: hop, phase and accuracy of each.

    >>> free_readings([(2, "train", 0.5), (4, "train", 0.6), (6, "unlearn", 0.7)], 4)
    [(2, 0.5)]
    """
    return [
        (hop, clean)
        for hop, phase, clean in readings
        if phase == "train" and (contact is None or hop < contact)
    ]


def _named(offers: Iterable[Offer], name: str) -> Offer:
    return next(one for one in offers if one.way == name)


def preferred(able: Sequence[Offer], rates: Rates) -> Offer | None:
    """The cheapest way, or one of a stronger grade that costs next to nothing more.

    >>> exact, claimed = Offer("a", "a", {}, grade="exact"), Offer("b", "b", {}, grade="nominal")
    >>> able = [replace(exact, messages=30), replace(claimed, messages=29)]
    >>> preferred(able, Rates()).way
    'a'
    """
    least = min(map(rates.seconds, able), default=0.0)
    near = [one for one in able if rates.seconds(one) <= MORE * least]
    order = [(GRADES.index(one.grade), rates.seconds(one)) for one in near]
    return near[order.index(min(order))] if near else None


def hops_after(loss: float, whole: float, hops: int, peers: int) -> int:
    """So many hops are walked after noise that raises the loss by ``loss`` at most.

    Beginning again raises it by ``whole`` and takes ``hops``; as large a share of these as that of
    the loss is walked again, and one hop for each peer before: the peer that sealed the model had
    it alone.

    >>> hops_after(0.1, 2.0, 100, 10), hops_after(3.0, 2.0, 100, 10), hops_after(0.0, 2.0, 100, 10)
    (15, 100, 10)
    """
    return min(hops, peers + math.ceil(hops * loss / whole))


@dataclass(frozen=True, eq=False)
class Planner:
    """Looks at every way to meet the request in a configuration.

    ``walked`` is what training recorded, where it has happened: without it training is foreseen,
    and may be chosen, too.
    """

    assembled: Assembled
    walked: Transcript | None = None

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.assembled.config

    @cached_property
    def training(self) -> str:
        """The method by whose own walk the model was trained, or :data:`WALKING`."""
        name = self.config.method
        if METHODS[name].from_scratch or self.assembled.shares_training(name):
            return "sisa" if self.config.train.shards > 1 else WALKING
        return name

    @cached_property
    def trained(self) -> Transcript:
        """The log of the walk that most ways go on from, as it was or as it will be."""
        known = self.walked if self.training == WALKING else None
        return dry_run(self.assembled.training(), self.assembled.model, known)

    @property
    def first_contact(self) -> int | None:
        """The hop at which training first came to the peer that has to forget."""
        hops = self.trained.hops if self.walked is None else self.walked.hops
        u = self.config.forget.peer
        return next((hop.hop for hop in hops if hop.receiver == u), None)

    def plan(self, grade: str, rates: Rates | None = None, budget: Budget | None = None) -> Planned:
        """All ways, and the one of those within the budget that is :func:`preferred`."""
        check_choice("grade", grade, GRADES)
        rates, budget = rates or Rates(), budget or Budget()
        records = self.assembled.task.records(self.config.forget.peer)
        if not records.forgotten.size:
            raise InvalidInput(
                "nothing has to be forgotten: forget.kind is 'nothing', or it chooses no record; "
                "allowed: forget.kind=records with forget.size, and what unwalk settings lists."
            )
        offers = tuple(self._within(self.offer(way), rates, budget) for way in self.ways(grade))
        able = [one for one in offers if one.reaches(grade)]
        best = preferred(able, rates)
        return Planned(
            grade=grade,
            epsilon=self.config.unlearn.epsilon,
            delta=self.config.unlearn.delta,
            peer=self.config.forget.peer,
            records=int(records.forgotten.size),
            trained=self.config.train.hops,
            first_contact=self.first_contact,
            rates=rates,
            budget=budget,
            offers=offers,
            best=best,
            config=None if best is None else self.settled(best),
        )

    def settled(self, offer: Offer) -> Config:
        """The settings of a run that goes this way."""
        beside = [name for name in self.config.compare if name != offer.method]
        changed = self._variant(offer.method, offer.settings)
        return replace(changed, compare=beside)

    def ways(self, grade: str) -> tuple[Way, ...]:
        """The ways that are looked at; those that only claim something where that is asked for."""
        if grade != "nominal":
            return WAYS
        claimed = (Way(r.title, r.name) for r in METHODS.values() if r.nominal is not None)
        return (*WAYS, *claimed)

    def offer(self, way: Way) -> Offer:
        """What one way costs and proves, or why it is not possible."""
        blank = Offer(way.name, way.method, dict(way.settings))
        try:
            self._check_training(way)
            return self._tried(way, blank)
        except Refused as error:
            return replace(blank, reason=advised(error))
        except InvalidInput as error:
            return replace(blank, reason=str(error))

    def _check_training(self, way: Way) -> None:
        """Refuse a way that needs another training than there was."""
        record = METHODS[way.method]
        if record.from_scratch or way.method == "restart":
            return  # they begin from the initial model
        assembled = self._assembled(self._variant(way.method, way.settings))
        needed = WALKING if assembled.shares_training(way.method) else way.method
        free = self.walked is None and way.method == "sums" and self.training == WALKING
        if needed == self.training or free:
            return
        how = "a walk of steps" if self.training == WALKING else METHODS[self.training].title
        to_train = "a walk of steps" if needed == WALKING else f"--method {needed}"
        raise InvalidInput(
            f"the model is trained by {how}; {way.name} needs training by {to_train}."
        )

    def _tried(self, way: Way, blank: Offer) -> Offer:
        if way.method == "seal":
            return self._sealed(way, blank)
        settings = dict(way.settings)
        if way.method == "restart":
            settings["unlearn.hops"] = self.config.train.hops
        tried = self._dry(way.method, settings)
        if way.name == "nothing to do" and tried.hops:
            raise InvalidInput(f"training uses the records, first at hop {tried.back_to}.")
        if way.name == "first use" and not tried.hops:
            raise InvalidInput("training never uses the records: there is nothing to do.")
        if way.name == "first use" and tried.back_to == self.first_contact:
            raise InvalidInput(
                "training uses the records at the first contact, so that this is rewind."
            )
        return tried.offer(replace(blank, settings=settings))

    def _sealed(self, way: Way, blank: Offer) -> Offer:
        """A seal with as long a walk as its noise needs, which is known once it is sized."""
        longest, task = self.config.train.hops, self.assembled.task
        first = self._dry(way.method, {**way.settings, "unlearn.hops": longest})
        loss = first.loss
        hops = longest
        if loss is not None:
            hops = hops_after(loss, restart_loss(task.classes), longest, task.peers)
        settings = {**way.settings, "unlearn.hops": hops}
        return self._dry(way.method, settings).offer(replace(blank, settings=settings))

    def _dry(self, method: str, settings: Mapping[str, Value]) -> _Foreseen:
        """A way's walk as it will be."""
        assembled = self._assembled(self._variant(method, settings))
        plan = assembled.unlearning(method, self.trained)
        continues = assembled.shares_training(method) and self.training == WALKING
        known = self.walked if self.walked is not None and continues else None
        if self.walked is not None and method == self.training:
            known = self.walked
        return _Foreseen(assembled, plan, dry_run(plan, assembled.model, known))

    def _variant(self, method: str, settings: Mapping[str, Value]) -> Config:
        changes = {**settings, "method": method, "compare": []}
        return check(apply(self.config, changes, where="the planner"))

    def _assembled(self, config: Config) -> Assembled:
        return replace(self.assembled, config=config)

    def _within(self, offer: Offer, rates: Rates, budget: Budget) -> Offer:
        if not offer.possible:
            return offer
        return replace(offer, reason=budget.broken(offer, rates.seconds(offer)))


@dataclass(frozen=True, eq=False)
class _Foreseen:
    """The walk of one way before it is walked."""

    assembled: Assembled
    plan: Plan
    transcript: Transcript

    @property
    def walk(self) -> list[Hop]:
        """The hops of the phase that forgets."""
        return self.transcript.hops[self.plan.hops - self.hops :] if self.hops else []

    @property
    def hops(self) -> int:
        """How many there are."""
        return self.plan.phases[-1].hops

    @property
    def back_to(self) -> int | None:
        """The arrival that it goes back to."""
        return self.plan.phases[-1].start_hop

    @cached_property
    def stds(self) -> list[float]:
        """Noise on the parameters, in order."""
        return [e.std for hop in self.walk for e in hop.events if isinstance(e, ev.GaussianNoise)]

    @property
    def facts(self) -> ModelFacts:
        """The initial model."""
        return self.assembled.model

    @property
    def loss(self) -> float | None:
        """How much the noise raises the loss at most; None where that is not known or no noise."""
        norm = self.plan.public.get("feature_norm")
        if not self.stds or norm is None or self.plan.public.get("loss") != "softmax":
            return None
        return noise_loss(math.hypot(*self.stds), self.assembled.task.classes, float(norm))

    @property
    def length(self) -> float | None:
        """A bound on the length of a trained model with L2: its loss is at most that of zero."""
        decay = self.assembled.config.train.weight_decay
        if not self.stds or not decay or self.plan.public.get("loss") != "softmax":
            return None
        return math.sqrt(2.0 * restart_loss(self.assembled.task.classes) / decay)

    def offer(self, blank: Offer) -> Offer:
        """What it costs and what can be claimed of it; refused where nothing can."""
        claims = claims_of(self.transcript)
        claim = claims[-1]
        if claim["grade"] == "refused" and METHODS[blank.method].nominal is not None:
            claim = claims[0]  # the formula's number, before what is refused
        if claim["grade"] == "refused":
            code: str = claim["code"] or ""
            raise Refused(claim["reason"], code)
        grade = shown_grade(claim["grade"], self.assembled.noise.origin)
        stds = self.stds
        return replace(
            blank,
            grade=grade,
            epsilon=claim["epsilon"],
            delta=claim["delta"],
            hops=len(self.walk),
            messages=sum(len(hop.path) for hop in self.walk),
            bytes=sum(hop.nbytes for hop in self.walk),
            gradients=sum(hop.gradients for hop in self.walk),
            noise=math.hypot(*stds) * math.sqrt(self.facts.parameters) if stds else None,
            model=self.length,
            loss=self.loss,
            trained=self._trained(blank),
        )

    def _trained(self, offer: Offer) -> int:
        """How many hops the model has been trained for at the end, by hops of training."""
        train = self.assembled.config.train.hops
        return len(self.walk) if offer.method in ("restart", "retrain") else train
