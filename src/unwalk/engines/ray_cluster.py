"""Finds or starts a Ray cluster, and the hosts on it.

Ray is imported here, when the engine is used and not before.  A cluster of this machine alone is
started where no address is given.  It listens on the loopback interface, has its sockets and files
in a folder that only its user can open, asks callers for a token that only this process and its
workers know, and reports nothing to anybody.  It ends with the process, and its folder goes.

Trusted clusters only: whoever can talk to a cluster can run code on it, and Ray pickles objects
between its workers.
"""

# Imports in functions: the package ray is an extra, and slow to load.

from __future__ import annotations

import atexit
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unwalk.core.errors import InvalidInput
from unwalk.core.events import Draw
from unwalk.core.plan import Plan
from unwalk.engines import ray_witness
from unwalk.engines.ray_host import Host, Keeper, versions

ADDRESS = "RAY_ADDRESS"
"""The variable that names a cluster, Ray's own; ``--ray-address`` sets it."""
OWN = "local"
"""The address of a cluster that this process starts."""
PATIENCE = 120.0
"""Seconds in which hosts must have started."""
ANSWER = 10.0
"""Seconds in which a cluster must answer."""
SHORT = 25
"""Characters of a folder in which Ray can have its sockets: their whole names have 107 at most."""

ASIDE = "aside"
"""Calls that a host answers while it makes a visit."""


def ray_module(address: str | None = None) -> Any:
    """Ray itself, or the sentence that says how to get it.

    Ray reads these variables when it is imported.
    """
    # The visits after one that failed fail as well, and the first one's error is ours to tell.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if (address or os.environ.get(ADDRESS, OWN)) == OWN and "ray" not in sys.modules:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise InvalidInput(
            "the engine ray needs Ray, which is not installed: pip install 'unwalk[ray]'."
        ) from error
    return ray


def connected(address: str | None = None) -> Any:
    """Ray, connected to the cluster at ``address``, that ``RAY_ADDRESS`` names, or to one's own."""
    ray = ray_module(address)
    if ray.is_initialized():
        return ray
    address = address or os.environ.get(ADDRESS, OWN)
    # Ray tells of lost workers on the output stream, where a command's JSON goes.
    ray._private.worker._worker_logs_enabled = False
    if address == OWN:
        _start(ray)
    else:
        _join(ray, address)
    return ray


QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


def _start(ray: Any) -> None:
    """Start a cluster of this process's own."""
    place = tempfile.gettempdir()
    place = tempfile.mkdtemp(prefix="unwalk-", dir=place if len(place) <= SHORT else "/tmp")
    # Ray would let tokens that nobody needs any more go once in a second, and the first one
    # never, to make the later ones again from it: on one machine they are lost together.
    frugal = {"free_objects_batch_size": 1, "lineage_pinning_enabled": False}
    _watched(ray, place)
    # Where clusters of several machines are off, Ray listens on the loopback interface alone.
    constants = ray._private.ray_constants
    several, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        ray.init(
            OWN,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=f"{place}/r",  # a folder in it: Ray opens its own to everybody
            _system_config=frugal,
            **QUIET,
        )
    finally:
        constants.ENABLE_RAY_CLUSTER = several


def _join(ray: Any, address: str) -> None:
    """Join the cluster at an address."""
    if address.startswith("ray://"):
        raise InvalidInput(
            f"--ray-address is {address!r}, a client of a cluster; allowed: auto, or HOST:PORT, on "
            "a machine that is part of the cluster (ray start --address=HOST:PORT joins it)."
        )
    if address != "auto" and not re.fullmatch(r".+:[0-9]{1,5}", address):
        raise InvalidInput(f"--ray-address is {address!r}; allowed: auto, or HOST:PORT.")
    try:
        if address != "auto":  # Ray itself would try for minutes
            _check_answers(address)
        ray.init(address, **QUIET)
    except Exception as error:  # Ray raises its own, the socket's and plain ones
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidInput(
            f"--ray-address is {address!r}, where no Ray cluster answers ({why}); start one with "
            "ray start --head, or leave the address out."
        ) from error
    _watched(ray, "")


def _check_answers(address: str) -> None:
    """Raise an error if nobody listens at an address, or somebody who does not speak Ray's HTTP/2.

    Who does sends a frame of settings first.
    """
    name, _, port = address.rpartition(":")
    with socket.create_connection((name.strip("[]"), int(port)), timeout=ANSWER) as line:
        if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
            return
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        frame = line.makefile("rb").read(9)
    if len(frame) < 9 or frame[3] != 4:
        raise ConnectionError("what listens there is something else")


def _watched(ray: Any, place: str) -> None:
    """Have a process that speaks for this one should Ray end it, and that clears ``place`` then.

    Ray ends a process whose raylet is gone, on the spot.
    """
    words = [sys.executable, "-S", str(ray_witness.__file__), place]
    witness = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )

    def ended() -> None:
        ray.shutdown()
        witness.communicate(ray_witness.IN_ORDER)

    atexit.register(ended)


@dataclass(frozen=True, eq=False)
class Crew:
    """The hosts of a cluster."""

    ray: Any
    cluster: tuple[str, str]
    hosts: list[Any]
    doors: list[tuple[str, str] | None]
    """The machine of each host and its door, as far as they are known."""

    @property
    def machines(self) -> int:
        """How many machines are there now."""
        return sum(bool(node["Alive"]) for node in self.ray.nodes())

    def find_doors(self) -> None:
        """Ask the hosts where they are; those that do not answer get tokens from Ray alone."""
        asked = [host.found.options(concurrency_group=ASIDE).remote() for host in self.hosts]
        for number, reference in enumerate(asked):
            try:
                self.doors[number] = self.ray.get(reference, timeout=PATIENCE)
            except self.ray.exceptions.RayError:
                self.doors[number] = None

    def door(self, before: int, host: int) -> str | None:
        """Where a host can take a token from the one before: on its own machine alone."""
        there, here = self.doors[before], self.doors[host]
        return there[1] if there and here and there[0] == here[0] else None

    def end(self, chain: int) -> None:
        """Let hosts wait no longer for tokens of visits that were ordered before."""
        for host in self.hosts:
            host.over.options(concurrency_group=ASIDE).remote(chain)

    def keeper(self, enter: Callable[..., Draw]) -> Any:
        """An actor on this machine that enters draws of noise."""
        ray = self.ray
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node_id=ray.get_runtime_context().get_node_id(), soft=False
        )
        made = ray.remote(Keeper).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
        )
        return made.remote(enter)


_crew: Crew | None = None


def crew_for(plan: Plan) -> tuple[Crew, int]:
    """The hosts for a plan, and how many of them take part; hosts that are there are kept."""
    global _crew
    ray = connected()
    context = ray.get_runtime_context()
    cluster = (context.gcs_address, context.get_job_id())
    threads = plan.performance.threads
    places = sum(
        int(node["Resources"].get("CPU", 0)) // threads for node in ray.nodes() if node["Alive"]
    )
    among = min(plan.task.peers, plan.performance.hosts or max(places, 1))
    crew = _crew
    if crew is not None and crew.cluster == cluster:
        if len(crew.hosts) >= among:
            return crew, among
        for host in crew.hosts:
            ray.kill(host)
    hosts = _started(ray, among)
    _crew = Crew(ray, cluster, hosts, [None] * among)
    _crew.find_doors()
    return _crew, among


def _started(ray: Any, number: int) -> list[Any]:
    """New hosts.  Ray starts one again that is lost, on another machine if need be.

    A host takes a CPU to be placed and none to stay, so that there is always room for it.
    """
    host = ray.remote(concurrency_groups={ASIDE: 1})(Host).options(
        max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
    )
    hosts = [host.remote() for _ in range(number)]
    try:
        answers = ray.get([one.versions.remote() for one in hosts], timeout=PATIENCE)
    except ray.exceptions.GetTimeoutError as error:
        for one in hosts:
            ray.kill(one)
        raise InvalidInput(
            f"the Ray cluster did not start {number} hosts within {PATIENCE:g} seconds; wait until "
            "it has free CPUs, or set performance.hosts lower."
        ) from error
    here = versions()
    for there in answers:
        for name, version in here.items():
            if there[name] != version:
                raise InvalidInput(
                    f"a machine of the Ray cluster has {name} {there[name]}, this one has "
                    f"{version}; install the same version on every machine."
                )
    return hosts
