"""Models: the built-in ones, and any that a user brings.

A built-in model is a function of the input shape and the number of classes.  None of them has
buffers (no BatchNorm), so that parameters are all that travels.  Initial values come from torch's
global generator, which :func:`unwalk.core.workspace.build_model` seeds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Loss
from unwalk.core.validation import check_choice
from unwalk.core.workspace import build_model
from unwalk.tasks.named import call_named, is_name, load_named, told

Architecture = Callable[[tuple[int, ...], int], nn.Module]
Model = str | nn.Module | Callable[[], nn.Module]
"""What a user may name or bring."""


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3x3 convolutions of 16 and 32 channels, a 2x2 pool and a linear layer.

    The convolutions start with He's normal values, with which plain SGD needs few steps.

    >>> sum(p.numel() for p in small_cnn((1, 8, 8), 10).parameters())
    9930
    """
    if len(shape) != 3:
        raise InvalidInput(
            f"model 'small-cnn' takes pictures (channels, height, width); the inputs have shape "
            f"{shape}."
        )
    channels, height, width = shape
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


@dataclass(frozen=True)
class Entry:
    """A built-in model and what the command line says about it."""

    build: Architecture
    about: str


MODELS: Mapping[str, Entry] = {
    "small-cnn": Entry(small_cnn, "two 3x3 convolutions, a pool and a linear layer; pictures"),
    "mlp": Entry(mlp, "one hidden layer of 64 units; any input"),
    "logistic": Entry(logistic, "softmax regression from zero; any input; convex"),
}


@dataclass(frozen=True, eq=False)
class Factory:
    """Makes a model: a fresh one, drawn anew, at every call."""

    name: str
    make: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        """A model."""
        return self.make()


def usual_model(shape: tuple[int, ...]) -> str:
    """The name of the model that suits inputs of this shape when none is asked for.

    >>> usual_model((3, 32, 32)), usual_model((13,))
    ('small-cnn', 'mlp')
    """
    return "small-cnn" if len(shape) == 3 else "mlp"


def load_factory(text: str) -> Factory:
    """The user's factory called ``package.module:factory``: a function that returns a model."""
    return Factory(text, partial(_from_named, load_named(text, "model"), text))


def _from_named(function: Callable[..., object], text: str) -> nn.Module:
    model = call_named(function, text, "model")
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"model {text!r} returned a {type(model).__name__}; allowed: a torch.nn.Module."
        )
    return model


def resolve_model(model: Model, shape: tuple[int, ...], classes: int) -> Factory:
    """A factory from what a user may name or bring.

    A name of :data:`MODELS`, ``package.module:factory``, a function that returns a model, or a
    model, which then is the initial one just as it is.
    """
    if isinstance(model, nn.Module):
        return Factory(type(model).__name__, partial(copy.deepcopy, model))
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        return Factory(name, partial(_from_named, model, name))
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
    model = build_model(factory, 0).eval()
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
                f"allowed: {(records,)}, one number a record."
            )
