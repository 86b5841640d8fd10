"""The software bill of materials of a release: ``make release`` writes it beside the wheel.

It lists unwalk and every package that it needs with the extras that a release is made for, in the
versions that are installed here, as CycloneDX 1.6 (JSON).  It is made from the packages' own
metadata: names, versions, licences, and which needs which.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "unwalk"
EXTRAS = ("accounting", "certificates", "export", "files", "peers")
"""What a release is made for; the other extras bring large packages that few need."""


def closure(root: str, extras: Iterable[str], target: Mapping[str, str]) -> set[str]:
    """Names that ``root[extras]`` brings to a target, by the metadata of what is installed here."""
    return set(graph(root, extras, target))


def graph(root: str, extras: Iterable[str], target: Mapping[str, str]) -> dict[str, set[str]]:
    """Each name that ``root[extras]`` brings to a target, with the names that it needs itself."""
    environment: dict[str, Any] = {**default_environment(), **target}
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(root), extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        needs = found.setdefault(name, set())
        for requirement in _requirements(name):
            marker = requirement.marker
            if marker is None or marker.evaluate({**environment, "extra": extra}):
                wanted = canonicalize_name(requirement.name)
                needs |= {wanted} - {name}
                todo += [(wanted, further) for further in ("", *requirement.extras)]
    return found


def _requirements(name: str) -> Iterator[Requirement]:
    try:
        yield from map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:  # needed on another platform only
        return


def licence_of(about: metadata.PackageMetadata) -> str:
    """The licence as the package states it: an expression, else a short text, else classifiers."""
    known = about.get_all("License-Expression") or []
    short = [text for text in about.get_all("License") or [] if text and "\n" not in text]
    marked = [
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier") or []
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    return next((texts[0] for texts in (known, short, marked) if texts), "not stated")


def bill(extras: Iterable[str] = EXTRAS) -> dict[str, Any]:
    """The document; a package that is not installed is an error, since nobody tested without it."""
    needs = graph(ROOT, extras, {})
    parts = {name: _component(name) for name in sorted(needs)}
    root = parts.pop(ROOT)
    refs = {name: part["bom-ref"] for name, part in {ROOT: root, **parts}.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**root, "type": "application"}},
        "components": list(parts.values()),
        "dependencies": [
            {"ref": refs[name], "dependsOn": sorted(refs[need] for need in needs[name])}
            for name in sorted(needs)
        ],
    }


def _component(name: str) -> dict[str, Any]:
    about, version = metadata.metadata(name), metadata.version(name)
    address = f"pkg:pypi/{name}@{quote(version)}"
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "licenses": [{"license": {"name": licence_of(about)}}],
        "purl": address,
    }


def main() -> None:
    """Write the bill to the file that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/bill_of_materials.py OUT.json")
    made = bill()
    Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{sys.argv[1]}: {len(made['components'])} packages")


if __name__ == "__main__":
    main()
