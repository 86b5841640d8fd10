"""``unwalk doctor``: what is installed and at hand here, and what a certificate could claim."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

import unwalk
from unwalk.cli.terminal import File, JsonOption, Set, changes_of, out_console
from unwalk.core.errors import InvalidInput

EXTRAS = {
    "certificates": "signs and checks certificates",
    "peers": "runs real peers",
    "files": "reads pictures and .parquet files",
    "ray": "runs one walk over several machines",
    "accounting": "checks accountants against a second implementation",
}
"""Extras that users install, and what each is for."""
RECIPE = (
    "head -c 32 /dev/urandom > noise.secret; chmod 600 noise.secret; then --set "
    "noise.source=secret --set noise.secret_file=noise.secret"
)
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
"""What Linux shows where a driver for NVIDIA's devices is loaded."""

Row = tuple[str, str, str]
"""What was looked at, what was found, and what that means."""


def doctor(
    file: File = None,
    set_: Set = None,
    torch_: bool = typer.Option(
        False, "--torch", help="Load torch as well, and ask it for its devices."
    ),
    json_: JsonOption = False,
) -> None:
    """Show what is installed, which data are here, and what a certificate from here could claim.

    With FILE.toml or --set noise.... it looks at the noise of these settings.
    """
    secret, noise = _noise(file, set_)
    sections = {
        "installed": list(_installed()),
        "data": list(_data()),
        "device": list(_device(torch_)),
        "noise": [noise],
        "a certificate from here": list(_claims(secret)),
    }
    if json_:
        keys = ("what", "found", "means")
        named = {k: [dict(zip(keys, row, strict=True)) for row in v] for k, v in sections.items()}
        print(json.dumps(named))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for _ in range(2):
        table.add_column(overflow="fold")
    for title, rows in sections.items():
        table.add_row(Text(title, "bold"))
        for row in rows:
            table.add_row(*map(Text, (f"  {row[0]}", *row[1:])))
    out_console.print(table)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _needed() -> Iterator[tuple[str, str]]:
    """The packages that unwalk names, each with its extra; empty for those it always needs."""
    for text in metadata.requires("unwalk") or ():
        name, _, condition = text.partition(";")
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", condition)
        match = re.match(r"[\w.-]+", name)
        if match is not None:
            yield match[0], "" if extra is None else extra[1]


def _installed() -> Iterator[Row]:
    system = f"Python {platform.python_version()}, {platform.system()}"
    yield "unwalk", unwalk.__version__, system
    yield "torch", _version("torch") or "missing", "trains"
    needed: dict[str, list[str]] = {}
    for package, extra in _needed():
        needed.setdefault(extra, []).append(package)
    for extra, purpose in {"": "train, measure, report", **EXTRAS}.items():
        lacking = [name for name in needed.get(extra, ()) if _version(name) is None]
        title = f"unwalk[{extra}]" if extra else "other packages"
        state = f"lacks {', '.join(lacking)}" if lacking else "complete"
        advice = f"; install with: pip install 'unwalk[{extra}]'" if lacking and extra else ""
        yield title, state, purpose + advice


def _data() -> Iterator[Row]:
    """Which data are in place, by the size of their files; loading checks every digest."""
    from unwalk.tasks import official

    yield "digits, blobs", "here", "come with unwalk and scikit-learn"
    root = official.data_root()
    for name, dataset in official.DATASETS.items():
        place = official.path(name)
        whole = all(_size(root / one.name) == one.size for one in dataset.files)
        archive = dataset.archive
        whole = whole or (archive is not None and _size(root / archive.name) == archive.size)
        yield (
            name,
            "here" if whole else "missing",
            (str(place) if whole else f"get it with: unwalk data fetch {name}"),
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _device(loaded: bool) -> Iterator[Row]:
    yield "cpu", "yes", "every method; the same settings give the same bits"
    if not loaded:
        driver = any(Path(place).exists() for place in DRIVERS)
        cpu_only = (_version("torch") or "").endswith("+cpu")
        state = "driver found" if driver else "no driver found"
        if driver and cpu_only:
            state += ", but torch is a build for CPUs"
        yield "cuda", state, "unwalk doctor --torch asks torch itself"
        return
    import torch

    devices = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    yield "cuda", ", ".join(devices) or "no device", "--device cuda" if devices else "use the CPU"
    if torch.backends.mps.is_available():
        yield "mps", "yes", "--device mps: accepted, but never tested; 32-bit floats only"


def _noise(file: Path | None, pairs: list[str] | None) -> tuple[bool, Row]:
    """Whether noise is secret with these settings."""
    changes = changes_of(pairs)
    if file is not None:
        from unwalk.settings.config import read_toml

        changes = {**read_toml(file), **changes}
    source = str(changes.get("noise.source", "simulated"))
    if source != "secret":
        return False, ("source", source, f"a known seed protects nobody. A secret: {RECIPE}")
    path = Path(str(changes.get("noise.secret_file", "")))
    try:
        _check_secret(path)
    except InvalidInput as problem:
        return False, ("source", "secret, not usable", str(problem))
    return True, ("source", "secret", f"{path}; never copy it, and never use it elsewhere")


def _check_secret(path: Path) -> None:
    """Refuse what a run would refuse as its secret."""
    from unwalk.core.validation import SECRET_BYTES, check_private_file

    if not path.name:
        raise InvalidInput("noise.source is 'secret', which needs noise.secret_file.")
    check_private_file(path)
    if (size := path.stat().st_size) < SECRET_BYTES:
        raise InvalidInput(f"{path} has {size} bytes; allowed: {SECRET_BYTES} or more.")


def _claims(secret: bool) -> Iterator[Row]:
    yield "exact", "yes", "restart and rewind with any model; sums with a linear head on features"
    yield (
        "certified",
        "yes" if secret else "rehearsal only",
        "seal and noise from the start with --preset certified, where noise is secret",
    )
    signs = _version("cryptography") is not None
    yield "signed", "yes" if signs else "no", "unwalk sign, with a key of your own"
    peers = all(_version(name) is not None for name, extra in _needed() if extra == "peers")
    yield (
        "of visits that others signed",
        "yes" if peers else "no",
        "unwalk peer; a run on one machine rests on the word of whoever ran it",
    )
