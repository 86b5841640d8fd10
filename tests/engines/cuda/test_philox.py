"""Public streams drawn by a kernel: the words that NumPy draws."""

import numpy as np
import pytest
import torch

from tests.kernels import DEVICE, quiet, runs_kernels
from unwalk.core.seeds import below, drawn_words, order
from unwalk.engines.fleet_draws import SIGN

pytestmark = [runs_kernels, quiet]


@pytest.mark.parametrize(("count", "draws"), [(1, 1), (7, 3), (300, 2)])
def test_a_kernel_draws_the_same_words(count, draws):
    from unwalk.engines.cuda.kernels.philox import stream_words

    rng = np.random.default_rng(count)
    keys = rng.integers(0, 2**64 - 1, (5, 2), np.uint64, endpoint=True)
    hops = np.array([1, 2, 3, 70_000, 2**32 - 1])
    key, hop = (torch.from_numpy(a.view(np.int64)).to(DEVICE) for a in (keys, hops))
    words = stream_words(key, hop, count, draws).cpu()
    wanted = drawn_words(keys, hops.astype(np.uint64), count, draws)
    assert (words.contiguous().numpy().view(np.uint64) == wanted).all()
    flipped = (words ^ SIGN).argsort(dim=2, stable=True)
    assert (flipped.numpy() == order(wanted)).all()
    assert (below(wanted, 7) < 7).all()
