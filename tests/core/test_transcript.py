import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwalk.core import events as ev
from unwalk.core.errors import Corrupt
from unwalk.core.transcript import Hop, Transcript

EVENTS = [
    ev.GradientSteps(
        steps=2, minibatches=1, batch=64, data="all", touched=True, direction=-1, scale=1.0,
        clip=0.5, clip_per_example=None, noise=0.0, origin=None, optimizer="momentum",
        step_size=0.05, momentum=0.9, weight_decay=0.0, state="carried",
    ),
    ev.GaussianNoise(0.1, None, "simulation"),
    ev.Projection((("start", 10.82), ("origin", 5.0))),
    ev.Wipe("local"),
    ev.Start("unlearn", "token", True, ("momentum",)),
]  # fmt: skip


def transcript():
    made = Transcript({"run": "r", "peers": 3})
    made.add(Hop(1, "train", 1, -1, 0, (), 0, tuple(EVENTS[:1]), gradients=128))
    made.add(Hop(2, "train", 2, 0, 2, (2,), 40, tuple(EVENTS[1:])))
    made.add(Hop(3, "train", 3, 2, 0, (1, 0), 80, (), digest="ab" * 32))
    return made


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.kind)
def test_events_round_trip_through_json(event):
    text = json.dumps(ev.to_json(event))
    assert ev.from_json(json.loads(text)) == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.kind2 = 1


def test_unknown_events_and_fields_are_refused():
    with pytest.raises(Corrupt, match="'magic' is not known"):
        ev.from_json({"kind": "magic"})
    with pytest.raises(Corrupt, match="has fields"):
        ev.from_json({"kind": "wipe", "what": "local", "more": 1})


def test_text_round_trip():
    made = transcript()
    read = Transcript.parse(made.text().splitlines(keepends=True))
    assert read.hops == made.hops
    assert read.chain == made.chain
    assert read.header == made.header
    read.add(made.hops[0])
    made.add(made.hops[0])
    assert read.text() == made.text()


def test_it_does_not_matter_when_the_lines_are_read():
    late, early = transcript(), Transcript({"run": "r", "peers": 3})
    for number, hop in enumerate(late.hops):
        assert len(early.lines) == number + 1
        early.add(hop)
    assert early.lines == late.lines
    assert early.chain == late.chain == json.loads(late.lines[-1])["chain"]


@given(st.data())
def test_any_changed_character_is_found(data):
    text = transcript().text()
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(
        st.sampled_from('0123456789abcdef{}[]",:.- ').filter(lambda c: c != text[place])
    )
    changed = text[:place] + letter + text[place + 1 :]
    with pytest.raises(Corrupt):
        Transcript.parse(changed.splitlines(keepends=True))


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_missing_line_is_found(cut):
    lines = transcript().text().splitlines(keepends=True)
    del lines[cut]
    with pytest.raises(Corrupt):
        Transcript.parse(lines)


def test_a_view_holds_what_a_peer_sent_received_or_relayed():
    made = transcript()
    assert [h.hop for h in made.view(2)] == [2, 3]
    assert [h.hop for h in made.view(1)] == [3]
    assert [h.hop for h in made.view(0)] == [2, 3]


def test_an_empty_transcript_is_refused():
    with pytest.raises(Corrupt, match="empty"):
        Transcript.parse([])
