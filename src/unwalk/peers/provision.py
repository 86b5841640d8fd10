"""Making and changing a network: its folder holds the CA, the network file and any bundles.

On one machine ``make_network`` makes every peer's bundle.  Across organisations each peer makes
its own keys and a request (``make_request``), whoever runs the network signs it
(``sign_request``), and private keys never travel.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from cryptography import x509

from unwalk.core.errors import InvalidInput
from unwalk.core.seeds import VERSION
from unwalk.peers.decisions.decided import check_decided
from unwalk.peers.handover.visit import assembled_of, token_size
from unwalk.peers.identity.credentials import (
    PEER_DAYS,
    Authority,
    Keys,
    fingerprint,
    fingerprint_of,
    now,
    raw_key,
    read_certificate,
    request,
    request_of,
)
from unwalk.peers.identity.network_file import Limits, Member, Network
from unwalk.peers.identity.trust import NotInForce, Trust, read_network, signed_document
from unwalk.peers.storage.database import read_only
from unwalk.runs.store import write_file

ISSUED = "issued"


def make_network(
    folder: Path,
    *,
    name: str,
    addresses: Sequence[str],
    settings: Mapping[str, Any],
    limits: Limits | Mapping[str, Any] | None = None,
    noise: str = "secret",
    bundles: bool = True,
    days: float = PEER_DAYS,
    lies: int | None = None,
    begin_with: Sequence[str] | None = None,
) -> Network:
    """A new network in ``folder``; with ``bundles``, a complete folder for every peer.

    ``limits`` may be a few by name: then the lease, if it is not among them, is long enough for
    the network's tokens.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty; choose another folder for the network.")
    members = tuple(Member(f"peer-{n}", a) for n, a in enumerate(addresses))
    given = limits if isinstance(limits, Limits) else Limits(**(limits or {}))
    versioned = {"streams": VERSION, **settings}
    first_up = None if begin_with is None else tuple(begin_with)
    network = agreed(
        Network(name, members, versioned, given, noise, lies=lies, begin_with=first_up)
    )
    size = token_size(assembled_of(network))
    if not isinstance(limits, Limits) and "lease" not in (limits or {}):
        network = replaced(network, limits=given.with_lease_for(size))
    network.limits.check_token(size)
    authority = Authority.new(name)
    document = signed_document(network, authority.sign_words)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    authority.write(folder)
    write_file(folder / "network.json", document)
    (folder / ISSUED).mkdir()
    if bundles:
        for member in members:
            make_bundle(folder, member.name, days)
    return network


def agreed(network: Network) -> Network:
    """The network with digests in its settings, which all peers compare.

    They are of its fixed features and of the model's frozen part, where it has any.  One that was
    given already is checked, here as at every peer.
    """
    assembled, digests = assembled_of(network), {}
    if assembled.task.features is not None:
        digests["data.extractor_digest"] = assembled.task.features.extractor.digest
    if assembled.model.frozen is not None:
        digests["model.frozen_digest"] = assembled.model.frozen.digest
    return replaced(network, settings={**network.settings, **digests})


def network_of(folder: Path) -> tuple[Network, Authority]:
    """The network and CA of a folder that :func:`make_network` made."""
    for name in ("ca.key", "ca.pem", "network.json"):
        if not (folder / name).is_file():
            raise InvalidInput(f"{folder} has no {name}; it is no folder of a network.")
    authority = Authority.read(folder)
    return read_network(folder / "network.json", authority.certificate), authority


def make_bundle(folder: Path, peer: str, days: float = PEER_DAYS) -> Path:
    """New keys and a certificate for ``peer``, beside the network file; the old ones go."""
    network, authority = network_of(folder)
    network.index(peer)
    bundle = folder / peer
    bundle.mkdir(exist_ok=True, mode=0o700)
    keys = Keys.new()
    csr = request(keys, peer, network.name)
    pem = authority.issue(csr, tuple(p.name for p in network.peers), network.name, days)
    _remember(folder, peer, pem)  # before it can be used
    keys.write(bundle)
    write_file(bundle / "certificate.pem", pem)
    _hand_out(folder, bundle)
    return bundle


def _hand_out(folder: Path, bundle: Path) -> None:
    for name in ("ca.pem", "network.json"):
        shutil.copyfile(folder / name, bundle / name)


def _remember(folder: Path, peer: str, pem: bytes) -> None:
    """Issued certificates are kept: revoking needs their serial numbers."""
    (folder / ISSUED).mkdir(exist_ok=True)
    number = len(_issued(folder, peer)) + 1
    write_file(folder / ISSUED / f"{peer}.{number}.pem", pem)


def make_request(bundle: Path, peer: str, network: str) -> tuple[Path, str]:
    """Keys in a new bundle, the request for whoever runs the network, and their fingerprint."""
    Member(peer, "localhost:1")
    bundle.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = Keys.new()
    if (bundle / "tls.key").exists():
        keys = Keys.read(bundle)
    else:
        keys.write(bundle)
    path = bundle / "request.csr"
    write_file(path, request(keys, peer, network))
    return path, fingerprint(keys.tls.public_key(), raw_key(keys.signing.public_key()))


@dataclass(frozen=True)
class Signed:
    """A certificate that was issued: for whom, with which keys, and what the name had before."""

    path: Path
    peer: str
    fingerprint: str
    before: tuple[str, ...]


def sign_request(
    folder: Path, csr: Path, out: Path, days: float = PEER_DAYS, *, replace: bool = False
) -> Signed:
    """Issue a certificate; ``out`` gets it with the CA and the network file: all public.

    Whoever has a certificate of a name speaks and votes under it, so a second one for the same
    name is refused unless it is to ``replace`` the first.
    """
    network, authority = network_of(folder)
    try:
        data = csr.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{csr} cannot be read: {error.strerror}.") from error
    names = tuple(p.name for p in network.peers)
    peer, keys = request_of(data, names, network.name)
    before = tuple(fingerprint_of(c) for c in certificates_of(folder, peer))
    if before and not replace:
        raise InvalidInput(
            f"{peer} already has a certificate, for the keys {before[-1]}; the request is for the "
            f"keys {keys}. Ask {peer} in another way whether these are its own; then add --replace "
            f"and revoke the earlier one: unwalk net revoke {folder} {peer} --keep-latest."
        )
    pem = authority.issue(data, names, network.name, days)
    out.mkdir(parents=True, exist_ok=True)
    write_file(out / "certificate.pem", pem)
    _hand_out(folder, out)
    _remember(folder, peer, pem)
    return Signed(out / "certificate.pem", peer, keys, before)


def certificates_of(folder: Path, peer: str) -> list[x509.Certificate]:
    """The certificates of a peer that are good now, oldest first."""
    network, _ = network_of(folder)
    certificates = [read_certificate(path) for path in _issued(folder, peer)]
    return [
        c
        for c in certificates
        if f"{c.serial_number:x}" not in network.revoked and c.not_valid_after_utc > now()
    ]


def _issued(folder: Path, peer: str) -> list[Path]:
    """All certificates that a peer ever had, oldest first."""
    try:
        files = [p for p in (folder / ISSUED).iterdir() if p.name.startswith(f"{peer}.")]
    except OSError as error:
        raise InvalidInput(f"{folder / ISSUED} cannot be read: {error.strerror}.") from error
    issued = [p for p in files if p.suffix == ".pem"]  # "glob" would pass over what it cannot read
    return sorted(issued, key=lambda p: int(p.name.split(".")[-2]))


def next_chapter(folder: Path) -> int:
    """The chapter after those that were decided, as far as the peers in this folder know."""
    decided = (_decided(bundle / "store" / "state.sqlite") for bundle in folder.iterdir())
    known = [number for number in decided if number is not None]
    if not known:
        raise InvalidInput(
            f"no peer in {folder} has run here, so that it cannot be known which chapter is next. "
            "Give --chapter: the number that `unwalk peer status` shows as chapter at a peer that "
            "is up to date, and one more (1 if no peer ever ran)."
        )
    return max(known) + 1


def _decided(store: Path) -> int | None:
    """How many chapters were decided, as far as a peer's store knows; None if there is none."""
    try:
        store.stat()
        with closing(read_only(store)) as db:
            there = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'agenda'").fetchone()
            query = "SELECT COUNT(*) FROM agenda"
            return 0 if there is None else int(db.execute(query).fetchone()[0])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"{store} cannot be read ({why}); give --chapter.") from error


def _check_votes(folder: Path, network: Network) -> None:
    """Refuse a network file with which something that was decided would count no more.

    That is read at each peer in ``folder`` that can be read.
    """
    authority = read_certificate(folder / "ca.pem")
    for store in sorted(folder.glob("*/store/state.sqlite")):
        with suppress(OSError, sqlite3.Error), closing(read_only(store)) as db:
            try:
                check_decided(Trust(authority, network), db)
            except NotInForce as error:
                raise InvalidInput(
                    f"with that revocation {error} No certificate that rests on it would verify "
                    "any more, and requests that wait for theirs would end without. Name a later "
                    "chapter, or add --confirm."
                ) from error


def revoke(
    folder: Path,
    peer: str,
    *,
    keep_latest: bool = False,
    chapter: int | None = None,
    confirm: bool = False,
) -> Network:
    """Revoke the certificates of ``peer`` (``keep_latest``: all but the newest one).

    From ``chapter`` on nothing counts that was signed with them: the next one, if none is given.
    Where that takes the votes away that something rests on, somebody has to ``confirm`` it.
    """
    network, authority = network_of(folder)
    network.index(peer)
    issued = _issued(folder, peer)
    if keep_latest:
        issued = issued[:-1]
    if not issued:
        other = " but its newest" if keep_latest else ""
        raise InvalidInput(f"{peer} has no certificate{other} from {folder}.")
    first = next_chapter(folder) if chapter is None else chapter
    changed = network.without(tuple(map(_serial, issued)), first)
    if not confirm:
        _check_votes(folder, changed)
    return publish(folder, changed, authority)


def _serial(path: Path) -> str:
    return f"{read_certificate(path).serial_number:x}"


def rotate(
    folder: Path,
    peer: str,
    days: float = PEER_DAYS,
    chapter: int | None = None,
    *,
    confirm: bool = False,
) -> Path:
    """New keys and certificate for a peer of this machine; its earlier ones are revoked."""
    first = next_chapter(folder) if chapter is None else chapter
    network, _ = network_of(folder)
    if not confirm:
        _check_votes(folder, network.without(tuple(map(_serial, _issued(folder, peer))), first))
    bundle = make_bundle(folder, peer, days)
    revoke(folder, peer, keep_latest=True, chapter=first, confirm=True)
    return bundle


def publish(folder: Path, network: Network, authority: Authority) -> Network:
    """Write a new version of the network file, here and into the bundles beside it."""
    write_file(folder / "network.json", signed_document(network, authority.sign_words))
    for member in network.peers:
        if (folder / member.name).is_dir():
            _hand_out(folder, folder / member.name)
    return network
