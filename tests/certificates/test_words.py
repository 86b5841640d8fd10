"""What a certificate says in words is made from its events, and is the same on every surface."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unwalk
from tests.certificates.test_conditions import (
    BALL,
    BEGIN,
    NOISE,
    OWN,
    PLAIN,
    RETAINED,
    REWOUND,
    SEALED,
    SUMS,
    UNLEARN,
    WIPE,
    U,
    transcript,
)
from tests.runs.small import DIGITS, small_run
from unwalk.certificates import Verdict
from unwalk.certificates.document import certificate_of
from unwalk.certificates.words import claim_lines, in_words, verdict_line, verdict_of
from unwalk.core import events as ev
from unwalk.core.grades import REFUSALS, SHOWN, badge_of, shown_grade

UPHILL = replace(PLAIN, data="forgotten", direction=1, clip=1.0)
NOISY = replace(RETAINED, noise=0.1, origin="secret", clip=1.0, steps=3)
ANEW = ev.Start("unlearn", "initial", False, ())
FROM_SECRET = "The noise came from a secret of the peer that added it."
WENT_ON = "The walk continued from the trained model."


def done(**changes: Any) -> list[str]:
    told: list[str] = in_words(certificate_of(transcript(**changes)))["done"]
    return told


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a seal": (
        {},
        [
            WENT_ON,
            "The walk had 3 hops, 1 of them at peer 0; the records were not used any more.",
            "Peer 0 added random noise once, in the first hop, before the model was passed on.",
            FROM_SECRET,
        ],
    ),
    "RR-DU without noise": (
        {
            "method": "rrdu",
            "unlearn": [(2, (SEALED, RETAINED)), (U, (UPHILL,)), (1, (RETAINED,)), (U, (UPHILL,))],
        },
        [
            WENT_ON,
            "The walk had 4 hops, 2 of them at peer 0. In 2 visits it used the records again, each "
            "time to step away from what they teach.",
            "No noise was added.",
        ],
    ),
    "RR-DU with noise and a ball": (
        {
            "method": "rrdu",
            "unlearn": [
                (2, (SEALED, RETAINED)),
                (U, (PLAIN, NOISE, ev.Projection((("start", 1.0),)))),
                (U, (UPHILL, NOISE)),
            ],
        },
        [
            WENT_ON,
            "The walk had 3 hops, 2 of them at peer 0. In 2 visits it used the records again.",
            "In 1 hop the model was pulled back into a ball around the model with which this walk "
            "began.",
            "Peer 0 added random noise 2 times.",
            FROM_SECRET,
        ],
    ),
    "a release": (
        {"method": "release", "unlearn": [(2, (SEALED, RETAINED)), (3, (RETAINED, NOISE))]},
        [
            WENT_ON,
            "The walk had 2 hops, none of them at peer 0; the records were not used any more.",
            "Peer 3 added random noise once, in the last hop, before the model was handed out.",
            FROM_SECRET,
        ],
    ),
    "a ball seal of two steps": (
        {
            "method": "ball-seal",
            "unlearn": [(U, (SEALED, WIPE, BALL, NOISE, BALL, NOISE)), *UNLEARN[1:]],
        },
        [
            WENT_ON,
            "The walk had 3 hops, 1 of them at peer 0; the records were not used any more.",
            "In 1 hop the model was pulled back into a ball around the public initial model.",
            "Peer 0 added random noise 2 times, in the first hop, before the model was passed on.",
            FROM_SECRET,
        ],
    ),
    "noise at every step of everyone": (
        {"method": "ddp", "unlearn": [(1, (SEALED, NOISY)), (U, (NOISY,)), (2, (RETAINED,))]},
        [
            WENT_ON,
            "The walk had 3 hops, 1 of them at peer 0; the records were not used any more.",
            "The visited peers (peer 0 in 1 visit) added random noise 6 times, in 2 hops.",
            FROM_SECRET,
        ],
    ),
    "noise in the middle": (
        {"unlearn": [(1, (SEALED, RETAINED)), (U, (NOISE,)), (2, (RETAINED,))]},
        [
            WENT_ON,
            "The walk had 3 hops, 1 of them at peer 0; the records were not used any more.",
            "Peer 0 added random noise once, in hop 2 of 3.",
            FROM_SECRET,
        ],
    ),
    "noise from the start": (
        {
            "method": "noisy-start",
            "train": [(1, (BEGIN, PLAIN)), (U, (PLAIN, NOISE))],
            "unlearn": [],
        },
        [
            "After the request nothing more was done to the model.",
            "In training peer 0 had added random noise once.",
            FROM_SECRET,
        ],
    ),
    "a walk without noise after noisy training": (
        {"train": [(1, (BEGIN, PLAIN)), (U, (PLAIN, NOISE))], "unlearn": [(2, (SEALED, RETAINED))]},
        [
            WENT_ON,
            "The walk had 1 hop, not at peer 0; the records were not used any more.",
            "In training peer 0 had added random noise once.",
            "After the request no noise was added.",
            FROM_SECRET,
        ],
    ),
    "a restart": (
        {"method": "restart", "unlearn": [(3, (ANEW, RETAINED)), (U, (WIPE, RETAINED))]},
        [
            "The old model was discarded, and the walk began again from the public initial model.",
            "The walk had 2 hops, 1 of them at peer 0; the records were not used any more.",
            "No noise was added.",
        ],
    ),
    "a rewind": (
        {
            "method": "rewind",
            "rewind": "first-contact",
            "unlearn": [(U, (REWOUND, WIPE, RETAINED)), (2, (WIPE, RETAINED))],
        },
        [
            "The model was wound back to what it had been before hop 2 of training.",
            "The walk had 2 hops, 1 of them at peer 0; the records were not used any more.",
            "No noise was added.",
        ],
    ),
    "sums": (
        {
            "method": "sums",
            "train": [(1, (BEGIN, SUMS)), (U, (SUMS,))],
            "unlearn": [(U, (SEALED, OWN))],
        },
        [
            WENT_ON,
            "The walk had 1 hop, at peer 0; the records were not used any more.",
            "Peer 0 replaced its former sums by sums without the records, and the model was "
            "computed from them again.",
            "No noise was added.",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_done_is_what_the_events_say(name):
    changes, told = CASES[name]
    assert done(**changes) == told


@pytest.mark.parametrize("method", ["seal", "rrdu", "finetune", "release", "no such method"])
def test_the_name_of_a_method_says_nothing_of_what_was_done(method):
    assert done(method=method) == done()


VISITS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from([RETAINED, UPHILL, NOISE, BALL]))),
    min_size=1,
    max_size=8,
)


@given(VISITS)
def test_noise_is_told_if_and_only_if_some_was_added(visits):
    first, *others = [(peer, tuple(events)) for peer, events in visits]
    told = done(method="rrdu", unlearn=[(first[0], (SEALED, *first[1])), *others])
    times = sum(event is NOISE for _, events in visits for event in events)
    assert ("No noise was added." in told) == (times == 0)
    assert (FROM_SECRET in told) == (times > 0)
    if times > 1:
        assert any(f"added random noise {times} times" in text for text in told)
    assert any("ball around" in text for text in told) == any(BALL in e for _, e in visits)
    used = sum(peer == U and UPHILL in events for peer, events in visits)
    assert any("not used any more" in text for text in told) == (used == 0)


def test_the_default_run_says_that_no_noise_was_added():
    result = small_run(DIGITS, compare=[]).result
    document, words = result["certificate"]["document"], result["certificate"]["words"]
    assert document["noise"] == {"origin": "none", "meaning": "no noise was added"}
    assert words["done"][-1] == "No noise was added."
    assert not any("corrected with" in text for text in words["done"])


# Badges and verdicts


def certificate(origin: str = "secret", **changes: Any) -> dict[str, Any]:
    noise = replace(NOISE, origin=origin)
    events = [
        (peer, tuple(noise if event is NOISE else event for event in visit))
        for peer, visit in changes.pop("unlearn", UNLEARN)
    ]
    return certificate_of(transcript(unlearn=events, noise=origin, **changes))


def test_a_rehearsal_is_never_shown_as_certified():
    secret, known = certificate(), certificate("simulation")
    assert [d["claims"][0]["grade"] for d in (secret, known)] == ["certified", "certified"]
    assert (badge_of(secret), badge_of(known)) == ("certified", "rehearsal")
    assert claim_lines(secret)[0].startswith("certified (epsilon ")
    assert claim_lines(known)[0].startswith("rehearsal: would be certified (epsilon ")
    first, then, how = verdict_of(known)
    assert first.startswith("Nothing is guaranteed to anybody: this is a rehearsal")
    assert then.startswith("Done with secret noise, it would be guaranteed to everyone")
    assert "noise.source=secret" in how
    assert verdict_line(known).startswith("rehearsal: would be certified. Nothing is guaranteed")
    assert verdict_line(secret).startswith("certified. Guaranteed to everyone who sees the model")
    assert "rehearsal" not in verdict_line(secret)


@pytest.mark.parametrize("origin", ["simulation", "unheard of", None])
def test_only_secret_noise_is_shown_as_certified(origin):
    assert shown_grade("certified", origin) == "rehearsal"
    assert shown_grade("exact", origin) == "exact"
    assert shown_grade("refused", origin) == "refused"


def test_a_verdict_is_about_what_is_proved_not_about_formulas():
    document = certificate(method="restart", unlearn=CASES["a restart"][0]["unlearn"])
    assert badge_of(document) == "exact"
    assert verdict_of(document) == [
        "Guaranteed to everyone who sees the model after the request, and whoever has the released "
        "one: the model is what it could have been had the records never been there."
    ]
    nominal = {**document["claims"][0], "grade": "nominal", "epsilon": 1.0, "delta": 1e-5}
    assert badge_of({**document, "claims": [nominal, *document["claims"]]}) == "exact"
    alone = {**document, "claims": [nominal]}
    assert verdict_of(alone) == [
        "Nothing is guaranteed to anybody: a formula's number is no guarantee."
    ]
    nothing = {**document, "claims": []}
    assert badge_of(nothing) == "nothing"
    assert verdict_of(nothing) == ["Nothing was to be forgotten, so there is nothing to guarantee."]


def refused(*codes: str) -> dict[str, Any]:
    document = certificate()
    claim = {**document["claims"][0], "grade": "refused", "epsilon": None, "delta": None}
    claims = [{**claim, "code": code, "reason": f"hop 7: {code} of D_f."} for code in codes]
    return {**document, "claims": claims}


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_refusals_are_explained_by_their_code_alone(code):
    document, known = refused(code), REFUSALS[code]
    words = in_words(document)
    assert words["promised"] == ["Nothing. No guarantee is given for this run."]
    assert words["verdict"] == [
        f"Nothing is guaranteed to anybody: {known.plain}.",
        f"What to do instead: {known.instead}.",
    ]
    plain, _, technical = words["not_promised"][0].partition(" For specialists ")
    assert plain == (
        f"A guarantee was refused: {known.plain}. What to do instead: {known.instead}."
    )
    assert technical == f"({code}): Hop 7: {code} of the forgotten records."
    assert claim_lines(document) == [f"refused ({code}): hop 7: {code} of the forgotten records."]


def test_each_of_several_refusals_says_what_to_do():
    lines = [*claim_lines(refused("formula", "no-noise")), verdict_line(refused("no-noise"))]
    for code in ("formula", "no-noise"):
        assert any(REFUSALS[code].instead in line for line in lines)


def checked(**changed: Any) -> Verdict:
    verdict = Verdict((), (), "ab" * 32, known=True, recomputed=True, model="checked")
    return replace(verdict, **changed)


def test_what_was_not_checked_is_no_guarantee_yet():
    document = certificate()
    line = verdict_line(document)
    assert line.startswith("certified. Guaranteed to ")
    assert checked().conclusion(document) == line
    unknown = checked(known=False)
    for verdict, first in (
        (unknown, f"This holds only if you trust who signed it, {'ab' * 32}; that was not checked"),
        (checked(signer=None, known=False), "Nobody has signed this, so nobody stands for it."),
        (checked(model="not checked"), "This holds only if what was not checked is right."),
        (checked(recomputed=False), "This holds only if what was not checked is right."),
    ):
        assert verdict.exit_code == 3
        told = verdict.conclusion(document)
        assert told.startswith(first)
        assert told.endswith(f" What it says: {line}")
        assert verdict.to_json(document)["words"][-1] == told
    assert "(--trust with a fingerprint, or" in unknown.conclusion(document)
    assert "(--trust with the network's ca.pem)" in unknown.conclusion({**document, "peers": {}})
    assert unknown.conclusion(refused("no-noise")) == verdict_line(refused("no-noise"))


def test_the_peers_page_knows_every_badge():
    page = Path(unwalk.__file__).parent / "peers" / "web" / "page"
    script, style = (page / "app.js").read_text(), (page / "style.css").read_text()
    for name, known in SHOWN.items():
        assert f'{name}: "{known.sign} {known.name}"' in script
    assert ".badge.rehearsal{" in style
    assert "item.grade}`" not in script
