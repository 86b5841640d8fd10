"""A certificate for people who know no Renyi divergence: asked, done, promised, not promised."""

from __future__ import annotations

import math
from typing import Any

DONE = {
    "rrdu": "The model went on from peer to peer, and was corrected with some noise whenever it "
    "came to the peer that forgets.",
    "finetune": "Training simply went on without the records.",
    "ddp": "Training went on with noise at every step.",
    "dpsgd": "Training went on with noise at every step.",
    "retrain": "The old model was thrown away, and a new one was trained without the records.",
    "restart": "The old model was thrown away, and training began again without the records.",
    "rewind": "Training was wound back to a moment before the records were used, and repeated from "
    "there without them.",
    "sums": "The peer took its records out of the sums from which the model is computed, and the "
    "model was computed anew.",
    "seal": "The peer first covered the traces of the records in the model with random noise; then "
    "training went on without them.",
    "ball-seal": "The peer first pulled the model close to a public one and covered the rest with "
    "random noise; then training went on without the records.",
    "release": "Training went on without the records, and random noise was added once, before the "
    "model was handed out.",
    "noisy-start": "Noise had been added all through training, so that nothing more had to be "
    "done.",
    "sisa": "Records had entered training in slices, one after the other. Training was wound back "
    "to before the records were used, and repeated from there without them.",
}


def in_words(document: dict[str, Any]) -> dict[str, Any]:
    """Four short lists: what was ``asked``, ``done``, ``promised`` and ``not_promised``."""
    public, method = document["public"], str(document["method"])
    records = public["forgotten"]
    number = "1 record" if records == 1 else f"{records} records"
    asked = (
        f"Peer {public['unlearner']} asked, after {public['request_after_hop']} hops of training, "
        f"that the model forget {number}."
    )
    return {
        "asked": [asked if records else "Nothing was to be forgotten."],
        "done": [DONE.get(method, f"The method {method!r} was used.")],
        "promised": _promised(document),
        "not_promised": _not_promised(document),
    }


def _proved(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in document["claims"] if c["grade"] in ("certified", "exact")]


def _promised(document: dict[str, Any]) -> list[str]:
    found = []
    for claim in _proved(document):
        who = document["threat_model"]["observers"]
        if claim["grade"] == "exact":
            found.append(
                f"To {who}: the model is what it could have been had the records never been there. "
                "Nothing about them can be learned from it beyond what the others would have "
                "shown anyway."
            )
        else:
            found.append(
                f"To {who}: whatever they conclude about whether the records were ever used, the "
                f"odds change by a factor of {factor(claim['epsilon'])} at most, except with a "
                f"probability of {chance(claim['delta'])}."
            )
    coalition = str(document["threat_model"]["coalition"])
    if found and coalition.startswith("any"):
        found.append(f"It holds even if observers join forces ({coalition}).")
    return found or ["Nothing. No guarantee is given for this run."]


def factor(epsilon: float) -> str:
    """e to the epsilon, rounded up.

    >>> factor(1.0), factor(0.0)
    ('2.72', '1')
    """
    if epsilon > 20.0:
        return "more than 100 million"
    return f"{math.ceil(math.exp(epsilon) * 100.0 - 1e-9) / 100.0:g}"


def chance(delta: float) -> str:
    """A small probability in words.

    >>> chance(1e-5)
    '1 in 100,000'
    """
    return "0" if delta <= 0.0 else f"1 in {math.floor(1.0 / delta + 1e-6):,}"


def _not_promised(document: dict[str, Any]) -> list[str]:
    found = [_because(c) for c in document["claims"] if c["grade"] in ("nominal", "refused")]
    if document["noise"]["origin"] == "simulation":
        found.append(
            "This is a rehearsal: the noise came from a known seed, so anyone could take it off "
            "again. It shows what a guarantee would look like and protects nobody."
        )
    if _proved(document):
        threats = document["threat_model"]
        if not threats["training_time_view"]:
            found.append(
                "What peers saw while the model was trained, before the request, is not covered."
            )
        if not threats["adaptive_requests"]:
            found.append(
                "The promise is for requests that were not chosen by looking at the model."
            )
        if not str(threats["coalition"]).startswith("any"):
            found.append(f"Observers who join forces: covered are {threats['coalition']}.")
        found.append("It is no secret who asked, when, and for how many records.")
    return found + [f"It is not shown {text.rstrip('.')}." for text in document["not_shown"]]


def _because(claim: dict[str, Any]) -> str:
    reason = _sentence(claim["reason"])
    if claim["grade"] == "nominal":
        return f"The paper's formula gives a number, which is no guarantee: {reason}"
    return f"A guarantee was refused: {reason}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
