"""Checks the arrays that a user brings; a message names the bad row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.program import Rows
from unwalk.core.validation import check_count
from unwalk.tasks.sources import Ids


def checked_inputs(x: Any, what: str, dtype: torch.dtype | None) -> torch.Tensor:
    """Inputs as a tensor of their own: numbers, finite, one row per record.

    >>> checked_inputs([[1, 2], [3, 4]], "x", torch.float32).shape
    torch.Size([2, 2])
    """
    array = _numbers(x, what, "biuf")
    if array.ndim < 2 or not array.size:
        raise InvalidInput(
            f"{what} has shape {array.shape}; allowed: one row per record, as in "
            "(records, features)."
        )
    if array.dtype.kind == "f":
        finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            bad_value = "NaN" if np.isnan(array[row]).any() else "infinity"
            raise InvalidInput(f"{what} has {bad_value} in row {row}; allowed: finite numbers.")
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.to(dtype)


def checked_labels(y: Any, what: str, records: int, classes: int | None) -> torch.Tensor:
    """Labels as whole numbers from 0, one per record, all below ``classes`` where that is given."""
    array = _numbers(y, what, "biu").astype(np.int64)
    if array.shape != (records,):
        raise InvalidInput(
            f"{what} has shape {array.shape}, but there are {records} records; "
            f"allowed: {(records,)}, one label per record."
        )
    top = np.iinfo(np.int64).max if classes is None else check_count("classes", classes, low=2)
    outside = np.flatnonzero((array < 0) | (array >= top))
    if outside.size:
        row = int(outside[0])
        allowed = "whole numbers from 0" if classes is None else f"0 to {classes - 1}"
        raise InvalidInput(f"{what} has label {array[row]} in row {row}; allowed: {allowed}.")
    return torch.from_numpy(array)


def checked_numbers(y: Any, what: str, records: int) -> torch.Tensor:
    """The numbers that a regression predicts, one per record, in 64 bits."""
    array = _numbers(y, what, "biuf").astype(np.float64)
    if array.shape != (records,):
        raise InvalidInput(
            f"{what} has shape {array.shape}, but there are {records} records; "
            f"allowed: {(records,)}, one number per record."
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        row = int(bad[0])
        raise InvalidInput(f"{what} has {array[row]} in row {row}; allowed: finite numbers.")
    return torch.from_numpy(array)


def checked_marks(y: Any, what: str, records: int, labels: int | None) -> torch.Tensor:
    """Several labels for each record: 1 where one applies and 0 where not, one column each."""
    array = _numbers(y, what, "biuf").astype(np.float64)
    wanted = array.shape[1] if labels is None and array.ndim == 2 else labels
    if array.shape != (records, wanted) or not wanted:
        raise InvalidInput(
            f"{what} has shape {array.shape}, but there are {records} records; "
            f"allowed: ({records}, {wanted or 'labels'}), a 0 or 1 for each label of each record."
        )
    bad = np.argwhere((array != 0.0) & (array != 1.0))
    if len(bad):
        row, column = map(int, bad[0])
        raise InvalidInput(
            f"{what} has {array[row, column]:g} in row {row}, column {column}; allowed: 0 or 1."
        )
    return torch.from_numpy(array)


def checked_ids(ids: Any, records: int) -> Ids:
    """Record ids: the row numbers where none are given."""
    if ids is None:
        return np.arange(records)
    array = np.asarray(ids)
    if array.dtype.kind not in "iuU" or array.shape != (records,):
        raise InvalidInput(
            f"ids has shape {array.shape} and type {array.dtype}; allowed: {(records,)} whole "
            "numbers or texts, one per record."
        )
    values, counts = np.unique(array, return_counts=True)
    if len(values) != records:
        raise InvalidInput(f"id {values[counts > 1][0]} occurs twice; allowed: once.")
    return array.copy()


def checked_parts(parts: Sequence[Any]) -> list[Rows]:
    """Row numbers of each peer."""
    rows = [_numbers(part, f"part {peer}", "iu") for peer, part in enumerate(parts)]
    for peer, part in enumerate(rows):
        if part.ndim != 1:
            raise InvalidInput(f"part {peer} has shape {part.shape}; allowed: a list of rows.")
    if not rows:
        raise InvalidInput("parts is empty; allowed: the rows of one peer or more.")
    return [part.astype(np.int64) for part in rows]


def _numbers(values: Any, what: str, kinds: str) -> npt.NDArray[Any]:
    """A copy as a NumPy array that torch can hold."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.array(values, order="C")
    except ValueError as error:  # rows of different lengths
        raise InvalidInput(f"{what} is not an array: its rows differ in length.") from error
    if array.dtype.kind not in kinds and array.size:
        allowed = "numbers" if "f" in kinds else "whole numbers"
        raise InvalidInput(f"{what} has type {array.dtype}; allowed: {allowed}.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return array.astype(np.int64)
    if array.dtype == np.longdouble:
        return array.astype(np.float64)
    return array
