"""Makes every claim about a run: nominal numbers, the proof of its method, and refusals."""

from __future__ import annotations

from typing import Any

from unwalk.certificates.conditions import LABELS, check_conditions
from unwalk.core import events as ev
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import Hop, Transcript
from unwalk.methods import METHODS
from unwalk.privacy.accountants import events_claim
from unwalk.privacy.claims import SCALINGS, Claim


def phase_that_forgets(transcript: Transcript) -> list[Hop]:
    """The hops of the last phase that the header announced; none where it had none."""
    phases = transcript.header.get("phases")
    if not isinstance(phases, list) or not phases:
        raise InvalidInput("the transcript's header names no phases.")
    last = phases[-1]["name"]
    return [hop for hop in transcript.hops if hop.phase == last]


def claims_of(transcript: Transcript) -> list[dict[str, Any]]:
    """Every claim about this run: the paper's numbers as nominal, then what is proved or refused.

    Nothing is claimed where nothing was to be forgotten.
    """
    header = transcript.header
    problem = transcript.problem()
    if problem is not None:
        return [refused(f"{problem}.", "bad-event")]
    if header.get("forget") == 0:
        return []
    method, delta = str(header.get("method")), header.get("delta", 1e-5)
    hops = phase_that_forgets(transcript)
    nominal = [_nominal(transcript, hops, entry) for entry in header.get("nominal", [])]
    proof = METHODS[method].proof if method in METHODS else events_claim
    try:
        claim = proof(transcript, hops, delta)
        check_conditions(transcript, hops)
    except Refused as refusal:
        return [*nominal, refused(str(refusal), refusal.code)]
    return [*nominal, _plain(claim, transcript)]


def refused(reason: str, code: str) -> dict[str, Any]:
    """A claim that is not made, with the reason and its code."""
    return {
        "code": code,
        "grade": "refused",
        "epsilon": None,
        "delta": None,
        "accountant": "none",
        "assumptions": [],
        "reason": reason,
    }


def _plain(claim: Claim, transcript: Transcript) -> dict[str, Any]:
    header, reason = transcript.header, claim.reason
    if claim.grade == "certified" and header["noise"] == "simulation":
        reason += "; a rehearsal, whose noise came from a known seed and protects nobody"
    assumptions = [*claim.assumptions, *_given(transcript), SCALINGS[header["normalisation"]]]
    return {"code": None, **claim.to_json(), "assumptions": assumptions, "reason": reason}


OWN_CODE = (
    "the user's own code (model, loss or augmentation) makes the initial model and gradients "
    "without looking at other records, and keeps nothing of them from visit to visit in files, "
    "global variables or classes; parameters, buffers, hooks and attributes of the model are put "
    "back, each visit has copies of loss and augmentation as they were given, and a probe found "
    "nothing besides"
)
DEALT = (
    "which peer holds which record is taken as given: records were dealt by {!r}, and without the "
    "forgotten ones others might have been dealt otherwise"
)
HELD_OUT = (
    "which records are held out as the test set is taken as given: it is a share of all records, "
    "and without the forgotten ones others might have been held out"
)
NUMBERED = (
    "row numbers are taken as given: a record keeps its number whether or not others are there, "
    "and by it the record goes to its {}"
)


def _given(transcript: Transcript) -> list[str]:
    """The assumptions about classes, user code, and how data were dealt to peers."""
    header = transcript.header
    assumptions = [LABELS[header["labels"]]]
    if header.get("code") == "own":
        assumptions.append(OWN_CODE)
    dealing = header.get("dealing", "natural")
    if dealing != "natural":
        assumptions.append(DEALT.format(dealing))
    if header.get("holdout") == "share":
        assumptions.append(HELD_OUT)
    places = ["slice"] if header.get("slices", 1) > 1 else []
    if any(
        isinstance(e, ev.GradientSteps) and e.batching == "slots" for _, e in transcript.events()
    ):
        places.append("slot")
    if places:
        assumptions.append(NUMBERED.format(" and to its ".join(places)))
    return assumptions


def _nominal(transcript: Transcript, hops: list[Hop], announced: dict[str, Any]) -> dict[str, Any]:
    """A formula's number for the run, recomputed from the announcement and the events."""
    formulas = {
        record.formula.name: record.formula
        for record in METHODS.values()
        if record.formula is not None
    }
    formula = formulas.get(str(announced.get("formula")))
    problem = f"formula {announced.get('formula')!r} is not known"
    if formula is not None:
        problem = formula.problem(transcript, hops, announced)
    if problem:
        return refused(f"a formula's number was announced, but {problem}.", "formula")
    return {
        "code": None,
        "grade": "nominal",
        "epsilon": announced["epsilon"],
        "delta": announced["delta"],
        "accountant": announced["accountant"],
        "assumptions": ["the paper's formula with unit constant: not a guarantee"],
        "reason": str(announced["reason"]),
    }
