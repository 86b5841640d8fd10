"""Why a guarantee is refused, by code: what it means for people, and what to do instead.

A refusal's sentence names hop and event, for specialists.  Whoever explains it, hints at a way out
or tests it goes by its code.
"""

from __future__ import annotations

from dataclasses import dataclass

RESTART = "run --method restart, which is exact for any model and optimizer"
PRESET = "run --preset certified, whose training the proof covers, or --method restart"


@dataclass(frozen=True)
class Refusal:
    """``plain``: what stands in the way, without mathematics; ``instead``: what to do."""

    plain: str
    instead: str


REFUSALS: dict[str, Refusal] = {
    "un-noised": Refusal(
        "the model still carried traces of the records when the request came, and nothing hid "
        "them before it was passed on",
        PRESET,
    ),
    "leaves-un-noised": Refusal(
        "the peer used the records again, and nothing hid that before the model was passed on",
        "add noise at the end of every visit that uses the records",
    ),
    "redrawn": Refusal(
        "the random noise was drawn more than once; who may choose among several draws can choose "
        "one that hides nothing",
        RESTART,
    ),
    "scaling": Refusal(
        "the numbers that went into the model may have been prepared with the help of the very "
        "records that are to be forgotten",
        "scale inputs with published constants (data.normalisation says where they come from)",
    ),
    "labels": Refusal(
        "which classes there are was read off the data, the records to be forgotten included",
        "name the classes: data.labels for a file, classes= for arrays",
    ),
    "local-state": Refusal(
        "peers kept notes from training, which may carry traces of the records",
        "use plain SGD (train.optimizer=sgd), or let every peer wipe its state",
    ),
    "travelling-state": Refusal(
        "the model travels with notes of its training besides its parameters, which the proof does "
        "not cover",
        PRESET,
    ),
    "digest": Refusal(
        "a fingerprint of the old model was published, by which a guess at the records can be "
        "checked",
        "leave performance.digests off, or draw noise from a secret, which salts them",
    ),
    "noise-known": Refusal(
        "the log gives away how the noise was made, so anybody can take it off",
        "keep seed and secret of the noise out of settings and logs",
    ),
    "noise-origin": Refusal(
        "noise is not of the origin that was announced",
        "draw all noise from one source (noise.source)",
    ),
    "float-noise": Refusal(
        "the noise is not rounded to a public grid, so that the last bits of the model can give "
        "the records away",
        "use a method whose noise is rounded: seal, release, ball-seal or noisy-start",
    ),
    "centre": Refusal(
        "the model was kept close to the old one, which carries traces of the records",
        "centre the ball on the initial model (unlearn.trust_centre=initial)",
    ),
    "not-announced": Refusal(
        "what was done is not what had been announced beforehand",
        "do the run again as announced, and do not stop it early",
    ),
    "optimizer": Refusal(
        "the optimizer keeps notes or takes steps that the proof cannot follow", PRESET
    ),
    "clipping": Refusal("gradients were clipped, which the proof does not cover", PRESET),
    "ascent": Refusal("steps went uphill or were scaled, which the proof does not cover", PRESET),
    "batching": Refusal("batches depend on who else is there, so the proof cannot compare", PRESET),
    "partial-epoch": Refusal("a visit ended in the middle of a pass over the records", PRESET),
    "expanding": Refusal(
        "steps are so long that a small difference can grow",
        "lower train.learning_rate to 2 / (smoothness + weight decay) or less",
    ),
    "precision": Refusal(
        "numbers are too coarse for the distances that the noise has to hide",
        "train in 64 bits, as --preset certified does",
    ),
    "norm": Refusal(
        "nothing bounds how large the model's numbers are, so nothing bounds their rounding",
        "project on a public ball after every noise, as seal and noisy-start do",
    ),
    "loss": Refusal(
        "the proof covers a linear model with cross-entropy on inputs of bounded length only",
        "use model.name=linear on a task with bounded inputs, or --method restart",
    ),
    "iterate": Refusal(
        "the model is an average of older ones, or one of them", "set train.keep=last"
    ),
    "missing-fact": Refusal(
        "the log lacks a fact that the proof needs", "make the run again with this version"
    ),
    "unbounded-step": Refusal(
        "nothing bounds how far the steps on the records moved the model", PRESET
    ),
    "noisy-without-clip": Refusal(
        "nothing bounds the gradients that the noise has to hide", "clip them (unlearn.clip)"
    ),
    "noisy-with-state": Refusal("the optimizer's notes may carry the records on", PRESET),
    "steps-before-noise": Refusal(
        "training went on between the use of the records and the noise that was to hide it", PRESET
    ),
    "noisy-after-move": Refusal(
        "noisy gradients were taken at a point that the records had moved", PRESET
    ),
    "sensitivity": Refusal("the noise was made for smaller steps than were taken", PRESET),
    "seal-state": Refusal("notes were carried from one step of the seal to the next", PRESET),
    "seal-projection": Refusal("a noise of the seal has no projection right before it", PRESET),
    "touched": Refusal("the records to be forgotten were used again", RESTART),
    "early-noise": Refusal("noise was added before the end", "use --method seal"),
    "no-noise-last": Refusal("the released model was not noised last", PRESET),
    "old-token": Refusal("the walk went back to an older model before the noise", RESTART),
    "no-start": Refusal("the log does not say from where the walk went on", RESTART),
    "start-contradicted": Refusal("the log contradicts itself on where the walk began", RESTART),
    "not-initial": Refusal("the walk did not begin from the initial model", RESTART),
    "not-a-rewind": Refusal(
        "the walk did not go back to before the records were used, or not far enough", RESTART
    ),
    "other-work": Refusal("the repeated walk did other work than training had done", RESTART),
    "shards": Refusal("the models are not of disjoint peers", "train anew with train.shards"),
    "not-sums": Refusal("the model is more than a function of sums", RESTART),
    "outside-state": Refusal(
        "the model's code keeps something besides parameters and buffers from visit to visit",
        "register it as a buffer",
    ),
    "unknown-event": Refusal("something happened for which no bound is known", RESTART),
    "bad-event": Refusal("the log holds a number that cannot be", "make the run again"),
    "formula": Refusal("the announced number is not what its formula gives", "make the run again"),
    "no-visit": Refusal("the forgetting peer was not visited", RESTART),
    "visits-differ": Refusal("visits to the forgetting peer cost unequal amounts", PRESET),
    "relays": Refusal("peers on the way saw the model too", "use a complete graph"),
    "noisy-step": Refusal("a hop has no noise of its own", "add noise at every hop"),
    "no-observer": Refusal("nobody but the forgetting peer ever held the model", RESTART),
}
"""Every code of a refusal by an accountant or a condition."""
