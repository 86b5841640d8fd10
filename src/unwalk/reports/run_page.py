"""Makes the report of one run or of a comparison, with its sentences.

Everything comes from :class:`~unwalk.reports.result.Result`; ``templates/run.html`` has the HTML.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from unwalk.core.grades import PROVED, SHOWN, Shown, plain_reason, shown_grade
from unwalk.reports import charts, numbers, pareto, plans, tables
from unwalk.reports.page import render_page
from unwalk.reports.result import Answer, Certificate, Claim, Forget, Method, Result, read
from unwalk.reports.tables import Cell, Row, Table

MOST_ROWS = 120
OPTION = re.compile(
    r"(unwalk [a-z]+(?: --[a-z]+ [\w-]+)+|--[a-z]+ [\w-]+|[a-z_]+\.[a-z_]+(?:=[\w-]+)?)"
)
"""A command, options or a setting, which are set as code."""
LEVEL = 0.05
"""The largest gap to retraining in forgetting that still counts as level."""
FEW = 3
"""A difference to retraining of at most this many records may be chance."""
SAMPLE = 128
"""Height in pixels to which a sample is enlarged, so that small ones stay crisp in print."""
QUESTIONS = {
    "asked": "What was asked",
    "done": "What was done",
    "promised": "What is promised, and to whom",
    "not_promised": "What is not promised",
}
"""The parts of a certificate in plain words."""


class Tile(NamedTuple):
    """One key number: what it is, the number, and what to compare it with."""

    name: str
    value: str
    beside: tuple[str, ...]


class Badge(NamedTuple):
    """A grade as it is shown: a class of the style sheet, and its sign with its name."""

    kind: str
    text: str


class Figure(NamedTuple):
    """A card with one picture or two below each other."""

    title: str
    caption: str
    pictures: tuple[Markup, ...]
    summary: str = ""
    table: Table | None = None
    keys: tuple[charts.Key, ...] = ()


def render(result: Mapping[str, Any]) -> str:
    """The report of ``result`` (the content of ``result.json``) as one HTML text."""
    view = read(result)
    return render_page(
        "run",
        result=view,
        title=headline(view),
        story=story(view),
        badge=badge(view.badge),
        guarantee=[OPTION.split(text) for text in guarantee(view)],
        proved=proved(view),
        tiles=tiles(view),
        keys=legend(view),
        charts=[f for key in reversed(tables.measured(view)) if (f := chart(view, key))],
        walks=walks(view),
        walk_heading=walk_heading(view),
        walk_note=walk_note(view),
        samples_note=samples_note(view),
        samples=samples(view),
        methods=methods(view),
        methods_note=methods_note(view),
        trade=trade(view),
        seeds=tables.seeds_table(view) if view.spreads else None,
        seeds_note=seeds_note(view),
        costs=costs(view),
        price=price(view),
        claims=claims(view),
        certificate=[
            (heading, [OPTION.split(text) for text in texts])
            for heading, texts in certificate(view.certificate)
        ],
        facts=facts(view),
        ways=None if view.plan is None else plans.ways_table(view.plan),
        ways_note=None if view.plan is None else plans.page_note(view.plan),
        beside=None if view.plan is None else plans.beside_table(view.plan),
    )


def legend(result: Result) -> list[charts.Key]:
    """What the lines of the charts are."""
    looks = charts.looks(result)
    keys = [charts.Key("Training, shared", charts.INK)] if charts.training(result) else []
    keys += [charts.Key(m.title, *looks[m.name]) for m in result.methods]
    if result.oracle and len(result.methods) > 1:
        colour = looks[result.oracle.name].colour
        keys.append(charts.Key("Retraining's final value", colour, dashes="5 4"))
    return keys


def chart(result: Result, key: str) -> Figure | None:
    """The chart of one measure, with every number behind it in a table that can be opened."""
    drawn = charts.run_chart(result, key)
    if drawn is None:
        return None
    title, meaning = charts.titled(result, key)
    caption = f"{meaning.capitalize()}."
    if any(line.bands for line in drawn.lines):
        caption += (
            f" Means over {result.runs} seeds; bands are one standard deviation wide each way."
        )
    result = charts.averaged(result)
    if drawn.low:
        caption += f" The axis starts at {drawn.low:.0f}{numbers.SPACE}%."
    if result.oracle and len(result.methods) > 1:
        caption += " Retraining counts its own hops from 0."
    pictures = (drawn.draw(), drawn.draw(narrow=True))
    measured = [m for m in result.methods if any(key in p.values for p in m.series)]
    hops = sorted({p.hop for m in measured for p in m.series if key in p.values})
    if not hops:
        return Figure(title, caption, pictures)
    stride = -(-len(hops) // MOST_ROWS)
    kept = [h for i, h in enumerate(hops) if i % stride == 0 or i == len(hops) - 1]
    at = [{p.hop: p.values.get(key) for p in m.series} for m in measured]
    rows = [
        Row(Cell(f"{hop:,}"), [Cell(numbers.hundredths(values.get(hop))) for values in at])
        for hop in kept
    ]
    heads = ["Hop", *(f"{m.title}, %" for m in measured)]
    which = "" if stride == 1 else f" (one evaluation in {stride})"
    behind = tables.plain_table(f"{title} by hop", heads, rows)
    return Figure(title, caption, pictures, f"Numbers behind this chart{which}", behind)


def trade_picture(result: Mapping[str, Any]) -> str | None:
    """Forgetting against accuracy as an SVG file; None where there is too little to compare."""
    view = read(result)
    drawn = _pareto(view)
    seeds = numbers.counted(view.runs, "seed") if view.runs > 1 else f"seed {view.seed}"
    return None if drawn is None else drawn.svg(f"{view.task.name}, {seeds}")


def _pareto(result: Result) -> pareto.Pareto | None:
    """The picture of a comparison; a single run has too little to show."""
    if not result.spreads:
        return None
    forgot = tables.measured(result)[1]
    return pareto.pareto(result, forgot, result.task.scored(tables.MEASURE_HEADS[forgot].lower()))


def trade(result: Result) -> Figure | None:
    """Forgetting against accuracy, with the numbers in a table that can be opened."""
    drawn = _pareto(result)
    if drawn is None:
        return None
    caption = (
        "Differences to retraining, which is where both are 0: farther right is more accurate, "
        "above 0 remembers more than retraining, below 0 is over-unlearned. The area of a mark is "
        "the cost in gradient evaluations. A name is bold where no other method is nearer to "
        "retraining in forgetting without being less accurate. Axes are logarithmic beyond a point."
    )
    keys = [
        charts.Key(shown(grade).name, *pareto.LOOKS[grade], line=False) for grade in drawn.grades
    ]
    heads = ["Method", "Accuracy, points", "Forgetting, points", "Gradients", "Guarantee"]
    rows = [
        Row(
            Cell(dot.title),
            [
                Cell(numbers.points(dot.accuracy / 100)),
                Cell(numbers.points(dot.forgetting / 100)),
                Cell(numbers.fixed(dot.cost, 0)),
                Cell(tables.grade_text(dot.grade)),
            ],
        )
        for dot in drawn.dots
    ]
    behind = tables.plain_table("Forgetting against accuracy", heads, rows)
    pictures = (drawn.draw(), drawn.draw(narrow=True))
    title = "Forgetting against accuracy"
    return Figure(title, caption, pictures, "Numbers behind this picture", behind, tuple(keys))


def walks(result: Result) -> list[Figure]:
    """Where the token went, a picture for each phase."""
    stretches = [s for s in charts.stretches(result.walk) if s.visits]
    peers, u = result.task.peers, result.task.unlearner
    if not stretches or not peers:
        return []
    busiest = max(max(s.counts.values()) / len(s.visits) for s in stretches)
    figures = []
    for part in stretches:
        if peers <= charts.MOST_DRAWN:
            graph = charts.graph_picture(result, part, busiest)
        else:
            graph = charts.histogram(result, part)
        hops = numbers.counted(len(part.visits), "hop")
        at = "" if u is None else f", {numbers.counted(part.counts[u], 'visit')} to peer {u}"
        figures.append(Figure(part.name, f"{hops}{at}.", (graph, charts.strip(result, part))))
    return figures


def walk_heading(result: Result) -> str:
    """The kind of graph and its size."""
    where = graph_name(result).split(" ", 1)[1]
    return f"Where the token went: {where}, {numbers.counted(result.task.peers, 'peer')}"


def walk_note(result: Result) -> str:
    """How to read the pictures of the walk."""
    u = result.task.unlearner
    if result.task.peers <= charts.MOST_DRAWN:
        drawn = "Circles: peers, larger where the token was more often. Lines: hand-overs, "
        drawn += "stronger where there were more."
    else:
        drawn = "Bars: how often the token visited each peer."
    cells = "Below, every hop in order, row by row"
    if u is not None:
        cells += f"; tall cells are hops at peer {u}, which asks to forget"
    longest = max((len(s.visits) for s in charts.stretches(result.walk)), default=0)
    if longest > charts.MOST_CELLS:
        cells += " (several hops share a cell, darker where more of them were there)"
    return f"The walk of {result.main.label}. {drawn} {cells}."


def samples_note(result: Result) -> str:
    """How to read the table of samples."""
    text = "Answers of the model, with how sure it was: \N{CHECK MARK} right class, "
    text += "\N{MULTIPLICATION X} wrong class."
    if not result.backdoor:
        return text
    target = result.task.forget.target
    aim = "" if target is None else f"; class {target} is what the attacker wants"
    return f"Test samples with the trigger on them{aim}. {text}"


def samples(result: Result) -> dict[str, Any] | None:
    """Pictures, true classes, and the answers of every model to every sample."""
    if not result.samples:
        return None
    pictures = []
    for index, sample in enumerate(result.samples, 1):
        data = ""
        if sample.image:
            image = charts.png(sample.image, max(1, SAMPLE // len(sample.image)))
            data = base64.b64encode(image).decode()
        of = f"{index}" if sample.label is None else f"of class {sample.label}"
        pictures.append((data, f"sample {of}"))
    rows: list[tuple[str, list[Answer | None]]] = []
    if any(sample.before for sample in result.samples):
        rows.append(("Before unlearning", [sample.before for sample in result.samples]))
    for method in result.methods:
        answers = [sample.after.get(method.name) for sample in result.samples]
        if any(answers):
            rows.append((method.title, answers))
    labels = [sample.label for sample in result.samples]
    return {"pictures": pictures, "labels": labels, "rows": rows}


def methods(result: Result) -> Table | None:
    """How every method ended, and how far from retraining."""
    columns = (
        *tables.final_columns(result),
        *tables.gap_columns(result),
        *tables.distance_columns(result),
        *tables.grade_column(result),
    )
    several = len(result.methods) + len(result.failed) > 1
    heading = "Methods compared" if several else "How it ended"
    if not columns:
        return None
    table = tables.methods_table(result, columns, heading, before=True)
    return tables.with_failed(table, result)


def methods_note(result: Result) -> str:
    """How to read the table of methods."""
    notes = []
    if tables.gap_columns(result):
        notes.append("Retraining never saw the forgotten records: it is the reference.")
        if result.backdoor:
            notes.append(
                "An attack success below retraining's is over-unlearning, not a better result."
            )
    if any("asr_paper" in m.final for m in result.methods):
        notes.append(
            "Attack success leaves out records that belong to the target class; the paper's count "
            "keeps them."
        )
    return " ".join(notes)


def seeds_note(result: Result) -> str:
    """How to read the table of seeds."""
    if result.runs < 2:
        return "At the end; one seed has no deviation."
    text = "Mean ± standard deviation at the end. The charts show means as well."
    return f"{text} Everything else on this page is seed {result.seed}'s."


def costs(result: Result) -> Table | None:
    """What every method cost, in hops, messages, bytes, gradients and time."""
    columns = (*tables.cost_columns(result), *tables.matched_columns(result))
    return tables.methods_table(result, columns, "What each method cost") if columns else None


def badge(grade: str) -> Badge:
    """A grade with its sign."""
    known = shown(grade)
    return Badge(grade if grade in SHOWN else "", f"{known.sign} {known.name}")


def proved(result: Result) -> str:
    """The bound of the first claim that is proved."""
    claim = next((c for c in result.claims if c.grade in PROVED), None)
    text = "" if claim is None else bound(claim)
    return f"It would be: {text}" if text and result.badge == "rehearsal" else text


def claims(result: Result) -> list[tuple[Badge, str, str, str]]:
    """Every claim: its badge, what it means, its reason and its numbers."""
    shown_claims = []
    for claim in result.claims:
        grade = shown_grade(claim.grade, result.origin)
        code = f"code: {claim.code}" if claim.code else ""
        parts = "; ".join(part for part in (bound(claim), accountant(claim), code) if part)
        reason = numbers.sentence(plain_reason(claim.reason))
        shown_claims.append((badge(grade), shown(grade).meaning, reason, parts))
    return shown_claims


def certificate(source: Certificate | None) -> list[tuple[str, Sequence[str]]]:
    """The certificate in plain words: headings with what stands below them."""
    if source is None:
        return []
    answers: list[tuple[str, Sequence[str]]] = [
        (heading, source.words[key]) for key, heading in QUESTIONS.items() if source.words.get(key)
    ]
    return [*answers, ("What it was worth", [source.worth])] if source.worth else answers


def facts(result: Result) -> list[tuple[str, str]]:
    """What is needed to repeat the run."""
    task = result.task
    known = [
        ("Run", result.run),
        ("Seed", result.seed),
        ("Preset", result.main.preset),
        ("Task", task.name),
        ("Records", "" if task.records is None else f"{task.records:,}"),
        ("Classes", "" if task.classes is None else f"{task.classes:,}"),
        ("Model", task.model),
        ("Parameters", "" if task.parameters is None else f"{task.parameters:,}"),
        ("Graph", f"{result.graph}, {numbers.counted(task.peers, 'peer')}"),
    ]
    return [(name, value) for name, value in known if value]


GRAPHS = {
    "ring": "a ring",
    "torus": "a torus",
    "star": "a star",
    "random-regular": "a random regular graph",
    "erdos-renyi": "an Erd\u0151s-R\u00e9nyi graph",
    "file": "a given graph",
}


def graph_name(result: Result) -> str:
    """The kind of graph, with its article."""
    return GRAPHS.get(result.graph, f"a {result.graph} graph" if result.graph else "a graph")


def asked(forget: Forget) -> str:
    """What the peer asked to forget.

    >>> asked(Forget("backdoor", 60, 0, "square"))
    '60 poisoned records'
    >>> asked(Forget("records", 1, None, ""))
    '1 record'
    """
    kind = "poisoned record" if forget.kind == "backdoor" else "record"
    if forget.size is None:
        return f"some {kind}s"
    text = numbers.counted(forget.size, kind)
    if forget.kind == "peer":
        return f"all its {text}"
    return f"its {text} of one class" if forget.kind == "class" else text


def peer(result: Result) -> str:
    """The peer that asked."""
    return "One peer" if result.task.unlearner is None else f"Peer {result.task.unlearner}"


def nothing(forget: Forget) -> bool:
    """Whether no record was to be forgotten."""
    return forget.kind == "nothing" or forget.size == 0


def headline(result: Result) -> str:
    """The page's title."""
    if nothing(result.task.forget):
        return f"{peer(result)} has nothing to forget"
    return f"{peer(result)} asks to forget {asked(result.task.forget)}"


def story(result: Result) -> str:
    """What happened and how it ended, in three or four sentences."""
    return " ".join(
        s
        for s in (
            _trained(result),
            _request(result),
            _ended(result),
            numbers.sentence(tables.never_took(result)) or verdict(result),
        )
        if s
    )


def _trained(result: Result) -> str:
    task = result.task
    model = f"the model {task.model}" if task.model else "one model"
    hops = "" if result.train_hops is None else f" for {numbers.counted(result.train_hops, 'hop')}"
    data = f" on {task.name}" if task.name else ""
    peers = numbers.counted(task.peers, "peer")
    return (
        f"{peers} trained {model}{data}: it walked from peer to peer on {graph_name(result)}{hops}."
    )


def _request(result: Result) -> str:
    forget = result.task.forget
    if nothing(forget):
        return ""
    marks = [forget.trigger and f"trigger: {forget.trigger}"]
    if forget.target is not None:
        marks.append(f"target class {forget.target}")
    details = "; ".join(m for m in marks if m)
    return f"{peer(result)} asked to forget {asked(forget)}{f' ({details})' if details else ''}."


def _ended(result: Result) -> str:
    main, key = result.main, "asr" if result.backdoor else "forget"
    ends = []
    if key in main.final:
        versus = _versus(result, key)
        value = numbers.percent(main.final[key])
        ends.append(
            f"answers the trigger with the target class in {value} of cases{versus}"
            if key == "asr"
            else f"gives {value} of the forgotten records their label{versus}"
            if result.task.predicts == "class"
            else result.task.scored(f"has accuracy {value} on the forgotten records{versus}")
        )
    if "clean" in main.final:
        value = numbers.percent(main.final["clean"])
        text = result.task.scored(f"clean accuracy of {value}{_versus(result, 'clean')}")
        ends.append(f"and has a {text}" if ends else f"has a {text}")
    if not ends:
        return ""
    return f"{_after(result)} {' '.join(ends)}."


def verdict(result: Result) -> str:
    """Whether the main method ended level with retraining, which is the aim.

    Several seeds are judged by their mean.  A gap within the spread of the seeds, or of a few
    records, may be chance, and nothing is said of it.
    """
    main, key = result.main, "asr" if result.backdoor else "forget"
    gap, spread, over = main.gap.get(key), 0.0, ""
    seeds = next((s for s in result.spreads if s.name == main.name), None)
    if result.runs > 1 and seeds is not None and f"gap.{key}" in seeds.mean:
        gap, spread = seeds.mean[f"gap.{key}"], seeds.std.get(f"gap.{key}", 0.0)
        over = f", on average over {result.runs} seeds"
    if main.oracle or gap is None:
        return ""
    records = result.task.forget.size if key == "forget" else None
    few = records is not None and abs(gap) * records < FEW + 0.5
    if abs(gap) <= spread > LEVEL or (few and abs(gap) > LEVEL):
        return ""
    if abs(gap) <= LEVEL:
        return f"In forgetting it is level with retraining, within 5 points{over}."
    if gap < 0:
        return f"That is below retraining{over}: it forgot more than it was asked to."
    left = "The backdoor is still there" if key == "asr" else "The records are still known"
    return f"{left}: {numbers.fixed(100 * gap)} points above retraining{over}."


def _after(result: Result) -> str:
    hops = result.main.cost.get("hops", result.unlearn_hops)
    if result.main.oracle:
        walked = "" if hops is None else f" over {numbers.counted(hops, 'hop')}"
        return f"The model retrained from scratch{walked}"
    after = f"after {numbers.counted(hops, 'unlearning hop')}" if hops else "at the end"
    if result.runs > 1:
        after = f"with seed {result.seed}, {after}"
    return f"{numbers.sentence(after)} {result.main.label}"


def _versus(result: Result, key: str) -> str:
    """The same number before unlearning and after retraining, in brackets."""
    marks = _others(result, key)
    return f" ({', '.join(marks)})" if marks else ""


def _others(result: Result, key: str) -> tuple[str, ...]:
    marks = []
    if key in result.before and not result.main.oracle:
        marks.append(f"before: {numbers.percent(result.before[key])}")
    if result.oracle and not result.main.oracle and key in result.oracle.final:
        marks.append(f"retraining: {numbers.percent(result.oracle.final[key])}")
    return tuple(marks)


def tiles(result: Result) -> list[Tile]:
    """The key numbers of the main method."""
    main, cost = result.main, result.main.cost
    key = "asr" if result.backdoor else "forget"
    shown_tiles = []
    for measure, name in (
        (key, "Attack success" if key == "asr" else result.task.scored("Forget accuracy")),
        ("clean", result.task.scored("Clean accuracy")),
    ):
        if measure in main.final:
            shown_tiles.append(
                Tile(name, numbers.percent(main.final[measure]), _others(result, measure))
            )
    if "hops" in cost:
        at = cost.get("visits_to_unlearner")
        who = "the forgetting peer" if result.task.unlearner is None else peer(result).lower()
        beside = () if at is None else (f"{numbers.fixed(at, 0)} of them at {who}",)
        shown_tiles.append(Tile("Hops", numbers.fixed(cost["hops"], 0), beside))
    if "bytes" in cost:
        sent = cost.get("messages")
        beside = () if sent is None else (f"in {numbers.counted(sent, 'message')}",)
        shown_tiles.append(Tile("Data moved", numbers.human_bytes(cost["bytes"]), beside))
    if "gradients" in cost:
        share = relative(result, main, "gradients")
        value = numbers.fixed(cost["gradients"], 0)
        shown_tiles.append(Tile("Gradient evaluations", value, (share,) if share else ()))
    return shown_tiles


def relative(result: Result, method: Method, key: str) -> str:
    """A cost as a share of what retraining cost."""
    other = result.oracle.cost.get(key) if result.oracle else None
    if method.oracle or not other or key not in method.cost:
        return ""
    return f"{100 * method.cost[key] / other:.0f}{numbers.SPACE}% of retraining"


def price(result: Result) -> str:
    """One sentence that puts the main method's cost beside retraining's."""
    names = {
        "hops": "hops",
        "bytes": "data moved",
        "gradients": "gradient evaluations",
        "seconds": "time",
    }
    shares = [(relative(result, result.main, key), name) for key, name in names.items()]
    parts = [f"{share.split(' of ')[0]} of its {name}" for share, name in shares if share]
    if not parts:
        return ""
    return (
        f"Measured against retraining from scratch, {result.main.label} took "
        f"{numbers.joined(parts)}."
    )


def guarantee(result: Result) -> tuple[str, ...]:
    """What is guaranteed and to whom, from the certificate; else what its grade means."""
    verdicts = () if result.certificate is None else result.certificate.words.get("verdict", ())
    return verdicts or (shown(result.badge).meaning,)


def shown(grade: str) -> Shown:
    """How a grade is shown to readers."""
    return SHOWN.get(grade, Shown("?", grade, "A grade that this version does not know."))


def accountant(claim: Claim) -> str:
    """The accountant, if there was one."""
    none = claim.accountant in ("", "none")
    return "" if none else f"accountant: {claim.accountant}"


def bound(claim: Claim) -> str:
    """Epsilon and delta as they are written.

    >>> bound(Claim("nominal", 1.0, 1e-5, "paper", ""))
    'ε = 1, δ = 10⁻⁵'
    """
    marks = [] if claim.epsilon is None else [f"ε = {numbers.compact(claim.epsilon)}"]
    marks += [] if claim.delta is None else [f"δ = {numbers.compact(claim.delta)}"]
    return ", ".join(marks)
