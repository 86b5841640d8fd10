"""Erases what a peer still has of models that had seen forgotten records, and signs a receipt.

An erasure has three steps.  It is planned: the files it takes are written down in one transaction.
It is carried out: files are unlinked, rows overwritten, the database is written anew and its log
truncated.  It is receipted.  After a crash it goes on from the last step; the receipt lists what
was planned.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from unwalk.certificates import form
from unwalk.core.errors import Corrupt, Refused
from unwalk.core.transcript import canonical
from unwalk.core.validation import check_count
from unwalk.peers.identity.credentials import now
from unwalk.peers.identity.trust import Bundle, Trust
from unwalk.peers.storage.store import Store

FORMAT = 3
"""2 had receipts of peers that left which named neither their run nor when they left."""
PREFIX = b"unwalk-erasure-1:"
SCHEMA = """
CREATE TABLE IF NOT EXISTS erasures (
    run TEXT NOT NULL, chapter INTEGER NOT NULL, planned TEXT NOT NULL, receipt TEXT,
    PRIMARY KEY (run, chapter));
"""


def left_of(run: str) -> str:
    """Stands for the run in the receipt of a peer that left the network's run: it kept nothing.

    >>> left_of("0a")
    'left-0a'
    """
    return f"left-{run}"


@dataclass(frozen=True)
class Receipt:
    """A peer's word that it erased: ``erased`` are keyed digests of token files (see
    :func:`hidden_name`).  ``records`` is 0: nothing is signed about records.

    ``run`` and ``chapter`` say which forgetting it belongs to, ``end`` what the peers had decided
    that it ended with (see :mod:`unwalk.peers.decisions.walk_end`), ``time`` when it was done
    (UTC).  A peer that has left signs one for all chapters (see :func:`left_of`), in which
    ``chapter`` is the last that was decided then.
    """

    network: str
    run: str
    chapter: int
    peer: str
    erased: tuple[str, ...]
    records: int
    time: str
    end: str = ""
    signature: str = ""
    certificate: str = ""

    def words(self) -> bytes:
        """What is signed."""
        body = {**asdict(self), "erased": list(self.erased), "format": FORMAT}
        del body["signature"], body["certificate"]
        return PREFIX + canonical(body).encode()

    def signed(self, bundle: Bundle) -> Receipt:
        """The same with this peer's signature and certificate."""
        pem = bundle.certificate_pem.decode()
        return Receipt(**{**self._fields(), "certificate": pem, "signature": self._sign(bundle)})

    def _sign(self, bundle: Bundle) -> str:
        return bundle.sign(self.words()).hex()

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Receipt.__dataclass_fields__}

    def to_json(self) -> dict[str, Any]:
        """As it travels and stands in certificates."""
        return {**asdict(self), "erased": list(self.erased)}

    @staticmethod
    def from_json(record: Any) -> Receipt:
        """Check the form of a receipt, not yet who signed it."""
        problem = form.wrong(record, form.RECEIPT, "receipt")
        if problem is not None:
            raise Corrupt(f"{problem}.")
        return Receipt(**{**record, "erased": tuple(record["erased"])})

    def check(
        self,
        trust: Trust,
        *,
        run: str | None = None,
        chapter: int | None = None,
        end: str | None = None,
    ) -> int:
        """The number of the peer that signed it; :class:`Refused` where anything is wrong.

        ``run``, ``chapter`` and ``end``, where given, are what it has to be for; the signer's
        certificate must not be revoked from the chapter on that it names.
        """
        pem, words = self.certificate, self.words()
        signer = trust.check(pem, self.signature, words, past=True, chapter=self.chapter)
        if signer != self.peer:
            raise Refused(f"a receipt of {self.peer} was signed by {signer}.")
        if self.network != trust.network.name:
            raise Refused(f"a receipt is for network {self.network}.")
        for name, wanted in (("run", run), ("chapter", chapter), ("end", end)):
            if wanted is not None and getattr(self, name) != wanted:
                raise Refused(f"a receipt is for {name} {getattr(self, name)}, not {wanted}.")
        return trust.network.index(signer)

    def check_left(self, trust: Trust, chapter: int, counted_out: Collection[int]) -> None:
        """Refuse the receipt of a peer that has left if it does not cover ``chapter``.

        It covers it if the peer left in that chapter or later, or is ``counted_out`` of it.
        """
        peer = self.check(trust, run=left_of(trust.network.run_id))
        if self.chapter < chapter and peer not in counted_out:
            raise Refused(
                f"{self.peer} signed that it left after chapter {self.chapter}, but it is counted "
                f"in chapter {chapter}."
            )


def erase_since(
    store: Store,
    bundle: Bundle,
    run: str,
    chapter: int,
    *,
    keep: Collection[str],
    runs: Iterable[str] = (),
    end: str = "",
) -> Receipt:
    """Erase every token but those in ``keep``, and all that this peer kept between visits of the
    walks ``runs``; the signed receipt.

    ``keep`` holds the digests of the model that forgot and of tokens from before first contact:
    everything else under ``tokens`` goes, also spare files.  ``end`` is what the chapter ended
    with.  Asked again for the same chapter, the answer is the same.  An erasure that goes on
    leaves what ``keep`` names by now: the next chapter may have begun with the same bytes.
    """
    check_count("chapter", chapter)
    store.db.executescript(SCHEMA)
    row = store.db.execute(
        "SELECT planned, receipt FROM erasures WHERE run = ? AND chapter = ?", (run, chapter)
    ).fetchone()
    if row is not None and row[1] is not None:
        return Receipt.from_json(json.loads(row[1]))
    planned = _plan(store, run, chapter, keep, runs) if row is None else json.loads(row[0])
    stay = set(keep) | store.pinned
    erased = [digest for digest in planned if digest not in stay]
    _carry_out(store, erased)
    time = now().isoformat(timespec="seconds")
    name = bundle.network.name
    hidden = tuple(hidden_name(bundle, digest) for digest in erased)
    receipt = Receipt(name, run, chapter, bundle.name, hidden, 0, time, end).signed(bundle)
    with store.transaction() as db:
        db.execute(
            "UPDATE erasures SET planned = '[]', receipt = ? WHERE run = ? AND chapter = ?",
            (json.dumps(receipt.to_json()), run, chapter),
        )
    store.fault("receipt written")
    store.settle(must=True)
    return receipt


def hidden_name(bundle: Bundle, digest: str) -> str:
    """A name for an erased file that says nothing to others.

    The plain digest of a model that knew a record would let anyone test a guess of that record.
    """
    key = hmac.new(bundle.noise_secret, b"unwalk/erased-files", hashlib.sha256).digest()
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()


def receipt_of(store: Store, bundle: Bundle, run: str, chapter: int) -> Receipt | None:
    """This peer's receipt for a chapter, if it has signed one: under its present certificate."""
    store.db.executescript(SCHEMA)
    row = store.db.execute(
        "SELECT receipt FROM erasures WHERE run = ? AND chapter = ?", (run, chapter)
    ).fetchone()
    if row is None or row[0] is None:
        return None
    receipt = Receipt.from_json(json.loads(row[0]))
    signed_now = receipt.certificate == bundle.certificate_pem.decode()
    return receipt if signed_now else receipt.signed(bundle)


def _plan(
    store: Store, run: str, chapter: int, keep: Collection[str], runs: Iterable[str]
) -> list[str]:
    """What goes: written down, with the rows that name it gone, in one transaction."""
    stay = set(keep) | store.pinned
    erased = sorted(p.stem for p in store.token_files() if p.stem not in stay)
    with store.transaction() as db:
        db.executemany("DELETE FROM locals WHERE run = ?", [(gone,) for gone in runs])
        for digest in erased:
            db.execute("DELETE FROM arrivals WHERE token = ?", (digest,))
            db.execute("DELETE FROM locals WHERE file = ?", (digest,))
        row = (run, chapter, json.dumps(erased))
        db.execute("INSERT INTO erasures (run, chapter, planned) VALUES (?, ?, ?)", row)
    store.fault("erasure planned")
    return erased


def _carry_out(store: Store, erased: Iterable[str]) -> None:
    for digest in erased:
        store.file(digest).unlink(missing_ok=True)
        store.archived.discard(digest)
    store.erase_spares()
    store.sync_folder()
    store.fault("erasure unlinked")
    store.settle(rewrite=True, must=True)
    store.fault("erasure compacted")
