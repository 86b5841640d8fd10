"""Whole numbers of a fixed number of bits, packed without gaps, and the triangle of a matrix.

Sums of data travel this way (:mod:`unwalk.engines.execute`).  How many bits an entry has is settled
before the walk, from public bounds: a width that followed from the numbers would tell of them.
"""

from __future__ import annotations

import torch

WIDEST = 62
"""Bits of an entry, at most: what leaves room for a sum of two in 64-bit arithmetic."""
_GROUP = 8


def packed(values: torch.Tensor, width: int) -> torch.Tensor:
    """Bytes of whole numbers from :math:`-2^{w-1}` to :math:`2^{w-1} - 1`, ``width`` bits each.

    >>> packed(torch.tensor([1, -1, 3]), 4).tolist()
    [241, 3, 0, 0]
    """
    unsigned = values.reshape(-1) & ((1 << width) - 1)
    groups = -(-unsigned.numel() // _GROUP)
    padded = unsigned.new_zeros(groups * _GROUP)
    padded[: unsigned.numel()] = unsigned
    columns = padded.view(groups, _GROUP)
    data = torch.zeros(groups, width, dtype=torch.uint8, device=values.device)
    for column, byte, offset in _overlaps(width):
        value = columns[:, column]
        part = value >> offset if offset >= 0 else value << -offset
        data[:, byte] |= (part & 255).to(torch.uint8)
    return data.view(-1)


def unpacked(data: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """The first ``count`` whole numbers that :func:`packed` packed.

    >>> unpacked(packed(torch.tensor([5, -8, 7]), 4), 4, 3).tolist()
    [5, -8, 7]
    """
    rows = data.view(-1, width)
    columns = torch.zeros(len(rows), _GROUP, dtype=torch.int64, device=data.device)
    for column, byte, offset in _overlaps(width):
        part = rows[:, byte].to(torch.int64)
        columns[:, column] |= part << offset if offset >= 0 else part >> -offset
    sign = 1 << (width - 1)
    values = columns.view(-1)[:count] & ((1 << width) - 1)
    return (values ^ sign) - sign


def _overlaps(width: int) -> list[tuple[int, int, int]]:
    """Of a group of eight values: which one has bits in which byte, from which of its bits on."""
    return [
        (value, byte, 8 * byte - value * width)
        for value in range(_GROUP)
        for byte in range(value * width // 8, ((value + 1) * width - 1) // 8 + 1)
    ]


def size_of(count: int, width: int) -> int:
    """Bytes of ``count`` packed values.

    >>> size_of(3, 4) == len(packed(torch.zeros(3, dtype=torch.int64), 4))
    True
    """
    return -(-count // _GROUP) * width


def triangle(matrix: torch.Tensor) -> torch.Tensor:
    """The entries of a symmetric matrix up to its diagonal, row after row.

    >>> triangle(torch.tensor([[1, 2], [2, 3]])).tolist()
    [1, 2, 3]
    """
    return torch.cat([row[: k + 1] for k, row in enumerate(matrix)])


def from_triangle(entries: torch.Tensor, side: int) -> torch.Tensor:
    """The symmetric matrix that :func:`triangle` took apart.

    >>> from_triangle(torch.tensor([1, 2, 3]), 2).tolist()
    [[1, 2], [2, 3]]
    """
    matrix = entries.new_zeros(side, side)
    start = 0
    for k in range(side):
        row = entries[start : start + k + 1]
        matrix[k, : k + 1] = row
        matrix[: k + 1, k] = row
        start += k + 1
    return matrix
