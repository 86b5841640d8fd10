"""One function for all accountants: compute sigma, epsilon or steps from what is given.

``calibrate("visits", epsilon=1, delta=1e-5, ...)`` returns ``{"sigma": ...}``; with ``sigma``
instead of ``epsilon`` it returns ``{"epsilon": ...}``.  Answers of the paper's formulas carry
``"grade": "nominal"``.  A returned sigma never exceeds the target epsilon under its accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.validation import check_choice, check_number, near
from unwalk.privacy import (
    dp_training,
    gaussian,
    ledger,
    network,
    noisy_start,
    nominal,
    pld,
    seal,
    visits,
)
from unwalk.privacy.roots import increasing_root, largest_safe

Given = Mapping[str, float]
Answer = dict[str, Any]


@dataclass(frozen=True)
class Accountant:
    """An accountant's purpose, options and function.

    ``required`` must be given, ``optional`` have defaults; ``targets`` lists the alternatives of
    which exactly one is given (a name, or several names joined by ``+``).
    """

    name: str
    summary: str
    required: tuple[str, ...]
    targets: tuple[str, ...]
    optional: Mapping[str, float]
    solve: Callable[[Given], Answer]

    @property
    def takes(self) -> tuple[str, ...]:
        """Every option it understands."""
        wanted = [part for target in self.targets for part in target.split("+")]
        return tuple(dict.fromkeys((*self.required, *wanted, *self.optional)))


def _whole(given: Given, name: str) -> int:
    value = given[name]
    if value != int(value):
        raise InvalidInput(f"{name} is {value!r}; allowed: a whole number.")
    return int(value)


def _sigma_or_epsilon(
    given: Given, sigma: Callable[[float], float], epsilon: Callable[[float], float]
) -> Answer:
    if "epsilon" in given:
        return {"sigma": sigma(given["epsilon"])}
    return {"epsilon": epsilon(check_number("sigma", given["sigma"], above=0.0))}


def _gaussian(given: Given) -> Answer:
    size = given["sensitivity"] * math.sqrt(_whole(given, "visits"))
    return _sigma_or_epsilon(
        given,
        lambda eps: gaussian.gaussian_sigma(eps, given["delta"], size),
        lambda std: gaussian.gaussian_epsilon(given["delta"], size / std),
    )


def _visits(given: Given) -> Answer:
    cap = _whole(given, "cap") if "cap" in given else None
    hops, p, size = _whole(given, "hops"), given["p"], given["sensitivity"]
    return _sigma_or_epsilon(
        given,
        lambda eps: visits.visits_sigma(eps, given["delta"], size, hops, p, cap=cap),
        lambda std: visits.visits_epsilon(given["delta"], size / std, hops, p, cap=cap),
    )


def _by_search(given: Given, size: float, epsilon: Callable[[float], float]) -> Answer:
    """Solves for sigma or epsilon, given epsilon as a function of sensitivity / sigma."""

    def sigma(target: float) -> float:
        def excess(ratio: float) -> float:
            return epsilon(ratio) - target

        check_number("epsilon", target, above=0.0)
        low = gaussian.gaussian_mu(target, given["delta"])
        while excess(low) > 0.0:
            low *= 0.5
            if low < 1e-12:
                raise Refused(
                    f"epsilon {target:g} at delta {given['delta']:g} is out of reach of this "
                    "accountant's Renyi orders, whatever the noise.",
                    "out-of-reach",
                )
        return size / largest_safe(excess, increasing_root(excess, low, 2.0 * low, largest=1e12))

    return _sigma_or_epsilon(given, sigma, lambda std: epsilon(size / std))


def _visits_rdp(given: Given) -> Answer:
    hops, p, delta = _whole(given, "hops"), given["p"], given["delta"]
    return _by_search(
        given,
        given["sensitivity"],
        lambda ratio: visits.visits_rdp_epsilon(delta, ratio, hops, p),
    )


def _visits_pld(given: Given) -> Answer:
    hops, p, delta = _whole(given, "hops"), given["p"], given["delta"]

    def epsilon(ratio: float) -> float:
        return pld.pld_epsilon([pld.visits_pld(ratio, hops, p)], delta)

    return _by_search(given, given["sensitivity"], epsilon)


def _capped(given: Given) -> Answer:
    size = visits.capped_visits_mu(given["sensitivity"], _whole(given, "cap"))
    return _gaussian({**given, "sensitivity": size, "visits": 1})


def _seal(given: Given) -> Answer:
    delta = given["delta"]
    if "steps" in given and "epsilon" in given:
        steps = _whole(given, "steps")
        return {"sigma": seal.seal_sigma(given["epsilon"], delta, given["radius"], steps)}
    if "sigma" in given:
        ratio = 2.0 * given["radius"] / check_number("sigma", given["sigma"], above=0.0)
    else:
        ratio = given["ratio"]
    if "steps" in given:
        return {"epsilon": seal.seal_epsilon(delta, ratio, _whole(given, "steps"))}
    return {"steps": seal.seal_steps(given["epsilon"], delta, ratio)}


def _seal_visits(given: Given) -> Answer:
    steps = _whole(given, "steps")
    value = seal.seal_then_gaussian_epsilon(given["delta"], given["ratio"], steps, given["mu"])
    return {"epsilon": value}


def _distance(given: Given) -> Answer:
    stand = ledger.Ledger(check_number("distance", given["distance"], above=0.0))
    return _sigma_or_epsilon(
        given,
        lambda eps: stand.noise(eps, given["delta"]),
        lambda std: gaussian.gaussian_epsilon(given["delta"], stand.mu(std)),
    )


def _noisy_start(given: Given) -> Answer:
    count, delta = _whole(given, "visits"), given["delta"]
    apart = noisy_start.visit_sensitivity(
        given["step_size"], given["sensitivity"], _whole(given, "forgotten"), given["batch"]
    )

    def epsilon(std: float) -> float:
        return gaussian.gaussian_epsilon(delta, noisy_start.noisy_start_mu([std] * count, apart))

    return _sigma_or_epsilon(
        given, lambda target: noisy_start.noisy_start_sigma(target, delta, count, apart), epsilon
    )


def _dp_training(given: Given) -> Answer:
    passes, forgotten = _whole(given, "visits"), _whole(given, "forgotten")
    delta = given["delta"]

    def epsilon(multiplier: float) -> float:
        mu = dp_training.training_mu(multiplier, passes, forgotten)
        return gaussian.gaussian_epsilon(delta, mu)

    return _sigma_or_epsilon(
        given,
        lambda target: dp_training.training_multiplier(target, delta, passes, forgotten),
        epsilon,
    )


def _network(given: Given) -> Answer:
    peers, hops, seen = (_whole(given, name) for name in ("peers", "hops", "observers"))

    def epsilon(ratio: float) -> float:
        return network.complete_walk_epsilon(given["delta"], ratio, peers, hops, observers=seen)

    return _by_search(given, given["sensitivity"], epsilon)


def _nominal(answer: Answer) -> Answer:
    return {**answer, "grade": "nominal"}


def _paper(given: Given) -> Answer:
    hops, peers = _whole(given, "hops"), _whole(given, "peers")
    rest = (given["delta"], given["sensitivity"], hops, given["p"], peers)
    return _nominal(
        _sigma_or_epsilon(
            given,
            lambda eps: nominal.nominal_sigma(eps, *rest, constant=given["constant"]),
            lambda std: given["constant"] * nominal.nominal_epsilon(std, *rest),
        )
    )


def _paper_ddp(reading: str) -> Callable[[Given], Answer]:
    def solve(given: Given) -> Answer:
        value = nominal.nominal_ddp_sigma(
            reading,
            given["epsilon"],
            given["delta"],
            given["sensitivity"],
            hops=_whole(given, "hops"),
            peers=_whole(given, "peers"),
            forgotten=_whole(given, "forgotten"),
            constant=given["constant"],
        )
        return _nominal({"sigma": value})

    return solve


_COIN = ("delta", "sensitivity", "hops", "p")
_EITHER = ("epsilon", "sigma")
_DDP: dict[str, float] = {"hops": 100, "peers": 10, "forgotten": 1, "constant": 1.0}

ACCOUNTANTS: dict[str, Accountant] = {
    a.name: a
    for a in (
        Accountant(
            "gaussian",
            "exact Gaussian mechanism, a fixed number of visits",
            ("delta",),
            _EITHER,
            {"sensitivity": 1.0, "visits": 1},
            _gaussian,
        ),
        Accountant(
            "visits",
            "exact public coin: a visit with probability p at each hop, capped if asked",
            _COIN,
            (*_EITHER,),
            {"cap": math.nan},
            _visits,
        ),
        Accountant("visits-rdp", "the public coin in Renyi form", _COIN, _EITHER, {}, _visits_rdp),
        Accountant(
            "visits-pld",
            "the public coin by dp-accounting's privacy loss distributions (optional package)",
            _COIN,
            _EITHER,
            {},
            _visits_pld,
        ),
        Accountant(
            "capped",
            "a fixed largest number of visits, whatever the route",
            ("delta", "cap"),
            _EITHER,
            {"sensitivity": 1.0},
            _capped,
        ),
        Accountant(
            "seal",
            "ball seal: steps for a ratio, noise for a radius, or epsilon after steps",
            ("delta",),
            (
                "epsilon+ratio",
                "epsilon+radius+sigma",
                "epsilon+radius+steps",
                "ratio+steps",
                "radius+sigma+steps",
            ),
            {},
            _seal,
        ),
        Accountant(
            "seal-visits",
            "a ball seal followed by Gaussian visits of total mu",
            ("delta", "ratio", "steps", "mu"),
            (),
            {},
            _seal_visits,
        ),
        Accountant(
            "ledger",
            "one Gaussian seal on a stability distance (also for noise at release)",
            ("delta", "distance"),
            _EITHER,
            {},
            _distance,
        ),
        Accountant(
            "noisy-start",
            "noise at every training visit of each peer",
            ("delta", "sensitivity", "visits", "step_size", "batch"),
            _EITHER,
            {"forgotten": 1},
            _noisy_start,
        ),
        Accountant(
            "dp-training",
            "DP training: sigma is the noise multiplier, visits the passes over a record",
            ("delta", "visits"),
            _EITHER,
            {"forgotten": 1},
            _dp_training,
        ),
        Accountant(
            "network",
            "walk with noise at every hop, convex losses, complete graph, one view or coalition",
            ("delta", "sensitivity", "hops", "peers"),
            _EITHER,
            {"observers": 1},
            _network,
        ),
        Accountant(
            "paper",
            "the paper's Corollary 5.2 (nominal: not a guarantee)",
            _COIN,
            _EITHER,
            {"peers": 10, "constant": 1.0},
            _paper,
        ),
        *(
            Accountant(
                f"paper-ddp-{reading}",
                f"the paper's noise for DDP, {where} (nominal: not a guarantee)",
                ("delta", "sensitivity"),
                ("epsilon",),
                _DDP,
                _paper_ddp(reading),
            )
            for reading, where in (
                ("algorithm", "Algorithm 2"),
                ("table", "Table 2"),
                ("lemma", "Lemma A.11"),
            )
        ),
    )
}


def list_accountants() -> dict[str, str]:
    """Name and one line for every accountant.

    >>> list_accountants()["seal"]
    'ball seal: steps for a ratio, noise for a radius, or epsilon after steps'
    """
    return {name: accountant.summary for name, accountant in ACCOUNTANTS.items()}


def calibrate(accountant: str, **given: float | None) -> Answer:
    """Answer for one accountant; options that are None count as not given.

    >>> calibrate("seal", epsilon=1.0, delta=1e-5, ratio=5.0)
    {'steps': 137}
    >>> calibrate("paper", epsilon=1.0, delta=1e-5, sensitivity=0.5, hops=100, p=0.1)
    {'sigma': 2.5743683959561805, 'grade': 'nominal'}
    """
    chosen = ACCOUNTANTS[check_choice("accountant", accountant, ACCOUNTANTS)]
    values = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        if name not in chosen.takes:
            raise InvalidInput(
                f"accountant {accountant} does not take {name}{near(name, chosen.takes)}; "
                f"allowed: {', '.join(chosen.takes)}."
            )
        check_number(name, value)
    missing = [name for name in chosen.required if name not in values]
    if missing:
        raise InvalidInput(f"accountant {accountant} needs {' and '.join(missing)}.")
    alternatives = [set(target.split("+")) for target in chosen.targets]
    wanted = set().union(*alternatives) & set(values)
    if chosen.targets and wanted not in alternatives:
        choices = " or ".join(" with ".join(target.split("+")) for target in chosen.targets)
        raise InvalidInput(
            f"accountant {accountant} was given {' and '.join(sorted(wanted)) or 'no target'}; "
            f"allowed: exactly one of {choices}."
        )
    defaults = {k: v for k, v in chosen.optional.items() if not math.isnan(v)}
    return chosen.solve({**defaults, **values})
