"""Every term of docs/glossary.md is in use, and is linked to where it is defined."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^\* \*\*(.+?)\*\*: (.+?)(?=^\* |\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = {match[1]: " ".join(match[2].split()) for match in ENTRY.finditer(GLOSSARY)}


@pytest.fixture(scope="module")
def corpus() -> str:
    """The source and the docs, without the glossary itself."""
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name != "glossary.md"]
    modules = sorted((ROOT / "src" / "unwalk").rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in [*pages, *modules])


def test_the_glossary_has_entries_in_order():
    assert len(ENTRIES) == GLOSSARY.count("\n* ") > 30
    assert list(ENTRIES) == sorted(ENTRIES, key=str.lower)


@pytest.mark.parametrize("term", ENTRIES)
def test_a_term_is_used_and_defined_somewhere(term, corpus):
    assert re.search(rf"\b{re.escape(term)}s?\b", corpus, re.IGNORECASE), "nobody uses this term"
    text = ENTRIES[term]
    assert text.count("](") >= 1, "no link to where the term is defined"
    sentences = [part for part in re.split(r"(?<=\.) (?=[A-Z`])", text) if part]
    assert len(sentences) == 3, "two sentences, then 'See' and the links"
    assert sentences[-1].startswith("See ")


def test_the_glossary_is_linked_from_the_readme():
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
