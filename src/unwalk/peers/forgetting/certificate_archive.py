"""A certificate with all that a stranger needs to check it, as one archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from unwalk.certificates.document import FILE, MODEL
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.peers.forgetting.peer_certificate import TRANSCRIPT, VISITS, intact, released

FILES = (FILE, TRANSCRIPT, VISITS, MODEL)
LARGEST = 2 << 30
"""Bytes of one file of an archive, at most."""
CHUNK = 1 << 20


def packed(files: Mapping[str, bytes]) -> bytes:
    """An archive of files, the same for the same files.

    >>> packed({"certificate.json": b"{}"}) == packed({"certificate.json": b"{}"})
    True
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()


def pack(certificate: Path) -> bytes:
    """The archive of a certificate: its file, transcript, visits as peers signed them, and model.

    A model that has been erased since is missing.  The network's CA is not in it: who checks must
    have that from elsewhere.
    """
    places = [certificate.with_name(name) for name in FILES]
    files = {p.name: p.read_bytes() for p in places if p.is_file()}
    document = intact(certificate)
    if document is not None and (model := released(document, certificate)) is not None:
        files[MODEL] = model
    return packed(files)


def unpack(file: Path, folder: Path) -> Path:
    """Lay the files of an archive into ``folder``; where the certificate is then."""
    try:
        with zipfile.ZipFile(file) as archive:
            if FILE not in archive.namelist():
                raise Corrupt(f"{file} holds no {FILE}.")
            for name in FILES:
                if name in archive.namelist():
                    _lay(archive, name, folder / name)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror or error}.") from error
    except Corrupt:
        raise
    except Exception as error:  # what was changed in an archive may raise anything
        raise Corrupt(f"{file} is no whole archive: {error}.") from error
    return folder / FILE


def _lay(archive: zipfile.ZipFile, name: str, place: Path) -> None:
    left = LARGEST
    with archive.open(name) as inside, place.open("wb") as out:
        while chunk := inside.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise Corrupt(f"{name} in the archive is larger than {LARGEST} bytes.")
            out.write(chunk)
