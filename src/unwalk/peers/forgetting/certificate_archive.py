"""A certificate with all that a stranger needs to check it, as one archive."""

from __future__ import annotations

import io
import struct
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from unwalk.certificates.document import FILE, MODEL
from unwalk.certificates.document import LONGEST as LONGEST_CERTIFICATE
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.transcript import LONGEST
from unwalk.peers.forgetting.peer_certificate import TRANSCRIPT, VISITS, intact, released

FILES = {FILE: LONGEST_CERTIFICATE, TRANSCRIPT: LONGEST, VISITS: LONGEST, MODEL: 2 << 30}
"""The files of an archive, with the bytes that each may have."""
CHUNK = 1 << 20
END = struct.Struct("<4s4H2LH")
"""What an archive ends with: a mark, four counts of disks and files, the list's size and place, and
the length of a remark."""
LOCATOR = 20
"""Bytes before that end which would name a second one, of an archive larger than ours are."""
MOST, LONGEST_LIST = 64, 64 << 10
"""Files of an archive, and bytes of the list of them."""


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
        _check_list(file)
        with zipfile.ZipFile(file) as archive:
            if FILE not in archive.namelist():
                raise Corrupt(f"{file} holds no {FILE}.")
            for name, count in Counter(archive.namelist()).items():
                if count > 1:
                    raise Corrupt(f"{file} holds {name} twice.")
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


def _check_list(file: Path) -> None:
    """Refuse an archive with a long list of files, before all of that list is read."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - END.size - LOCATOR))
        tail = opened.read()
    mark, _, _, _, files, size, start, remark = END.unpack(tail[-END.size :])
    if mark != b"PK\5\6" or remark or tail.startswith(b"PK\6\7"):
        raise Corrupt(f"{file} is no archive as peers give it out, or not whole.")
    if files > MOST or size > LONGEST_LIST:
        raise Corrupt(f"{file} lists more than {MOST} files; that of a certificate has four.")
    if start + size + END.size != file.stat().st_size:
        raise Corrupt(f"{file} is more than one archive, or has something before it.")


def _lay(archive: zipfile.ZipFile, name: str, place: Path) -> None:
    left = FILES[name]
    with archive.open(name) as inside, place.open("wb") as out:
        while chunk := inside.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise Corrupt(f"{name} in the archive is larger than {FILES[name] >> 20} MiB.")
            out.write(chunk)
