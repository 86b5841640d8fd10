"""Every command and every Python example of the README and the docs runs.

A fenced ``python`` block is executed; in ``console`` blocks the lines ``$ unwalk ...`` are run, in
``sh`` blocks those that start with ``unwalk`` or ``openssl`` too.  All blocks of one file share a
folder and a namespace, in order.  ``<!-- not run: reason -->`` on the line before a block leaves it
out.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the line of its first line of text, and the text."""

    language: str
    line: int
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page that are to be run."""
    found = []
    lines = page.splitlines()
    start, fence, language, before = 0, "", "", ""
    for number, line in enumerate(lines, start=1):
        opening = re.match(r"(`{3,}|~{3,})\s*([\w-]*)", line)
        if not fence and opening:
            start, (fence, language) = number, opening.groups()
        elif fence and line.rstrip() == fence:
            if not NOT_RUN.fullmatch(before):
                text = "".join(f"{inner}\n" for inner in lines[start : number - 1])
                found.append(Block(language, start + 1, text))
            fence = before = ""
        elif not fence:
            before = line.strip()
    assert not fence, f"the block that opens in line {start} is never closed"
    return found


def commands(block: Block) -> list[tuple[int, str]]:
    """Line number and text of the unwalk commands of a shell block."""
    prompt = r"\$ " if block.language == "console" else r"(?:\$ )?"
    text = re.sub(r"\\\n", "\0\n", block.text)  # a command may go on in the next line
    found = re.finditer(rf"^{prompt}((?:unwalk|openssl)(?!\S)(?:.*\0\n)*.*)$", text, re.MULTILINE)
    return [
        (block.line + text[: match.start()].count("\n"), match[1].replace("\0\n", " "))
        for match in found
    ]


def run_command(place: str, command: str, folder: Path) -> None:
    """Run one shell command; fail with its place and what it printed."""
    scripts = sysconfig.get_path("scripts")
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.fail(
            f"{place}: '{command}' ended with {done.returncode}\n{done.stdout}{done.stderr}",
            pytrace=False,
        )


def run_python(name: str, block: Block, namespace: dict[str, object]) -> None:
    """Run one Python block, or check it where it is a session with ``>>>``."""
    if block.text.lstrip().startswith(">>> "):
        test = doctest.DocTestParser().get_doctest(
            block.text, namespace, name, name, block.line - 1
        )
        output: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=output.append, clear_globs=False)
        if failed:
            pytest.fail(f"{name}:{block.line}: {''.join(output)}", pytrace=False)
        namespace.update(test.globs)
        return
    try:
        exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)
    except Exception as error:
        at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
        line = at[-1] if at else getattr(error, "lineno", block.line)
        pytest.fail(
            f"{name}:{line}: {type(error).__name__}: {error}\n{traceback.format_exc()}",
            pytrace=False,
        )


def run_page(path: Path, folder: Path) -> int:
    """Run what a page shows, in order; how many blocks and commands that were."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "python":
            run_python(path.name, block, namespace)
            count += 1
        elif block.language in {"console", "sh", "bash"}:
            for line, command in commands(block):
                run_command(f"{path.name}:{line}", command, folder)
                count += 1
    return count


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page, tmp_path, monkeypatch):
    assert page.is_file(), f"{page.name} is missing"
    monkeypatch.chdir(tmp_path)
    count = run_page(page, tmp_path)
    assert count or page.name != "README.md", "README.md shows nothing that runs"


PAGE = """\
text
```python
x = 1
```
<!-- not run: it would fail -->
```python
raise SystemExit
```
```console
$ make demo
$ unwalk run \\
    --hops 3
some output
$ unwalk methods
unwalk is not a command here
```
~~~sh
unwalk tasks
~~~
"""


def test_blocks_and_commands_are_found():
    first, second, third = blocks(PAGE)
    assert first == Block("python", 3, "x = 1\n")
    assert commands(second) == [(11, "unwalk run      --hops 3"), (14, "unwalk methods")]
    assert commands(third) == [(18, "unwalk tasks")]


@pytest.mark.parametrize(
    ("page", "where"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 1\nassert x == 2\n```\n", "page.md:7"),
        ("\n```python\nx = = 1\n```\n", "page.md:3"),
        ("```python\n>>> 1 + 1\n3\n```\n", "page.md:2"),
        ("```console\n$ unwalk-is-not-there --x\n$ unwalk --help && false\n```\n", "page.md:3"),
        ("```python\nx = 1\n", "line 1 is never closed"),
    ],
    ids=["error", "syntax", "session", "command", "open"],
)
def test_a_wrong_page_fails_with_its_place(page, where, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises((pytest.fail.Exception, AssertionError), match=where):
        run_page(path, tmp_path)


def test_the_command_is_installed():
    command = Path(sysconfig.get_path("scripts")) / "unwalk"
    assert command.is_file(), "run 'make install' first"
    assert command.parent == Path(sys.executable).parent
