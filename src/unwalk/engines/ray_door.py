"""How a host of a Ray cluster hands a token to the next host on the same machine.

Ray keeps every token, so that a visit can be made again.  To bring one from process to process it
needs five messages through three processes, though, and takes several milliseconds.  So the next
host asks the one before for the token while that one computes, over a Unix socket that only their
user can open, and reads it from there.  No port is opened, and other machines get tokens from Ray.

A host that asks gets the token or a no, and the end of the connection is a no too: then the driver
orders the visit again, with the token that Ray keeps.
"""

from __future__ import annotations

import struct
import tempfile
import threading
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np

from unwalk.engines.ray_parcel import Parcel

Key = tuple[int, int]
"""A token: the number of a chain of visits, which only grows, and the hop that the token left."""

_KEY = struct.Struct("<QQ")
_COUNT = struct.Struct("<Q")


class Door:
    """Where the token of the last visit is handed out."""

    def __init__(self, folder: str | None = None) -> None:
        place = Path(tempfile.mkdtemp(prefix="door-", dir=folder))  # its user's alone
        self.listener = Listener(str(place / "door"), "AF_UNIX", backlog=64)
        self.address = str(self.listener.address)
        self.left: Key = (0, 0)
        self._ended = 0
        self._parcel: Parcel | None = None
        self._waiting: dict[Key, Connection] = {}
        self._others: dict[str, Connection] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._open, daemon=True).start()

    def leave(self, key: Key, parcel: Parcel | None) -> None:
        """Hand a token to the host that waits for it; None if there is no such token.

        An earlier visit that is made again changes nothing: nobody waits for its token.
        """
        with self._lock:
            if key < self.left:
                return
            self.left = key
            waiting = self._waiting.pop(key, None)
            self._parcel = parcel.copy() if parcel is not None and waiting is None else None
        if waiting is not None:
            _answer(waiting, parcel)

    def over(self, chain: int) -> None:
        """Whoever waits for a token of this chain or an earlier one gets a no."""
        with self._lock:
            self._ended = max(self._ended, chain)
            waiting = [self._waiting.pop(key) for key in [*self._waiting] if key[0] <= chain]
        for one in waiting:
            _answer(one, None)

    def fetch(self, address: str, key: Key) -> Parcel | None:
        """A token from the door of another host, when it is there; None if it will not be."""
        try:
            if address not in self._others:
                self._others[address] = Client(address)
            other = self._others[address]
            other.send_bytes(_KEY.pack(*key))
            return _read(other)
        except (EOFError, OSError):
            self._others.pop(address, None)
            return None

    def _open(self) -> None:
        while True:
            other: Connection = self.listener.accept()
            threading.Thread(target=self._serve, args=(other,), daemon=True).start()

    def _serve(self, other: Connection) -> None:
        """Answer the host at the other end, which asks for one token at a time."""
        try:
            while True:
                chain, hop = _KEY.unpack(other.recv_bytes(_KEY.size))
                with self._lock:
                    if (chain, hop) > self.left and chain > self._ended:
                        self._waiting[chain, hop] = other
                        continue
                    parcel = self._parcel if (chain, hop) == self.left else None
                _answer(other, parcel)
        except (EOFError, OSError):
            other.close()


def _answer(other: Connection, parcel: Parcel | None) -> None:
    """Send a token; one who has gone away does not need it."""
    try:
        if parcel is None:
            other.send_bytes(b"")
            return
        other.send_bytes(_COUNT.pack(len(parcel.tensors)) + parcel.pickled)
        for tensor in parcel.tensors:
            other.send_bytes(tensor.data)
    except OSError:
        other.close()


def _read(other: Connection) -> Parcel | None:
    first = other.recv_bytes()
    if not first:
        return None
    (count,) = _COUNT.unpack_from(first)
    tensors = [np.frombuffer(other.recv_bytes(), np.uint8) for _ in range(count)]
    return Parcel(first[_COUNT.size :], tensors)
