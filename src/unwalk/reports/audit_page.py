"""The page of an audit: what is claimed beside what an attacker showed, table and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import rich.table
from markupsafe import Markup
from rich.text import Text

from unwalk.reports import numbers
from unwalk.reports.charts import FONT, Scale, marker, picture, shorten, tag, words
from unwalk.reports.page import render_page
from unwalk.reports.svg_file import alone
from unwalk.reports.tables import Cell, Row, Table, plain_table, terminal_table

Document = Mapping[str, Any]

HEADS = ("claim", "claimed", "audited", "cap", "family-wise", "attacker", "errors", "verdict")
WIDE, ROW, TOP, LEFT = 760.0, 34.0, 46.0, 290.0


def _epsilon(value: float | None) -> str:
    return numbers.fixed(value, 2)


def _errors(row: Document) -> str:
    return f"{row['false_alarms']} + {row['misses']} of {row['runs']}"


def _cells(row: Document) -> list[str]:
    return [
        row["grade"],
        _epsilon(row["epsilon"]),
        _epsilon(row["audited"]),
        _epsilon(row["cap"]),
        _epsilon(row["family"]),
        row["attacker"],
        _errors(row),
        row["verdict"],
    ]


def audit_table(document: Document) -> rich.table.Table:
    """The rows for the terminal."""
    game = document["game"]
    title = f"{_played(document)}: epsilon claimed and audited, {game['pairs']} pairs"
    table = terminal_table(title)
    for head in ("method", "observer", *HEADS):
        right = head in ("claimed", "audited", "cap", "family-wise")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    for row in document["rows"]:
        texts = [row["label"], row["observer"], *_cells(row)]
        style = "bold red" if row["verdict"] == "refuted" else ""
        table.add_row(*map(Text, texts), style=style)
    table.caption = Text(
        f"audited: at least this, with {numbers.percent(game['confidence'])} confidence; cap: the "
        f"most that {game['count']} runs of each world can show; family-wise: at least this, with "
        "the same confidence for all rows and attackers at once"
    )
    return table


def one_run_table(rows: Sequence[Document]) -> rich.table.Table:
    """What single runs with many canaries showed, for the terminal."""
    table = terminal_table("epsilon for one canary, audited in one run of each method")
    for head in ("method", "right guesses", "audited", "cap", "if Gaussian", "for a claim"):
        table.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    for row in rows:
        guesses = f"{row['correct']} of {row['guesses']}, {row['canaries']} canaries"
        bounds = [_epsilon(row[key]) for key in ("epsilon", "cap", "gaussian", "claim")]
        table.add_row(*map(Text, (row["method"], guesses, *bounds)))
    table.caption = Text(
        f"audited: adding one record costs at least this, at delta {rows[0]['delta']:g} with "
        f"{numbers.percent(rows[0]['confidence'])} confidence for each row by itself; a claim of "
        "unlearning has at least half of it"
    )
    return table


def verdict_lines(document: Document) -> list[str]:
    """The verdict in sentences, for the terminal and the page."""
    rows = document["rows"]
    lines = []
    for kind, text in (
        ("refuted", "is REFUTED: report this as a fault of the proof or of the program"),
        ("exceeded", "was exceeded: it is a formula's number and no guarantee"),
    ):
        groups: dict[tuple[str, str, str], list[Document]] = {}
        for row in rows:
            if row["verdict"] == kind:
                claim = (row["label"], row["grade"], _epsilon(row["epsilon"]))
                groups.setdefault(claim, []).append(row)
        for (label, grade, epsilon), fallen in groups.items():
            shown = [f"{row['observer']} {_epsilon(row['audited'])}" for row in fallen]
            worst = max(row["adjusted"] for row in fallen)
            lines.append(
                f"{label}: the {grade} epsilon {epsilon} {text}. Audited by observer: "
                f"{numbers.joined(shown)}; after Holm's rule p is at most {worst:.1e}."
            )
    proved = [row for row in rows if row["grade"] in ("certified", "exact")]
    standing = [row for row in proved if row["verdict"] == "not refuted"]
    if standing:
        lines.append(
            f"{len(standing)} of {len(proved)} claims that are proved were not refuted by the "
            "attackers tried here, which is no proof of them."
        )
    few = [row for row in rows if row["verdict"] == "too few runs"]
    if few:
        lines.append(
            f"{numbers.counted(len(few), 'claim')} could not be tested: even an attacker without "
            "an error would show less in so few runs; raise --pairs."
        )
    return lines or ["No claim was exceeded by the attackers tried here, which proves nothing."]


def page_table(document: Document) -> Table:
    """The rows of the page."""
    rows = [
        Row(
            Cell(row["label"], _below(row, document)),
            [
                Cell(row["grade"]),
                Cell(_epsilon(row["epsilon"]), (f"delta {row['delta']:g}",)),
                Cell(_epsilon(row["audited"]), (f"if Gaussian {_epsilon(row['gaussian'])}",)),
                Cell(_epsilon(row["cap"])),
                Cell(_epsilon(row["family"]), (f"of {_epsilon(row['family_cap'])}",)),
                Cell(row["attacker"]),
                Cell(_errors(row)),
                Cell(row["verdict"], kind="bad" if row["verdict"] == "refuted" else ""),
            ],
        )
        for row in document["rows"]
    ]
    rows += [
        Row(
            Cell(one["label"], ("not played",)),
            [Cell(numbers.sentence(one["reason"]), kind="why", span=len(HEADS))],
            "is-failed",
        )
        for one in document["failed"]
    ]
    return plain_table("Claimed and audited", ("method", *HEADS), rows)


def _below(row: Document, document: Document) -> tuple[str, ...]:
    """Who saw it, and the settings where the rows have different ones."""
    seen = f"seen by {row['observer']}"
    if len({(one["task"], one["preset"]) for one in document["rows"]}) == 1:
        return (seen,)
    return seen, f"{row['task']}, preset {row['preset']}"


def _tried(row: Document) -> Table:
    rows = [
        Row(
            Cell(one["name"]),
            [
                Cell(f"{one['false_alarms']} + {one['misses']}"),
                Cell(_epsilon(one["bound"])),
                Cell(numbers.DASH if one["p"] is None else f"{one['p']:.2g}"),
            ],
        )
        for one in row["tried"]
    ]
    name = f"{row['label']}, seen by {row['observer']}"
    return plain_table(name, ("attacker", "errors", "bound by itself", "p of the claim"), rows)


def chart(document: Document) -> Markup:
    """The picture: for each row the claimed epsilon, what was shown, and the cap."""
    rows: Sequence[Document] = document["rows"]
    values = [v for row in rows for v in (row["epsilon"], row["audited"], row["cap"]) if v]
    top = max([1.0, *values]) * 1.08
    x = Scale(0.0, top, LEFT, WIDE - 20.0)
    height = TOP + ROW * len(rows) + 40.0
    body = [words("epsilon", LEFT - 10.0, height - 16.0, class_="tick", text_anchor="end")]
    body += _legend()
    step = next(s for s in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 1e9) if top / s <= 8.0)
    at = 0.0
    while at <= top:
        place = x(at)
        body.append(tag("line", x1=place, x2=place, y1=TOP - 10.0, y2=height - 34.0, class_="grid"))
        body.append(words(f"{at:g}", place, height - 16.0, class_="tick", text_anchor="middle"))
        at += step
    for number, row in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        name = shorten(f"{row['label']}, {row['observer']}", LEFT - 20.0)
        body.append(words(name, LEFT - 10.0, y + FONT / 3.0, text_anchor="end", fill="var(--ink)"))
        bad = row["verdict"] in ("refuted", "exceeded")
        colour = "var(--wrong)" if bad else "var(--main)"
        body.append(
            tag(
                "rect",
                x=LEFT,
                y=y - 7.0,
                height=14.0,
                width=max(1.0, x(row["audited"]) - LEFT),
                fill=colour,
            )
        )
        edge = x(row["cap"])
        body.append(tag("line", x1=edge, x2=edge, y1=y - 9.0, y2=y + 9.0, class_="start"))
        if row["epsilon"] is not None:
            shape = {"nominal": 3, "certified": 0, "exact": 1}.get(row["grade"], 2)
            body.append(marker(shape, x(row["epsilon"]), y, 6.0, fill="var(--ink)", class_="end"))
    told = "; ".join(
        f"{row['label']} before {row['observer']}: {row['grade']} {_epsilon(row['epsilon'])}, "
        f"audited {_epsilon(row['audited'])}"
        for row in rows
    )
    title = f"Epsilon claimed and audited, {_played(document)}"
    return picture("audit", title, told, height, body, width=WIDE)


def chart_file(document: Document) -> str:
    """The picture as a file of its own."""
    heading = f"Epsilon claimed and audited: {_played(document)}, {document['game']['pairs']} pairs"
    return alone(heading, [chart(document)], "audit")


def _legend() -> list[Markup]:
    """What bars, ticks and marks mean."""
    y, ink = TOP - 30.0, "var(--ink)"
    return [
        tag("rect", x=40.0, y=y - 8.0, width=18.0, height=10.0, fill="var(--main)"),
        words("audited", 63.0, y + 2.0, class_="tick"),
        tag("rect", x=140.0, y=y - 8.0, width=18.0, height=10.0, fill="var(--wrong)"),
        words("audited, claim exceeded", 163.0, y + 2.0, class_="tick"),
        words("claims:", 350.0, y + 2.0, class_="tick"),
        marker(3, 413.0, y - 3.0, 5.0, fill=ink),
        words("nominal", 423.0, y + 2.0, class_="tick"),
        marker(0, 493.0, y - 3.0, 5.0, fill=ink),
        words("certified", 503.0, y + 2.0, class_="tick"),
        marker(1, 578.0, y - 3.0, 5.0, fill=ink),
        words("exact", 588.0, y + 2.0, class_="tick"),
        tag("line", x1=648.0, x2=648.0, y1=y - 10.0, y2=y + 4.0, class_="start"),
        words("cap", 655.0, y + 2.0, class_="tick"),
    ]


def render_audit(document: Document) -> str:
    """The page as one self-contained HTML text."""
    attackers = {one["name"].partition(":")[0] for row in document["rows"] for one in row["tried"]}
    return render_page(
        "audit",
        title=f"Audit of {_audited(document)} on {_played(document)}",
        story=verdict_lines(document),
        picture=chart(document),
        table_of_rows=page_table(document),
        claims=[
            f"{label}: {grade}. {numbers.sentence(reason)}"
            for label, grade, reason in dict.fromkeys(
                (row["label"], row["grade"], row["reason"]) for row in document["rows"]
            )
        ],
        game=_game(document),
        attackers=sorted(attackers),
        tried=[
            (f"{row['label']}, seen by {row['observer']}", _tried(row)) for row in document["rows"]
        ],
        command=document["command"],
        version=document["unwalk"],
    )


def _audited(document: Document) -> str:
    """The methods by name, or their number where they are many."""
    labels = list(dict.fromkeys(row["label"] for row in document["rows"]))
    return numbers.joined(labels) if len(labels) < 4 else numbers.counted(len(labels), "method")


def _played(document: Document) -> str:
    """Tasks and models, each once."""
    tasks = [f"{one['task']['name']} ({one['task']['model']})" for one in _games(document)]
    return numbers.joined(list(dict.fromkeys(tasks)))


def _games(document: Document) -> Sequence[Document]:
    """Task and game of each audit in the document: one, unless several were joined."""
    games: Sequence[Document] = document.get("games", [document])
    return games


def _game(document: Document) -> list[str]:
    """How the game was played, in sentences; where several were, each after its task's name."""
    games = _games(document)
    told = [_setting(one["game"], one["task"]) for one in games]
    if len(games) > 1:
        told = [
            f"{one['task']['name']} ({one['task']['model']}): {text}"
            for one, text in zip(games, told, strict=True)
        ]
    game = document["game"]
    return [
        "In one world training meets the forgotten records and the method forgets them; in the "
        "other they never were, and the method is asked for nothing.",
        *dict.fromkeys(told),
        f"Attackers are fitted on {game['fit']} runs of each world; {game['choose']} others choose "
        f"the attacker, its threshold and its direction; the errors in the remaining "
        f"{game['count']} give the bound, by Clopper and Pearson in both directions.",
        "A bound that rests on an assumed shape (if Gaussian) decides nothing. Whether a claim is "
        f"refuted is decided at {numbers.percent(game['significance'])} over all rows and "
        "attackers together, by Holm's rule.",
    ]


def _setting(game: Document, task: Document) -> str:
    """Who forgets what in a game, and which coins are drawn."""
    size = task["forget"]["size"]
    coins = {
        "fresh": "Every run draws its own initial model, route, batches and noise.",
        "fixed": "Initial model, route and batches are drawn once and known to the attacker; only "
        "the noise is drawn anew in every run.",
    }[game["coins"]]
    seeds = {
        "paired": "Runs of the same number share a seed across the worlds; attackers do not know "
        "which runs these are.",
        "independent": "No two runs share a seed.",
    }[game["seeds"]]
    planted = (
        "The forgotten records are the task's own."
        if game["canary"] == "none"
        else f"The auditor planted canaries ({game['canary']}) in place of the forgotten records."
    )
    return (
        f"Peer {task['unlearner']} of {task['peers']} has to forget {size} records. {planted} Each "
        f"world is run {game['pairs']} times. {coins} {seeds}"
    )
