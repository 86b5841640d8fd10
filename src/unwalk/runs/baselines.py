"""Noise of the private baselines (ddp, dpsgd): how it is calibrated, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unwalk.core.program import Records
from unwalk.methods.dpsgd import sampling
from unwalk.methods.local_work import LocalWork
from unwalk.privacy.nominal import nominal_ddp_sigma
from unwalk.privacy.subsampled import sampled_multiplier
from unwalk.runs.config import Config

READINGS = ("continued", "from-start")
SIGMA_RULES = {"alg2": "algorithm", "table2": "table", "lemma": "lemma"}
_FORMULAS = {
    "alg2": "Algorithm 2 (sigma^2 = 8 L^2 ln(1.25/delta)/epsilon^2), made for a single step",
    "table2": "Table 2 (sigma = (m L/epsilon) sqrt(T ln(1/delta) ln N/N)), unit constant, factor m",
    "lemma": "the view lemma (D_alpha <= C alpha L^2 (T/N) ln N/(sigma^2 N)), its constant C "
    "not known",
}
SIMULATED = "the noise came from a known seed (simulation)"


@dataclass(frozen=True)
class Calibrated:
    """A noise scale; where a formula gave it, its words.

    ``reading`` says when noise was added: after the request (``continued``) or from hop 1.
    ``numbers`` are what the formula was given, so that anybody can compute it anew.
    """

    scale: float
    accountant: str = "none"
    formula: str = ""
    reading: str = "continued"
    numbers: Mapping[str, Any] = field(default_factory=dict, compare=False)


def noisy_hops(config: Config, reading: str) -> int:
    """Hops with noise: the training walk's (from-start) or the unlearning walk's (continued)."""
    return config.train.hops if reading == "from-start" else config.unlearn.hops


def data_of(reading: str) -> str:
    """Which records a reading walks over."""
    return "all" if reading == "from-start" else "retained"


def local_work(config: Config, reading: str, given: str | None) -> LocalWork:
    """A visit's work: as ``given``, else the walk's own."""
    train = config.train
    kind = given or (None if reading == "from-start" else config.unlearn.work) or train.work
    return LocalWork(kind, train.batch, train.epochs, train.minibatches)


def ddp_noise(config: Config, peers: int, forgotten: int) -> Calibrated:
    """DDP's noise std on every gradient, by ``ddp.sigma_rule`` or as given."""
    ddp, target = config.ddp, config.unlearn
    if ddp.sigma is not None:
        return Calibrated(ddp.sigma, reading=ddp.reading)
    scale = nominal_ddp_sigma(
        SIGMA_RULES[ddp.sigma_rule],
        target.epsilon,
        target.delta,
        ddp.clip,
        hops=noisy_hops(config, ddp.reading),
        peers=peers,
        forgotten=max(forgotten, 1),
        constant=ddp.constant,
    )
    formula = f"the noise scale is {_FORMULAS[ddp.sigma_rule]}"
    numbers = {
        "rule": SIGMA_RULES[ddp.sigma_rule],
        "clip": ddp.clip,
        "hops": noisy_hops(config, ddp.reading),
        "constant": ddp.constant,
    }
    return Calibrated(scale, "paper", formula, ddp.reading, numbers)


def dpsgd_noise(config: Config, peers: int, records: Records) -> Calibrated:
    """DP-SGD's noise multiplier for one of ``records`` of a peer, or as given.

    The peer is taken to be visited ceil(T/N) times, and every batch to hold each of its records
    with probability q = B/n.
    """
    dpsgd, target = config.dpsgd, config.unlearn
    if dpsgd.noise_multiplier is not None:
        return Calibrated(dpsgd.noise_multiplier, reading=dpsgd.reading)
    rows = records.rows(data_of(dpsgd.reading)).size or records.size
    rate, per_visit = sampling(local_work(config, dpsgd.reading, dpsgd.work), int(rows))
    steps = per_visit * math.ceil(noisy_hops(config, dpsgd.reading) / peers)
    scale = sampled_multiplier(target.epsilon, target.delta, rate, steps)
    formula = (
        "the noise multiplier is that of the sampled Gaussian mechanism by RDP, for one record "
        f"(not {records.forgotten.size} at once), {steps} steps and Poisson sampling at rate "
        f"{rate:.4g}, which shuffled batches are not"
    )
    return Calibrated(scale, "rdp", formula, dpsgd.reading, {"rate": rate, "steps": steps})


def nominal_reason(found: Calibrated) -> str:
    """Why the claim of a private baseline is nominal."""
    when = "noise was added after the request only"
    if found.reading == "from-start":
        when = (
            "noise was added at training time, from hop 1 on all records, and forgetting did "
            "nothing (U = A(D))"
        )
    return f"{found.formula}; {when}; no proof covers this run, and {SIMULATED}."
