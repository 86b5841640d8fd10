"""Puts a certificate into sentences: what was asked, done, promised and not promised.

Every sentence is made from what the document says of the run; what was done from its counted
events (:mod:`unwalk.certificates.document`), never from the name of a method.
"""

from __future__ import annotations

import math
from typing import Any

from unwalk.core.grades import (
    PROVED,
    SHOWN,
    badge_of,
    explained,
    origin_of,
    plain_reason,
    shown_grade,
)

BEFORE = "before the request"
INSTEAD = "What to do instead:"
SECRETLY = (
    "For a guarantee, do it with secret noise: noise.source=secret, and noise.secret_file=FILE "
    "with 32 random bytes or more that only its owner can read."
)
ONCE = {
    "kept": "That the noise was drawn only once is what the peer's own list of such draws shows: "
    "it has no earlier draw for these records. A peer that tampers with its list, or has a second "
    "one, is not detected by that.",
    "none": "That the noise was drawn only once is what the peer says: no list of draws was kept.",
}
CENTRES = {
    "origin": "a public point",
    "initial": "the public initial model",
    "start": "the model with which this walk began",
    "arrival": "the model that had just come to the visit",
}
SMALLEST = 1e-30
"""Chances below this one are not written out."""
ORIGINS = {
    "simulation": "The noise came from a known seed.",
    "secret": "The noise came from a secret of the peer that added it.",
}


def in_words(document: dict[str, Any]) -> dict[str, Any]:
    """The ``verdict``, what was ``asked``, ``done``, ``promised`` and ``not_promised``: lists."""
    public = document["public"]
    records = public["forgotten"]
    counted = "all its records" if records == "all" else _counted(records, "record")
    asked = (
        f"Peer {public['unlearner']} asked that the model forget {counted}. In "
        f"training the model had been passed from peer to peer {public['request_after_hop']} times "
        "by then."
    )
    return {
        "verdict": verdict_of(document),
        "asked": [asked if records else "Nothing was to be forgotten."],
        "done": _done(document),
        "promised": _promised(document),
        "not_promised": _not_promised(document),
    }


def verdict_of(document: dict[str, Any]) -> list[str]:
    """What is guaranteed and to whom, in one to three sentences."""
    badge = badge_of(document)
    who = document["threat_model"]["observers"]
    if badge == "nothing":
        return ["Nothing was to be forgotten, so there is nothing to guarantee."]
    if badge == "exact":
        return [f"Guaranteed to {who}: {_as_if_never()}."]
    if badge == "certified":
        return [f"Guaranteed to {who}: {_odds(_proved(document)[0])}."]
    if badge == "rehearsal":
        return [
            "Nothing is guaranteed to anybody: this is a rehearsal, whose noise anyone can "
            "subtract.",
            f"Done with secret noise, it would be guaranteed to {who}: "
            f"{_odds(_proved(document)[0])}.",
            SECRETLY,
        ]
    refused = [claim for claim in document["claims"] if claim["grade"] == "refused"]
    if not refused:
        return ["Nothing is guaranteed to anybody: a formula's number is no guarantee."]
    known = explained(refused[-1]["code"])
    return [
        f"Nothing is guaranteed to anybody: {known.plain}.",
        f"{INSTEAD} {known.instead}.",
    ]


def verdict_line(document: dict[str, Any]) -> str:
    """The verdict as one line that names the grade that people are shown."""
    return f"{SHOWN[badge_of(document)].name}. {' '.join(verdict_of(document))}"


def claim_lines(document: dict[str, Any]) -> list[str]:
    """Each claim for specialists: grade as shown, numbers, reason, and the code of a refusal.

    The verdict says what the last claim's refusal means and what to do instead; for earlier claims
    this is said here.
    """
    lines = []
    claims, origin = document["claims"], origin_of(document)
    for number, claim in enumerate(claims, 1):
        told = ""
        if claim["epsilon"] is not None:
            told = f" (epsilon {claim['epsilon']:.6g}, delta {claim['delta']:.6g})"
        if claim["grade"] == "refused":
            told = f" ({claim['code']})"
        name = SHOWN[shown_grade(claim["grade"], origin)].name
        lines.append(f"{name}{told}: {plain_reason(claim['reason'])}")
        if claim["grade"] == "refused" and number < len(claims):
            known = explained(claim["code"])
            lines.append(f"{_sentence(known.plain)} {INSTEAD} {known.instead}.")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _done(document: dict[str, Any]) -> list[str]:
    """What happened after the request, a sentence for each thing that happened or did not."""
    done, u = document["done"], document["public"]["unlearner"]
    sentences = [_seen(document), _frozen(document), _began(document), _walked(done, u)]
    if done["sums"]:
        sentences.append(
            f"Peer {u} replaced its former sums by sums without the records, and the model was "
            "computed from them again."
        )
    for centre, hops in done["balls"].items():
        where = CENTRES.get(centre, f"a point named {centre!r}")
        sentences.append(
            f"In {_counted(hops, 'hop')} the model was pulled back into a ball around {where}."
        )
    return [text for text in [*sentences, *_noise(document)] if text]


def _seen(document: dict[str, Any]) -> str:
    """Which fixed features the model sees, where there are any."""
    name = document["parameters"].get("features")
    if name is None:
        return ""
    digest = str(document["parameters"].get("features_digest"))[:16]
    return f"The model sees each record through fixed features, {name!r} (digest {digest}...)."


def _frozen(document: dict[str, Any]) -> str:
    """How much of the model was not trained, where any was not."""
    number = document["parameters"].get("frozen")
    if number is None:
        return ""
    digest = str(document["parameters"].get("frozen_digest"))[:16]
    untrained = _counted(number, "parameter")
    return f"Of the model, {untrained} were not trained and did not travel (digest {digest}...)."


def _began(document: dict[str, Any]) -> str:
    done, u = document["done"], document["public"]["unlearner"]
    shards = document["parameters"].get("shards")
    several = (
        f"There are {shards} models, each trained by other peers, which answer together. "
        if shards
        else ""
    )
    if done["hops"] == 0:
        return f"{several}After the request nothing more was done to the model."
    if done["start"] == "initial":
        return (
            f"{several}The old model was discarded, and the walk began again from the public "
            "initial model."
        )
    if done["start"] == "arrival":
        which = f"The one that peer {u} helped to train" if shards else "The model"
        return (
            f"{several}{which} was wound back to what it had been before hop {done['start_hop']} "
            "of training."
        )
    if done["start"] == "token":
        return f"{several}The walk continued from the trained model."
    return f"{several}The log does not say from which model the walk continued."


def _walked(done: dict[str, Any], u: int) -> str:
    if done["hops"] == 0:
        return ""
    visits = f"{done['visits']:,} of them at" if done["visits"] else "none of them at"
    if done["hops"] == 1:
        visits = "at" if done["visits"] else "not at"
    told = f"The walk had {_counted(done['hops'], 'hop')}, {visits} peer {u}"
    if not done["used"]:
        return f"{told}; the records were not used any more."
    how = ""
    if done["uphill"] == done["used"]:
        how = ", each time to step away from what they teach"
    return f"{told}. In {_counted(done['used'], 'visit')} it used the records again{how}."


def _noise(document: dict[str, Any]) -> list[str]:
    before, after = (document["done"]["noise"][when] for when in ("before", "after"))
    if not before["times"] and not after["times"]:
        return ["No noise was added."]
    sentences = []
    if before["times"]:
        who = _who(before, document)
        sentences.append(f"In training {who} had added random noise {_often(before)}.")
    if after["times"]:
        sentences.append(
            f"{_sentence(_who(after, document), end='')} added random noise {_often(after)}"
            f"{_when(after, document['done']['hops'])}."
        )
    elif document["done"]["hops"]:
        sentences.append("After the request no noise was added.")
    return [*sentences, ORIGINS[document["noise"]["origin"]]]


def _who(noise: dict[str, Any], document: dict[str, Any]) -> str:
    if noise["by"] is not None:
        return f"peer {noise['by']}"
    visits, u = noise["visits"], document["public"]["unlearner"]
    return f"the visited peers (peer {u} in {_counted(visits, 'visit')})"


def _often(noise: dict[str, Any]) -> str:
    if noise["times"] == 1:
        return "once"
    if noise["hops"] in (1, noise["times"]):
        return f"{noise['times']:,} times"
    return f"{noise['times']:,} times, in {_counted(noise['hops'], 'hop')}"


def _when(noise: dict[str, Any], hops: int) -> str:
    if noise["hops"] > 1:
        return ""
    if noise["first"] == 1:
        return ", in the first hop, before the model was passed on"
    if noise["first"] == hops:
        return ", in the last hop, before the model was handed out"
    return f", in hop {noise['first']:,} of {hops:,}"


def _proved(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [claim for claim in document["claims"] if claim["grade"] in PROVED]


def _rehearsed(document: dict[str, Any]) -> bool:
    return badge_of(document) == "rehearsal"


def _as_if_never() -> str:
    return "the model is what it could have been had the records never been there"


def _odds(claim: dict[str, Any]) -> str:
    return (
        "whatever they conclude about whether the records were ever used, the odds change by a "
        f"factor of {factor(claim['epsilon'])} at most, except with a probability of "
        f"{chance(claim['delta'])}"
    )


def _promised(document: dict[str, Any]) -> list[str]:
    sentences = []
    for claim in _proved(document):
        who = document["threat_model"]["observers"]
        if claim["grade"] == "exact":
            sentences.append(
                f"To {who}: {_as_if_never()}. Nothing about them can be learned from it beyond "
                "what the others would have shown anyway."
            )
            continue
        sentences.append(f"To {who}: {_odds(claim)}.")
        sentences.append(
            "For example: somebody who thought it as likely as not, 50 %, can be at most "
            f"{sureness(claim['epsilon'])} sure afterwards, with the same exception."
        )
    if sentences and str(document["threat_model"]["coalition"]).startswith("any"):
        sentences.append(
            "It holds even if all of them collude, as long as the forgetting peer is not among "
            "them."
        )
    if sentences and _rehearsed(document):
        rehearsal = (
            "Nothing yet: this is a rehearsal, in which the noise came from a known seed, so that "
            "anyone could subtract it. Done with secret noise, the same would promise this:"
        )
        return [rehearsal, *sentences]
    return sentences or ["Nothing. No guarantee is given for this run."]


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
    if 0.0 < delta < SMALLEST:
        return f"less than 1 in {1.0 / SMALLEST:g}"
    return "0" if delta <= 0.0 else f"1 in {math.floor(1.0 / delta + 1e-6):,}"


def sureness(epsilon: float) -> str:
    """What even odds can become, in percent, rounded up.

    >>> sureness(1.0), sureness(0.0)
    ('73.2 %', '50 %')
    """
    share = 1.0 / (1.0 + math.exp(-epsilon))
    return f"{math.ceil(share * 1000.0 - 1e-9) / 10.0:g} %"


def _not_promised(document: dict[str, Any]) -> list[str]:
    sentences = [_because(c) for c in document["claims"] if c["grade"] in ("nominal", "refused")]
    if _rehearsed(document):
        sentences.append(
            "This is a rehearsal: it shows what a guarantee would look like and protects nobody."
        )
    if _proved(document):
        threats = document["threat_model"]
        if not threats["training_time_view"]:
            noisy = document["noise"]["origin"] != "none"
            until = "up to the moment when it came to the forgetting peer"
            sentences.append(
                f"What peers saw while the model was trained, {until if noisy else BEFORE}, is not "
                "covered."
            )
        if not threats["adaptive_requests"]:
            sentences.append("Requests that were chosen by looking at the model are not covered.")
        if not str(threats["coalition"]).startswith("any"):
            sentences.append(f"Colluding observers that are covered: {threats['coalition']}.")
        sentences.append("It is no secret who asked, when, and for how many records.")
        if document["noise"]["origin"] != "none":
            sentences += _of_noise(document)
    return sentences + [f"It is not shown {text.rstrip('.')}." for text in document["not_shown"]]


def _of_noise(document: dict[str, Any]) -> list[str]:
    return [
        "Measurements of the model as it was before the noise, such as those of a report, are not "
        "covered: they are not to be handed out.",
        ONCE[str(document["redraws"]["register"])],
    ]


def _because(claim: dict[str, Any]) -> str:
    reason = _sentence(plain_reason(claim["reason"]))
    if claim["grade"] == "nominal":
        return f"The paper's formula gives a number, which is no guarantee: {reason}"
    known = explained(claim["code"])
    return (
        f"A guarantee was refused: {known.plain}. {INSTEAD} {known.instead}. "
        f"For specialists ({claim['code']}): {reason}"
    )


def _sentence(text: str, end: str = ".") -> str:
    return text[:1].upper() + text[1:].rstrip(".") + end
