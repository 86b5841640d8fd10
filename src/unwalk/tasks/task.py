"""A task as walks use it: shards, a model, what it is measured on; what a loader is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import nn

from unwalk.core.data import Held, Shard, within
from unwalk.core.errors import InvalidInput
from unwalk.core.losses import is_built_in
from unwalk.core.outside import held_fast, leftovers, visits
from unwalk.core.plan import Loss
from unwalk.core.program import Records, Rows
from unwalk.core.seeds import PublicSeeds
from unwalk.core.token import build_model
from unwalk.core.validation import check_count
from unwalk.tasks.features import Features
from unwalk.tasks.forgetting import Deletion, Marked, Stamper, Trigger, mark
from unwalk.tasks.models import Factory, check_model
from unwalk.tasks.sources import Cells, Dealing, Holdings, Ids, Source

Options = Mapping[str, Any]


def check_classes(task: ShardedTask, why: str) -> None:
    """Refuse a task whose models predict something else than one class."""
    if task.predicts != "class":
        raise InvalidInput(
            f"{why}, but task {task.name!r} predicts {task.predicts} (data.predicts); allowed: a "
            "task with classes."
        )


@dataclass(frozen=True)
class Request:
    """The arguments of a loader."""

    peers: int
    partition: Dealing
    seeds: PublicSeeds
    options: Options


RETAINED_SAMPLE = 2000
RETAINED_PEERS = 20
SAMPLES = 8


@dataclass(frozen=True, eq=False)
class Samples:
    """A few test pictures with the trigger on them, for people to look at.

    ``x`` is what the model sees, ``clean`` the same without the trigger, ``y`` the true labels, and
    ``shown`` the inputs with the trigger that features, where there are any, are made from.
    """

    x: torch.Tensor
    y: torch.Tensor
    clean: torch.Tensor
    shown: torch.Tensor


@final
@dataclass(frozen=True, eq=False)
class ShardedTask:
    """Records dealt to peers, one of which (``unlearner``, the paper's u) has to forget some.

    A shard is built when first needed, and kept; the unlearner's is built at once, so that an
    impossible request is refused before anything runs.  The trigger counts only when the deletion
    is a backdoor.  ``dtype`` is the type of inputs and parameters; None leaves both as they come.

    With ``features`` the inputs are features (``source`` says what they look like) of what is held,
    trigger included.
    """

    source: Source
    holdings: Holdings
    factory: Factory
    seeds: PublicSeeds
    unlearner: int = 0
    deletion: Deletion = field(default_factory=lambda: Deletion("nothing"))
    trigger: Trigger | None = None
    loss: Loss | None = None
    dtype: torch.dtype | None = torch.float32
    features: Features | None = None
    _shards: dict[int, Shard] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("the forgetting peer", self.unlearner, high=self.peers - 1)
        self.shard(self.unlearner)
        check_model(self.model, self._few(2), self.classes, self.loss)

    @property
    def name(self) -> str:
        """The name of the data."""
        return self.source.name

    @property
    def peers(self) -> int:
        """Number of peers, the paper's N."""
        return self.holdings.peers

    @property
    def classes(self) -> int:
        """Number of classes or of labels: that of a model's outputs."""
        return self.source.classes

    @property
    def predicts(self) -> str:
        """What models predict, one of :data:`unwalk.core.plan.PREDICTS`."""
        return self.source.predicts

    @property
    def own_loss(self) -> bool:
        """Whether the loss is a user's own code."""
        return self.loss is not None and not is_built_in(self.loss)

    @property
    def target(self) -> int | None:
        """The backdoor's target class; None without a backdoor."""
        return None if self.trigger is None or self._stamper is None else self.trigger.target

    @property
    def trigger_text(self) -> str | None:
        """The trigger in words; None without a backdoor."""
        return None if self._stamper is None else str(self.trigger)

    @property
    def forget_kind(self) -> str:
        """What has to be forgotten: one of :data:`unwalk.tasks.KINDS`."""
        return self.deletion.kind

    @property
    def model_name(self) -> str:
        """What the model is called."""
        return self.factory.name

    @property
    def own_code(self) -> bool:
        """Whether code of the user's own takes part in training: model, loss or augmentation."""
        return self.factory.own or self.own_loss or self.source.own_code

    @cached_property
    def outside_state(self) -> str | None:
        """State that a user's own code keeps besides parameters, buffers and attributes, in words.

        A few records of the test set are tried, or random inputs where there are none.
        """
        if not self.own_code:
            return None
        for what, call in (("loss", self.loss), ("augmentation", self.source.augment)):
            why = held_fast(call)
            if why is not None:
                return f"what the {what} keeps cannot be put back: {why}"
        held, model = self._few(4), build_model(self.model, 0)
        x, y = held.x, held.y
        gradients = visits(self.loss, self.source.augment)
        return leftovers(model, gradients, (x[:2], y[:2]), (x[2:], y[2:]))

    def _few(self, count: int) -> Held:
        """Records of the test set to try a model on; random inputs where there are too few."""
        x, y = self.test.x[:count], self.test.y[:count]
        if len(y) < count:
            generator = torch.Generator().manual_seed(0)
            x = self._typed(torch.rand(count, *self.source.shape, generator=generator))
            numbered, rows = not y.is_floating_point(), torch.arange(count)
            y = rows % self.classes if numbered else y.new_zeros(count, *y.shape[1:])
        return Held(x, y)

    @property
    def training_records(self) -> int:
        """How many records the peers hold together, before any is added by a backdoor."""
        return self.holdings.records

    def model(self) -> nn.Module:
        """A freshly initialised model, drawn from torch's global generator."""
        model = self.factory()
        return model if self.dtype is None else model.to(self.dtype)

    def records(self, peer: int) -> Records:
        """Which rows a peer holds, and which of them are to be forgotten."""
        return self.shard(peer).records

    def shard(self, peer: int) -> Shard:
        """The records of one peer; the same object at every call."""
        shard = self._shards.get(peer)
        if shard is None:
            shard = self._shards[int(peer)] = self._build(int(peer))
        return shard

    def with_shard(self, shard: Shard) -> ShardedTask:
        """The same task with other records at the forgetting peer; shards that exist are shared."""
        made = replace(self)
        made._shards.update({**self._shards, self.unlearner: shard})
        return made

    def ids(self, peer: int) -> Ids:
        """The record ids of one peer, in the order of its rows."""
        return self._marked(peer).table.ids

    def cells(self, peer: int) -> Cells | None:
        """The values of one peer's records by the names of their columns, where these have any."""
        return self._marked(peer).table.cells

    def pictures(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs as pictures of (height, width) or (height, width, 3) values from 0 to 1.

        Where models see features, they are what these are made from.
        """
        scale = self._seen.scale
        if scale is None:
            raise InvalidInput(f"the inputs of {self.name!r} are not pictures.")
        pixels = scale.pixels(inputs).clamp(0.0, 1.0)
        if pixels.dim() == 3:
            return pixels
        return pixels.permute(0, 2, 3, 1) if pixels.shape[1] == 3 else pixels.mean(1)

    @cached_property
    def test(self) -> Held:
        """The clean test set."""
        return Held(self._typed(self.source.test.x), self.source.test.y)

    @cached_property
    def triggered(self) -> Held | None:
        """All test pictures with the trigger on them, under their true labels."""
        if self._stamper is None:
            return None
        x = self._stamper(self._seen.test.x)
        return Held(self._typed(x if self.features is None else self.features.of(x)), self.test.y)

    @cached_property
    def forgotten(self) -> Held:
        """The records to be forgotten, as the model saw them."""
        return self._held(self.shard(self.unlearner), self.records(self.unlearner).forgotten)

    @cached_property
    def retained(self) -> Held:
        """What the unlearner keeps, and at most 2,000 records of a few other peers."""
        shard = self.shard(self.unlearner)
        parts = [self._held(shard, shard.records.retained), *self._others()]
        return Held(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))

    @cached_property
    def samples(self) -> Samples | None:
        """Eight test pictures of classes other than the target, as many classes as there are."""
        if self.triggered is None or self.target is None:
            return None
        y = self.test.y.numpy()
        order = self.seeds.numpy("task", "samples").permutation(np.flatnonzero(y != self.target))
        earlier = [int((y[order[:i]] == y[row]).sum()) for i, row in enumerate(order)]
        chosen = order[np.lexsort((y[order], earlier))][:SAMPLES]
        rows = torch.from_numpy(np.ascontiguousarray(chosen))
        shown = self.triggered.x[rows]
        if self.features is not None and self._stamper is not None:
            shown = self._stamper(self._seen.test.x[rows])
        return Samples(self.triggered.x[rows], self.test.y[rows], self.test.x[rows], shown)

    @property
    def sample_images(self) -> torch.Tensor:
        """The samples as pictures; none without a backdoor."""
        return torch.empty(0) if self.samples is None else self.pictures(self.samples.shown)

    @cached_property
    def _stamper(self) -> Stamper | None:
        if self.deletion.kind != "backdoor" or self.trigger is None:
            return None
        return self.trigger.stamper(self._seen)

    @property
    def _seen(self) -> Source:
        """The source of the inputs before features were made of them."""
        return self.source if self.features is None else self.features.seen

    def before_features(self, peer: int) -> torch.Tensor:
        """The inputs of a peer before features were made of them, poisoned ones stamped."""
        marked = self._marked(peer)
        x, stamp = marked.table.x, self._stamper
        if stamp is not None and marked.poisoned:
            x = x.clone()
            x[torch.from_numpy(marked.forgotten)] = stamp(x[torch.from_numpy(marked.forgotten)])
        return x

    def _build(self, peer: int) -> Shard:
        """With augmentation the trigger is stamped on every batch, otherwise once, here."""
        check_count("peer", peer, high=self.peers - 1)
        stamp = self._stamper
        marked = self._marked(peer)
        records = Records(len(marked.table.y), marked.forgotten)
        if self.features is not None:
            changed = marked.forgotten if marked.poisoned else marked.forgotten[:0]
            made = self.features.of_peer(peer, self.before_features(peer), changed)
            return Shard(self._typed(made), marked.table.y, records)
        x, y = self._typed(marked.table.x), marked.table.y
        if stamp is None or not marked.poisoned:
            return Shard(x, y, records, self.source.augment)
        poisoned = torch.zeros(len(y), dtype=torch.bool)
        poisoned[torch.from_numpy(marked.forgotten)] = True
        if self.source.augment is not None:
            return Shard(x, y, records, self.source.augment, stamp, poisoned)
        x = x.clone()
        x[poisoned] = stamp(x[poisoned])
        return Shard(self._typed(x), y, records)

    def _marked(self, peer: int) -> Marked:
        table = self.holdings.table(peer)
        if peer != self.unlearner:
            return Marked(table, np.empty(0, np.int64), poisoned=False)
        rng = self.seeds.numpy("task", "forget")
        return mark(self.deletion, self.trigger, self.source, peer, table, rng, self._holder)

    def _holder(self, name: str) -> int | None:
        """The peer that trains on the record with this id."""
        tables = map(self.holdings.table, range(self.peers))
        return next((v for v, table in enumerate(tables) if name in table.ids.astype(str)), None)

    def _others(self) -> list[Held]:
        """A bounded sample of the records of other peers, drawn without keeping their shards.

        Where inputs are features the shards are kept, so that these are computed once.
        """
        rng = self.seeds.numpy("task", "retained")
        count = min(self.peers - 1, RETAINED_PEERS)
        drawn = rng.choice(self.peers - 1, size=count, replace=False)
        peers = np.sort(np.where(drawn >= self.unlearner, drawn + 1, drawn)).tolist()
        left, sample = RETAINED_SAMPLE, []
        for done, peer in enumerate(peers):
            table = self.holdings.table(peer)
            quota = -(-left // (count - done))
            rows = np.sort(rng.permutation(len(table))[:quota])
            left -= len(rows)
            if self.features is not None:  # computed once: the shard has them
                sample.append(self._held(self.shard(peer), rows))
                continue
            part = table.take(rows)
            sample.append(Held(self._typed(part.x), part.y))
        return sample

    def _typed(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.dtype is None else x.to(self.dtype)
        norm = self.source.feature_norm
        return x if norm is None or x.dtype != torch.float64 else within(x, norm)

    @staticmethod
    def _held(shard: Shard, rows: Rows) -> Held:
        return Held(*shard.take(torch.from_numpy(rows), None))
