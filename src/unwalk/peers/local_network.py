"""A network whose peers all run on this machine, each a process, all forked from one.

That one has loaded everything that a peer needs (:mod:`unwalk.peers.preload`), which the peers
share: thirty of them take little more memory than one.  A peer ends with the process that started
it, however that ended.
"""

from __future__ import annotations

import csv
import fcntl
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.core.validation import check_count
from unwalk.peers.daemon import run_peer
from unwalk.peers.identity.network_file import Limits, Network
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.provision import make_network, network_of
from unwalk.peers.records.sources import DataSettings
from unwalk.peers.status import running, stored_status
from unwalk.peers.storage import error_file
from unwalk.peers.web.http_server import ADDRESS_FILE

MOST_PEERS = 200
DIGITS: dict[str, Any] = {"task": "records", "data.shape": "1x8x8", "data.classes": 10}
"""Task ``digits`` as tables of the peers' own, from which records can be deleted."""
PORTS = range(10000, 32768)
"""Below those that systems give to outgoing connections, which could take a peer's while it is
away."""
LOCK = "up.lock"
REFUSED = 2
"""Exit code of a peer that says in one sentence why it does not run."""


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody listens on just now."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            held.append(one)
            try:
                one.bind(("127.0.0.1", secrets.choice(PORTS)))
            except OSError:
                held.pop().close()
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    finally:
        for one in held:
            one.close()


def write_digits(folder: Path, peers: int, place: Path | None = None) -> None:
    """Give each peer's organisation a table of digits, outside its bundle.

    ``place`` is where the folder will be, if it is not there yet.
    """
    from sklearn.datasets import load_digits  # slow, and no other task needs it

    digits = load_digits()
    for peer in range(peers):
        name = f"organisation-{peer}.csv"
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["id", "label", *(f"pixel{n}" for n in range(64))])
            for row in range(peer, len(digits.target), peers):
                pixels = [f"{value / 16.0:.6g}" for value in digits.data[row]]
                table.writerow([f"digit-{row:04d}", int(digits.target[row]), *pixels])
        settings = DataSettings((place or folder) / name, erase_source=True)
        settings.write(folder / f"peer-{peer}")


def limits_for(peers: int) -> Limits:
    """Limits for peers that share the processors of one machine.

    Within a lease a peer has to get a processor and, at the end of a walk, to ask for every visit
    of it, while all others want the same.  A long one costs little here: a peer that was killed is
    back within seconds, and goes on with the token that it had.  A round of a vote waits for a
    tenth of ``connect``, in which all have to hear all others; who is away is noticed at once.
    """
    return Limits(lease=10.0 + peers / 3.0, connect=max(5.0, 2.0 * peers / 3.0), stop=5.0)


def make_local(
    folder: Path, peers: int, *, degree: int | None, task: str, settings: Mapping[str, Any]
) -> Network:
    """A new network in ``folder``; task ``digits`` gives each peer a table of its own.

    Everyone has ``degree`` neighbours, drawn at random: 4, or all others where there are fewer.
    """
    check_count("--peers", peers, low=2, high=MOST_PEERS)
    if degree is not None:
        check_count("--degree", degree, low=1, high=peers - 1)
        if peers * degree % 2:
            raise InvalidInput(
                f"--degree is {degree} for {peers} peers; allowed: a degree such that peers x "
                "degree is even."
            )
    if task == "records":
        raise InvalidInput(
            "task 'records' needs files of yours: make the network with unwalk net init, say where "
            f"each peer's records are with unwalk peer data, then unwalk net up --folder {folder}."
        )
    degree = min(4, peers - 1) if degree is None else degree
    graph: dict[str, Any] = {"graph.kind": "random-regular", "graph.degree": degree}
    data = DIGITS if task == "digits" else {"task": task, "forget.kind": "nothing"}
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InvalidInput(f"{folder} holds something else; choose another --folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise InvalidInput(
            f"no network can be made in {folder}: {error.strerror}; choose another --folder."
        ) from error
    try:
        network = make_network(
            partial,
            name="local",
            addresses=free_addresses(peers),
            settings={**data, **graph, **settings},
            limits=limits_for(peers),
        )
        if network.settings["task"] == "records":
            write_digits(partial, peers, folder)
        _put_there(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # there is none where all went well
    return network


def _put_there(partial: Path, folder: Path) -> None:
    """Give a network's folder its name, unless something has it by now."""
    try:
        partial.rename(folder)
    except OSError as error:
        raise InvalidInput(
            f"another command has made {folder} meanwhile; run the same one again to see where its "
            "page is, or choose another --folder."
        ) from error


def check_port(port: int) -> None:
    """Refuse a port at which somebody listens already."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise InvalidInput(
            f"--port is {port}, which cannot be used ({os.strerror(error.errno or 0)}); choose "
            "another one, or 0 for one that is free."
        ) from error


class LocalNetwork:
    """The processes of a network's peers; all end with :meth:`close`, or with this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network, _ = network_of(folder)
        with _held(folder):
            pass  # somebody else would be running it
        self.bundles = [Bundle.read(folder / member.name) for member in self.network.peers]
        self.names = [bundle.name for bundle in self.bundles]
        for bundle in self.bundles:
            if (pid := running(bundle.store)) is not None:
                raise InvalidInput(
                    f"{bundle.name} of {folder} runs already, as process {pid}, which somebody "
                    f"started alone; stop it first: unwalk peer stop {folder / bundle.name}."
                )
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([f"{__package__}.preload"])
        self.processes: dict[int, Any] = {}
        self._one, self._closed = threading.Lock(), False

    def start(self, peer: int) -> None:
        """Start a peer that does not run; nothing is started any more after :meth:`close`."""
        folder = self.folder / self.names[peer]
        with self._one:
            if not self._closed:
                (folder / "store" / ADDRESS_FILE).unlink(missing_ok=True)  # of one that was killed
                process = self.context.Process(target=_run, args=(str(folder),), daemon=True)
                process.start()
                self.processes[peer] = process

    def exit_code(self, peer: int) -> int | None:
        """How a peer's process ended: minus the signal that killed it; None while it runs."""
        with self._one:
            code: int | None = self.processes[peer].exitcode
            return code

    def alive(self, peer: int) -> bool:
        """Whether a peer's process runs."""
        return peer in self.processes and self.exit_code(peer) is None

    def signal(self, peer: int, number: int) -> None:
        """Send a signal to a peer, if it runs."""
        if self.alive(peer):
            os.kill(self.processes[peer].pid, number)

    def kill(self, peer: int) -> None:
        """End a peer in the middle of whatever it does."""
        self.signal(peer, signal.SIGKILL)
        while self.alive(peer):
            time.sleep(0.01)

    def last_words(self, peer: int) -> str:
        """Why a peer's process ended."""
        code = self.exit_code(peer)
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        lines: list[str] = []
        with suppress(OSError):  # it ended before it could write anything
            text = (self.bundles[peer].store / error_file.NAME).read_text(errors="replace")
            lines = text.strip().splitlines()
        return lines[-1] if lines and code == REFUSED else f"exit code {code}"

    def state(self, peer: int) -> dict[str, Any]:
        """What a peer is doing, from its store."""
        return stored_status(self.bundles[peer])

    def states(self) -> list[dict[str, Any]]:
        """What each peer is doing."""
        return [self.state(peer) for peer in range(len(self.names))]

    def close(self) -> list[str]:
        """Have every peer hand the token over and end; the names of those that had to be killed."""
        with self._one:
            self._closed = True
        for peer in self.processes:
            self.signal(peer, signal.SIGTERM)
        end = time.monotonic() + self.network.limits.stop + 5.0
        while (left := [p for p in self.processes if self.alive(p)]) and time.monotonic() < end:
            time.sleep(0.05)
        for peer in left:
            self.kill(peer)
        return [self.names[peer] for peer in left]

    @contextmanager
    def held(self) -> Iterator[Callable[[str], None]]:
        """Keep others from running this network too; what is handed out tells them of a page."""
        with _held(self.folder) as file:
            yield lambda page: _write(file, f"{os.getpid()} {page}")

    def memory(self) -> dict[int, int]:
        """Bytes of memory by process: the peers, the one they are forked from, and this one.

        What several share is divided among them, so that the sum is what all take together.
        Empty where the system does not say.
        """
        peers = [one.pid for peer, one in list(self.processes.items()) if self.alive(peer)]
        origin = {parent for pid in peers if (parent := _parent(pid))}
        shares = {pid: _share(pid) for pid in {os.getpid(), *origin, *peers}}
        return {pid: size for pid, size in shares.items() if size is not None}


@contextmanager
def _held(folder: Path) -> Iterator[IO[str]]:
    """The lock of a network on this machine, which says who runs it and where its page is."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, "r+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid, _, page = file.read().partition(" ")
            raise InvalidInput(
                f"the network in {folder} runs already, by process {pid or '(starting)'}, page "
                f"{page or '(not there yet)'}; stop it with Ctrl-C there or with kill "
                f"{pid or 'PID'}, or choose another --folder."
            ) from error
        _write(file, str(os.getpid()))
        yield file


def _write(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()


def _share(pid: int) -> int | None:
    """A process's own memory and its part of what it shares (PSS), in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return None


def _parent(pid: int) -> int | None:
    """The process that started another."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))
    except (OSError, StopIteration):
        return None


def _run(folder: str) -> None:
    """A peer, in its own process."""
    os.setpgrp()  # Ctrl-C in the terminal is for the process that started it
    store = Path(folder) / "store"
    store.mkdir(exist_ok=True, mode=0o700)
    with error_file.open_errors(store) as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        run_peer(Path(folder))
    except UnwalkError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


def _end_with_parent() -> None:
    """Stop this peer in order once the process that started it, or the one in between, is gone."""
    between, parent = os.getppid(), multiprocessing.parent_process()
    assert parent is not None
    while parent.is_alive() and os.getppid() == between:
        parent.join(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
