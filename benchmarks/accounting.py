"""What a calibration costs beside dp-accounting's.

    python benchmarks/accounting.py [--rounds 5] [--json]

Three questions that unwalk asks all the time, each put to unwalk and to dp-accounting in turns, so
that both meet the same disturbances of a busy machine; a line shows medians over the rounds.

* ``gaussian``: noise for ten visits.
* ``visits``: noise for a public coin (100 hops, p = 0.1).  dp-accounting has no event for it: its
  PLD column mixes and composes its distributions and searches by its own tolerance, its RDP column
  calibrates ten sure visits, which is less work.
* ``seal``: steps of a ball seal at ratios 1 to 5.  dp-accounting has no such recursion either: its
  columns calibrate the Gaussian composition of as many steps.

``PLD`` and ``RDP`` are calibrations to 1e-4 with a bracket round the answer.  The exit code is 1
if unwalk is less than 10 times faster than PLD anywhere, or slower than RDP anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq

from unwalk.privacy.gaussian import gaussian_sigma
from unwalk.privacy.pld import pld_epsilon, visits_pld
from unwalk.privacy.seal import seal_steps
from unwalk.privacy.visits import visits_sigma

EPSILON, DELTA = 1.0, 1e-5
FASTER_THAN_PLD = 10.0
FASTER_THAN_RDP = 1.0
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Line:
    """Medians in seconds, the answers, and how many times faster unwalk was."""

    question: str
    unwalk: float
    pld: float
    rdp: float
    answer: float
    pld_answer: float
    rdp_answer: float

    @property
    def over_pld(self) -> float:
        return self.pld / self.unwalk

    @property
    def over_rdp(self) -> float:
        return self.rdp / self.unwalk


def composed(accountant: Callable[[], Any], count: int, guess: float) -> float:
    """dp-accounting's noise multiplier for ``count`` Gaussian releases."""
    event = dp_accounting.GaussianDpEvent
    found = dp_accounting.calibrate_dp_mechanism(
        accountant,
        lambda sigma: dp_accounting.SelfComposedDpEvent(event(sigma), count),
        EPSILON,
        DELTA,
        dp_accounting.ExplicitBracketInterval(0.5 * guess, 2.0 * guess),
        tol=TOLERANCE,
    )
    return float(found)


def coin_by_pld(hops: int, p: float, guess: float) -> float:
    """The public coin by dp-accounting's distributions and a root finder."""

    def excess(sigma: float) -> float:
        return pld_epsilon([visits_pld(1.0 / sigma, hops, p)], DELTA) - EPSILON

    return float(brentq(excess, 0.5 * guess, 2.0 * guess, xtol=TOLERANCE))


def timed(call: Callable[[], float]) -> tuple[float, float]:
    start = perf_counter()
    value = call()
    return perf_counter() - start, value


def race(
    question: str,
    unwalk: Callable[[], float],
    pld: Callable[[], float],
    rdp: Callable[[], float],
    rounds: int,
) -> Line:
    """Every contestant once per round, in turns; unwalk and RDP several times a turn."""
    times: dict[str, list[float]] = {"unwalk": [], "pld": [], "rdp": []}
    answers: dict[str, float] = {}
    for call in (unwalk, rdp):
        call()  # first calls load code
    for _ in range(rounds):
        for name, call, repeats in (("unwalk", unwalk, 9), ("rdp", rdp, 9), ("pld", pld, 1)):
            for _ in range(repeats):
                seconds, answers[name] = timed(call)
                times[name].append(seconds)
    return Line(
        question,
        median(times["unwalk"]),
        median(times["pld"]),
        median(times["rdp"]),
        answers["unwalk"],
        answers["pld"],
        answers["rdp"],
    )


def lines(rounds: int) -> list[Line]:
    ten = gaussian_sigma(EPSILON, DELTA, math.sqrt(10))
    coin = visits_sigma(EPSILON, DELTA, 1.0, 100, 0.1)
    out = [
        race(
            "gaussian, 10 visits",
            lambda: gaussian_sigma(EPSILON, DELTA, math.sqrt(10)),
            lambda: composed(PLDAccountant, 10, ten),
            lambda: composed(RdpAccountant, 10, ten),
            rounds,
        ),
        race(
            "visits, 100 hops, p = 0.1",
            lambda: visits_sigma(EPSILON, DELTA, 1.0, 100, 0.1),
            lambda: coin_by_pld(100, 0.1, coin),
            lambda: composed(RdpAccountant, 10, ten),
            rounds,
        ),
    ]
    for ratio in (1.0, 2.0, 3.0, 4.0, 5.0):
        steps = seal_steps(EPSILON, DELTA, ratio)
        guess = gaussian_sigma(EPSILON, DELTA, math.sqrt(steps))
        out.append(
            race(
                f"seal, ratio {ratio:g}",
                partial(seal_steps, EPSILON, DELTA, ratio),
                partial(composed, PLDAccountant, steps, guess),
                partial(composed, RdpAccountant, steps, guess),
                rounds,
            )
        )
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    table = lines(given.rounds)
    if given.json:
        print(json.dumps([asdict(line) for line in table]))
    else:
        print(f"{'':26}{'unwalk':>10}{'PLD':>11}{'RDP':>11}{'x PLD':>9}{'x RDP':>8}   answers")
        for line in table:
            print(
                f"{line.question:26}{line.unwalk * 1e3:8.3f} ms{line.pld * 1e3:8.1f} ms"
                f"{line.rdp * 1e3:8.2f} ms{line.over_pld:9.0f}{line.over_rdp:8.1f}   "
                f"{line.answer:.6g} | {line.pld_answer:.6g} | {line.rdp_answer:.6g}"
            )
    slow = [
        line.question
        for line in table
        if line.over_pld < FASTER_THAN_PLD or line.over_rdp < FASTER_THAN_RDP
    ]
    for question in slow:
        print(f"too slow: {question}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
