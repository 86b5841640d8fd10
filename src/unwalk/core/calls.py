"""A user's loss and augmentation: every visit has copies of its own.

What such a call keeps in attributes, or in variables of a function round it, would otherwise
outlive the visit.  Nobody calls what the user gave: :func:`renewed` makes a copy of it as it was
given.  Global variables and attributes of classes are out of reach.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional

from unwalk.core.outside import Backward, Batch, is_fixed

Call = TypeVar("Call", bound="Callable[..., Any] | None")


def renewed(call: Call) -> Call:
    """``call`` as it was given; itself where it keeps nothing, or where it cannot be copied."""
    if _keeps_nothing(call):
        return call
    try:
        made: Call = _copied(call, {})
    except Exception:  # a user's object may raise anything
        return call
    return made


def held_fast(call: Callable[..., Any] | None) -> str | None:
    """Why a call cannot be renewed, in words; None if it can."""
    if _keeps_nothing(call):
        return None
    try:
        if _copied(call, {}) is call:
            return f"a copy of {_name(call)} is the same object"
    except Exception as error:  # a user's object may raise anything
        return f"{_name(call)} cannot be copied ({type(error).__name__})"
    inner = _inner(call)
    return None if inner is None else f"{_name(call)} holds a function with state, {_name(inner)}"


def visits(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    augment: Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None,
) -> Callable[[], Backward]:
    """What a visit computes gradients by, made anew at every call."""

    def visit() -> Backward:
        mine, changed = renewed(loss), renewed(augment)
        generator = torch.Generator().manual_seed(0)

        def backward(model: nn.Module, batch: Batch) -> torch.Tensor:
            x, y = batch
            output: torch.Tensor = model(x if changed is None else changed(x.clone(), generator))
            by = functional.cross_entropy if mine is None else mine
            by(output, y).mean().backward()
            return output

        return backward

    return visit


def _name(call: Any) -> str:
    return str(getattr(call, "__name__", type(call).__name__))


def _keeps_nothing(call: Any) -> bool:
    """Whether a call is nothing, or a plain function without variables of its own."""
    if isinstance(call, FunctionType):
        given = (*(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values())
        return not call.__closure__ and not vars(call) and all(map(is_fixed, given))
    if isinstance(call, BuiltinFunctionType):
        return call.__self__ is None or isinstance(call.__self__, (ModuleType, type))
    return call is None or isinstance(call, type)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; of a function too, with the variables of the functions round it."""
    if not isinstance(value, FunctionType):
        return copy.deepcopy(value, memo)
    if _keeps_nothing(value):
        return value
    if id(value) in memo:
        return memo[id(value)]
    cells = []
    for cell in value.__closure__ or ():
        known = id(cell) in memo
        cells.append((cell, memo.setdefault(id(cell), CellType()), known))
    closure = tuple(new for _, new, _ in cells) or None
    made = FunctionType(value.__code__, value.__globals__, value.__name__, None, closure)
    memo[id(value)] = made
    for cell, new, known in cells:
        if not known and _is_filled(cell):
            new.cell_contents = _copied(cell.cell_contents, memo)
    made.__defaults__ = copy.deepcopy(value.__defaults__, memo)
    made.__kwdefaults__ = copy.deepcopy(value.__kwdefaults__, memo)
    vars(made).update({name: _copied(held, memo) for name, held in vars(value).items()})
    return made


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _inner(call: Any) -> FunctionType | None:
    """A function with state that stands in an object, where no copy reaches it; or None."""
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(call, True)]
    while waiting:
        value, reached = waiting.pop()
        if id(value) in seen or is_fixed(value):
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if not reached and not _keeps_nothing(value):
                return value
            cells = [c.cell_contents for c in value.__closure__ or () if _is_filled(c)]
            waiting += [(held, True) for held in (*cells, *vars(value).values())]
            waiting += [(value.__defaults__, False), (value.__kwdefaults__, False)]
        elif isinstance(value, MethodType):
            waiting.append((value.__self__, False))
        elif not isinstance(value, (type, ModuleType, torch.Tensor)):
            waiting += [(held, False) for held in gc.get_referents(value)]
    return None
