"""``unwalk calibrate``: computes the noise for a guarantee, or the guarantee for a noise."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from typing import Annotated

import typer

from unwalk.cli.terminal import JsonOption, listing, show
from unwalk.core.errors import InvalidInput

Number = Annotated[float | None, typer.Option()]


def calibrate(
    accountant: Annotated[
        str | None, typer.Option(help="Which bound; --list names them with what they take.")
    ] = None,
    epsilon: Number = None,
    delta: Number = None,
    sigma: Number = None,
    sensitivity: Number = None,
    hops: Number = None,
    p: Number = None,
    peers: Number = None,
    visits: Number = None,
    cap: Number = None,
    ratio: Number = None,
    radius: Number = None,
    steps: Number = None,
    distance: Number = None,
    mu: Number = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Anything else the accountant takes."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the accountants.")] = False,
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
    given = {
        "epsilon": epsilon,
        "delta": delta,
        "sigma": sigma,
        "sensitivity": sensitivity,
        "hops": hops,
        "p": p,
        "peers": peers,
        "visits": visits,
        "cap": cap,
        "ratio": ratio,
        "radius": radius,
        "steps": steps,
        "distance": distance,
        "mu": mu,
    }
    named = {k: v for k, v in given.items() if v is not None} | _pairs(set_ or [])
    answer = solve(accountant, **named)
    if json_:
        print(json.dumps(answer))
        return
    for name, value in answer.items():
        show(f"{name}: {value}")


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
