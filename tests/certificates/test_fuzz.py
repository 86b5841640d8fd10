"""Claims on random programs are true, and without any one check of the accountants some are not."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.certificates.fuzz import Maker, carried_out, datasets
from tests.certificates.fuzz_checks import Check, checks, removed, watched
from tests.certificates.fuzz_truth import Verdict, gaussian_delta, judged, told_apart, verdict_on

QUICK = range(250)
SOAK = range(100_000)
PROVED = ("exact", "certified")

HONEST = "about logs that are not ours: the executor never writes such an event"
LOG = "about the honesty of the log, not about what was computed"
UNASKED = "belongs to an accountant that no run's claim asks"
"""Why a check cannot be seen by programs that the executor runs and logs truthfully."""
UNSEEN: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def said(verdict: Verdict) -> str:
    return (
        f"seed {verdict.case.seed}, {verdict.case.method}: {verdict.false}; claimed "
        f"{verdict.claim.get('grade')} ({verdict.claim.get('reason')})"
    )


def swept(seeds: Iterable[int]) -> tuple[list[Verdict], Counter[str], dict[str, list[int]]]:
    """What is false, how many programs got which grade, and which check refused which program."""
    false, grades, refused = list[Verdict](), Counter[str](), defaultdict[str, list[int]](list)
    for seed in seeds:
        with watched() as seen:
            verdict = judged(seed)
        grades[verdict.grade] += 1
        for name in seen:
            refused[name].append(seed)
        if verdict.false is not None:
            false.append(verdict)
    return false, grades, refused


def seen_without(check: Check, seeds: list[int]) -> Verdict | None:
    """A program on which the accountants say something false, or fail, without the check."""
    with removed(check):
        for seed in seeds:
            verdict = judged(seed)
            if verdict.false is not None and not verdict.false.startswith("twin"):
                return verdict
    return None


def test_no_claim_is_false_and_a_check_less_shows():
    false, grades, refused = swept(QUICK)
    assert not false, "\n".join(map(said, false))
    accepted = sum(grades[grade] for grade in PROVED)
    assert accepted >= len(QUICK) / 5
    assert grades["certified"] >= len(QUICK) / 10 <= grades["exact"]
    found = [
        name
        for name, seeds in sorted(refused.items())
        if name not in UNSEEN and seen_without(checks()[name], seeds[:3]) is not None
    ]
    assert len(found) >= 8, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_claim_on_a_hundred_thousand_programs_is_false_and_every_check_is_needed():
    false, grades, refused = swept(SOAK)
    assert not false, "\n".join(map(said, false))
    assert sum(grades[grade] for grade in PROVED) >= len(SOAK) / 5
    missed = [
        f"{name} ({len(refused[name])} programs)"
        for name, check in checks().items()
        if name not in UNSEEN and seen_without(check, refused[name][:2000]) is None
    ]
    assert not missed, "\n".join(missed)


def test_the_table_of_checks_that_cannot_be_seen_is_of_checks_that_exist():
    assert not set(UNSEEN) - set(checks())


# The truth is one


def test_the_gaussian_delta_of_the_truth():
    assert gaussian_delta(1.0, 1.0 / 3.73063) == pytest.approx(1e-5, rel=1e-4)
    assert gaussian_delta(0.0, 2.0) == pytest.approx(math.erf(math.sqrt(0.5)), rel=1e-12)
    assert (gaussian_delta(1.0, 0.0), gaussian_delta(1.0, math.inf)) == (0.0, 1.0)


@pytest.mark.parametrize(("gap", "seen"), [(0.0, False), (1.0, False), (12.0, True)])
def test_samples_are_told_apart_only_where_they_lie_apart(gap, seen):
    rng = np.random.default_rng(7)
    world = np.arange(600) % 2 == 0
    view = rng.normal(size=(600, 3)) + gap * world[:, None] * np.array([1.0, 0.0, 0.0])
    assert (told_apart(view, world, 1.0, 1e-5) is not None) is seen


def test_noise_that_is_too_small_for_what_it_hides_is_seen():
    """A valid seal, judged as if its claim were for half of the distance."""
    from tests.certificates.fuzz_truth import Truth

    seeds = (seed for seed in range(1000) if Maker(seed).valid().method == "seal")
    seen = 0
    for seed in list(seeds)[:10]:
        case = Maker(seed).valid()
        verdict = verdict_on(case)
        if verdict.grade != "certified":
            continue
        x, y = datasets(case)
        _, model = carried_out(case, x[0], y[0])
        truth = Truth(case, x, y)
        lie = {**verdict.claim, "epsilon": 0.0, "delta": 1e-12}
        seen += truth.false(lie, model, 0) is not None
        assert verdict.false is None
    assert seen >= 3


def test_the_twin_does_what_the_product_does():
    """Else every claim on the program counts as false."""
    case = Maker(3).valid()
    wrong = replace(case, seed=case.seed)
    assert verdict_on(wrong).false is None
