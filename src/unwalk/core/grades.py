"""The grades of claims, how each is shown to people, and the codes of refusals.

A claim's grade is for programs: it says what the accountants proved from the events.  Whether that
protects anybody also depends on where the noise came from, so every page, table and command shows
:func:`shown_grade`, never the grade itself.

A refusal's sentence names hop and event, for specialists.  Explanations, advice and tests go by its
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unwalk.core.errors import Refused

PROVED = ("exact", "certified")


@dataclass(frozen=True)
class Shown:
    """The content of a badge: a ``sign``, a ``name``, and the ``meaning`` beside it."""

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
        "Not a guarantee: the proof holds, but whoever knows where the noise came from can "
        "subtract it.",
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
    """The grade that people are shown for a claim whose noise has this origin.

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
    """The grade that people are shown for a whole certificate: its guarantee, or none.

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


def plain_reason(reason: str) -> str:
    """A claim's reason without the symbol that proofs have for the records.

    >>> plain_reason("the starting model was trained on D_f")
    'the starting model was trained on the forgotten records'
    """
    return reason.replace("D_f", "the forgotten records")


RESTART = "run --method restart, which is exact for any model and optimizer"
PRESET = (
    "unwalk run --preset certified --task digits-flat (or heart, a9a, mnist-gabor), whose training "
    "the proof covers, or --method restart, which is exact for any model and optimizer"
)
AGAIN = "repeat the run with this version of unwalk, and do not change its log"


@dataclass(frozen=True)
class Refusal:
    """``plain``: what prevents the claim, without mathematics; ``instead``: what to do.

    Both are parts of sentences: they begin in lower case and end without a full stop.
    """

    plain: str
    instead: str


UNKNOWN = Refusal("a condition of the proof does not hold", RESTART)
"""For a code that this version does not know."""

REFUSALS: dict[str, Refusal] = {
    # What the model carried, and what hid it.
    "no-noise": Refusal(
        "the model still carried traces of the records when the request came, and nothing hid "
        "them before it was passed on",
        PRESET,
    ),
    "leaves-without-noise": Refusal(
        "the peer used the records again, and nothing hid that before the model was passed on",
        "use --method seal (with seal.visits for visits that use the records again) or "
        "--method noisy-start, which add noise in every such visit",
    ),
    "float-noise": Refusal(
        "the noise was not rounded to a public grid, so that the last digits of the model can "
        "reveal the records",
        "use a method whose noise is rounded: seal, release, ball-seal or noisy-start",
    ),
    "redrawn": Refusal(
        "the random noise was drawn more than once for these records; who may choose among several "
        "draws can choose one that hides nothing",
        "run --method restart, which needs no noise and is exact at any time",
    ),
    "noise-known": Refusal(
        "the log reveals how the noise was made, so anybody can subtract it",
        "keep seed, secret and salt of the noise out of the log; noise.secret_file names a file, "
        "and what is in it stays there",
    ),
    "noise-origin": Refusal(
        "noise came from elsewhere than was announced",
        "draw all noise of a run from one source: noise.source=secret with noise.secret_file",
    ),
    "no-noise-last": Refusal(
        "the model that was handed out did not get its noise last",
        "use --method release as it is, whose last act is the noise, or --method seal",
    ),
    "early-noise": Refusal(
        "noise was added before the end, and this proof is for noise at the very end",
        "use --method release as it is, or --method seal for noise before the model is passed on",
    ),
    "noisy-without-clip": Refusal(
        "nothing bounds the gradients of the records that the noise was to hide",
        "bound them with unlearn.clip",
    ),
    "noisy-with-state": Refusal(
        "besides the noisy model, the optimizer keeps state from visit to visit that depends on "
        "the records",
        "use unlearn.optimizer=sgd for the visits that use the records",
    ),
    "noisy-after-move": Refusal(
        "the peer used the records with noise on top of a use that nothing had hidden",
        "let noise follow each use of the records before the next one: --method seal does",
    ),
    "noisy-step": Refusal(
        "a visit did not take exactly one noisy step, which this proof needs of every visit",
        "take one noisy step in every visit, or ask for another bound: --method seal",
    ),
    "steps-before-noise": Refusal(
        "training went on between the use of the records and the noise that was to hide it, which "
        "can make the traces larger",
        "let the noise follow the use of the records at once, as --method seal does",
    ),
    "sensitivity": Refusal(
        "the noise was made for smaller steps than the records can have caused",
        "leave the scale of the noise to the program: no seal.std, no unlearn.sigma",
    ),
    "unbounded-step": Refusal(
        "nothing bounds how far the steps on the records moved the model",
        "use --method seal with seal.visits, whose visits are bounded and noisy, or "
        "--method restart",
    ),
    "seal-projection": Refusal(
        "noise was added without first pulling the model close to a public one, so that it hides "
        "nothing",
        "use --method ball-seal as it is, or --method restart, which carries no less and is exact",
    ),
    "seal-state": Refusal(
        "optimizer state was carried from one step of the seal to the next",
        "use unlearn.optimizer=sgd, or --method restart",
    ),
    "out-of-reach": Refusal(
        "no amount of noise reaches this target by this bound",
        "ask for a larger epsilon or delta, or run --method restart, which is exact",
    ),
    "lemma": Refusal(
        "a condition of this bound does not hold for these numbers",
        "take more noise, or the bound without the condition that the message names",
    ),
    # What else may carry the records on.
    "scaling": Refusal(
        "the inputs of the model may have been scaled with statistics of the very records that are "
        "to be forgotten",
        "scale inputs with published constants, or with statistics without the records: data.scale "
        "for the columns of a file; for arrays of your own declare it with data.normalisation",
    ),
    "features": Refusal(
        "inputs are features that a network of the user's own makes, and nothing says that it was "
        "not trained on the records to be forgotten",
        "say what it was trained on: data.trained=apart, or data.trained=published; or take "
        "features that need no training: --features gabor, patches or plain",
    ),
    "labels": Refusal(
        "the list of classes was read from the data, including the records to be forgotten",
        "name the classes: data.labels for a file, classes= for arrays",
    ),
    "local-state": Refusal(
        "peers kept local state from training, which may carry traces of the records",
        "use train.optimizer=sgd, which keeps none, or --method restart",
    ),
    "travelling-state": Refusal(
        "besides its parameters the model travels with buffers or optimizer state, which carry "
        "traces of the records too and which the proof does not cover",
        PRESET,
    ),
    "outside-state": Refusal(
        "the user's own code (model, loss or augmentation) keeps something from visit to visit "
        "besides parameters and buffers, and the proof cannot know what it holds",
        "register it as a buffer of the model, or take it out",
    ),
    "own-method": Refusal(
        "the method is the user's own code, and what it depends on besides the recorded steps "
        "cannot be seen",
        "measure it beside the methods that unwalk methods lists, or " + RESTART,
    ),
    "digest": Refusal(
        "a fingerprint of the old model was published, by which a guess at the records can be "
        "checked",
        "leave performance.digests off, or draw noise from a secret (noise.source=secret), with "
        "which fingerprints are salted",
    ),
    "centre": Refusal(
        "the model was kept close to one that carries traces of the records",
        "use a ball around the initial model: unlearn.trust_centre=initial",
    ),
    "touched": Refusal(
        "the records to be forgotten were used again where they must not be", RESTART
    ),
    "iterate": Refusal(
        "the model is an average of older ones or one chosen among them, and the proof follows the "
        "last one only",
        "set train.keep=last",
    ),
    # What the proofs can follow.
    "optimizer": Refusal(
        "the optimizer keeps state or takes steps that the proof cannot follow", PRESET
    ),
    "clipping": Refusal(
        "gradients were clipped, which bends them in a way that the proof cannot follow",
        "train without train.clip, on inputs of bounded length instead; --preset certified does",
    ),
    "ascent": Refusal("steps went uphill or were scaled, which the proof does not cover", PRESET),
    "batching": Refusal(
        "which records are used together depends on who else is there, so that training with and "
        "without the records cannot be compared step by step",
        "set train.work=slots, as --preset certified does, or run --method restart",
    ),
    "partial-epoch": Refusal(
        "a visit ended in the middle of a pass over its records",
        "let every visit make whole passes: train.work=slots with train.epochs",
    ),
    "expanding": Refusal(
        "steps are so long that a small difference can grow",
        "lower train.learning_rate (and unlearn.learning_rate) below the bound that the message "
        "names",
    ),
    "precision": Refusal(
        "numbers are too coarse for the distances that the noise has to hide",
        "train in 64 bits, as --preset certified does, or run --method restart",
    ),
    "norm": Refusal(
        "nothing bounds how large the model's numbers are, so that nothing bounds their rounding",
        "use seal, release or noisy-start as they are, which keep the model within a public ball "
        "where that is needed, or run --method restart",
    ),
    "loss": Refusal(
        "the proof covers a bare linear model with cross-entropy only, without hooks or layers of "
        "your own",
        "set model.name=linear; --preset certified does, or run --method restart, which is exact "
        "for any model",
    ),
    "inputs": Refusal(
        "nothing bounds the length of the inputs, so that nothing bounds what a single record can "
        "do",
        "choose a task with inputs of length 1 at most (digits-flat, heart, a9a, mnist-gabor), set "
        "data.norm for records of your own, or take --features, or run --method restart",
    ),
    "relays": Refusal(
        "relays saw the model as well, besides the peers that were visited",
        "use graph.kind=complete, which needs no relays",
    ),
    "no-observer": Refusal(
        "nobody but the forgetting peer ever held the model, so there is nobody to promise "
        "anything to",
        "walk to other peers as well: more peers or more hops",
    ),
    "no-visit": Refusal(
        "the forgetting peer was not visited, so nothing shows what a visit costs",
        "walk longer (unlearn.hops), or ask for a method that visits it first: --method seal",
    ),
    "visits-differ": Refusal(
        "visits to the forgetting peer cost unequal amounts, and this proof is for equal ones",
        "let all visits take the same steps with the same noise (a constant train.schedule)",
    ),
    "old-token": Refusal(
        "the walk went back to an older model before the noise, which this proof cannot follow",
        "seal the model that training gave, or go back for good with --method rewind",
    ),
    "no-accountant": Refusal(
        "no proof covers noise that was added in training this way",
        "use --method noisy-start with --preset certified, or run --method restart",
    ),
    "unknown-event": Refusal("something happened for which this proof has no bound", RESTART),
    # What exact methods need.
    "not-initial": Refusal("the walk did not begin from the public initial model", RESTART),
    "not-a-rewind": Refusal(
        "the walk did not go back to before the records were used, or not for as long as training "
        "had gone on since",
        "run --method rewind as it is, or --method restart",
    ),
    "other-work": Refusal(
        "the repeated walk did other work than training had done in its place",
        "leave the settings of training as they were, or run --method restart",
    ),
    "shards": Refusal(
        "the models are not of separate groups of peers, each from the initial one",
        "train anew with train.shards, or run --method restart",
    ),
    "not-sums": Refusal(
        "the model is more than a function of the peers' sums",
        "train with --method sums and one sums.strength throughout, or run --method restart",
    ),
    # What the log must say.
    "not-announced": Refusal(
        "what was done is not what had been announced beforehand",
        "do the run again as announced, and do not stop it early",
    ),
    "missing-fact": Refusal("the log lacks a fact that the proof needs", AGAIN),
    "no-start": Refusal("the log does not say from where the walk went on", AGAIN),
    "start-contradicted": Refusal(
        "the log contradicts itself on whether the model carried traces of the records", AGAIN
    ),
    "bad-event": Refusal("the log holds an impossible number", AGAIN),
    "formula": Refusal(
        "the number that was announced is not what its formula gives for what happened",
        "leave noise and hops as the formula set them (no unlearn.sigma, no early end)",
    ),
    # Between peers.
    "grade": Refusal(
        "the method that was asked for does not reach the grade that was asked for",
        "ask for grade exact with rewind or restart, for grade certified with seal",
    ),
    "peer-visits": Refusal(
        "this network's settings ask for visits after a seal, which peers do not make",
        "make the network with seal.visits=0, or ask for grade exact",
    ),
    "token-gone": Refusal(
        "no peer has the model any more from which this method would go on",
        "ask for grade exact with method restart, or with none",
    ),
}
"""Every code of a refusal by an accountant or a condition."""


def advised(error: Refused) -> str:
    """A refusal's own sentence, and behind it what to do instead where its code says so.

    >>> advised(Refused("rewind needs the last model.", "iterate"))
    'rewind needs the last model. What to do instead: set train.keep=last.'
    """
    if not error.code:
        return str(error)
    return f"{error} What to do instead: {error.instead or explained(error.code).instead}."


def explained(code: str | None) -> Refusal:
    """What a code means and what to do instead.

    >>> explained("iterate").instead
    'set train.keep=last'
    """
    return REFUSALS.get(code or "", UNKNOWN)
