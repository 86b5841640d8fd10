"""Finds state that a model keeps outside the token, and restores it after every visit.

A token carries trainable parameters and buffers.  A module may keep more: plain attributes (a
counter, a running mean, a list), parameters that are not trained, a tensor that replaces a buffer,
hooks.  :class:`Surroundings` remembers all of it as it was when the model was built and puts it
back before and after each visit.  Global variables, attributes of classes and what closures hold
are out of its reach; :func:`leftovers` detects such state by computing one gradient twice.

A user's loss and augmentation may keep state in attributes or in closure variables.  The user's
object itself is never called: :func:`renewed` makes a copy of it for every visit.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import operator
from collections.abc import Callable, Hashable, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]
Backward = Callable[[nn.Module, Batch], torch.Tensor]

_TABLES = tuple(name for name, held in vars(nn.Module()).items() if isinstance(held, dict))
"""The attributes in which a module keeps its parameters, buffers, submodules and hooks."""
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_UNCHANGING = (
    *(type(None), bool, int, float, complex, str, bytes, type),
    *(torch.dtype, torch.device, torch.Size, torch.memory_format),
)


class _Module:
    """One module as it was built; ``same`` are the parts of the model itself, by their ids."""

    def __init__(self, module: nn.Module, same: dict[int, Any]) -> None:
        self.module = module
        self.names = frozenset(vars(module))
        tables = [(name, vars(module)[name]) for name in _TABLES if name in vars(module)]
        self.fixed: list[tuple[str, Any]] = list(tables)
        self.flat: list[tuple[Any, Any]] = []
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.others: dict[str, Any] = {}
        for name, value in vars(module).items():
            if name in _TABLES:
                continue
            if isinstance(value, torch.Tensor) and id(value) not in same:
                self.tensors.append((value, value.detach().clone()))
            elif type(value) in _FLAT and all(map(is_fixed, _entries(value))):
                self.flat.append((value, value.copy()))
            elif not is_fixed(value) and id(value) not in same:
                self.others[name] = value
                continue
            self.fixed.append((name, value))
        self.tables = [(table, list(table.items())) for _, table in tables]
        hooks = [h for name, held in tables if name.endswith("_hooks") for h in held.values()]
        self.hooks = [getattr(hook, "__self__", hook) for hook in hooks]

    def put_back(self) -> None:
        attributes = vars(self.module)
        for name in [name for name in attributes if name not in self.names]:
            del attributes[name]
        attributes.update(self.fixed)
        for table, entries in self.tables:
            table.clear()
            table.update(entries)

    def refill(self) -> None:
        """Restore the content of lists, dictionaries, sets and tensors."""
        for now, before in self.flat:
            if not _unchanged(now, before):
                now.clear()
                (now.extend if type(now) is list else now.update)(before)
        for tensor, value in self.tensors:
            tensor.data.copy_(value)


class _Tensor:
    """What a parameter or buffer has besides its values: attributes and hooks."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.attributes = dict(vars(tensor))
        held = [(name, getattr(tensor, name, None)) for name in _TENSOR_HOOKS]
        self.hooks = [(name, hooks, dict(hooks or {})) for name, hooks in held]

    def put_back(self) -> None:
        attributes = vars(self.tensor)
        if not _unchanged(attributes, self.attributes):
            attributes.clear()
            attributes.update(self.attributes)
        for name, hooks, entries in self.hooks:
            now = getattr(self.tensor, name, None)
            if now is hooks and _unchanged(dict(now or {}), entries):
                continue
            if now is not None:  # torch goes on with the table that it was first given
                now.clear()
            if hooks is not None:
                hooks.clear()
                hooks.update(entries)
            setattr(self.tensor, name, hooks)


class _Glance:
    """A fast check whether dictionaries still hold the same objects."""

    def __init__(self, modules: Sequence[_Module]) -> None:
        held = [(vars(m.module), len(m.names), m.fixed) for m in modules]
        held += [(table, len(items), items) for m in modules for table, items in m.tables]
        self.empty = [container for container, size, _ in held if not size]
        self.full = [(container, size, *_getter(items)) for container, size, items in held if items]

    def same(self) -> bool:
        if any(self.empty):
            return False
        try:
            for container, size, get, known in self.full:
                if len(container) != size or not all(map(operator.is_, get(container), known)):
                    return False
        except KeyError:
            return False
        return True


def _getter(items: Sequence[tuple[str, Any]]) -> tuple[Callable[[Any], Any], tuple[Any, ...]]:
    """A getter for these names of a dictionary, and the values that it should return."""
    asked = [*items, items[0]]  # two names at least, so that the answer is a tuple
    return operator.itemgetter(*(name for name, _ in asked)), tuple(value for _, value in asked)


_FLAT = (list, dict, set)


def _entries(value: Any) -> list[Any]:
    return [*value, *value.values()] if type(value) is dict else list(value)


def _unchanged(now: Any, before: Any) -> bool:
    if type(now) is set:
        return bool(now == before)
    return len(now) == len(before) and all(map(operator.is_, _entries(now), _entries(before)))


def _is_object(value: Any) -> bool:
    """Whether a value has attributes of its own, and is no function, class or Python module."""
    return hasattr(value, "__dict__") and not isinstance(value, (FunctionType, ModuleType, type))


def is_fixed(value: Any) -> bool:
    """Whether a value is immutable, so that comparing its identity is enough."""
    if type(value) in (tuple, frozenset):
        return all(map(is_fixed, value))
    return type(value) in _UNCHANGING


class _Itself:
    """Equal to the same thing alone."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def settled(value: Any) -> Hashable:
    """A value to compare: by what it is if that cannot change or holds only such, else by identity.

    >>> settled([1, 2]) == settled([1, 2]), settled(object()) == settled(object())
    (True, False)
    """
    if is_fixed(value):
        return type(value), value
    if isinstance(value, _FLAT):
        pairs = list(value.items()) if isinstance(value, dict) else list(value)
        if all(map(is_fixed, pairs)):
            return type(value), tuple(pairs)
    return _Itself(value)


def travelling(model: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that travel with a token, by name.

    All of them; but where a part of the model is not trained, those that the model does not save
    (``persistent=False``: positions, frequencies) are of that part.

    >>> model = nn.Linear(2, 1)
    >>> model.register_buffer("places", torch.arange(2), persistent=False)
    >>> list(travelling(model)), list(travelling(model.requires_grad_(False)))
    (['places'], [])
    """
    buffers = dict(model.named_buffers())
    if all(p.requires_grad for p in model.parameters()):
        return buffers
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    return {name: buffer for name, buffer in buffers.items() if id(buffer) in saved}


def staying(model: nn.Module) -> list[torch.Tensor]:
    """What does not travel: parameters that are not trained, and buffers of that part."""
    travel = set(map(id, travelling(model).values()))
    still = [buffer for buffer in model.buffers() if id(buffer) not in travel]
    return [*(p for p in model.parameters() if not p.requires_grad), *still]


class Surroundings:
    """Everything in a model besides the tensors that travel, as it was when built.

    ``trained`` shows the parameters that a workspace keeps in a flat vector of its own.  The
    engines' own modules are left alone.
    """

    def __init__(
        self, model: nn.Module, trained: Sequence[tuple[nn.Parameter, torch.Tensor]] = ()
    ) -> None:
        # What stands in the model itself is never copied, so that it stays the same thing.
        parts = [*model.modules(), *model.parameters(), *model.buffers()]
        self.same = {id(thing): thing for thing in parts}
        self.modules = [
            _Module(module, self.same)
            for module in model.modules()
            if not type(module).__module__.startswith("unwalk.engines.")
        ]
        self.trained = [(p, view, view.data_ptr()) for p, view in trained]
        self.frozen = [(t, t.data, t.detach().clone()) for t in staying(model)]
        self.buffers = [
            (module._buffers, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.holders = [module for module in self.modules if module.others]
        self.states = [_Tensor(t) for t in (*model.parameters(), *model.buffers())]
        hooks = {id(hook): hook for module in self.modules for hook in module.hooks}
        self.hooks = [h for key, h in hooks.items() if key not in self.same and _is_object(h)]
        self.same |= {id(hook): hook for hook in self.hooks}
        self.filled = [module for module in self.modules if module.flat or module.tensors]
        self.glance = _Glance([module for module in self.modules if not module.others])
        held = [module.others for module in self.holders]
        self.copies = self._copied([*held, *(dict(vars(hook)) for hook in self.hooks)])

    def _copied(self, dictionaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Copies of attributes; objects that were shared are shared in the copies.

        What cannot be copied is left as it is: the probe finds out whether it matters.
        """
        memo: dict[int, Any] = dict(self.same)
        copies: list[dict[str, Any]] = []
        for attributes in dictionaries:
            copied = {}
            for name, value in attributes.items():
                try:
                    copied[name] = copy.deepcopy(value, memo)
                except Exception:  # a user's object may raise anything
                    copied[name] = value
            copies.append(copied)
        return copies

    def keep_buffers(self) -> None:
        """Keep buffers travelling that a forward pass replaced by another tensor."""
        for table, name, buffer in self.buffers:
            put = table.get(name)
            if put is not buffer and put is not None and put.shape == buffer.shape:
                buffer.copy_(put.detach())

    def put_back(self) -> None:
        """Restore everything as it was built; the tensors that travel keep their values."""
        for module in self.holders if self.glance.same() else self.modules:
            module.put_back()
        for module in self.filled:
            module.refill()
        if self.copies:
            copies, count = self._copied(self.copies), len(self.holders)
            for module, attributes in zip(self.holders, copies[:count], strict=True):
                vars(module.module).update(attributes)
            for hook, attributes in zip(self.hooks, copies[count:], strict=True):
                vars(hook).clear()
                vars(hook).update(attributes)
        for state in self.states:
            state.put_back()
        for parameter, view, place in self.trained:
            if parameter.data_ptr() != place:
                parameter.data = view
            if not parameter.requires_grad:
                parameter.requires_grad_(True)
        for tensor, data, value in self.frozen:
            if tensor.data_ptr() != data.data_ptr():
                tensor.data = data
            if tensor.requires_grad:
                tensor.requires_grad_(False)
            tensor.data.copy_(value)


def leftovers(
    model: nn.Module, gradients: Callable[[], Backward], first: Batch, second: Batch
) -> str | None:
    """Say what state survives a gradient although everything was put back; None if nothing does.

    ``gradients`` gives the function by which a visit computes them: it adds the gradient of a batch
    to the parameters' and returns the model's output.

    The test: the gradient of the first batch, then of the second (also run in evaluation mode),
    then everything is put back, then the first batch again.  If the result differs in any bit,
    something kept state.  Generators are put back too.

    Each parameter's gradient is hashed and let go as soon as it is there.
    """
    made: dict[int, list[bytes]] = {}

    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            made.setdefault(id(parameter), []).append(_hashed(parameter.grad))
            parameter.grad = None

    for parameter in model.parameters():
        if parameter.requires_grad:  # before what is there is remembered, or it would be taken off
            parameter.register_post_accumulate_grad_hook(note)
    trained = [(p, p.data) for p in model.parameters() if p.requires_grad]
    around = Surroundings(model, trained)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    values = [(p, p.detach().clone()) for p in model.parameters()]

    def as_built() -> None:
        around.put_back()
        with torch.no_grad():
            for tensor, value in (*buffers, *values):
                tensor.copy_(value)
        torch.default_generator.manual_seed(0)

    def gradient(batch: Batch) -> list[list[bytes]]:
        as_built()
        made.clear()
        model.train()
        output = gradients()(model, batch)
        for parameter, _ in trained:  # one that the model itself has put there
            note(parameter)
        shown = [_hashed(tensor) for tensor in (output, *(buffer for buffer, _ in buffers))]
        return [shown, *(made.get(id(parameter), []) for parameter, _ in trained)]

    with torch.random.fork_rng(devices=[]):
        before = gradient(first)
        gradient(second)
        as_built()
        with torch.no_grad():
            model.eval()(second[0])
        after = gradient(first)
    if before == after:
        return None
    return (
        "the gradient on one batch changes once another was seen, although parameters, buffers "
        "and attributes were put back"
    )


def _hashed(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if flat.is_floating_point():
        flat = flat.nan_to_num(7.0)
    digest = hashlib.sha256(f"{tuple(tensor.shape)}".encode())
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()


Call = TypeVar("Call", bound="Callable[..., Any] | None")


def renewed(call: Call) -> Call:
    """A fresh copy of ``call``; ``call`` itself if it has no state or cannot be copied."""
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
    """The functions by which a visit computes gradients, made again for every visit."""

    def visit() -> Backward:
        own_loss, changed = renewed(loss), renewed(augment)
        generator = torch.Generator().manual_seed(0)

        def backward(model: nn.Module, batch: Batch) -> torch.Tensor:
            x, y = batch
            output: torch.Tensor = model(x if changed is None else changed(x.clone(), generator))
            by = functional.cross_entropy if own_loss is None else own_loss
            by(output, y).mean().backward()
            return output

        return backward

    return visit


def _name(call: Any) -> str:
    return str(getattr(call, "__name__", type(call).__name__))


def _keeps_nothing(call: Any) -> bool:
    """Whether a call is None or a plain function without state."""
    if isinstance(call, FunctionType):
        given = (*(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values())
        return not call.__closure__ and not vars(call) and all(map(is_fixed, given))
    if isinstance(call, BuiltinFunctionType):
        return call.__self__ is None or isinstance(call.__self__, (ModuleType, type))
    return call is None or isinstance(call, type)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, also of a function, together with its closure variables."""
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
    """A function with state inside an object, which a copy does not reach; or None."""
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
