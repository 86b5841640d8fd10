"""Models: the built-in ones, and loading those that a user brings.

A built-in model is a function of the input shape and the number of classes.  Those with
BatchNorm have buffers, which travel with the token and are covered by no guarantee; their ``-gn``
variants have GroupNorm instead, and parameters are all that travels.  Initial values come from
torch's global generator, which :func:`unwalk.core.token.build_model` seeds.

What a user names as ``package.module:function``, a model or a task, is loaded at the end.
"""

from __future__ import annotations

import copy
import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput, told
from unwalk.core.outside import global_generator, renewed
from unwalk.core.plan import Loss
from unwalk.core.token import build_model
from unwalk.core.validation import check_choice, near
from unwalk.tasks.resnet import Norm
from unwalk.tasks.resnet import resnet9 as _resnet9
from unwalk.tasks.resnet import resnet18 as _resnet18

Architecture = Callable[[tuple[int, ...], int], nn.Module]
Model = str | nn.Module | Callable[[], nn.Module]
"""What a user may name or bring."""

GROUPS = 16
"""Groups of channels of every GroupNorm here: 2 channels per group or more."""
FLNET_LEAST = 16
RESNET9_LEAST = 3
"""The side in pixels of the smallest picture that FLNet's two convolutions can take."""


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with :data:`GROUPS` groups: each record is normalised by itself, without buffers.

    >>> group_norm(64).num_groups
    16
    """
    return nn.GroupNorm(GROUPS, channels)


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3x3 convolutions of 16 and 32 channels, a 2x2 pool and a linear layer.

    The convolutions start with He's normal values, with which plain SGD needs few steps.

    >>> sum(p.numel() for p in small_cnn((1, 8, 8), 10).parameters())
    9930
    """
    channels, height, width = _picture("small-cnn", shape)
    first = nn.Conv2d(channels, 16, 3, padding=1)
    second = nn.Conv2d(16, 32, 3, padding=1)
    for layer in (first, second):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    pooled = math.ceil(height / 2) * math.ceil(width / 2)
    return nn.Sequential(
        first,
        nn.ReLU(),
        second,
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(32 * pooled, classes),
    )


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 64 ReLU units.

    >>> sum(p.numel() for p in mlp((1, 8, 8), 10).parameters())
    4810
    """
    inputs = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))


def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression, started at zero: a convex problem with a public starting point.

    >>> sum(p.numel() for p in logistic((1, 8, 8), 10).parameters())
    650
    """
    layer = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A linear layer without a bias of its own, started at zero.

    For features with a constant among them: softmax regression under cross-entropy, and the head
    that :func:`unwalk.tasks.gabor.ridge_solution` solves for.

    >>> sum(p.numel() for p in linear((5,), 10).parameters())
    50
    """
    layer = nn.Linear(math.prod(shape), classes, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer)


def flnet(shape: tuple[int, ...], classes: int, norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """The paper's FLNet (App. D): two 5x5 convolutions of 32 and 64 channels, and a linear layer.

    Neither convolution is padded; each is followed by a norm, a ReLU and a 2x2 pool.  Half of
    what the linear layer reads is dropped at random in training.

    >>> sum(p.numel() for p in flnet((1, 28, 28), 10).parameters())
    62538
    """
    channels, height, width = _picture("flnet", shape)
    if min(height, width) < FLNET_LEAST:
        raise InvalidInput(
            f"model 'flnet' takes pictures of {FLNET_LEAST} x {FLNET_LEAST} pixels or more; "
            f"the inputs have {height} x {width}."
        )
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        norm(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * math.prod(left), classes),
    )


def resnet18(
    shape: tuple[int, ...], classes: int, norm: Norm = nn.BatchNorm2d, *, he: bool = True
) -> nn.Module:
    """The paper's ResNet-18 (App. D), with a 3x3 first layer: see :mod:`unwalk.tasks.resnet`."""
    channels, _, _ = _picture("resnet18", shape)
    return _resnet18(channels, classes, norm, he=he)


def resnet9(shape: tuple[int, ...], classes: int, norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """A small residual network: see :mod:`unwalk.tasks.resnet`."""
    channels, height, width = _picture("resnet9", shape)
    if min(height, width) < RESNET9_LEAST:
        raise InvalidInput(
            f"model 'resnet9' takes pictures of {RESNET9_LEAST} x {RESNET9_LEAST} pixels or more; "
            f"the inputs have {height} x {width}."
        )
    return _resnet9(channels, classes, norm)


def _picture(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of a picture; anything else is refused."""
    if len(shape) != 3:
        raise InvalidInput(
            f"model {name!r} takes pictures (channels, height, width); the inputs have shape "
            f"{shape}."
        )
    return shape


@dataclass(frozen=True)
class Entry:
    """A built-in model and what the command line says about it."""

    build: Architecture
    about: str


MODELS: Mapping[str, Entry] = {
    "small-cnn": Entry(small_cnn, "two 3x3 convolutions, a pool and a linear layer; pictures"),
    "mlp": Entry(mlp, "one hidden layer of 64 units; any input"),
    "logistic": Entry(logistic, "softmax regression from zero; any input; convex"),
    "linear": Entry(linear, "the same without a bias, for features with a constant; convex"),
    "flnet": Entry(flnet, "the paper's for MNIST, with BatchNorm; pictures of 16 x 16 or more"),
    "flnet-gn": Entry(
        partial(flnet, norm=group_norm), f"flnet with GroupNorm of {GROUPS} groups: no buffers"
    ),
    "resnet9": Entry(resnet9, "a small residual network, with BatchNorm; pictures"),
    "resnet18": Entry(resnet18, "the paper's for CIFAR-10, with BatchNorm; pictures"),
    "resnet18-plain": Entry(
        partial(resnet18, he=False), "resnet18 that starts with PyTorch's own, smaller values"
    ),
    "resnet18-gn": Entry(
        partial(resnet18, norm=group_norm),
        f"resnet18 with GroupNorm of {GROUPS} groups: no buffers",
    ),
}


@dataclass(frozen=True, eq=False)
class Factory:
    """Makes a new model, drawn at random, at every call; ``own`` is one that a user brought.

    A user's function may return the same module at every call, or models that share parts.  Walks
    then get copies, and the returned module itself is never run.  A second call right after the
    first one detects that.
    """

    name: str
    make: Callable[[], nn.Module]
    own: bool = False
    _shares: list[bool] = field(default_factory=list, init=False, repr=False)
    _given: WeakValueDictionary[int, object] = field(
        default_factory=WeakValueDictionary, init=False, repr=False
    )

    def __call__(self) -> nn.Module:
        """A model that shares nothing with any other."""
        made = self.make()
        if not self.own:
            return made
        if not self._shares:
            with global_generator():
                self._shares.append(_have_in_common(made, self.make()))
        if self._shares[0]:
            return self._copied(made)
        for part in _parts(made):
            if self._given.get(id(part)) is part:
                raise InvalidInput(
                    f"model {self.name!r} returned a {type(part).__name__} that it had returned "
                    "before; allowed: a function that makes a new model at every call, or that "
                    "returns one and the same at every call."
                )
            self._given[id(part)] = part
        return made

    def __reduce__(self) -> tuple[type[Factory], tuple[str, Callable[[], nn.Module], bool]]:
        """What it has returned stays in this process: another one has none of it."""
        return Factory, (self.name, self.make, self.own)

    def _copied(self, made: nn.Module) -> nn.Module:
        try:
            copied = copy.deepcopy(made)
        except Exception as error:  # a user's model may raise anything
            raise InvalidInput(
                f"model {self.name!r} returns one module, or part of one, at every call, and it "
                f"cannot be copied: {told(error)}; allowed: a function that makes a new model at "
                "every call."
            ) from error
        if _have_in_common(made, copied):
            raise InvalidInput(
                f"a copy of model {self.name!r} has modules or tensors in common with it; "
                "allowed: a function that makes a new model at every call."
            )
        return copied


def _parts(model: nn.Module) -> list[nn.Module | torch.Tensor]:
    return [*model.modules(), *model.parameters(), *model.buffers()]


def _have_in_common(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have a module, a tensor or a tensor's memory in common."""
    first_marks, yours = (_marks(model) for model in (one, other))
    return not first_marks.isdisjoint(yours)


def _marks(model: nn.Module) -> set[tuple[str, int]]:
    parts = _parts(model)
    tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.numel()]
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors} - {0}
    return {*(("part", id(part)) for part in parts), *(("place", place) for place in places)}


def usual_model(shape: tuple[int, ...]) -> str:
    """The name of the model that suits inputs of this shape when none is asked for.

    >>> usual_model((3, 32, 32)), usual_model((13,))
    ('small-cnn', 'mlp')
    """
    return "small-cnn" if len(shape) == 3 else "mlp"


def load_factory(text: str, key: str = "model") -> Factory:
    """The user's factory called ``package.module:factory``: a function that returns a model."""
    return Factory(text, partial(_from_named, load_named(text, key), text, key), own=True)


def _from_named(function: Callable[..., object], text: str, key: str = "model") -> nn.Module:
    model = call_named(function, text, key)
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"{key} {text!r} returned a {type(model).__name__}; allowed: a torch.nn.Module."
        )
    return model


def resolve_model(model: Model, shape: tuple[int, ...], classes: int) -> Factory:
    """A factory from what a user may name or bring.

    A name of :data:`MODELS`, ``package.module:factory``, a function that returns a model, or a
    model, which is then the initial model as it is.
    """
    if isinstance(model, nn.Module):
        return Factory(type(model).__name__, lambda: model, own=True)
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        return Factory(name, partial(_from_named, model, name), own=True)
    if is_name(model):
        return load_factory(model)
    build = MODELS[check_choice("model", model, MODELS)].build
    return Factory(model, partial(build, shape, classes))


def check_model(
    factory: Callable[[], nn.Module], sample: Held, classes: int, loss: Loss | None = None
) -> None:
    """Run the model on a few records: its output has to be (records, classes).

    With a ``loss`` of the user's own, that one has to be a number for each record.
    """
    model, loss = build_model(factory, 0).eval(), renewed(loss)
    records, shape = len(sample.y), tuple(sample.x.shape[1:])
    needed = f"labels 0 to {classes - 1} need {(records, classes)}"
    with torch.no_grad():
        try:
            output = model(sample.x)
        except Exception as error:  # a user's model may raise anything
            raise InvalidInput(
                f"the model cannot take inputs of shape {shape}: {told(error)}."
            ) from error
        if not isinstance(output, torch.Tensor):
            raise InvalidInput(
                f"the model's output is a {type(output).__name__}; {needed} as a tensor."
            )
        if tuple(output.shape) != (records, classes):
            raise InvalidInput(
                f"the model's output for {records} records has shape {tuple(output.shape)}; "
                f"{needed}."
            )
        if loss is not None and tuple(loss(output, sample.y).shape) != (records,):
            raise InvalidInput(
                f"the loss of {records} records has shape {tuple(loss(output, sample.y).shape)}; "
                f"allowed: {(records,)}, one number per record."
            )


def is_name(text: str) -> bool:
    """Whether ``text`` names something in a module.

    >>> is_name("shop.models:small"), is_name("small-cnn")
    (True, False)
    """
    return ":" in text


def load_named(text: str, key: str) -> Callable[..., Any]:
    """The callable that ``package.module:function`` names; ``key`` is the setting that names it.

    A module that is not on Python's path is looked for in the current directory as well.

    >>> load_named("math:sqrt", "model")(9.0)
    3.0
    """
    target = load_object(text, key)
    if not callable(target):
        raise InvalidInput(
            f"{key} is {text!r}, which is a {type(target).__name__}; allowed: a function or class."
        )
    return target  # type: ignore[no-any-return]


def load_object(text: str, key: str) -> Any:
    """What ``package.module:name`` names, callable or not."""
    module_name, _, attribute = text.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise InvalidInput(f"{key} is {text!r}; allowed: package.module:function.")
    module = _import(module_name, text, key)
    target = getattr(module, attribute, None)
    if target is None:
        raise InvalidInput(
            f"{key} is {text!r}, but module {module_name!r} has no "
            f"{attribute!r}{near(attribute, vars(module))}."
        )
    return target


def call_named(function: Callable[..., Any], text: str, key: str) -> Any:
    """Call it without arguments; whatever goes wrong is told in one sentence."""
    try:
        return function()
    except InvalidInput:
        raise
    except Exception as error:  # a user's code may raise anything
        raise InvalidInput(f"{key} {text!r} failed when it was called: {told(error)}.") from error


def _import(name: str, text: str, key: str) -> ModuleType:
    here = os.getcwd()
    for attempt in ("path", "current directory"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name and (name == error.name or name.startswith(error.name + "."))):
                raise InvalidInput(_broken(name, text, key, error)) from error
            if attempt == "path" and here not in sys.path:
                sys.path.append(here)
                importlib.invalidate_caches()
        except Exception as error:  # a user's module may raise anything
            raise InvalidInput(_broken(name, text, key, error)) from error
    raise InvalidInput(
        f"{key} is {text!r}, but there is no module {name!r} on Python's path "
        "or in the current directory."
    )


def _broken(name: str, text: str, key: str, error: Exception) -> str:
    return f"{key} is {text!r}, but importing {name!r} failed: {told(error)}."
