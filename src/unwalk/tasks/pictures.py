"""Reads a folder of pictures: one subfolder per class, one file per record."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unwalk.core.errors import InvalidInput, told

SUFFIXES = (".png", ".jpg", ".jpeg")
MODES = {"1": "L", "L": "L", "RGB": "RGB"}
"""What a picture may be (two-valued, greyscale, colour), and what it is read as."""

Pixels = npt.NDArray[np.uint8]


def read_folder(path: Path) -> tuple[npt.NDArray[np.float32], list[str], list[str]]:
    """Inputs (records, channels, height, width) from 0 to 1, class names and record ids.

    A class is called like its subfolder, and a record like its file: ``cats/7.png``.  Names that
    begin with a dot are passed over.  All pictures have to have one size and kind.
    """
    files = picture_files(path)
    first: Pixels | None = None
    images = []
    for file in files:
        pixels = read_pixels(file)
        first = pixels if first is None else first
        if pixels.shape != first.shape:
            raise InvalidInput(
                f"{file} has {_size(pixels)}; {files[0].name} has {_size(first)}, and all "
                "pictures have to be alike."
            )
        images.append(pixels)
    x = np.stack(images).astype(np.float32)
    x /= 255
    return x, [file.parent.name for file in files], [f"{f.parent.name}/{f.name}" for f in files]


def picture_files(path: Path) -> list[Path]:
    """The pictures of a folder, class by class; anything else in it is refused."""
    files = []
    for folder in sorted(path.iterdir()):
        if folder.name.startswith("."):
            continue
        if not folder.is_dir():
            raise InvalidInput(
                f"{folder} is not a folder; {path} has to hold one folder of pictures per class."
            )
        inside = [file for file in sorted(folder.iterdir()) if not file.name.startswith(".")]
        for file in inside:
            if file.suffix.lower() not in SUFFIXES or not file.is_file():
                raise InvalidInput(f"{file} is not a picture; allowed: {', '.join(SUFFIXES)}.")
        files += inside
    if not files:
        raise InvalidInput(
            f"{path} holds no picture; allowed: one folder per class, with "
            f"{', '.join(SUFFIXES)} files in it."
        )
    return files


def read_pixels(file: Path) -> Pixels:
    """One picture as (channels, height, width)."""
    try:
        from PIL import Image  # an extra
    except ImportError as error:
        raise InvalidInput(
            f"{file} is read with Pillow, which is not installed: pip install 'unwalk[files]'."
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a picture that unpacks to far more than it should
            with Image.open(file) as picture:
                mode = picture.mode
                pixels = np.asarray(picture.convert(MODES.get(mode, mode)))
    except Exception as error:  # Pillow raises many kinds of errors for broken files
        raise InvalidInput(f"{file} cannot be read as a picture: {told(error)}.") from error
    if mode not in MODES:
        raise InvalidInput(
            f"{file} is of kind {mode}; allowed: greyscale (L) or colour (RGB), 8 bits per channel."
        )
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _size(pixels: Pixels) -> str:
    channels, height, width = pixels.shape
    return f"{height} x {width} pixels in {channels} channel{'s' if channels > 1 else ''}"
