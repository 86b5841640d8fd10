"""The member that lies in the demonstration: it has good keys, and signs what nobody else would.

It signs two chapters for the next number, each of which says that another peer has vanished: that
all of that peer's records are to be forgotten, and that it counts no more.  To one half of the
others it votes for the first, to the other half for the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unwalk.core.transcript import canonical
from unwalk.peers.decisions.decided import matter_of, words_of
from unwalk.peers.decisions.votes import Matter, Writer, digest_of, words
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.consensus import NEVER, PRECOMMIT, PREVOTE, Vote
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.transport.wire import MESSAGE, Grpc

PATIENCE = 10.0
"""Seconds for an answer."""


def tell_lies(folder: Path, liar: int, victims: tuple[int, int], hops: int, round: int) -> int:
    """Have ``liar`` vote for two chapters in one round, after ``hops`` visits of training.

    The round that the others have come to since.
    """
    bundle = Bundle.read(folder / f"peer-{liar}")
    others = [p for p in range(len(bundle.network.peers)) if p != liar]
    half = len(others) // 2
    plan = ((others[:half], victims[0]), (others[half:], victims[1]))
    return asyncio.run(_tell(bundle, plan, hops, round))


async def _tell(
    bundle: Bundle, plan: Sequence[tuple[list[int], int]], hops: int, round: int
) -> int:
    network, transport = bundle.network, Grpc(bundle, bundle.trust())
    head = ms.head(network.name, network.run_id)
    try:
        for peers, victim in plan:
            text = _chapter(bundle, victim, hops)
            poll = _shown(bundle, matter_of(network, 1, ()), text, round)
            message = ms.encode(ms.AgendaDecide(**head, number=1, poll=poll))
            for peer in peers:
                answer = codec.parse(await transport.tell(peer, message, PATIENCE), MESSAGE)
                votes = answer.get("poll", {}).get("votes", [])
                round = max([round, *(vote[1] for vote in votes)])
    finally:
        await transport.stop()
    return round


def _chapter(bundle: Bundle, victim: int, hops: int) -> str:
    """A chapter that has all records of ``victim`` forgotten and counts it out, signed."""
    requests, me = ("made-up",), bundle.index
    spec = Spec(1, victim, "restart", "exact", None, None, requests, 0, hops, 0, hops, me)
    spec = replace(spec, left=(victim,))
    signature = bundle.sign(words_of(bundle.network.run_id, spec)).hex()
    pem = bundle.certificate_pem.decode()
    return canonical({"spec": spec.to_json(), "signature": signature, "certificate": pem})


def _shown(bundle: Bundle, matter: Matter, text: str, round: int) -> dict[str, Any]:
    """Votes for a text, as a peer shows them."""
    writer, pem = Writer(), bundle.certificate_pem.decode()
    value, kinds = digest_of(text), (PREVOTE, PRECOMMIT)
    plain = [Vote(kind, round, value, NEVER, bundle.index) for kind in kinds]
    signatures = [bundle.sign(words(bundle.network.run_id, matter, v)).hex() for v in plain]
    votes = [
        replace(v, signature=s, certificate=pem) for v, s in zip(plain, signatures, strict=True)
    ]
    said = {"votes": writer.votes(frozenset(votes)), "texts": [text], "offer": text}
    nothing: dict[str, Any] = {"opened": [], "chains": [], "decided": None}
    return {**said, **nothing, "certificates": writer.certificates}
