"""Recomputes nominal numbers from their formulas, and compares them with the events."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unwalk.core import events as ev
from unwalk.core.transcript import Hop, Transcript
from unwalk.privacy.accountants import unlearner_of
from unwalk.privacy.nominal import nominal_ddp_sigma, nominal_sigma
from unwalk.privacy.published import published_noisy_finetuning_sigma
from unwalk.privacy.release import contracting_sigma
from unwalk.privacy.subsampled import sampled_multiplier

Stated = dict[str, Any]


@dataclass(frozen=True)
class Formula:
    """A formula by the name under which headers announce its numbers.

    ``problem`` says what contradicts such a number, or nothing; its arguments are the transcript,
    the hops of the phase that forgets, and the announced numbers.  ``assumes`` is what certificates
    say of it.
    """

    name: str
    problem: Callable[[Transcript, list[Hop], Stated], str]
    assumes: str = "the paper's formula with unit constant: not a guarantee"


def _corollary(transcript: Transcript, hops: list[Hop], stated: Stated) -> str:
    """The paper's Corollary 5.2: sigma, the number of hops, and the noise at every visit to u."""
    target = stated["epsilon"], stated["delta"], stated["clip"], stated["hops"], stated["p"]
    sigma = nominal_sigma(*target, transcript.header["peers"])
    if not math.isclose(sigma, stated["sigma"], rel_tol=1e-9):
        return f"it gives sigma {sigma:g}, not {stated['sigma']:g}"
    if len(hops) != stated["hops"]:
        return f"it is for {stated['hops']} hops, and {len(hops)} were walked"
    u = unlearner_of(transcript)
    return _other_scale([hop for hop in hops if hop.receiver == u], sigma)


def _ddp(transcript: Transcript, hops: list[Hop], stated: Stated) -> str:
    """One of the paper's three noise scales of DDP, and the noise of every noisy hop."""
    sigma = nominal_ddp_sigma(
        stated["rule"],
        stated["epsilon"],
        stated["delta"],
        stated["clip"],
        hops=stated["hops"],
        peers=transcript.header["peers"],
        forgotten=max(1, transcript.header["forget"]),
        constant=stated["constant"],
    )
    if not math.isclose(sigma, stated["sigma"], rel_tol=1e-9):
        return f"it gives sigma {sigma:g}, not {stated['sigma']:g}"
    noisy = [hop for hop in transcript.hops if _scales(hop)]
    if len(noisy) > stated["hops"]:
        return f"it is for {stated['hops']} hops, and {len(noisy)} had noise"
    return _other_scale(noisy, sigma)


def _dpsgd(transcript: Transcript, hops: list[Hop], stated: Stated) -> str:
    """The sampled Gaussian mechanism's noise multiplier, and the noise of every step."""
    multiplier = sampled_multiplier(
        stated["epsilon"], stated["delta"], stated["rate"], stated["steps"]
    )
    if not math.isclose(multiplier, stated["sigma"], rel_tol=1e-9):
        return f"it gives a noise multiplier of {multiplier:g}, not {stated['sigma']:g}"
    for hop, event in transcript.events():
        if isinstance(event, ev.GradientSteps) and event.noise > 0.0:
            records, clip = event.batch * event.minibatches, event.clip_per_example or 0.0
            if not math.isclose(event.noise * records, multiplier * clip, rel_tol=1e-9):
                return f"hop {hop.hop} has other noise than {multiplier:g} times its clip"
    return ""


def _noisy_finetuning(transcript: Transcript, hops: list[Hop], stated: Stated) -> str:
    """The noise of noisy fine-tuning: the clip at the start, then as many noisy steps as stated."""
    names = ("radius", "clip", "step_size", "weight_decay", "steps")
    sigma = published_noisy_finetuning_sigma(
        stated["epsilon"], stated["delta"], **{name: stated[name] for name in names}
    )
    if not math.isclose(sigma, stated["sigma"], rel_tol=1e-9):
        return f"it gives sigma {sigma:g}, not {stated['sigma']:g}"
    if len(hops) < stated["steps"]:
        return f"it is for {stated['steps']} hops with noise, and {len(hops)} were walked"
    for number, hop in enumerate(hops[: stated["steps"]]):
        if problem := _unlike_a_noisy_step(hop, stated, first=number == 0):
            return f"hop {hop.hop} {problem}"
    return ""


def _unlike_a_noisy_step(hop: Hop, stated: Stated, *, first: bool) -> str:
    """What is wrong with a hop that should clip its step and add noise; nothing if it does."""
    kept = [event for event in hop.events if not isinstance(event, ev.Start | ev.Wipe)]
    if first:
        ball = kept.pop(0) if kept else None
        centred = isinstance(ball, ev.Projection) and (("origin", stated["radius"]),) == ball.balls
        if not centred:
            return "does not begin with the clip of the model"
    if not kept or not isinstance(noise := kept.pop(), ev.GaussianNoise):
        return "does not end with noise"
    if not math.isclose(noise.std, stated["sigma"], rel_tol=1e-9):
        return f"has noise of std {noise.std:g}, not {stated['sigma']:g}"
    for event in kept:
        if not isinstance(event, ev.GradientSteps):
            return f"has another event: {event.kind}"
        logged = (event.clip, event.step_size, event.weight_decay, event.steps, event.optimizer)
        if logged != (stated["clip"], stated["step_size"], stated["weight_decay"], 1, "sgd"):
            return "takes other steps than one that is clipped"
        if event.touched:
            return "uses records to be forgotten"
    return "" if len(kept) < 2 else "takes more than one step"


def _noisy_sgd(transcript: Transcript, hops: list[Hop], stated: Stated) -> str:
    """The noise of steps that contract, how many there were, and the noise of each."""
    sizes = stated["diameter"], stated["contraction"], stated["steps"]
    std = contracting_sigma(stated["epsilon"], stated["delta"], *sizes)
    if not math.isclose(std, stated["sigma"] * stated["step_size"], rel_tol=1e-9):
        return f"it gives noise {std:g}, not {stated['sigma'] * stated['step_size']:g}"
    noisy = [e for h in hops for e in h.events if isinstance(e, ev.GradientSteps) and e.noise > 0.0]
    taken = sum(event.steps for event in noisy)
    if taken < stated["steps"]:
        return f"it is for {stated['steps']} noisy steps, and {taken} were taken"
    if any(event.touched for event in noisy):
        return "it is for steps without the records to be forgotten"
    if any(event.step_size != stated["step_size"] for event in noisy):
        return f"it is for steps of size {stated['step_size']:g}"
    return _other_scale(hops, stated["sigma"])


COROLLARY = Formula("corollary-5.2", _corollary)
DDP = Formula("ddp", _ddp)
DPSGD = Formula("dpsgd", _dpsgd)
NOISY_FINETUNING = Formula(
    "noisy-finetuning",
    _noisy_finetuning,
    "a bound for real numbers and for those who see the released model alone: not a guarantee",
)
NOISY_SGD = Formula(
    "noisy-sgd",
    _noisy_sgd,
    "a bound for real numbers, a convex loss and those who see the released model alone: not a "
    "guarantee",
)


def _other_scale(hops: list[Hop], sigma: float) -> str:
    for hop in hops:
        for scale in _scales(hop):
            if not math.isclose(scale, sigma, rel_tol=1e-9):
                return f"hop {hop.hop} has noise of scale {scale:g}, not {sigma:g}"
    return ""


def _scales(hop: Hop) -> list[float]:
    """Noise on gradients, in units of the last step size where it is on the weights."""
    scales: list[float] = []
    step_size = None
    for event in hop.events:
        if isinstance(event, ev.GradientSteps):
            step_size = event.step_size
            if event.noise > 0.0:
                scales.append(event.noise)
        elif isinstance(event, ev.GaussianNoise) and step_size:
            scales.append(event.std / step_size)
    return scales
