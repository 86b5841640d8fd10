"""Datasets of others, read into arrays: torch's ``Dataset`` and those of Hugging Face ``datasets``.

An item is a pair (input, label), or a mapping such as ``{"image": ..., "label": 3}``.  Neither
package is imported for that: what counts is how a dataset behaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from unwalk.core.errors import InvalidInput

LABELS = ("label", "labels")
"""Keys that name the label of an item where nothing is said."""
Keys = str | Sequence[str] | None
"""Which values of an item are the input: one, or several side by side."""


def is_dataset(brought: object) -> bool:
    """Whether an object is a dataset of torch, or behaves as one of Hugging Face.

    >>> is_dataset([1, 2])
    False
    """
    return isinstance(brought, Dataset) or (
        hasattr(brought, "column_names")
        and hasattr(brought, "__iter__")
        and not isinstance(brought, Mapping)
    )


def arrays_of(dataset: Any, inputs: Keys = None, label: str | None = None) -> tuple[Any, Any]:
    """All inputs and all labels of a dataset; ``inputs`` and ``label`` are keys of its items."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors
    if isinstance(dataset, Mapping):
        raise InvalidInput(
            f"the dataset has the parts {', '.join(map(str, dataset))}; bring one of them, as in "
            "from_dataset(parts['train'], test=parts['test'])."
        )
    items: Iterable[Any] = dataset
    if hasattr(dataset, "__len__"):
        items = (dataset[row] for row in range(len(dataset)))
    xs: list[torch.Tensor] = []
    ys: list[int] = []
    for row, item in enumerate(items):
        x, y = _parts(item, row, inputs, label)
        xs.append(_input(x, row))
        ys.append(_label(y, row))
        if xs[row].shape != xs[0].shape:
            raise InvalidInput(
                f"item {row} of the dataset has shape {tuple(xs[row].shape)}; "
                f"item 0 has {tuple(xs[0].shape)}."
            )
    if not xs:
        raise InvalidInput("the dataset is empty; allowed: one record or more.")
    return torch.stack(xs), np.array(ys)


def _parts(item: Any, row: int, inputs: Keys, label: str | None) -> tuple[Any, Any]:
    """Input and label of an item."""
    if isinstance(item, Mapping):
        return _named_parts(item, row, inputs, label)
    if inputs is not None or label is not None:
        raise InvalidInput(
            f"inputs and label name keys, but item {row} of the dataset is a "
            f"{type(item).__name__}; leave them out, or bring a dataset of mappings."
        )
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InvalidInput(
            f"item {row} of the dataset is a {type(item).__name__}; "
            "allowed: a pair (input, label), or a mapping with a label."
        )
    return item[0], item[1]


def _named_parts(
    item: Mapping[str, Any], row: int, inputs: Keys, label: str | None
) -> tuple[Any, Any]:
    there = ", ".join(map(str, item))
    name = label if label is not None else next((key for key in LABELS if key in item), None)
    if name is None or name not in item:
        said = "is no label" if name is None else f"is no {name!r}"
        raise InvalidInput(f"in item {row} of the dataset there {said}; label=KEY, of: {there}.")
    others = [key for key in item if key != name]
    wanted = inputs if inputs is not None else others[0] if len(others) == 1 else None
    if wanted is None:
        raise InvalidInput(
            f"item {row} of the dataset has the keys {there}; say which are the input: "
            "inputs=KEY, or inputs=[KEY, ...] for several side by side."
        )
    for key in [wanted] if isinstance(wanted, str) else wanted:
        if key not in others:
            raise InvalidInput(f"inputs names {key!r}; allowed: {', '.join(map(str, others))}.")
    if isinstance(wanted, str):
        return item[wanted], item[name]
    values = [_numbers(item[key], key, row) for key in wanted]
    return torch.cat(values), item[name]


def _numbers(value: Any, key: str, row: int) -> torch.Tensor:
    """A number, or those of an array one after the other."""
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype.kind in "biuf":
        return torch.from_numpy(array.astype(np.float64)).reshape(-1)
    raise InvalidInput(
        f"{key!r} of item {row} of the dataset is {value!r}; allowed: a number, or an array of "
        "them."
    )


def _input(value: Any, row: int) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if hasattr(value, "getbands") and hasattr(value, "__array_interface__"):
        return _pixels(np.array(value))
    if isinstance(value, np.ndarray | list | tuple | int | float):
        return torch.tensor(np.asarray(value))
    raise InvalidInput(
        f"the input of item {row} of the dataset is a {type(value).__name__}; "
        "allowed: a tensor, an array or a picture."
    )


def _pixels(picture: Any) -> torch.Tensor:
    """A picture of Pillow as channels, rows, columns; 8 bits become 0 to 1."""
    layers = picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
    scaled = layers / np.float32(255.0) if layers.dtype == np.uint8 else layers
    return torch.tensor(np.ascontiguousarray(scaled))


def _label(value: Any, row: int) -> int:
    label = value.item() if isinstance(value, torch.Tensor | np.generic) else value
    if isinstance(label, bool) or not isinstance(label, int):
        raise InvalidInput(
            f"the label of item {row} of the dataset is {label!r}; allowed: a whole number from 0."
        )
    return label
