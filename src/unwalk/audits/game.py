r"""Plays the unlearning game: many runs of each world, and what the observers saw of them.

The game is that of the definition: :math:`U(D_f, A(D))` against :math:`U(\emptyset, A(D \setminus
D_f))`.  Runs of one world are independent.  Models are trained anew for every run; they are shared

* between the methods of one audit, within a world: the runs of each method stay independent of each
  other, and the tests of different methods are combined by Holm's rule, which allows any
  dependence;
* between the runs of a world where all public coins are fixed and training draws no noise: every
  run would train the same model to the bit.

They are never shared between the worlds: one has met the records and the other has not.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unwalk.audits.canaries import planted
from unwalk.audits.views import ANSWERS, Examiner, Floats, Message, Observer, Seen, Viewer
from unwalk.audits.worlds import COINS, SEEDS, WITH, WITHOUT, NoNoise, Worlds
from unwalk.certificates.document import claims_of
from unwalk.core.errors import InvalidInput
from unwalk.core.events import GaussianNoise, GradientSteps
from unwalk.core.plan import Outcome, Plan, Progress
from unwalk.core.transcript import Transcript
from unwalk.core.validation import check_choice, check_count
from unwalk.engines.choose import carriers
from unwalk.methods import METHODS
from unwalk.runs.assemble import Assembled, assemble
from unwalk.runs.run import Tell, methods_of, silent
from unwalk.runs.sweep import Failed
from unwalk.settings.config import Config
from unwalk.tasks.task import ShardedTask, check_classes


@dataclass(frozen=True)
class Game:
    """What is played: the configuration's methods, who observes, and how randomness is drawn."""

    config: Config
    observers: tuple[str, ...] = ("released",)
    coins: str = "fresh"
    seeds: str = "paired"
    canary: str = "none"

    def __post_init__(self) -> None:
        check_choice("--coins", self.coins, COINS)
        check_choice("--seeds", self.seeds, SEEDS)

    def assembled(self, task: ShardedTask | None = None) -> Assembled:
        """The world with the records, canaries planted."""
        base = assemble(self.config, task)
        check_classes(base.task, "unwalk audit attacks by the probabilities of classes")
        return planted(base, self.canary)

    def watching(self, base: Assembled) -> list[Observer]:
        """The observers, each checked against the task."""
        peers, u = base.task.peers, base.config.forget.peer
        return [Observer.named(name, peers, u) for name in self.observers]


KINDS = ("messages", "answers", "centres")


@dataclass(eq=False)
class Views:
    """What one observer saw in many runs of one world; an entry per slot.

    ``messages`` and ``answers`` have a row per run: zeros where it saw no such message.  Where all
    public coins are fixed, ``centres`` are the messages of a run without noise, which an attacker
    who knows the coins can compute.
    """

    messages: dict[str, Message]
    answers: dict[str, Floats]
    centres: dict[str, Message] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.messages.values())))

    def rows(self, start: int, stop: int) -> Views:
        """Some of the runs."""
        return Views(
            {k: v[start:stop] for k, v in self.messages.items()},
            {k: v[start:stop] for k, v in self.answers.items()},
            self.centres,
        )

    @staticmethod
    def of(runs: Sequence[Mapping[str, Seen]], slots: Sequence[str]) -> Views:
        """The views of runs whose models have been asked, as tables."""
        messages: dict[str, Message] = {}
        answers = {}
        for slot in slots:
            told = [r[slot].message for r in runs if slot in r]
            size, kind = max((m.size for m in told), default=1), np.result_type(*told, np.float32)
            table: Message = np.zeros((len(runs), size), kind)
            asked = np.zeros((len(runs), len(ANSWERS)))
            for row, run in enumerate(runs):
                if slot in run:
                    table[row, : run[slot].message.size] = run[slot].message
                    asked[row] = run[slot].answers
            messages[slot], answers[slot] = table, asked
        return Views(messages, answers)

    @staticmethod
    def joined(parts: Sequence[Views]) -> Views:
        """The runs of all parts, in order."""

        def together(tables: list[Message]) -> Message:
            width = max(t.shape[1] for t in tables)
            return np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1]))) for t in tables])

        slots = list(parts[0].messages)
        return Views(
            {slot: together([p.messages[slot] for p in parts]) for slot in slots},
            {slot: np.concatenate([p.answers[slot] for p in parts]) for slot in slots},
            parts[0].centres,
        )


@dataclass(eq=False)
class Played:
    """The runs of one method: claims about those with the records, and what each observer saw.

    ``views`` is keyed by observer and world.
    """

    claims: list[list[dict[str, Any]]] = field(default_factory=list)
    views: dict[tuple[str, int], Views] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write all views into one file; what everybody saw (the released model) once."""
        tables = {}
        for (observer, world), views in self.views.items():
            for kind in KINDS:
                slots: dict[str, Message] = getattr(views, kind)
                for slot, table in slots.items():
                    who = "" if slot == "released" else observer
                    tables[f"{world}|{who}|{kind}|{slot}"] = table
        with path.open("wb") as file:
            np.savez(file, **tables)  # type: ignore[arg-type]

    @staticmethod
    def load(
        paths: Sequence[Path], observers: Sequence[Observer], claims: list[list[dict[str, Any]]]
    ) -> Played:
        """All runs of files that :meth:`save` wrote, in order."""
        parts: dict[tuple[str, int], list[Views]] = {}
        for path in paths:
            with np.load(path, allow_pickle=False) as tables:
                for observer in observers:
                    for world in (WITHOUT, WITH):
                        seen: list[dict[str, Any]] = [{}, {}, {}]
                        for kind, slots in zip(KINDS, seen, strict=True):
                            for slot in observer.slots:
                                who = "" if slot == "released" else observer.name
                                if (name := f"{world}|{who}|{kind}|{slot}") in tables:
                                    slots[slot] = tables[name]
                        parts.setdefault((observer.name, world), []).append(Views(*seen))
        return Played(claims, {key: Views.joined(many) for key, many in parts.items()})


def play(
    game: Game,
    first: int,
    pairs: int,
    task: ShardedTask | None = None,
    tell: Tell = silent,
) -> dict[str, Played | Failed]:
    """Play pairs ``first``, ..., ``first + pairs - 1`` with every method of the configuration.

    A method that cannot be played has its reason instead.
    """
    check_count("pairs", pairs, low=1)
    base = game.assembled(task)
    table = _Table(game, Worlds.of(base, game.coins, game.seeds), range(first, first + pairs), tell)
    return {name: table.played(name) for name in methods_of(game.config)}


class _Table:
    """Where some pairs are played; the trained models of both worlds are kept for all methods."""

    def __init__(self, game: Game, worlds: Worlds, numbers: range, tell: Tell) -> None:
        self.worlds = worlds
        self.numbers = numbers
        self.tell = tell
        self.base = worlds.base
        self.observers = game.watching(self.base)
        config = self.base.config
        self.examiner = Examiner(self.base.task, config.seed, config.device)
        self.engine = config.performance.engine
        self.kept: dict[int, list[Progress]] = {}

    def played(self, method: str) -> Played | Failed:
        """Both worlds of one method."""
        try:
            self._check(method)
            played = Played()
            for world in (WITHOUT, WITH):
                self._play(method, world, played)
            return played
        except Exception as error:
            return Failed.by(error)

    def _check(self, method: str) -> None:
        """Refuse what can be refused before training."""
        record = METHODS[method]
        if self.worlds.coins == "fixed" and record.way_back is not None:
            raise InvalidInput(
                f"{method} draws coins again and is exact over them, so that with fixed ones its "
                "worlds differ; allowed: --coins fresh."
            )
        self.base.unlearning(method)

    def _play(self, method: str, world: int, played: Played) -> None:
        record = METHODS[method]
        shares = self.base.shares_training(method)
        trained = self._trained(world) if shares else [None] * len(self.numbers)
        known = [None if one is None else one.transcript for one in trained]
        plans = self.worlds.unlearning(world, self.numbers, method, known)
        fixed = self.worlds.coins == "fixed"
        if fixed:  # one more, without noise
            plans.append(replace(plans[0], noise=NoNoise()))
            trained = [*trained, trained[0]]
        resume = {
            at: one.fork(plan.header(), end_digest=False)
            for at, (one, plan) in enumerate(zip(trained, plans, strict=True))
            if one is not None
        }
        shard = None if record.shard is None else record.shard(self.base.config)
        viewer = Viewer(self.examiner, self.observers, shard)
        whole = not shares and (record.from_scratch or record.guarantee.threat.training_time_view)
        for at, plan in enumerate(plans):
            viewer.watch(plan, whole=whole, resume=resume.get(at))
        pairs = len(self.numbers)
        for at, outcome in self._carried(plans, viewer, resume):
            viewer.end(at, outcome.token)
            if world == WITH and at < pairs:
                played.claims.append(_claims(outcome.transcript))
            self.tell(f"{method}, {'with' if world else 'without'}", at + 1, len(plans))
        runs = viewer.kept()
        self.examiner.ask(seen for run in runs for o in run.values() for seen in o.values())
        for observer in self.observers:
            seen = [runs[at][observer.name] for at in range(pairs)]
            views = Views.of(seen, observer.slots)
            if fixed:
                silent_run = runs[pairs][observer.name]
                views.centres = {k: v.message for k, v in silent_run.items() if k in observer.slots}
            played.views[observer.name, world] = views

    def _trained(self, world: int) -> list[Progress]:
        """The models of a world after training, one for each run."""
        if world not in self.kept:
            numbers = list(self.numbers)
            if self.worlds.coins == "fixed":
                (one,) = self._train(world, numbers[:1])
                silent_training = not _noise_in(one.transcript)
                ended = [one] * len(numbers) if silent_training else self._train(world, numbers)
            else:
                ended = self._train(world, numbers)
            self.kept[world] = ended
        return self.kept[world]

    def _train(self, world: int, numbers: Sequence[int]) -> list[Progress]:
        plans = [self.worlds.training(world, number) for number in numbers]
        ended: dict[int, Progress] = {}
        for at, outcome in self._carried(plans, None, {}):
            ended[at] = outcome.progress.fork(outcome.progress.transcript.header, end_digest=False)
            self.tell(f"training, {'with' if world else 'without'}", at + 1, len(plans))
        return [ended[at] for at in range(len(plans))]

    def _carried(
        self, plans: Sequence[Plan], viewer: Viewer | None, resume: Mapping[int, Progress]
    ) -> Iterator[tuple[int, Outcome]]:
        """Every plan's number with its outcome, by the engines that the settings name.

        The walks of fleets that ended before, which refer to each other, are collected first: else
        they stay for long, and on a CUDA device their captured graphs fill its memory.
        """
        gc.collect()
        if self.base.config.device.startswith("cuda"):
            torch.cuda.empty_cache()
        for engine, numbers in carriers(plans, self.engine):
            own = {at: resume[n] for at, n in enumerate(numbers) if n in resume}
            sink = None if viewer is None else _Renumbered(viewer, numbers)
            outcomes = engine.run([plans[n] for n in numbers], sink, own)
            yield from zip(numbers, outcomes, strict=True)


@dataclass(frozen=True, eq=False)
class _Renumbered:
    """A sink for some of the plans, which an engine numbers from 0."""

    viewer: Viewer
    numbers: Sequence[int]

    def after(self, index: int, progress: Progress, look: Any) -> None:
        self.viewer.after(self.numbers[index], progress, look)

    def before(self, index: int, progress: Progress) -> None:
        self.viewer.before(self.numbers[index], progress)

    def sent(self, numbers: Any, hops: Any, senders: Any, receivers: Any, token: Any) -> None:
        own = {self.numbers[number]: number for number in numbers.tolist()}
        self.viewer.sent(
            np.array(list(own)), hops, senders, receivers, lambda number: token(own[number])
        )


def _noise_in(transcript: Transcript) -> bool:
    return any(
        (isinstance(e, GaussianNoise) and e.std > 0.0)
        or (isinstance(e, GradientSteps) and e.noise > 0.0)
        for _, e in transcript.events()
    )


def _claims(transcript: Transcript) -> list[dict[str, Any]]:
    return [
        {key: claim[key] for key in ("grade", "epsilon", "delta", "reason")}
        for claim in claims_of(transcript)
    ]
