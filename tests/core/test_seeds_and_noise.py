import hmac
import json

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from unwalk.core.errors import InvalidInput
from unwalk.core.noise import SecretNoise, SimulatedNoise
from unwalk.core.seeds import PublicSeeds


def test_streams_are_keyed_and_stable():
    seeds = PublicSeeds(3)
    assert seeds.numpy("route", 1).integers(1 << 30, size=3).tolist() == [
        610431930,
        284448708,
        912935987,
    ]
    assert seeds.integer("a", "bc") != seeds.integer("ab", "c")
    assert seeds.integer("a", 12) != PublicSeeds(4).integer("a", 12)


def draw(source, hop=1, step=0, digest="d", count=4000):
    like = torch.empty(count, dtype=torch.float64)
    return source.draw(like, hop=hop, step=step, digest=digest)


@pytest.mark.parametrize("source", [SimulatedNoise(1), SecretNoise("run", b"s" * 32)])
def test_noise_is_standard_normal_and_repeatable(source):
    first = draw(source)
    assert torch.equal(first, draw(source))
    assert abs(float(first.mean())) < 4 / np.sqrt(4000)
    assert abs(float(first.std()) - 1) < 0.06
    assert not torch.equal(first, draw(source, hop=2))
    assert not torch.equal(first, draw(source, step=1))


def test_secret_noise_depends_on_secret_run_and_incoming_token():
    base = draw(SecretNoise("run", b"s" * 32))
    assert not torch.equal(base, draw(SecretNoise("run", b"t" * 32)))
    assert not torch.equal(base, draw(SecretNoise("other", b"s" * 32)))
    assert not torch.equal(base, draw(SecretNoise("run", b"s" * 32), digest="e"))


def test_secret_noise_cannot_be_found_by_trying_seeds(monkeypatch):
    """Torch's generator takes 32 bits of its seed on a CPU: an afternoon's work to try them all."""
    source = SecretNoise("run", b"s" * 32)
    keys = []
    real = hmac.new

    def caught(*words):
        made = real(*words)
        keys.append(made.digest())
        return made

    monkeypatch.setattr("unwalk.core.noise.hmac.new", caught)
    drawn = draw(source)
    (key,) = keys
    for size in (4, 8):
        low = int.from_bytes(key[:size], "little")
        for seed in (low, low >> 1):
            generator = torch.Generator().manual_seed(seed)
            tried = torch.randn(4000, generator=generator, dtype=torch.float64)
            assert not torch.allclose(tried, drawn)


def test_secret_noise_has_the_tails_of_the_normal_law():
    drawn = draw(SecretNoise("run", b"s" * 32), count=1_000_001).numpy()
    assert drawn.shape == (1_000_001,)
    assert kstest(drawn, "norm").pvalue > 1e-3
    for edge in (3.0, 4.0):
        wanted = 2 * norm.sf(edge) * drawn.size
        assert abs((abs(drawn) > edge).sum() - wanted) < 5 * np.sqrt(wanted)
    half = drawn[: drawn.size // 2], drawn[drawn.size // 2 + 1 :]
    assert abs(np.corrcoef(*half)[0, 1]) < 5 / np.sqrt(half[0].size)
    assert abs(np.corrcoef(abs(half[0]), abs(half[1]))[0, 1]) < 5 / np.sqrt(half[0].size)


def test_secret_is_never_shown():
    source = SecretNoise("run", b"very-secret-" * 4)
    assert "very-secret" not in repr(source)
    assert "very-secret" not in json.dumps(str(source.__dict__.keys()))


def test_secret_noise_refuses_weak_use():
    with pytest.raises(InvalidInput, match="31 bytes"):
        SecretNoise("run", b"s" * 31)
    with pytest.raises(InvalidInput, match="digest"):
        draw(SecretNoise("run", b"s" * 32), digest=None)
