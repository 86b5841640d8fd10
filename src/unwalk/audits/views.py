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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call, vmap

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.outside import staying, travelling
from unwalk.core.plan import Phase, Plan, Progress
from unwalk.core.token import Layout, Token, Workspace, build_model
from unwalk.core.transcript import Hop
from unwalk.engines.fleet_gradients import PatchConv2d, plain_convolution
from unwalk.tasks.task import ShardedTask

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Message = npt.NDArray[np.floating[Any]]

SLOTS = ("first", "after u", "next", "released")
LONGEST = 4096
"""Numbers of a message that are kept; longer ones are folded by a fixed random sketch."""
ANSWERS = ("loss", "margin", "confidence", "asr", "others' loss")
"""What is measured of a model by asking it: on D_f, on triggered pictures, on other records."""
PROBED = 1000
"""The most records of each kind that a model is asked about."""
TOGETHER, TOGETHER_CUDA = 20_000, 200_000
"""The most records that models are asked about at once, all models together."""


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


@dataclass(eq=False)
class Seen:
    """One kept message, and the model in it until that has been asked; then its answers."""

    message: Message
    model: Token | None
    answers: Floats | None = None


class Examiner:
    """Asks models about the records to be forgotten, and folds messages that are too long."""

    def __init__(self, task: ShardedTask, seed: int, device: str = "cpu") -> None:
        self.model: nn.Module = build_model(task.model, seed).eval()
        if (still := staying(self.model)) and not all(
            map(torch.equal, still, staying(build_model(task.model, seed + 1)))
        ):
            raise InvalidInput(
                f"model {task.model_name!r} has parameters that are not trained and that its seed "
                "draws, so that every game would have others; allowed: the same for every seed."
            )
        self.model = self.model.to(device)
        convolves = any(isinstance(m, nn.Conv2d) for m in self.model.modules())
        self.alone = convolves and device == "cpu"
        """Whether models are asked one by one: batched convolutions are slow on a CPU."""
        if convolves and not self.alone:
            self.model = _mappable(self.model)
        self.layout = Layout.of(self.model)
        self.loss = task.loss
        self.target = -1 if task.target is None else task.target
        self.forgotten, self.test = _some(task.forgotten, device), _some(task.test, device)
        self.triggered: Held | None = None
        if task.triggered is not None:
            others = task.triggered.y.ne(self.target)
            triggered = Held(task.triggered.x[others], task.triggered.y[others])
            self.triggered = _some(triggered, device)
        self.folds: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def seen(
        self, tokens: Sequence[Token], *, model_only: bool = False, moments: bool = True
    ) -> list[Seen]:
        """Tokens as an observer sees them; ``model_only`` leaves parameters and buffers."""
        messages: list[Seen] = []
        for alike, some in groupby(tokens, lambda token: tuple(token.tensors())):
            names = [
                name
                for name in alike
                if (not model_only or name.partition("/")[0] in PUBLISHED)
                and (moments or not name.startswith("moment/"))
            ]
            messages += self._seen(list(some), names)
        return messages

    def _seen(self, tokens: Sequence[Token], names: Sequence[str]) -> list[Seen]:
        """Tokens of one form: these of their tensors."""
        held = [token.tensors() for token in tokens]
        tables = {name: torch.stack([one[name].detach() for one in held]) for name in held[0]}
        own = [tables[name] for name in names]
        wide = any(table.dtype == torch.float64 for table in own)
        kind = torch.float64 if wide else torch.float32
        flat = torch.cat([table.to(kind).reshape(len(tokens), -1) for table in own], 1)
        messages = self.folded(flat)
        buffers = {k: t for k, t in tables.items() if k.startswith("buffer/")}
        return [
            Seen(
                message,
                Token(
                    tables["parameters"][row],
                    {name.removeprefix("buffer/"): many[row] for name, many in buffers.items()},
                ),
            )
            for row, message in enumerate(messages.cpu().numpy())
        ]

    def folded(self, messages: torch.Tensor) -> torch.Tensor:
        """Messages, a row each, of :data:`LONGEST` numbers at most: the numbers of longer ones are
        dealt to random places, each with a random sign, and added up; the same for every run."""
        size = messages.shape[1]
        if size <= LONGEST:
            return messages
        if size not in self.folds:
            rng = np.random.default_rng([20, size])
            order = np.append(rng.permutation(size), np.full(-size % LONGEST, size))
            signs = rng.choice([-1.0, 1.0], order.size)
            self.folds[size] = torch.from_numpy(order), torch.from_numpy(signs)
        order_, signs_ = (part.to(messages.device) for part in self.folds[size])
        padded = nn.functional.pad(messages, (0, 1))
        dealt = padded.index_select(1, order_).double().mul_(signs_)
        folded: torch.Tensor = dealt.unflatten(1, (-1, LONGEST)).sum(1).to(messages.dtype)
        return folded

    def ask(self, seen: Iterable[Seen]) -> None:
        """Fill in the answers of all messages, and let go of their models."""
        records = max(len(held.y) for held in (self.forgotten, self.test, self.triggered) if held)
        waiting = [(one, one.model) for one in dict.fromkeys(seen) if one.model is not None]
        size = max(1, (TOGETHER if self.forgotten.x.is_cpu else TOGETHER_CUDA) // records)
        for first in range(0, len(waiting), size):
            some = waiting[first : first + size]
            answers = self.answers([model for _, model in some])
            for (one, _), row in zip(some, answers, strict=True):
                one.answers, one.model = row, None

    @torch.no_grad()
    def answers(self, tokens: Sequence[Token]) -> Floats:
        """Loss, margin and confidence on D_f, attack success, and the loss on other records."""
        device = self.forgotten.x.device
        flat = torch.stack([t.parameters.detach().to(device) for t in tokens])
        buffers = {
            name: torch.stack([t.buffers[name].to(device) for t in tokens])
            for name in travelling(self.model)
        }
        ours, others = (self._outputs(flat, buffers, h.x) for h in (self.forgotten, self.test))
        answers = np.zeros((len(tokens), len(ANSWERS)))
        if self.loss is not None:
            for row, (one, other) in enumerate(zip(ours, others, strict=True)):
                lost = float(self.loss(one, self.forgotten.y).mean())
                answers[row] = lost, -lost, 0.0, 0.0, float(self.loss(other, self.test.y).mean())
            return answers
        right = _log_chances(ours, self.forgotten.y)
        wrong = torch.log1p(-right.exp().clamp(max=1.0 - 1e-12))
        asr = torch.zeros(len(tokens))
        if self.triggered is not None:
            said = self._outputs(flat, buffers, self.triggered.x).argmax(2)
            asr = said.eq(self.target).double().mean(1)
        elsewhere = _log_chances(others, self.test.y)
        columns = (
            -right.mean(1),
            (right - wrong).mean(1),
            right.exp().mean(1),
            asr,
            -elsewhere.mean(1),
        )
        for column, values in enumerate(columns):
            answers[:, column] = values.cpu().numpy()
        return answers

    def _outputs(
        self, flat: torch.Tensor, buffers: Mapping[str, torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        """What each model says about every record: a row of ``flat`` is a model."""

        def one(parameters: torch.Tensor, own: Mapping[str, torch.Tensor]) -> torch.Tensor:
            said: torch.Tensor = functional_call(
                self.model, {**self.layout.views(parameters), **own}, (x,)
            )
            return said

        if not self.alone:
            try:
                together: torch.Tensor = vmap(one)(flat, buffers)
                return together
            except RuntimeError:  # not every model can be mapped
                self.alone = True
        rows = range(len(flat))
        return torch.stack([one(flat[r], {k: v[r] for k, v in buffers.items()}) for r in rows])


def _mappable(module: nn.Module) -> nn.Module:
    """The same network with convolutions that map well over many models."""
    for name, child in list(module.named_children()):
        if not isinstance(child, nn.Conv2d):
            _mappable(child)
        elif plain_convolution(child):
            setattr(module, name, PatchConv2d(child))
    return module


def _log_chances(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The logarithm of the chance that each model gives to each record's label."""
    logs = outputs.double().log_softmax(2)
    return logs.gather(2, labels.expand(len(logs), -1).unsqueeze(2)).squeeze(2)


PUBLISHED = ("parameters", "buffer")


def _some(held: Held, device: str) -> Held:
    return Held(held.x[:PROBED].to(device), held.y[:PROBED].to(device))


@dataclass(eq=False)
class _Walk:
    """One walk under way: the token as it last left a peer, unless many hops were told at once
    since, and what was kept for each observer."""

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
        self._end_of_shard(walk, progress)
        if self._saw_everything(walk):
            walk.last = None
            return
        if hop.hop > walk.start and walk.last is not None:
            self._message(walk, hop, walk.plan.phases[number], at)
        walk.visited |= hop.hop > walk.start and hop.receiver == walk.plan.unlearner
        walk.last = progress.token.clone()

    def _end_of_shard(self, walk: _Walk, progress: Progress) -> None:
        """Keep the model that has to forget, where that is not the last one that is trained."""
        if self.shard is None or not progress.hop:
            return
        number, at = walk.plan.phase_of(progress.hop)
        if self.shard == number and at == walk.plan.phases[number].hops:
            walk.end = progress.token.clone()

    def _saw_everything(self, walk: _Walk) -> bool:
        """Whether nothing more is kept of a walk but its end."""
        return all(
            slot in walk.kept[observer.name]
            for observer in self.observers
            for slot in observer.slots[:-1]
        )

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
                (made,) = self.examiner.seen([walk.last], moments=keeps_moments)
            walk.kept[observer.name].update(dict.fromkeys(slots, made))

    def before(self, index: int, progress: Progress) -> None:
        """Called before a hop that is told by itself."""
        walk = self.walks[index]
        self._end_of_shard(walk, progress)
        if walk.last is None and not self._saw_everything(walk):
            walk.last = progress.token.clone()

    def sent(
        self,
        numbers: Numbers,
        hops: Numbers,
        senders: Numbers,
        receivers: Numbers,
        token: Callable[[int], Token],
    ) -> None:
        """Called before hops of many walks, none of them a phase's first."""
        walks = [self.walks[number] for number in numbers.tolist()]
        watched = hops > np.array([walk.start for walk in walks])
        seen_by = [
            np.isin(senders, list(o.peers)) | np.isin(receivers, list(o.peers))
            for o in self.observers
        ]
        moved = watched & (senders != receivers)
        wanted: dict[int, list[tuple[str, list[str]]]] = {}
        for observer, seen in zip(self.observers, seen_by, strict=True):
            for place in np.flatnonzero(moved & seen).tolist():
                walk = walks[place]
                if slots := _slots(walk.kept[observer.name], walk.visited):
                    wanted.setdefault(place, []).append((observer.name, slots))
        made = self.examiner.seen([token(int(numbers[place])) for place in wanted])
        for (place, takers), one in zip(wanted.items(), made, strict=True):
            for name, slots in takers:
                walks[place].kept[name].update(dict.fromkeys(slots, one))
        for walk, receiver, on in zip(walks, receivers, watched, strict=True):
            walk.visited |= on and receiver == walk.plan.unlearner
            walk.last = None

    def end(self, index: int, token: Token) -> None:
        """A walk has ended with ``token``."""
        walk = self.walks[index]
        if walk.end is None or walk.plan.phases[-1].hops:
            walk.end = Token(token.parameters, token.buffers).clone()
        walk.last = None

    def kept(self) -> list[dict[str, dict[str, Seen]]]:
        """What was kept of every walk, by observer and slot; all have ended."""
        ends = [walk.end for walk in self.walks if walk.end is not None]
        released = self.examiner.seen(ends, model_only=True)
        return [
            {name: {**kept, "released": one} for name, kept in walk.kept.items()}
            for walk, one in zip(self.walks, released, strict=True)
        ]


def _slots(kept: Mapping[str, Seen], visited: bool) -> list[str]:
    """Where the next message that an observer sees is kept; the first may be the one after u."""
    first = [] if "first" in kept else ["first"]
    if not visited:
        return first
    if "after u" not in kept:
        return [*first, "after u"]
    return [] if "next" in kept else ["next"]
