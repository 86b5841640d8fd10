"""Which optimizer steps come early: the pieces that parameters are cut into."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unwalk.engines.cuda import overlapped_updates
from unwalk.engines.cuda.flat_copy import flat_blocks, flat_copy_of
from unwalk.tasks.models import MODELS


def cut(model, layers):
    blocks = flat_blocks(flat_copy_of(model), torch.bfloat16)
    by_name = {n: w for b in blocks for n, w in zip(b.names, b.weights, strict=True)}
    watched = [SimpleNamespace(conv=SimpleNamespace(weight=by_name[name])) for name in layers]
    return (
        blocks,
        {by_name[name] for name in layers},
        overlapped_updates.OverlappedUpdates(blocks, watched, None),
    )


def check(blocks, watched, found):
    for block in blocks:
        mine = [p for p in [*found.pieces, *found.others] if p.block is block]
        ends = sorted((piece.start, piece.end) for piece in mine)
        assert ends[0][0] == 0
        assert ends[-1][1] == block.masters.numel()
        assert all(a[1] == b[0] for a, b in pairwise(ends))
        starts = torch.tensor([0, *(w.numel() for w in block.weights)]).cumsum(0).tolist()
        for piece in (p for p in found.pieces if p.block is block):
            assert piece.end - piece.start >= overlapped_updates.ENOUGH
            inside = {
                weight
                for weight, start in zip(block.weights, starts, strict=False)
                if piece.start <= start < piece.end
            }
            assert piece.weights == inside <= watched


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    chosen=st.lists(st.booleans(), min_size=8, max_size=8),
    enough=st.integers(1, 400),
)
def test_pieces_and_the_rest_are_all_there_is(sizes, chosen, enough):
    model = nn.Sequential(*(nn.Linear(4, size, bias=False) for size in sizes))
    names = [
        f"{k}.weight" for k, watched in zip(range(len(sizes)), chosen, strict=False) if watched
    ]
    before = overlapped_updates.ENOUGH
    overlapped_updates.ENOUGH = enough
    try:
        check(*cut(model, names))
    finally:
        overlapped_updates.ENOUGH = before


def test_most_of_a_resnet_is_stepped_early():
    model = MODELS["resnet18-plain"].build((3, 32, 32), 10)
    layers = [n for n, p in model.named_parameters() if p.dim() == 4 and p.shape[1] > 3]
    blocks, watched, found = cut(model, layers)
    check(blocks, watched, found)
    early_on = sum(piece.end - piece.start for piece in found.pieces)
    assert early_on > 0.9 * sum(block.size for block in blocks)


def test_a_cut_shares_the_memory_of_its_block():
    model = nn.Sequential(nn.Linear(4, 60, bias=False), nn.Linear(60, 3))
    blocks, _, found = cut(model, [])
    assert not found.pieces
    (whole,) = (piece.cut() for piece in found.others)
    whole.masters.fill_(2.0)
    assert bool((blocks[0].masters == 2.0).all())
