"""What an observer sees of a walk, and the few messages of it that an audit keeps.

A peer's view is the messages that it receives, sends or relays after the request, in order.  A
message is the whole token: parameters, buffers, optimizer state, sums.  At most :data:`SLOTS` of
each walk are kept, while it goes on:

* ``first``: the first message that the observer sees after the request;
* ``after u``: the first one that it sees after the forgetting peer's first visit;
* ``next``: the one that it sees after that;
* ``released``: the model at the end, parameters and buffers, which everybody sees.

The hand-over to the forgetting peer by which an unlearning walk may begin belongs to training; so
does what a peer that trained saw before the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Phase, Plan, Progress
from unwalk.core.token import Layout, Token, Workspace, build_model
from unwalk.core.transcript import Hop
from unwalk.tasks import ShardedTask

Floats = npt.NDArray[np.float64]

SLOTS = ("first", "after u", "next", "released")
LONGEST = 4096
"""Numbers of a message that are kept; longer ones are folded by a fixed random sketch."""
ANSWERS = ("loss", "margin", "confidence", "asr", "others' loss")
"""What is measured of a model by asking it: on D_f, on triggered pictures, on other records."""
PROBED = 2000
"""The most records of each kind that a model is asked about."""


@dataclass(frozen=True)
class Observer:
    """Peers that put their views together; without any, someone who has the released model only."""

    name: str
    peers: frozenset[int] = frozenset()

    @property
    def slots(self) -> tuple[str, ...]:
        """The messages that are kept of its view."""
        return SLOTS if self.peers else SLOTS[-1:]

    @staticmethod
    def named(text: str, peers: int, u: int) -> Observer:
        """``released``, ``peer:K``, ``coalition:K,L,...`` or ``coalition:others``.

        >>> sorted(Observer.named("coalition:others", 4, 1).peers)
        [0, 2, 3]
        """
        kind, _, rest = text.partition(":")
        if text == "released":
            return Observer(text)
        names = rest.split(",") if kind == "coalition" else [rest]
        if text == "coalition:others":
            names = [str(peer) for peer in range(peers) if peer != u]
        if kind not in ("peer", "coalition") or not all(n.isdecimal() for n in names):
            raise InvalidInput(
                f"--observer is {text!r}; allowed: released, peer:NUMBER, coalition:NUMBER,NUMBER "
                "or coalition:others."
            )
        seen = frozenset(map(int, names))
        wrong = [peer for peer in sorted(seen) if peer >= peers or peer == u]
        if wrong:
            raise InvalidInput(
                f"--observer {text} names peer {wrong[0]}; allowed: 0 to {peers - 1}, but not "
                f"{u}, which is the forgetting peer and knows the records."
            )
        return Observer(text, seen)


@dataclass(frozen=True, eq=False)
class Seen:
    """One kept message, and what the model in it answers."""

    message: Floats
    answers: Floats


class Examiner:
    """Asks models about the records to be forgotten, and folds messages that are too long."""

    def __init__(self, task: ShardedTask, seed: int) -> None:
        self.model: nn.Module = build_model(task.model, seed).eval()
        self.layout = Layout.of(self.model)
        self.loss = task.loss
        self.target = -1 if task.target is None else task.target
        self.forgotten, self.test = _some(task.forgotten), _some(task.test)
        self.triggered: Held | None = None
        if task.triggered is not None:
            others = task.triggered.y.ne(self.target)
            self.triggered = _some(Held(task.triggered.x[others], task.triggered.y[others]))
        self.folds: dict[int, tuple[npt.NDArray[np.int64], Floats]] = {}

    def seen(self, token: Token, *, model_only: bool = False, moments: bool = True) -> Seen:
        """A token as an observer sees it; ``model_only`` leaves parameters and buffers."""
        named = token.tensors()
        if model_only:
            named = {k: v for k, v in named.items() if k.partition("/")[0] in PUBLISHED}
        if not moments:
            named = {k: v for k, v in named.items() if not k.startswith("moment/")}
        flat = [t.detach().to("cpu", torch.float64).reshape(-1).numpy() for t in named.values()]
        return Seen(self.folded(np.concatenate(flat)), self.answers(token))

    def folded(self, message: Floats) -> Floats:
        """A message of :data:`LONGEST` numbers at most: each number in a random place of fewer,
        with a random sign, the same for every run."""
        if message.size <= LONGEST:
            return message
        if message.size not in self.folds:
            rng = np.random.default_rng([20, message.size])
            signs = rng.choice([-1.0, 1.0], message.size)
            self.folds[message.size] = rng.integers(LONGEST, size=message.size), signs
        places, signs = self.folds[message.size]
        folded: Floats = np.bincount(places, signs * message, LONGEST).astype(np.float64)
        return folded

    @torch.no_grad()
    def answers(self, token: Token) -> Floats:
        """Loss, margin and confidence on D_f, attack success, and the loss on other records."""
        views = self.layout.views(token.parameters.to("cpu"))
        for name, parameter in self.model.named_parameters():
            if name in views:
                parameter.copy_(views[name])
        for name, buffer in self.model.named_buffers():
            buffer.copy_(token.buffers[name])
        if self.loss is not None:
            losses = [float(self.loss(self.model(h.x), h.y).mean()) for h in self._asked]
            return np.array([losses[0], -losses[0], 0.0, 0.0, losses[1]])
        logs = self.model(self.forgotten.x).double().log_softmax(1)
        right = logs.gather(1, self.forgotten.y.unsqueeze(1)).squeeze(1)
        other = torch.log1p(-right.exp().clamp(max=1.0 - 1e-12))
        asr = 0.0
        if self.triggered is not None:
            asr = float(self.model(self.triggered.x).argmax(1).eq(self.target).double().mean())
        test = self.model(self.test.x).double().log_softmax(1)
        elsewhere = test.gather(1, self.test.y.unsqueeze(1)).mean()
        values = [-right.mean(), (right - other).mean(), right.exp().mean(), asr, -elsewhere]
        return np.array([float(v) for v in values])

    @property
    def _asked(self) -> tuple[Held, Held]:
        return self.forgotten, self.test


PUBLISHED = ("parameters", "buffer")


def _some(held: Held) -> Held:
    return Held(held.x[:PROBED].cpu(), held.y[:PROBED].cpu())


@dataclass(eq=False)
class _Walk:
    """One walk under way: the token as it last left a peer, and what was kept for each observer."""

    plan: Plan
    start: int
    last: Token | None
    kept: dict[str, dict[str, Seen]]
    visited: bool = False
    end: Token | None = None


@dataclass(eq=False)
class Viewer:
    """A sink that keeps what observers see, message by message.

    ``shard`` is the number of the phase that trained the model which has to forget, where several
    models are trained.
    """

    examiner: Examiner
    observers: Sequence[Observer]
    shard: int | None = None
    walks: list[_Walk] = field(default_factory=list)

    def watch(self, plan: Plan, *, whole: bool, resume: Progress | None) -> None:
        """Watch one more plan; from its first hop if the ``whole`` walk is in the view."""
        last = plan.hops - plan.phases[-1].hops
        token = None if resume is None else resume.token.clone()
        kept: dict[str, dict[str, Seen]] = {o.name: {} for o in self.observers}
        self.walks.append(_Walk(plan, 0 if whole else last, token, kept))

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        """Called by an engine after every hop."""
        walk, hop = self.walks[index], progress.transcript.hops[-1]
        number, at = walk.plan.phase_of(hop.hop)
        if self.shard == number and at == walk.plan.phases[number].hops:
            walk.end = progress.token.clone()
        if not any(o.peers for o in self.observers):
            return
        if hop.hop > walk.start and walk.last is not None:
            self._message(walk, hop, walk.plan.phases[number], at)
        walk.visited |= hop.hop > walk.start and hop.receiver == walk.plan.unlearner
        walk.last = progress.token.clone()

    def _message(self, walk: _Walk, hop: Hop, phase: Phase, at: int) -> None:
        """The token as it was sent at a hop, to those who saw it."""
        begins = at == 1
        if not hop.path or (
            begins and (phase.start != "token" or hop.receiver == walk.plan.unlearner)
        ):
            return
        seen_by = set(hop.path) if begins else {hop.sender, *hop.path}
        made: Seen | None = None
        for observer in self.observers:
            slots = _slots(walk.kept[observer.name], walk.visited)
            if not slots or not observer.peers & seen_by or walk.last is None:
                continue
            if made is None:
                keeps_moments = not (begins and phase.reset_optimizer)
                made = self.examiner.seen(walk.last, moments=keeps_moments)
            walk.kept[observer.name].update(dict.fromkeys(slots, made))

    def ended(self, index: int, token: Token) -> dict[str, dict[str, Seen]]:
        """What was kept of a walk that ended with ``token``: by observer and slot."""
        walk = self.walks[index]
        if walk.end is not None and walk.plan.phases[-1].hops == 0:
            token = walk.end
        released = self.examiner.seen(token, model_only=True)
        walk.last = None
        return {name: {**kept, "released": released} for name, kept in walk.kept.items()}


def _slots(kept: Mapping[str, Seen], visited: bool) -> list[str]:
    """Where the next message that an observer sees is kept; the first may be the one after u."""
    first = [] if "first" in kept else ["first"]
    if not visited:
        return first
    if "after u" not in kept:
        return [*first, "after u"]
    return [] if "next" in kept else ["next"]
