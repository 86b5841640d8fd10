"""Several models that answer together: the constituents of a run with shards.

Their walks are phases of one plan, one after the other, each from the initial model.  A sink keeps
the token at the end of each; the phase that forgets puts another one in the place of the one it
went back into.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import nn

from unwalk.core.plan import Plan
from unwalk.core.token import Layout, Token
from unwalk.core.workspace import Workspace, build_model


@final
class Together(nn.Module):
    """The logarithm of the mean of the members' softmax probabilities."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = torch.stack([member(x).log_softmax(1) for member in self.members])
        return torch.logsumexp(logs, 0) - torch.tensor(float(len(logs)), device=x.device).log()


@dataclass(eq=False)
class Constituents:
    """The tokens at the ends of a plan's walks; ``touched`` is the shard that has to forget."""

    plan: Plan
    touched: int
    ends: dict[int, Token] = field(default_factory=dict)

    def shard(self, hop: int) -> int:
        """The shard in whose model a hop of the plan works."""
        number, _ = self.plan.phase_of(hop)
        return self.touched if number == len(self.plan.phases) - 1 else number

    def after(self, hop: int, token: Token) -> None:
        """Keep a copy of the token where a walk ends."""
        number, phase_hop = self.plan.phase_of(hop)
        if phase_hop == self.plan.phases[number].hops:
            self.ends[self.shard(hop)] = token.clone()

    def together(self, hop: int, work: Workspace) -> nn.Module:
        """The models there are after a hop, the one in ``work`` in the place of its shard's."""
        now = {**self.ends, self.shard(hop): work.token(hop=hop, at=-1, memory={})}
        return Together([self._model(now[shard], work.device) for shard in sorted(now)]).eval()

    def _model(self, token: Token, device: torch.device) -> nn.Module:
        model = build_model(self.plan.task.model, self.plan.seeds.integer("model")).to(device)
        views = Layout.of(model).views(token.parameters)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in views:
                    parameter.copy_(views[name])
            for name, buffer in model.named_buffers():
                buffer.copy_(token.buffers[name])
        return model
