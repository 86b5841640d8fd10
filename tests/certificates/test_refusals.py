"""Refusals go by code: each that is raised is explained, and each explanation can be followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import unwalk
from tests.certificates.test_conditions import BROKEN, the_claim
from unwalk.core.errors import Refused
from unwalk.core.grades import PRESET, REFUSALS, UNKNOWN, Refusal, advised, explained
from unwalk.methods import METHODS, defaults
from unwalk.privacy.accountants import FACT_CODES
from unwalk.settings.config import PRESETS, flatten
from unwalk.tasks import TASKS

ROOT = Path(unwalk.__file__).parent
TALK = {
    f"peers/{name}.py"
    for name in (
        "decisions/ballot",
        "decisions/decided",
        "decisions/history",
        "decisions/votes",
        "forgetting/erasure",
        "forgetting/peer_certificate",
        "handover/checks",
        "handover/control_messages",
        "handover/doorway",
        "handover/last_token",
        "handover/log_fetch",
        "handover/log_rules",
        "handover/receiving",
        "handover/receiving_places",
        "handover/walk",
        "identity/trust",
        "lifecycle/beginning",
        "lifecycle/certifying",
        "lifecycle/next_chapter",
        "transport/wire",
    )
}
"""Peers that turn a caller away refuse no guarantee: nobody who asks for one reads that."""


def raised() -> Iterator[tuple[str, int, ast.expr | None]]:
    """File, line and code of each refusal in the source."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("refuse", "refuse_fact", "need_fact"):
                yield name, node.lineno, node.args[0]
            elif node.func.id == "Refused":
                code = node.args[1] if len(node.args) > 1 else None
                named = [word.value for word in node.keywords if word.arg == "code"]
                yield name, node.lineno, named[0] if named else code
            elif node.func.id == "refused" and name == "certificates/document.py":
                yield name, node.lineno, node.args[1]


def passed_on(code: ast.expr) -> bool:
    """Whether a code is that of another refusal, or the parameter of what raises it."""
    of_another = isinstance(code, ast.Attribute) and code.attr == "code"
    return of_another or (isinstance(code, ast.Name) and code.id == "code")


def test_every_refusal_of_a_guarantee_has_a_code_that_is_explained():
    found = list(raised())
    assert len(found) > 80
    for name, line, code in found:
        if code is None:
            assert name in TALK, f"{name}:{line} refuses without a code"
            continue
        if passed_on(code):
            continue
        assert isinstance(code, ast.Constant), f"{name}:{line}"
        assert code.value in REFUSALS, f"{name}:{line} has the code {code.value!r}"


def test_every_explanation_is_of_a_refusal_that_is_raised():
    codes = {code.value for _, _, code in raised() if isinstance(code, ast.Constant)}
    codes |= set(FACT_CODES.values())
    assert set(REFUSALS) - codes == set()


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_both_sentences_are_plain_and_can_be_followed(code):
    known = REFUSALS[code]
    assert explained(code) is known
    for text in (known.plain, known.instead):
        assert text == text.strip(" .")
        assert text[0].islower()
        assert not re.search(r"D_f|theta|un-noised|\bhop\b", text)
    follow(known)


def follow(known: Refusal) -> None:
    """Each setting, method, preset and task that is named there is one."""
    settings = flatten(defaults())
    for key, value in re.findall(r"\b([a-z_]+\.[a-z_]+)(?:=([\w-]+))?", known.instead):
        assert key in settings, key
        default = settings[key]
        if value and default is not None:
            assert isinstance(default, str) or value.isdigit(), (key, value)
    for name in re.findall(r"--method ([\w-]+)", known.instead):
        assert name in METHODS, name
    for name in re.findall(r"--preset ([\w-]+)", known.instead):
        assert name in PRESETS, name
    for name in re.findall(r"--task ([\w-]+)", known.instead):
        assert name in TASKS, name


def test_the_usual_advice_names_tasks_that_have_bounded_inputs():
    assert {"digits-flat", "heart", "a9a", "mnist-gabor"} <= set(TASKS)
    named = PRESET.partition("--task ")[2].partition(", whose")[0]
    tasks = set(re.findall(r"[\w-]+", named)) - {"or"}
    assert tasks == {"digits-flat", "heart", "a9a", "mnist-gabor"}


def test_a_code_that_nobody_knows_is_explained_all_the_same():
    assert explained("of a later version") is explained(None) is UNKNOWN
    follow(UNKNOWN)
    assert advised(Refused("the caller showed no certificate.")) == (
        "the caller showed no certificate."
    )


CODES = {
    "Adam at u": "optimizer",
    "momentum": "optimizer",
    "clipping": "clipping",
    "expanding steps": "expanding",
    "BatchNorm": "travelling-state",
    "BatchNorm after the request": "travelling-state",
    "a wipe that comes too late": "travelling-state",
    "ball round theta_0": "centre",
    "not at u first": "no-noise",
    "no noise": "no-noise",
    "noise after it left": "no-noise",
    "touching D_f afterwards": "leaves-without-noise",
    "other batches": "batching",
    "an average of iterates": "iterate",
    "coarse arithmetic": "precision",
    "an old token": "old-token",
    "sums after the seal": "unknown-event",
    "noise seed in the log": "noise-known",
    "salt in the log": "noise-known",
    "noise of another origin": "noise-origin",
    "redraw": "redrawn",
    "statistics from all data": "scaling",
    "statistics of unknown origin": "scaling",
    "kept local state": "local-state",
    "local moments": "local-state",
    "plain digest of the old model": "digest",
    "stopped after a look": "not-announced",
    "nothing announced": "not-announced",
    "hops nobody announced": "not-announced",
}


@pytest.mark.parametrize("name", sorted(CODES))
def test_a_broken_condition_is_refused_by_its_code(name):
    changes, _ = BROKEN[name]
    claim = the_claim(**changes)
    assert (claim["grade"], claim["code"]) == ("refused", CODES[name])
