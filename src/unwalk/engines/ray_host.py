"""What a worker of a Ray cluster does: it hosts several peers and makes the visits to them.

A host holds no state that a visit could change.  It keeps copies of what it was given once (the
plan, the shards of its peers, anchors that a visit looks at); one that was started anew says what
it lacks (:class:`Lacks`), and is given it again.  A visit is a function of its order, of the token
and of what the peer kept: it can be made again, with the same bits.  The visit itself is the
in-process engine's (:class:`Walk`).

Only :class:`Host` and :class:`FarRegister` call Ray, so that this module can be imported
without it.
"""

# Imports in functions: the package ray is an extra, and slow to load.

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from unwalk.core import __version__
from unwalk.core.data import Shard
from unwalk.core.events import Draw
from unwalk.core.plan import Kept, Local, Loss, Move, Plan, Progress
from unwalk.core.program import Records
from unwalk.core.token import Token, Workspace
from unwalk.core.transcript import Hop, Transcript
from unwalk.engines.execute import execute
from unwalk.engines.inprocess import Walk
from unwalk.engines.ray_door import Door, Key
from unwalk.engines.ray_parcel import APART, Parcel, packed


@dataclass(frozen=True)
class Order:
    """One visit: which hop of which walk of which task, and how the token came.

    ``phase`` names the phase.  ``kept_from`` is the hop whose kept token the
    phase starts from.  ``keeps``: whether the token is to be kept as it arrives.  ``loose``:
    whether the token is one that a walk went on with, which is not the workspace's own yet.

    ``chain`` numbers the visits that were ordered one after the other; each of them but the first
    takes its token at the ``door`` of the host before, where that is on the same machine.
    ``hands``: whether the next visit may do so.
    """

    task: str
    walk: str
    chain: int
    hop: int
    move: Move
    phase: str
    kept_from: int | None = None
    keeps: bool = False
    loose: bool = False
    door: str | None = None
    hands: bool = False

    @property
    def key(self) -> Key:
        """The token that this visit leaves."""
        return self.chain, self.hop

    @property
    def before(self) -> Key:
        """The token that the visit before leaves."""
        return self.chain, self.hop - 1


@dataclass(frozen=True)
class Visited:
    """The driver's view of a visit: the hop as the transcript has it, and when it computed."""

    hop: Hop
    optimizer_steps: int
    began: float
    ended: float


@dataclass(eq=False)
class FarTask:
    """A task at a host: its model without what is trained, and the shards of the host's peers."""

    name: str
    peers: int
    loss: Loss | None
    built: nn.Module
    shards: dict[int, Shard] = field(default_factory=dict)

    def model(self) -> nn.Module:
        return self.built

    def records(self, peer: int) -> Records:
        return self.shards[peer].records

    def shard(self, peer: int) -> Shard:
        return self.shards[peer]


@dataclass(frozen=True, eq=False)
class FarRegister:
    """The register of noise on the driver's machine, asked from another one."""

    keeper: Any

    def enter(self, *, run: str, peer: int, hop: int, step: int, inputs: str) -> Draw:
        import ray

        asked = self.keeper.enter.remote(run=run, peer=peer, hop=hop, step=step, inputs=inputs)
        draw: Draw = ray.get(asked)
        return draw


class Lacks(Exception):
    """A host does not hold what a visit needs; the argument is its name."""


class FarAnchors(dict[str, torch.Tensor]):
    """Anchors that a host is given when a visit has asked for one.

    Most walks never look at them, and each is as large as the model.
    """

    def __missing__(self, name: str) -> torch.Tensor:
        raise Lacks(name)


def versions() -> dict[str, str]:
    """What has to be the same on every machine."""
    return {"unwalk": __version__, "torch": torch.__version__, "Python": platform.python_version()}


class Host:
    """Makes the visits to its peers.  One task and one walk at a time."""

    def __init__(self) -> None:
        import ray

        self.task = self.walk = self.phase = ""
        self.shards: dict[int, Shard] = {}
        self.at: Walk | None = None
        self.door = Door(ray._private.worker._global_node.get_session_dir_path())
        self.here: Key | None = None

    def versions(self) -> dict[str, str]:
        """What this worker runs."""
        return versions()

    def found(self) -> tuple[str, str]:
        """The machine that this host is on, and its door."""
        import ray

        return ray.get_runtime_context().get_node_id(), self.door.address

    def over(self, chain: int) -> None:
        """No visit of this chain or an earlier one is waited for any more."""
        self.door.over(chain)

    def visit(
        self, order: Order, token: Parcel | None, local: Parcel | None, held: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """What happened, the token, what the peer keeps, and the token as it arrived if kept."""
        try:
            return self._visit(order, token, local, held)
        except BaseException:
            self.here = None
            self.door.leave(order.key, None)
            raise

    def _visit(
        self, order: Order, token: Parcel | None, local: Parcel | None, held: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        walk = self._walk_of(order, held)
        peer, work = order.move.receiver, walk.state
        assert isinstance(work, Workspace)
        own: Local | None = None if local is None else local.opened()
        locals_ = {} if own is None else {peer: own}
        came = self._came(order, token)
        arrivals: dict[int, Kept] = {}
        if order.kept_from is not None:
            arrivals[order.kept_from] = Kept(self._given(held, "kept").viewed(), locals_)
        elif not order.keeps:
            arrivals[0] = Kept(came, {})  # one that was kept before, as far as Walk sees
        same = came if order.loose else work.token(hop=came.hop, at=came.at, memory=came.memory)
        walk.progress = Progress(same, locals_, work.anchors, Transcript({}), arrivals)
        arrival = walk.arrive(order.hop, None, order.move)
        walk.seed(arrival)
        work.model.train()
        self._gradient(work, there=True)
        began = time.monotonic()
        events, gradients = execute(arrival.program, arrival.bench)
        ended = time.monotonic()
        walk.depart(arrival, events, gradients)
        self._gradient(work, there=order.hands)
        left = walk.progress.token
        parcel = packed(left, APART)
        self.here = order.key
        self.door.leave(order.key, parcel if order.hands else None)
        (hop,) = walk.progress.transcript.hops
        answer: list[Any] = [
            Visited(hop, left.optimizer_steps, began, ended),
            parcel,
            packed(walk.progress.locals[peer]),
        ]
        if order.keeps:
            answer.append(packed(arrivals[order.hop].token))
        arrivals.clear()  # what is seen of Ray's memory cannot be given free there
        return tuple(answer)

    def _came(self, order: Order, token: Parcel | None) -> Token:
        """The token that arrived, in the workspace."""
        assert self.at is not None
        if order.door is not None and self.here == order.before:
            return self.at.progress.token  # it has not left
        if order.door is not None:
            token = self.door.fetch(order.door, order.before)
        if token is None:
            raise Lacks("the token of the host before")
        came: Token = token.viewed()
        self.at.state.load(came)
        return came

    def _walk_of(self, order: Order, held: Mapping[str, Any]) -> Walk:
        """The walk with the shard and the phase that a visit needs; what is new is fetched."""
        if self.task != order.task:
            self.task, self.shards = order.task, {}
        if self.at is None or self.walk != order.walk:
            plan: Plan = self._given(held, "plan")
            assert isinstance(plan.task, FarTask)
            plan.task.shards = self.shards
            torch.set_num_threads(plan.performance.threads)
            self.at = Walk(plan, Workspace(plan.task.built, "cpu", FarAnchors()), None)
            self.walk, self.phase = order.walk, order.phase
        peer = order.move.receiver
        if peer not in self.shards:
            self.shards[peer] = self._given(held, "shard")
        anchors = self.at.state.anchors
        if self.phase != order.phase:
            anchors.pop("start", None)
            self.phase = order.phase
        for name in ("initial", "start"):
            if name in held:
                anchors[name] = self._given(held, name).viewed().parameters
        return self.at

    def _gradient(self, work: Workspace, *, there: bool) -> None:
        """Let the gradient's memory go between visits, and have it again.

        A host that waits for a large token holds one model and no gradient.
        """
        memory = work.gradient.untyped_storage()
        if there and not memory.nbytes():
            memory.resize_(work.parameters.nbytes)
            work.gradient.zero_()
        elif not there:
            memory.resize_(0)

    def _given(self, held: Mapping[str, Any], name: str) -> Any:
        """An object that is fetched once."""
        import ray

        if name not in held:
            raise Lacks(name)
        return ray.get(held[name])


class Keeper:
    """The register of noise of one run, on the machine of the driver.

    An entry is written before its noise is drawn, and the same entry again is the same draw: a
    visit that is made again gets the same noise.
    """

    def __init__(self, enter: Callable[..., Draw]) -> None:
        self.register = enter

    def enter(self, *, run: str, peer: int, hop: int, step: int, inputs: str) -> Draw:
        """The entry of a draw."""
        return self.register(run=run, peer=peer, hop=hop, step=step, inputs=inputs)
