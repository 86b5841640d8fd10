"""Parcels and moves as they stand in the journal, on disk and in messages."""

from __future__ import annotations

from typing import Any

from unwalk.core.plan import Move
from unwalk.peers.protocol.handover import Parcel


def words_of(parcel: Parcel) -> dict[str, Any]:
    """A parcel in the log."""
    return {"hop": parcel.hop, "leg": parcel.leg, "generation": parcel.generation}


def move_to(mover: int, attempt: int, move: Move, passed_over: tuple[int, ...]) -> dict[str, Any]:
    """A move as it is stored and sent."""
    return {
        "mover": mover,
        "attempt": attempt,
        "receiver": move.receiver,
        "path": list(move.path),
        "memory": dict(move.memory),
        "passed_over": list(passed_over),
    }


def move_from(record: dict[str, Any]) -> Move:
    """The move that :func:`move_to` wrote."""
    return Move(record["receiver"], tuple(record["path"]), record["memory"])
