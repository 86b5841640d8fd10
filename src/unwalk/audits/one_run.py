r"""Auditing in one run: many canaries, each included by a coin of its own, and guesses about them.

Every record to be forgotten is a canary.  A fair coin says whether it is there at all; those that
are there are trained on and forgotten.  From the released model alone the attacker guesses for some
canaries whether they had been there, and abstains on the others.  One run gives a bound for *adding
one canary*, with all others as they are.  A claim of unlearning compares either world with the same
certifier, so that two worlds that differ in one canary are :math:`(2\varepsilon, (1 +
e^\varepsilon)\delta)`-close: the bound on a claim is about half of that for a canary.

A second run, with other coins, says whether a low loss means "in", and how many guesses to make.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from unwalk.audits import bounds
from unwalk.audits.canaries import planted
from unwalk.audits.views import Floats
from unwalk.core.errors import InvalidInput
from unwalk.core.program import Records
from unwalk.core.seeds import PublicSeeds
from unwalk.core.token import Token, Workspace, build_model
from unwalk.runs.assemble import Assembled, assemble
from unwalk.runs.run import Runner
from unwalk.settings.config import Config
from unwalk.tasks.task import ShardedTask

SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the canaries about which guesses may be made."""


@dataclass(frozen=True)
class OneRun:
    """What one run showed: ``epsilon`` for adding a canary, ``claim`` for a claim of unlearning.

    ``cap`` is the largest ``epsilon`` that so many canaries can show.  ``gaussian`` is for adding a
    canary as well, and rests on an assumed shape.
    """

    method: str
    canaries: int
    guesses: int
    correct: int
    epsilon: float
    cap: float
    claim: float
    gaussian: float
    delta: float
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """A form for JSON."""
        return asdict(self)


def one_run(
    config: Config,
    canary: str = "mislabelled",
    confidence: float = 0.95,
    task: ShardedTask | None = None,
) -> OneRun:
    """Audit the configuration's method in one run, with a second one to choose the guesses."""
    base = planted(assemble(config, task), canary)
    count = int(base.task.records(config.forget.peer).forgotten.size)
    if count < 2:
        raise InvalidInput(
            f"forget.size is {count}, and every record to be forgotten is a canary; allowed: 2 or "
            "more, better hundreds."
        )
    delta = config.unlearn.delta
    best = (-1.0, 1, count)
    scores, coins = _played(base, "choose")
    for sign in (1, -1):
        for share in SHARES:
            guesses = max(2, int(share * count))
            right = _correct(sign * scores, coins, guesses)
            best = max(best, (bounds.one_run(count, guesses, right, 0.0), sign, guesses))
    _, sign, guesses = best
    scores, coins = _played(base, "count")
    right = _correct(sign * scores, coins, guesses)
    epsilon = bounds.one_run(count, guesses, right, delta, confidence)
    shaped = bounds.one_run_gaussian(count, guesses, right, delta, confidence)
    return OneRun(
        method=config.method,
        canaries=count,
        guesses=guesses,
        correct=right,
        epsilon=epsilon,
        cap=bounds.one_run(count, count, count, delta, confidence),
        claim=bounds.one_run_claim(count, guesses, right, delta, confidence),
        gaussian=shaped,
        delta=delta,
        confidence=confidence,
    )


def _played(base: Assembled, name: str) -> tuple[Floats, Floats]:
    """One run: each canary's loss under the released model, and 1 where it had been there."""
    config = base.config
    u, seeds = config.forget.peer, PublicSeeds(PublicSeeds(config.seed).integer("one run", name))
    shard = base.task.shard(u)
    canaries = shard.records.forgotten
    coins = seeds.numpy("coins").integers(2, size=canaries.size)
    records = Records(
        len(shard.y),
        forgotten=canaries[coins == 1],
        absent=np.sort(np.concatenate([shard.records.absent, canaries[coins == 0]])),
    )
    task = replace(base.task)
    task._shards[u] = replace(shard, records=records)
    runner = Runner(replace(base, config=replace(config, seed=seeds.root), task=task))
    trained = runner.walk("train", runner.assembled.training(), None)
    method = config.method
    plan = runner.assembled.unlearning(method, trained.outcome.transcript)
    token = runner.walk(method, plan, trained).outcome.token
    return _losses(base, token, canaries, plan.seeds), coins.astype(np.float64)


@torch.no_grad()
def _losses(base: Assembled, token: Token, rows: np.ndarray, seeds: PublicSeeds) -> Floats:
    work = Workspace(build_model(base.task.model, seeds.integer("model")))
    work.load(token)
    shard = base.task.shard(base.config.forget.peer)
    x, y = shard.take(torch.from_numpy(rows), None)
    logs = work.model.eval()(x).double().log_softmax(1)
    losses: Floats = -logs.gather(1, y.unsqueeze(1)).squeeze(1).numpy()
    return losses


def _correct(scores: Floats, coins: Floats, guesses: int) -> int:
    """How many guesses are right: "in" for the lowest scores, "out" for as many of the highest.

    >>> _correct(np.array([0.1, 0.2, 5.0, 9.0]), np.array([1, 1, 1, 0]), 2)
    2
    """
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int((coins[low] == 1).sum() + (coins[high] == 0).sum())
