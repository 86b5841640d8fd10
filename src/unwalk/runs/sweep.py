"""A sweep: many independent cells of work, over processes or machines, that can be stopped.

A cell is a function with its arguments.  One that fails leaves its reason and ends no other; one
whose process is killed is run once more, in a process where it is alone.  With a folder, every
result is kept there as JSON when it comes, and a sweep into the same folder reads it instead of
running its cell.  Failures are not kept: they are tried again.
"""

# Imports in functions: a worker loads what its cells need, and ray is an extra.

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from unwalk.core.errors import NO_ROOM, InvalidInput, NoRoom, UnwalkError, told
from unwalk.core.validation import check_count

KILLED = "its process was killed twice; it may need more memory than there is: try fewer --jobs"

Count = Callable[[int, int], None]
"""Progress of a sweep: (cells done, cells in all)."""
Say = Callable[[str], None]
"""What gets a line when a worker has finished a cell, or was killed."""


def uncounted(done: int, cells: int) -> None:
    """Show nothing."""


def unsaid(sentence: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Cell:
    """A function that can be pickled, with its arguments; ``name`` is the name of its file."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Failed:
    """Why a cell has no result; ``error`` is the exception to raise for it."""

    reason: str
    error: UnwalkError | None = None

    @staticmethod
    def by(error: Exception) -> Failed:
        """The failure that an exception means, with its sentence, or its type and first line."""
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            error = NoRoom()
        if isinstance(error, UnwalkError):
            return Failed(str(error), error)
        told_by = UnwalkError(told(error))
        told_by.add_note("".join(traceback.format_exception(error)))
        return Failed(f"{told(error)}, which is a fault of the program", told_by)

    def raised(self) -> UnwalkError:
        """The error to raise if no cell has a result."""
        return self.error or UnwalkError(self.reason)


def sweep(
    cells: Sequence[Cell],
    *,
    folder: Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    count: Count = uncounted,
    say: Say = unsaid,
    noun: str = "cell",
) -> Generator[tuple[str, Any]]:
    """The name of every cell with its result or :class:`Failed`, in the order in which they end.

    One job works in this process.  Several are processes of this machine, each with one thread, or
    workers of the Ray cluster at the address ``cluster``.  A result is what JSON can hold.  A full
    disk ends the sweep, since no other cell could keep its result.
    ``noun`` is what ``say`` calls a cell.
    """
    check_count("jobs", jobs, low=1)
    done = 0
    left: dict[str, Cell] = {}
    for cell in cells:
        if (ended := kept(folder, cell.name)) is None:
            left[cell.name] = cell
        else:
            done += 1
            yield cell.name, ended
    count(done, len(cells))
    with closing(_results(left, jobs, cluster, say, noun)) as results:
        for name, result in results:
            done += 1
            if isinstance(result, Failed) and isinstance(result.error, NoRoom):
                raise result.error
            if not isinstance(result, Failed):
                keep(folder, name, result)
                if jobs > 1 or cluster is not None:
                    say(f"{noun} {name} is done, {done} of {len(cells)}")
            count(done, len(cells))
            yield name, result


def check_seen(place: Path) -> None:
    """Refuse a folder for what cells write, where the worker's machine does not have it."""
    if not place.is_dir():
        raise InvalidInput(
            f"a worker does not see {place}; give an --out that all machines of the cluster can "
            "write to."
        )


def keep(folder: Path | None, name: str, result: Any) -> None:
    """Keep the result of a cell for a sweep that comes later."""
    if folder is not None:
        from unwalk.runs.store import write_file

        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{name}.json", json.dumps(result, allow_nan=False) + "\n")


def kept(folder: Path | None, name: str) -> Any:
    """The result of a cell that ended before, or None."""
    place = None if folder is None else folder / f"{name}.json"
    if place is None or not place.exists():
        return None
    return json.loads(place.read_text(encoding="utf-8"))


def _results(
    left: dict[str, Cell], jobs: int, cluster: str | None, say: Say, noun: str
) -> Generator[tuple[str, Any]]:
    """The outcomes of the cells in ``left``, as they finish; workers' cells are removed from it."""
    if jobs == 1 and cluster is None:
        for cell in left.values():
            yield _carried_out(cell)
        return
    while left:
        begun: list[Cell] = []
        try:
            with closing(_together(list(left.values()), jobs, cluster, begun)) as results:
                for name, result in results:
                    del left[name]
                    yield name, result
        except Exception as error:  # no cell raises: a worker was lost, or could not be given one
            if not begun or isinstance(error, UnwalkError):
                raise
        again = [cell for cell in begun if cell.name in left]
        if again:
            names = ", ".join(f"{noun} {cell.name}" for cell in again)
            say(f"a worker was killed; what was under way is run again, one by one: {names}")
        for cell in again:
            del left[cell.name]
            yield _alone(cell, jobs, cluster)


class _Lost(Exception):
    """A worker ended while it had a cell."""


def _carried_out(cell: Cell) -> tuple[str, Any]:
    """The outcome of a cell, a result or a failure; never raises."""
    try:
        return cell.name, cell.work(*cell.arguments)
    except Exception as error:
        return cell.name, Failed.by(error)


def _in_worker(cell: Cell, parent: int) -> tuple[str, Any]:
    """The outcome of a cell, in a worker process that ``parent`` started."""
    _bound_to(parent)
    return _carried_out(cell)


@cache
def _bound_to(parent: int) -> None:
    """Leave interrupts to the process that started this one, and end when that one has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def _alone(cell: Cell, jobs: int, cluster: str | None) -> tuple[str, Any]:
    """Run a cell again, in a process of its own, while no other cell runs.

    joblib is not used: after it lost a worker, its others may still be shutting down.
    """
    try:
        if cluster is not None:
            (result,) = _together([cell], jobs, cluster, [])
            return result
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(_in_worker, cell, os.getpid()).result()
    except (_Lost, BrokenExecutor):
        return cell.name, Failed(KILLED)
    except Exception as error:
        return cell.name, Failed.by(error)


def _together(
    cells: Iterable[Cell], jobs: int, cluster: str | None, begun: list[Cell]
) -> Generator[tuple[str, Any]]:
    """Results of workers as they finish; every cell that a worker gets is added to ``begun``.

    At least two workers: with one, joblib would run the cells in this process.  ``pre_dispatch`` is
    what bounds the cells under way.
    """
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky import get_reusable_executor

    def handed() -> Iterator[Any]:
        for cell in cells:
            begun.append(cell)
            here = delayed(_in_worker)(cell, os.getpid())
            yield here if cluster is None else delayed(_carried_out)(cell)

    lost: type[Exception] = BrokenExecutor
    how: dict[str, Any] = {"backend": "loky", "inner_max_num_threads": 1}
    if cluster is not None:
        lost, how = _connect(cluster), {"backend": "ray"}
    with parallel_config(n_jobs=max(jobs, 2), max_nbytes=None, **how):
        workers = Parallel(return_as="generator_unordered", pre_dispatch=jobs, batch_size=1)
    results = workers(handed())
    try:
        for result in results:
            if isinstance(result, Exception):  # the cluster's, which joblib hands on
                raise result
            yield result
    except lost as error:
        raise _Lost from error
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib's, of cells under way
            results.close()
        if cluster is None:  # workers wait for more work, and keep their memory
            get_reusable_executor(reuse=True).shutdown(kill_workers=True)


def _connect(address: str) -> type[Exception]:
    """Join the Ray cluster at an address, as a backend of joblib; what it raises is returned."""
    from joblib import register_parallel_backend

    from unwalk.engines.ray_cluster import connected

    ray = connected(address)
    from ray.util.joblib.ray_backend import RayBackend

    class Cluster(RayBackend):  # type: ignore[misc]
        """Ray's backend for joblib; it returns results one by one, but does not declare it."""

        supports_return_generator = True

    register_parallel_backend("ray", Cluster)
    raised: type[Exception] = ray.exceptions.RayError
    return raised
