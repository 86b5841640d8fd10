"""The certificate's page for people: four questions, answered from the result alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.runs.small import small_run
from unwalk.certificates.words import in_words
from unwalk.core.errors import InvalidInput
from unwalk.core.grades import REFUSALS
from unwalk.reports import render

FLAT: dict[str, Any] = {
    "preset": "certified",
    "task": "digits-flat",
    "peers": 4,
    "train.hops": 9,
    "unlearn.hops": 3,
}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = small_run(FLAT, compare=["restart"]).result
    return found


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_it_says_what_was_asked_done_promised_and_not(result):
    page = text(render(result))
    headings = [
        "The certificate in plain words",
        "What was asked",
        "What was done",
        "What is promised, and to whom",
        "What is not promised",
        "What it was worth",
    ]
    places = [page.index(heading) for heading in headings]
    assert places == sorted(places)
    told = page[places[0] :]
    assert "Peer 0 asked that the model forget 1 record." in told
    assert "passed from peer to peer 9 times by then" in told
    assert "can be at most 73.2 % sure afterwards" in told
    assert told.index("Nothing yet: this is a rehearsal") < told.index("factor of 2.72")
    assert "factor of 2.72 at most, except with a probability of 1 in 100,000" in told
    assert "It is no secret who asked, when, and for how many records." in told
    assert "rehearsal" in told
    assert "It was not signed when this page was made." in told
    assert "unwalk verify certificate.json" in told


def before_the_verdict(page: str) -> str:
    """The page's text above the verdict's box."""
    body = page[page.index("<body>") :]
    return text(body[: body.index('<div class="verdict')])


def verdict(page: str) -> str:
    start = page.index('<div class="verdict')
    return text(page[start : page.index("<h1>")])


def with_claims(result: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same result with another document, and the words that belong to it."""
    document = {**result["certificate"]["document"], **changes}
    certificate = {"document": document, "words": in_words(document), "worth": ""}
    return {**result, "claims": document["claims"], "certificate": certificate}


def test_the_verdict_stands_above_any_number(result):
    page = render(result)
    assert before_the_verdict(page) == "unwalk report"
    assert page.index('<div class="verdict') < page.index("<h1>") < page.index("<main>")
    told = verdict(page)
    assert told.startswith(
        "▷ rehearsal: would be certified Nothing is guaranteed to anybody: this is a rehearsal"
    )
    assert told.endswith("It would be: ε = 1, δ = 10⁻⁵")
    assert "noise.source=secret" in told


def test_a_rehearsal_looks_like_no_guarantee(result):
    page = render(result)
    assert "certified" not in re.findall(r'class="badge ([a-z]+)"', page)
    assert re.findall(r'class="badge ([a-z]+)"', page) == ["rehearsal", "rehearsal"]
    assert 'class="verdict rehearsal card"' in page
    assert "✓" not in before_the_samples(page)
    (style,) = re.findall(r"[.]badge[.]rehearsal{([^}]*)}", page)
    (green,) = re.findall(r"[.]badge[.]certified,[.]badge[.]exact{([^}]*)}", page)
    assert green not in style


def before_the_samples(page: str) -> str:
    return text(page[page.index("<body>") :]).partition("Samples, before and after")[0]


def test_secret_noise_is_shown_as_certified(result):
    secret = {"origin": "secret", "meaning": ""}
    page = render(with_claims(result, noise=secret))
    assert re.findall(r'class="badge ([a-z]+)"', page) == ["certified", "certified"]
    told = verdict(page)
    assert told.startswith("✓ certified Guaranteed to everyone who sees the model after it has")
    assert told.endswith("at most, except with a probability of 1 in 100,000. ε = 1, δ = 10⁻⁵")
    assert "rehearsal" not in told


def test_a_refusal_stands_at_the_top_with_what_to_do_instead(result):
    claim = {
        **result["claims"][0],
        "code": "iterate",
        "grade": "refused",
        "epsilon": None,
        "delta": None,
    }
    page = render(with_claims(result, claims=[{**claim, "reason": "hop 3: an average of D_f."}]))
    known = REFUSALS["iterate"]
    assert verdict(page) == (
        f"✗ refused Nothing is guaranteed to anybody: {known.plain}. "
        "What to do instead: set train.keep=last ."
    )
    assert known.instead == "set train.keep=last"
    assert '<code><span class="word">train.keep=last</span></code>' in page
    assert "hop 3: an average of the forgotten records." in text(page).lower()
    assert "code: iterate" in text(page)


def test_a_command_breaks_between_its_words_only(result):
    claim = {**result["claims"][0], "code": "no-noise", "grade": "refused"}
    claim |= {"epsilon": None, "delta": None, "reason": "hop 3: no noise."}
    page = render({**with_claims(result, claims=[claim]), "command": "unwalk run --out runs/a-b"})
    words = ("unwalk", "run", "--preset", "certified", "--task", "digits-flat")
    code = " ".join(f'<span class="word">{word}</span>' for word in words)
    assert page.count(f"<code>{code}</code>") == 2, "at the top, and among the plain words"
    assert '<span class="word">--out</span> <span class="word">runs/a-b</span></code>' in page
    assert ".word{display:inline-block" in page


def test_words_nobody_needs_are_not_there(result):
    words = result["certificate"]["words"]
    told = " ".join(t for texts in words.values() for t in texts)
    assert not re.search(r"R[eé]nyi|divergence|hockey|sigma|\bmu\b|epsilon|D_f", told)


def test_a_refusal_is_told_as_one(result):
    words = {**result["certificate"]["words"], "promised": ["Nothing."]}
    other = {**result, "certificate": {**result["certificate"], "words": words, "worth": ""}}
    page = text(render(other))
    assert "What it was worth" not in page
    assert "What is promised, and to whom Nothing." in page


def test_results_without_a_certificate_still_begin_with_a_verdict(result):
    bare = {k: v for k, v in result.items() if k != "certificate"}
    assert verdict(render(bare)).startswith("▷ rehearsal: would be certified Not a guarantee")
    none = {**bare, "claims": []}
    assert verdict(render(none)) == "– nothing to claim No claim was made for this run."


def test_results_without_a_certificate_have_no_such_part(result):
    bare = {k: v for k, v in result.items() if k != "certificate"}
    assert "plain words" not in render(bare)
    assert "plain words" not in render({**result, "certificate": {}})
    with pytest.raises(InvalidInput, match="certificate is a str"):
        render({**result, "certificate": "x"})


def test_what_a_certificate_says_is_escaped(result):
    words = {"asked": ["<script>alert(1)</script>"]}
    page = render({**result, "certificate": {"words": words}})
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
