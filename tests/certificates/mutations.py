"""Certificates with one thing changed at random, as their own issuer might sign them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from typer.testing import CliRunner

from tests.certificates.test_tampering import places
from unwalk.certificates.document import text_of
from unwalk.cli import app
from unwalk.core.errors import UnwalkError

SENTENCE = "a quorum has seen that every copy is gone"
ODD: list[Any] = [
    *(True, False, None, -1, 0, 1, 1.0, 0.5, 2**31, 2**63, 2**200, 1e308, 5e-324, -0.0),
    *("", "x", "0", SENTENCE, "\x1b[2Jtrusted", "\u202etrusted", "p\u0435er-0", "peer-0\n"),
    *("0" * 64, "0" * 32, "2026-13-45T00:00:00+00:00", "2026-01-01T00:00:00+00:00", "{}"),
    *([], {}, [[]], [None], {"a": 1}, {"": {}}, [1, 1], ["peer-0", "peer-0"], "x" * 100_000),
    *("exact", "certified", "refused", "secret", "-----BEGIN CERTIFICATE-----\n\n"),
]

GONE = object()
"""In the place of a key or an entry that goes."""


def mutated(document: dict[str, Any], rng: Random) -> tuple[str, dict[str, Any]]:
    """A copy with one thing changed, and where."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    path, value = rng.choice([place for place in places(copy) if place[0]])
    parent: Any = copy
    for step in path[:-1]:
        parent = parent[step]
    kinds = ["odd", "odd", "odd", "gone"]
    kinds += ["grown", "key"] if isinstance(value, dict) else []
    kinds += ["doubled", "turned", "longer"] if isinstance(value, list) and value else []
    kinds += ["text"] if isinstance(value, str) else []
    match rng.choice(kinds):
        case "odd":
            parent[path[-1]] = rng.choice(ODD)
        case "gone":
            del parent[path[-1]]
        case "grown":
            value[rng.choice(["more", "", SENTENCE, "\x1b[2J"])] = rng.choice(ODD)
        case "key":
            value[SENTENCE] = value.pop(rng.choice(sorted(value))) if value else 1
        case "doubled":
            value.append(json.loads(json.dumps(rng.choice(value))))
        case "turned":
            value.reverse()
        case "longer":
            value.append(rng.choice(ODD))
        case "text":
            at = rng.randrange(len(value) + 1)
            parent[path[-1]] = value[:at] + rng.choice(["~", " ", "\n", "\u200b", "A"]) + value[at:]
    return ".".join(map(str, path)), copy


def mutants(
    document: dict[str, Any], seeds: Iterator[int] | range
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Copies of the document, each with one to three things changed."""
    for seed in seeds:
        rng, where, copy = Random(seed), "", document
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            place, copy = mutated(copy, rng)
            where += f" {place}"
        if copy != document or json.dumps(copy) != json.dumps(document):
            yield seed, where, copy


def everything(document: dict[str, Any], each: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies with one thing changed: every place of the document, some of the odd values each.

    Also every key gone, every object with a key more, every list without its last entry.
    """
    for number, (path, value) in enumerate(places(document)):
        if not path:
            continue
        like: list[Any] = [0, 1, value + 1, 2**40] if type(value) is int else []
        like += [value * 2, 1e-9] if type(value) is float else []
        like += [SENTENCE, f"{value}x", value.upper()] if isinstance(value, str) else []
        like += [value[:-1], value[::-1], value * 2] if isinstance(value, list) else []
        like += [{**value, "more": SENTENCE}, {}] if isinstance(value, dict) else []
        odd = [ODD[(number + k) % len(ODD)] for k in range(each)]
        for other in [GONE, *odd, *like]:
            copy = json.loads(json.dumps(document))
            parent: Any = copy
            for step in path[:-1]:
                parent = parent[step]
            if other is GONE:
                del parent[path[-1]]
            else:
                parent[path[-1]] = other
            if copy != document or json.dumps(copy) != json.dumps(document):
                yield ".".join(map(str, path)), copy


def told(place: Path, *words: Any) -> dict[str, Any]:
    """What ``verify --json`` says of a certificate, its page and its lines made too.

    A sentence is an answer; anything else that is raised is a fault.
    """
    page = place.with_name("page.html")
    page.unlink(missing_ok=True)
    runner = CliRunner()
    given = ["verify", str(place), *map(str, words)]
    found: dict[str, Any] = {}
    for options in (["--json", "--html", str(page)], []):
        result = runner.invoke(app, [*given, *options])
        error = result.exception
        if error is not None and not isinstance(error, SystemExit | UnwalkError):
            raise error
        if options and isinstance(error, UnwalkError):
            found = {"problems": [str(error)]}
        elif options:
            found = json.loads(result.output)
    return found


def written(place: Path, document: dict[str, Any]) -> bool:
    """Write a certificate; False where it has no JSON text."""
    try:
        place.write_text(text_of(document))
    except (ValueError, UnicodeEncodeError):
        return False
    return True
