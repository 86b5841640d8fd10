"""Checks who signed what: certificates by the network's CA, signatures by certificates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.transcript import canonical
from unwalk.peers.identity.credentials import (
    SIGNING_URI,
    Keys,
    common_name,
    hex_after,
    now,
    private_pem,
    public_der,
    raw_key,
    read_certificate,
    read_private,
    uris_of,
)
from unwalk.peers.identity.network_file import Network, read_document
from unwalk.peers.protocol.hoplog import PREFIX, Entry

KNOWN = 4096
LONGEST_PEM = 4096
"""Characters of a certificate; ours have about a thousand."""
SIGNATURE = re.compile("[0-9a-f]{128}", re.ASCII)
"""The one form of a signature."""


class NotInForce(Refused):
    """A certificate of this network that is not valid yet, or any more, or was revoked."""


@dataclass(frozen=True)
class Identity:
    """What a good certificate says."""

    peer: str
    serial: str
    signing: ed25519.Ed25519PublicKey


@dataclass(eq=False)
class Trust:
    """The network's CA and network file; checks everything that others present."""

    authority: x509.Certificate
    network: Network
    _known: dict[str, tuple[x509.Certificate, Identity]] = field(default_factory=dict)

    def identity(self, pem: str, *, past: bool = False, chapter: int | None = None) -> Identity:
        """Whose certificate this is; :class:`Refused` unless it is good now.

        With ``past`` one that was good once will do, for what was signed in the past: in a
        ``chapter`` before the first that its revocation covers.
        """
        if pem not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[pem] = self._examine(pem)
        certificate, identity = self._known[pem]
        ended = certificate.not_valid_after_utc < now() and not past
        if ended or now() < certificate.not_valid_before_utc:
            raise NotInForce(
                f"the certificate of {identity.peer} is not valid now: it runs from "
                f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC."
            )
        if identity.serial in self.network.revoked:
            first = self.network.revoked[identity.serial]
            if not past:
                raise NotInForce(f"the certificate of {identity.peer} was revoked.")
            if first is not None and chapter is not None and chapter >= first:
                raise NotInForce(
                    f"the certificate of {identity.peer} was revoked from chapter {first} on."
                )
        return identity

    def _examine(self, pem: str) -> tuple[x509.Certificate, Identity]:
        certificate = certificate_from(pem)
        try:
            certificate.verify_directly_issued_by(self.authority)
        except Exception as error:  # the library raises a dozen kinds, some of them bare
            raise Refused(
                f"the certificate was not issued by the CA of network {self.network.name}."
            ) from error
        peer = common_name(certificate.subject)
        if peer not in {p.name for p in self.network.peers}:
            raise Refused(f"the certificate names {peer!r}, which is no peer of this network.")
        try:
            key = hex_after(SIGNING_URI, uris_of(certificate))
            signing = ed25519.Ed25519PublicKey.from_public_bytes(key)
        except ValueError as error:
            raise Refused(f"the certificate of {peer} holds no signing key.") from error
        return certificate, Identity(peer, f"{certificate.serial_number:x}", signing)

    def check(
        self,
        pem: str,
        signature: str,
        data: bytes,
        *,
        past: bool = False,
        chapter: int | None = None,
    ) -> str:
        """The name of the peer that signed ``data``."""
        identity = self.identity(pem, past=past, chapter=chapter)
        try:
            if not SIGNATURE.fullmatch(signature):  # spaces would be read over
                raise ValueError(signature[:128])
            identity.signing.verify(bytes.fromhex(signature), data)
        except (InvalidSignature, ValueError) as error:
            raise Refused(f"the signature is not {identity.peer}'s.") from error
        return identity.peer

    def signer(self, entry: Entry) -> int:
        """The number of the peer that signed a log entry.

        An entry made before its certificate was revoked, or ended, stays good: a log outlives the
        certificates of those who wrote it.
        """
        data = PREFIX + entry["chain"].encode()
        name = self.check(entry["certificate"], entry["signature"], data, past=True)
        return self.network.index(name)


def certificate_from(pem: str) -> x509.Certificate:
    """The certificate in a text that another peer sent; refused unless it is nothing besides.

    A text with more around it, be it white space, would be kept, and handed on, by whoever believes
    the certificate.
    """
    if len(pem) > LONGEST_PEM:
        raise Refused(f"a certificate has {len(pem)} characters; allowed: up to {LONGEST_PEM}.")
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        plain = certificate.public_bytes(serialization.Encoding.PEM).decode()
    except Exception as error:  # the library raises a dozen kinds, some of them bare
        raise Refused("what was presented is no certificate.") from error
    if pem != plain:
        raise Refused("a certificate is not in its one form, or has text around it.")
    return certificate


def read_network(path: Path, authority: x509.Certificate) -> Network:
    """A network file; refused unless the network's CA signed it."""
    content, signature = read_document(path)
    try:
        return network_from(content, signature, authority, str(path))
    except Refused as error:
        raise InvalidInput(
            f"{path} is not signed by the CA in {path.with_name('ca.pem')}; "
            "ask whoever runs the network for the right files."
        ) from error


def network_from(
    content: dict[str, Any], signature: str, authority: x509.Certificate, where: str
) -> Network:
    """The network in a document that its CA signed."""
    key = authority.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(bytes.fromhex(signature), canonical(content).encode(), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise Refused(f"{where} is not signed by the network's CA.") from error
    return Network.from_json(content, where)


@dataclass(frozen=True, eq=False)
class Bundle:
    """A peer's folder: network file, CA, certificate, private keys; checked when it is read."""

    folder: Path
    network: Network
    authority_pem: bytes
    certificate_pem: bytes
    keys: Keys
    noise_secret: bytes = field(repr=False)
    index: int = 0

    @property
    def name(self) -> str:
        return self.network.peers[self.index].name

    @property
    def store(self) -> Path:
        """Where the daemon keeps what it has."""
        return self.folder / "store"

    def tls_pem(self) -> bytes:
        """The private key as the connection wants it."""
        return private_pem(self.keys.tls)

    def sign(self, data: bytes) -> bytes:
        """This peer's signature."""
        return self.keys.signing.sign(data)

    def trust(self) -> Trust:
        return Trust(read_certificate(self.folder / "ca.pem"), self.network)

    @staticmethod
    def read(folder: Path) -> Bundle:
        """Read a bundle and refuse it with one sentence if the peer could not run with it."""
        if not folder.is_dir():
            raise InvalidInput(f"{folder} is no folder; a peer starts from its bundle.")
        for name in ("ca.pem", "network.json", "certificate.pem"):
            if not (folder / name).is_file():
                raise InvalidInput(f"{folder} has no {name}; a peer does not run without it.")
        authority = read_certificate(folder / "ca.pem")
        network = read_network(folder / "network.json", authority)
        keys = Keys.read(folder)
        pem = (folder / "certificate.pem").read_bytes()
        try:
            identity = Trust(authority, network).identity(pem.decode("ascii", "replace"))
        except Refused as error:
            raise InvalidInput(f"{folder / 'certificate.pem'} cannot be used: {error}") from error
        mine = x509.load_pem_x509_certificate(pem)
        if public_der(mine.public_key()) != public_der(keys.tls.public_key()):
            raise InvalidInput(f"{folder / 'tls.key'} does not belong to certificate.pem.")
        if raw_key(identity.signing) != raw_key(keys.signing.public_key()):
            raise InvalidInput(f"{folder / 'signing.key'} does not belong to certificate.pem.")
        return Bundle(
            folder=folder,
            network=network,
            authority_pem=(folder / "ca.pem").read_bytes(),
            certificate_pem=pem,
            keys=keys,
            noise_secret=read_private(folder / "noise.secret"),
            index=network.index(identity.peer),
        )


def signed_document(network: Network, sign: Callable[[bytes], str]) -> str:
    """The text of a network file; ``sign`` is :meth:`Authority.sign_words`."""
    content = network.to_json()
    record = {"network": content, "signature": sign(canonical(content).encode())}
    return json.dumps(record, indent=1, sort_keys=True) + "\n"
