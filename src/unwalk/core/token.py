"""The token: everything that travels from peer to peer.

Parameters and every optimizer moment are one flat vector each; :class:`Layout` says where each
named parameter lies in it.  A token is read-only by convention: between hops nobody writes to
it, and inside a visit the executor works in place on the one workspace whose tensors the token
shows.  Whoever wants to keep a token calls :meth:`Token.clone`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import load as _load_safetensors
from safetensors.torch import save as _save_safetensors

from unwalk.core.errors import Corrupt, InvalidInput


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
        state = hashlib.sha256(salt)
        state.update(json.dumps(self.header(), sort_keys=True).encode())
        for name, tensor in self.tensors().items():
            flat = tensor.detach().to("cpu").contiguous()
            state.update(f"{name}:{tuple(flat.shape)}:{flat.dtype};".encode())
            state.update(flat.reshape(-1).view(torch.uint8).numpy().data)
        return state.hexdigest()
