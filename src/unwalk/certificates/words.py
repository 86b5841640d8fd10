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
SHARDED = (
    "There are {shards} models, each trained by other peers, which answer together. Only the one "
    "that this peer helped to train had met the records: it was wound back to before they were "
    "used, and its training was repeated from there without them."
)


BEFORE = "before the request"
ONCE = {
    "kept": "That the noise was drawn only once is what the peer's own list of such draws shows: "
    "it has no earlier one for these records. A peer that tampers with its list, or has a second "
    "one, is not found out by that.",
    "none": "That the noise was drawn only once is what the peer says: no list of draws was kept.",
}
PLAIN = {
    "carries D_f un-noised": "the model still carried traces of the records when the request came, "
    "and nothing hid them before it was passed on",
    "leaves u un-noised": "the peer used the records again, and nothing hid that before the model "
    "was passed on",
    "redrawn": "the random noise was drawn more than once; who may choose among several draws can "
    "choose one that hides nothing",
    "normalisation": "the numbers that went into the model may have been prepared with the help of "
    "the very records that are to be forgotten",
    "local state": "peers kept notes from training, which may carry traces of the records",
    "plain digest": "a fingerprint of the old model was published, by which a guess at the records "
    "can be checked",
    "subtract the noise": "the log gives away how the noise was made, so anybody can take it off",
    "theta_0": "the model was kept close to the old one, which carries traces of the records",
    "announced": "what was done is not what had been announced beforehand",
}
"""Refusals that are common, for people; found by a part of the reason."""


def in_words(document: dict[str, Any]) -> dict[str, Any]:
    """Four short lists: what was ``asked``, ``done``, ``promised`` and ``not_promised``."""
    public, method = document["public"], str(document["method"])
    records = public["forgotten"]
    number = "1 record" if records == 1 else f"{records} records"
    asked = (
        f"Peer {public['unlearner']} asked that the model forget {number}. In training the model "
        f"had been passed from peer to peer {public['request_after_hop']} times by then."
    )
    return {
        "asked": [asked if records else "Nothing was to be forgotten."],
        "done": [_done(method, document["parameters"])],
        "promised": _promised(document),
        "not_promised": _not_promised(document),
    }


def _done(method: str, parameters: dict[str, Any]) -> str:
    if "shards" in parameters:
        return SHARDED.format(shards=parameters["shards"])
    return DONE.get(method, f"The method {method!r} was used.")


def _proved(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for c in document["claims"] if c["grade"] in ("certified", "exact")]


def _rehearsed(document: dict[str, Any]) -> bool:
    return bool(document["noise"]["origin"] == "simulation")


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
            continue
        found.append(
            f"To {who}: whatever they conclude about whether the records were ever used, the "
            f"odds change by a factor of {factor(claim['epsilon'])} at most, except with a "
            f"probability of {chance(claim['delta'])}."
        )
        found.append(
            "For example: who held it for even odds beforehand, 50 %, can be "
            f"{sureness(claim['epsilon'])} sure afterwards at most, with the same exception."
        )
    if found and str(document["threat_model"]["coalition"]).startswith("any"):
        found.append(
            "It holds even if all of them join forces, as long as the forgetting peer is not with "
            "them."
        )
    if found and _rehearsed(document):
        rehearsal = (
            "Nothing yet: this is a rehearsal, in which the noise came from a known seed, so that "
            "anyone could take it off again. Done with secret noise, the same would promise this:"
        )
        return [rehearsal, *found]
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


def sureness(epsilon: float) -> str:
    """What even odds can become, in percent, rounded up.

    >>> sureness(1.0), sureness(0.0)
    ('73.2 %', '50 %')
    """
    share = 1.0 / (1.0 + math.exp(-epsilon))
    return f"{math.ceil(share * 1000.0 - 1e-9) / 10.0:g} %"


def _not_promised(document: dict[str, Any]) -> list[str]:
    found = [_because(c) for c in document["claims"] if c["grade"] in ("nominal", "refused")]
    if _rehearsed(document):
        found.append(
            "This is a rehearsal: it shows what a guarantee would look like and protects nobody."
        )
    if _proved(document):
        threats = document["threat_model"]
        if not threats["training_time_view"]:
            noisy = document["noise"]["origin"] != "none"
            until = "up to the moment when it came to the forgetting peer"
            found.append(
                f"What peers saw while the model was trained, {until if noisy else BEFORE}, is not "
                "covered."
            )
        if not threats["adaptive_requests"]:
            found.append(
                "The promise is for requests that were not chosen by looking at the model."
            )
        if not str(threats["coalition"]).startswith("any"):
            found.append(f"Observers who join forces: covered are {threats['coalition']}.")
        found.append("It is no secret who asked, when, and for how many records.")
        if document["noise"]["origin"] != "none":
            found += _of_noise(document)
    return found + [f"It is not shown {text.rstrip('.')}." for text in document["not_shown"]]


def _of_noise(document: dict[str, Any]) -> list[str]:
    return [
        "Measurements of the model as it was before the noise, such as those of a report, are not "
        "covered: they are not to be handed out.",
        ONCE[str(document["redraws"]["register"])],
    ]


def _because(claim: dict[str, Any]) -> str:
    reason = str(claim["reason"])
    if claim["grade"] == "nominal":
        return f"The paper's formula gives a number, which is no guarantee: {_sentence(reason)}"
    for part, plain in PLAIN.items():
        if part in reason:
            return f"A guarantee was refused: {plain}. For specialists: {_sentence(reason)}"
    return (
        "A guarantee was refused, because a condition of its proof does not hold. For specialists: "
        f"{_sentence(reason)}"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
