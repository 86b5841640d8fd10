"""What may stand in the repository's files: no machine paths, no leftovers, no dead links."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.conftest import ROOT

MACHINE_PATH = re.compile(r"(^|[\s\"'(=])/(work|farm|root|home)/", re.MULTILINE)
REGISTRY = re.compile(
    r"\b(test\.)?pypi\.org|pythonhosted\.org|npmjs\.(com|org)|download\.pytorch\.org|anaconda\.org"
    r"|https?://\S*(pypi|npm)\S*/simple",
    re.IGNORECASE,
)
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
LINK = re.compile(r"\]\(<?([^)\s>]+)|\b(?:src|href)=\"([^\"]+)\"")


def repository_files() -> list[Path]:
    """What git has or would take, as far as it is there."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def texts() -> dict[str, str]:
    """Every file that is text, by its name."""
    found = {}
    for path in repository_files():
        data = path.read_bytes()
        if b"\0" not in data:
            found[path.relative_to(ROOT).as_posix()] = data.decode("utf-8")
    return found


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    found = texts()
    assert "pyproject.toml" in found
    return found


def places(pattern: re.Pattern[str], files: dict[str, str]) -> list[str]:
    """``file:line`` of every match."""
    return [
        f"{name}:{text.count(chr(10), 0, match.end()) + 1}: {match[0].strip()}"
        for name, text in files.items()
        for match in pattern.finditer(text)
    ]


def test_no_machine_paths(files):
    assert not places(MACHINE_PATH, files)


def test_no_package_registries(files):
    assert not places(REGISTRY, files)


def test_no_leftovers_in_the_source(files):
    source = {name: text for name, text in files.items() if name.startswith("src/")}
    assert source
    assert not places(LEFTOVER, source)


def without_blocks(text: str) -> str:
    """A Markdown page without its fenced blocks."""
    return re.sub(r"^(`{3,}|~{3,}).*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", without_blocks(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def dead_links(name: str, text: str, root: Path) -> list[str]:
    """Relative links of a Markdown page that lead nowhere; code is left out."""
    prose = re.sub(r"(?<!\[)`[^`\n]*`", "", without_blocks(text))
    dead = []
    for match in LINK.finditer(prose):
        target, _, anchor = unquote(match[1] or match[2]).partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path = (root / name).parent / target if target else root / name
        if not path.exists():
            dead.append(f"{name}: {target}")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text("utf-8")):
            dead.append(f"{name}: {target}#{anchor}")
    return dead


def test_links_lead_somewhere(files):
    pages = {name: text for name, text in files.items() if name.endswith(".md")}
    assert pages
    assert not [dead for name, text in pages.items() for dead in dead_links(name, text, ROOT)]


@pytest.mark.parametrize(
    ("pattern", "wrong", "right"),
    [
        (MACHINE_PATH, ["see /@work/x", '"/@home/me"', "A=/@root/"], ["a/work/x", "homework/"]),
        (REGISTRY, ["https://py@pi.org/project", "n@pmjs.com"], ["a package registry"]),
        (LEFTOVER, ["# TO@DO: later", "# FIX@ME"], ["todos", "mastodon"]),
    ],
    ids=["paths", "registries", "leftovers"],
)
def test_patterns_find_what_they_should(pattern, wrong, right):
    # The @ keeps this file itself free of what it forbids.
    for text in wrong:
        assert places(pattern, {"page": text.replace("@", "")}), text
    for text in right:
        assert not places(pattern, {"page": text}), text


def test_dead_links_are_found(tmp_path):
    (tmp_path / "there.md").write_text("# One part: `a`\n```sh\n# no heading\n```\n")
    page = '[a](there.md) [b](gone.md) [c](https://x.org) `[d](code.md)` <img src="no.svg">'
    assert dead_links("page.md", page, tmp_path) == ["page.md: gone.md", "page.md: no.svg"]
    page = "[a](there.md#one-part-a) [b](there.md#no-heading) [`c`](gone.py)"
    dead = ["page.md: there.md#no-heading", "page.md: gone.py"]
    assert dead_links("page.md", page, tmp_path) == dead
