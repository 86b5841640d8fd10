"""The sentences with which a peer refuses, as they stand in the source, and which were met."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from unwalk.core import errors, events, transcript
from unwalk.peers import (
    agenda,
    chapters,
    codec,
    council,
    decisions,
    ends,
    erasure,
    gate,
    history,
    hoplog,
    intake,
    leaving,
    minutes,
    network,
    poll,
    store,
    succession,
    talk,
    tokens,
    trust,
    votes,
    wire,
)

MODULES: tuple[ModuleType, ...] = (
    *(agenda, chapters, codec, council, decisions, ends, erasure, events, gate, history, hoplog),
    *(intake, leaving, minutes, network, poll, store, succession, talk, tokens, transcript, trust),
    *(votes, wire),
)
NUMBERS = re.compile(r"[0-9a-f]{16,}|\d+")
INNER = re.compile(r"\((.*)\)\.\Z", re.DOTALL)
"""A reason within a reason."""
ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value)}
ERRORS |= {"Fork"}


def met(seen: dict[str, int]) -> None:
    """Count every sentence that an error is made with from now on, wherever it is caught."""

    def init(self: Exception, *args: Any) -> None:
        Exception.__init__(self, *args)
        said = str(args[0]) if args else ""
        inner = INNER.search(said[:300])
        for text in (said, inner.group(1) if inner else ""):
            if text:
                words = sentence_of(text)
                seen[words] = seen.get(words, 0) + 1

    errors.UnwalkError.__init__ = init  # type: ignore[method-assign,assignment]


def sentence_of(text: str) -> str:
    """A reason as it stands in the source; one that does not, without its numbers."""
    plain = NUMBERS.sub("#", text[:300])
    known = _known(plain)
    return known if known is not None else plain[:120]


@cache
def patterns() -> list[tuple[re.Pattern[str], str]]:
    """Every sentence of the source as a pattern; those with most words of their own first."""
    found = {}
    for module in MODULES:
        name = module.__name__.rpartition(".")[2]
        names = ERRORS | {"ValueError"} if module is tokens else ERRORS
        for pattern, words in _sentences(ast.parse(inspect.getsource(module)), names):
            found[f"{name}: {words}"] = pattern
    ordered = sorted(found, key=lambda words: -len(words.replace("…", "")))
    return [(re.compile(found[words] + r"\Z", re.DOTALL), words) for words in ordered]


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
