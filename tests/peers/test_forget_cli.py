"""``unwalk forget`` and ``unwalk peer leave`` on a peer that does not run: durable, or refused."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.peers.deletions import network
from tests.peers.memory_desk import MemoryDesk, serving
from unwalk.cli import app
from unwalk.core.errors import InvalidInput, Refused, UnwalkError
from unwalk.core.grades import advised
from unwalk.peers.lifecycle.leaving import LEAVING
from unwalk.peers.lifecycle.progress import VANISHED


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = Path(tmp_path_factory.mktemp("cli")) / "net"
    network(place, peers=3)
    return place


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def ids(folder: Path, *names: str) -> Path:
    path = folder.parent / "ids.txt"
    path.write_text("\n".join(names) + "\n")
    return path


def facts(folder: Path, peer: int) -> dict[str, str]:
    with closing(sqlite3.connect(folder / f"peer-{peer}" / "store" / "records.sqlite")) as db:
        return dict(db.execute("SELECT name, value FROM facts").fetchall())


def test_a_request_is_durable_and_the_same_when_asked_again(folder):
    file = ids(folder, "person-0-001", "person-0-002")
    where = ("forget", "--peer", folder / "peer-0", "--ids", file, "--grade", "exact")
    asked = (*where, "--request-id", "r-1", "--json")
    first, again = json.loads(run(*asked)), json.loads(run(*asked))
    assert first == again
    assert (first["id"], first["stage"], first["records"]) == ("r-1", "received", 2)
    ids(folder, "person-0-003")
    with pytest.raises(InvalidInput, match="made before with other records"):
        run(*asked)
    text = run(*where, "--request-id", "r-2").splitlines()[0]
    assert text == "request r-2: received, 1 record, exact"


@pytest.mark.parametrize(
    ("names", "more", "why"),
    [
        (["person-1-001", "nobody"], ["--grade", "exact"], "no record 'nobody'"),
        (["person-1-001", "no", "one"], ["--method", "rewind"], "no records 'no', 'one'"),
        (["person-1-001"], ["--grade", "certified"], "cannot be proved .*momentum"),
        (["person-1-001"], ["--epsilon", "1"], "'certified' cannot be proved"),
        (["person-1-001"], ["--method", "seal"], "'certified' cannot be proved"),
        (["person-1-001"], ["--grade", "exact", "--method", "seal"], "rewind or restart"),
        (["person-1-001"], ["--grade", "exact", "--epsilon", "1"], "spends none"),
        (["person-1-001"], ["--grade", "best"], "grade is 'best'"),
        ([""], ["--grade", "exact"], "names no record"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(folder, names, more, why):
    with pytest.raises(UnwalkError, match=why):
        run("forget", "--peer", folder / "peer-1", "--ids", ids(folder, *names), *more)
    path = folder / "peer-1" / "store" / "records.sqlite"
    if path.exists():
        with closing(sqlite3.connect(path)) as db:
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
            if "requests" in tables:
                assert db.execute("SELECT COUNT(*) FROM requests").fetchone() == (0,)


@pytest.mark.parametrize(
    ("record", "more"), [(5, ["--method", "rewind"]), (6, ["--method", "restart"])]
)
def test_without_a_grade_a_request_is_for_that_of_its_method(folder, record, more):
    file = ids(folder, f"person-0-00{record}")
    said = json.loads(run("forget", "--peer", folder / "peer-0", "--ids", file, *more, "--json"))
    assert (said["grade"], said["stage"]) == ("exact", "received")


def test_without_a_grade_it_is_listed_what_the_network_offers_and_nothing_is_asked(folder):
    text = " ".join(run("forget", "--peer", folder / "peer-2").split())
    assert "--grade exact --method rewind as if the records had never been there; what it" in text
    refused = "--grade certified --method seal not here: hop 1, start at peer 2: the token carries"
    assert f"{refused} 'momentum'" in text
    where = ("forget", "--peer", folder / "peer-2", "--ids", ids(folder, "person-2-001"))
    with pytest.raises(InvalidInput, match=r"nothing was asked.*--grade or --method"):
        run(*where)
    listed = json.loads(run("forget", "--peer", folder / "peer-2", "--json"))["offers"]
    assert [o["method"] for o in listed] == ["rewind", "restart", "seal"]
    with closing(sqlite3.connect(folder / "peer-2" / "store" / "records.sqlite")) as db:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        assert "requests" not in tables


def test_the_advice_of_a_refusal_at_a_peer_can_be_followed(folder):
    where = ("forget", "--peer", folder / "peer-0", "--ids", ids(folder, "person-0-008"))
    with pytest.raises(Refused) as refused:
        run(*where, "--grade", "certified")
    told = advised(refused.value)
    assert "--preset certified --task" not in told
    advice = told.partition("What to do instead: ")[2]
    words = re.search(r"\((--grade [a-z]+)\)", advice)
    assert words is not None, advice
    assert json.loads(run(*where, *words[1].split(), "--json"))["stage"] == "received"


def test_an_address_needs_the_token_and_ids_or_a_vanished_peer_are_needed(folder):
    with pytest.raises(InvalidInput, match="--token"):
        run(
            "forget", "--peer", "http://127.0.0.1:1/", "--ids", ids(folder, "a"), "--grade", "exact"
        )
    with pytest.raises(InvalidInput, match="--ids, or --vanished"):
        run("forget", "--peer", folder / "peer-1", "--grade", "exact")
    token = folder.parent / "token"
    token.write_text("x" * 40)
    token.chmod(0o600)
    far = ("--peer", "http://10.0.0.1:8440/", "--token", token, "--ids", ids(folder, "a"))
    with pytest.raises(InvalidInput, match="for all to read"):
        run("forget", *far, "--grade", "exact")


@pytest.mark.parametrize("place", ["{host}", "http://{host}/"])
def test_an_address_may_be_said_in_short(tmp_path, place):
    asked = ("--ids", ids(tmp_path / "net", "r-1"), "--grade", "exact", "--request-id", "a")
    with serving(MemoryDesk(), tmp_path) as served:
        where = place.format(host=f"127.0.0.1:{served.place[1]}")
        text = run("forget", "--peer", where, "--token", tmp_path / "http.token", *asked)
        assert text.splitlines()[0] == "request a: waiting, 1 record, exact"


def test_an_address_that_others_can_reach_needs_to_know_whom_it_asks(folder, tmp_path):
    bundle = folder / "peer-0"
    asked = ("--ids", ids(tmp_path / "net", "r-1"), "--grade", "exact")
    with serving(MemoryDesk(), tmp_path, address="0.0.0.0:0", bundle=bundle) as served:
        where = ("forget", "--peer", f"https://127.0.0.1:{served.place[1]}/", *asked)
        known = (*where, "--token", tmp_path / "http.token")
        for lacking in ((), ("--authority", bundle / "ca.pem"), ("--name", "peer-0.test")):
            with pytest.raises(InvalidInput, match=r"needs --authority.* and --name"):
                run(*known, *lacking)
        told = (*known, "--authority", bundle / "ca.pem", "--name")
        assert "waiting, 1 record, exact" in run(*told, "peer-0.test")
        assert len(served.desk.views) == 1
        with pytest.raises(InvalidInput, match="does not answer"):
            run(*told, "peer-1.test")
        assert len(served.desk.views) == 1, "nothing was told to somebody else"


def test_what_is_no_folder_and_no_address_is_said(folder):
    with pytest.raises(InvalidInput, match="'nowhere'; allowed: a peer's folder, or"):
        run("forget", "--peer", "nowhere", "--ids", ids(folder, "a"), "--grade", "exact")


def test_waiting_says_how_far_it_is(folder, monkeypatch):
    stages = iter([("walking", None), ("erasing", "chapter-1"), ("done", "chapter-1")])

    def step(_seconds: float) -> None:
        stage, name = next(stages)
        with closing(sqlite3.connect(folder / "peer-0" / "store" / "records.sqlite")) as db, db:
            db.execute(
                "UPDATE requests SET stage = ?, certificate = ? WHERE id = 'w'", (stage, name)
            )

    monkeypatch.setattr("unwalk.cli.forgetting.time.sleep", step)
    asked = ("--ids", ids(folder, "person-0-007"), "--grade", "exact", "--request-id", "w")
    result = CliRunner().invoke(
        app, [str(a) for a in ("forget", "--peer", folder / "peer-0", *asked, "--wait")]
    )
    assert result.exit_code == 0, result.output
    idle, *said = result.stderr.splitlines()
    assert idle == "peer-0 does not run; its requests are answered once it does"
    assert said == ["request w: received", "request w: walking", "request w: erasing"]
    assert result.stdout.splitlines()[0] == "request w: done, 1 record, exact"


def test_a_vanished_peer_is_noted_at_another(folder):
    text = run("forget", "--peer", folder / "peer-1", "--vanished", "peer-2")
    assert "all records of peer-2" in text
    assert facts(folder, 1)[f"{VANISHED}2"] == "vanished-peer-2"
    for wrong in ("peer-1", "peer-9"):
        with pytest.raises(InvalidInput):
            run("forget", "--peer", folder / "peer-1", "--vanished", wrong)


def test_leaving_asks_for_all_records(folder):
    with pytest.raises(InvalidInput, match="--forget-all"):
        run("peer", "leave", folder / "peer-2")
    text = run("peer", "leave", folder / "peer-2", "--forget-all")
    assert text.startswith("request leave-peer-2: received, 40 records, exact")
    assert facts(folder, 2)[LEAVING] == "leave-peer-2"


def test_a_network_with_the_simulators_records_refuses(tmp_path):
    from tests.peers import harness

    place = tmp_path / "net"
    harness.network(place, peers=2)
    with pytest.raises(InvalidInput, match="task 'records'"):
        run("forget", "--peer", place / "peer-0", "--ids", ids(place, "a"), "--grade", "exact")
    with pytest.raises(InvalidInput, match="task 'records'"):
        run("peer", "leave", place / "peer-0", "--forget-all")
