"""A certificate as a page to print and file: plain words for data protection, details below.

Made from the certificate, from its sentences (:func:`unwalk.certificates.words.in_words`) and from
what a check of it found (``to_json`` of a verdict), which stands at the top.  A certificate that
was changed gets a page that says so, and nothing of what it claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unwalk.core import __version__
from unwalk.core.grades import PROVED, SHOWN, badge_of
from unwalk.reports import numbers
from unwalk.reports.page import render_page
from unwalk.reports.tables import Cell, Row, Table, plain_table

Document = Mapping[str, Any]

SHORT = 16
"""Digits of a digest that are shown in a table; the whole one stands in the certificate."""
TITLES = {
    "exact": "Certificate of forgetting",
    "certified": "Certificate of forgetting",
    "rehearsal": "Rehearsal of a certificate",
    "nothing": "Certificate: nothing was to be forgotten",
}
UNCHECKED: Document = {
    **dict.fromkeys(("problems", "checked", "not_checked", "stated", "words"), ()),
    "signer": None,
    "trusted": False,
}
"""What a check found that ended before it began."""
WITHOUT = "Forgetting without a guarantee"
WAYS = {"exact": "exactly", "certified": "with noise, certified"}


@dataclass(frozen=True)
class State:
    """The outcome of the check: a ``kind`` for the style sheet, a heading, a sentence."""

    kind: str
    heading: str
    text: str


def render_certificate(
    document: Document, words: Mapping[str, Sequence[str]], checked: Document, date: str
) -> str:
    """The page; ``date`` says when the check was made."""
    checked = {**UNCHECKED, **checked}
    changed = bool(checked["problems"])
    said = {} if changed else document.get("peers", {})
    shown, grade = state(checked), badge_of(document)
    proved = grade in PROVED
    return render_page(
        "certificate",
        title="Changed certificate" if changed else TITLES.get(grade, WITHOUT),
        changed=changed,
        own_word=said.get("peer") if said.get("issuer") == said.get("peer") else None,
        badge=None if changed else SHOWN[grade],
        kind=shown.kind if proved else grade,
        conclusion="" if shown.kind in ("good", "bad") or not proved else checked["words"][-1],
        state=shown,
        checked=checked,
        words={} if changed else words,
        facts=[] if changed else facts(document, said),
        erased=erased(said),
        lineage=lineage(document, said),
        version=__version__,
        details=json.dumps(dict(document), indent=1, sort_keys=True),
        date=date,
    )


def state(checked: Document) -> State:
    """What the check found, as its reader needs it."""
    if checked["problems"]:
        return State("bad", "Do not rely on this", "It was changed after it was issued.")
    if checked["signer"] is None:
        return State("open", "Not signed", "Nobody stands for what is written here.")
    missing = [text for text in checked["not_checked"] if not text.startswith("revocation")]
    if checked["trusted"] and not missing:
        return State("good", "Checked and intact", "Somebody you trust signed it.")
    if not checked["trusted"]:
        text = "Nobody has checked yet whether its signer is to be trusted."
        return State("open", "Intact, signer not checked", text)
    return State("open", "Intact, not all was checked", "What is open stands under “The check”.")


def facts(document: Document, said: Document) -> list[tuple[str, str]]:
    """The request in names and numbers."""
    records = document["public"]["forgotten"]
    rows = [("Records to be forgotten", records if records == "all" else f"{records:,}")]
    if said:
        asked = said["requests"]
        rows = [
            ("Network", said["network"]),
            ("Asked by", said["peer"]),
            ("Requests" if len(asked) > 1 else "Request", ", ".join(asked)),
            ("Received (UTC)", _period(said.get("received", ()))),
            *rows,
            ("Issued by", said["issuer"]),
            ("First issued (UTC)", _when(said["issued"])),
            ("Version", f"{said['version']}, issued again as peers signed that they erased"),
        ]
        if said["version"] == 1:
            rows[-1] = ("Version", "1")
    else:
        rows.insert(0, ("Asked by", f"peer {document['public']['unlearner']} of the run"))
    model = document.get("model")
    if model is not None:
        rows.append(("For the model with SHA-256", model["sha256"]))
    return rows


def erased(said: Document) -> Table | None:
    """Which peers signed that they erased, and who is pending."""
    if not said:
        return None
    rows = []
    for receipt in said["receipts"]:
        left = receipt["run"] != said["run"]
        what = "left the network, with everything erased" if left else _counted(receipt)
        rows.append((receipt["peer"], "signed", _when(receipt["time"]), what))
    rows += [(name, "pending", "", "has not signed yet") for name in said["pending"]]
    if not rows:
        return None
    heads = ("peer", "erasure", "when (UTC)", "what")
    return plain_table("Erasure at every peer", heads, [_row(row) for row in rows])


def lineage(document: Document, said: Document) -> Table | None:
    """The models that came before this one; each is replaced by the next."""
    if not said:
        return None
    specs = [json.loads(text)["spec"] for text, _ in said["decisions"]]
    by_number = {spec["number"]: spec for spec in specs}
    rows = []
    for number, text, _, _ in said["ends"]:
        spec, model = by_number.get(number), json.loads(text)["model"]
        why = "trained" if spec is None else _way(spec, said["members"])
        current = document.get("model") and model == document["model"]["sha256"]
        what = "this certificate's" if current else "replaced by the next one"
        rows.append((f"chapter {number}" if number else "training", why, model[:SHORT], what))
    heads = ("model after", "how it came about", "SHA-256 begins", "")
    return plain_table("Models in order", heads, [_row(row) for row in rows])


def _way(spec: Document, members: Sequence[str]) -> str:
    how = WAYS.get(spec["grade"], spec["grade"])
    return f"forgot records of {members[spec['peer']]} {how} ({spec['method']})"


def _period(times: Sequence[str]) -> str:
    """When requests came in: the first and the last."""
    if not times:
        return "not stated in this certificate"
    first, last = _when(min(times)), _when(max(times))
    return first if first == last else f"{first} to {last}"


def _counted(receipt: Document) -> str:
    count = len(receipt["erased"])
    return f"{count} earlier model{'' if count == 1 else 's'}"


def _row(texts: Sequence[str]) -> Row:
    head, *rest = texts
    return Row(Cell(head), tuple(Cell(text or numbers.DASH) for text in rest))


def _when(time: str) -> str:
    return time.replace("T", " ").removesuffix("Z").split(".")[0].removesuffix("+00:00")
