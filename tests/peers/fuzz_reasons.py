"""The sentences with which a peer refuses, as they stand in the source, and which were met."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from unwalk.core import errors, events, transcript
from unwalk.peers.decisions import ballot, decided, history, votes, walk_end
from unwalk.peers.forgetting import erasure
from unwalk.peers.handover import (
    byte_stream,
    checks,
    control_messages,
    doorway,
    end_vote,
    last_token,
    log_rules,
    receiving,
    receiving_places,
)
from unwalk.peers.identity import network_file, trust
from unwalk.peers.lifecycle import certifying, chapter_runner, leaving, next_chapter
from unwalk.peers.protocol import codec, consensus, hoplog, messages, schedule
from unwalk.peers.storage import store, token_files
from unwalk.peers.transport import wire

MODULES: tuple[ModuleType, ...] = (
    *(events, transcript, codec, consensus, hoplog, schedule, network_file, trust, wire, store),
    *(token_files, ballot, decided, history, votes, walk_end, byte_stream, checks),
    *(control_messages, end_vote, last_token, log_rules, receiving, erasure, certifying),
    *(receiving_places, chapter_runner, leaving, next_chapter, doorway, messages),
)
NUMBERS = re.compile(r"[0-9a-f]{16,}|\d+")
INNER = re.compile(r"\((.*)\)\.\Z", re.DOTALL)
"""A reason within a reason."""
FILES = "about a file of this peer's own, read when it starts"
ENDS = "tests/peers/test_ends_in_certificates.py"
FETCHED = "tests/peers/test_log_fetched.py"
LOGS = "tests/peers/test_log_lies.py"
ELSEWHERE = {
    "network_file: ": FILES,
    "transcript: the first line": FILES,
    "transcript: the transcript is empty": FILES,
    "transcript: transcript line": FILES,
    "transcript: … does not end": FILES,
    "transcript: … has more than": FILES,
    "trust: … cannot be used": FILES,
    "trust: … does not belong": FILES,
    "trust: … has no": FILES,
    "trust: … is no folder": FILES,
    "trust: … is not signed": FILES,
    "store: … is in use": FILES,
    "store: the store names": FILES,
    "store: token … is damaged": FILES,
    "store: what this peer kept": FILES,
    "receiving: this peer no longer has": "after many visits: tests/peers/test_store.py",
    "receiving: the token cannot be stored": "a full disk: tests/peers/test_disk.py",
    "receiving_places: the token did not arrive": "takes a lease",
    "store: the token was given up": "needs a call that is cancelled while it writes",
    "end_vote: what was decided": "needs more liars than the network allows for",
    "wire: peer … has": "many calls at once: tests/peers/test_floods.py",
    "wire: the call said nothing": "takes seconds: tests/peers/test_floods.py",
    "hoplog: a log entry tells of no visit": "seen before, when the visit is read",
    "token_files: … has … bytes, which is no": "seen before, by the checks",
    "hoplog: the body of a log entry": "seen before, by codec",
    "hoplog: log entry …": "seen before, when a log is put together: tests/peers/test_hoplog.py",
    "hoplog: the log does not end": "seen before, when a log is put together",
    "receiving: a message of that kind": "a test of its own: tests/peers/test_fuzz.py",
    "receiving: a token is offered": "a test of its own: tests/peers/test_fuzz.py",
    "checks: the token is after hop …, not": f"needs whoever made the last token: {LOGS}",
    "codec: … is nested too deeply": "seen before, when the message is read",
    "control_messages: another generation": "two calls at once: tests/peers/test_fuzz.py",
    "control_messages: the log of a generation": "takes a lease",
    "decided: chapter … was signed with": "needs a stolen key: tests/peers/test_revocations.py",
    "decided: those votes on … are": f"needs votes on two ends: {ENDS}",
    "erasure: … signed that it left": "a peer that left: tests/peers/test_certificates_kept.py",
    "last_token: another log": f"while a log is fetched: {FETCHED}",
    "last_token: the log that leads": f"while a log is fetched: {FETCHED}",
    "last_token: … other ends": f"needs several walks that ended: {ENDS}",
    "log_rules: a sighting has": f"needs a lineage of many generations: {LOGS}",
    "log_rules: peer … has no copy": f"needs a graph on which no peer relays: {LOGS}",
    "log_rules: only peer …": f"needs a chapter that seals: {LOGS}",
    "log_rules: peer … opens a generation and": "a peer that left: tests/peers/test_lies.py",
    "log_rules: peer … opens more than": f"needs many recoveries: {LOGS}",
    "next_chapter: its visits did not come": "takes a lease: tests/peers/test_visits_fetched.py",
    "next_chapter: those visits are not": f"needs another walk's visits: {ENDS}",
}
"""Beginnings of sentences that no message of a fuzzer leads to, and why."""
ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value)}
ERRORS |= {"Fork"}


@contextmanager
def met(seen: dict[str, int]) -> Iterator[None]:
    """Count every sentence that an error is made with meanwhile, wherever it is caught."""

    def init(self: Exception, *args: Any) -> None:
        Exception.__init__(self, *args)
        said = str(args[0]) if args else ""
        inner = INNER.search(said[:300])
        for text in (said, inner.group(1) if inner else ""):
            if text:
                words = sentence_of(text)
                seen[words] = seen.get(words, 0) + 1

    errors.UnwalkError.__init__ = init  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del errors.UnwalkError.__init__


def elsewhere(words: str) -> str | None:
    """Why no message can be answered so, or where it is tested; None if one can."""
    return next((why for start, why in ELSEWHERE.items() if words.startswith(start)), None)


def sentence_of(text: str) -> str:
    """A reason as it stands in the source; one that does not, without its numbers."""
    plain = NUMBERS.sub("#", text[:300])
    known = _known(plain)
    return known if known is not None else plain[:120]


@cache
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """Every sentence of the source as a pattern; those with most words of their own first."""
    found: dict[str, tuple[str, list[str]]] = {}
    for module in MODULES:
        name = module.__name__.rpartition(".")[2]
        names = ERRORS | {"ValueError"} if module is token_files else ERRORS
        for pattern, words in _sentences(ast.parse(inspect.getsource(module)), names):
            said = found.setdefault(words, (pattern, []))[1]
            if name not in said:
                said.append(name)
    ordered = sorted(found, key=lambda words: -len(words.replace("…", "")))
    return [
        (re.compile(pattern + r"\Z", re.DOTALL), f"{', '.join(said)}: {words}")
        for words in ordered
        for pattern, said in [found[words]]
    ]


_CACHE: dict[str, str | None] = {}


def _known(text: str) -> str | None:
    if text not in _CACHE:
        if len(_CACHE) > 20_000:
            _CACHE.clear()
        match = (words for pattern, words in patterns() if pattern.match(text))
        _CACHE[text] = next(match, None)
    return _CACHE[text]


def _sentences(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in names and node.args:
            found = _words(node.args[0])
            if found is not None and len(found[1].replace("…", "").strip()) > 3:
                yield found


def _words(node: ast.expr) -> tuple[str, str] | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(NUMBERS.sub("#", node.value)), node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            (re.escape(NUMBERS.sub("#", str(v.value))), v.value)
            if isinstance(v, ast.Constant)
            else (".*", "…")
            for v in node.values
        ]
        return "".join(str(p) for p, _ in parts), "".join(str(w) for _, w in parts)
    return None
