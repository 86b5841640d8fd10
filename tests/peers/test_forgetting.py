"""Deletion requests from their id to a certificate, between peers of one process."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file

from tests.peers.deletions import (
    SEALED,
    Hamlet,
    ask,
    certificate,
    check,
    ended,
    form,
    hamlet,
    ids_of,
    records_of,
    trained_on,
)
from unwalk.certificates.document import model_of, read_certificate, text_of
from unwalk.core.events import GradientSteps
from unwalk.core.plan import Plan
from unwalk.core.transcript import Transcript
from unwalk.engines.inprocess import InProcess
from unwalk.peers.demo import equal_bytes
from unwalk.peers.forgetting import peer_certificate
from unwalk.peers.forgetting.certificate_archive import pack
from unwalk.peers.forgetting.plans import Book, walked
from unwalk.peers.identity.credentials import now
from unwalk.peers.lifecycle import request_steps
from unwalk.peers.protocol.schedule import Spec
from unwalk.peers.storage.token_files import open_token
from unwalk.peers.transport.wire import Unreachable
from unwalk.peers.web.live_desk import Reception
from unwalk.walks import Fixed


def simulated(plan: Plan, shards: dict[int, Any], routes: list[list[int]]) -> object:
    """The same chapters in the simulator, with the same peers at the same hops."""

    class Data:
        name, peers, loss = plan.task.name, plan.task.peers, plan.task.loss
        model = staticmethod(plan.task.model)

        @staticmethod
        def shard(peer: int):
            return shards[peer]

        @staticmethod
        def records(peer: int):
            return shards[peer].records

    phases = tuple(
        replace(phase, route=Fixed(route), hops=len(route))
        for phase, route in zip(plan.phases, routes, strict=True)
    )
    (outcome,) = InProcess().run([replace(plan, task=Data(), phases=phases, keeps="first")])
    return outcome.token


def test_an_exact_chapter_is_the_simulators_and_leaves_no_trace(tmp_path):
    seen: dict[str, Any] = {}

    async def script(here):
        await here.until(here.trained)
        rows = trained_on(here, 2)[:5]
        old = here.peers[2].service.state.committed.token
        ask(here, 2, "r", *rows)
        marked = here.peers[2].requests.batch().records
        shards = {p: here.peers[p].records.shard(marked if p == 2 else ()) for p in range(4)}
        await here.until(ended(here, r=2))
        await here.until(here.trained)
        chapters = here.peers[2]
        visits = chapters.visits([(0, 1), (1, 1)])
        routes = [[v["visit"]["receiver"] for v in visits[n]] for n in (0, 1)]
        plan = chapters.book.forgetting(chapters.specs[0], chapters.runs[1], [])
        model = here.peers[0].final(1)
        token = open_token(here.peers[0].store.file(model), 4).token()
        assert equal_bytes(token, simulated(plan, shards, routes))
        seen.update(
            rows=rows, old=old, new=model, state=[here.peers[p].store.folder for p in range(4)]
        )

    here = hamlet(tmp_path, script)
    document = check(here, 2, "chapter-1")
    assert [c["grade"] for c in document["claims"]] == ["exact"]
    assert document["peers"]["pending"] == []
    assert document["public"]["forgotten"] == 5
    assert len(document["peers"]["received"]) == len(document["peers"]["requests"])
    assert max(document["peers"]["received"]) <= document["peers"]["issued"]
    assert seen["new"] not in text_of(document)  # it outlives the model
    raw = peer_certificate.released(document, certificate(here, 2, "chapter-1"))
    assert raw is not None
    assert document["model"] == model_of(raw)
    with zipfile.ZipFile(io.BytesIO(pack(certificate(here, 2, "chapter-1")))) as archive:
        assert archive.read("model.safetensors") == raw
    tensors, token = load(raw), load_file(here.peers[0].store.file(seen["new"]))
    assert tensors.keys() == token.keys()
    assert all(torch.equal(tensors[name], token[name]) for name in token)
    needles = [seen["old"].encode()]
    for row in seen["rows"]:
        name, _, *values = records_of(2)[row]
        needles += [name.encode(), ",".join(values).encode()]
    for path in here.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found = [n for n in needles if n in data]
            assert not found, f"{path.name} still holds {found}"


def test_who_was_first_forgets_and_then_others_do(tmp_path):
    """What the first peer goes back to is the public initial model: the line begins with it."""
    order: list[int] = []

    async def script(here):
        await here.until(here.trained)
        first = here.peers[0].visits([(0, 1)])[0][0]["visit"]["receiver"]
        order.extend([first, (first + 1) % 4, (first + 2) % 4])
        for number, peer in enumerate(order):
            ask(here, peer, f"r{number}", trained_on(here, peer)[0])
            await here.until(ended(here, **{f"r{number}": peer}))
            await here.until(here.trained)
            view = Reception(here.peers[peer]).request(f"r{number}")
            assert view.method == here.peers[0].specs[number].method, "nobody had named one"
        assert here.peers[0].specs[0].position == 0

    here = hamlet(tmp_path, script)
    for number, peer in enumerate(order, 1):
        (claim,) = check(here, peer, f"chapter-{number}")["claims"]
        assert claim["grade"] == "exact", claim["reason"]


def test_two_peers_at_once_and_a_third_that_is_down(tmp_path):
    names = {}

    async def script(here):
        await here.until(here.trained)
        await here.crash(3)
        ask(here, 0, "a", *trained_on(here, 0)[:2])
        ask(here, 1, "b", *trained_on(here, 1)[:1])
        asked = {"a": here.peers[0], "b": here.peers[1]}

        def certified():
            found = {id: p.requests.get(id).certificate for id, p in asked.items()}
            names.update(found)
            return all(found.values())

        await here.until(certified)
        for peer, id in enumerate(asked):
            document = read_certificate(certificate(here, peer, names[id]))
            assert document["peers"]["pending"] == ["peer-3"]
            check(here, peer, names[id])
        here.start(3)
        await here.until(ended(here, a=0, b=1))

    here = hamlet(tmp_path, script, hold_out=0.0)  # 40 records are five batches, 39 are four
    for peer, id in enumerate(("a", "b")):
        document = check(here, peer, names[id])
        assert document["peers"]["pending"] == []
        assert document["peers"]["version"] == 2, "issued again when peer-3 was back"
        assert [c["grade"] for c in document["claims"]] == ["exact"]
    assert len({p.next_chapter.known[0][0] for p in here.peers.values()}) == 1


def test_nothing_is_erased_before_the_model_that_forgot_is_here(tmp_path):
    """A peer that was away hears how the chapter ended, but nobody brings it the last token.

    Who was visited first asks: for a peer that training never came to there is no chapter.
    """

    async def script(here):
        await here.until(here.trained)
        asks = here.peers[0].visits([(0, 1)])[0][0]["visit"]["receiver"]
        waits = (asks + 1) % 3
        before = here.peers[waits].model(1)
        await here.crash(waits)
        ask(here, asks, "a", *trained_on(here, asks)[:1])
        await here.until(lambda: here.stage(asks, "a") == "erasing")
        here.start(waits)
        away = here.peers[waits]
        take, step, steps = away.take, away.request_steps.step, []

        async def no_end(sender, envelope, chunks):
            if b'"kind":"final"' in envelope:
                raise Unreachable("the last token got lost.", certain=False)
            return await take(sender, envelope, chunks)

        async def counted():
            await step()
            if away.over and len(away.specs) == 1:
                steps.append(away.store.file(before).exists())
                away.wake.set()

        away.take, away.request_steps.step = no_end, counted
        await here.until(lambda: len(steps) >= 3)
        assert away.final(1) is None
        assert steps == [True] * len(steps), "it would be left without any model"

    hamlet(tmp_path, script, peers=3, train__hops=6)


def test_requests_during_training_wait_and_are_answered_together(tmp_path):
    async def script(here):
        await here.until(lambda: any(p.service.state.reached[1][0] >= 3 for p in peers(here)))
        rows = trained_on(here, 1)
        ask(here, 1, "a", rows[0])
        ask(here, 1, "b", rows[1], rows[2])
        assert here.stage(1, "a") in ("received", "waiting")
        shard = here.peers[1].records.shard()
        assert len(shard.records.all) == len(rows) - 3, "no longer trained on from now on"
        await here.until(ended(here, a=1, b=1))

    def peers(here):
        return list(here.peers.values())

    here = hamlet(tmp_path, script, train__hops=20)
    specs = here.peers[0].specs
    if specs:
        assert specs[0].requests == ("a", "b")
        assert check(here, 1, "chapter-1")["public"]["forgotten"] == 3
    else:  # no visit came to that peer before it was asked
        assert check(here, 1, "quiet-1")["claims"][0]["grade"] == "exact"


def test_certified_chapters_compose(tmp_path, monkeypatch):
    """Also where the clock was two days ahead at the first of them."""
    budget = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}

    async def script(here):
        await here.until(here.trained)
        rows = trained_on(here, 2)
        with monkeypatch.context() as ahead:
            ahead.setattr(request_steps, "now", lambda: now() + timedelta(days=2))
            ask(here, 2, "a", rows[0], **budget)
            await here.until(ended(here, a=2))
        ask(here, 2, "b", rows[1], rows[2], **budget)
        await here.until(ended(here, b=2))
        found = Reception(here.peers[2]).overview().privacy
        assert found.epsilon == pytest.approx(2.0, rel=1e-6)
        assert len(found.parts) == 2

    here = hamlet(tmp_path, script, **SEALED)
    first, second = check(here, 2, "chapter-1"), check(here, 2, "chapter-2")
    for document in (first, second):
        (claim,) = document["claims"]
        assert claim["grade"] == "certified"
        assert claim["epsilon"] <= 1.0 + 1e-9
        assert document["noise"]["origin"] == "secret"
    assert first["peers"]["composed"]["certificates"] == 1
    assert second["peers"]["composed"]["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert second["peers"]["composed"]["delta"] > 2e-5


def test_a_second_seal_is_refused_where_the_first_chapter_did_not_go_by_slots(tmp_path):
    """For the second request the first chapter's visits are touched: means over u's records, whose
    weight is not the slots' of training."""
    budget = {"grade": "certified", "epsilon": 1.0, "delta": 1e-5}
    reasons = []

    async def script(here):
        await here.until(here.trained)
        rows = trained_on(here, 2)
        ask(here, 2, "a", rows[0], **budget)
        await here.until(ended(here, a=2))
        ask(here, 2, "b", rows[1], **budget)
        await here.until(ended(here, b=2))
        assert (here.stage(2, "a"), here.stage(2, "b")) == ("done", "refused")
        reasons.append(here.peers[2].requests.get("b").reason)

    settings = {"unlearn__work": "full", "seal__local_epochs": 0, "train__slots": 1}
    here = hamlet(tmp_path, script, **{**SEALED, **settings, "unlearn__hops": 4})
    assert check(here, 2, "chapter-1")["claims"][0]["grade"] == "certified"
    assert "its batches were made by 'full', not by keyed slots" in reasons[0]


def test_a_seal_after_a_restart_counts_the_restarts_visits_by_their_own_batches(tmp_path):
    async def script(here):
        await here.until(here.trained)
        rows = trained_on(here, 2)
        ask(here, 2, "a", rows[0], method="restart")
        await here.until(ended(here, a=2))
        ask(here, 2, "b", rows[1], grade="certified", epsilon=1.0, delta=1e-5)
        await here.until(ended(here, b=2))

    here = hamlet(tmp_path, script, **SEALED)
    (claim,) = check(here, 2, "chapter-2")["claims"]
    assert (claim["grade"], claim["code"]) == ("certified", None)
    log = Transcript.read(certificate(here, 2, "chapter-2").with_name("transcript.jsonl"))
    steps = [e for _, e in log.events() if isinstance(e, GradientSteps)]
    assert {e.batching for e in steps} == {"slots"}


def test_a_seal_with_noise_from_a_known_seed_is_shown_as_a_rehearsal(tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 2, "a", trained_on(here, 2)[0], grade="certified", epsilon=1.0, delta=1e-5)
        await here.until(ended(here, a=2))
        desk = Reception(here.peers[2])
        (one,) = desk.certificates()
        assert (one.grade, one.badge) == ("certified", "rehearsal")
        privacy = desk.overview().privacy
        assert [part.badge for part in privacy.parts] == ["rehearsal"]
        assert privacy.rule.endswith("came from a known seed, protect nobody")
        said = await desk.verify(one.name)
        assert said["badge"] == "rehearsal"
        assert said["words"][-1].startswith("rehearsal: would be certified. Nothing is guaranteed")

    hamlet(tmp_path, script, noise="simulation", **SEALED)


def test_records_that_were_never_used_need_no_walk(tmp_path):
    async def script(here):
        await here.until(here.trained)
        out = [n for n in range(40) if n not in trained_on(here, 0)]
        ask(here, 0, "a", *out[:2])
        await here.until(ended(here, a=0))
        assert here.peers[0].records.find(ids_of(0, *out[:2])).forgotten == tuple(
            ids_of(0, *out[:2])
        )
        desk = Reception(here.peers[0])
        held = "the records were held out, never trained on"
        assert desk.request("a").reason == f"{held}: nothing had to be walked"
        said = await desk.verify("quiet-1")
        alone = ", ".join(peer_certificate.ALONE.values())
        assert said["stated"] == [f"by the issuer alone: {alone}, that {held}"]
        assert desk.overview().privacy.rule == "exact certificates spend nothing"

    here = hamlet(tmp_path, script)
    assert here.peers[0].specs == []
    document = check(here, 0, "quiet-1")
    assert document["claims"][0]["grade"] == "exact"
    assert document["peers"]["held_out"] == document["public"]["forgotten"] == 2


def test_the_ledger_counts_what_an_earlier_chapter_called_retained(tmp_path):
    """u's records that stayed in chapter 1 are used there: the distance of chapter 2 knows it."""
    settings = {**SEALED}

    async def script(here):
        await here.until(here.trained)
        rows = trained_on(here, 2)
        ask(here, 2, "a", rows[0])
        await here.until(ended(here, a=2))
        chapters = here.peers[2]
        spec = Spec(
            2, 2, "seal", "certified", 1.0, 1e-5, ("b",), 1, 12, chapters.specs[0].position, 6, 2
        )
        book = Book(chapters.network, bytes(32))
        plan = book.forgetting(spec, "run", chapters.specs)
        made = walked(plan.header(), chapters.line(2), chapters.visits(chapters.line(2)))
        used = [e.touched for h, e in made.events() if h.receiver == 2 and e.kind.startswith("g")]
        assert used
        assert all(used)
        with_line = book.forgetting(spec, "run", chapters.specs, made)
        method: Any = with_line.phases[-1].method
        assert method.std not in (0.0, 1.0)

    hamlet(tmp_path, script, **settings)


def thousand(tmp_path, settings: dict[str, Any], **asked: Any) -> tuple[Hamlet, list[int]]:
    """A thousand requests at one peer, answered; the most memory that each batch needed."""
    peaks: list[int] = []

    async def script(here):
        await here.until(here.trained)
        chapters = here.peers[1]
        names = [row[0] for row in records_of(1, 1040)]
        for number in range(1000):
            chapters.requests.submit(form(f"r{number}", names[number], **asked))
        tracemalloc.start()
        try:
            for last in (255, 511, 767, 999):
                chapters.wake.set()
                await here.until(lambda last=last: here.stage(1, f"r{last}") == "done", 100.0)
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
        finally:
            tracemalloc.stop()
        assert chapters.requests.queue() == {"done": 1000}

    size = {"peers": 3, "count": 1040, "hold_out": 0.0, "train__hops": 6}
    return hamlet(tmp_path, script, **{**size, **settings}), peaks


def test_a_thousand_queued_requests_are_answered_in_batches(tmp_path):
    """The first batch goes back to before any of them was used: the others need no walk."""
    here, peaks = thousand(tmp_path, {})
    assert [len(s.requests) for s in here.peers[0].specs] == [256]
    for name, count in (("chapter-1", 256), ("quiet-257", 256), ("quiet-769", 232)):
        assert check(here, 1, name)["public"]["forgotten"] == count
    assert max(peaks[1:]) < 1.5 * peaks[0]


@pytest.mark.soak
def test_a_thousand_sealed_requests_are_four_chapters(tmp_path):
    settings = {**SEALED, "train__capacity": 1100}
    here, peaks = thousand(tmp_path, settings, grade="certified", epsilon=1.0, delta=1e-5)
    assert [len(s.requests) for s in here.peers[0].specs] == [256, 256, 256, 232]
    for number in range(1, 5):
        document = check(here, 1, f"chapter-{number}")
        assert document["claims"][0]["grade"] == "certified"
    assert peaks[3] < 1.5 * peaks[0]
