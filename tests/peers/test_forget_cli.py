"""``unwalk forget`` and ``unwalk peer leave`` on a peer that does not run: durable, or refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.peers.deletions import network
from unwalk.cli import app
from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.peers.aftermath import LEAVING, VANISHED


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
    assert text == "request r-2: received, 1 records, exact"


@pytest.mark.parametrize(
    ("names", "more", "why"),
    [
        (["person-1-001", "nobody"], ["--grade", "exact"], "no record 'nobody'"),
        (["person-1-001"], ["--grade", "certified"], "momentum"),
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


def test_an_address_needs_the_token_and_ids_or_a_vanished_peer_are_needed(folder):
    with pytest.raises(InvalidInput, match="--token"):
        run(
            "forget", "--peer", "http://127.0.0.1:1/", "--ids", ids(folder, "a"), "--grade", "exact"
        )
    with pytest.raises(InvalidInput, match="--ids, or --vanished"):
        run("forget", "--peer", folder / "peer-1")


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
