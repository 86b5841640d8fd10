"""What a member may write into the log, and what not: entries, recoveries, draws, sightings."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import pytest

from tests.peers.harness import ROUTE, Village, lived, network
from tests.peers.liars import Liar
from unwalk.core.errors import Corrupt, Refused
from unwalk.core.plan import Move
from unwalk.peers.handover import log_rules, turns
from unwalk.peers.handover.checks import Offer
from unwalk.peers.handover.control_messages import Seen
from unwalk.peers.handover.log_rules import Place, Question, Succession
from unwalk.peers.handover.service import Service
from unwalk.peers.handover.turns import FREE, Turns, rounds_in
from unwalk.peers.handover.visit import ATTEMPTS, Work, plan_of
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol import codec
from unwalk.peers.protocol import handover as pr
from unwalk.peers.protocol import messages as ms
from unwalk.peers.protocol.handover import Parcel, Sighting
from unwalk.peers.protocol.hoplog import BARE, Entry, bare_text, recovery_body, sign_entry
from unwalk.peers.storage.store import ARRIVALS, Arrival, Store
from unwalk.peers.transport.wire import MESSAGE

LIAR, HONEST = 2, (0, 1, 3)
ENDS_AT_LIAR = 4
"""Visits after which a walk by :data:`ROUTE` ends at the liar: 0 2 3 2."""


def test_entries_that_do_not_go_on_from_the_one_before_them_are_refused(tmp_path):
    """Another token, walk, phase or count; no second signature; a draw that nobody explains."""

    async def script(here: Village) -> None:
        service, *_ = (here.start(peer) for peer in range(4))
        await here.until(here.finished)
        value = service.state.committed
        assert value is not None
        log = {e["body"]["hop"]: e for e in service.store.entries(service.run_id)}
        before, entry = log[4], log[5]
        liar = Liar(here.folder, entry["body"]["peer"])
        visit, body = entry["body"]["visit"], before["body"]

        def check(entry: Entry, before: Any = body) -> None:
            service.succession.entry(entry, before)

        def signed(**changes: Any) -> dict[str, Any]:
            said = {**visit, **changes}
            data = BARE + bare_text(service.run_id, (0, 0), said)
            return {"visit": said, "bare": liar.bundle.sign(data).hex()}

        check(entry)
        check(liar.entry(entry, **signed(gradients=3)))
        for changes, reason in (
            ({"token_in": "a" * 64}, "did not get the token"),
            ({"token_in": "0" * 64}, "did not get the token"),
            ({"bare": "00" * 64}, "signature is not"),
            ({"bare": ""}, "signature is not"),
            (signed(phase_hop=77), "about another visit"),
            (signed(phase="nowhere"), "about another visit"),
        ):
            with pytest.raises(Refused, match=reason):
                check(liar.entry(entry, **changes))
        with pytest.raises(Refused, match="one of another walk"):
            check(entry, {**body, "run": "f" * len(service.run_id)})
        first = {**log[1]["body"], "token_in": body["token"]}
        with pytest.raises(Refused, match="did not get the token"):
            check(Liar(here.folder, first["peer"]).entry({"body": first}), None)
        _recoveries(here, service, before)
        _stays(here, service, [log[hop] for hop in sorted(log)])
        _draws(here, service, log)
        _sightings(here, service)

    lived(tmp_path, script, peers=4, lease=60.0, seed=ROUTE)


def _walk(service: Service, log: list[Entry]) -> None:
    place = Place()
    for entry in log:
        place = service.succession.after(place, entry["body"])


def _stays(here: Village, service: Service, log: list[Entry]) -> None:
    """Who has the token cannot say that it stayed there: the whole route is drawn again."""
    _walk(service, log)
    start = 5
    liar = Liar(here.folder, log[start]["body"]["peer"])
    others = [p for p in range(4) if p != liar.me]
    for over in ([], others):
        made = log[: start + 1]
        for entry in log[start + 1 :]:
            last, old = made[-1], entry["body"]
            stay = {"sender": liar.me, "receiver": liar.me, "path": []}
            visit = {**old["visit"], **stay}
            data = BARE + bare_text(service.run_id, (0, old["generation"][1]), visit)
            body = {
                **old,
                "peer": liar.me,
                "previous": last["chain"],
                "token_in": last["body"]["token"],
                "passed_over": over,
                "visit": visit,
                "bare": liar.bundle.sign(data).hex(),
            }
            made.append(liar.entry({"body": body}))
        later, before = made[start + 1], made[start]["body"]
        with pytest.raises(Refused, match="did not come from where"):
            service.succession.entry(later, before)
        with pytest.raises(Refused, match="the route leads"):
            _walk(service, made)


def _recoveries(here: Village, service: Service, before: Entry) -> None:
    """Only who made an entry has a copy of its token, and only of that one."""
    maker = before["body"]["peer"]

    def check(peer: int, token: str) -> None:
        lineage = (*codec.lineage_from(before["body"]["lineage"]), ((1, peer), 4))
        body = recovery_body(
            run=service.run_id,
            generation=(1, peer),
            lineage=lineage,
            peer=peer,
            hop=4,
            token=token,
            lost=-1,
        )
        entry = Liar(here.folder, peer).entry({"body": body | {"previous": before["chain"]}})
        service.succession.entry(entry, before["body"])

    token = before["body"]["token"]
    with pytest.raises(Refused, match="shows 1 peers of 3"):  # all the rest is in order
        check(maker, token)
    with pytest.raises(Refused, match="another token"):
        check(maker, "a" * 64)
    with pytest.raises(Refused, match="has no copy"):
        check((maker + 1) % 4, token)


def _draws(here: Village, service: Service, log: dict[int, Entry]) -> None:
    """A route is drawn again only if the draws before led to peers that were passed over."""
    work, hop = service.work, 6
    mover = log[hop - 1]["body"]["peer"]
    draws = [work.move(hop, mover, {}, attempt) for attempt in range(20)]
    again = next(k for k, move in enumerate(draws) if move.receiver != draws[0].receiver)
    parcel = Parcel((0, 0), hop - 1, 0, "", "", service.state.lineage)
    plain = Offer(mover, parcel, draws[again].path, mover, again, draws[again], (), 8)
    service.gate.route(replace(plain, passed_over=(draws[0].receiver,)), {})
    for over in ((), (draws[again].receiver,), tuple(range(4))):
        with pytest.raises(Refused, match="passed over"):
            service.gate.route(replace(plain, passed_over=over), {})
    through = draws[0].receiver, draws[again].receiver
    with pytest.raises(Refused, match="leads through somebody"):
        service.gate.route(replace(plain, passed_over=through), {})
    nobody = replace(plain, passed_over=tuple(range(4)), attempt=ATTEMPTS)
    with pytest.MonkeyPatch.context() as patch:  # refused before anything is drawn
        patch.setattr(Work, "move", None)
        with pytest.raises(Refused, match="all neighbours"):
            service.gate.route(nobody, {})
        assert work.choose(hop, mover, {}, range(4)) is None
    first = replace(plain, attempt=0, move=draws[0], path=draws[0].path)
    service.gate.route(first, {})
    for move in (draws[again], replace(draws[0], memory={"steps": 1})):
        with pytest.raises(Refused, match="not sent where the route"):
            service.gate.route(replace(first, move=move), {})
    stamp = codec.dump(log[hop - 1])
    assert service.gate.stamped(plain, stamp).entry == log[hop - 1]
    with pytest.raises(Refused, match="did not have the token"):
        service.gate.stamped(replace(plain, mover=(mover + 1) % 4), stamp)
    another = codec.dump(Liar(here.folder, (mover + 1) % 4).entry(log[hop - 1]))
    with pytest.raises(Refused, match=f"not signed by peer {mover}"):
        service.gate.stamped(plain, another)


def _sightings(here: Village, service: Service) -> None:
    """Nobody can make what another peer has to show too long to be handed on."""
    bundle = Liar(here.folder, LIAR).bundle
    asked = Question(service.run_id, 0, "c")

    def record(generations: int) -> dict[str, Any]:
        lineage = tuple(((number, LIAR), number) for number in range(generations))
        said = Sighting(lineage[-1][0], lineage, ((0, 0), (0, 0)))
        return log_rules.sign(bundle, asked, said)

    assert service.succession.sighted(record(100), asked)[0] == LIAR
    assert service.succession.sighted(record(4000), asked)[0] == LIAR
    longer = record(codec.RECENT + 1)
    longer["sighting"]["lineage"].append([codec.RECENT + 1, LIAR, codec.RECENT + 1])
    with pytest.raises(Corrupt, match="length <= 32"):
        service.succession.sighted(longer, asked)
    long = replace(asked, chain="c" * log_rules.LONGEST_SIGHTING)
    with pytest.raises(Refused, match="a sighting has"):
        service.succession.sighted(record(1), long)
    padded = record(1)
    padded["signature"] = padded["signature"].replace("a", "a" + " " * 40)
    with pytest.raises(Refused, match="signature is not"):
        service.succession.sighted(padded, asked)


def test_a_member_can_open_generations_only_from_what_it_handed_over_and_not_at_once(
    tmp_path, monkeypatch
):
    """From nowhere none; from its last visit some, and then only after others had their turn."""

    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        liar = services[LIAR]

        def stuck(service: Service) -> Any:
            visit = service._visit

            async def one() -> None:
                if service.open_move.get("mover") == LIAR:
                    await asyncio.sleep(600.0)
                await visit()

            return one

        for peer in HONEST:
            services[peer]._visit = stuck(services[peer])  # type: ignore[method-assign]
        await here.until(lambda: liar.state.kept is not None and liar.state.kept.hop > 0)
        basis = liar.state.kept
        assert basis is not None
        holder = services[liar.state.kept_for]
        await here.until(lambda: holder.state.held is not None)
        others = [services[p] for p in HONEST if p != holder.me]

        async def told(number: int, by: Service, chain: str) -> list[dict[str, Any]]:
            seen = await by.control_messages.ask_all(chain, number)
            body = recovery_body(
                run=by.run_id,
                generation=(number, by.me),
                lineage=(*basis.lineage, ((number, by.me), basis.hop)),
                peer=by.me,
                hop=basis.hop,
                token=basis.token,
                lost=holder.me,
                sightings=[s.record for p, s in seen.items() if p != holder.me],
            )
            words = by.control_messages.words(ms.Fence, entry=by.sign(chain, body))
            answers = [await services[p].answer(by.me, words) for p in HONEST if p != by.me]
            return [codec.parse(answer, 1 << 18) for answer in answers]

        def refused(reason: str, times: int = 1) -> bool:
            return sum(reason in str(e.get("reason")) for e in here.events) >= times

        def fenced(number: int) -> bool:
            return all(services[p].state.fence == (number, LIAR) for p in HONEST)

        for by, chain, reason in (
            (liar, "ab" * 32, "not whole"),
            (others[0], basis.chain, "shows 2 peers of 3"),
        ):
            await told(1, by, chain)
            await here.until(partial(refused, reason))
            assert holder.state.fence == (0, basis.generation[1])
            assert holder.state.held is not None
            for service in services:  # later, when it is another's turn
                service.turns = Turns(4, service.limits.lease)
        for answer in await told(1, liar, basis.chain):
            assert answer.get("kind") != "refused"
        await here.until(partial(fenced, 1))
        for service in services:
            service.turns.opened.extend([monotonic()] * FREE)
        period = 4 * holder.turns.short * rounds_in(holder.turns.doublings)
        with monkeypatch.context() as patched:
            patched.setattr(turns, "time", lambda: 10_000 * period)  # the turn of peer 0
            await told(2, liar, basis.chain)  # the liar has the token: nobody signs that it is lost
            await here.until(partial(refused, "shows 1 peers of 3", 3))
        for peer in HONEST:
            assert fenced(1)
            rows = services[peer].store.db.execute("SELECT number FROM openings").fetchall()
            assert rows == [(1,)]
            entries = services[peer].store.entries(liar.run_id)
            assert {e["body"]["kind"] for e in entries} <= {"hop"}

    lived(tmp_path, script, peers=4, lease=60.0)


def test_a_token_that_leaves_the_route_is_refused(tmp_path):
    """Who has the token cannot choose who gets it, though it is said to be the route's draw."""

    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        liar = services[services[0].succession.first]
        choose = liar.work.choose

        def astray(
            hop: int, at: int, memory: Mapping[str, int], passed_over: Collection[int]
        ) -> tuple[int, Move] | None:
            found = choose(hop, at, memory, passed_over)
            if at != liar.me or found is None:
                return found
            attempt, right = found
            draws = (liar.work.move(hop, at, memory, n) for n in range(ATTEMPTS))
            return attempt, next(move for move in draws if move.path != right.path)

        liar.work.choose = astray  # type: ignore[method-assign]

        def refused() -> bool:
            reasons = [str(e.get("reason")) for e in here.events if e["event"] == "refused"]
            return any("not sent where the route" in reason for reason in reasons)

        def taken() -> bool:
            return any(s.state.reached[1] != pr.NOWHERE for s in services if s is not liar)

        await here.until(lambda: refused() or taken())
        assert refused()
        assert not taken()

    lived(tmp_path, script, peers=4, lease=60.0)


def test_what_a_walk_begins_with_stays_where_it_is_when_a_generation_is_opened():
    """Else whoever opens one before the first visit could have a chapter given up."""
    state = pr.begin(0, 3, 12, 0, "start", "t")
    after = pr.fenced(state, (1, 2), (((0, 0), 0), ((1, 2), 0)))
    assert after.held is None
    assert (after.kept, after.kept_for) == (state.held, 2)


def test_kept_tokens_of_lineages_that_were_replaced_are_given_back(tmp_path):
    store = Store(tmp_path / "store")
    state, tokens = pr.begin(0, 3, 12, 1, "0" * 64, "0" * 64, has=False), []
    for number in range(10):
        tokens.append(store.write([memoryview(bytes([number]))]))
        store.pinned.clear()
        store.save("run", state, {}, arrival=Arrival((number, 1), 3, 0, tokens[-1]))
    other = store.write([memoryview(b"other")])
    store.save("run", state, {}, arrival=Arrival((0, 1), 3, 1, other))
    store.pinned.clear()
    store.collect("run", state)
    kept = [*tokens[-ARRIVALS:], other]
    assert {a.token for a in store.arrivals("run")} == set(kept)
    assert {p.stem for p in store.tokens.glob("*.safetensors")} == set(kept)
    store.close()


def test_numbers_of_generations_end_where_a_peer_can_still_start_again(tmp_path):
    last = codec.LAST_GENERATION
    lineage = (((0, 0), 0), ((last, 1), 0))
    assert codec.lineage_from(codec.lineage_to(lineage)) == lineage
    with pytest.raises(Corrupt, match=f"<= {last}"):
        codec.lineage_from([[0, 0, 0], [last + 1, 1, 0]])

    async def script(here: Village) -> None:
        service = here.start(1)
        assert service.state.kept is not None
        service.put(replace(service.state, fence=(last, 1), lineage=lineage))
        said = Sighting((last, 1), lineage, ((0, 0), pr.NOWHERE))

        async def answers(chain: str = "", number: int = 0) -> dict[int, Seen]:
            return {p: Seen(said, {}) for p in (0, 2, 3) if p != service.state.kept_for}

        service.recovery._ask = answers  # type: ignore[method-assign]
        await service.recovery.look_around()
        assert any("no generation is left" in str(e.get("reason")) for e in here.events)
        await here.crash(1)
        assert here.start(1).state.fence == (last, 1)

    lived(tmp_path, script, peers=4, lease=60.0)


@pytest.mark.parametrize("peers", [4, 37])
def test_however_many_generations_liars_open_an_honest_peer_can_still_recover(tmp_path, peers):
    """Each opens all that it may, with the longest numbers there are; the entry fits a message."""
    made = network(tmp_path / "net", peers=peers)
    bundles = [Bundle.read(tmp_path / "net" / f"peer-{peer}") for peer in range(peers)]
    honest, liar, share = 0, 1, log_rules.share_of(peers)
    start, chain, hop = "0" * 64, "c" * 64, codec.LARGEST - 1
    work = Work(plan_of(made, None), 0)
    checks = Succession(bundles[honest].trust(), work, made.rules(), made.run_id, start)
    first = codec.LAST_GENERATION - peers * share
    openers = [peer for peer in range(peers) for _ in range(share)][1:]  # one is left to the honest
    numbered = enumerate(openers, first)
    before = (((0, honest), 0), *(((number, peer), hop) for number, peer in numbered))

    def opened(peer: int, before: pr.Lineage) -> Entry:
        """A generation that a peer opens after all others have signed that they know ``before``."""
        seen = Sighting(before[-1][0], before, (before[-1][0], (hop, 0)))
        generation = (before[-1][0][0] + 1, peer)
        body = recovery_body(
            run=made.run_id,
            generation=generation,
            lineage=(*before, (generation, hop)),
            peer=peer,
            hop=hop,
            token=start,
            lost=-1,
            sightings=[
                log_rules.sign(b, Question(made.run_id, peer, chain, generation[0]), seen)
                for b in bundles
                if b.index != peer
            ],
        )
        pem = bundles[peer].certificate_pem.decode()
        return sign_entry(chain, body, bundles[peer].sign, pem)

    entry = opened(honest, before)
    words = ms.encode(ms.Fence(**ms.head(made.name, made.run_id), entry=entry))
    assert MESSAGE // 4 < len(words) < MESSAGE - 4096
    assert checks.opening(entry)[2][:-1] == before
    with pytest.raises(Refused, match=f"more than {share} generations"):
        checks.opening(opened(liar, before))


def test_only_who_has_what_a_walk_begins_with_can_open_a_generation_of_it(tmp_path):
    """Others may say that it is lost; a chapter that seals begins at the peer that forgets."""
    made = network(tmp_path / "net", peers=4)
    bundles = [Bundle.read(tmp_path / "net" / f"peer-{peer}") for peer in range(4)]
    start, work = "0" * 64, Work(plan_of(made, None), 0)
    checks = Succession(bundles[0].trust(), work, made.rules(), made.run_id, start)
    before = (((0, checks.first), 0),)
    seen = Sighting(before[-1][0], before, (before[-1][0], pr.NOWHERE))
    asked = Question(made.run_id, LIAR, start, 1)
    body = recovery_body(
        run=made.run_id,
        generation=(1, LIAR),
        lineage=(*before, ((1, LIAR), 0)),
        peer=LIAR,
        hop=0,
        token=start,
        lost=-1,
        sightings=[log_rules.sign(bundles[peer], asked, seen) for peer in HONEST],
    )
    pem = bundles[LIAR].certificate_pem.decode()
    entry = sign_entry(start, body, bundles[LIAR].sign, pem)
    for only in (None, LIAR):
        replace(checks, only=only).entry(entry, None)
    with pytest.raises(Refused, match="only peer 1 can begin this walk"):
        replace(checks, only=1).entry(entry, None)


def test_a_generation_that_is_tentative_is_not_shown_to_who_guesses_it(tmp_path):
    """Else others would drop their tokens for one that a single peer has."""

    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        await here.until(lambda: any(s.state.stage for s in services))
        service = next(s for s in services if pr.basis(s.state) is not None)
        basis = pr.basis(service.state)
        assert basis is not None
        seen = await service.recovery._ask(basis.chain, 1)
        service.recovery._recover(1, [answer.record for answer in seen.values()])
        guess = service.control_messages.words(ms.Opening, generation=[1, service.me])

        async def shown() -> Any:
            return codec.parse(await service.answer(LIAR, guess), 1 << 18)["entry"]

        assert service.state.public is not None
        assert await shown() is None
        service.put(replace(service.state, public=None))
        assert (await shown())["body"]["generation"] == [1, service.me]

    lived(tmp_path, script, peers=4, lease=60.0)


def _other_step(visit: dict[str, Any]) -> None:
    for event in visit["events"]:
        if "step_size" in event:
            event["step_size"] = 0.5


def _no_events(visit: dict[str, Any]) -> None:
    visit["events"] = []


def _another_wipe(visit: dict[str, Any]) -> None:
    visit["events"].append({"kind": "wipe", "what": "optimizer"})


TOLD = [
    pytest.param({"passed_over": [LIAR]}, None, "where the route leads", id="passed over itself"),
    pytest.param({"passed_over": [[LIAR]]}, None, "no peer", id="passed over a list"),
    pytest.param({}, _other_step, "other work", id="another step size"),
    pytest.param({}, _another_wipe, "other work", id="a wipe"),
]


@pytest.mark.parametrize(("changed", "told", "reason"), TOLD)
def test_a_visit_that_is_not_the_plans_is_taken_by_nobody(tmp_path, changed, told, reason):
    """Else it would be found at the end, when no token from before it is left."""
    lied: list[int] = []

    async def script(here: Village) -> None:
        liar = [here.start(peer) for peer in range(4)][LIAR]
        sign = liar.sign

        def lying(previous: str, body: dict[str, Any]) -> Entry:
            if body["kind"] == "hop" and body["hop"] > 1 and not lied:
                lied.append(body["hop"])
                body = {**copy.deepcopy(body), **changed}
                if told is not None:
                    told(body["visit"])
                    words = BARE + bare_text(body["run"], body["generation"], body["visit"])
                    body["bare"] = liar.bundle.sign(words).hex()
            return sign(previous, body)

        liar.sign = lying  # type: ignore[method-assign]
        await here.until(lambda: here.finished(*HONEST))

    here = lived(tmp_path, script, peers=4, visit=0.8)
    reasons = {e["peer"]: str(e["reason"]) for e in here.events if e["event"] == "refused"}
    assert lied
    assert any(reason in text for text in reasons.values()), reasons


def test_a_peer_without_records_tells_of_a_visit_without_steps(tmp_path):
    async def script(here: Village) -> None:
        service, *_ = (here.start(peer) for peer in range(4))
        await here.until(here.finished)
        entry = service.store.entries(service.run_id)[3]
        body = copy.deepcopy(entry["body"])
        place = await service.place(body["previous"])
        _no_events(body["visit"])
        service.succession.after(place, body)
        body["visit"]["events"] = entry["body"]["visit"]["events"] * 2
        with pytest.raises(Refused, match="other work"):
            service.succession.after(place, body)

    lived(tmp_path, script, peers=4)


def test_a_visit_that_names_another_peer_as_the_one_before_it_is_refused(tmp_path):
    """Also after a recovery, whose peer is not the one that was visited last."""

    async def script(here: Village) -> None:
        service, *_ = (here.start(peer) for peer in range(4))
        await here.until(here.finished)
        body = copy.deepcopy(service.store.entries(service.run_id)[3]["body"])
        place = await service.place(body["previous"])
        service.succession.after(place, body)
        body["visit"]["sender"] = (body["visit"]["sender"] + 1) % 4
        with pytest.raises(Refused, match="as the one before it"):
            service.succession.after(place, body)

    lived(tmp_path, script, peers=4)


PLACED = ("another place of the route than its log",) * 2
COUNTED = "the parcel after", "not after the last one"
HEADERS = [
    pytest.param({"memory": {"visits": 3}}, PLACED, id="another memory of the route"),
    pytest.param({"at": (LIAR + 1) % 4}, PLACED, id="another peer as the last one"),
    pytest.param({"at": -1}, PLACED, id="nobody as the last one"),
    pytest.param({"hop": 1}, COUNTED, id="another count of visits"),
]


@pytest.mark.parametrize("last", [False, True], ids=["token", "last token"])
@pytest.mark.parametrize(("header", "reasons"), HEADERS)
def test_a_token_whose_header_is_not_what_its_log_says_is_refused(tmp_path, header, reasons, last):
    """Else an honest peer would go on from it, and sign a visit that nobody else takes."""
    lied: list[int] = []

    async def script(here: Village) -> None:
        services = [here.start(peer) for peer in range(4)]
        liar = services[LIAR]
        visit = liar.work.visit

        def wrong(*args: Any, **more: Any) -> Any:
            visited = visit(*args, **more)
            if (visited.token.hop == liar.work.hops) == last:
                lied.append(visited.token.hop)
                visited = replace(visited, token=replace(visited.token, **header))
            return visited

        liar.work.visit = wrong  # type: ignore[method-assign]
        await here.until(lambda: here.finished(*HONEST))

    hops = {"train__hops": ENDS_AT_LIAR} if last else {}
    here = lived(tmp_path, script, peers=4, visit=0.8, seed=ROUTE, **hops)
    refused = [str(e["reason"]) for e in here.events if e["event"] == "refused"]
    assert lied
    assert any(reasons[last] in reason for reason in refused), refused
