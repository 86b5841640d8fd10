"""Deletion requests: durable, the same however often they come, and answered in batches."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.peers.own_files import DECLARED, killed, make_csv, names_of, peer
from unwalk.core.errors import InvalidInput
from unwalk.peers.forgetting.request_form import STAGES, Conflict, RequestForm, UnknownRecords
from unwalk.peers.forgetting.requests import AlreadyAsked, Requests
from unwalk.peers.records.record_store import Counts, Records
from unwalk.peers.records.sources import DataSettings


def dump(records: Records) -> list[str]:
    """Everything in the database."""
    with closing(sqlite3.connect(records.path)) as db:
        return list(db.iterdump())


def form(id: str, *numbers: int, grade: str = "certified", **said) -> RequestForm:
    names = names_of(2000)
    return RequestForm(id, tuple(names[n] for n in numbers), grade, **said)


@pytest.fixture
def records(tmp_path):
    made = peer(tmp_path, hold_out=0.0)
    yield made
    made.close()


@pytest.fixture
def requests(records):
    return Requests(records)


def test_a_request_is_durable_and_its_records_are_out_at_once(tmp_path, records, requests):
    made = requests.submit(form("r-1", 3, 7))
    assert (made.stage, made.records, made.grade, made.epsilon) == ("received", 2, "certified", 1.0)
    assert records.shard().records.absent.tolist() == [3, 7]
    again = Records(tmp_path, DECLARED)
    assert Requests(again).get("r-1") == made
    assert again.shard().records.absent.tolist() == [3, 7]
    again.close()
    view = made.view()
    assert (view.id, view.stage, view.records) == ("r-1", "received", 2)
    text = "".join(dump(records))
    assert records.hash(names_of(8)[3]) in text
    assert "patient" not in text


def test_the_same_request_again_is_the_same_and_another_under_its_id_is_refused(records, requests):
    made = requests.submit(form("r-1", 3, 7))
    assert requests.submit(form("r-1", 7, 3)) == made
    before = dump(records)
    for other in (
        form("r-1", 3),
        form("r-1", 3, 7, 8),
        form("r-1", 3, 7, grade="exact"),
        form("r-1", 3, 7, epsilon=2.0),
        form("r-1", 3, 7, method="seal"),
    ):
        with pytest.raises(Conflict, match="r-1 was made before with other"):
            requests.submit(other)
    with pytest.raises(Conflict):
        requests.submit_all("r-1", grade="certified")
    assert dump(records) == before
    for stage in ("waiting", "walking", "committed"):
        requests.advance(["r-1"], stage, chapter=4)
    records.erase(requests.of_chapter(4).records)
    for stage in ("erasing", "done"):
        requests.advance(["r-1"], stage, certificate="c-1")
    answer = requests.submit(form("r-1", 3, 7))  # the records are gone, the answer is not
    assert (answer.stage, answer.certificate, answer.chapter) == ("done", "c-1", 4)


def test_unknown_records_are_named_and_nothing_is_changed(records, requests):
    requests.submit(form("r-0", 1))
    records.erase([records.hash(names_of(3)[2])])
    before = dump(records)
    with pytest.raises(UnknownRecords, match=r"'patient-00060', 'patient-01999'") as caught:
        requests.submit(form("r-1", 3, 60, 1999))
    assert caught.value.ids == ("patient-00060", "patient-01999")
    with pytest.raises(AlreadyAsked, match=r"'patient-00001' is named in a request that is still"):
        requests.submit(form("r-1", 3, 1))
    with pytest.raises(AlreadyAsked, match=r"'patient-00002' was forgotten before"):
        requests.submit(form("r-1", 3, 2))
    assert dump(records) == before


@pytest.mark.parametrize("point", ["records before commit", "records after commit"])
def test_a_kill_while_a_request_comes_in_leaves_all_or_nothing(tmp_path, point):
    made = peer(tmp_path, hold_out=0.0)
    Requests(made)
    made.close()
    killed(point, tmp_path, "submit")
    records = Records(tmp_path, DECLARED)
    requests = Requests(records)
    if point == "records before commit":
        assert requests.get("r-1") is None
        assert records.shard().records.absent.size == 0
    else:
        assert requests.get("r-1") is not None
        assert records.shard().records.absent.tolist() == [0, 1, 2]
    assert requests.submit(RequestForm("r-1", tuple(names_of(3)))).records == 3
    assert records.counts() == Counts(47, 0, 3, 0)
    records.close()


@pytest.mark.parametrize("stage", ["walking", "committed", "refused", "done"])
@pytest.mark.parametrize("point", ["records before commit", "records after commit"])
def test_a_kill_while_a_request_moves_on_leaves_one_stage_or_the_other(tmp_path, stage, point):
    records = peer(tmp_path, hold_out=0.0)
    Requests(records).submit(form("r-1", 0, 1, 2))
    records.close()
    killed(point, tmp_path, stage)
    records = Records(tmp_path, DECLARED)
    found = Requests(records).get("r-1")
    moved = point == "records after commit"
    assert found.stage == (stage if moved else "received")
    excluded = records.counts().excluded
    assert excluded == (0 if moved and stage == "refused" else 3)
    records.close()


def test_many_at_once_under_one_id_make_one_request(tmp_path, records):
    others = [Records(tmp_path, DECLARED) for _ in range(3)]
    desks = [Requests(r) for r in (records, *others)]
    with ThreadPoolExecutor(8) as pool:
        same = list(pool.map(lambda k: desks[k % 4].submit(form("r-1", 3, 7)), range(32)))
        assert len(set(same)) == 1

        def race(k: int) -> str:
            try:
                return desks[k % 4].submit(form("r-2", 10 + k % 2)).id
            except (Conflict, AlreadyAsked) as error:
                return type(error).__name__

        answers = list(pool.map(race, range(16)))
    assert answers.count("r-2") == 8  # one content wins, all who say the same get it
    assert answers.count("Conflict") == 8
    assert records.counts().excluded == 3
    assert desks[0].queue() == {"received": 2}
    for other in others:
        other.close()


def test_stages_go_one_way(records, requests):
    requests.submit(form("r-1", 1))
    for number, stage in enumerate(STAGES[:-1]):
        requests.advance(["r-1"], stage)
        requests.advance(["r-1"], stage)  # after a crash it is said again
        for earlier in STAGES[:number]:
            with pytest.raises(InvalidInput, match=f"is {stage}; it cannot become {earlier}"):
                requests.advance(["r-1"], earlier)
        if stage in ("committed", "done"):
            with pytest.raises(InvalidInput, match="cannot become refused"):
                requests.advance(["r-1"], "refused")
    with pytest.raises(InvalidInput, match="no request 'r-9'"):
        requests.advance(["r-9"], "waiting")
    with pytest.raises(InvalidInput, match="stage is 'over'"):
        requests.advance(["r-1"], "over")


def test_all_or_none_move_on(records, requests):
    requests.submit(form("r-1", 1))
    requests.submit(form("r-2", 2))
    requests.advance(["r-2"], "committed")
    with pytest.raises(InvalidInput, match="r-2 is committed"):
        requests.advance(["r-1", "r-2"], "walking")
    assert requests.get("r-1").stage == "received"


def test_a_refused_request_gives_its_records_back(records, requests):
    requests.submit(form("r-1", 1, 2))
    requests.submit(form("r-2", 3))
    requests.advance(["r-1"], "refused", reason="no method reaches that grade")
    assert records.shard().records.absent.tolist() == [3]
    assert requests.get("r-1").reason == "no method reaches that grade"
    assert requests.submit(form("r-3", 1)).stage == "received"
    with pytest.raises(InvalidInput, match="r-1 is refused"):
        requests.advance(["r-1"], "walking")


def test_records_that_left_the_source_meanwhile_stay_known_and_stay_out(
    tmp_path, records, requests
):
    requests.submit(form("r-1", 49))
    make_csv(tmp_path / "source" / "patients.csv", 48)
    assert records.refresh().removed == 2
    assert requests.submit(form("r-2", 48)).records == 1
    requests.advance(["r-1", "r-2"], "refused")
    assert records.counts() == Counts(48, 0, 0, 0)
    make_csv(tmp_path / "source" / "patients.csv", 50)
    assert records.refresh().added == 2
    assert records.counts().train == 50


def test_a_batch_is_alike_in_grade_budget_and_method(requests):
    requests.submit(form("a", 1, grade="exact"))
    requests.submit(form("b", 2))
    requests.submit(form("c", 3, grade="exact"))
    requests.submit(form("d", 4, epsilon=2.0))
    requests.submit(form("e", 5, grade="exact", method="restart"))
    requests.submit(form("f", 6, 7, grade="exact"))
    found = []
    while (batch := requests.batch()) is not None:
        found.append(batch.ids)
        assert len(batch.records) == sum(r.records for r in batch.requests)
        requests.advance(batch.ids, "walking", chapter=len(found))
        assert requests.of_chapter(len(found)).records == batch.records
    assert found == [("a", "c", "f"), ("b",), ("d",), ("e",)]
    requests.advance(["f"], "committed")
    assert requests.put_back(1) == ("a", "c")
    assert requests.put_back(1) == (), "once"
    assert requests.batch().ids == ("a", "c")
    assert (requests.get("a").chapter, requests.get("f").chapter) == (None, 1)
    assert requests.get("b").stage == "walking"


def test_a_batch_is_bounded(requests):
    for number in range(6):
        requests.submit(form(f"r-{number}", *range(3 * number, 3 * number + 3)))
    assert requests.batch(limit=4).ids == ("r-0", "r-1", "r-2", "r-3")
    assert requests.batch(most_records=7).ids == ("r-0", "r-1")
    assert requests.batch(most_records=1).ids == ("r-0",)
    assert [r.id for r in requests.at("received", 2)] == ["r-0", "r-1"]


def test_pages_are_newest_first(requests):
    for number in range(7):
        requests.submit(form(f"r-{number}", number))
    seen, after = [], None
    while page := requests.page(after, limit=3):
        seen += [r.id for r in page]
        after = page[-1].id
    assert seen == [f"r-{k}" for k in range(6, -1, -1)]
    with pytest.raises(InvalidInput, match="no request 'nobody'"):
        requests.page("nobody")


def test_a_peer_that_leaves_forgets_all_that_is_left(tmp_path, records, requests):
    requests.submit(form("r-1", 1, 2))
    made = requests.submit_all("leave")
    assert made.records == 48
    assert requests.submit_all("leave") == made
    assert records.shard().records.all.size == 0
    batch = requests.batch()
    assert batch.ids == ("r-1",)  # certified came first
    make_csv(tmp_path / "source" / "patients.csv", 60)
    records.refresh()
    assert records.counts().train == 10  # they came after the request


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_thousand_requests_wait_and_are_answered_without_growing_memory(tmp_path):
    make_csv(tmp_path / "p.csv", 1100)
    records = Records(tmp_path, DECLARED)
    records.take_over(DataSettings(tmp_path / "p.csv", hold_out=0.0))
    requests = Requests(records)
    for number in range(50):
        requests.submit(form(f"w-{number}", 1000 + number))
    before = resident()
    for number in range(1000):
        requests.submit(form(f"r-{number}", number, grade="exact"))
    assert requests.queue() == {"received": 1050}
    chapter, answered = 0, 0
    while (batch := requests.batch(limit=256)) is not None:
        chapter += 1
        assert len(batch.requests) <= 256
        requests.advance(batch.ids, "walking", chapter=chapter)
        requests.advance(batch.ids, "committed")
        records.erase(batch.records)
        requests.advance(batch.ids, "done")
        answered += len(batch.requests)
    grown = resident() - before
    assert (chapter, answered) == (5, 1050)
    assert records.counts() == Counts(50, 0, 0, 1050)
    assert grown < 8 << 20
    records.close()
