"""What a newcomer reads first is so: make help, the README's lists, options in examples not run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import Any

import pytest
import typer

from tests.checks.test_snippets import NOT_RUN, PAGES
from tests.conftest import ROOT
from unwalk.cli import app


def made(*words: str) -> str:
    words = ("--no-print-directory", *words)  # which make says where another make runs the tests
    done = subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_help_names_every_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    said = made("help")
    for target in set(targets[1].split()) - {"help"}:
        assert f"make {target}" in said


@pytest.mark.parametrize("target", ["install", "demo"])
def test_make_ends_with_where_the_command_is(target):
    assert ".venv/bin/unwalk; to type only unwalk here" in made("-n", target).splitlines()[-1]


def test_the_readme_says_where_the_command_is():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ".venv/bin/activate" in readme.partition("unwalk run")[0]
    assert "(docs/index.md)" in readme


def test_the_index_of_the_site_lists_each_page_once():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    inside = re.findall(r"```{toctree}(.*?)```", index, re.DOTALL)
    listed = [line for part in inside for line in part.split("\n") if re.fullmatch(r"[a-z]+", line)]
    assert sorted(listed) == sorted(
        {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    )


def test_the_readmes_table_says_what_the_results_say():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "results" / "rivals" / "mnist.json").read_text())["seeds"]
    methods = {method["label"]: method for method in (found["before"], *found["methods"])}
    rows = re.findall(
        r"^\| ([^|]+) \| (\S+ ± \S+) \| (\S+ ± \S+) \| (\S+) \| (\S+) \|$", readme, re.M
    )
    assert len(rows) > 5
    for label, *cells in rows:
        mean, spread = methods[label]["mean"], methods[label]["std"]
        shares = [f"{100 * mean[key]:.1f} ± {100 * spread[key]:.1f}" for key in ("clean", "asr")]
        cost = mean.get("cost.gradients")
        steps = "–" if cost is None else f"{round(cost):,}"
        assert cells == [*shares, steps, methods[label]["grade"] or "–"], label


def unrun() -> list[tuple[str, str]]:
    """Commands of examples that no test runs, with their pages."""
    found = []
    for page in PAGES:
        before, inside = "", False
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("```"):
                inside = not inside and NOT_RUN.fullmatch(before) is not None
            elif inside and line.startswith("unwalk "):
                found.append((page.name, line))
            before = line.strip()
    return found


def test_examples_that_are_not_run_have_options_that_exist():
    commands = unrun()
    assert len(commands) > 10
    for page, line in commands:
        at: Any = typer.main.get_command(app)
        words = shlex.split(line, comments=True)[1:]
        while words and words[0] in getattr(at, "commands", {}):
            at = at.commands[words.pop(0)]
        known = {option for param in at.params for option in (*param.opts, *param.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known, f"{page}: {line}: {sorted(given - known)}"
