"""Programs bent at random: every operation, any order, extreme values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.certificates.fuzz import Case, Part, Template, Work
from tests.certificates.fuzz_methods import Methods
from unwalk.core.program import AddNoise, Ball, Forget, Project, ReplaceSums


class Maker(Methods):
    """Makes cases from a seed: programs of the methods, most of them bent."""

    def case(self) -> Case:
        made = self.valid()
        for _ in range(self.rng.choices((0, 1, 2, 3), (35, 40, 15, 10))[0]):
            made = self.bent(made)
        return self._alike(made) if made.method in ("rewind", "sisa") else made

    def _alike(self, case: Case) -> Case:
        """A run has one way to make batches, and a repeated walk has the same coins here."""
        works = [work for part in case.phases for work in part.works]
        kind = works[0].kind if works else "mean"

        def turned(op: Any) -> Any:
            return replace(op, kind=kind, key=0) if isinstance(op, Work) else op

        parts = [
            replace(part, programs=tuple(tuple(map(turned, ops)) for ops in part.programs))
            for part in case.phases
        ]
        return replace(case, phases=tuple(parts))

    def bent(self, case: Case) -> Case:
        bend = self.one(*_BENDS)
        made: Case = bend(self, case)
        return made

    def _change(self, case: Case, change: Callable[[Template, int], Template]) -> Case:
        """One program of one hop changed."""
        number = self.one(*range(len(case.phases)), len(case.phases) - 1)
        part = case.phases[number]
        if not part.programs:
            return case
        place = self.one(*range(part.hops))
        changed = change(part.programs[place], part.route[place])
        programs = (*part.programs[:place], changed, *part.programs[place + 1 :])
        return self._put(case, number, replace(part, programs=programs))

    def _put(self, case: Case, number: int, part: Part) -> Case:
        return replace(case, phases=(*case.phases[:number], part, *case.phases[number + 1 :]))

    def _number(self, near: float) -> float:
        """A value a program may hold in the place of ``near``: close, far, zero, negative."""
        return float(self.one(near * self.spread(0.01, 100.0), near / 1e3, near * 1e3, 0.0, -near))

    def bend_work(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, Work)]
            if not places:
                return program
            at = self.one(*places)
            old = program[at]
            name, value = self.one(
                ("optimizer", self.one("sgd", "momentum", "adam")),
                ("state", self.one("carried", "local", "fresh")),
                ("clip", self.one(None, 1.0, self.spread(1e-3, 1e3), 0.0, -1.0)),
                ("clip_per_example", self.one(None, 0.1, 1.0)),
                ("direction", -old.direction),
                ("scale", self.one(0.0, 0.5, 3.0, -1.0, 100.0)),
                ("noise", self.one(0.0, 1e-3, 1.0, 30.0)),
                ("weight_decay", self.one(0.0, 0.1, 1.0, 10.0, -0.5)),
                ("step_size", self._number(old.step_size)),
                ("data", self.one("all", "retained", "forgotten", "mixed")),
                ("data", self.one("all", "retained", "forgotten", "mixed")),
                ("steps", self.one(1, 2, 3, 8)),
                ("steps", self.one(1, 3)),
                ("kind", self.one("slots", "mean")),
                ("rounded", not old.rounded),
            )
            return (*program[:at], replace(old, **{name: value}), *program[at + 1 :])

        return self._change(case, change)

    def bend_noise(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, AddNoise)]
            if not places:
                return program
            at = self.one(*places)
            old = program[at]
            new = self.one(
                replace(old, std=self._number(old.std)),
                replace(old, std=old.std * self.spread(1e-3, 1e3)),
                replace(old, rounded=False),
                replace(old, sensitivity=self.one(None, 0.0, self._number(old.sensitivity or 1.0))),
            )
            return (*program[:at], new, *program[at + 1 :])

        return self._change(case, change)

    def bend_ball(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, Project)]
            if not places:
                return program
            at = self.one(*places)
            ball = program[at].balls[0]
            new = Ball(
                self.one(ball.centre, "origin", "initial", "start", "arrival"),
                self.one(
                    ball.radius, ball.radius * self.spread(1e-4, 1.0), self._number(ball.radius)
                ),
            )
            balls = (new,) if self.maybe(0.8) else (new, Ball("origin", 5.0))
            return (*program[:at], Project(balls), *program[at + 1 :])

        return self._change(case, change)

    def bend_order(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            if not program:
                return program
            ops = list(program)
            what = self.one("drop", "drop", "swap", "double")
            at = self.rng.randrange(len(ops))
            if what == "drop":
                del ops[at]
            elif what == "double":
                ops.insert(self.rng.randrange(len(ops) + 1), ops[at])
            else:
                other = self.rng.randrange(len(ops))
                ops[at], ops[other] = ops[other], ops[at]
            return tuple(ops)

        return self._change(case, change)

    def bend_insert(self, case: Case) -> Case:
        def change(program: Template, peer: int) -> Template:
            data = self.one("all", "retained", "forgotten", "mixed")
            centre = self.one("origin", "initial", "start", "arrival")
            op = self.one(
                self._any(case, data),
                replace(self._any(case, data), step_size=self.spread(0.01, 1e3)),
                replace(self._any(case, data), step_size=self.spread(1.0, 1e3), clip=None),
                self._slotted(case, data),
                replace(self._any(case, data), clip=1.0, noise=self.one(0.1, 1.0), state="fresh"),
                AddNoise(self.spread(1e-3, 1e3), self.one(None, 0.0, 1.0)),
                AddNoise(self.spread(1e-3, 1e3)),
                Project((Ball(centre, self.spread(1e-4, 1e1)),)),
                replace(
                    self._any(case), optimizer="sgd", step_size=self.spread(1.0, 1e3), clip=None
                ),
                Forget(self.one("local", "optimizer", "buffers")),
                ReplaceSums(self.one("all", "retained"), self.one(0.1, 1.0)),
            )
            at = self.rng.randrange(len(program) + 1)
            return (*program[:at], op, *program[at:])

        return self._change(case, change)

    def bend_phase(self, case: Case) -> Case:
        number = self.rng.randrange(len(case.phases))
        part = case.phases[number]
        change = self.one(
            {"start": self.one("token", "initial")},
            {"start": "arrival", "start_hop": self.rng.randint(1, 3)},
            {"start_hop": None if part.start_hop is None else max(1, part.start_hop - 1)},
            {"start_hop": None if part.start_hop is None else part.start_hop + 1},
            {"carries": not part.carries},
            {"keep": self.one("last", "average", "random")},
            {"reset_optimizer": not part.reset_optimizer},
        )
        return self._put(case, number, replace(part, **change))

    def bend_route(self, case: Case) -> Case:
        number = self.rng.randrange(len(case.phases))
        part = case.phases[number]
        route, programs = list(part.route), list(part.programs)
        at = self.rng.randrange(len(route)) if route else 0
        what = self.one("shorter", "longer", "elsewhere", "swap")
        if what == "longer" or not route:
            copy = programs[at] if programs else ()
            route.insert(at, route[at] if route else case.u)
            programs.insert(at, copy)
        elif what == "shorter" and (len(route) > 1 or (number and self.maybe(0.3))):
            del route[at], programs[at]
        elif what == "elsewhere" and case.method != "rewind" and not self._rewound(case, number):
            route[at] = self.rng.randrange(case.peers)
        else:
            other = self.rng.randrange(len(route))
            route[at], route[other] = route[other], route[at]
            programs[at], programs[other] = programs[other], programs[at]
        return self._put(case, number, replace(part, route=tuple(route), programs=tuple(programs)))

    def _rewound(self, case: Case, number: int) -> bool:
        shards = len(case.phases) - 1
        return case.method == "sisa" and number in (shards, case.u % max(shards, 1))

    def bend_return(self, case: Case) -> Case:
        """A walk that goes back goes back to another arrival at u, as far as training had left."""
        if case.method not in ("rewind", "sisa") or not case.phases[-1].route:
            return self.bend_work(case)
        last, parts = case.phases[-1], case.phases[:-1]
        own = parts[case.u % len(parts)] if case.method == "sisa" else parts[-1]
        before = sum(part.hops for part in parts[: parts.index(own)])
        places = [k for k, peer in enumerate(own.route) if peer == case.u]
        if not places:
            return case
        place = self.one(*places)
        again = own.route[place:]
        program = last.programs[-1]
        programs = self._wiping(list(again), [program] * len(again))
        start = before + place + 1
        part = replace(last, route=again, programs=programs, start_hop=start)
        return replace(case, phases=(*parts, part))

    def bend_sums(self, case: Case) -> Case:
        """One contribution of sums is another one than the others."""

        def change(program: Template, peer: int) -> Template:
            places = [k for k, op in enumerate(program) if isinstance(op, ReplaceSums)]
            if not places:
                return program
            at = self.one(*places)
            new = self.one({"bits": self.one(20, 30)}, {"strength": 3.0}, {"data": "all"})
            return (*program[:at], replace(program[at], **new), *program[at + 1 :])

        return self._change(case, change)

    def bend_touch(self, case: Case) -> Case:
        """Something else in a visit that uses the records with noise of its own."""

        def change(program: Template, peer: int) -> Template:
            places = [
                k
                for k, op in enumerate(program)
                if isinstance(op, Work) and op.data != "retained" and peer == case.u
            ]
            if not places:
                return program
            at = self.one(*places)
            if self.maybe(0.3):  # behind the projection, before the noise
                wide = replace(self._any(case), optimizer="sgd", clip=None, step_size=30.0)
                noisy = replace(program[at], noise=1.0, clip=1.0, weight_decay=10.0, step_size=1.0)
                return (*program[: at + 2], self.one(wide, noisy), *program[at + 2 :])
            back = replace(program[at], data="retained")
            new = self.one(
                (replace(program[at], clip=None),),
                (replace(program[at], optimizer="momentum", state=self.one("carried", "local")),),
                (replace(program[at], weight_decay=self.one(1.0, 10.0)),),
                (replace(program[at], steps=3),),
                (program[at], program[at]),
                (back, replace(program[at], steps=3)),
                (program[at], replace(program[at], noise=1.0, clip=1.0, data="mixed")),
            )
            return (*program[:at], *new, *program[at + 1 :])

        return self._change(case, change)

    def bend_seal(self, case: Case) -> Case:
        """Steps of one phase keep state from one to the next."""
        number = self.one(0, len(case.phases) - 1, len(case.phases) - 1)
        part = case.phases[number]
        kept = {"optimizer": "momentum", "state": self.one("carried", "local")}
        kept["step_size"] = self.spread(0.1, 100.0)

        def turned(op: Any) -> Any:
            return replace(op, **kept) if isinstance(op, Work) else op

        programs = tuple(tuple(map(turned, ops)) for ops in part.programs)
        made = self._put(case, number, replace(part, programs=programs))
        if number or self.maybe(0.5):
            return made
        last = made.phases[-1]  # and what it kept is not wiped
        kept_on = tuple(
            tuple(op for op in ops if op != Forget("optimizer")) for ops in last.programs
        )
        return self._put(made, len(made.phases) - 1, replace(last, programs=kept_on))

    def bend_last(self, case: Case) -> Case:
        """Something large at the end of a visit of the phase that forgets."""
        last = case.phases[-1]
        if not last.route:
            return case
        at = self.rng.randrange(last.hops)
        data = self.one("all", "forgotten", "mixed")
        far = Work(data, "mean", step_size=self.spread(1e2, 1e5), clip=self.one(None, 1.0))
        ball = Project((Ball(self.one("start", "start", "arrival"), self.spread(1e-5, 1e-2)),))
        op = self.one(far, ball)
        programs = (*last.programs[:at], (*last.programs[at], op), *last.programs[at + 1 :])
        return self._put(case, len(case.phases) - 1, replace(last, programs=programs))

    def bend_coarse(self, case: Case) -> Case:
        """Steps that shrink every distance to almost nothing, and one thing that brings it back:
        an average of older models, a short number format, a ball round an older model."""

        def turned(op: Any) -> Any:
            return replace(op, weight_decay=1.0, step_size=0.9) if isinstance(op, Work) else op

        parts = [
            replace(part, programs=tuple(tuple(map(turned, ops)) for ops in part.programs))
            for part in case.phases
        ]
        made = replace(case, phases=tuple(parts), norm=0.1, nominal=float(case.slot_cap))
        what = self.one("average", "random", "float32", "ball")
        if what == "float32":
            return replace(made, dtype="float32")
        if what != "ball":
            return self._put(made, 0, replace(parts[0], keep=what))
        if not parts[-1].route:
            return made
        first = parts[-1].programs[0]
        noise = [k for k, op in enumerate(first) if isinstance(op, AddNoise)]
        at = noise[0] if noise else len(first)
        ball = Project((Ball("start", self.spread(1e-6, 1e-2)),))
        programs = ((*first[:at], ball, *first[at:]), *parts[-1].programs[1:])
        return self._put(made, len(parts) - 1, replace(parts[-1], programs=programs))

    def bend_case(self, case: Case) -> Case:
        facts = sorted(case.facts())
        names = ("seal", "release", "noisy-start", "ball-seal", "restart", "rewind", "sums", "rrdu")
        models = ("quadratic", "buffer") if case.outputs > 1 else ("quadratic",)
        return replace(
            case,
            **self.one(
                {"dtype": "float32"},
                {"dtype": "float32"},
                {"omitted": (*case.omitted, self.one(*facts))},
                {"digests": True},
                {"method": self.one(*names)},
                {"method": self.one(*names)},
                {"forgotten": self.rng.randint(1, case.records)},
                {"nominal": case.nominal * self.one(0.1, 0.5, 10.0)},
                {"norm": case.norm * self.one(0.01, 3.0, 100.0)},
                {"start": self.one(0.0, 1e-3, 1e3)},
                {"model": self.one(*models)},
            ),
        )

    def bend_all(self, case: Case) -> Case:
        """One setting changed in every work of the run, as a setting of the whole run does."""
        name, value = self.one(
            ("optimizer", self.one("momentum", "adam")),
            ("state", self.one("carried", "local", "fresh")),
            ("clip", self.spread(1e-2, 1.0)),
            ("clip_per_example", self.spread(1e-2, 1.0)),
            ("scale", self.one(0.3, 3.0)),
            ("direction", 1),
            ("weight_decay", self.one(0.5, 3.0, 30.0)),
            ("kind", "mean"),
            ("step_size", self.spread(1e-2, 1e2)),
            ("noise", self.spread(1e-2, 1e2)),
        )
        fresh = name == "optimizer" and self.maybe(0.6)

        def turned(op: Any) -> Any:
            if not isinstance(op, Work):
                return op
            return replace(op, **{name: value, **({"state": "fresh"} if fresh else {})})

        parts = [
            replace(part, programs=tuple(tuple(map(turned, ops)) for ops in part.programs))
            for part in case.phases
        ]
        return replace(case, phases=tuple(parts))


_BENDS: tuple[Callable[[Maker, Case], Case], ...] = (
    Maker.bend_work,
    Maker.bend_work,
    Maker.bend_noise,
    Maker.bend_ball,
    Maker.bend_order,
    Maker.bend_insert,
    Maker.bend_insert,
    Maker.bend_phase,
    Maker.bend_route,
    Maker.bend_case,
    Maker.bend_all,
    Maker.bend_return,
    Maker.bend_sums,
    Maker.bend_touch,
    Maker.bend_touch,
    Maker.bend_seal,
    Maker.bend_last,
    Maker.bend_coarse,
)
