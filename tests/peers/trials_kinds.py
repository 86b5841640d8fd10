"""The kinds of faults and lies that trials are made of, each with what must hold.

Whatever happens, :mod:`tests.peers.trials_checks` must find nothing wrong afterwards.  ``holds`` is
what has to come of the walk besides, as docs/failures.md says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.peers.deletions import records_of
from tests.peers.liars import Liar, unwalked_end
from tests.peers.trials_scenes import FULL, Scene
from unwalk.certificates.document import FILE, read_certificate, text_of
from unwalk.core.errors import UnwalkError
from unwalk.peers.decisions.votes import decision_to, digest_of
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.handover import log_rules
from unwalk.peers.handover.visit import Work, plan_of
from unwalk.peers.protocol import codec
from unwalk.peers.protocol.consensus import NEVER, PRECOMMIT, PREVOTE, PROPOSE, Vote
from unwalk.peers.protocol.handover import Parcel, Sighting
from unwalk.peers.protocol.hoplog import recovery_body, sign_entry
from unwalk.peers.storage.database import read_only
from unwalk.peers.storage.token_files import token_pieces

POINTS = (
    "token left",
    "token written",
    "token synced",
    "token renamed",
    "before commit",
    "after commit",
    "collected",
    "vote written",
)
"""Where something was just made durable, or was about to be, in any walk."""
REQUEST_POINTS = (
    "chapter proposed",
    "chapter decided",
    "chapter opened",
    "runs forgotten",
    "erasure planned",
    "erasure unlinked",
    "erasure compacted",
    "receipt written",
    "request committed",
    "records erased",
    "source rewritten",
    "records compacted",
    "request erasing",
    "receipt kept",
    "certificate written",
    "request done",
)
"""The same on the way of a request."""
ROW = 3
"""The row of its table that a peer is asked to forget."""


@dataclass(frozen=True)
class Kind:
    """One kind of trial.

    ``play`` starts the peers, has something go wrong and returns how, in a few words, once it is
    over.  ``holds`` says what must come of it.  With ``records`` the peers have records of their
    own and one of them is asked to forget one.  ``visit`` is
    ``limits.visit``.
    """

    name: str
    play: Callable[[Scene], Awaitable[str]]
    holds: str
    lies: bool = False
    records: bool = False
    visit: float = 600.0


def count(scene: Scene) -> int:
    return len(scene.network.peers)


def honest(scene: Scene) -> list[int]:
    return [p for p in range(count(scene)) if p not in scene.liars]


async def everybody(scene: Scene, **faults: str) -> None:
    """All peers are started; ``faults`` are by ``pN``."""
    for peer in range(count(scene)):
        await scene.start(peer, faults.get(f"p{peer}", ""))


async def an_instant(scene: Scene) -> None:
    """Wait until some moment of the walk."""
    hop = scene.rng.randrange(scene.hops)
    await scene.until(lambda: scene.hop() >= hop)
    await asyncio.sleep(scene.rng.random() * 0.05)


def somebody(scene: Scene) -> int:
    """Half of the time whoever has the token, as far as one can see."""
    aimed, anybody = scene.rng.random() < 0.5, scene.rng.choice(honest(scene))
    holder = scene.holder() if aimed else None
    return anybody if holder is None else holder


async def a_while(scene: Scene) -> None:
    """A recovery falls before its end, after it, or together with it."""
    await asyncio.sleep(scene.longest ** scene.rng.random())


# Faults


async def killed_and_back(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    peer = somebody(scene)
    await scene.kill(peer)
    if scene.rng.random() < 0.5:
        await a_while(scene)
    await scene.start(peer)
    return "SIGKILL"


async def killed_for_good(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    await scene.kill(somebody(scene))
    return "SIGKILL"


async def two_at_once(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    one = somebody(scene)
    other = scene.rng.choice([p for p in range(count(scene)) if p != one])
    killed = [scene.rng.random() < 0.5 for _ in range(2)]
    for peer, dead in zip((one, other), killed, strict=True):
        if dead:
            await scene.kill(peer)
        else:
            scene.freeze(peer)
    await a_while(scene)
    for peer, dead in zip((one, other), killed, strict=True):
        if dead:
            await scene.start(peer)
        else:
            scene.thaw(peer)
        if scene.rng.random() < 0.5:
            await asyncio.sleep(scene.rng.random())
    return " and ".join("SIGKILL" if dead else "SIGSTOP" for dead in sorted(killed))


async def stopped(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    peer = somebody(scene)
    scene.freeze(peer)
    await a_while(scene)
    scene.thaw(peer)
    return "SIGSTOP"


async def cut_off(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    one, how = somebody(scene), scene.rng.choice(["link", "peer", "partition", "links in turn"])
    others = [p for p in range(count(scene)) if p != one]
    if how == "link":
        cut = {frozenset((one, scene.rng.choice(others)))}
    elif how == "peer":
        cut = {frozenset((one, p)) for p in others}
    else:
        side = {one, scene.rng.choice(others)}
        cut = {frozenset((a, b)) for a in side for b in others if b not in side}
    if how == "links in turn":
        await _links_in_turn(scene)
    else:
        scene.weather(cut=cut)
        await a_while(scene)
    scene.weather()
    return how


async def _links_in_turn(scene: Scene) -> None:
    """Again and again other links are cut."""
    links = [frozenset((a, b)) for a in range(count(scene)) for b in range(a)]
    for _ in range(scene.rng.randint(2, int(2 * scene.longest))):
        scene.weather(cut={link for link in links if scene.rng.random() < 0.4})
        await asyncio.sleep(0.2 + scene.rng.random())


async def answers_lost(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    scene.weather(lost_answers=scene.rng.uniform(0.1, 0.5))
    await a_while(scene)
    scene.weather()
    return "lost"


async def late_and_twice(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    scene.weather(twice=0.5, delay=scene.rng.uniform(0.02, 0.5))
    await a_while(scene)
    scene.weather()
    return "late"


async def at_a_point(scene: Scene) -> str:
    point, times = scene.rng.choice(POINTS), scene.rng.randint(1, 6)
    peer = scene.rng.randrange(count(scene))
    await everybody(scene, **{f"p{peer}": f"{point}#{times}"})
    rest = [p for p in range(count(scene)) if p != peer]
    await scene.until(lambda: not scene.running(peer) or all(map(scene.ended, rest)))
    if scene.running(peer):
        return f"{point}, not met"
    await scene.kill(peer)
    if scene.rng.random() < 0.5:
        await a_while(scene)
    await scene.start(peer)
    return point


async def disk_full(scene: Scene) -> str:
    await everybody(scene)
    await an_instant(scene)
    peer = somebody(scene)
    place = scene.folder / f"peer-{peer}" / FULL
    place.touch()
    await a_while(scene)
    place.unlink()
    if not scene.running(peer):  # it had just been started, and ended with a sentence
        await scene.start(peer)
        return "full at its start"
    return "full"


async def file_damaged(scene: Scene) -> str:
    """A token of a peer that is down gets a wrong bit; it is started again."""
    await everybody(scene)
    await an_instant(scene)
    peer = somebody(scene)
    await scene.kill(peer)
    held, kept = tokens_of(scene, peer)
    files = [f for f in (held, kept) if f is not None and f.exists()]
    if not files:
        await scene.start(peer)
        return "nothing there"
    data = bytearray(files[0].read_bytes())
    data[-1 - scene.rng.randrange(64)] ^= 1 << scene.rng.randrange(8)
    files[0].write_bytes(data)
    await scene.start(peer)
    scene.excused.add(peer)
    return "held" if files[0] == held else "kept"


def tokens_of(scene: Scene, peer: int) -> tuple[Path | None, Path | None]:
    """The files of the token that a peer has, and of the one that it handed on."""
    store = scene.folder / f"peer-{peer}" / "store"
    with closing(read_only(store / "state.sqlite")) as db:
        query = "SELECT state FROM runs WHERE run = ?"
        row = db.execute(query, (scene.network.run_id,)).fetchone()
    if row is None:
        return None, None
    state = codec.state_from(json.loads(row[0]))

    def place(parcel: Parcel | None) -> Path | None:
        return None if parcel is None else store / "tokens" / f"{parcel.token}.safetensors"

    return place(state.held), place(state.kept)


async def request_and_kill(scene: Scene) -> str:
    u = scene.rng.randrange(count(scene))
    point = scene.rng.choice([*REQUEST_POINTS, "", "", ""])
    await everybody(scene, **({f"p{u}": f"{point}#1"} if point else {}))
    await asked(scene, u)
    if point:
        await scene.until(lambda: not scene.running(u) or scene.stage(u, "r") == "done")
        if scene.running(u):
            return f"{point}, not met"
    else:
        await asyncio.sleep(scene.rng.random() * 2.0)
    await scene.kill(u)
    if scene.rng.random() < 0.5:
        await a_while(scene)
    await scene.start(u)
    return point or "any instant"


async def asked(scene: Scene, peer: int) -> None:
    """A peer is asked to forget a record, while training goes on or after it."""
    if scene.rng.random() < 0.6:
        await scene.until(lambda: scene.ended(peer))
    else:
        await an_instant(scene)
    scene.ask(peer, "r", records_of(peer)[ROW][0])
    scene.asked = peer


# Lies


def a_liar(scene: Scene, twist: str = "") -> int:
    """One of the peers lies."""
    liar = scene.rng.randrange(count(scene))
    scene.liars.add(liar)
    if twist:
        scene.twists[liar] = twist
    return liar


async def tell(liar: Liar, peer: int, message: bytes) -> dict[str, Any]:
    """The answer, empty if there is none."""
    with suppress(UnwalkError, TimeoutError):
        return await liar.tell(peer, message)
    return {}


async def made_up(scene: Scene) -> str:
    """Chapters that nobody decided, which count a peer out, and an end that nobody reached."""
    me = a_liar(scene)
    await everybody(scene)
    good, peers = honest(scene), range(count(scene))
    victim = scene.rng.choice(good)
    if scene.rng.random() < 0.5:
        await asked(scene, scene.rng.choice(good))
    else:
        await an_instant(scene)
    async with scene.speaker(me) as liar:
        spec = liar.against(victim, scene.hops)
        text, matter = liar.chapter(spec), liar.matter(1)
        tried: list[tuple[Any, dict[int, int]]] = [
            ((me,), {}),
            (peers, dict.fromkeys(peers, me)),
            ((me, 9), {9: me}),
        ]
        for voters, by in tried:
            shown = decision_to(liar.made_up(matter, text, voters, by))
            fields = {"number": 1, "value": text, "decision": shown}
            for peer in good:
                answer = await tell(liar, peer, liar.words("agenda-decided", **fields))
                assert answer.get("kind") in ("refused", None), answer
        garbage = unwalked_end()
        end = liar.end()
        fake = liar.made_up(end, garbage, (me,))
        shown = liar.shown(end, [], fake, texts=[garbage])
        for peer in good:
            await tell(liar, peer, liar.words("decide", poll=shown))
    return "a chapter and an end"


async def two_votes(scene: Scene) -> str:
    """Votes of one round for different values, each shown to somebody else."""
    me = a_liar(scene)
    await everybody(scene)
    good = honest(scene)
    await an_instant(scene)
    rounds = scene.rng.choice([1, 3])
    async with scene.speaker(me) as liar:
        ends = f"the end, {rounds} rounds"
        for matter, kind, fields in (
            (liar.matter(1), "agenda-decide", {"number": 1}),
            (liar.end(), "decide", {}),
        ):
            for number, peer in enumerate(good):
                value = digest_of(f"value {number}")
                votes = [
                    Vote(k, r, value, NEVER, me)
                    for r in range(rounds)
                    for k in (PREVOTE, PRECOMMIT, PROPOSE)
                    if k != PROPOSE or matter.rules.leader(r) == me
                ]
                poll = liar.shown(matter, votes)
                await tell(liar, peer, liar.words(kind, **fields, poll=poll))
    await asked(scene, scene.rng.choice(good))
    return ends


async def out_of_range(scene: Scene) -> str:
    """Votes of rounds that nobody entered, chapters far ahead, votes in others' names."""
    me = a_liar(scene)
    await everybody(scene)
    good = honest(scene)
    await an_instant(scene)
    async with scene.speaker(me) as liar:
        for matter, kind, fields in (
            (liar.matter(1), "agenda-decide", {"number": 1}),
            (liar.end(), "decide", {}),
        ):
            for round in (1, 7, 4000, 2**31):
                value = digest_of(str(round))
                votes = [Vote(k, round, value, NEVER, me) for k in (PREVOTE, PRECOMMIT)]
                poll = liar.shown(matter, votes)
                poll["opened"] = [v for v in poll["votes"] if v[0] == PRECOMMIT]
                for peer in good:
                    await tell(liar, peer, liar.words(kind, **fields, poll=poll))
            forged = liar.shown(matter, [Vote(PREVOTE, 0, digest_of("x"), NEVER, good[0])])
            for peer in good:
                await tell(liar, peer, liar.words(kind, **fields, poll=forged))
        for number in (0, 2, 1000, 2**31 - 1):
            poll = liar.shown(liar.matter(1), [])
            for peer in good:
                await tell(liar, peer, liar.words("agenda-decide", number=number, poll=poll))
    await asked(scene, scene.rng.choice(good))
    return "rounds, numbers, names"


async def false_fence(scene: Scene) -> str:
    """Recoveries that nobody allowed, and sightings that are not true."""
    me = a_liar(scene, "false sightings")
    await everybody(scene)
    await an_instant(scene)
    run = scene.network.run_id
    async with scene.speaker(me) as liar:
        pem = liar.bundle.certificate_pem.decode()
        await scene.until(lambda: bool(liar.entries()))
        last = liar.entries()[-1]
        lineage = codec.lineage_from(last["body"]["lineage"])
        hop = last["body"]["hop"]
        for number in (lineage[-1][0][0] + 1, 9, 2**31 - 1):
            generation = (number, me)
            said = Sighting(lineage[-1][0], lineage, (lineage[-1][0], (hop, 0)))
            asked = log_rules.Question(run, me, last["chain"], number)
            shown = [log_rules.sign(liar.bundle, asked, said)]
            body = recovery_body(
                run=run,
                generation=generation,
                lineage=(*lineage, (generation, hop)),
                peer=me,
                hop=hop,
                token=last["body"]["token"],
                lost=scene.rng.choice(honest(scene)),
                sightings=shown * scene.rng.choice([0, 1, 3]),
            )
            entry = sign_entry(last["chain"], body, liar.bundle.sign, pem)
            for peer in honest(scene):
                answer = await tell(liar, peer, liar.words("fence", entry=entry))
                known = answer.get("kind") in ("refused", None)
                assert known, f"a generation that nobody opened was believed: {answer}"
                place = {"generation": list(generation), "place": [scene.hops - 1, 0]}
                await tell(liar, peer, liar.words("release", **place))
    return "recoveries and sightings"


async def never_walked(scene: Scene) -> str:
    """A token at a hop to which nobody walked, with a signed entry that says so."""
    me = a_liar(scene)
    await everybody(scene)
    await an_instant(scene)
    async with scene.speaker(me) as liar:
        await scene.until(lambda: bool(visits(liar)))
        mine = visits(liar)
        last = mine[-1]["body"]
        work = Work(plan_of(scene.network, liar.bundle.noise_secret), me)
        for far in (min(last["hop"] + 2, scene.hops - 1), scene.hops - 1):
            token = replace(work.initial(), hop=far, at=me, memory={})
            data = b"".join(bytes(part) for part in token_pieces(token))
            visit = {**last["visit"], "hop": far, "receiver": me, "path": [me]}
            digest = hashlib.sha256(data).hexdigest()
            entry = liar.entry(mine[-1], peer=me, hop=far, visit=visit, token=digest)
            lineage = codec.lineage_from(last["lineage"])
            parcel = Parcel(lineage[-1][0], far, 0, entry["chain"], digest, lineage)
            with suppress(UnwalkError, TimeoutError):
                answer = await liar.offer(parcel, token, entry)
                assert answer["kind"] != "accepted" or scene.hop() >= far, answer
    return "far ahead"


def visits(liar: Liar) -> list[Any]:
    """The visits that a liar's own daemon knows of."""
    return [e for e in liar.entries() if e["body"]["kind"] == "hop"]


def twist(name: str) -> Callable[[Scene], Awaitable[str]]:
    async def play(scene: Scene) -> str:
        a_liar(scene, name)
        await everybody(scene)
        return name

    return play


async def holds_up(scene: Scene) -> str:
    ways = ["never visits", "refuses", "withholds the stamp"]
    return await twist(scene.rng.choice(ways))(scene)


async def wrong_papers(scene: Scene) -> str:
    """Wrong receipts, and then certificates of another's that are changed and signed anew."""
    me = a_liar(scene, "wrong receipts")
    await everybody(scene)
    u = scene.rng.choice(honest(scene))
    await asked(scene, u)
    folder = scene.folder / f"peer-{u}" / "store" / peer_certificate.FOLDER
    mine = f"peer-{me}"

    def waiting() -> bool:
        """Whether the certificate of a chapter lacks the liar's receipt and no other."""
        with suppress(UnwalkError, OSError, ValueError):
            said = read_certificate(folder / "chapter-1" / FILE)["peers"]
            return bool(said["pending"] == [mine])
        return False

    await scene.until(lambda: waiting() or scene.stage(u, "r") == "done")
    scene.pending = scene.stage(u, "r") != "done"  # else u was never visited: nothing to erase
    (place,) = folder.glob(f"*/{FILE}")
    document = read_certificate(place)
    forged_place = scene.folder / "forged" / FILE
    forged_place.parent.mkdir()
    for name in (peer_certificate.TRANSCRIPT, peer_certificate.VISITS):
        (forged_place.parent / name).write_bytes(place.with_name(name).read_bytes())
    tried: list[dict[str, Any]] = [
        {"pending": []},
        {"receipts": [], "pending": []},
        {"requests": ["another"], "issuer": mine},
        {"issuer": mine},
        {"decisions": [], "chapter": 0, "issuer": mine},
    ]
    async with scene.speaker(me) as liar:
        for changes in tried:
            forged_place.write_text(text_of(liar.resigned(document, **changes)))
            found = peer_certificate.verified(forged_place, scene.folder / "ca.pem")
            assert found["problems"], f"a forged certificate was believed: {changes}"
    return "receipts and certificates"


ENDS = "all end, with one value"
PLAINLY = "all others end, with one value and the simulator's bits"
KINDS = (
    Kind("killed and back", killed_and_back, ENDS),
    Kind("killed for good", killed_for_good, "the others end, with one value"),
    Kind("two at once", two_at_once, ENDS),
    Kind("stopped past the lease", stopped, ENDS),
    Kind("cut off", cut_off, ENDS),
    Kind("answers lost", answers_lost, ENDS),
    Kind("late and twice", late_and_twice, ENDS),
    Kind("killed at a durable point", at_a_point, ENDS),
    Kind("disk full", disk_full, "all end; the peer goes on by itself once there is room"),
    Kind("token file damaged", file_damaged, "the others end; it ends or stops with a sentence"),
    Kind(
        "request, and its peer killed",
        request_and_kill,
        "the request is done and its certificate verifies",
        records=True,
    ),
    Kind(
        "chapter and end made up",
        made_up,
        "refused by all; the walk, and a request if there is one, end",
        lies=True,
        records=True,
    ),
    Kind(
        "two votes of one round",
        two_votes,
        "one agenda and one end at all others; nobody else is named; a request is done",
        lies=True,
        records=True,
    ),
    Kind(
        "votes out of range",
        out_of_range,
        "no effect; a request is done",
        lies=True,
        records=True,
    ),
    Kind("false fence and sightings", false_fence, PLAINLY, lies=True, visit=1.0),
    Kind("visit that nobody did", never_walked, PLAINLY, lies=True, visit=1.0),
    Kind(
        "weights of 1e30",
        twist("huge weights"),
        "refused by all; the others end",
        lies=True,
        visit=0.8,
    ),
    Kind(
        "holds the token up",
        holds_up,
        "passed over, or recovered from after limits.visit; the others end",
        lies=True,
        visit=0.8,
    ),
    Kind("old messages and tokens", twist("replays"), PLAINLY, lies=True, visit=1.0),
    Kind(
        "wrong receipts and certificates",
        wrong_papers,
        "the certificate waits for the liar alone; forged ones are found out",
        lies=True,
        records=True,
    ),
)
