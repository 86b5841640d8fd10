"""Makes the certificate: every claim about a run, in a small document bound to the released model.

A claim is a nominal number, what the method's proof gives, or a refusal; all come from the
transcript.  Anyone who has the transcript can compute the document again, and any difference is
found and named; only the digest of the model's file comes from elsewhere.  Its bytes are canonical
JSON (sorted keys, no spaces, ASCII) and one line break; bytes that differ from their own
re-encoding are rejected, so that there is one text to sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unwalk.certificates import form
from unwalk.certificates.conditions import FEATURES, LABELS, check_conditions
from unwalk.core import events as ev
from unwalk.core.errors import Corrupt, InvalidInput, Refused
from unwalk.core.grades import PROVED
from unwalk.core.transcript import Hop, Transcript, canonical, is_format, read_json, read_short
from unwalk.methods import METHODS
from unwalk.methods.record import UNPROVED
from unwalk.privacy.accountants import SCALINGS, Claim, events_claim

FORMAT = 2
"""Format 1 relied on noise that was not rounded; such a run has to be repeated."""
LONGEST = 64 << 20
"""Bytes of a certificate that is read: those of peers hold the votes of every chapter so far."""
FILE, MODEL = "certificate.json", "model.safetensors"
NOISE = {
    "simulation": "the noise came from a known seed: this is a simulation, which shows what a "
    "guarantee would look like and protects nobody",
    "secret": "the noise came from a secret of the peer that added it",
    "none": "no noise was added",
}
REDRAWS = {
    "kept": "the peer's register of draws, chained under its secret, showed {} before this one for "
    "any of these records, under whatever settings and on whatever machine; a peer that uses "
    "another secret, copies its secret to another folder, alters both id and content of a record, "
    "or cuts off the end of its register is not detected by it (two certificates with the same "
    "entry number and different chain values show the last)",
    "none": "no register of draws was kept: that the noise was drawn only once is what the peer "
    "says",
    "no noise": "no noise was drawn, so there was nothing to draw again",
}
NOT_SHOWN = [
    "that a peer did what it logged: a peer that lies in its log is not detected here",
    "that the records are gone from the peer's own disks",
    "what copies of the model that were handed out before the request reveal",
]
UNSIGNED = {"algorithm": "none", "public_key": None, "fingerprint": None, "chain": None}
FACTS = (
    "predicts",
    "loss",
    "loss_bound",
    "feature_norm",
    "normalisation",
    "batching",
    "slots",
    "nominal_batch",
    "slot_cap",
    "iterate",
    "precision",
    "epsilon",
    "delta",
    "p",
    "attempt",
    "rewind",
    "slices",
    "emptied",
    "withdrawals",
    "shards",
    "features",
    "features_digest",
    "features_from",
    "frozen",
    "frozen_digest",
    "labels",
    "dealing",
    "holdout",
    "code",
    "outside_state",
    "inputs",
    "outputs",
    "initial_norm",
    "digests",
)
"""Public facts of the header that a certificate repeats."""
FORM = form.document_of(FACTS, tuple(NOISE), tuple(REDRAWS))
"""The keys of a certificate, and what may stand under each."""


def misformed(document: Mapping[str, Any]) -> str | None:
    """What in a certificate has a form that ours never have; None if nothing has."""
    return form.wrong(document, FORM) or form.disagreement(document)


def model_of(data: bytes) -> dict[str, str]:
    """The entry of a certificate for the released model, whose file holds ``data``."""
    return {"file": MODEL, "sha256": hashlib.sha256(data).hexdigest()}


def certificate_of(
    transcript: Transcript, model: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The certificate of a run, not signed yet; ``model`` is what :func:`model_of` says of it."""
    header, hops = transcript.header, phase_that_forgets(transcript)
    claims = claims_of(transcript)
    origin = _origin(transcript)
    proved = any(claim["grade"] in PROVED for claim in claims)
    record = METHODS.get(str(header.get("method"))) if proved else None
    guarantee = UNPROVED if record is None else record.guarantee
    return {
        "certificate": FORMAT,
        "unwalk": header.get("unwalk"),
        "run": header.get("run"),
        "task": header.get("task"),
        "method": header.get("method"),
        "claims": claims,
        "threat_model": guarantee.threat.to_json(),
        "certifier": guarantee.certifier,
        "public": {
            "unlearner": header.get("unlearner"),
            "forgotten": header.get("forget"),
            "request_after_hop": _request(transcript, hops),
        },
        "done": deeds_of(transcript, hops),
        "parameters": {
            **{name: header[name] for name in FACTS if name in header},
            "hops": len(hops),
            "noise_std": _stds(hops),
        },
        "noise": {"origin": origin, "meaning": NOISE[origin]},
        "redraws": _redraws(transcript, origin),
        "transcript": {
            "chain": transcript.chain,
            "hops": len(transcript.hops),
            "model": transcript.hops[-1].digest if transcript.hops else None,
        },
        "model": None if model is None else dict(model),
        "not_shown": NOT_SHOWN,
        "signer": dict(UNSIGNED),
        "signature": None,
    }


def _request(transcript: Transcript, hops: list[Hop]) -> int:
    """After how many hops of training the request came."""
    return hops[0].hop - 1 if hops else len(transcript.hops)


def _origin(transcript: Transcript) -> str:
    for _, event in transcript.events():
        noisy = isinstance(event, ev.GaussianNoise) and event.std > 0.0
        if noisy or (isinstance(event, ev.GradientSteps) and event.noise > 0.0):
            announced = transcript.header.get("noise")
            return announced if announced in NOISE else "simulation"
    return "none"


def _redraws(transcript: Transcript, origin: str) -> dict[str, Any]:
    """What is known about earlier draws of the noise, and what that covers.

    Number and chain value are those of the last entry, which all before it are chained to.
    """
    draws = _draws_of(transcript)
    register = "no noise" if origin == "none" else "kept" if draws and all(draws) else "none"
    entry, chain, earlier = None, None, None
    if register == "kept":
        entry, chain, _ = [draw for draw in draws if draw is not None][-1]
        earlier = max(draw[2] for draw in draws if draw is not None)
    return {
        "register": register,
        "draws": len(draws),
        "entry": entry,
        "earlier": earlier,
        "chain": chain,
        "meaning": REDRAWS[register].format(earlier or "none"),
    }


def _stds(hops: list[Hop]) -> list[float]:
    """The different stds of noise on the parameters in the phase that forgets, in order."""
    stds = [e.std for hop in hops for e in hop.events if isinstance(e, ev.GaussianNoise)]
    return list(dict.fromkeys(stds))


def body_of(document: dict[str, Any]) -> bytes:
    """What is signed: the canonical text without the signature itself."""
    return canonical({k: v for k, v in document.items() if k != "signature"}).encode()


def text_of(document: dict[str, Any]) -> str:
    """The file's text."""
    return canonical(document) + "\n"


def read_certificate(path: Path) -> dict[str, Any]:
    """The document in a file; bytes other than its canonical text are rejected."""
    try:
        raw = read_short(path, LONGEST)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    return parse_certificate(raw)


def parse_certificate(raw: bytes) -> dict[str, Any]:
    """The document in these bytes."""
    try:
        document = read_json(raw)
    except ValueError as error:
        raise Corrupt("the certificate is not JSON, or nested too deeply.") from error
    if not isinstance(document, dict) or not is_format(document.get("certificate"), FORMAT):
        raise Corrupt(f"this is not a certificate of format {FORMAT}.")
    try:
        again = text_of(document).encode()
    except ValueError as error:
        raise Corrupt("the certificate holds a number that is not finite.") from error
    if again != raw:
        raise Corrupt("the certificate's bytes differ from their canonical re-encoding.")
    if (problem := misformed(document)) is not None:
        raise Corrupt(f"{problem}.")
    return document


def _draws_of(transcript: Transcript) -> list[ev.Draw | None]:
    """The register's entry for every noise that was added; None if there is none."""
    draws: list[ev.Draw | None] = []
    for _, event in transcript.events():
        if isinstance(event, ev.GaussianNoise) and event.std > 0.0:
            draws.append(event.draw)
        elif isinstance(event, ev.GradientSteps) and event.noise > 0.0:
            draws += [None] if event.draw is None else [event.draw] * event.steps
    return draws


def deeds_of(transcript: Transcript, hops: list[Hop]) -> dict[str, Any]:
    """From where the walk went on, who was visited, what used the records, and all noise.

    ``hops`` are those of the phase that forgets.  ``used`` counts the visits in which the
    forgetting peer used the records again, ``uphill`` those of them whose steps on the records
    all went uphill, ``balls`` the hops with a projection on a ball by its centre, ``sums`` the
    visits in which the forgetting peer replaced its sums by sums without the records.
    """
    u = transcript.header.get("unlearner")
    before = [hop for hop in transcript.hops if not hops or hop.hop < hops[0].hop]
    start = next((e for hop in hops[:1] for e in hop.events if isinstance(e, ev.Start)), None)
    at_u = [hop for hop in hops if hop.receiver == u]
    used = [events for hop in at_u if (events := [e for e in hop.events if _uses(e)])]
    return {
        "start": None if start is None else start.start,
        "start_hop": None if start is None else start.hop,
        "hops": len(hops),
        "visits": len(at_u),
        "used": len(used),
        "uphill": sum(all(_uphill(event) for event in events) for events in used),
        "sums": sum(any(_replaces(event) for event in hop.events) for hop in at_u),
        "balls": _balls(hops),
        "noise": {"before": _noise(before, u), "after": _noise(hops, u)},
    }


def _uses(event: ev.Event) -> bool:
    if not isinstance(event, ev.GradientSteps | ev.OwnSums):
        return False
    return event.touched and event.data != "retained"


def _uphill(event: ev.Event) -> bool:
    return (
        isinstance(event, ev.GradientSteps) and event.data == "forgotten" and event.direction == 1
    )


def _replaces(event: ev.Event) -> bool:
    return isinstance(event, ev.OwnSums) and not event.touched


def _balls(hops: list[Hop]) -> dict[str, int]:
    balls: dict[str, int] = {}
    for hop in hops:
        events = [event for event in hop.events if isinstance(event, ev.Projection)]
        for centre in sorted({centre for event in events for centre, _ in event.balls}):
            balls[centre] = balls.get(centre, 0) + 1
    return balls


def _noise(hops: list[Hop], u: Any) -> dict[str, Any]:
    """How often noise was added, in how many hops and visits to u; by whom, if by one peer alone.

    ``first`` and ``last`` are the first and the last such hop, numbered within their phase.
    """
    noisy = [(hop, times) for hop in hops if (times := sum(_draws(e) for e in hop.events))]
    peers = {hop.receiver for hop, _ in noisy}
    return {
        "times": sum(times for _, times in noisy),
        "hops": len(noisy),
        "visits": sum(hop.receiver == u for hop, _ in noisy),
        "by": peers.pop() if len(peers) == 1 else None,
        "first": noisy[0][0].phase_hop if noisy else None,
        "last": noisy[-1][0].phase_hop if noisy else None,
    }


def _draws(event: ev.Event) -> int:
    """How often an event drew noise."""
    if isinstance(event, ev.GaussianNoise):
        return int(event.std > 0.0)
    return event.steps if isinstance(event, ev.GradientSteps) and event.noise > 0.0 else 0


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
    proof = METHODS[method].guarantee.proof if method in METHODS else events_claim
    try:
        claim = proof(transcript, hops, delta)
        check_conditions(transcript, hops)
    except Refused as refusal:
        return [*nominal, refused(str(refusal), refusal.code)]
    return [*nominal, _plain(claim, transcript)]


def refused(reason: str, code: str) -> dict[str, Any]:
    """A refused claim, with the reason and its code."""
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
MAPPED = "the model sees fixed features {!r} (digest {}...): the map {}"
FROZEN = (
    "the {:,} parameters that were not trained (digest {}...) were made without the forgotten "
    "records, and every peer that was visited had the same"
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
    if "features" in header:
        name, digest = header["features"], str(header.get("features_digest"))[:16]
        assumptions.append(MAPPED.format(str(name), digest, FEATURES[str(header["features_from"])]))
    if "frozen" in header:
        assumptions.append(FROZEN.format(header["frozen"], str(header.get("frozen_digest"))[:16]))
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
        record.nominal.formula.name: record.nominal.formula
        for record in METHODS.values()
        if record.nominal is not None
    }
    formula = formulas.get(str(announced.get("formula")))
    problem = f"formula {announced.get('formula')!r} is not known"
    if formula is not None:
        problem = formula.problem(transcript, hops, announced)
    if formula is None or problem:
        return refused(f"a formula's number was announced, but {problem}.", "formula")
    return {
        "code": None,
        "grade": "nominal",
        "epsilon": announced["epsilon"],
        "delta": announced["delta"],
        "accountant": announced["accountant"],
        "assumptions": [formula.assumes],
        "reason": str(announced["reason"]),
    }
