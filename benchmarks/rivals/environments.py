"""The same walk over other systems, each in a virtual environment of its own.

Flower and NVFlare are installed with pip into a folder that git does not see, once.  What cannot
be installed, or does not run, is left out and the reason is printed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from unwalk.peers.local_network import free_addresses

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "flower": ("flwr>=1.41,<2", "numpy"),
    "flower-simulation": ("flwr[simulation]>=1.41,<2", "numpy"),
    "nvflare": ("nvflare>=2.9,<3", "numpy"),
}
MODULES = {"flower": "flwr", "flower-simulation": "flwr", "nvflare": "nvflare"}
PATIENCE = 600.0
WARM = 3


@dataclass(frozen=True)
class Rival:
    """Another system: how it is called, its environment, and what carries out its walk."""

    name: str
    environment: str
    walk: Callable[[Path, Path, int, int, int], None]
    counts: bool = True


@dataclass(frozen=True)
class Measured:
    """Overhead of a hop in milliseconds, or the reason why there is none.

    ``counts``: whether there is a limit for it.
    """

    name: str
    counts: bool = True
    version: str = ""
    overhead_ms: float = 0.0
    hops: int = 0
    reason: str = ""


class NotRun(Exception):
    """A rival could not be installed or did not come to its end."""


def make_environment(folder: Path, name: str) -> Path:
    """A virtual environment with one rival in it; its Python."""
    place = folder / name
    python = place / "bin" / "python"
    if not (place / ".installed").exists():
        venv.create(place, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", *PACKAGES[name]]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotRun(f"cannot be installed: {last}")
        (place / ".installed").touch()
    return python


def version_of(python: Path, name: str) -> str:
    """The installed version."""
    code = f"from importlib.metadata import version; print(version({MODULES[name]!r}))"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def environment_of(python: Path, **more: str) -> dict[str, str]:
    """What a rival's processes see: their own programs first, nothing of this project."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **more}


@contextmanager
def running(commands: list[list[str]], **options: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that run together and are ended together, with all that they started."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(subprocess.Popen(command, start_new_session=True, **options))
        yield started
    finally:
        for process in started:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


FLOWER_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "walk"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "flower_walk:server"
clientapp = "flower_walk:client"
[tool.flwr.app.config]
peers = {peers}
hops = {hops}
numbers = {numbers}
out = "{out}"
"""


def flower_walk(python: Path, place: Path, peers: int, hops: int, numbers: int) -> None:
    """SuperLink and SuperNodes on loopback, without TLS; the app is handed in with ``flwr run``."""
    app, home = place / "app", place / "home"
    app.mkdir()
    home.mkdir()
    out = place / "out.jsonl"
    (app / "flower_walk.py").write_text((HERE / "flower_walk.py").read_text())
    project = FLOWER_PROJECT.format(peers=peers, hops=hops, numbers=numbers, out=out)
    (app / "pyproject.toml").write_text(project)
    address, *others = free_addresses(1 + peers)
    link, *nodes = (a.rpartition(":")[2] for a in (address, *others))
    connection = f'[superlink.bench]\naddress = "{address}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "bench"\n{connection}')
    seen = environment_of(python, FLWR_HOME=str(home), FLWR_TELEMETRY_ENABLED="0")
    programs = python.parent
    here = f"--insecure --host 127.0.0.1 --port {link} --disable-runtime-dependency-installation"
    superlink = [str(programs / "flower-superlink"), *here.split()]
    there = f"--insecure --superlink {address} --port"
    supernodes = [[str(programs / "flower-supernode"), *there.split(), port] for port in nodes]
    with (place / "log.txt").open("wb") as log:
        options = {"env": seen, "stdout": log, "stderr": log, "cwd": place}
        with running([superlink], **options):
            _until(lambda: _listens(int(link)), "the SuperLink does not listen")
            with running(supernodes, **options):
                submit = [str(programs / "flwr"), "run", str(app), "bench", "--format", "json"]
                done = subprocess.run(
                    submit, env=seen, cwd=place, capture_output=True, text=True, check=False
                )
                if '"success": true' not in done.stdout:
                    raise NotRun(f"flwr run failed: {(done.stdout + done.stderr)[-300:]}")
                _until(out.with_suffix(".done").exists, "the walk did not end")
    if out.with_suffix(".done").read_text() != "ok":
        raise NotRun("the walk ended with the wrong numbers")


def flower_simulation(python: Path, place: Path, peers: int, hops: int, numbers: int) -> None:
    """The same app in Flower's simulation, which has a Ray cluster of this machine."""
    out = place / "out.jsonl"
    walk = {"peers": peers, "hops": hops, "numbers": numbers, "out": str(out)}
    seen = environment_of(
        python,
        WALK=json.dumps(walk),
        PYTHONPATH=str(HERE),
        FLWR_HOME=str(place / "home"),
        FLWR_TELEMETRY_ENABLED="0",
        RAY_USAGE_STATS_ENABLED="0",
    )
    command = [str(python), str(HERE / "flower_simulation.py"), str(peers)]
    with (
        (place / "log.txt").open("wb") as log,
        running([command], env=seen, stdout=log, stderr=log, cwd=place) as (process,),
    ):
        _until(lambda: process.poll() is not None, "the simulation did not end")
    done = out.with_suffix(".done")
    if not done.exists() or done.read_text() != "ok":
        raise NotRun(f"the simulation failed: {(place / 'log.txt').read_text()[-300:]}")


def nvflare_walk(kind: str) -> Callable[[Path, Path, int, int, int], None]:
    """A provisioned server and sites on loopback; the job is one of the two cyclic ones."""

    def walk(python: Path, place: Path, peers: int, hops: int, numbers: int) -> None:
        seen = environment_of(
            python,
            NVFLARE_POC_WORKSPACE=str(place / "poc"),
            HOME=str(place),
            PYTHONPATH=str(HERE),
        )
        rounds = -(-hops // peers)
        command = [str(python), str(HERE / "nvflare_walk.py"), kind, str(place / "out.jsonl")]
        command += [str(peers), str(rounds), str(numbers)]
        with (place / "log.txt").open("wb") as log:
            options = {"env": seen, "stdout": log, "stderr": log, "cwd": place}
            with running([command], **options) as (process,):
                _until(lambda: process.poll() is not None, "the job did not end")

    return walk


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise NotRun(f"{otherwise} within {PATIENCE:g} seconds")
        time.sleep(0.1)


RIVALS = (
    Rival("Flower, deployment engine", "flower", flower_walk),
    Rival("NVFlare, cyclic job", "nvflare", nvflare_walk("server")),
    Rival("NVFlare, client-controlled cyclic job", "nvflare", nvflare_walk("client"), counts=False),
)
SIMULATION = Rival("Flower, simulation", "flower-simulation", flower_simulation)
"""What ``benchmarks/cluster.py`` compares with."""


def overheads(path: Path) -> list[float]:
    """Milliseconds from the end of each visit to the beginning of the next one."""
    lines = path.read_text().splitlines() if path.exists() else []
    visits = sorted((r["began"], r["ended"]) for r in map(json.loads, lines))
    return [1e3 * (b[0] - a[1]) for a, b in pairwise(visits)]


def measure(rival: Rival, folder: Path, peers: int, hops: int, numbers: int) -> Measured:
    """Walk ``hops`` hops with a token of ``numbers`` 32-bit numbers among ``peers`` peers."""
    try:
        python = make_environment(folder, rival.environment)
        version = version_of(python, rival.environment)
        with tempfile.TemporaryDirectory() as place:
            rival.walk(python, Path(place), peers, hops, numbers)
            found = overheads(Path(place) / "out.jsonl")[WARM:]
            if len(found) < hops - WARM - 1:
                log = (Path(place) / "log.txt").read_text(errors="replace")
                raise NotRun(f"only {len(found)} hops were seen: {log[-300:]}")
    except (NotRun, OSError, subprocess.SubprocessError) as error:
        return Measured(rival.name, rival.counts, reason=" ".join(str(error).split()))
    return Measured(rival.name, rival.counts, version, round(median(found), 1), len(found))


def measure_all(folder: Path, peers: int, hops: int, numbers: int) -> list[Measured]:
    """All rivals, one after the other."""
    found = []
    for rival in RIVALS:
        print(f"{rival.name} ...", file=sys.stderr, flush=True)
        found.append(measure(rival, folder, peers, hops, numbers))
    return found
