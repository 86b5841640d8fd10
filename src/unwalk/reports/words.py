"""What happened, in plain sentences computed from the result."""

from __future__ import annotations

from dataclasses import dataclass

from unwalk.core.grades import SHOWN, Shown
from unwalk.reports import numbers
from unwalk.reports.result import Claim, Forget, Method, Result

LEVEL = 0.05
"""How far from retraining in forgetting still counts as level."""


@dataclass(frozen=True)
class Tile:
    """One key number: what it is, the number, and what to compare it with."""

    name: str
    value: str
    beside: tuple[str, ...]


GRAPHS = {
    "ring": "a ring",
    "torus": "a torus",
    "star": "a star",
    "random-regular": "a random regular graph",
    "erdos-renyi": "an Erd\u0151s-R\u00e9nyi graph",
    "file": "a given graph",
}


def graph(result: Result) -> str:
    """The kind of graph, with its article."""
    return GRAPHS.get(result.graph, f"a {result.graph} graph" if result.graph else "a graph")


def sentence(text: str) -> str:
    """``text`` with a capital at its start.

    >>> sentence("the noise is RR-DU's.")
    "The noise is RR-DU's."
    """
    return text[:1].upper() + text[1:]


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
        s for s in (_trained(result), _request(result), _ended(result), verdict(result)) if s
    )


def _trained(result: Result) -> str:
    task = result.task
    model = f"the model {task.model}" if task.model else "one model"
    hops = "" if result.train_hops is None else f" for {numbers.counted(result.train_hops, 'hop')}"
    data = f" on {task.name}" if task.name else ""
    peers = numbers.counted(task.peers, "peer")
    return f"{peers} trained {model}{data}: it walked from peer to peer on {graph(result)}{hops}."


def _request(result: Result) -> str:
    forget = result.task.forget
    if nothing(forget):
        return ""
    marks = [forget.trigger and f"trigger: {forget.trigger}"]
    if forget.target is not None:
        marks.append(f"target class {forget.target}")
    told = "; ".join(m for m in marks if m)
    return f"{peer(result)} asked to forget {asked(forget)}{f' ({told})' if told else ''}."


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
        )
    if "clean" in main.final:
        value = numbers.percent(main.final["clean"])
        text = f"clean accuracy of {value}{_versus(result, 'clean')}"
        ends.append(f"and has a {text}" if ends else f"has a {text}")
    if not ends:
        return ""
    return f"{_after(result)} {' '.join(ends)}."


def verdict(result: Result) -> str:
    """Whether the main method ended level with retraining, which is the aim."""
    main, key = result.main, "asr" if result.backdoor else "forget"
    gap = main.gap.get(key)
    if main.oracle or gap is None:
        return ""
    if abs(gap) <= LEVEL:
        return "In forgetting it is level with retraining, within 5 points."
    if gap < 0:
        return "That is below retraining: it forgot more than it was asked to."
    left = "The backdoor is still there" if key == "asr" else "The records are still known"
    return f"{left}: {numbers.fixed(100 * gap)} points above retraining."


def _after(result: Result) -> str:
    hops = result.main.cost.get("hops", result.unlearn_hops)
    if result.main.oracle:
        walked = "" if hops is None else f" over {numbers.counted(hops, 'hop')}"
        return f"The model retrained from scratch{walked}"
    if result.unlearn_hops is not None:
        hops = result.unlearn_hops
    after = "At the end" if hops is None else f"After {numbers.counted(hops, 'unlearning hop')}"
    return f"{after} {result.main.label}"


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
    found = []
    for measure, name in (
        (key, "Attack success" if key == "asr" else "Forget accuracy"),
        ("clean", "Clean accuracy"),
    ):
        if measure in main.final:
            found.append(Tile(name, numbers.percent(main.final[measure]), _others(result, measure)))
    if "hops" in cost:
        at = cost.get("visits_to_unlearner")
        who = "the forgetting peer" if result.task.unlearner is None else peer(result).lower()
        beside = () if at is None else (f"{numbers.fixed(at, 0)} of them at {who}",)
        found.append(Tile("Hops", numbers.fixed(cost["hops"], 0), beside))
    if "bytes" in cost:
        sent = cost.get("messages")
        beside = () if sent is None else (f"in {numbers.counted(sent, 'message')}",)
        found.append(Tile("Data moved", numbers.human_bytes(cost["bytes"]), beside))
    if "gradients" in cost:
        share = relative(result, main, "gradients")
        value = numbers.fixed(cost["gradients"], 0)
        found.append(Tile("Gradient evaluations", value, (share,) if share else ()))
    return found


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
    told = [f"{share.split(' of ')[0]} of its {name}" for share, name in shares if share]
    if not told:
        return ""
    return (
        f"Measured against retraining from scratch, {result.main.label} took "
        f"{numbers.joined(told)}."
    )


def guarantee(result: Result) -> tuple[str, ...]:
    """What is guaranteed and to whom, from the certificate; else what its grade means."""
    told = () if result.certificate is None else result.certificate.words.get("verdict", ())
    return told or (shown(result.badge).meaning,)


def shown(grade: str) -> Shown:
    """What people are shown of a grade."""
    return SHOWN.get(grade, Shown("?", grade, "A grade that this version does not know."))


def accountant(claim: Claim) -> str:
    """Who counted, if anybody did."""
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
