"""Loads what a user names as ``package.module:function``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import near


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
    if not callable(target):
        raise InvalidInput(
            f"{key} is {text!r}, which is a {type(target).__name__}; allowed: a function or class."
        )
    return target  # type: ignore[no-any-return]


def call_named(function: Callable[..., Any], text: str, key: str) -> Any:
    """Call it without arguments; whatever goes wrong is told in one sentence."""
    try:
        return function()
    except InvalidInput:
        raise
    except Exception as error:  # a user's code may raise anything
        raise InvalidInput(f"{key} {text!r} failed when it was called: {told(error)}.") from error


def told(error: BaseException) -> str:
    """An error's type and the first line of its text, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


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
