"""The certificate of a chapter: made from visits that the peers signed, with their receipts.

A certificate lies in a folder of its own: ``certificate.json``, ``transcript.jsonl`` (every visit
on the line before the request, then the chapter's) and ``visits.jsonl`` (the same visits as the
peers signed them).  The model that it is for is the token that the chapter ended with, in the same
store.  ``unwalk verify certificate.json --trust ca.pem`` checks all four.

What it states of peers stands under ``peers``: who signed what, who erased, who is still pending.
As receipts come in it is issued again, with the same claims.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing as closing_file
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from unwalk.certificates import Verdict, certificate_of, verify
from unwalk.certificates.document import FILE, MODEL, model_of, read_certificate, text_of
from unwalk.certificates.form import RULE
from unwalk.certificates.signing import check_signature, sign
from unwalk.certificates.words import in_words
from unwalk.core.errors import Corrupt, InvalidInput, Refused, UnwalkError
from unwalk.core.transcript import (
    LONGEST,
    Hop,
    Transcript,
    canonical,
    read_json,
    read_short,
)
from unwalk.peers.decisions.decided import MOST_CHAPTERS, read_end
from unwalk.peers.decisions.decided import read_all as read_chapters
from unwalk.peers.decisions.history import check_visit
from unwalk.peers.decisions.walk_end import Closing, closing_from, salted, visits_digest
from unwalk.peers.forgetting.erasure import Receipt, left_of
from unwalk.peers.forgetting.plans import Book, as_walked, silent_spec
from unwalk.peers.forgetting.requests import Request
from unwalk.peers.identity.credentials import now, raw_key
from unwalk.peers.identity.credentials import read_certificate as read_pem
from unwalk.peers.identity.network_file import Network, read_document
from unwalk.peers.identity.trust import Bundle, Trust, network_from, read_network
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.schedule import Spec, line, marked, run_of
from unwalk.peers.storage.database import read_only
from unwalk.reports.certificate_page import render_certificate
from unwalk.runs.assemble import resolve
from unwalk.runs.store import write_file

FOLDER = "certificates"
TRANSCRIPT, VISITS = "transcript.jsonl", "visits.jsonl"
QUIET = "quiet-"
"""Begins the names of certificates for requests that needed no chapter."""
STATED = {
    *("run", "requests", "version", "issued", "receipts", "pending"),
    *("erased_after_hop", "decisions", "ends"),
}
"""What a peer reads of its own certificates later."""
NAMED = re.compile("(chapter|quiet)-[0-9]{1,9}")
"""The names that this peer gives certificates."""
MOST_NAMED = 100
"""Certificates that are named as changed, at most."""

ALONE = {
    "received": "when requests came in",
    "version": "how often it was issued",
    "issued": "when it was first issued",
    "composed": "what all certificates of this peer amount to",
}
"""What nobody but the issuer states, in words."""
EXACT_ONLY = "exact certificates spend nothing"
"""The same where there is nothing to add up."""

ShownEnd = tuple[int, str, dict[str, Any], str]
"""The number of a chapter, what stays of its end, the votes for that, and the digest of those of
its visits that are not on the line."""


RELEASED = {
    "last": "what the last visit left",
    "average": "the average of what its visits left",
    "random": "what one visit left, which the public seed drew",
}
"""What a walk's model is, by the setting ``keep``: peers take no other tensor at its end."""


@dataclass(frozen=True)
class Facts:
    """What a certificate says of peers; ``receipts`` by name, of those who have erased.

    ``decisions`` are all chapters up to this one, with the votes that decided them, ``ends`` how
    those on the line ended.  Requests that needed no walk were not ``decided``: they are those of
    the peer that issues the certificate, which may say how many of the records were ``held_out``.
    ``received`` says when each request came in, as the peer that was asked has written it down.
    """

    chapter: int
    run: str
    requests: tuple[str, ...]
    erased_after: int
    receipts: Mapping[str, dict[str, Any]]
    decisions: Sequence[tuple[str, dict[str, Any]]]
    ends: Sequence[ShownEnd]
    decided: bool = True
    silent: bool = False
    held_out: int | None = None
    received: tuple[str, ...] = ()

    def pending(self, network: Network) -> list[str]:
        """Peers that have not signed yet; none where nothing had to be erased."""
        if self.silent:
            return []
        return [p.name for p in network.peers if p.name not in self.receipts]


def compose(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Budgets of several certificates taken together; see :data:`RULE`.

    >>> compose([(0.0, 0.0), (1.0, 1e-5)])
    (1.0, 1e-05)
    """
    epsilon, delta = 0.0, 0.0
    for e, d in parts:
        delta = min(1.0, max(delta + _grown(epsilon, d), d + _grown(e, delta)))
        epsilon += e
    return epsilon, delta


def _grown(epsilon: float, delta: float) -> float:
    """exp(epsilon) times a probability, as far as it can matter: up to 1."""
    if delta == 0.0:
        return 0.0
    return math.exp(epsilon) * delta if epsilon < -math.log(delta) else 1.0


def proved(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The claim that is a guarantee, or None."""
    for claim in document["claims"]:
        if claim["grade"] in ("certified", "exact"):
            return dict(claim)
    return None


def falls_short(claims: Sequence[Mapping[str, Any]], request: Request) -> Refused | None:
    """Why no claim is what a request asked for, if none is: exactness, or its budget."""
    for claim in claims:
        if claim["grade"] == "exact":
            return None
        if claim["grade"] == "certified" and request.epsilon is not None:
            assert request.delta is not None
            if claim["epsilon"] <= request.epsilon and claim["delta"] <= request.delta:
                return None
    code = claims[-1]["code"] or ""
    return Refused(claims[-1]["reason"], code)


def unused(document: Mapping[str, Any]) -> str:
    """Why no walk was needed for the records of a certificate, as its issuer says."""
    held, records = document["peers"].get("held_out"), document["public"]["forgotten"]
    if not isinstance(held, int) or not held:
        return "no visit used the records"
    if held == records:
        return "the records were held out, never trained on"
    return (
        f"{held:d} of {records} records were held out, never trained on, and no visit used the rest"
    )


def chapter_name(number: int) -> str:
    """The name of a chapter's certificate.

    >>> chapter_name(2)
    'chapter-2'
    """
    return f"chapter-{number}"


def names_in(folder: Path) -> list[str]:
    """The names of the certificates in a folder; unlike with ``glob`` what cannot be read is an
    error: a certificate that is passed over would make the privacy spent look smaller.
    """
    try:
        return sorted(p.name for p in folder.iterdir() if _is_there(p / FILE))
    except FileNotFoundError:
        return []


def _is_there(place: Path) -> bool:
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_all(bundle: Bundle) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """The certificates of a peer, oldest first, and the names of those changed since."""
    issued, changed, folder = [], [], bundle.store / FOLDER
    for name in names_in(folder):
        document = own(bundle, folder / name / FILE)
        if document is None:
            changed.append(name)
        else:
            issued.append((document["peers"]["issued"], name, document))
    return [(name, document) for _, name, document in sorted(issued, key=lambda f: f[:2])], changed


def own(bundle: Bundle, place: Path) -> dict[str, Any] | None:
    """The certificate in a file of a peer's store, if it is what that peer wrote there.

    That is: intact, issued by this peer in a run of its network, for the chapter that its folder
    names.  A file that cannot be read is an :class:`OSError`: nobody knows what it says.
    """
    try:
        seen = place.stat()
        return _known(bundle, place, (seen.st_ino, seen.st_size, seen.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return None


@lru_cache(maxsize=256)
def _known(bundle: Bundle, place: Path, seen: tuple[int, int, int]) -> dict[str, Any] | None:
    """A certificate that is looked at often, as the file was ``seen``.

    What could not be read is raised, so that it is not remembered.
    """
    try:
        document = intact(place) or {}
        said = document["peers"]
        trust = _trust(said, bundle.folder / "ca.pem", None)
        _check_issuer(document, said, trust, newest=False)
        decided, name = said["decided"] is True, place.parent.name
        named = name == chapter_name(said["chapter"]) if decided else name.startswith(QUIET)
        own = named and said["issuer"] == bundle.name
        whole = said.keys() >= STATED
    except (UnwalkError, LookupError, TypeError, ValueError, AttributeError) as error:
        _raise_unread(error)
        return None
    return document if own and whole else None


def intact(place: Path) -> dict[str, Any] | None:
    """The certificate in a file, if nobody changed it since it was signed.

    A file that cannot be read is an :class:`OSError`.
    """
    try:
        document = read_certificate(place)
        check_signature(document)
    except UnwalkError as error:
        _raise_unread(error)
        return None
    return document


def _raise_unread(error: Exception) -> None:
    """Raise what kept a file from being read, if that is what an error came from."""
    if isinstance(error.__cause__, OSError):
        raise error.__cause__ from None


def states(
    bundle: Bundle,
    document: Mapping[str, Any],
    run: str,
    requests: Sequence[str],
    receipts: Mapping[str, dict[str, Any]],
) -> bool:
    """Whether a peer's certificate is of this walk, for these requests, with these receipts.

    And whether it is signed with the keys that the peer has now.
    """
    said = document["peers"]
    wanted = (run, list(requests), [receipts[peer] for peer in sorted(receipts)])
    same_keys = document["signer"]["chain"] == bundle.certificate_pem.decode()
    return same_keys and (said["run"], said["requests"], said["receipts"]) == wanted


def rule_without(changed: Sequence[str], rule: str = RULE) -> str:
    """How certificates were composed, and which were left out because they were changed.

    Folders that have no name of a certificate are only counted.
    """
    names = [name for name in changed if NAMED.fullmatch(name)][:MOST_NAMED]
    if others := len(changed) - len(names):
        names.append(f"{others} other{'' if others == 1 else 's'}")
    return rule + (f"; not counted, since changed: {', '.join(names)}" if names else "")


def issue(
    bundle: Bundle,
    name: str,
    transcript: Transcript,
    visits: Sequence[dict[str, Any]],
    facts: Facts,
    issued: str,
) -> dict[str, Any]:
    """Write a certificate, or issue it again; the document."""
    network, place = bundle.network, bundle.store / FOLDER / name
    text = visits_text(visits)
    version = 1
    before = own(bundle, place / FILE)
    if before is not None and before["peers"]["run"] == facts.run:
        version, issued = before["peers"]["version"] + 1, before["peers"]["issued"]
    document = certificate_of(transcript, released_as(closing_from(facts.ends[-1][1])))
    claim = proved(document)
    issued_before, changed = read_all(bundle)
    others = [c for other, d in issued_before if other != name and (c := proved(d))]
    known = [(c["epsilon"], c["delta"]) for c in (*others, claim) if c is not None]
    epsilon, delta = compose(known)
    content, signature = read_document(bundle.folder / "network.json")
    document["peers"] = {
        "network": network.name,
        "network_file": {"network": content, "signature": signature},
        "decisions": [list(decision) for decision in facts.decisions],
        "ends": [list(end) for end in facts.ends],
        "decided": facts.decided,
        **({} if facts.held_out is None else {"held_out": facts.held_out}),
        "members": [p.name for p in network.peers],
        "peer": network.peers[document["public"]["unlearner"]].name,
        "issuer": bundle.name,
        "chapter": facts.chapter,
        "run": facts.run,
        "requests": list(facts.requests),
        **({"received": list(facts.received)} if facts.received else {}),
        "version": version,
        "issued": issued,
        "visits": hashlib.sha256(text.encode()).hexdigest(),
        "erased_after_hop": facts.erased_after,
        "receipts": [facts.receipts[p] for p in sorted(facts.receipts)],
        "pending": facts.pending(network),
        "composed": {
            "certificates": len(known),
            "epsilon": epsilon,
            "delta": delta,
            "rule": rule_without([other for other in changed if other != name]),
        },
    }
    signed = sign(document, bundle.keys.signing, bundle.certificate_pem.decode())
    place.mkdir(parents=True, exist_ok=True)
    write_file(place / TRANSCRIPT, transcript.text())
    write_file(place / VISITS, text)
    write_file(place / FILE, text_of(signed))
    return signed


def visits_text(visits: Sequence[dict[str, Any]]) -> str:
    """Signed visits, one per line; the first line holds the certificates they were signed with."""
    pems = sorted({str(v["certificate"]) for v in visits})
    place = {pem: number for number, pem in enumerate(pems)}
    lines = [canonical({"certificates": pems})]
    for visit in visits:
        lines.append(canonical({**visit, "certificate": place[visit["certificate"]]}))
    return "".join(line + "\n" for line in lines)


def read_visits(path: Path) -> list[dict[str, Any]]:
    """The visits that :func:`visits_text` wrote."""
    try:
        first, *rest = read_short(path, LONGEST).decode("ascii").splitlines()
        pems = read_json(first)["certificates"]
        visits = [read_json(text) for text in rest]
        return [{**v, "certificate": str(pems[v["certificate"]])} for v in visits]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Corrupt(f"{path.name} does not hold signed visits.") from error


class Findings(NamedTuple):
    """What a check found, as in :class:`~unwalk.certificates.verify.Verdict`."""

    problems: Sequence[str]
    notes: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    stated: Sequence[str] = ()

    def added_to(self, verdict: Verdict) -> Verdict:
        """A verdict on the rest of the certificate, and these findings."""
        return replace(
            verdict,
            problems=(*verdict.problems, *self.problems),
            notes=(*verdict.notes, *self.notes),
            unchecked=(*verdict.unchecked, *self.unchecked),
            stated=(*verdict.stated, *self.stated),
        )


def check(
    document: Mapping[str, Any],
    transcript: Transcript,
    place: Path,
    authority: Path,
    network: Path | None = None,
) -> Findings:
    """What a check of all that a certificate says of peers found.

    ``place`` is its file, ``authority`` the file of the network's CA.  ``network`` is the newest
    file of the network: only with it can be seen what was revoked since.
    """
    try:
        said = document["peers"]
        trust = _trust(said, authority, network)
        names = [p.name for p in trust.network.peers]
        if (said["members"], said["network"]) != (names, trust.network.name):
            return Findings(["members are not those of the network's file"])
        _check_issuer(document, said, trust, newest=network is not None)
        path = place.with_name(VISITS)
        if not path.is_file():
            return Findings([f"{VISITS}, the visits as peers signed them, is not beside it"])
        if hashlib.sha256(read_short(path, LONGEST)).hexdigest() != said["visits"]:
            return Findings([f"{VISITS} is not the file that was certified"])
        visits = read_visits(path)
        specs = _check_decided(said, trust, names)
        _check_header(transcript, specs, said, trust.network)
        places = _line(specs, trust.network, decided=said["decided"] is True)
        _check_visits(visits, transcript, trust, places)
        last = _check_ends(said, trust, specs, visits, places)
        if document["model"] != released_as(last):
            return Findings(["the model is not the one that the peers decided on"])
        signers = _check_receipts(said, trust, specs, last.digest)
        if names[document["public"]["unlearner"]] != said["peer"]:
            return Findings(["peers.peer is not the peer that forgets"])
        if "received" in said and len(said["received"]) != len(said["requests"]):
            return Findings(["peers.received is not a time (UTC) for each request"])
    except UnwalkError as error:
        return Findings([str(error).rstrip(".")])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return Findings([f"peers lacks or mistypes {error}"])
    unchecked: list[str] = []
    notes = [f"each of {len(visits)} visits is signed by the peer that did it"]
    notes.append(f"issued by {said['issuer']}, for the records of {said['peer']}")
    if said["decisions"]:
        count = len(said["decisions"])
        each = "its chapter" if count == 1 else f"each of {count} chapters up to it"
        notes.append(f"a quorum signed {each}")
    notes.append("a quorum signed which visits and which model each chapter on the line ended with")
    notes.append(f"by the network's settings that model is {RELEASED[_kept(specs, trust.network)]}")
    if network is None:
        unchecked.append("revocation: that needs --network with the network's newest file")
    else:
        notes.append(f"revocation checked with version {trust.network.version} of the network")
    if signers:
        notes.append(f"erasure is signed by {', '.join(signers)}")
    left = left_of(trust.network.run_id)
    gone = sorted(r["peer"] for r in said["receipts"] if r["run"] == left)
    if gone:
        notes.append(f"left, with everything erased: {', '.join(gone)}")
    if said["pending"]:
        notes.append(f"still pending: {', '.join(said['pending'])}")
    alone = [words for name, words in ALONE.items() if name in said]
    if said["decided"] is not True:
        alone.append(f"that {unused(document)}")
    return Findings([], notes, unchecked, [f"by the issuer alone: {', '.join(alone)}"])


def _trust(said: Mapping[str, Any], authority: Path, newest: Path | None) -> Trust:
    """The network that a certificate was issued in, as its CA signed it."""
    shown, ca = said["network_file"], read_pem(authority)
    network = network_from(shown["network"], shown["signature"], ca, "peers.network_file")
    if newest is not None:
        given = read_network(newest, ca)
        if given.run_id != network.run_id:
            raise Refused(f"the certificate is not from the run that {newest} is of.")
        network = given
    return Trust(ca, network)


def _check_issuer(
    document: Mapping[str, Any], said: Mapping[str, Any], trust: Trust, *, newest: bool
) -> None:
    """The peer that the certificate names as its issuer has to have signed it, with its own key.

    For requests that needed no walk, only the issuer says when they were answered.  So the newest
    network file, if it is given, must not revoke such an issuer at all.
    """
    signer = document["signer"]
    identity = trust.identity(str(signer["chain"]), past=True, chapter=said["chapter"])
    if identity.peer != said["issuer"]:
        raise Refused(f"the certificate says that {said['issuer']} issued it, not {identity.peer}.")
    if raw_key(identity.signing).hex() != signer["public_key"]:
        raise Refused(f"the key that signed is not that of {identity.peer}.")
    first = trust.network.revoked.get(identity.serial)
    if newest and said["decided"] is not True and first is not None:
        raise Refused(
            f"the certificate of {identity.peer} was revoked from chapter {first} on, and nobody "
            "else says that its records were never used."
        )


def _check_decided(said: Mapping[str, Any], trust: Trust, names: Sequence[str]) -> list[Spec]:
    """What was decided has to be what is certified: for whom, by whom, and which requests.

    The chapters that were decided.
    """
    run = trust.network.run_id
    specs = read_chapters(trust, run, said["decisions"])
    if len(specs) != said["chapter"]:
        raise Refused(f"{len(specs)} chapters are shown as decided, not {said['chapter']}.")
    if specs:
        run = run_of(run, specs[-1])
    if said["run"] != run:
        raise Refused("the certificate is about another walk than the chapter that is shown.")
    if said["decided"] is not True:
        if said["issuer"] != said["peer"]:
            raise Refused("only the peer itself can say that its records were never used.")
        return specs
    spec = specs[-1]
    stated = (said["requests"], said["peer"], said["issuer"])
    if stated != (list(spec.requests), names[spec.peer], names[spec.holder]):
        raise Refused("requests, peer or issuer are not those that the peers decided on.")
    return specs


def _check_header(
    transcript: Transcript, specs: Sequence[Spec], said: Mapping[str, Any], network: Network
) -> None:
    """What accountants read in the header has to follow from the network's file and decisions."""
    book, known = Book(network), marked(specs)
    if said["decided"] is True:
        plan = book.forgetting(known[-1], said["run"], known[:-1])
    else:
        u, asked = network.index(said["peer"]), tuple(said["requests"])
        before, records = len(transcript.hops), transcript.header["forget"]
        plan = book.quiet(silent_spec(known, before, u, asked, records), said["run"], known)
    wanted = json.loads(canonical(plan.header()))
    shown = {k: v for k, v in transcript.header.items() if k != "recovered"}
    for name in sorted((wanted.keys() | shown.keys()) - {"unwalk"}):
        if wanted.get(name) != shown.get(name):
            raise Refused(
                f"the transcript's header has {name} {shown.get(name)!r}; by the network's file "
                f"and what was decided it is {wanted.get(name)!r}."
            )


def _kept(specs: Sequence[Spec], network: Network) -> str:
    """Which iterate is the result of the last chapter that was not given up."""
    config = resolve(network.run_settings, where="the network file")
    ended = [spec.method for spec in marked(specs) if not spec.void]
    if ended:
        return "last" if ended[-1] == "rewind" else config.unlearn.keep
    return config.train.keep


def _line(specs: Sequence[Spec], network: Network, *, decided: bool) -> list[tuple[int, str, int]]:
    """The visits that a certificate rests on, as (chapter, walk, number in it), and no others.

    Those are the visits that led to the model before the request and, where a chapter was decided
    for it, that chapter's own.
    """
    runs = [network.run_id, *(run_of(network.run_id, spec) for spec in specs)]
    hops = resolve(network.run_settings, where="the network file").train.hops
    known = marked(specs)
    places = line(hops, known[:-1] if decided else known)
    if decided:
        places += [(specs[-1].number, k) for k in range(1, specs[-1].hops + 1)]
    return [(chapter, runs[chapter], place) for chapter, place in places]


def _check_visits(
    visits: list[dict[str, Any]],
    transcript: Transcript,
    trust: Trust,
    places: Sequence[tuple[int, str, int]],
) -> None:
    """Every visit is of the line that was decided, signed, and handed on by the one before it.

    One signed with a revoked key counts as well: a quorum voted for the walk that it is in, and
    nobody can add another one (:func:`_check_ends`).
    """
    if not len(visits) == len(transcript.hops) == len(places):
        raise Corrupt(
            f"{len(visits)} visits were signed and {len(transcript.hops)} are certified; "
            f"{len(places)} were walked."
        )
    last = transcript.header["phases"][-1]["name"]
    before: Hop | None = None
    rows = zip(visits, transcript.hops, places, strict=True)
    for number, (visit, hop, (_, run, place)) in enumerate(rows, 1):
        signed = check_visit(trust, visit, run, int(visit["visit"]["hop"]))
        if as_walked(signed, number, last) != hop:
            raise Corrupt(f"hop {number} is not what peer {hop.receiver} signed.")
        if signed.phase_hop != place:
            raise Corrupt(f"hop {number} is visit {signed.phase_hop} of its walk, not {place}.")
        if place > 1 and before is not None and signed.sender != before.receiver:
            raise Corrupt(
                f"hop {number} came from peer {signed.sender}, not from that of the hop before."
            )
        before = signed


def _check_ends(
    said: Mapping[str, Any],
    trust: Trust,
    specs: Sequence[Spec],
    visits: Sequence[dict[str, Any]],
    places: Sequence[tuple[int, str, int]],
) -> Closing:
    """The visits have to be those that the peers decided on, of each chapter on the line.

    How the last of them ended.
    """
    walked: dict[int, list[dict[str, Any]]] = {}
    for visit, (chapter, _, _) in zip(visits, places, strict=True):
        walked.setdefault(chapter, []).append(visit)
    shown = codec.listed(said["ends"], "ends", most=MOST_CHAPTERS + 1)
    if [end[0] for end in shown] != sorted(walked):
        raise Refused("it is not shown of each chapter on the line how it ended.")
    closing = None
    for number, text, decision, rest in shown:
        closing = read_end(trust, number, specs, text, decision)
        if closing.void:
            raise Refused(f"chapter {number} was given up; it ended without a visit.")
        digest = visits_digest(walked[number], codec.digest(rest, "the rest of the visits"))
        if digest != closing.visits:
            raise Refused(
                f"the visits of chapter {number} are not those that the peers decided on."
            )
    assert closing is not None
    after = len(places)
    if said["decided"] is True:
        after = 0 if specs[-1].method == "restart" else specs[-1].position
    if said["erased_after_hop"] != after:
        raise Refused(f"what was erased begins after hop {after}, by what was decided.")
    return closing


def _check_receipts(
    said: Mapping[str, Any], trust: Trust, specs: Sequence[Spec], end: str
) -> list[str]:
    """Whoever is said to have erased has to have signed that; their names."""
    names, out = set(), specs[-1].left if specs else ()
    for record in said["receipts"]:
        receipt = Receipt.from_json(record)
        if receipt.run == left_of(trust.network.run_id):  # it kept nothing at all
            receipt.check_left(trust, said["chapter"], out)
        else:
            receipt.check(trust, run=said["run"], chapter=said["chapter"], end=end)
        names.add(receipt.peer)
    pending = list(said["pending"])
    everybody = sorted([*names, *pending]) == sorted(said["members"])
    nobody = not names and not pending and said["decided"] is not True and said["chapter"] == 0
    if not everybody and not nobody:
        raise Corrupt("receipts and pending peers are not all peers, each once.")
    return sorted(names)


def released_as(closing: Closing) -> dict[str, str]:
    """What a certificate says of the model that a chapter ended with."""
    return {"file": MODEL, "sha256": closing.model}


def released(document: Mapping[str, Any], place: Path) -> bytes | None:
    """The model that a certificate is for: beside its file, or made from the store it lies in."""
    if place.with_name(MODEL).is_file():
        return place.with_name(MODEL).read_bytes()
    store = place.resolve().parent.parent.parent
    try:
        said, run = document["model"], document["peers"]["run"]
        with closing_file(read_only(store / "state.sqlite")) as db:
            row = db.execute("SELECT state FROM runs WHERE run = ?", (run,)).fetchone()
        end = json.loads(row[0])["committed"]
        raw = salted(store / "tokens" / f"{end['token']}.safetensors", end["salt"])
    except (OSError, sqlite3.Error, LookupError, TypeError, ValueError):  # nobody's store, or gone
        return None
    return raw if model_of(raw) == said else None


def verified(place: Path, authority: Path, network: Path | None = None) -> dict[str, Any]:
    """What ``unwalk verify --json`` says of the certificate in a file, with its CA trusted."""
    document = read_certificate(place)
    path = place.with_name(TRANSCRIPT)
    transcript = Transcript.read(path) if path.is_file() else None
    model = released(document, place)
    verdict = verify(document, transcript, model=model, trust=str(authority), now=now())
    if transcript is not None:
        verdict = check(document, transcript, place, authority, network).added_to(verdict)
    return {**verdict.to_json(document), "replayed": False}


def printed(place: Path, checked: Mapping[str, Any]) -> str:
    """The certificate in a file as a page, with what :func:`verified` said of it."""
    document = {} if checked["problems"] else read_certificate(place)
    words = in_words(document) if document else {}
    return render_certificate(document, words, checked, f"{now():%Y-%m-%d}")
