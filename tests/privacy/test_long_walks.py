"""What a claim costs grows with the walk, not with its square."""

from __future__ import annotations

from unittest.mock import Mock

import unwalk
from unwalk.certificates import certificate_of
from unwalk.privacy import exact


def test_a_rewind_is_checked_in_one_pass(monkeypatch):
    settings = {
        "peers": 2,
        "train.hops": 60,
        "evaluate.every": 60,
        "compare": "none",
        "data.records": 8,
        "forget.size": 1,
    }
    found = unwalk.run("blobs", method="rewind", settings=settings)
    transcript = found.walks["rewind"].outcome.progress.transcript
    counted = Mock(side_effect=exact._amount)
    monkeypatch.setattr(exact, "_amount", counted)
    assert certificate_of(transcript)["claims"][0]["grade"] == "exact"
    assert 0 < counted.call_count <= 4 * len(transcript.hops)
