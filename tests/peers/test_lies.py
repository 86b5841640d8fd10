"""What one member with a valid certificate tries, and what comes of it: nothing, or its name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.peers.deletions import Hamlet, ask, ended, hamlet, trained_on
from unwalk.peers import codec
from unwalk.peers import decisions as de
from unwalk.peers.agenda import Spec
from unwalk.peers.decisions import NEVER, PRECOMMIT, PREVOTE, Vote
from unwalk.peers.protocol import Value
from unwalk.peers.service import end_text
from unwalk.peers.votes import Matter, Writer, decision_to, digest_of, words

LIAR, VICTIM = 2, 1


def signed(here: Hamlet, matter: Matter, vote: Vote, by: int = LIAR) -> Vote:
    """A vote signed by ``by``, whoever it says that it is of."""
    bundle = here.peers[by].bundle
    data = words(here.network.run_id, matter, vote)
    pem = bundle.certificate_pem.decode()
    return replace(vote, signature=bundle.sign(data).hex(), certificate=pem)


def made_up(
    here: Hamlet, matter: Matter, text: str, voters: Any, by: dict[int, int], round: int = 0
) -> de.Decision:
    """A decision with votes of ``voters``, each signed by whom ``by`` says."""
    value = digest_of(text)

    def votes(kind: str) -> frozenset[Vote]:
        plain = [Vote(kind, round, value, NEVER, v) for v in voters]
        return frozenset(signed(here, matter, v, by.get(v.voter, v.voter)) for v in plain)

    return de.Decision(value, round, votes(PRECOMMIT), (votes(PREVOTE),))


async def tell(here: Hamlet, peer: int, message: bytes) -> dict[str, Any]:
    return codec.parse(await here.memory.at(LIAR).tell(peer, message, 5.0), 1 << 20)


def against(victim: int, hops: int, position: int = 0, method: str = "restart") -> Spec:
    """A chapter by which a member has another one forgotten and counted out."""
    return Spec(
        1,
        victim,
        method,
        "exact",
        None,
        None,
        ("made-up",),
        0,
        hops,
        position,
        hops,
        LIAR,
        left=(victim,),
    )


def test_a_member_cannot_have_others_records_or_models_erased(tmp_path):
    """Row 1: a chapter that counts another peer out, `decided` by nobody, and a made-up end."""

    async def script(here):
        await here.until(here.trained)
        before = {p: here.peers[p].records.counts() for p in range(3)}
        models = {p: here.peers[p].model(1) for p in range(3)}
        source = (here.folder / f"records-{VICTIM}.csv").read_bytes()
        liar = here.peers[LIAR].council
        text = liar.write(against(VICTIM, 12))
        matter = liar.poll.matter
        everybody = dict.fromkeys(range(3), LIAR)
        answers = []
        for voters, by in (((LIAR,), {}), (range(3), everybody), ((LIAR, 9), {9: LIAR})):
            decision = decision_to(made_up(here, matter, text, voters, by))
            for peer in (0, VICTIM):
                fields = {"number": 1, "value": text, "decision": decision}
                answers.append(await tell(here, peer, liar.words("agenda-decided", **fields)))
        garbage = Value((0, 0), "0" * 64, "1" * 64, "salt")
        end = here.peers[LIAR].service
        shown = end.poll.record()
        forged = Writer()
        fake = made_up(here, end.poll.matter, end_text(garbage), (LIAR,), {})
        shown |= {"decided": forged.decision(fake), "texts": [end_text(garbage)]}
        shown["certificates"] = forged.certificates
        for peer in (0, VICTIM):
            await tell(here, peer, end.talk.words("decide", poll=shown))
        assert {a["kind"] for a in answers} == {"refused"}
        await asyncio.sleep(1.0)
        for peer in (0, VICTIM):
            chapters = here.peers[peer]
            assert chapters.specs == []
            assert chapters.council.known == []
            assert not chapters.council._judge(text, False), "nor does it vote for it"
            assert chapters.records.counts() == before[peer]
            assert chapters.model(1) == models[peer]
        assert (here.folder / f"records-{VICTIM}.csv").read_bytes() == source
        ask(here, 0, "r", *trained_on(here, 0)[:1])
        await here.until(ended(here, r=0))
        assert here.stage(0, "r") == "done", "and life goes on"

    hamlet(tmp_path, script, peers=3)
