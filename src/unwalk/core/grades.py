"""The grades of claims, and what people are shown of them.

A claim's grade is for programs: it says what the accountants proved of the events.  Whether that
protects anybody depends on where the noise came from as well, so every page, table and command
shows :func:`shown_grade`, never the bare grade.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROVED = ("exact", "certified")


@dataclass(frozen=True)
class Shown:
    """What stands on a badge: a ``sign`` and a ``name``, and the ``meaning`` beside it."""

    sign: str
    name: str
    meaning: str


SHOWN: dict[str, Shown] = {
    "nominal": Shown("~", "nominal", "The paper's formula, not a guarantee."),
    "certified": Shown(
        "✓", "certified", "Proved for the run that happened, from its recorded events."
    ),
    "rehearsal": Shown(
        "▷",
        "rehearsal: would be certified",
        "Not a guarantee: the proof holds, but whoever knows where the noise came from can take "
        "it off again.",
    ),
    "exact": Shown(
        "=",
        "exact",
        "The model is distributed as if the forgotten records had never been there.",
    ),
    "refused": Shown("✗", "refused", "No claim is made, because it cannot be proved."),
    "nothing": Shown("–", "nothing to claim", "No claim was made for this run."),
}


def shown_grade(grade: str, origin: str | None) -> str:
    """What people are shown of a claim whose noise is of this origin.

    Certified is shown where the noise came from a secret, or where none was needed.

    >>> shown_grade("certified", "secret"), shown_grade("certified", "simulation")
    ('certified', 'rehearsal')
    >>> shown_grade("exact", "none"), shown_grade("certified", None)
    ('exact', 'rehearsal')
    """
    if grade == "certified" and origin not in ("secret", "none"):
        return "rehearsal"
    return grade


def origin_of(document: Mapping[str, Any]) -> str | None:
    """Where a certificate says that its noise came from."""
    noise = document.get("noise")
    return noise.get("origin") if isinstance(noise, Mapping) else None


def badge_of(document: Mapping[str, Any]) -> str:
    """What people are shown of a whole certificate: its guarantee, or that there is none.

    >>> badge_of({"claims": [{"grade": "nominal"}, {"grade": "refused"}]})
    'refused'
    >>> badge_of({"claims": [{"grade": "certified"}], "noise": {"origin": "secret"}})
    'certified'
    """
    grades = [str(claim.get("grade")) for claim in document.get("claims") or ()]
    if not grades:
        return "nothing"
    proved = next((grade for grade in grades if grade in PROVED), grades[-1])
    return shown_grade(proved, origin_of(document))
