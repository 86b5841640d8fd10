"""Triggered samples as pictures, with what the model answered before and after."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.reports import numbers
from unwalk.reports.result import Answer, Result, Sample
from unwalk.reports.svg import tag

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SHOWN = 128
"""Pixels a picture is written with at most, so that small ones stay crisp on paper too."""


def png(image: Sequence[Any], scale: int = 1) -> bytes:
    """A PNG of rows of grey values or of (r, g, b), each in [0, 1]; a pixel ``scale`` wide.

    >>> png([[0.0, 1.0]])[:8] == SIGNATURE
    True
    """
    rows = [bytes(_row(row)) for row in image]
    colour = bool(image) and bool(image[0]) and isinstance(image[0][0], list | tuple)
    width = len(rows[0]) // (3 if colour else 1) if rows else 0
    if not width or any(len(row) != len(rows[0]) for row in rows):
        raise InvalidInput("samples[i].image is empty or ragged; allowed: rows of equal length.")
    size = 3 if colour else 1
    pixels = [[row[i : i + size] for i in range(0, len(row), size)] for row in rows]
    lines = [b"\x00" + b"".join(pixel * scale for pixel in row) for row in pixels]
    header = struct.pack(
        ">IIBBBBB", width * scale, len(rows) * scale, 8, 2 if colour else 0, 0, 0, 0
    )
    data = zlib.compress(b"".join(line * scale for line in lines), 9)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _row(row: Any) -> list[int]:
    values: list[int] = []
    for pixel in row if isinstance(row, list | tuple) else ():
        channels = pixel if isinstance(pixel, list | tuple) else [pixel]
        if len(channels) not in (1, 3) or not all(isinstance(c, int | float) for c in channels):
            raise InvalidInput(
                f"samples[i].image holds the pixel {pixel!r}; allowed: a number or three."
            )
        # A value that is not a number compares false and becomes 0.
        values += [round(255 * min(1.0, c)) if c > 0 else 0 for c in channels]
    return values


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def samples_table(result: Result) -> str:
    """A table with a column a sample: the picture, its class, the answers of each model."""
    rows = [_pictures(result.samples), _classes(result.samples)]
    if any(sample.before for sample in result.samples):
        rows.append(_answers(result, "Before unlearning", [s.before for s in result.samples]))
    for method in result.methods:
        answers = [sample.after.get(method.name) for sample in result.samples]
        if any(answers):
            rows.append(_answers(result, method.title, answers))
    table = tag("table", tag("tbody", *rows), class_="samples")
    return tag(
        "div",
        table,
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Samples with the answers of each model",
    )


def _pictures(samples: Sequence[Sample]) -> str:
    cells = [tag("th", "Sample", scope="row")]
    for index, sample in enumerate(samples, 1):
        if not sample.image:
            cells.append(tag("td", numbers.DASH))
            continue
        scale = max(1, SHOWN // len(sample.image))
        data = base64.b64encode(png(sample.image, scale)).decode()
        said = f"sample {index}" if sample.label is None else f"sample of class {sample.label}"
        cells.append(
            tag(
                "td",
                tag("img", src=f"data:image/png;base64,{data}", alt=said, width="64", height="64"),
            )
        )
    return tag("tr", *cells)


def _classes(samples: Sequence[Sample]) -> str:
    cells = [
        tag("td", numbers.DASH if s.label is None else str(s.label), class_="true") for s in samples
    ]
    return tag("tr", tag("th", "True class", scope="row"), *cells)


def _answers(result: Result, label: str, answers: Sequence[Answer | None]) -> str:
    cells = []
    for sample, answer in zip(result.samples, answers, strict=True):
        if answer is None or answer.answer is None:
            cells.append(tag("td", numbers.DASH))
            continue
        right = answer.answer == sample.label
        sure = "" if answer.confidence is None else f"{100 * answer.confidence:.0f}{numbers.SPACE}%"
        said = "right" if right else "wrong"
        cells.append(
            tag(
                "td",
                tag(
                    "span",
                    "\N{CHECK MARK}" if right else "\N{MULTIPLICATION X}",
                    class_="sign",
                    role="img",
                    aria_label=said,
                ),
                tag("b", str(answer.answer)),
                tag("small", sure or numbers.DASH),
                class_=said,
            )
        )
    return tag("tr", tag("th", escape(label), scope="row"), *cells)
