"""Plans: everything about a walk that is settled before it starts, for an engine to carry out.

``Task``, ``Graph``, ``Route`` and ``Method`` are protocols, which other packages implement
(``Graph``, ``Move`` and ``Route`` are in :mod:`unwalk.core.walking`).  Settings that change *what*
is computed are in the plan and its methods; settings that only change how fast it is computed are
in :class:`Performance`.

Torch is imported for type checking only, so that methods can make plans without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from unwalk.core.program import Drawing, Program, Records, Visit
from unwalk.core.seeds import PublicSeeds
from unwalk.core.transcript import Transcript
from unwalk.core.walking import Graph as Graph
from unwalk.core.walking import Move as Move
from unwalk.core.walking import Route as Route

if TYPE_CHECKING:
    import torch
    from torch import nn

    from unwalk.core.data import Shard
    from unwalk.core.noise import NoiseSource
    from unwalk.core.token import Token, Workspace

Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
PREDICTS = ("class", "number", "labels")
"""What models predict: one class, a number, or any of several labels (:mod:`core.losses`)."""
KEEPS = ("last", "average", "random")
"""Which iterate of a phase can be its result."""
ENGINES = ("auto", "inprocess", "fleet", "ray")
"""Names of engines; ``auto`` chooses for each plan."""


class Method(Protocol):
    """What one visit does to the token: a pure function from a visit to a program."""

    @property
    def name(self) -> str: ...
    @property
    def travels(self) -> tuple[str, ...]:
        """Names of the moment vectors that travel in the token."""

    def visit(self, visit: Visit) -> Program: ...


@runtime_checkable
class Drawn(Protocol):
    """A method that can tell what a visit does before anything is drawn for it."""

    def drawing(self, visit: Visit) -> Drawing | None:
        """What :meth:`Method.visit` does at any hop of the phase but the first; None: ask that.

        It must not depend on the hop, nor on anything of earlier visits but whether this is the
        peer's first of the phase.
        """


def says_for_many(given: object, one: str, many: str) -> bool:
    """Whether the class that says what one walk does also says it for many."""
    owner = next(kind for kind in type(given).__mro__ if one in vars(kind))
    return many in vars(owner)


def drawing_of(method: Method, visit: Visit) -> Drawing | None:
    """What a method tells of a visit before anything is drawn for it; None: ask ``visit``."""
    if not isinstance(method, Drawn) or not says_for_many(method, "visit", "drawing"):
        return None
    return method.drawing(visit)


class Task(Protocol):
    """Data, shards and model."""

    @property
    def name(self) -> str: ...
    @property
    def peers(self) -> int: ...
    @property
    def loss(self) -> Loss | None:
        """Per-example loss of (output, label); None for cross-entropy."""

    def model(self) -> nn.Module:
        """A freshly initialised model, drawn from torch's global generator."""

    def records(self, peer: int) -> Records: ...
    def shard(self, peer: int) -> Shard: ...


@dataclass(frozen=True, eq=False)
class Phase:
    """``hops`` visits of one method along one route.

    ``start`` is ``token`` (continue from the token), ``initial`` (the public initial model) or
    ``arrival`` (what the forgetting peer kept when the token arrived for hop ``start_hop``, with
    every peer's local state as it was then).  ``keep`` chooses the iterate that is the phase's
    result: ``last``, ``average`` or ``random``.  ``carries_forgotten`` says whether the starting
    token was trained on the forgotten records.
    """

    name: str
    method: Method
    route: Route
    hops: int
    keep: str = "last"
    reset_optimizer: bool = False
    carries_forgotten: bool = False
    start: str = "token"
    start_hop: int | None = None


@dataclass(frozen=True)
class Performance:
    """Settings that may change speed and rounding, never the mechanism.

    ``precision`` and ``compiled`` act on CUDA devices only, ``hosts`` on a Ray cluster only.
    """

    threads: int = 1
    device: str = "cpu"
    digests: bool = False
    precision: str = "float32"
    compiled: bool = False
    hosts: int | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """One walk, from the first hop to the last.

    ``keeps`` says which arrivals the forgetting peer keeps a copy of: ``none``, the ``first`` one
    or ``all``.  ``salt`` is a secret that makes the digests of the transcript commitments.
    """

    run: str
    task: Task
    graph: Graph
    phases: tuple[Phase, ...]
    seeds: PublicSeeds
    noise: NoiseSource
    unlearner: int = -1
    public: Mapping[str, Any] = field(default_factory=dict)
    performance: Performance = field(default_factory=Performance)
    keeps: str = "none"
    salt: bytes = field(default=b"", repr=False)

    @property
    def hops(self) -> int:
        return sum(p.hops for p in self.phases)

    def phase_of(self, hop: int) -> tuple[int, int]:
        """Phase number and 1-based hop within it, of the 1-based hop ``hop``."""
        for number, phase in enumerate(self.phases):
            if hop <= phase.hops:
                return number, hop
            hop -= phase.hops
        raise IndexError(hop)

    def header(self) -> dict[str, Any]:
        """What was public before the first hop."""
        return {
            "run": self.run,
            "task": self.task.name,
            "peers": self.graph.peers,
            "graph": self.graph.kind,
            "unlearner": self.unlearner,
            "noise": self.noise.origin,
            "digests": "salted" if self.salt else "plain",
            **({"streams": self.seeds.streams} if self.seeds.streams > 1 else {}),
            "phases": [
                {"name": p.name, "method": p.method.name, "hops": p.hops} for p in self.phases
            ],
            **self.public,
        }


@dataclass(eq=False)
class Local:
    """What one peer keeps between visits.

    ``in_phase`` counts the visits in ``phase``, the last one it was visited in.  ``sums`` are what
    it contributed to the sums that travel.
    """

    visits: int = 0
    moments: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer_steps: int = 0
    phase: str = ""
    in_phase: int = 0
    sums: dict[str, torch.Tensor] = field(default_factory=dict)

    def copy(self) -> Local:
        """A copy that later visits do not change."""
        return replace(
            self,
            moments={k: v.clone() for k, v in self.moments.items()},
            sums={k: v.clone() for k, v in self.sums.items()},
        )


@dataclass(frozen=True, eq=False)
class Kept:
    """The token as it arrived at the forgetting peer, and what every peer kept just then."""

    token: Token
    locals: dict[int, Local]


@dataclass(eq=False)
class Progress:
    """Everything needed to continue a walk after any hop; ``arrivals`` is keyed by hop."""

    token: Token
    locals: dict[int, Local]
    anchors: dict[str, torch.Tensor]
    transcript: Transcript
    arrivals: dict[int, Kept] = field(default_factory=dict)

    @property
    def hop(self) -> int:
        """The number of hops done; an engine may know it before it shows the token."""
        return self.token.hop

    def fork(self, header: dict[str, Any], *, end_digest: bool = True) -> Progress:
        """A copy under another header, so that several walks can continue from the same hop.

        Without ``end_digest`` the last hop's digest is left out: it was written because a walk
        ended there, and the walk that continues does not.
        """
        transcript = Transcript(header)
        for hop in self.transcript.hops:
            last = hop is self.transcript.hops[-1]
            transcript.add(replace(hop, digest=None) if last and not end_digest else hop)
        copies = {peer: local.copy() for peer, local in self.locals.items()}
        anchors = {k: v.clone() for k, v in self.anchors.items()}
        return Progress(self.token.clone(), copies, anchors, transcript, dict(self.arrivals))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an engine for one plan."""

    plan: Plan
    progress: Progress
    look: Callable[[], Workspace]

    @property
    def workspace(self) -> Workspace:
        """A workspace that shows the final token."""
        return self.look()

    @property
    def token(self) -> Token:
        return self.progress.token

    @property
    def transcript(self) -> Transcript:
        return self.progress.transcript


class Sink(Protocol):
    """Watches walks: measures, saves, shows progress.  It must not change anything."""

    def after(self, index: int, progress: Progress, look: Callable[[], Workspace]) -> None:
        """Called after every hop of plan ``index`` with live (borrowed) state.

        ``look()`` returns a workspace that shows the token, for running the model.
        """


@runtime_checkable
class Onlooker(Protocol):
    """A sink that looks at messages on their way, and at many of them at once.

    Engines whose walks advance together tell it of many hops with :meth:`sent`, and then not with
    :meth:`Sink.after`.  Of a hop that comes after one of those it is told with :meth:`before` too.
    """

    def sent(
        self,
        numbers: npt.NDArray[np.int64],
        hops: npt.NDArray[np.int64],
        senders: npt.NDArray[np.int64],
        receivers: npt.NDArray[np.int64],
        token: Callable[[int], Token],
    ) -> None:
        """The tokens of these plans go from senders to receivers, or stay; no visit was made yet.

        None of the hops is a phase's first.  ``token`` shows that of a plan, borrowed.
        """

    def before(self, index: int, progress: Progress) -> None:
        """A hop of plan ``index`` begins, of which :meth:`Sink.after` will tell."""


Resume = Mapping[int, Progress]
"""Where walks go on, by the numbers of their plans."""


class Engine(Protocol):
    """Carries plans out.  Every engine passes ``tests/engines/test_contract.py``."""

    @property
    def together(self) -> bool:
        """Whether walks advance together, hop by hop, instead of one after the other."""

    def run(
        self, plans: Sequence[Plan], sink: Sink | None = None, resume: Resume | None = None
    ) -> Iterator[Outcome]: ...
