"""Programs of the known methods, with settings at random: what accountants are meant to accept."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from tests.certificates.fuzz import Case, Part, Template, Work
from unwalk.core.program import AddNoise, Ball, Forget, Project, ReplaceSums


class Methods:
    """Valid programs of the known methods, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def spread(self, low: float, high: float) -> float:
        """A number whose logarithm is uniform."""
        return float(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def valid(self) -> Case:
        names = ("seal", "release", "noisy-start", "ball-seal", "restart", "rewind", "sums", "rrdu")
        weights = (26, 14, 10, 16, 6, 10, 5, 13)
        method = self.rng.choices(names, weights)[0]
        peers, records = self.one(2, 3), self.one(2, 3)
        slots = self.one(1, 1, 2)
        cap = -(-records // slots)
        case = Case(
            seed=self.seed,
            method=method,
            phases=(),
            inputs=self.one(1, 2),
            outputs=self.one(2, 2, 3),
            peers=peers,
            records=records,
            u=self.rng.randrange(peers),
            forgotten=self.one(1, 1, 1, 2),
            norm=self.one(0.1, 0.1, 0.3, 1.0, 2.0),
            start=self.one(0.0, 1.0, 1.0, 30.0),
            slots=slots,
            slot_cap=cap,
            nominal=float(self.one(cap, cap, cap, cap / 2.0, 2 * cap)),
            delta=self.one(1e-5, 1e-5, 1e-3, 0.05),
        )
        made: Case = getattr(self, "_" + method.replace("-", "_"))(case)
        return made

    def _route(self, case: Case, low: int, high: int) -> list[int]:
        return [self.rng.randrange(case.peers) for _ in range(self.rng.randint(low, high))]

    def _onwards(self, case: Case) -> list[int]:
        """Up to two hops after the first, at u as often as not."""
        return [self.one(case.u, peer) for peer in self._route(case, 0, 2)]

    def _slotted(self, case: Case, data: str, epochs: int = 1, work: Work | None = None) -> Work:
        if work is not None:
            return replace(work, data=data, steps=case.slots * epochs, key=self.rng.randrange(9**6))
        beta = 0.5 * case.norm**2 * case.slot_cap / case.nominal
        decay = self.one(0.0, 0.0, 0.1, 1.0, 1.0)
        step = self.one(0.1, 0.5, 1.0, 1.9) / (beta + decay)
        if decay == 1.0 and beta < 0.2 and self.maybe(0.7):
            step = self.rng.uniform(0.8, 1.0)  # shrinks what was there to almost nothing
        return Work(
            data,
            "slots",
            case.slots * epochs,
            self.rng.randrange(9**6),
            min(step, 50.0),
            weight_decay=decay,
        )

    def _any(self, case: Case, data: str = "retained") -> Work:
        """Steps that nothing but post-processing may take."""
        optimizer = self.one("sgd", "sgd", "momentum", "adam")
        return Work(
            data,
            "mean",
            self.one(1, 1, 2),
            step_size=self.one(0.01, 0.5),
            optimizer=optimizer,
            state=self.one("fresh", "carried", "local"),
            weight_decay=self.one(0.0, 0.1),
            clip=self.one(None, None, 0.5),
            clip_per_example=self.one(None, None, None, 0.3),
        )

    def _training(self, case: Case, low: int = 1, high: int = 3) -> tuple[Part, Work, float]:
        """Slotted training, its kind of step, and a guess at the ledger's distance."""
        route = self._route(case, low, high)
        if self.maybe(0.7):
            route[self.rng.randrange(len(route))] = case.u
        kind = self._slotted(case, "all")
        epochs = self.one(1, 1, 2)
        programs = [(self._slotted(case, "all", epochs, kind),) for _ in route]
        push = kind.step_size * math.sqrt(2.0) * case.norm * case.forgotten / case.nominal
        apart = max(1, route.count(case.u)) * epochs * push
        return Part("train", tuple(route), tuple(programs)), kind, apart

    def _wiping(self, route: list[int], programs: list[Template]) -> tuple[Template, ...]:
        met: set[int] = set()
        found = []
        for peer, program in zip(route, programs, strict=True):
            found.append(program if peer in met else (Forget("local"), *program))
            met.add(peer)
        return tuple(found)

    def _later(self, case: Case, route: list[int], std: float) -> list[Template]:
        """Hops after a seal: anything without the records, or a visit with noise of its own."""
        found: list[Template] = []
        for peer in route:
            if peer == case.u and self.maybe(0.5):
                reach = std * self.spread(0.01, 3.0)
                work = replace(
                    self._any(case, self.one("forgotten", "mixed")),
                    optimizer="sgd",
                    weight_decay=0.0,
                    direction=1,
                    clip=1.0,
                    step_size=reach,
                    steps=1,
                )
                noise = AddNoise(std, reach * (1.0 if work.data == "forgotten" else 2.0))
                ball = Project((Ball("arrival", reach),))
                found.append((work, ball, noise) if self.maybe(0.85) else (work, noise))
            elif peer == case.u and self.maybe(0.5):
                clip, data = self.spread(0.01, 3.0), self.one("forgotten", "mixed", "all")
                found.append((replace(self._any(case, data), clip=clip, noise=1.0, state="fresh"),))
            else:
                found.append((self._any(case, "retained" if peer == case.u else "all"),))
        return found

    def _seal(self, case: Case) -> Case:
        train, kind, apart = self._training(case)
        first: list[Any] = [Forget("optimizer")]
        if self.maybe(0.5):
            first.append(self._slotted(case, "retained", self.one(1, 2, 4), kind))
        if self.maybe(0.3):
            first.append(Project((Ball(self.one("origin", "initial"), self.spread(0.1, 10.0)),)))
        std = apart * self.spread(0.5, 50.0)
        first.append(AddNoise(std))
        if self.maybe(0.5):
            first.append(self._any(case))
        if self.maybe(0.2):
            first.append(Project((Ball("origin", self.spread(0.1, 10.0)),)))
        route = self._onwards(case)
        programs = self._wiping([case.u, *route], [tuple(first), *self._later(case, route, std)])
        part = Part("forget", (case.u, *route), programs, carries=True)
        return replace(case, phases=(train, part))

    def _release(self, case: Case) -> Case:
        train, kind, apart = self._training(case)
        route = self._route(case, 1, 3)
        programs: list[Template] = []
        for peer in route:
            data = "retained" if peer == case.u else "all"
            programs.append((self._slotted(case, data, self.one(1, 1, 1, 6), kind),))
        programs[-1] = (*programs[-1], AddNoise(apart * self.spread(0.01, 30.0)))
        part = Part("forget", tuple(route), self._wiping(route, programs), carries=True)
        return replace(case, phases=(train, part))

    def _noisy_start(self, case: Case) -> Case:
        train, _, apart = self._training(case)
        std = apart * self.spread(0.3, 30.0)
        reach = Project((Ball("origin", self.spread(10.0, 1e3) * (1.0 + std)),))
        noisy = tuple((*program, AddNoise(std), reach) for program in train.programs)
        train = replace(train, programs=noisy)
        route = self._route(case, 1, 2)
        programs = [(self._slotted(case, "retained", 1, train.works[0]),) for _ in route]
        part = Part("forget", tuple(route), self._wiping(route, programs), carries=True)
        return replace(case, phases=(train, part))

    def _ball_seal(self, case: Case) -> Case:
        if self.maybe(0.6):
            case = replace(case, model="quadratic", outputs=1, inputs=self.one(1, 1, 2))
        elif self.maybe(0.2):
            case = replace(case, model="buffer")
        route = self._route(case, 1, 2)
        train = Part("train", tuple(route), tuple((self._any(case, "all"),) for _ in route))
        ball = Ball(self.one("origin", "initial"), self.spread(0.1, 10.0))
        std = ball.radius * self.spread(0.5, 30.0)
        first: list[Any] = []
        for _ in range(self.one(1, 1, 2, 3)):
            if self.maybe(0.4):
                first.append(replace(self._any(case), state="fresh"))
            first += [Project((ball,)), AddNoise(std)]
        if case.model == "buffer":
            first.insert(0, Forget("buffers"))
        if self.maybe(0.5):
            first.append(self._any(case))
        route = self._onwards(case)
        programs = self._wiping(
            [case.u, *route],
            [(Forget("optimizer"), *first), *self._later(case, route, std)],
        )
        part = Part("forget", (case.u, *route), programs, carries=True)
        return replace(case, phases=(train, part))

    def _restart(self, case: Case) -> Case:
        case = replace(case, model=self.one("softmax", "quadratic", "buffer"))
        if case.model == "quadratic":
            case = replace(case, outputs=1)
        case = replace(
            case, method=self.one("restart", "retrain"), dtype=self.one("float64", "float32")
        )
        route, again = self._route(case, 1, 2), self._route(case, 1, 3)
        train = Part("train", tuple(route), tuple((self._any(case, "all"),) for _ in route))
        programs: list[Template] = []
        for peer in again:
            work = self._any(case, "retained" if peer == case.u else "all")
            programs.append((work, Project((Ball("start", 2.0),))) if self.maybe(0.3) else (work,))
        part = Part("forget", tuple(again), self._wiping(again, programs), start="initial")
        return replace(case, phases=(train, part))

    def _rewind(self, case: Case) -> Case:
        shards = 2 if self.maybe(0.3) else 1
        case = replace(case, peers=3, model=self.one("softmax", "buffer"))
        kind: Any = self._any(case, "all")
        if case.model == "softmax" and self.maybe(0.1):
            kind = ReplaceSums("all", 1.0)
        parts: list[Part] = []
        for shard in range(shards):
            members = [peer for peer in range(case.peers) if peer % shards == shard]
            route = [self.one(*members) for _ in range(self.rng.randint(1, 4))]
            if case.u in members:
                route = [case.u if self.maybe(0.3) else peer for peer in route]
                route[self.rng.randrange(len(route))] = case.u
            parts.append(
                Part(f"train-{shard}", tuple(route), ((kind,),) * len(route), start="initial")
            )
        own = parts[case.u % shards]
        if shards > 1 and self.maybe(0.15):  # the other model is not of its own peers alone
            other = 1 - case.u % shards
            part = parts[other]
            new = self.one({"route": (case.u, *part.route[1:])}, {"start": "token"})
            parts[other] = replace(part, **new)
        if self.maybe(0.1):
            if self.maybe(0.5):  # u is never visited, so that there is nothing to do
                parts = [self._without(part, case) for part in parts]
            parts.append(Part("forget", (), (), start="arrival", start_hop=1))
            said = {"shards": shards} if shards > 1 else {}
            name = "sisa" if shards > 1 else "rewind"
            return replace(case, method=name, phases=tuple(parts), said=said)
        hop = sum(part.hops for part in parts[: case.u % shards]) + own.route.index(case.u) + 1
        again = list(own.route[own.route.index(case.u) :])
        programs: list[Template] = [(replace(kind, data="retained"),) for _ in again]
        if getattr(kind, "state", "none") != "local":
            programs = list(self._wiping(again, programs))
        part = Part("forget", tuple(again), tuple(programs), start="arrival", start_hop=hop)
        if self.maybe(0.1):  # a ball round where the phase began, in both walks
            ball = Project((Ball("start", 0.01),))
            parts = [replace(p, programs=tuple((*ops, ball) for ops in p.programs)) for p in parts]
            part = replace(part, programs=tuple((*ops, ball) for ops in part.programs))
        if shards == 1 and own.hops > 1 and self.maybe(0.2):  # training in two phases
            cut = self.rng.randint(1, own.hops - 1)
            way, ops = parts[0].route, parts[0].programs
            second = Part("more", way[cut:], ops[cut:], start=self.one("token", "initial"))
            parts = [replace(parts[0], route=way[:cut], programs=ops[:cut]), second]
        if shards == 1:
            return replace(case, phases=(*parts, part))
        return replace(case, method="sisa", phases=(*parts, part), said={"shards": shards})

    def _without(self, part: Part, case: Case) -> Part:
        """The same walk without its visits to u."""
        kept = [k for k, peer in enumerate(part.route) if peer != case.u]
        if not kept:
            return part
        route, programs = (tuple(x[k] for k in kept) for x in (part.route, part.programs))
        return replace(part, route=route, programs=programs)

    def _sums(self, case: Case) -> Case:
        op = ReplaceSums("all", self.one(0.1, 1.0), self.one(20, 40))
        route = self._route(case, 1, 3)
        train = Part("train", tuple(route), ((op,),) * len(route))
        again = [case.u, *self._route(case, 0, 1)]
        part = Part(
            "forget", tuple(again), ((replace(op, data="retained"),),) * len(again), carries=True
        )
        return replace(case, phases=(train, part))

    def _rrdu(self, case: Case) -> Case:
        """Whatever its events allow: from a start without the records, noise at every touch."""
        if self.maybe(0.5):
            case = replace(case, model="quadratic", outputs=1, inputs=self.one(1, 2))
        route = [self.one(case.u, peer) for peer in self._route(case, 1, 4)]
        programs = self._wiping(route, self._later(case, route, self.spread(0.1, 10.0)))
        if self.maybe(0.5):
            return replace(case, phases=(Part("forget", tuple(route), programs, start="initial"),))
        train = Part("train", tuple(route), tuple((self._any(case, "all"),) for _ in route))
        part = Part("forget", tuple(route), programs, start="initial")
        return replace(case, phases=(train, part))
