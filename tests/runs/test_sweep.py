"""Sweeps: cells that fail, that are killed, that ended before."""

import errno
import os
import signal
import sys
import time

import pytest

from unwalk.core.errors import InvalidInput, NoRoom, Refused
from unwalk.runs.sweep import KILLED, Cell, Failed, check_seen, sweep


def square(number, notes):
    """A cell that notes where it ran."""
    with (notes / str(number)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return {"square": number**2, "threads": os.environ.get("OMP_NUM_THREADS")}


def refuse(sentence):
    raise Refused(sentence, "a-code")


def fault():
    return {}["nothing"]


def die(notes, times):
    """Killed without a word, the first few times."""
    with (notes / "deaths").open("a") as file:
        file.write("died\n")
    if len((notes / "deaths").read_text().splitlines()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def wait_for(deaths, times):
    """Under way until another cell was carried out so often."""
    deadline = time.monotonic() + 60
    while not deaths.exists() or len(deaths.read_text().splitlines()) < times:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return "waited"


def fill():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def squares(notes, numbers=range(4)):
    return [Cell(str(n), square, (n, notes)) for n in numbers]


def ran(notes):
    return {path.name: len(path.read_text().splitlines()) for path in notes.iterdir()}


@pytest.fixture
def notes(tmp_path):
    place = tmp_path / "notes"
    place.mkdir()
    return place


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cell_that_fails_leaves_its_reason_and_ends_no_other(notes, jobs):
    cells = [Cell("refused", refuse, ("No.",)), Cell("fault", fault), *squares(notes)]
    found = dict(sweep(cells, jobs=jobs))
    assert [found[str(n)]["square"] for n in range(4)] == [0, 1, 4, 9]
    assert found["refused"].reason == "No."
    assert isinstance(found["refused"].error, Refused)
    assert found["refused"].error.code == "a-code"
    assert found["fault"].reason == "KeyError: 'nothing', which is a fault of the program"
    assert "in fault" in found["fault"].raised().__notes__[0]
    processes = {path.read_text() for path in notes.iterdir()}
    assert (f"{os.getpid()}\n" in processes) == (jobs == 1)
    if jobs > 1:
        assert {found[str(n)]["threads"] for n in range(4)} == {"1"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_stops_a_sweep_so_that_it_can_be_resumed(notes, jobs):
    with pytest.raises(NoRoom, match="no room is left on the disk"):
        list(sweep([Cell("full", fill), *squares(notes)], jobs=jobs))


def test_what_ended_before_is_read_and_what_failed_is_tried_again(tmp_path, notes):
    folder, told = tmp_path / "cells", []
    cells = [*squares(notes, range(2)), Cell("fault", fault)]
    first = dict(sweep(cells, folder=folder))
    assert sorted(path.name for path in folder.iterdir()) == ["0.json", "1.json"]
    cells = [*squares(notes), Cell("fault", square, (7, notes))]
    again = dict(sweep(cells, folder=folder, count=lambda *n: told.append(n)))
    assert {n: again[n] for n in "01"} == {n: first[n] for n in "01"}
    assert again["fault"]["square"] == 49
    assert ran(notes) == dict.fromkeys("01237", 1)
    assert told == [(2, 5), (3, 5), (4, 5), (5, 5)]


def test_a_killed_worker_costs_its_own_cell_at_most(tmp_path, notes):
    """One cell is killed once, another one always; both have others beside them.

    The cell that waits is under way until the first has ended for good.  Otherwise the second may
    be killed before the first has begun, which then is killed as its neighbour and by itself.
    """
    cells = squares(notes, range(7))
    for place, name, times in ((1, "once", 1), (6, "always", 9)):
        (tmp_path / name).mkdir()
        cells.insert(place, Cell(name, die, (tmp_path / name, times)))
    cells.insert(2, Cell("waits", wait_for, (tmp_path / "once" / "deaths", 2)))
    said: list[str] = []
    found = dict(sweep(cells, jobs=2, folder=tmp_path / "cells", say=said.append))
    lost = [line for line in said if "was killed" in line]
    again = "a worker was killed; what was under way is run again, one by one: "
    assert [line.startswith(again) for line in lost] == [True, True]
    assert "cell once" in lost[0]
    assert "cell always" in lost[1]
    ended = {line.partition(" is done, ")[0] for line in said if line not in lost}
    assert ended == {f"cell {name}" for name in (*"0123456", "once", "waits")}
    assert [found[str(n)]["square"] for n in range(7)] == [n**2 for n in range(7)]
    assert found["once"] == "alive"
    assert found["always"] == Failed(KILLED)
    assert ran(tmp_path / "once") == ran(tmp_path / "always") == {"deaths": 2}
    assert max(ran(notes).values()) <= 2


def test_a_sweep_that_is_left_ends_its_workers(tmp_path, notes):
    results = sweep(squares(notes, range(40)), jobs=2)
    next(results)
    results.close()
    pids = {int(line) for path in notes.iterdir() for line in path.read_text().splitlines()}
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(list(notes.iterdir())) < 40


def test_no_process_at_all_is_refused():
    with pytest.raises(InvalidInput, match=r"^jobs is 0"):
        list(sweep([], jobs=0))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_is_swept_as_processes_are(tmp_path, notes):
    """A cluster that the test starts; a worker of it is killed."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: unwalk[ray]")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        (tmp_path / "once").mkdir()
        (tmp_path / "always").mkdir()
        cells = squares(notes, range(4))
        cells.insert(1, Cell("once", die, (tmp_path / "once", 1)))
        cells.append(Cell("always", die, (tmp_path / "always", 9)))
        cells.append(Cell("refused", refuse, ("No.",)))
        said: list[str] = []
        found = dict(sweep(cells, jobs=2, cluster="local", say=said.append))
    finally:
        ray.shutdown()
    assert [found[str(n)]["square"] for n in range(4)] == [0, 1, 4, 9]
    assert found["once"] == "alive"
    assert found["always"] == Failed(KILLED)
    assert found["refused"].reason == "No."
    ended = {line.partition(" is done, ")[0] for line in said if " is done, " in line}
    assert ended == {f"cell {name}" for name in (*"0123", "once")}


def test_a_folder_that_a_worker_does_not_see_is_refused(tmp_path):
    check_seen(tmp_path)
    with pytest.raises(InvalidInput, match=r"does not see .*none; give an --out that all machines"):
        check_seen(tmp_path / "none")


def test_a_cluster_without_ray_is_refused(monkeypatch, notes):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"needs Ray, which is not installed: pip install"):
        list(sweep(squares(notes), jobs=2, cluster="auto"))
    assert "RAY_ADDRESS" not in os.environ, "a later run would look for that cluster"
