"""Optimizer steps that are taken while the backward pass still runs.

The step of all parameters is one pass over memory, in which tensor cores have nothing to do.  Once
a convolution has its weight gradient and has passed its gradient on, nothing reads the weight any
more, so its step runs on a stream of its own, beside the backward pass of the layers before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from unwalk.engines.cuda.flat_copy import Block
from unwalk.engines.cuda.layers import Convolution

ENOUGH = 2**20
"""Numbers for which a step of their own pays."""


@dataclass(frozen=True, eq=False)
class _Piece:
    """Neighbours in a block, from ``start`` to ``end``."""

    block: Block
    start: int
    end: int
    weights: frozenset[torch.Tensor]

    def cut(self) -> Block:
        """A block of their own, with the same memory."""
        at, block = slice(self.start, self.end), self.block
        return replace(
            block,
            masters=block.masters[at],
            values=block.values[at],
            gradients=block.gradients[at],
            moments={slot: moment[at] for slot, moment in block.moments.items()},
        )


class OverlappedUpdates:
    """The convolutions' parameters in pieces, each of which is stepped when it is complete.

    ``side`` is the stream on which weight gradients run.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        convolutions: Sequence[Convolution],
        side: torch.cuda.Stream,
    ) -> None:
        self.convolutions, self.side = convolutions, side
        self.pieces: list[_Piece] = []
        self.others: list[_Piece] = []
        watched = {convolution.conv.weight for convolution in convolutions}
        for block in blocks:
            self._cut_up(block, watched)

    def _cut_up(self, block: Block, watched: Collection[torch.Tensor]) -> None:
        """From the end to the start, as the backward pass goes."""
        end = stop = block.masters.numel()  # with the padding
        start = block.size
        members: set[torch.Tensor] = set()
        for weight in reversed(block.weights):
            if weight not in watched:
                members, end = set(), start - weight.numel()
            else:
                members.add(weight)
            start -= weight.numel()
            if members and end - start >= ENOUGH:
                if end < stop:
                    self.others.append(_Piece(block, end, stop, frozenset()))
                self.pieces.append(_Piece(block, start, end, frozenset(members)))
                members, end, stop = set(), start, start
        if stop > 0:
            self.others.append(_Piece(block, 0, stop, frozenset()))

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """Where the steps run."""
        return torch.cuda.Stream()

    @contextmanager
    def during(self, step: Callable[[Block], None]) -> Iterator[None]:
        """Takes the steps during a backward pass."""
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        left = {piece: set(piece.weights) for piece in self.pieces}

        def ready(weight: torch.Tensor) -> None:
            for piece, missing in left.items():
                if weight in missing:
                    missing.discard(weight)
                    if not missing:
                        self.stream.wait_stream(self.side)
                        self.stream.wait_stream(torch.cuda.current_stream())
                        with torch.cuda.stream(self.stream), torch.no_grad():
                            step(piece.cut())

        for convolution in self.convolutions:
            convolution.after = ready
        try:
            yield
        finally:
            for convolution in self.convolutions:
                convolution.after = None
        if any(left.values()):
            raise RuntimeError("a gradient that was waited for did not come.")
        main.wait_stream(self.stream)

    def rest(self) -> list[Block]:
        """What is left to be stepped at the end."""
        return [piece.cut() for piece in self.others]
