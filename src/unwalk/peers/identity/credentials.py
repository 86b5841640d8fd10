"""Makes keys and X.509 certificates: one identity per peer, issued by the network's own CA.

A peer has two private keys that never leave its machine: ``tls.key`` (ECDSA P-256) for the
connection and ``signing.key`` (Ed25519) for what it signs.  One certificate names the peer and
binds both: the signing key stands in it as a URI, ``unwalk:ed25519:HEX``.  A certificate request
carries a proof that the asker has the signing key as well.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unwalk.core.errors import InvalidInput
from unwalk.core.validation import check_number, check_private_file

CA_DAYS = 3650
PEER_DAYS = 365
SLACK = dt.timedelta(minutes=5)
SIGNING_URI = "unwalk:ed25519:"
PROOF_URI = "unwalk:proof:"
PROOF_WORDS = b"unwalk-signing-key-of:"


def now() -> dt.datetime:
    """The time that certificates are judged by."""
    return dt.datetime.now(dt.UTC)


def write_private(path: Path, data: bytes) -> None:
    """Write a secret that only its owner may read."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def read_private(path: Path) -> bytes:
    """Read a secret; refused where others may read it too."""
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; a peer needs its own private keys.")
    check_private_file(path)
    return path.read_bytes()


def private_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    """A private key in PEM form, not encrypted: the file's mode protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def raw_key(key: ed25519.Ed25519PublicKey) -> bytes:
    """The 32 bytes of an Ed25519 public key."""
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def public_der(key: Any) -> bytes:
    """A public key as standard DER, for comparison."""
    spki: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return spki


def host_name(peer: str, network: str) -> str:
    """The name in a peer's certificate that a connection to it checks, whatever its address."""
    return f"{peer}.{network}.unwalk.invalid"


@dataclass(frozen=True)
class Keys:
    """A peer's private keys."""

    tls: ec.EllipticCurvePrivateKey
    signing: ed25519.Ed25519PrivateKey

    @staticmethod
    def new() -> Keys:
        return Keys(ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate())

    def write(self, folder: Path) -> None:
        """Keys and a fresh noise secret, each with mode 0600."""
        write_private(folder / "tls.key", private_pem(self.tls))
        write_private(folder / "signing.key", private_pem(self.signing))
        if not (folder / "noise.secret").exists():
            write_private(folder / "noise.secret", secrets.token_bytes(32))

    @staticmethod
    def read(folder: Path) -> Keys:
        tls = _load_key(folder / "tls.key", ec.EllipticCurvePrivateKey)
        signing = _load_key(folder / "signing.key", ed25519.Ed25519PrivateKey)
        return Keys(tls, signing)


def _load_key(path: Path, kind: type[Any]) -> Any:
    data = read_private(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{path} is no private key in PEM form.") from error
    if not isinstance(key, kind):
        raise InvalidInput(f"{path} is not the kind of key that belongs there.")
    return key


def request(keys: Keys, peer: str, network: str) -> bytes:
    """A certificate request (PEM) for ``peer``."""
    proof = keys.signing.sign(PROOF_WORDS + public_der(keys.tls.public_key()))
    names: list[x509.GeneralName] = [
        x509.DNSName(host_name(peer, network)),
        x509.UniformResourceIdentifier(SIGNING_URI + raw_key(keys.signing.public_key()).hex()),
        x509.UniformResourceIdentifier(PROOF_URI + proof.hex()),
    ]
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(keys.tls, hashes.SHA256())
    )
    return csr.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, eq=False)
class Authority:
    """The network's CA: its key stays on the machine that runs ``unwalk net``."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def new(network: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"unwalk network {network}")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - SLACK)
            .not_valid_after(now() + dt.timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return Authority(key, certificate)

    def write(self, folder: Path) -> None:
        write_private(folder / "ca.key", private_pem(self.key))
        (folder / "ca.pem").write_bytes(self.pem)

    @staticmethod
    def read(folder: Path) -> Authority:
        key = _load_key(folder / "ca.key", ec.EllipticCurvePrivateKey)
        return Authority(key, read_certificate(folder / "ca.pem"))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign_words(self, data: bytes) -> str:
        """A signature of a document, in hexadecimal."""
        return self.key.sign(data, ec.ECDSA(hashes.SHA256())).hex()

    def issue(
        self, csr_pem: bytes, peers: tuple[str, ...], network: str, days: float = PEER_DAYS
    ) -> bytes:
        """A certificate (PEM) for a request, if it is one of ``peers`` that asks."""
        check_number("days", days, above=0.0, high=CA_DAYS)
        peer, tls, signing = _check_request(csr_pem, peers, network)
        names: list[x509.GeneralName] = [
            x509.DNSName(host_name(peer, network)),
            x509.UniformResourceIdentifier(SIGNING_URI + signing.hex()),
        ]
        usage = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)]))
            .issuer_name(self.certificate.subject)
            .public_key(tls)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - SLACK)
            .not_valid_after(now() + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(usage, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def fingerprint(tls: Any, signing: bytes) -> str:
    """What people compare: a digest of both public keys, in groups of four letters.

    >>> fingerprint(Keys.new().tls.public_key(), bytes(32)).count(" ")
    15
    """
    said = hashlib.sha256(public_der(tls) + signing).hexdigest()
    return " ".join(said[at : at + 4] for at in range(0, len(said), 4))


def fingerprint_of(certificate: x509.Certificate) -> str:
    """The fingerprint of the keys in a certificate."""
    return fingerprint(certificate.public_key(), hex_after(SIGNING_URI, uris_of(certificate)))


def request_of(csr_pem: bytes, peers: tuple[str, ...], network: str) -> tuple[str, str]:
    """Who asks for a certificate, and the fingerprint of its keys; refused unless in order."""
    peer, tls, signing = _check_request(csr_pem, peers, network)
    return peer, fingerprint(tls, signing)


def _check_request(
    csr_pem: bytes, peers: tuple[str, ...], network: str
) -> tuple[str, ec.EllipticCurvePublicKey, bytes]:
    try:
        csr = x509.load_pem_x509_csr(csr_pem)
    except ValueError as error:
        raise InvalidInput("the request is no certificate request in PEM form.") from error
    peer = common_name(csr.subject)
    tls = csr.public_key()
    if not csr.is_signature_valid or not isinstance(tls, ec.EllipticCurvePublicKey):
        raise InvalidInput("the request is not signed by its own elliptic-curve key.")
    if peer not in peers:
        raise InvalidInput(
            f"the request is for {peer!r}; the peers of network {network} are {', '.join(peers)}."
        )
    if host_name(peer, network) not in _alternatives(csr, x509.DNSName):
        raise InvalidInput(f"the request is not for network {network}.")
    uris = uris_of(csr)
    signing = hex_after(SIGNING_URI, uris)
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(signing)
        key.verify(hex_after(PROOF_URI, uris), PROOF_WORDS + public_der(tls))
    except (InvalidSignature, ValueError) as error:
        raise InvalidInput("the request does not prove that it has its signing key.") from error
    return peer, tls, signing


def uris_of(holder: Any) -> list[str]:
    """The URIs that a certificate or request names."""
    return _alternatives(holder, x509.UniformResourceIdentifier)


def _alternatives(holder: Any, kind: type[x509.GeneralName]) -> list[str]:
    try:
        found = holder.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(found.value.get_values_for_type(kind))


def hex_after(prefix: str, uris: list[str]) -> bytes:
    """The bytes written in hexadecimal after ``prefix`` in one of ``uris``; empty if none."""
    for uri in uris:
        if uri.startswith(prefix):
            try:
                return bytes.fromhex(uri[len(prefix) :])
            except ValueError:
                break
    return b""


def common_name(name: x509.Name) -> str:
    """The common name, or an empty text."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a PEM file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is no certificate in PEM form.") from error
