"""The sections of settings that every run has; a method's own section is in its file.

Each field holds its default, its meaning and the values that are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

from unwalk.core.events import WORK
from unwalk.core.plan import ENGINES, KEEPS
from unwalk.core.program import OPTIMIZER_STATES, OPTIMIZERS, SCHEDULES
from unwalk.settings.fields import setting
from unwalk.walks import GRAPHS

DIRECTIONS = ("retain", "forget", "corrected")
ALIASES = {"exact": "retain", "lightweight": "forget"}
"""The paper's names of directions."""
VISITS = {"pass": "epochs", "minibatch": "averaged", "full": "full"}
"""What rrdu does at the forgetting peer, and the kind of work that it is."""
NOISE_ON = ("weights", "gradient")


@dataclass(frozen=True)
class GraphSettings:
    """Who may hand the token to whom."""

    kind: str = setting(
        "complete",
        "complete, ring, torus, star, random-regular, erdos-renyi or edge-list",
        choices=GRAPHS,
    )
    degree: int = setting(4, "degree of the random regular graph")
    probability: float = setting(0.3, "edge probability of the Erdos-Renyi graph")
    path: str = setting("", "file for kind = edge-list: two peer numbers per line")


@dataclass(frozen=True)
class ModelSettings:
    """What is trained."""

    name: str | None = setting(None, "a named model, or package.module:factory; empty: the task's")
    precision: str = setting(
        "float32",
        "inputs and parameters: float32, or float64 to certify",
        choices=("float32", "float64"),
    )


@dataclass(frozen=True)
class DataSettings:
    """How records reach peers.  Empty values are the task's own."""

    partition: str | None = setting(None, "iid, dirichlet, label, quantity or natural")
    alpha: float | None = setting(
        None, "dirichlet, quantity: the smaller, the more skewed", above=0.0
    )
    classes_per_peer: int | None = setting(
        None, "label: number of classes that a peer holds", low=1
    )
    min_records: int | None = setting(None, "records that every peer gets at least", low=1)
    records: int | None = setting(None, "blobs: records per peer", low=1)
    features: int | None = setting(None, "blobs: number of features", low=1)
    classes: int | None = setting(None, "blobs: number of classes", low=2)
    spread: float | None = setting(None, "blobs: standard deviation within a class", low=0.0)
    cosines: int | None = setting(
        None, "mnist-gabor: random waves; 0: Gabor features themselves", low=0
    )
    holdout: float | None = setting(
        None, "heart, file: share of records that is the test set", above=0.0, below=1.0
    )
    path: str | None = setting(None, "file: a .csv, .tsv, .parquet or .npz file, or a folder")
    test_path: str | None = setting(None, "file: the test set; empty: data.holdout of the records")
    label_column: str | None = setting(None, "file: column of the label; empty: label")
    id_column: str | None = setting(None, "file: column of the record id; empty: id, if there")
    group_column: str | None = setting(None, "file: column of the peer; empty: group, if there")
    columns: str | None = setting(None, "file, records: features, as in age|sex; empty: the others")
    shape: str | None = setting(None, "records: shape of an input, as in 1x28x28")
    norm: float | None = setting(
        None, "records: longer inputs are shortened to this length", above=0.0
    )
    labels: str | None = setting(None, "file: the classes, as in low|high; empty: as they occur")
    categories: str | None = setting(None, "file: values of text columns, as in sex=f|m; ward=a|b")
    normalisation: str | None = setting(
        None,
        "own arrays: published or without-forgotten, if scaling is free of the forgotten",
        choices=("published", "without-forgotten"),
    )
    scale: str | None = setting(None, "file: centre:reach of columns, as in age=50:30; size=0:9")


@dataclass(frozen=True)
class TrainSettings:
    """Training by token walk."""

    hops: int = setting(100, "hops of the training walk (the paper's T)", low=1)
    optimizer: str = setting("momentum", "sgd, momentum or adam", choices=OPTIMIZERS)
    learning_rate: float = setting(0.05, "step size", above=0.0)
    momentum: float = setting(0.9, "factor of the momentum optimizer", low=0.0, below=1.0)
    weight_decay: float = setting(0.0, "L2 regularisation added to every gradient", low=0.0)
    state: str = setting(
        "carried", "where optimizer state lives: carried, local or fresh", choices=OPTIMIZER_STATES
    )
    work: str = setting(
        "epochs", "a visit: epochs, averaged (s batches, one step), full, iid, slots", choices=WORK
    )
    epochs: int = setting(1, "local epochs per visit (work = epochs)", low=1)
    minibatches: int = setting(
        4, "minibatches per visit (averaged: the paper's s; iid: steps)", low=1
    )
    batch: int = setting(64, "minibatch size", low=1)
    slots: int = setting(1, "steps of a pass (work = slots)", low=1)
    shards: int = setting(1, "groups of peers, each with a walk and model of its own (sisa)", low=1)
    slices: int = setting(
        1, "number of slices in which records enter, one after the other (sisa)", low=1
    )
    capacity: int | None = setting(
        None, "most records of a peer (work = slots); empty: the task's published size", low=1
    )
    clip: float | None = setting(None, "bound on the norm of every step's gradient", above=0.0)
    schedule: str = setting("constant", "step sizes: constant, sqrt or inverse", choices=SCHEDULES)
    smoothness: float = setting(1.0, "schedules: the loss is this smooth", above=0.0)
    diameter: float = setting(1.0, "schedule sqrt: diameter R of the feasible set", above=0.0)
    gradient_bound: float = setting(1.0, "schedule sqrt: bound G on gradients", above=0.0)
    convexity: float = setting(1.0, "schedule inverse: strong convexity", above=0.0)
    feasible_radius: float | None = setting(
        None, "radius of the feasible ball around the origin", above=0.0
    )
    keep: str = setting(
        "last", "which iterate is the result: last, average or random", choices=KEEPS
    )


@dataclass(frozen=True)
class UnlearnSettings:
    """The walk that forgets.  Empty values are taken from training."""

    hops: int = setting(100, "hops of the unlearning walk (the paper's T_u)", low=1)
    p: float | None = setting(
        None, "probability of routing to the forgetting peer; empty: 1/peers", low=0.0, high=1.0
    )
    max_visits: int | None = setting(None, "cap on visits to the forgetting peer", low=0)
    direction: str = setting(
        "retain",
        "rrdu at u: retain (EXACT), forget (LIGHTWEIGHT), corrected",
        choices=DIRECTIONS,
        aliases=ALIASES,
    )
    visit: str = setting(
        "pass", "rrdu at u: pass (an epoch), minibatch or full (one step)", choices=VISITS
    )
    visit_optimizer: str = setting(
        "same", "rrdu at u: the token's optimizer (same) or plain (sgd)", choices=("same", "plain")
    )
    epsilon: float = setting(1.0, "target epsilon of the noise calibration", above=0.0)
    delta: float = setting(1e-5, "target delta of the noise calibration", above=0.0, below=1.0)
    calibration: str = setting(
        "paper", "noise: paper (Corollary 5.2, unit constant) or none", choices=("paper", "none")
    )
    sigma: float | None = setting(None, "noise scale; overrides the calibration", low=0.0)
    noise_on: str = setting(
        "weights", "noise once on the weights, or on every gradient", choices=NOISE_ON
    )
    clip: float | None = setting(None, "bound L on the correction's gradient", above=0.0)
    trust_radius: float | None = setting(
        None, "radius of the trust ball; empty: no projection", above=0.0
    )
    trust_centre: str = setting(
        "start", "centre of the trust ball: start or initial", choices=("start", "initial")
    )
    optimizer: str | None = setting(None, "as train.optimizer", choices=OPTIMIZERS)
    learning_rate: float | None = setting(None, "as train.learning_rate", above=0.0)
    momentum: float | None = setting(None, "as train.momentum", low=0.0, below=1.0)
    weight_decay: float | None = setting(None, "as train.weight_decay", low=0.0)
    work: str | None = setting(None, "as train.work", choices=WORK)
    reset_optimizer: bool = setting(False, "start unlearning with empty optimizer state")
    keep: str = setting(
        "last", "which iterate is the result: last, average or random", choices=KEEPS
    )


@dataclass(frozen=True)
class ForgetSettings:
    """What has to be forgotten.  Empty values are the task's own."""

    kind: str | None = setting(None, "backdoor, records, class, peer or nothing")
    size: int | None = setting(None, "number of records (backdoor, records)")
    label: int | None = setting(None, "which class (kind = class)")
    peer: int = setting(0, "the peer that has to forget", low=0)
    cap: int | None = setting(
        None, "account for this many records, to hide how many they are", low=1
    )


@dataclass(frozen=True)
class TriggerSettings:
    """The BadNets trigger.  Empty values are the task's own."""

    shape: str | None = setting(None, "square, cross or checkerboard")
    place: str | None = setting(None, "a corner (lower-right, ...) or centre")
    size: int | None = setting(None, "side length in pixels")
    value: float | None = setting(None, "brightness, 0 to 1")
    target: int | None = setting(None, "the class that triggered images are labelled")
    mode: str | None = setting(None, "replace records of the peer, or add stamped copies")


@dataclass(frozen=True)
class NoiseSettings:
    """Where privacy noise comes from."""

    source: str = setting(
        "simulated",
        "simulated (a known seed, protects nobody) or secret",
        choices=("simulated", "secret"),
    )
    secret_file: str = setting("", "source = secret: a file of 32 bytes or more, of mode 0600")
    attempt: int = setting(
        1, "how often noise was drawn for this request; above 1 is a redraw", low=1
    )


@dataclass(frozen=True)
class CertificateSettings:
    """The certificate of a run."""

    key: str = setting("", "file of an Ed25519 key that signs it; empty: unwalk sign, later")


@dataclass(frozen=True)
class EvaluateSettings:
    """What is measured along the way."""

    every: int = setting(5, "number of hops between two measurements", low=1)


@dataclass(frozen=True)
class PerformanceSettings:
    """Settings that may change speed and rounding, never the mechanism."""

    threads: int = setting(1, "torch threads; results are bit-equal for equal numbers only", low=1)
    digests: bool = setting(False, "digest of the token at every hop, not only at the end")
    precision: str = setting("float32", "cuda: float32 or bfloat16 for forward and backward")
    compiled: bool = setting(False, "cuda: fused kernels where they know the layers")
    engine: str = setting(
        "inprocess", "several walks: inprocess, fleet (as one batch) or auto", choices=ENGINES
    )
    checkpoint: float = setting(
        2.0, "seconds between checkpoints for --resume; 0: after every hop", low=0.0
    )
