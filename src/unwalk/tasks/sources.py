"""The records of a task, how a pool of them is dealt to peers, and who holds which.

A :class:`Source` says what records look like and carries the test set.  :class:`Holdings` returns
the records of one peer: from a pool that was split (:class:`Split`), or made on demand.  Here
nothing is poisoned or forgotten yet.

A partition gets the pool, the number of peers, its settings (:class:`Dealing`) and a generator, and
returns the rows of each peer. :func:`split` checks the rules for all of them: no record at two
peers, and no peer with fewer records than asked for.  Nothing is drawn more than :data:`DRAWS`
times, so no setting makes a partition hang.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from unwalk.core.data import Augment, Held
from unwalk.core.errors import InvalidInput
from unwalk.core.program import Rows
from unwalk.core.validation import check_choice, check_count, check_number

Ids = npt.NDArray[Any]
"""Record ids: an array of whole numbers or of text, no id twice."""


@dataclass(frozen=True)
class Scale:
    """How a picture's pixels (0 to 1) become inputs: ``(pixel - mean) / std`` in every channel.

    >>> Scale(mean=(0.5,), std=(0.25,)).inputs(torch.ones(1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def inputs(self, pixels: torch.Tensor) -> torch.Tensor:
        """Inputs of the model from pixels of shape (..., channels, height, width)."""
        mean, std = self._channels(pixels)
        return (pixels - mean) / std

    def pixels(self, inputs: torch.Tensor) -> torch.Tensor:
        """Pixels from inputs: the way back, for people to look at."""
        mean, std = self._channels(inputs)
        return inputs * std + mean

    def _channels(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = (torch.tensor(v, dtype=like.dtype) for v in (self.mean, self.std))
        return mean.view(-1, 1, 1).to(like.device), std.view(-1, 1, 1).to(like.device)


@dataclass(frozen=True, eq=False)
class Cells:
    """The values of records as a file has them, by the names of its columns.

    ``columns`` holds all of them, also those that are no features; ``rows`` says which of their
    entries belong to these records; ``owners`` are the columns of ids and groups.
    """

    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]
    rows: Rows
    owners: frozenset[str] = frozenset()

    def take(self, rows: Rows) -> Cells:
        """The same for some of the records."""
        return replace(self, rows=self.rows[rows])

    def contents(self, row: int) -> tuple[str, str]:
        """A record's content with and without id and group, independent of the order of columns.

        >>> one = Cells({"id": ["x"], "age": ["50.0"]}, np.arange(1), frozenset({"id"}))
        >>> one.contents(0)
        ('[["age", "50.0"], ["id", "x"]]', '[["age", "50.0"]]')
        >>> other = Cells({"age": np.array([50]), "id": ["y"]}, np.arange(1), frozenset({"id"}))
        >>> other.contents(0)[1] == one.contents(0)[1]
        True
        """
        at = int(self.rows[row])
        pairs = sorted((name.strip(), _plain(cells[at])) for name, cells in self.columns.items())
        bare = [pair for pair in pairs if pair[0] not in self.owners]
        return json.dumps(pairs), json.dumps(bare)


def _plain(cell: Any) -> str:
    """A value as text that does not depend on how the file writes it."""
    try:
        number = float(cell)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    return repr(number + 0.0) if math.isfinite(number) else str(cell).strip()


@dataclass(frozen=True, eq=False)
class Table:
    """Labelled records with an id each; ``groups`` names the natural owner of each, if any.

    ``y`` holds a class, a number, or a 0 or 1 for each of several labels.

    ``cells`` are the values that they were made from, where a file names them.
    """

    x: torch.Tensor
    y: torch.Tensor
    ids: Ids
    groups: Rows | None = None
    cells: Cells | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows) -> Table:
        """A copy of these rows."""
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        groups = None if self.groups is None else self.groups[rows]
        cells = None if self.cells is None else self.cells.take(rows)
        x, y = self.x.index_select(0, index), self.y.index_select(0, index)
        return Table(x, y, self.ids[rows], groups, cells)

    def relabelled(self, rows: Rows, label: int) -> Table:
        """A copy in which ``rows`` have another label."""
        y = self.y.clone()
        y[torch.from_numpy(rows)] = label
        return replace(self, y=y)

    def with_copies(self, rows: Rows, mark: str) -> Table:
        """These records and, behind them, a copy of ``rows`` whose ids end in ``mark``."""
        extra = self.take(rows)
        ids = np.concatenate([self.ids.astype(str), [f"{i}{mark}" for i in extra.ids]])
        both = np.concatenate([np.arange(len(self)), rows])
        cells = None if self.cells is None else self.cells.take(both)
        x, y = torch.cat([self.x, extra.x]), torch.cat([self.y, extra.y])
        return Table(x, y, ids, cells=cells)


@dataclass(frozen=True, eq=False)
class Source:
    """What the records of a task look like.

    ``scale`` is given for pictures and None for other records; ``augment`` changes a batch of
    training inputs at random.  Labels are the numbers 0 to ``classes`` - 1, called ``labels``.

    ``feature_norm`` bounds the length of every input that could exist, None where nothing does.
    ``normalisation`` says where the numbers come from that inputs were made with: ``published``
    constants, what was ``declared`` of a file's columns, or ``unknown``.  ``labels_from`` says the
    same of the classes: ``published``, ``declared``, or read off the data, ``as-they-occur``.
    ``holdout`` is ``share`` where the test set is a share of the records, and ``apart`` where it
    is another set; ``own_code`` says whether ``augment`` is a user's own.

    ``published`` is how many records there are to train on, in all or for each natural peer, by
    what is documented about the task: constants and settings, never a count of the records at hand.
    None where nothing is.  ``listed`` are the ids of the records that the task itself names to be
    forgotten.

    ``predicts`` is one of :data:`unwalk.core.plan.PREDICTS`.  Where it is ``number`` there is one
    output, called after the column; where it is ``labels``, ``classes`` counts these.

    ``unscaled`` names the columns that are large and have no scale.

    ``archive`` names the official data set that pool and test set are, whole and in order: then
    what is computed from them may be kept on disk.  Empty for all other records.
    """

    name: str
    classes: int
    test: Held
    labels: tuple[str, ...]
    scale: Scale | None = None
    augment: Augment | None = None
    feature_norm: float | None = None
    normalisation: str = "published"
    labels_from: str = "published"
    holdout: str = "apart"
    own_code: bool = False
    published: tuple[int, ...] | None = None
    listed: Ids | None = None
    archive: str = ""
    predicts: str = "class"
    unscaled: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.test.x.shape[1:])


class Holdings(Protocol):
    """Who holds which records.

    ``dealing`` names the partition by which records were dealt; it is ``natural`` where nobody
    dealt them, so that each peer would hold the same without any other record.
    """

    @property
    def dealing(self) -> str: ...

    @property
    def peers(self) -> int: ...
    @property
    def records(self) -> int:
        """How many records all peers hold together."""

    def table(self, peer: int) -> Table:
        """The records of one peer: equal at every call, and not kept here."""


@dataclass(frozen=True, eq=False)
class Split:
    """A pool of records dealt to peers: ``parts`` holds the rows of each."""

    pool: Table
    parts: Sequence[Rows]
    dealing: str = "natural"

    @property
    def peers(self) -> int:
        return len(self.parts)

    @property
    def records(self) -> int:
        return sum(len(rows) for rows in self.parts)

    def table(self, peer: int) -> Table:
        """The rows of one peer, copied out of the pool."""
        return self.taken(self.parts[peer])

    def taken(self, rows: Rows) -> Table:
        """A copy of some rows of the pool."""
        return self.pool.take(rows)


DRAWS = 20
"""How often a draw that leaves a peer with too few records is repeated."""
ALPHA = 0.5
ALPHAS = (1e-6, 1e9)
CLASSES_PER_PEER = 2


@dataclass(frozen=True)
class Dealing:
    """A partition and its settings; what is None is :data:`ALPHA` or :data:`CLASSES_PER_PEER`.

    ``alpha`` is the Dirichlet concentration of ``dirichlet`` and ``quantity``: the smaller, the
    less alike the peers.  ``classes_per_peer`` belongs to ``label``.  Every peer gets
    ``min_records`` records or more.

    >>> Dealing("dirichlet", alpha=0.1).min_records
    1
    """

    kind: str
    alpha: float | None = None
    classes_per_peer: int | None = None
    min_records: int = 1

    def __post_init__(self) -> None:
        check_choice("partition", self.kind, PARTITIONS)
        for name in ("alpha", "classes_per_peer"):
            value, users = getattr(self, name), [k for k, p in PARTITIONS.items() if name in p.uses]
            if value is not None and self.kind not in users:
                raise InvalidInput(
                    f"{name} is {value!r}, but partition {self.kind!r} does not use it; "
                    f"allowed with: {', '.join(users)}."
                )
        if self.alpha is not None:
            check_number("alpha", self.alpha, low=ALPHAS[0], high=ALPHAS[1])
        if self.classes_per_peer is not None:
            check_count("classes_per_peer", self.classes_per_peer, low=1)
        check_count("min_records", self.min_records, low=1)


Deal = Callable[[Table, int, Dealing, np.random.Generator], Sequence[Rows]]
Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Partition:
    """How records are dealt, what the command line says about it, and which settings it has."""

    deal: Deal
    about: str
    uses: tuple[str, ...] = ()


def iid(pool: Table, peers: int, how: Dealing, rng: np.random.Generator) -> list[Rows]:
    """Deal shuffled records out evenly: sizes differ by one at most.

    >>> import torch
    >>> pool = Table(torch.zeros(5, 1), torch.zeros(5).long(), np.arange(5))
    >>> [len(rows) for rows in iid(pool, 2, Dealing("iid"), np.random.default_rng(0))]
    [3, 2]
    """
    return [np.sort(part) for part in np.array_split(rng.permutation(len(pool)), peers)]


def natural(pool: Table, peers: int, how: Dealing, rng: np.random.Generator) -> list[Rows]:
    """One peer for each group that the records name themselves; nothing is drawn."""
    if pool.groups is None:
        raise InvalidInput(
            "partition is 'natural', but these records do not name the group they belong to."
        )
    names, sizes = np.unique(pool.groups, return_counts=True)
    if peers != len(names):
        raise InvalidInput(
            f"peers is {peers}; the records belong to {len(names)} groups, so a natural "
            f"partition has {len(names)} peers."
        )
    return np.split(np.argsort(pool.groups, kind="stable"), np.cumsum(sizes)[:-1])


def dirichlet(pool: Table, peers: int, how: Dealing, rng: np.random.Generator) -> list[Rows]:
    r"""Label skew: each class is dealt out by shares drawn from :math:`\mathrm{Dir}(\alpha)`.

    Shares of different classes are independent, so sizes differ too (Hsu, Qi and Brown, 2019).
    When :data:`DRAWS` draws in a row leave somebody with too little, the peers that hold most
    give what is lacking.
    """
    alpha = ALPHA if how.alpha is None else how.alpha
    labels = pool.y.numpy()
    owner = np.empty(len(pool), np.int64)
    for _ in range(DRAWS):
        for one in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == one))
            owner[rows] = np.repeat(np.arange(peers), _cut(_shares(alpha, peers, rng), len(rows)))
        if np.bincount(owner, minlength=peers).min() >= how.min_records:
            return _by_owner(owner, peers)
    return _by_owner(_topped_up(owner, peers, how.min_records, rng), peers)


def quantity(pool: Table, peers: int, how: Dealing, rng: np.random.Generator) -> list[Rows]:
    r"""Size skew: everybody gets the least, the rest by shares of :math:`\mathrm{Dir}(\alpha)`.

    Which records a peer gets is drawn as in :func:`iid`, so classes are mixed alike everywhere.
    """
    alpha = ALPHA if how.alpha is None else how.alpha
    spare = len(pool) - peers * how.min_records
    sizes = how.min_records + _cut(_shares(alpha, peers, rng), spare)
    parts = np.split(rng.permutation(len(pool)), np.cumsum(sizes)[:-1])
    return [np.sort(part) for part in parts]


def label(pool: Table, peers: int, how: Dealing, rng: np.random.Generator) -> list[Rows]:
    """Each peer holds records of exactly ``classes_per_peer`` classes, drawn for it.

    Classes are drawn so that each goes to as many peers as any other, or to one more; its
    records are dealt evenly to these.
    """
    wanted = CLASSES_PER_PEER if how.classes_per_peer is None else how.classes_per_peer
    labels, index = np.unique(pool.y.numpy(), return_inverse=True)
    classes = len(labels)
    if wanted > classes or peers * wanted < classes:
        raise InvalidInput(
            f"classes_per_peer is {wanted} with {peers} peers; the records are of {classes} "
            f"classes and all have to be dealt, so allowed: {-(-classes // peers)} to {classes}."
        )
    sizes = np.bincount(index)
    for _ in range(DRAWS):
        holders = _holders(peers, classes, wanted, rng)
        short = next((c for c in range(classes) if sizes[c] < len(holders[c])), None)
        if short is not None:
            continue
        owner = np.empty(len(pool), np.int64)
        for c in range(classes):
            rows = rng.permutation(np.flatnonzero(index == c))
            owner[rows] = holders[c][np.arange(len(rows)) % len(holders[c])]
        if np.bincount(owner, minlength=peers).min() >= how.min_records:
            return _by_owner(owner, peers)
    if short is not None:
        raise InvalidInput(
            f"classes_per_peer is {wanted} with {peers} peers; class {labels[short]} has "
            f"{sizes[short]} records for {len(holders[short])} of them, and each needs one."
        )
    raise InvalidInput(
        f"classes_per_peer is {wanted} with {peers} peers; none of {DRAWS} draws gave every peer "
        f"min_records, {how.min_records} records: allow fewer records, or more classes per peer."
    )


def _holders(peers: int, classes: int, wanted: int, rng: np.random.Generator) -> list[Rows]:
    """Which peers hold each class: ``wanted`` classes per peer, those least held first."""
    held = np.zeros(classes, np.int64)
    chosen = np.empty((peers, wanted), np.int64)
    for peer in rng.permutation(peers):
        order = rng.permutation(classes)
        chosen[peer] = order[np.argsort(held[order], kind="stable")][:wanted]
        held[chosen[peer]] += 1
    return [rng.permutation(np.flatnonzero((chosen == c).any(axis=1))) for c in range(classes)]


def _shares(alpha: float, count: int, rng: np.random.Generator) -> Shares:
    r"""A draw of :math:`\mathrm{Dir}(\alpha, \dots, \alpha)`, in logarithms.

    A Gamma variable of small shape a underflows; its logarithm is that of one of shape a + 1 plus
    :math:`\ln(U)/a` (Marsaglia and Tsang, 2000), so that shares are never 0/0.
    """
    logs = np.log(np.maximum(rng.standard_gamma(alpha + 1.0, count), np.finfo(float).tiny))
    logs += np.log1p(-rng.random(count)) / alpha
    weights = np.exp(logs - logs.max())
    shares: Shares = weights / weights.sum()
    return shares


def _cut(shares: Shares, count: int) -> Rows:
    """Whole numbers that sum to ``count`` and follow ``shares`` to within one."""
    edges = np.minimum(np.rint(np.cumsum(shares) * count), count).astype(np.int64)
    edges[-1] = count
    return np.diff(edges, prepend=0)


def _topped_up(owner: Rows, peers: int, least: int, rng: np.random.Generator) -> Rows:
    """Everybody gets ``least`` records, the missing ones from whoever holds most."""
    owner, sizes = owner.copy(), np.bincount(owner, minlength=peers)
    rich = [(-int(size), peer) for peer, size in enumerate(sizes) if size > least]
    heapq.heapify(rich)
    rows = {peer: rng.permutation(np.flatnonzero(owner == peer)) for _, peer in rich}
    for peer in np.flatnonzero(sizes < least):
        lacking = least - int(sizes[peer])
        while lacking:
            held, donor = -rich[0][0], rich[0][1]
            given = min(lacking, held - least)
            owner[rows[donor][held - given : held]] = peer
            lacking -= given
            if held - given > least:
                heapq.heapreplace(rich, (given - held, donor))
            else:
                heapq.heappop(rich)
    return owner


def _by_owner(owner: Rows, peers: int) -> list[Rows]:
    sizes = np.bincount(owner, minlength=peers)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])


PARTITIONS: Mapping[str, Partition] = {
    "iid": Partition(iid, "shuffled, sizes differ by one at most"),
    "dirichlet": Partition(dirichlet, "label skew: each class by shares of Dir(alpha)", ("alpha",)),
    "label": Partition(label, "each peer holds classes_per_peer classes", ("classes_per_peer",)),
    "quantity": Partition(quantity, "size skew: sizes by shares of Dir(alpha)", ("alpha",)),
    "natural": Partition(natural, "one peer for each group that the records name"),
}
SETTINGS = ("alpha", "classes_per_peer", "min_records")


def dealing(partition: str | Dealing, options: Mapping[str, object]) -> Dealing:
    """A partition with those of ``options`` that are :data:`SETTINGS` of one.

    >>> dealing("dirichlet", {"alpha": 0.1, "records": 3})
    Dealing(kind='dirichlet', alpha=0.1, classes_per_peer=None, min_records=1)
    """
    given = {name: options[name] for name in SETTINGS if name in options}
    base = partition if isinstance(partition, Dealing) else Dealing(partition)
    return replace(base, **given)  # type: ignore[arg-type]


def split(pool: Table, partition: str | Dealing, peers: int, rng: np.random.Generator) -> Split:
    """The pool dealt to ``peers``."""
    how = dealing(partition, {})
    check_count("peers", peers, low=1)
    if peers * how.min_records > len(pool):
        each = "one" if how.min_records == 1 else f"min_records, {how.min_records}"
        raise InvalidInput(
            f"peers is {peers}; there are {len(pool)} training records and every peer needs "
            f"{each}, so allowed: 1 to {len(pool) // how.min_records}."
        )
    parts = checked(pool, PARTITIONS[how.kind].deal(pool, peers, how, rng))
    for peer, rows in enumerate(parts.parts):
        if len(rows) < how.min_records:
            raise InvalidInput(
                f"peer {peer} would hold {len(rows)} records; allowed: min_records, "
                f"{how.min_records}, or more."
            )
    return replace(parts, dealing=how.kind)


def checked(pool: Table, parts: Sequence[Rows]) -> Split:
    """``parts`` as holdings, after checking for empty peers, bad rows and shared records."""
    owner = np.full(len(pool), -1, np.int64)
    for peer, rows in enumerate(parts):
        if not len(rows):
            raise InvalidInput(f"peer {peer} would hold no record; allowed: one or more.")
        outside = rows[(rows < 0) | (rows >= len(pool))]
        if outside.size:
            raise InvalidInput(
                f"peer {peer} is given row {outside[0]}; allowed: rows 0 to {len(pool) - 1}."
            )
        taken = rows[owner[rows] >= 0]
        if taken.size:
            raise InvalidInput(
                f"row {taken[0]} is given to peer {owner[taken[0]]} and to peer {peer}; "
                "allowed: one peer per record."
            )
        if len(np.unique(rows)) != len(rows):
            raise InvalidInput(f"peer {peer} is given a row twice; allowed: once.")
        owner[rows] = peer
    return Split(pool, list(parts))
