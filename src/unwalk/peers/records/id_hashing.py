"""Hashes record ids under a peer's secret, so that nobody else can tell whose hash is whose."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from unwalk.core.errors import InvalidInput
from unwalk.peers.identity.credentials import read_private, write_private

KEY = "records.key"
SIZE = 32


@dataclass(frozen=True)
class RecordKey:
    """HMAC-SHA256 under a secret of 32 bytes, which stays in the bundle."""

    secret: bytes = field(repr=False)

    def hash(self, text: str, use: str = "id") -> str:
        """The keyed hash of a text, different for each use.

        >>> key = RecordKey(bytes(32))
        >>> key.hash("p-17")[:8], key.hash("p-17", "split")[:8]
        ('1068b2cc', 'bc101942')
        """
        return hmac.new(self.secret, f"{use}:{text}".encode(), hashlib.sha256).hexdigest()

    def digest(self, parts: Iterable[bytes]) -> str:
        """The keyed digest of content: without the key it can be compared with nothing."""
        mac = hmac.new(self.secret, b"content:", hashlib.sha256)
        for part in parts:
            mac.update(part)
        return mac.hexdigest()

    @staticmethod
    def read(bundle: Path) -> RecordKey:
        """The key of a bundle; made at the first call, with mode 0600."""
        path = bundle / KEY
        if not path.exists():
            draft = path.with_name(f".{KEY}.{secrets.token_hex(8)}")
            write_private(draft, secrets.token_bytes(SIZE))
            with suppress(FileExistsError):  # another process was faster: its key counts
                os.link(draft, path)
            draft.unlink()
        secret = read_private(path)
        if len(secret) != SIZE:
            raise InvalidInput(f"{path} has {len(secret)} bytes; allowed: {SIZE}.")
        return RecordKey(secret)
