"""Every check of the accountants, found in their source; each can be taken out alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from unwalk.certificates import conditions
from unwalk.certificates import document as certificate_document
from unwalk.core.errors import Refused
from unwalk.methods import METHODS
from unwalk.privacy import accountants, exact, iteration, ledger, stability

MODULES: tuple[ModuleType, ...] = (
    accountants,
    iteration,
    ledger,
    stability,
    certificate_document,
    conditions,
    exact,
)
_REFUSING = ("refuse", "refuse_fact", "need_fact", "refuse_unknown", "_refuse_visit")


@dataclass(frozen=True)
class Check:
    """One statement that refuses: in which function, with which code, the how manieth of those."""

    module: str
    function: str
    code: str
    number: int
    line: int
    end: int

    @property
    def name(self) -> str:
        tail = f" {self.number}" if self.number > 1 else ""
        return f"{self.module}.{self.function}: {self.code}{tail}"


@cache
def checks() -> dict[str, Check]:
    """All checks by name."""
    found: dict[str, Check] = {}
    for module in MODULES:
        counts: dict[tuple[str, str], int] = {}
        short = module.__name__.split(".", 1)[1]
        for function, node in _statements(_tree(module)):
            code = _code(node)
            if code is None or function in _REFUSING:
                continue
            number = counts[function, code] = counts.get((function, code), 0) + 1
            check = Check(short, function, code, number, node.lineno, node.end_lineno or 0)
            found[check.name] = check
    return found


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))


def _statements(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            local = ".<locals>." if isinstance(node, ast.FunctionDef) else "."
            yield from _statements(child, f"{inside}{local}{child.name}" if inside else child.name)
        else:
            if isinstance(child, ast.stmt) and inside:
                yield inside, child
            yield from _statements(child, inside)


def _code(node: ast.stmt) -> str | None:
    """The code of a refusal, or None for any other statement."""
    call = node.exc if isinstance(node, ast.Raise) else getattr(node, "value", None)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    if isinstance(node, ast.Raise) and call.func.id == "Refused":
        last = call.args[-1] if len(call.args) > 1 else None
        return str(last.value) if isinstance(last, ast.Constant) else "passed on"
    if isinstance(node, ast.Expr) and call.func.id in _REFUSING:
        first = call.args[0]
        if call.func.id == "refuse_unknown":
            return "unknown-event"
        return str(first.value) if isinstance(first, ast.Constant) else "passed on"
    return None


class _Without(ast.NodeTransformer):
    def __init__(self, line: int) -> None:
        self.line = line

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Raise | ast.Expr) and node.lineno == self.line:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


@contextmanager
def removed(check: Check) -> Iterator[None]:
    """The accountants without one check."""
    module = next(m for m in MODULES if m.__name__.endswith("." + check.module))
    tree = _Without(check.line).visit(_tree(module))
    code = compile(tree, module.__file__ or "", "exec", dont_inherit=True, flags=_FUTURE)
    new = _find(code, check.function)
    functions = list(_functions(module, check.function))
    old = [function.__code__ for function in functions]
    for function in functions:
        function.__code__ = new
    try:
        yield
    finally:
        for function, code in zip(functions, old, strict=True):
            function.__code__ = code


_FUTURE = 0


def _find(code: CodeType, function: str) -> CodeType:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_qualname == function:
                return inner
            if function.startswith(inner.co_qualname + "."):
                return _find(inner, function)
    raise LookupError(function)


def _functions(module: ModuleType, function: str) -> Iterator[FunctionType]:
    if "<locals>" in function:
        for record in METHODS.values():
            proof = record.guarantee.proof
            if isinstance(proof, FunctionType) and proof.__qualname__ == function:
                yield proof
        return
    found: Any = module
    for part in function.split("."):
        found = getattr(found, part)
    yield found


@contextmanager
def watched() -> Iterator[set[str]]:
    """Collects the names of the checks that refuse meanwhile."""
    files = {m.__file__: m.__name__.split(".", 1)[1] for m in MODULES}
    lines: dict[tuple[str, int], str] = {}
    for name, check in checks().items():
        for line in range(check.line, check.end + 1):
            lines[check.module, line] = name
    seen: set[str] = set()
    plain: Callable[..., None] = Refused.__init__

    def noted(self: Refused, *args: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        while frame is not None:
            module = files.get(frame.f_code.co_filename)
            name = lines.get((module, frame.f_lineno)) if module else None
            if name:
                seen.add(name)
            frame = frame.f_back  # type: ignore[assignment]
        plain(self, *args, **named)

    Refused.__init__ = noted  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Refused.__init__ = plain  # type: ignore[method-assign]
