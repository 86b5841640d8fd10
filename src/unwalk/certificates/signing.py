"""Signs a certificate with Ed25519; the only module here that needs the cryptography package.

A key is a PEM file (PKCS 8) that its owner alone may read.  A fingerprint is the SHA-256 of the
32 raw bytes of the public key, in hexadecimal.
"""

# Imports in functions: the package cryptography is an extra.

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unwalk.certificates.document import UNSIGNED, body_of
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.validation import check_private_file

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
KEY_URI = "unwalk:ed25519:"
MISSING = "signatures need the cryptography package: install unwalk[certificates]."


def can_sign() -> bool:
    """Whether the cryptography package is installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


def _need() -> None:
    if not can_sign():
        raise InvalidInput(MISSING)


def fingerprint(public_key: bytes) -> str:
    """Names a public key.

    >>> fingerprint(bytes(32))[:16]
    '66687aadf862bd77'
    """
    return hashlib.sha256(public_key).hexdigest()


def make_key(path: Path) -> str:
    """A new signing key at ``path``, readable by its owner alone; returns its fingerprint."""
    _need()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be made: {error.strerror}.") from error
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    return fingerprint(_raw(key))


def load_key(path: Path) -> Ed25519PrivateKey:
    """The signing key in a PEM file."""
    _need()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    check_private_file(path)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{path} is not a private key in PEM form.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{path} is a {type(key).__name__}; allowed: an Ed25519 key.")
    return key


def _raw(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def sign(
    document: dict[str, Any], key: Ed25519PrivateKey, chain: str | None = None
) -> dict[str, Any]:
    """The document with its signer and signature; ``chain`` is an X.509 certificate in PEM form."""
    public = _raw(key)
    if chain is not None and _subject_key(chain) != public:
        raise InvalidInput("the X.509 certificate is for another key than the one that signs.")
    signer = {
        "algorithm": ALGORITHM,
        "public_key": public.hex(),
        "fingerprint": fingerprint(public),
        "chain": chain,
    }
    signed = {**document, "signer": signer}
    return {**signed, "signature": key.sign(body_of(signed)).hex()}


def check_signature(document: dict[str, Any]) -> str | None:
    """The signer's fingerprint; None for an unsigned document; :class:`Corrupt` if it is wrong."""
    for name in ("signer", "signature"):
        if name not in document:
            raise Corrupt(f"{name} is missing.")
    signer, signature = document["signer"], document["signature"]
    if signer == UNSIGNED and signature is None:
        return None
    _need()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(signer, dict) or signer.get("algorithm") != ALGORITHM:
        raise Corrupt("signer is not an Ed25519 key.")
    try:
        public = bytes.fromhex(signer["public_key"])
        if signer["fingerprint"] != fingerprint(public):
            raise Corrupt("signer.fingerprint is not that of signer.public_key.")
        key = Ed25519PublicKey.from_public_bytes(public)
        raw = bytes.fromhex(str(signature))
        if raw.hex() != signature or public.hex() != signer["public_key"]:
            raise Corrupt("signature or signer.public_key is not in plain hexadecimal digits.")
        key.verify(raw, body_of(document))
    except InvalidSignature as error:
        raise Corrupt("the signature does not fit the document.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt("signer or signature is not well formed.") from error
    return fingerprint(public)


def trusted(document: dict[str, Any], trust: str, now: datetime) -> bool:
    """Whether the signer is ``trust``: a fingerprint, or the file of a CA's X.509 certificate."""
    signer = document["signer"]
    signed_by = str(signer["fingerprint"])
    wanted = trust.strip().lower().removeprefix("sha256:").replace(":", "")
    if len(wanted) == 64 and all(c in "0123456789abcdef" for c in wanted):
        return signed_by == wanted
    path = Path(trust)
    if not path.is_file():
        raise InvalidInput(
            f"--trust is {trust!r}; allowed: a fingerprint of 64 hexadecimal digits, or the file "
            "of a CA's certificate in PEM form."
        )
    return _issued(signer, path, now)


def of_a_peer(document: dict[str, Any]) -> bool:
    """Whether the signer's certificate is that of a peer in a network."""
    from cryptography import x509

    chain = document["signer"].get("chain")
    try:
        return isinstance(chain, str) and bool(
            _key_uris(x509.load_pem_x509_certificate(chain.encode()))
        )
    except ValueError:
        return False


def _issued(signer: dict[str, Any], path: Path, now: datetime) -> bool:
    """Whether the CA in ``path`` issued the signer's certificate, for its key, valid now."""
    _need()
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        authority = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"{path} is not an X.509 certificate in PEM form.") from error
    if not isinstance(signer.get("chain"), str):
        return False
    try:
        if not authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        held = x509.load_pem_x509_certificate(signer["chain"].encode())
        held.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    times = [(c.not_valid_before_utc, c.not_valid_after_utc) for c in (authority, held)]
    if not all(first <= now <= last for first, last in times):
        return False
    try:
        return _subject_key(signer["chain"]) == bytes.fromhex(signer["public_key"])
    except InvalidInput:
        return False


def _subject_key(pem: str) -> bytes:
    """The raw Ed25519 key that an X.509 certificate is for.

    A peer's certificate is for the key of its connections, and names the one it signs with as a
    URI, ``unwalk:ed25519:HEX``.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        held = x509.load_pem_x509_certificate(pem.encode())
        key = held.public_key()
    except ValueError as error:
        raise InvalidInput("the X.509 certificate is not in PEM form.") from error
    if isinstance(key, Ed25519PublicKey):
        return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    try:
        (named,) = _key_uris(held)
        return bytes.fromhex(named)
    except ValueError as error:
        raise InvalidInput("the X.509 certificate is not for an Ed25519 key.") from error


def _key_uris(held: x509.Certificate) -> list[str]:
    """The signing keys that a peer's certificate names."""
    from cryptography import x509

    try:
        names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(KEY_URI) for uri in uris if uri.startswith(KEY_URI)]
