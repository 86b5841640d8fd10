"""``unwalk calibrate``: computes the noise for a guarantee, or the guarantee for a noise."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from unwalk.cli.terminal import JsonOption, listing, show
from unwalk.core.errors import InvalidInput

Number = Annotated[float | None, typer.Option()]
MEANINGS = {
    "sigma": "the standard deviation of the Gaussian noise on each coordinate",
    "epsilon": "the epsilon that this noise gives at this delta",
    "steps": "how many steps, each a projection and noise, the seal takes",
    "grade": "a published formula with unit constants, not a guarantee",
}
USES = {
    "paper-ddp": "ddp --set ddp.sigma",
    "paper": "rrdu --set unlearn.sigma",
    "visits": "rrdu --set unlearn.sigma",
    "dp-training": "dpsgd --set dpsgd.reading=from-start --set train.work=slots "
    "--set dpsgd.noise_multiplier",
}
"""Which method takes the noise of accountants whose names begin so, and in which setting."""


@dataclass(frozen=True)
class Numbers:
    """What accountants take, an option each."""

    epsilon: Number = None
    delta: Number = None
    sigma: Number = None
    sensitivity: Number = None
    hops: Number = None
    p: Number = None
    peers: Number = None
    visits: Number = None
    cap: Number = None
    ratio: Number = None
    radius: Number = None
    steps: Number = None
    distance: Number = None
    mu: Number = None


def calibrate(
    numbers: Numbers,
    accountant: str | None = typer.Option(
        None, help="Which bound; --list names them with what they take."
    ),
    set_: list[str] | None = typer.Option(
        None, "--set", metavar="NAME=VALUE", help="Anything else the accountant takes."
    ),
    list_: bool = typer.Option(False, "--list", help="List the accountants."),
    json_: JsonOption = False,
) -> None:
    """Solve an accountant for what was not given: noise, epsilon or steps."""
    from unwalk.privacy.calibrate import ACCOUNTANTS
    from unwalk.privacy.calibrate import calibrate as solve

    if list_ or accountant is None:
        rows = [
            {"accountant": name, "takes": " ".join(entry.takes), "about": entry.summary}
            for name, entry in ACCOUNTANTS.items()
        ]
        listing(rows, json_)
        return
    named = {k: v for k, v in vars(numbers).items() if v is not None} | _pairs(set_ or [])
    answer = solve(accountant, **named)
    if json_:
        print(json.dumps(answer))
        return
    for name, value in answer.items():
        show(f"{name}: {value} ({MEANINGS[name]})", soft_wrap=True)
    given_text = ", ".join(f"{k} {v:g}" for k, v in named.items())
    show(f"for: {given_text}", soft_wrap=True)
    show(f"by: {accountant}, {ACCOUNTANTS[accountant].summary}", soft_wrap=True)
    if "sigma" in answer:
        show(f"to use it: {_use(accountant, answer['sigma'])}", soft_wrap=True)


def _use(accountant: str, sigma: float) -> str:
    """How a run gets this noise.

    >>> _use("paper", 2.5)
    'unwalk run --method rrdu --set unlearn.sigma=2.5'
    """
    for family, words in USES.items():
        if accountant.startswith(family):
            return f"unwalk run --method {words}={sigma}"
    return (
        "for mechanisms of your own; the methods of unwalk that prove something (seal, release, "
        "noisy-start) compute their noise themselves, from epsilon and delta: "
        "--set unlearn.epsilon=..., --set unlearn.delta=..."
    )


def _pairs(texts: list[str]) -> dict[str, float]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            pairs[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidInput(f"--set got {text!r}; allowed: NAME=NUMBER.")
    return pairs
