"""A peer's visit: the simulator's own code, for one peer, one hop at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from time import monotonic

import torch

from unwalk.core.errors import InvalidInput
from unwalk.core.noise import SecretNoise
from unwalk.core.plan import Graph, Local, Move, Plan, Progress
from unwalk.core.token import Token
from unwalk.core.transcript import Hop, Transcript
from unwalk.core.workspace import Workspace, build_model
from unwalk.engines.execute import execute
from unwalk.engines.walk import Walk
from unwalk.peers.network import Network
from unwalk.peers.tokens import shapes_of
from unwalk.runs.assemble import assemble, resolve
from unwalk.walks import NOBODY

ATTEMPTS = 1000
"""So often a route is drawn again before it is taken to lead nowhere else."""


def plan_of(network: Network, secret: bytes | None = None) -> Plan:
    """The walk that a network carries out, the same at every peer but for its noise secret."""
    settings = {**network.settings, "peers": len(network.peers)}
    config = resolve(settings, where="the network file")
    if config.device != "cpu":
        raise InvalidInput(f"device is {config.device!r}; peers walk on the CPU: allowed: cpu.")
    assembled = assemble(config)
    if network.noise == "secret":
        secret = secret if secret is not None else bytes(32)
        assembled = replace(assembled, noise=SecretNoise(network.run_id, secret))
    plan = assembled.training()
    if plan.graph.peers != len(network.peers):
        raise InvalidInput(
            f"the graph has {plan.graph.peers} peers, but the network file names "
            f"{len(network.peers)}."
        )
    return replace(plan, run=network.run_id, keeps="none", salt=b"")


class PublicAnchors(dict[str, torch.Tensor]):
    """Anchors that are made when a projection asks for them: both are the public initial model.

    A peer that never projects keeps no copy of the initial model in memory.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def __missing__(self, name: str) -> torch.Tensor:
        if name not in ("initial", "start"):
            raise KeyError(name)
        model = build_model(self.plan.task.model, self.plan.seeds.integer("model"))
        self[name] = Workspace(model).parameters
        return self[name]


@dataclass(frozen=True, eq=False)
class Visited:
    """What a visit left; ``token`` shows the workspace and is good until the next visit."""

    token: Token
    local: Local
    hop: Hop
    began: float
    ended: float


class Work:
    """Routes and visits of one peer."""

    def __init__(self, plan: Plan, peer: int) -> None:
        if len(plan.phases) != 1:
            raise InvalidInput(f"the plan has {len(plan.phases)} phases; peers carry out one.")
        torch.set_num_threads(plan.performance.threads)
        self.plan = plan
        self.peer = peer
        self.phase = plan.phases[0]
        model = build_model(plan.task.model, plan.seeds.integer("model"))
        self.space = Workspace(model, "cpu")
        self.space.anchors = PublicAnchors(plan)
        self.walk = Walk(plan, self.space, None)
        self.shard = plan.task.shard(peer)
        first = self.space.token(hop=0, at=NOBODY, memory={})
        self.expected = shapes_of(first)
        vector = self.expected["parameters"]
        self.optional = {f"moment/{name}": vector for name in self.phase.method.travels}
        self.optional |= {f"kept/{name}": vector for name in ("average", "random")}
        self.most_bytes = first.nbytes * (2 + len(self.optional)) + (1 << 20)

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def initial(self) -> Token:
        """The public token before the first hop; to be asked for before any visit."""
        return self.space.token(hop=0, at=NOBODY, memory={})

    def move(self, hop: int, at: int, memory: Mapping[str, int], attempt: int) -> Move:
        """Where the token goes for visit number ``hop``; ``attempt`` 0 is what a simulator does."""
        labels: tuple[str | int, ...] = (self.phase.name, "route", hop)
        if attempt:
            labels = (*labels, "again", attempt)
        known = {} if hop == 1 else memory
        return self.phase.route.next(self.graph, at, known, self.plan.seeds.numpy(*labels))

    def choose(
        self, hop: int, at: int, memory: Mapping[str, int], passed_over: Collection[int]
    ) -> tuple[int, Move] | None:
        """The first draw of the route that does not lead to a peer that was passed over."""
        for attempt in range(ATTEMPTS):
            move = self.move(hop, at, memory, attempt)
            if not set(move.path) & set(passed_over):
                return attempt, move
        return None

    def visit(self, token: Token, move: Move, local: Local) -> Visited:
        """One visit, bit for bit what the in-process engine does."""
        space, walk = self.space, self.walk
        space.load(token)
        here = space.token(hop=token.hop, at=token.at, memory=token.memory)
        walk.progress = Progress(here, {self.peer: local}, space.anchors, Transcript({}))
        began = monotonic()
        arrival = walk.arrive(token.hop + 1, None, move)
        if token.hop == 0:
            space.anchors.pop("start", None)
        walk.seed(arrival)
        space.model.train()
        walk.depart(arrival, *execute(arrival.program, arrival.bench))
        ended = monotonic()
        (hop,) = walk.progress.transcript.hops
        return Visited(walk.progress.token, walk.progress.locals[self.peer], hop, began, ended)
