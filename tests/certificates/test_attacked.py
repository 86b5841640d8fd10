"""What attackers broke, in numbers and in documents: each stays mended."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
import torch

from tests.certificates.test_document import FIELDS
from tests.runs.small import small_run
from unwalk.certificates import verify
from unwalk.certificates.document import certificate_of, model_of, parse_certificate, text_of
from unwalk.core.data import within
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.rounding import onto_ball
from unwalk.core.transcript import Transcript
from unwalk.runs.replay import replay
from unwalk.settings.config import Value, run_id, settings_digest

RUN: dict[str, Value] = {"method": "restart", "train.hops": 3, "unlearn.hops": 2}


def squared(vector: torch.Tensor) -> Fraction:
    return sum((Fraction(v) ** 2 for v in vector.tolist()), Fraction(0))


@pytest.mark.parametrize("length", [2.0**1000, 2.0**400, 1.0, 2.0**-400])
@pytest.mark.parametrize("radius", [2.0**-902, 2.0**-300, 1e-14, 1.0])
@pytest.mark.parametrize("size", [1, 3])
def test_a_projection_stays_inside_however_far_it_came(length, radius, size):
    """The quotient of the lengths was a subnormal number: results lay at twice the radius."""
    for share in (1.0, 0.7301, 0.5005):
        theta = torch.full((size,), length * share, dtype=torch.float64)
        assert squared(onto_ball(theta, None, radius)) <= Fraction(radius) ** 2


@pytest.mark.parametrize("norm", [1e-250, 1e-170, 1e-160, 1.0, 1e150, 1e300])
def test_inputs_are_shortened_where_squares_vanish_or_overflow(norm):
    x = torch.tensor([[3.0, 4.0], [1e-9, 0.0], [-2.0, 2.0]], dtype=torch.float64) * norm
    for row in within(x, norm):
        assert squared(row) <= Fraction(norm) ** 2
    kept = within(x, norm)[1]
    assert torch.equal(kept, x[1])


def test_a_replay_compares_the_model_that_was_certified(tmp_path):
    out = tmp_path / "run"
    result = small_run(RUN, compare=[], out=out)
    transcript = Transcript.read(out / "transcript.jsonl")
    document = result.result["certificate"]["document"]
    assert replay(out, transcript, certified=document["model"]) == []
    forged = model_of(b"another model")
    (out / "model.safetensors").unlink()
    (found,) = replay(out, transcript, certified=forged)
    assert found == "the model that was certified is not the one that the run gives"


def test_numbers_that_only_equal_what_was_certified_are_changes(tmp_path):
    result = small_run(RUN, compare=[], out=tmp_path / "run")
    document = result.result["certificate"]["document"]
    assert set(document) == FIELDS
    for claim in document["claims"]:
        if claim["epsilon"] == 0.0:
            text = text_of(document).replace('"epsilon":0.0', '"epsilon":-0.0')
            changed = parse_certificate(text.encode())
            assert verify(changed, result.transcript).exit_code == 1
            break
    else:
        pytest.fail("an exact claim was expected")
    with pytest.raises(Corrupt, match="not a certificate of format"):
        parse_certificate(text_of({**document, "certificate": 2.0}).encode())
    header, *rest = result.transcript.lines
    record = {**json.loads(header), "transcript": 2.0}
    made = Transcript({k: v for k, v in record.items() if k not in ("transcript", "chain")})
    assert certificate_of(result.transcript)["claims"]
    line = made.lines[0].replace('"transcript":2', '"transcript":2.0')
    with pytest.raises(Corrupt):
        Transcript.parse([line, *rest])


def test_the_register_names_runs_by_all_bits_of_their_settings():
    config = small_run(RUN, compare=[]).config
    assert len(settings_digest(config)) == 64
    assert settings_digest(config).startswith(run_id(config))


def test_a_secret_with_two_names_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    (tmp_path / "other").hardlink_to(secret)
    with pytest.raises(InvalidInput, match="2 names"):
        small_run({**RUN, "noise.source": "secret", "noise.secret_file": str(secret)}, compare=[])
