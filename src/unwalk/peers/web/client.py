"""Client of the endpoint: asks a running peer of this organisation, and waits for it."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from unwalk.core.errors import InvalidInput, UnwalkError
from unwalk.peers.forgetting.request_form import (
    Conflict,
    Offer,
    RequestForm,
    RequestView,
    UnknownRecords,
)
from unwalk.peers.web.views import CertificateView

TIMEOUT = 60.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Asker:
    """Asks one peer: ``url`` is where its endpoint is, ``token`` the content of ``http.token``.

    ``authority`` is the network's ``ca.pem``, needed for ``https``; ``name`` is what the peer's
    certificate says, whatever its address.
    """

    def __init__(
        self, url: str, token: str, *, authority: Path | None = None, name: str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"the peer's address is {url!r}; allowed: http(s)://HOST:PORT/.")
        self.url, self._token, self._name = url, token, name
        self._host = ANYWHERE.get(parts.hostname, parts.hostname)
        if parts.scheme == "http" and not is_loopback(self._host):
            raise InvalidInput(
                f"the peer's address is {url!r}, over which the token and the ids would travel "
                "for all to read; allowed: https, or http on the loopback interface."
            )
        self._port = parts.port or (80 if parts.scheme == "http" else 443)
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=authority)

    @staticmethod
    def of_bundle(folder: Path) -> Asker:
        """Ask the peer that runs from this bundle on this machine."""
        # A client that was given an address needs neither keys nor a server.
        from unwalk.peers.identity.credentials import host_name, read_private
        from unwalk.peers.identity.trust import Bundle
        from unwalk.peers.web.http_server import ADDRESS_FILE, TOKEN_FILE

        place = folder / "store" / ADDRESS_FILE
        if not place.is_file():
            raise InvalidInput(f"no peer answers for {folder}; start it first.")
        bundle = Bundle.read(folder)
        return Asker(
            place.read_text(encoding="ascii").strip(),
            read_private(folder / "store" / TOKEN_FILE).decode("ascii").strip(),
            authority=folder / "ca.pem",
            name=host_name(bundle.name, bundle.network.name),
        )

    def submit(self, form: RequestForm) -> RequestView:
        """Hand a request in; the errors are those of :meth:`unwalk.peers.web.views.Desk.submit`."""
        return RequestView(**self._json("POST", "/v1/requests", asdict(form)))

    def offers(self) -> list[Offer]:
        """What a request would cost now, by method."""
        return [Offer(**o) for o in self._json("GET", "/v1/offers")["offers"]]

    def request(self, id: str) -> RequestView:
        """One request."""
        return RequestView(**self._json("GET", f"/v1/requests/{quote(id, safe='')}"))

    def requests(self, after: str | None = None, limit: int = 50) -> list[RequestView]:
        """A page of requests, newest first."""
        further = "" if after is None else f"&after={quote(after, safe='')}"
        page = self._json("GET", f"/v1/requests?limit={limit}{further}")
        return [RequestView(**r) for r in page["requests"]]

    def certificates(self) -> list[CertificateView]:
        """The certificates that this peer has."""
        listed = self._json("GET", "/v1/certificates")["certificates"]
        tuples = ("requests", "pending")
        return [CertificateView(**{**c, **{k: tuple(c[k]) for k in tuples}}) for c in listed]

    def certificate(self, name: str) -> bytes:
        """The bytes of a certificate's file."""
        return self._ask("GET", f"/v1/certificates/{quote(name, safe='')}", None)

    def status(self) -> dict[str, Any]:
        """The overview as JSON."""
        status: dict[str, Any] = self._json("GET", "/v1/status")
        return status

    def _json(self, method: str, path: str, record: Mapping[str, Any] | None = None) -> Any:
        return json.loads(self._ask(method, path, record))

    def _ask(self, method: str, path: str, record: Mapping[str, Any] | None) -> bytes:
        body = None if record is None else json.dumps(record).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        try:
            connection.sock = self._connect()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise InvalidInput(f"the peer at {self.url} does not answer: {error}.") from error
        finally:
            connection.close()
        if answer.status in (200, 202):
            return data
        raise _problem(answer.status, data)

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), TIMEOUT)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._name or self._host)
        except BaseException:
            plain.close()
            raise


def is_loopback(host: str) -> bool:
    """Whether what is sent to a host stays on this machine.

    >>> is_loopback("localhost"), is_loopback("[::1]"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _problem(status: int, data: bytes) -> UnwalkError:
    """The error that the peer's answer stands for."""
    try:
        problem = json.loads(data)
        sentence, unknown = str(problem["error"]), problem.get("unknown")
    except (ValueError, KeyError, TypeError, AttributeError):
        return UnwalkError(f"the peer answered with {status} and no reason.")
    if unknown:
        return UnknownRecords([str(i) for i in unknown])
    return Conflict(sentence) if status == 409 else InvalidInput(sentence)
