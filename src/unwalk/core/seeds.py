r"""Public randomness: streams keyed by seed, purpose and hop, which anyone can draw again.

The initial model, the route, the batches, the augmentation and dropout of a run are all drawn
from generators keyed by (root seed, purpose, hop).  A keyed draw needs no state to be carried,
so a run can continue from any hop with the same bits, and any peer can compute its own draws.

Routes and batches are drawn hop by hop, from :meth:`PublicSeeds.stream`.  How it draws has a
version (:data:`VERSION`), which stands in a run's settings and header and in network files; files
that say nothing are of version 1.  In version 2 a stream is named by a key, a hop and an attempt.
Its draws are numbered: word :math:`i` of draw :math:`d` is word :math:`i \bmod 4` of

.. math:: \mathrm{Philox}(\text{counter} = (\lfloor i/4\rfloor + 1, d, \text{hop},
    \text{attempt}), \text{key}),

so nothing has to be drawn before it.  :class:`Stream` draws for one walk, with NumPy's own
generator; :class:`Streams` draws the same for many.  A number below :math:`n` is
:math:`\lfloor n w/2^{64}\rfloor` of one word :math:`w`, and a permutation is the order of
:math:`n` words.  Both are uniform up to a total variation distance of :math:`n/2^{64}` and
:math:`n^2/2^{65}`.

Privacy noise is *not* drawn here: see :mod:`unwalk.core.noise`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from unwalk.core.philox import Words, philox

VERSION = 2
"""Of the streams of new runs.  Version 1 keyed a NumPy ``Generator`` anew for every hop."""

LONG = 96
"""Words above which NumPy draws a stream faster by itself than many are drawn at once."""

Rows = npt.NDArray[np.int64]
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_NOTHING = np.zeros(4, np.uint64)
_thread = threading.local()


class Draws(Protocol):
    """What routes and methods draw: a part of ``np.random.Generator``, and all of a stream."""

    def random(self) -> float:
        """A number from 0 to 1, without 1."""

    def integers(self, high: int, /) -> Any:
        """A whole number from 0 to ``high`` - 1."""

    def permutation(self, rows: Any, /) -> Any:
        """The rows in random order; of a number, those below it."""

    def choice(self, rows: Any, size: Any, replace: bool = True) -> Any:
        """Some of the rows."""


def below(words: Words, high: int | Words) -> Rows:
    """Each word as a number from 0 to ``high`` - 1, which has to be less than 2^32.

    >>> below(np.array([0, 2**63, 2**64 - 1], np.uint64), 10).tolist()
    [0, 5, 9]
    """
    bound = np.uint64(high) if isinstance(high, int) else high
    upper = (words >> _HALF) * bound
    upper += ((words & _LOW) * bound) >> _HALF
    return (upper >> _HALF).astype(np.int64)


def fractions(words: Words) -> npt.NDArray[np.float64]:
    """Each word as a number from 0 to 1, without 1, of 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def order(words: Words) -> Rows:
    """What sorts the words along the last axis; of equal ones the first comes first.

    Words whose last bits make room for their places are sorted faster than places by words.  Where
    two of them are equal, which is rare, that says nothing, and the places are sorted.

    >>> order(np.array([2**63, 7, 2**63, 2**40], np.uint64)).tolist()
    [1, 3, 0, 2]
    """
    count = words.shape[-1]
    last = np.uint64(2 ** max(count - 1, 1).bit_length() - 1)
    packed = words & ~last
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort(axis=-1)
    if ((packed[..., 1:] ^ packed[..., :-1]) <= last).any():
        return np.argsort(words, axis=-1, kind="stable")
    packed &= last
    return packed.view(np.int64)


def _generator() -> np.random.Philox:
    """NumPy's generator of this thread, which :func:`_at` puts anywhere."""
    generator: np.random.Philox | None = getattr(_thread, "philox", None)
    if generator is None:
        generator = _thread.philox = np.random.Philox(key=0)
    return generator


def _at(counter: list[int], key: Sequence[int] | Words) -> Any:
    """The state of NumPy's generator just after a counter."""
    return {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": key},
        "buffer": _NOTHING,
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }


class Stream:
    """The draws of one walk at one hop.

    >>> stream = Stream((1, 2), hop=3)
    >>> sorted(stream.permutation(5).tolist()), stream.integers(1)
    ([0, 1, 2, 3, 4], 0)
    """

    __slots__ = ("_counter", "_key", "draws")

    def __init__(self, key: Sequence[int] | Words, hop: int, attempt: int = 0) -> None:
        self._key = key
        self._counter = [0, 0, hop, attempt]
        self.draws = 0

    def words(self, count: int) -> Words:
        """The next draw: ``count`` words of 64 bits."""
        generator = _generator()
        self._counter[1] = self.draws
        generator.state = _at(self._counter, self._key)
        self.draws += 1
        drawn: Words = generator.random_raw(count)
        return drawn

    def random(self) -> float:
        """A number from 0 to 1, without 1, of 53 bits."""
        return (int(self.words(1)[0]) >> 11) * 2.0**-53

    def integers(self, high: int, /) -> int:
        """A whole number from 0 to ``high`` - 1."""
        return int(self.words(1)[0]) * high >> 64

    def permutation(self, rows: int | Rows, /) -> Rows:
        """The rows in random order; of a number, those below it."""
        if isinstance(rows, np.ndarray):
            return rows[order(self.words(rows.size))]
        return order(self.words(rows))

    def choice(
        self, rows: Rows, size: int | tuple[int, ...], replace: bool = True
    ) -> npt.NDArray[np.int64]:
        """Some of the rows: drawn one by one, or, without ``replace``, each at most once."""
        if replace:
            shape = (size,) if isinstance(size, int) else size
            return rows[below(self.words(int(np.prod(shape))), rows.size)].reshape(shape)
        return self.permutation(rows)[:size]


class Streams:
    """The draws of many walks, each at its own hop; row k of every result is walk k's.

    >>> keys, hops = np.array([[1, 2], [5, 6]], np.uint64), np.array([3, 9])
    >>> many, one = Streams(keys, hops), Stream((5, 6), hop=9)
    >>> bool((many.words(7)[1] == one.words(7)).all())
    True
    """

    def __init__(self, keys: Words, hops: npt.NDArray[np.int64]) -> None:
        self.keys = keys
        self.hops = hops.astype(np.uint64)
        self.draws = 0

    def words(self, count: int) -> Words:
        """The next draw of every walk: (walks, count)."""
        self.draws += 1
        return drawn_words(self.keys, self.hops, count, first=self.draws - 1)[:, 0]

    def random(self) -> npt.NDArray[np.float64]:
        """One number from 0 to 1, without 1, per walk."""
        return fractions(self.words(1)[:, 0])

    def integers(self, high: int | npt.NDArray[np.int64]) -> Rows:
        """A whole number from 0 to ``high`` - 1 per walk."""
        return below(self.words(1)[:, 0], high if isinstance(high, int) else high.astype(np.uint64))


def drawn_words(
    keys: Words, hops: npt.NDArray[np.uint64], count: int, draws: int = 1, first: int = 0
) -> Words:
    """``count`` words of each of ``draws`` draws from ``first`` on: (walks, draws, count)."""
    if count > LONG:
        drawn = np.empty((len(keys), draws, count), np.uint64)
        generator = _generator()
        for row, (key, hop) in enumerate(zip(keys.tolist(), hops.tolist(), strict=True)):
            for draw in range(draws):
                generator.state = _at([0, first + draw, hop, 0], key)
                drawn[row, draw] = generator.random_raw(count)
        return drawn
    blocks = -(-count // 4)
    shape = (len(keys), draws, blocks)
    numbers = np.arange(1, blocks + 1, dtype=np.uint64)[None, None]
    which = np.arange(first, first + draws, dtype=np.uint64)[None, :, None]
    attempt = np.zeros((1, 1, 1), np.uint64)
    words = np.empty((*shape, 4), np.uint64)
    key = keys[:, 0, None, None], keys[:, 1, None, None]
    for part, many in enumerate(philox((numbers, which, hops[:, None, None], attempt), key)):
        words[..., part] = many
    return words.reshape(*shape[:2], -1)[:, :, :count]


@lru_cache(maxsize=1024, typed=True)
def _path(*labels: str | int) -> str:
    """The labels as one text, length-prefixed so that no two lists collide."""
    return "/".join(f"{len(str(x))}:{x}" for x in labels)


@dataclass(frozen=True)
class PublicSeeds:
    """A tree of independent public streams under one root seed.

    >>> seeds = PublicSeeds(7)
    >>> seeds.integer("route", 3) == PublicSeeds(7).integer("route", 3)
    True
    >>> seeds.integer("route", 3) == seeds.integer("batches", 3)
    False
    """

    root: int
    streams: int = VERSION

    def key(self, *labels: str | int) -> bytes:
        """32 bytes that name one stream."""
        return hashlib.sha256(f"unwalk/public/{self.root}/{_path(*labels)}".encode()).digest()

    def integer(self, *labels: str | int) -> int:
        """A 63-bit seed for generators that take one (torch)."""
        return int.from_bytes(self.key(*labels)[:8], "little") >> 1

    def numpy(self, *labels: str | int) -> np.random.Generator:
        """A counter-based NumPy generator; the same on every platform."""
        key = np.frombuffer(self.key(*labels)[:16], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))

    def stream(self, phase: str, purpose: str, hop: int, attempt: int = 0) -> Draws:
        """What is drawn at one hop of a phase; an ``attempt`` above 0 draws it again.

        >>> PublicSeeds(7).stream("train", "route", 3).integers(100)
        35
        >>> int(PublicSeeds(7, streams=1).stream("train", "route", 3).integers(100))
        12
        """
        if self.streams == 1:
            again: tuple[str | int, ...] = ("again", attempt) if attempt else ()
            return self.numpy(phase, purpose, hop, *again)
        return Stream(self.stream_key(phase, purpose), hop, attempt)

    def stream_key(self, phase: str, purpose: str) -> Words:
        """The two words that name the streams of a phase, for all its hops (version 2)."""
        return _stream_key(self, phase, purpose)


@lru_cache(maxsize=1 << 14)
def _stream_key(seeds: PublicSeeds, phase: str, purpose: str) -> Words:
    named = seeds.key("streams", seeds.streams, phase, purpose)
    key = np.frombuffer(named[:16], dtype="<u8").astype(np.uint64)
    key.setflags(write=False)
    return key
