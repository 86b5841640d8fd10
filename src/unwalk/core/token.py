"""The token, which travels from peer to peer, and the workspace in which a visit changes it.

Parameters and every optimizer moment are one flat vector each; :class:`Layout` says where each
named parameter lies in it.  A token is read-only by convention: between hops nobody writes to
it, and inside a visit the executor works in place on the one workspace whose tensors the token
shows.  Whoever wants to keep a token calls :meth:`Token.clone`.

A workspace is a model whose parameters are views of one flat vector; one visit after the other
borrows it.  Its gradient is a flat vector too, so that clipping, noise, projection and every
optimizer are a handful of vector operations whatever the model looks like.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from safetensors.torch import load as _load_safetensors
from safetensors.torch import save as _save_safetensors
from torch import nn

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.outside import Surroundings, settled, travelling

PIECE = 4 << 20
"""Numbers of a token that are read at once, so that those before can be let go."""


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in the flat vector.

    >>> layout = Layout.of(torch.nn.Linear(3, 2))
    >>> layout.size, layout.names
    (8, ('weight', 'bias'))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(model: torch.nn.Module) -> Layout:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise InvalidInput("the model has no trainable parameters.")
        dtypes = {p.dtype for _, p in named}
        if len(dtypes) > 1:
            raise InvalidInput(
                f"the model mixes parameter types {sorted(map(str, dtypes))}; use one."
            )
        return Layout(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))

    @property
    def size(self) -> int:
        """Number of parameters, the paper's d."""
        return sum(math.prod(s) for s in self.shapes)

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Named views into a flat vector (no copy)."""
        pieces = flat.split([math.prod(s) for s in self.shapes])
        return {n: p.view(s) for n, s, p in zip(self.names, self.shapes, pieces, strict=True)}


MOST_STEPS = (1 << 48) - 1
"""Steps that a token counts: further ones would change no step size."""


@dataclass(frozen=True, eq=False)
class Token:
    """Parameters, buffers, moments, kept iterates, sums of data, and the position in the walk."""

    parameters: torch.Tensor
    buffers: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor] = field(default_factory=dict)
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    sums: Mapping[str, torch.Tensor] = field(default_factory=dict)
    optimizer_steps: int = 0
    hop: int = 0
    at: int = -1
    memory: Mapping[str, int] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors under flat names, in a fixed order."""
        named = {"parameters": self.parameters}
        for group, members in (
            ("buffer", self.buffers),
            ("moment", self.moments),
            ("kept", self.kept),
            ("sum", self.sums),
        ):
            named.update({f"{group}/{k}": members[k] for k in sorted(members)})
        return named

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data that one hand-over moves."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def clone(self) -> Token:
        """A copy that later visits do not change."""

        def copy(members: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {k: v.detach().clone() for k, v in members.items()}

        return replace(
            self,
            parameters=self.parameters.detach().clone(),
            buffers=copy(self.buffers),
            moments=copy(self.moments),
            kept=copy(self.kept),
            sums=copy(self.sums),
            memory=dict(self.memory),
        )

    def header(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {
            "at": self.at,
            "hop": self.hop,
            "memory": dict(sorted(self.memory.items())),
            "optimizer_steps": self.optimizer_steps,
        }

    def to_bytes(self) -> bytes:
        """Safetensors with the header in its metadata; nothing is pickled."""
        tensors = {k: v.detach().to("cpu").contiguous() for k, v in self.tensors().items()}
        header = json.dumps(self.header(), sort_keys=True, separators=(",", ":"))
        return _save_safetensors(tensors, metadata={"unwalk-token": header})

    @staticmethod
    def from_bytes(data: bytes) -> Token:
        """The token that :meth:`to_bytes` wrote."""
        try:
            length = int.from_bytes(data[:8], "little")
            header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["unwalk-token"])
            tensors = _load_safetensors(data)
        except Exception as error:  # safetensors raises its own and json's errors
            raise Corrupt(f"these {len(data)} bytes are not a token ({error}).") from error
        return Token.of(header, tensors)

    @staticmethod
    def of(header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Token:
        """A token from what :meth:`header` and :meth:`tensors` returned."""
        groups: dict[str, dict[str, torch.Tensor]] = {
            group: {} for group in ("buffer", "moment", "kept", "sum")
        }
        for name, tensor in tensors.items():
            group, _, rest = name.partition("/")
            if group in groups:
                groups[group][rest] = tensor
        return Token(
            parameters=tensors["parameters"],
            buffers=groups["buffer"],
            moments=groups["moment"],
            kept=groups["kept"],
            sums=groups["sum"],
            optimizer_steps=header["optimizer_steps"],
            hop=header["hop"],
            at=header["at"],
            memory=header["memory"],
        )

    def digest(self, salt: bytes = b"") -> str:
        """SHA-256 over ``salt``, header and tensors: a commitment once the salt is secret."""
        header = json.dumps(self.header(), sort_keys=True).encode()
        return digest_of(self.tensors(), salt + header)


def digest_of(tensors: Mapping[str, torch.Tensor], before: bytes = b"") -> str:
    """SHA-256 over ``before`` and the names, shapes, types and values of tensors, in this order."""
    state = hashlib.sha256(before)
    for name, tensor in tensors.items():
        flat = tensor.detach().to("cpu").contiguous()
        state.update(f"{name}:{tuple(flat.shape)}:{flat.dtype};".encode())
        state.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


class State:
    """What a walk changes: parameters, buffers, moments, kept iterates, sums and anchors.

    With ``anchors`` of somebody else's the state keeps no copies of the model it began with.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: torch.Tensor,
        buffers: dict[str, torch.Tensor],
        anchors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.buffers = buffers
        self.moments: dict[str, torch.Tensor] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.sums: dict[str, torch.Tensor] = {}
        self.initial_buffers = {k: v.clone() for k, v in buffers.items()}
        self.keeps_anchors = anchors is None
        self.anchors = {"initial": parameters.clone()} if anchors is None else anchors
        self.optimizer_steps = 0
        self._model_bytes = parameters.nbytes + sum(b.nbytes for b in buffers.values())

    @property
    def device(self) -> torch.device:
        return self.parameters.device

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data of the token that this state shows."""
        travelling = (*self.moments.values(), *self.kept.values(), *self.sums.values())
        return self._model_bytes + sum([t.nbytes for t in travelling])

    def load(self, token: Token, read: Callable[[], None] = lambda: None) -> None:
        """Copy a token's tensors in; its shapes must fit the model.

        After every piece ``read`` is called: so much of the token is not needed any more.
        """
        if token.parameters.shape != self.parameters.shape or set(token.buffers) != set(
            self.buffers
        ):
            raise Corrupt(
                f"the token has {token.parameters.numel()} parameters and buffers "
                f"{sorted(token.buffers)}; the model has {self.parameters.numel()} and "
                f"{sorted(self.buffers)}."
            )
        self.moments, self.kept, self.sums = {}, {}, {}  # gone before there are others

        def copied(vector: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
            for there, here in zip(vector.split(PIECE), into.split(PIECE), strict=True):
                here.copy_(there)
                read()
            return into

        def copies(vectors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {
                k: copied(v, torch.empty_like(v, device=self.device)) for k, v in vectors.items()
            }

        copied(token.parameters, self.parameters)
        for name, buffer in self.buffers.items():
            buffer.copy_(token.buffers[name])
        self.moments, self.kept = copies(token.moments), copies(token.kept)
        self.sums = {k: v.to(self.device, copy=True) for k, v in token.sums.items()}
        read()
        self.optimizer_steps = token.optimizer_steps

    def keep_start(self) -> None:
        """Remember the model as it is now: a phase begins with it."""
        if self.keeps_anchors:
            self.anchors["start"] = self.parameters.clone()

    def begin_anew(self) -> None:
        """Back to the public initial model, with nothing else left."""
        self.parameters.copy_(self.anchors["initial"])
        for name, buffer in self.buffers.items():
            buffer.copy_(self.initial_buffers[name])
        self.moments, self.kept, self.sums = {}, {}, {}
        self.optimizer_steps = 0

    def token(self, *, hop: int, at: int, memory: Mapping[str, int]) -> Token:
        """The token that this state shows now (borrowed: clone it to keep it)."""
        return Token(
            parameters=self.parameters,
            buffers=self.buffers,
            moments=self.moments,
            kept=self.kept,
            sums=self.sums,
            optimizer_steps=self.optimizer_steps,
            hop=hop,
            at=at,
            memory=memory,
        )

    def put_back(self, *, visited: bool = False) -> None:
        """Undo what a model keeps outside the token; there is no model here."""

    def anchor(self, name: str) -> torch.Tensor | None:
        """The centre of a ball; None stands for the origin."""
        return None if name == "origin" else self.anchors[name]


@final
class Workspace(State):
    """A state with the model that shows it: parameters and gradients are views of flat vectors."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        anchors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self.model = model.to(device)
        layout = Layout.of(self.model)
        parameters = flat(self.model)
        views = layout.views(parameters)
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                parameter.data = views[name]  # the model's own memory is free from here on
        super().__init__(layout, parameters, travelling(self.model), anchors)
        trained = [(p, views[n]) for n, p in self.model.named_parameters() if p.requires_grad]
        self.around = Surroundings(self.model, trained)
        self.gradient = torch.zeros_like(parameters)
        gradients = layout.views(self.gradient)
        self.gradients = [(p, gradients[n]) for n, p in self.model.named_parameters() if n in views]
        for parameter, gradient in self.gradients:
            parameter.grad = gradient

    def put_back(self, *, visited: bool = False) -> None:
        """The model as it was built, but for the tensors that travel.

        After a visit, buffers that the model has replaced by other tensors still travel.
        """
        if visited:
            self.around.keep_buffers()
        self.around.put_back()
        for parameter, gradient in self.gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    @contextmanager
    def looked_at(self) -> Iterator[nn.Module]:
        """The model, for somebody to run: what that does to it is undone afterwards.

        A model may change its buffers whenever it is called, and its parameters too (an embedding
        with ``max_norm`` does), and it is measured on the records to be forgotten.
        """
        parameters = self.parameters.clone()
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        try:
            yield self.model
        finally:
            self.put_back()
            self.parameters.copy_(parameters)
            for name, buffer in self.buffers.items():
                buffer.copy_(before[name])

    def state_dict(self, token: Token) -> dict[str, torch.Tensor]:
        """Parameters and buffers of ``token`` under the model's own names, copied to the CPU.

        The model itself is asked for names and for parameters that are not trained.
        """
        views = self.layout.views(token.parameters)
        carried = {id(p): views[n] for n, p in self.model.named_parameters() if n in views}
        carried |= {id(buffer): token.buffers[n] for n, buffer in travelling(self.model).items()}
        named = self.model.state_dict(keep_vars=True)
        return {k: carried.get(id(v), v).detach().to("cpu", copy=True) for k, v in named.items()}


def flat(model: nn.Module) -> torch.Tensor:
    """A model's trainable parameters as one vector, copied."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


@dataclass(frozen=True)
class FrozenPart:
    """The parameters that are not trained: how many, and a digest of them.

    The digest names all buffers as well, as they are before the first hop.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    >>> FrozenPart.of(model) is None
    True
    >>> FrozenPart.of(nn.Sequential(model[0].requires_grad_(False), model[1])).parameters
    8
    """

    parameters: int
    digest: str

    @staticmethod
    def of(model: nn.Module) -> FrozenPart | None:
        """The frozen part of an initial model; None where all parameters are trained."""
        frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
        if not frozen:
            return None
        digest = digest_of({**frozen, **dict(model.named_buffers())})
        return FrozenPart(sum(p.numel() for p in frozen.values()), digest)


_TENSORS = ("_parameters", "_buffers", "_modules")


def architecture(model: nn.Module) -> Hashable:
    """Equal for two models only if they compute the same, given the same parameters and buffers.

    It has the classes of all modules and what these hold besides.  Things of a user's own are equal
    to themselves alone.

    >>> architecture(nn.Linear(2, 1)) == architecture(nn.Linear(2, 1))
    True
    >>> relu, tanh = (nn.Sequential(nn.Linear(2, 1), end) for end in (nn.ReLU(), nn.Tanh()))
    >>> architecture(relu) == architecture(tanh)
    False
    """
    held = [
        (name, type(module), key, settled(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in _TENSORS
    ]
    named = (*model.named_parameters(), *model.named_buffers())
    return Layout.of(model), tuple(held), tuple((n, t.shape, t.dtype) for n, t in named)


def build_model(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call ``factory`` with torch's global generator seeded, and put that generator back.

    It is the CPU's; ``torch.manual_seed`` would seed those of all devices as well, and is slow.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return factory()
