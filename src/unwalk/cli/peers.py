"""``unwalk peer`` and ``unwalk net``: run one peer; make and maintain a network of peers."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unwalk.cli import forgetting
from unwalk.cli.terminal import (
    App,
    BundleArgument,
    FeaturesOption,
    JsonOption,
    Set,
    changes_of,
    need_peers,
    show,
)
from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.core.validation import check_choice, check_count

if TYPE_CHECKING:
    from unwalk.peers.identity.network_file import Network

peer = App(help="Run one peer: it holds records, trains when it has the token, and hands it on.")
net = App(help="Make a network of peers and keep its identities.")
peer.command()(forgetting.data)
peer.command()(forgetting.leave)

Folder = Annotated[Path, typer.Argument(help="The network's folder.", metavar="FOLDER")]
PeerName = Annotated[str, typer.Argument(help="Name of a peer, as in peer-2.", metavar="PEER")]
FirstChapter = Annotated[
    int | None,
    typer.Option(
        "--chapter",
        help="The first chapter in which nothing counts that was signed with what is revoked; the "
        "next one, as far as the peers in FOLDER know, if not given.",
    ),
]
Confirm = Annotated[
    bool,
    typer.Option(
        "--confirm", help="Also where what was decided loses the votes that it rests on by that."
    ),
]
Days = Annotated[float, typer.Option(help="Days that a certificate is valid.")]


@net.command()
def init(
    folder: Folder,
    address: list[str] = typer.Option(help="HOST:PORT of one peer; once for every peer, in order."),
    name: str = typer.Option("network", help="Name of the network."),
    lease: float | None = typer.Option(
        None,
        help="Seconds until a silent holder is given up; if not given 30, or as many as the "
        "model's tokens need.",
    ),
    limit: list[str] | None = typer.Option(
        None,
        help="Another limit, NAME=VALUE: messages, token_bytes, rate, connect, stop, visit, "
        "weight.",
    ),
    noise: str = typer.Option("secret", help="secret (each peer's own) or simulation."),
    bundles: bool = typer.Option(
        True, help="Make every peer's keys here; without: each makes its own."
    ),
    days: Days = 365.0,
    lies: int | None = typer.Option(
        None, help="How many peers may lie without harm; fewer than a third if not given."
    ),
    begin_with: list[str] | None = typer.Option(
        None,
        help="A peer that has to be up before training begins, as in peer-2, once for each; all "
        "if not given, none with `none`.",
        metavar="PEER",
    ),
    set_: Set = None,
    features: FeaturesOption = None,
) -> None:
    """Make a network file, its CA and, on one machine, a bundle for every peer."""
    need_peers()
    from unwalk.peers.provision import make_network

    made = make_network(
        folder,
        name=name,
        addresses=address,
        settings=changes_of(set_, features=features),
        limits=_limits(lease, limit or []),
        noise=noise,
        bundles=bundles,
        days=days,
        lies=lies,
        begin_with=[] if begin_with == ["none"] else begin_with or None,
    )
    _told(made)
    if bundles:
        show(f"start each peer with: unwalk peer start {folder}/PEER")
    else:
        show(f"each peer now runs: unwalk peer csr BUNDLE --peer NAME --network {name}")


def _limits(lease: float | None, pairs: list[str]) -> dict[str, Any]:
    from unwalk.peers.identity.network_file import Limits

    given: dict[str, Any] = {} if lease is None else {"lease": lease}
    for text in pairs:
        name, _, value = text.partition("=")
        check_choice("--limit", name, [f.name for f in fields(Limits)])
        try:
            given[name] = int(value) if name == "token_bytes" else float(value)
        except ValueError as error:
            wanted = "a whole number" if name == "token_bytes" else "a number"
            raise InvalidInput(f"--limit {name} is {value!r}; allowed: {wanted}.") from error
    return given


def _told(network: Network) -> None:
    show(f"network {network.name}, version {network.version}, run {network.run_id}")
    for member in network.peers:
        show(f"  {member.name}  {member.address}")
    rules = network.rules()
    show(f"  {rules.quorum} of {len(network.peers)} peers decide; {rules.lies} may lie")
    if network.begin_with is not None:
        names = ", ".join(network.begin_with) or "no peer"
        show(f"  training begins once up: {names}", soft_wrap=True)
    for serial, first in network.revoked.items():
        since = "what it signed stays good" if first is None else f"from chapter {first} on"
        show(f"  revoked certificate: {serial}, {since}", soft_wrap=True)


@net.command()
def up(
    peers: int | None = typer.Option(
        None, help="How many peers; 8 if not given, or those of the network in --folder."
    ),
    degree: int | None = typer.Option(
        None, help="Neighbours of each peer; 4, or all others, if not given."
    ),
    task: str | None = typer.Option(
        None,
        help="digits if not given, a table for each peer; or another of unwalk tasks, whose "
        "records cannot be deleted here.",
    ),
    hops: int | None = typer.Option(None, help="Hops of training; 10 for each peer if not given."),
    folder: Path = typer.Option(
        Path("runs/network"), help="The network's folder; made if it is not there."
    ),
    port: int = typer.Option(0, help="Port of the page; 0: a free one."),
    set_: Set = None,
) -> None:
    """Run a whole network on this machine, with a page that shows all peers.

    The network is made in --folder; if there is one already, it continues. Ctrl-C stops it.
    """
    need_peers()
    from unwalk.peers.local_network import LocalNetwork, check_port, make_local
    from unwalk.peers.supervisor import supervise

    check_port(check_count("--port", port, high=65535))
    given = {"--degree": degree, "--task": task, "--hops": hops, "--set": set_}
    if (folder / "network.json").is_file():
        local = LocalNetwork(folder)
        if said := [name for name, value in given.items() if value]:
            raise InvalidInput(
                f"{folder} holds a network already, so {said[0]} would change nothing; leave it "
                "out, or choose another --folder."
            )
        if peers is not None and peers != len(local.names):
            raise InvalidInput(
                f"--peers is {peers}, but {folder} holds a network of {len(local.names)} peers; "
                "leave it out, or choose another --folder."
            )
    else:
        count = 8 if peers is None else peers
        settings = {"train.hops": 10 * count if hops is None else hops, **changes_of(set_)}
        make_local(folder, count, degree=degree, task=task or "digits", settings=settings)
        local = LocalNetwork(folder)
    supervise(local, lambda text: show(text, soft_wrap=True), port)


@net.command("show")
def show_network(folder: Folder) -> None:
    """Show a network's peers, addresses, settings and revocations."""
    need_peers()
    from unwalk.peers.provision import network_of

    network, _ = network_of(folder)
    _told(network)
    for key, value in asdict(network.limits).items():
        show(f"  limits.{key} = {value}")
    for key, value in sorted(network.settings.items()):
        show(f"  {key} = {value}")


@net.command()
def begin(
    bundle: BundleArgument,
    without: list[str] = typer.Option(help="A peer that is not waited for; once for each."),
) -> None:
    """Let training begin though a peer is not up; the operators of a quorum have to say so.

    Each runs it at its own peer. A peer that comes up later takes part from then on.
    """
    need_peers()
    from unwalk.peers.identity.trust import Bundle as Checked
    from unwalk.peers.lifecycle.beginning import begin_without
    from unwalk.peers.status import status as status_of

    state = status_of(bundle)
    if state.get("hop") or state.get("chapter") or state.get("committed"):
        raise InvalidInput(f"training has begun already at {state['peer']}; nothing waits.")
    begin_without(bundle, without)
    rules = Checked.read(bundle).network.rules()
    show(
        f"{state['peer']} lets training begin without {', '.join(without)}; it begins once the "
        f"operators of {rules.quorum} peers have said so and all others are up",
        soft_wrap=True,
    )


@net.command()
def sign(
    folder: Folder,
    request: Path = typer.Argument(help="The request.csr of a peer."),
    out: Path = typer.Option(help="Folder for certificate, CA and network file."),
    days: Days = 365.0,
    replace: bool = typer.Option(
        False,
        "--replace",
        help="Sign even if the peer has a certificate, because it rotates its keys.",
    ),
) -> None:
    """Sign a peer's certificate request; everything in --out is public and goes to the peer.

    Compare the fingerprint with the one that the peer got from `unwalk peer csr`: whoever has a
    certificate of a name speaks and votes under it.
    """
    need_peers()
    from unwalk.peers.provision import sign_request

    signed = sign_request(folder, request, out, days, replace=replace)
    for keys in signed.before:
        show(f"{signed.peer} had keys: {keys}", soft_wrap=True)
    show(f"{signed.peer} has keys: {signed.fingerprint}", soft_wrap=True)
    show(f"certificate: {signed.path}")
    if signed.before:
        show(
            f"the earlier one is good until: unwalk net revoke {folder} {signed.peer} --keep-latest"
        )


@net.command()
def rotate(
    folder: Folder,
    name: PeerName,
    days: Days = 365.0,
    chapter: FirstChapter = None,
    confirm: Confirm = False,
) -> None:
    """Give a peer of this machine new keys and a new certificate; revoke the old ones."""
    need_peers()
    from unwalk.peers import provision

    bundle = provision.rotate(folder, name, days, chapter, confirm=confirm)
    _told(provision.network_of(folder)[0])
    show(f"new bundle: {bundle}; restart the peer, and give the")
    show("new network.json to the others (SIGHUP makes a running peer read it)")


@net.command()
def revoke(
    folder: Folder,
    name: PeerName,
    keep_latest: bool = typer.Option(
        False, "--keep-latest", help="Revoke all but the newest one, because its keys were rotated."
    ),
    chapter: FirstChapter = None,
    confirm: Confirm = False,
) -> None:
    """Revoke a peer's certificates in a new version of the network file."""
    need_peers()
    from unwalk.peers import provision

    changed = provision.revoke(
        folder, name, keep_latest=keep_latest, chapter=chapter, confirm=confirm
    )
    _told(changed)
    show("give the new network.json to every peer (SIGHUP makes a running peer read it)")


@peer.command()
def csr(
    bundle: BundleArgument,
    name: str = typer.Option(..., "--peer", help="The peer's name in the network."),
    network: str = typer.Option(help="The network's name."),
) -> None:
    """Make private keys, which stay here, and a request for whoever runs the network."""
    need_peers()
    from unwalk.peers.provision import make_request

    path, keys = make_request(bundle, name, network)
    show(f"{name} has keys: {keys}", soft_wrap=True)
    show(f"request: {path}; what comes back (certificate.pem, ca.pem, network.json) goes beside it")


@peer.command()
def start(
    bundle: BundleArgument,
    listen: str | None = typer.Option(
        None, help="HOST:PORT, if not the address in the network file."
    ),
    metrics: str | None = typer.Option(None, help="127.0.0.1:PORT for Prometheus; empty: none."),
    http: str = typer.Option(
        "127.0.0.1:0", help="HOST:PORT of its HTTP interface and dashboard; none: without them."
    ),
    detach: bool = typer.Option(
        False, "--detach", help="Go on in the background, once other peers can reach it."
    ),
    tell: int | None = typer.Option(None, hidden=True),
) -> None:
    """Run a peer until it is stopped."""
    need_peers()
    from unwalk.peers.daemon import LOG, run_peer
    from unwalk.peers.identity.trust import Bundle as Checked
    from unwalk.peers.status import running
    from unwalk.peers.storage.error_file import open_errors

    checked = Checked.read(bundle)
    if not detach:
        ready = None if tell is None else partial(_tell_ready, tell)
        where = None if http == "none" else http
        run_peer(bundle, listen=listen, metrics=metrics, http=where, ready=ready)
        return
    if (pid := running(checked.store)) is not None:
        raise InvalidInput(f"{checked.name} runs already, as process {pid}.")
    given = {"listen": listen, "metrics": metrics, "http": http}
    options = [f"--{k}={v}" for k, v in given.items() if v]
    checked.store.mkdir(exist_ok=True, mode=0o700)
    hears, tells = os.pipe()
    with open_errors(checked.store) as errors, os.fdopen(hears, "rb") as hearing:
        before = errors.seek(0, os.SEEK_END)
        words = ["unwalk", "peer", "start", str(bundle), f"--tell={tells}", *options]
        child = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            pass_fds=(tells,),
        )
        os.close(tells)
        if not hearing.read(1):  # it ended
            child.wait()
            errors.seek(before)
            text = errors.read().decode("utf-8", "replace").strip()
            raise InvalidInput(f"the peer did not start: {text or 'no reason given'}")
    show(f"{checked.name} runs as process {child.pid}; its log: {checked.store / LOG}")


def _tell_ready(tell: int) -> None:
    """Tell the command that started this peer in the background that it runs."""
    with suppress(BrokenPipeError):
        os.write(tell, b"!")
    os.close(tell)


@peer.command()
def stop(bundle: BundleArgument) -> None:
    """Ask a peer to hand the token over and end."""
    need_peers()
    from unwalk.peers.daemon import stop_peer
    from unwalk.peers.status import status as status_of

    if not stop_peer(bundle):
        show("it was not running")
        return
    holding = False
    with suppress(UnwalkError):  # it may have been stopped because its bundle is no longer good
        holding = bool(status_of(bundle).get("holding"))
    words = "; no neighbour took the token, which stays safe here" if holding else ""
    show(f"stopped{words}")


@peer.command()
def status(bundle: BundleArgument, json_: JsonOption = False) -> None:
    """Say what a peer is doing, whether it runs or not."""
    need_peers()
    from unwalk.peers.status import status as status_of

    state = status_of(bundle)
    if json_:
        print(json.dumps(state))
        return
    for key, value in state.items():
        show(f"{key}: {_in_words(value)}", soft_wrap=True)
    page = bundle / "store" / "http.address"
    if state["running"] and page.is_file():
        show(f"page: {page.read_text(encoding='utf-8').strip()}", soft_wrap=True)


def _in_words(value: object) -> str:
    """A value for people: yes or no, lists without brackets, a dash for nothing."""
    if value is None or value in ({}, []):
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(_in_words, value))
    return str(value)


@peer.command()
def log(
    bundle: BundleArgument,
    whole: bool = typer.Option(
        False, "--whole", help="The committed hop log, checked, one JSON line each."
    ),
    follow: bool = typer.Option(False, "--follow", help="Go on showing new lines."),
) -> None:
    """Show a peer's log."""
    need_peers()
    from unwalk.peers.daemon import LOG, committed_log

    if whole:
        for entry in committed_log(bundle):
            print(json.dumps(entry))
        return
    for record in _lines(bundle / "store" / LOG, follow=follow):
        facts = {k: v for k, v in record.items() if k not in ("time", "peer", "event")}
        words = " ".join(f"{k}={json.dumps(v)}" for k, v in facts.items())
        show(f"{record['time']} {record['event']} {words}".rstrip(), soft_wrap=True)


def _lines(path: Path, *, follow: bool) -> Iterator[dict[str, Any]]:
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; no peer was ever started there.")
    with path.open(encoding="utf-8") as file:
        while True:
            line = file.readline()
            if line.endswith("\n"):
                yield json.loads(line)
            elif follow:
                time.sleep(0.2)
            else:
                return
