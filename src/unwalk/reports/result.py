"""Reads ``result.json``: checks what must be there, and tolerates missing optional values.

Absent keys, ``null`` and numbers that are not finite all read as ``None``; the page then shows a
dash.  Only what makes a report impossible is refused: another format, no methods, a wrong type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unwalk.core.errors import InvalidInput
from unwalk.core.grades import badge_of, origin_of

FORMAT = 1
MEASURES = ("clean", "asr", "asr_paper", "forget", "retain")
SCORES = {"class": "accuracy", "number": "R²", "labels": "F1"}
"""What ``clean``, ``forget`` and ``retain`` are, by what models predict."""
GAPS = ("gap.clean", "gap.asr", "gap.forget")
DISTANCES = ("mia", "kl")
COSTS = ("hops", "visits_to_unlearner", "messages", "bytes", "gradients", "seconds")
RETRAIN = "retrain"
BEFORE = "before"
TOOK = 0.2
"""A backdoor took if it succeeds so much more often than after retraining."""

Values = Mapping[str, float]


class Point(NamedTuple):
    """One evaluation: what was measured after ``hop`` hops."""

    hop: int
    phase: str
    values: Values


@dataclass(frozen=True)
class Method:
    """One method's curve, final values, gap to retraining and cost."""

    name: str
    label: str
    preset: str
    main: bool
    series: tuple[Point, ...]
    final: Values
    gap: Values
    matched: Values
    cost: Values
    grade: str = ""
    measures: Values = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The label as it stands alone, with a capital."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def oracle(self) -> bool:
        """Whether this is retraining, against which every other method is measured."""
        return self.name == RETRAIN


class Forget(NamedTuple):
    """What was asked to be forgotten."""

    kind: str
    size: int | None
    target: int | None
    trigger: str


class Task(NamedTuple):
    """Data, model and the peer that asks to forget."""

    name: str
    brought: bool
    model: str
    classes: int | None
    parameters: int | None
    peers: int
    records: int | None
    unlearner: int | None
    forget: Forget
    predicts: str = "class"

    def scored(self, text: str) -> str:
        """``text`` with the name of what was measured in the place of accuracy.

        >>> Task("", False, "", 1, 1, 1, 1, 0, Forget("", 1, 0, ""), "number").scored("Accuracy")
        'R²'
        """
        score = SCORES.get(self.predicts, "accuracy")
        if score == "accuracy":
            return text
        return text.replace("accuracy", score).replace("Accuracy", score)


class Visit(NamedTuple):
    """One hop of the main method's walk; ``path`` lists every peer it was sent to."""

    hop: int
    phase: str
    receiver: int
    path: tuple[int, ...]


class Answer(NamedTuple):
    """A model's answer to one sample, and its confidence."""

    answer: int | None
    confidence: float | None


class Sample(NamedTuple):
    """One image with the trigger on it; ``after`` is keyed by method name."""

    image: Sequence[Any]
    label: int | None
    before: Answer | None
    after: Mapping[str, Answer]


class Claim(NamedTuple):
    """A privacy claim, and the reason for its grade."""

    grade: str
    epsilon: float | None
    delta: float | None
    accountant: str
    reason: str
    code: str = ""


class Certificate(NamedTuple):
    """What the certificate says in plain words, who signed it, and whether it was worth it."""

    words: Mapping[str, tuple[str, ...]]
    signer: str
    worth: str
    origin: str | None = None


class Spread(NamedTuple):
    """Mean and standard deviation of one method over several seeds, at the end and by hop."""

    name: str
    label: str
    mean: Values
    std: Values
    grade: str = ""
    intervals: Mapping[str, tuple[float, float]] = {}
    series: tuple[Point, ...] = ()
    deviations: tuple[Point, ...] = ()


class Failure(NamedTuple):
    """A method that could not be run, why, and with which seeds; without a name: every method."""

    name: str
    label: str
    reason: str
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        """The label as it stands alone, with a capital."""
        return self.label[:1].upper() + self.label[1:]


@dataclass(frozen=True)
class Result:
    """Everything that a report shows."""

    version: str
    command: str
    run: str
    seed: str
    task: Task
    graph: str
    edges: tuple[tuple[int, int], ...] | None
    train_hops: int | None
    unlearn_hops: int | None
    methods: tuple[Method, ...]
    failed: tuple[Failure, ...]
    walk: tuple[Visit, ...]
    samples: tuple[Sample, ...]
    claims: tuple[Claim, ...]
    certificate: Certificate | None
    runs: int
    spreads: tuple[Spread, ...]
    spread_before: Spread | None = None
    plan: Mapping[str, Any] | None = None

    @property
    def origin(self) -> str | None:
        """Where the noise came from, as the certificate says."""
        return None if self.certificate is None else self.certificate.origin

    @property
    def badge(self) -> str:
        """The grade shown to readers; see :func:`unwalk.core.grades.badge_of`."""
        claims = [{"grade": claim.grade} for claim in self.claims]
        return badge_of({"claims": claims, "noise": {"origin": self.origin}})

    @property
    def main(self) -> Method:
        """The main method of the page: the marked one, else the first that unlearns."""
        order = sorted(self.methods, key=lambda m: (not m.main, m.oracle))
        return order[0]

    @property
    def oracle(self) -> Method | None:
        """Retraining, if it was run."""
        return next((m for m in self.methods if m.oracle), None)

    @property
    def backdoor(self) -> bool:
        """Whether an attack success rate was measured anywhere."""
        places = [m.final for m in self.methods] + [
            p.values for m in self.methods for p in m.series
        ]
        return any("asr" in values for values in places)

    @property
    def start(self) -> int | None:
        """The hop at which unlearning starts, if the main method has a training part."""
        points = [p.hop for p in self.main.series if p.phase == "train"]
        if self.main.oracle or (not points and self.train_hops is None):
            return None
        return self.train_hops if self.train_hops is not None else points[-1]

    @property
    def before(self) -> Values:
        """The last value of each measure of the trained model, before unlearning."""
        for method in (self.main, *self.methods):
            points = [p for p in method.series if p.phase == "train"]
            if points and not method.oracle:
                return {key: value for p in points for key, value in p.values.items()}
        return {}

    @property
    def untouched(self) -> Method | None:
        """The model before unlearning, as a row beside the methods."""
        if not self.before:
            return None
        ends = {} if self.oracle is None else self.oracle.final
        gap = {k: v - ends[k] for k, v in self.before.items() if k in ends}
        return Method(BEFORE, "before forgetting", "", False, (), self.before, gap, {}, {})

    @property
    def never_took(self) -> tuple[float, float] | None:
        """Attack success before forgetting and without the backdoor, if both are nearly the same.

        Then forgetting it shows nothing.  Several seeds are judged by their mean.
        """
        before = self.before if self.spread_before is None else self.spread_before.mean
        ends = {} if self.oracle is None else self.oracle.final
        for spread in self.spreads:
            ends = spread.mean if spread.name == RETRAIN else ends
        usual = ends.get("asr", 0.0)
        if "asr" not in before or before["asr"] >= usual + TOOK:
            return None
        return before["asr"], usual


def read(result: Mapping[str, Any]) -> Result:
    """The typed view of ``result``, or :class:`InvalidInput` in one sentence."""
    source = _mapping("result", result)
    if source.get("format") != FORMAT:
        raise InvalidInput(f"result.format is {source.get('format')!r}; allowed: {FORMAT}.")
    methods = tuple(_method(i, m) for i, m in enumerate(_items("methods", source.get("methods"))))
    if not methods:
        raise InvalidInput("result.methods is empty; allowed: one method or more.")
    graph, phases = _mapping("graph", source.get("graph")), _mapping("phases", source.get("phases"))
    edges = graph.get("edges")
    seeds = _mapping("seeds", source.get("seeds"))
    return Result(
        version=_text(source.get("unwalk")),
        command=_text(source.get("command")),
        run=_text(source.get("run")),
        seed=_text(source.get("seed")),
        task=_task(_mapping("task", source.get("task")), _whole(graph.get("peers"))),
        graph=_text(graph.get("kind")),
        edges=None if edges is None else tuple(_pair(e) for e in _items("graph.edges", edges)),
        train_hops=_whole(phases.get("train")),
        unlearn_hops=_whole(phases.get("unlearn")),
        methods=methods,
        failed=tuple(_failure(f) for f in _items("failed", source.get("failed"))),
        walk=tuple(_visit(v) for v in _items("walk", source.get("walk"))),
        samples=tuple(_sample(s) for s in _items("samples", source.get("samples"))),
        claims=tuple(_claim(c) for c in _items("claims", source.get("claims"))),
        certificate=_certificate(source.get("certificate")),
        runs=_whole(seeds.get("runs")) or 0,
        spreads=tuple(_spread(s) for s in _items("seeds.methods", seeds.get("methods"))),
        spread_before=None if seeds.get("before") is None else _spread(seeds["before"]),
        plan=_mapping("plan", source.get("plan")) or None,
    )


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is a {type(value).__name__}; allowed: an object.")
    return value


def _items(name: str, value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{name} is a {type(value).__name__}; allowed: a list.")
    return value


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _values(name: str, value: Any, keys: Sequence[str]) -> Values:
    source = _mapping(name, value)
    checked = {key: _number(source.get(key)) for key in keys}
    return {key: number for key, number in checked.items() if number is not None}


def _pair(value: Any) -> tuple[int, int]:
    ends = [_whole(v) for v in _items("graph.edges[i]", value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise InvalidInput(f"an edge of the graph is {value!r}; allowed: two peer numbers.")
    return ends[0], ends[1]


def _task(source: Mapping[str, Any], peers: int | None) -> Task:
    forget = _mapping("task.forget", source.get("forget"))
    size, target = (_whole(forget.get(key)) for key in ("size", "target"))
    return Task(
        name=_text(source.get("name")),
        brought=bool(source.get("brought")),
        model=_text(source.get("model")),
        classes=_whole(source.get("classes")),
        parameters=_whole(source.get("parameters")),
        peers=_whole(source.get("peers")) or peers or 0,
        records=_whole(source.get("records")),
        unlearner=_whole(source.get("unlearner")),
        forget=Forget(_text(forget.get("kind")), size, target, _text(forget.get("trigger"))),
        predicts=_text(source.get("predicts")) or "class",
    )


def _method(index: int, value: Any) -> Method:
    place = f"methods[{index}]"
    source = _mapping(place, value)
    name = _text(source.get("name"))
    return Method(
        name=name,
        label=_text(source.get("label")) or name or f"method {index + 1}",
        preset=_text(source.get("preset")),
        main=bool(source.get("main")),
        series=_points(f"{place}.series", source.get("series")),
        final=_values(f"{place}.final", source.get("final"), MEASURES),
        gap=_values(f"{place}.gap", source.get("gap"), MEASURES),
        matched=_values(f"{place}.matched", source.get("matched"), ("clean_hop", "forget_hop")),
        cost=_values(f"{place}.cost", source.get("cost"), COSTS),
        grade=_text(source.get("grade")),
        measures=_values(f"{place}.measures", source.get("measures"), DISTANCES),
    )


def _points(place: str, value: Any) -> tuple[Point, ...]:
    points = []
    for point in _items(place, value):
        hop = _whole(_mapping(f"{place}[i]", point).get("hop"))
        if hop is not None:
            points.append(Point(hop, _text(point.get("phase")), _values(place, point, MEASURES)))
    return tuple(points)


def _visit(value: Any) -> Visit:
    source = _mapping("walk[i]", value)
    hop, receiver = _whole(source.get("hop")), _whole(source.get("receiver"))
    if hop is None or receiver is None:
        raise InvalidInput(f"a hop of the walk is {value!r}; allowed: a hop with its receiver.")
    path = [_whole(peer) for peer in _items("walk[i].path", source.get("path"))]
    known = tuple(peer for peer in path if peer is not None)
    return Visit(hop, _text(source.get("phase")), receiver, known)


def _answer(value: Any) -> Answer | None:
    if value is None:
        return None
    source = _mapping("an answer of samples[i]", value)
    return Answer(_whole(source.get("answer")), _number(source.get("confidence")))


def _sample(value: Any) -> Sample:
    source = _mapping("samples[i]", value)
    after = _mapping("samples[i].after", source.get("after"))
    answers = {str(name): _answer(answer) for name, answer in after.items()}
    return Sample(
        image=_items("samples[i].image", source.get("image")),
        label=_whole(source.get("label")),
        before=_answer(source.get("before")),
        after={name: answer for name, answer in answers.items() if answer is not None},
    )


def _claim(value: Any) -> Claim:
    source = _mapping("claims[i]", value)
    epsilon, delta = (_number(source.get(key)) for key in ("epsilon", "delta"))
    accountant, reason, code = (_text(source.get(k)) for k in ("accountant", "reason", "code"))
    return Claim(_text(source.get("grade")), epsilon, delta, accountant, reason, code)


def _certificate(value: Any) -> Certificate | None:
    if value is None:
        return None
    source = _mapping("certificate", value)
    words = _mapping("certificate.words", source.get("words"))
    document = _mapping("certificate.document", source.get("document"))
    signer = _mapping("certificate.document.signer", document.get("signer"))
    return Certificate(
        words={k: tuple(_text(t) for t in _items(f"words.{k}", v)) for k, v in words.items()},
        signer=_text(signer.get("fingerprint")),
        worth=_text(source.get("worth")),
        origin=origin_of(document),
    )


def _failure(value: Any) -> Failure:
    source = _mapping("failed[i]", value)
    seeds = [_whole(seed) for seed in _items("failed[i].seeds", source.get("seeds"))]
    known = tuple(seed for seed in seeds if seed is not None)
    name, label, reason = (_text(source.get(key)) for key in ("name", "label", "reason"))
    return Failure(name, label or name, reason, known)


def _spread(value: Any) -> Spread:
    source = _mapping("seeds.methods[i]", value)
    name = _text(source.get("name"))
    keys = [*MEASURES, *GAPS, *(f"measure.{key}" for key in DISTANCES)]
    keys += [f"cost.{key}" for key in COSTS]
    return Spread(
        name=name,
        label=_text(source.get("label")) or name,
        mean=_values("mean", source.get("mean"), keys),
        std=_values("std", source.get("std"), keys),
        grade=_text(source.get("grade")),
        intervals=_intervals(source.get("interval")),
        series=_points("seeds.methods[i].series", source.get("series")),
        deviations=_points("seeds.methods[i].deviations", source.get("deviations")),
    )


def _intervals(value: Any) -> dict[str, tuple[float, float]]:
    intervals = {}
    for key, ends in _mapping("interval", value).items():
        low, high = (_number(end) for end in (*_items("interval", ends), None, None)[:2])
        if key in GAPS and low is not None and high is not None:
            intervals[key] = (low, high)
    return intervals
