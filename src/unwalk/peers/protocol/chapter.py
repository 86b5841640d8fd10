"""One chapter as a single peer sees it when it begins."""

from __future__ import annotations

from dataclasses import dataclass

from unwalk.peers.protocol.schedule import Spec

NO_TOKEN = "0" * 64
"""Stands where a digest would tell about a model that must be forgotten."""


@dataclass(frozen=True)
class Chapter:
    """What a peer's service has to know besides the walk itself.

    ``token`` is the digest of the file that the walk goes on from, at peers that have it; a
    ``public`` chapter begins with the initial model, which everybody can make.  ``contacted``
    says that this peer was visited before, on the line that leads to that token.  ``model`` is
    the digest of the model that stays if the chapter is given up, at peers that have it.
    """

    number: int
    run: str
    public: bool = True
    token: str = ""
    contacted: bool = False
    spec: Spec | None = None
    model: str = ""

    @property
    def left(self) -> frozenset[int]:
        """Peers that no longer count."""
        return frozenset() if self.spec is None else frozenset(self.spec.left)
