"""The endpoint under strain: other addresses, odd heads, slow and silent and greedy clients."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.peers.floods import descriptors, no_descriptors
from tests.peers.memory_desk import MemoryDesk, Served, ask, sentence, serving
from unwalk.core.errors import InvalidInput
from unwalk.peers.forgetting import request_form
from unwalk.peers.identity.credentials import host_name
from unwalk.peers.provision import make_network
from unwalk.peers.telemetry import Journal
from unwalk.peers.web import operations
from unwalk.peers.web.answers import Problem
from unwalk.peers.web.client import Asker
from unwalk.peers.web.connections import HttpLimits, parse_head
from unwalk.peers.web.http_server import HttpDesk
from unwalk.peers.web.routes import page_file


def head_of(served: Served, method: str, path: str, *lines: str) -> bytes:
    """The head of a question with the token."""
    known = ["Host: localhost", f"Authorization: Bearer {served.token}"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *known, *lines, "", ""]).encode()


def until(done: Callable[[], bool]) -> None:
    """Wait for something that happens in the endpoint's thread."""
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def watch(served: Served) -> list[float | None]:
    """A list that grows whenever the endpoint's loop waits."""
    waits: list[float | None] = []
    select = served.loop._selector.select  # type: ignore[attr-defined]

    def watched(timeout: float | None = None) -> Any:
        waits.append(timeout)
        return select(timeout)

    served.loop._selector.select = watched  # type: ignore[attr-defined]
    return waits


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(MemoryDesk(), tmp_path_factory.mktemp("peer")) as found:
        yield found


def test_an_oversized_body_is_not_read(served):
    body = b" " * (operations.BODY_BYTES + 1)
    code, found, _ = ask(served, "POST", "/v1/requests", body=body)
    assert code == 413
    assert str(operations.BODY_BYTES) in sentence(found)
    start = time.monotonic()
    answer = served.raw(head_of(served, "POST", "/v1/requests", "Content-Length: 999999999999"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert time.monotonic() - start < 9


def test_the_token_file_is_private_and_stays(tmp_path):
    with serving(MemoryDesk(), tmp_path) as served:
        path = tmp_path / "http.token"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(served.token) >= 43
        first = served.token
        address = tmp_path / "http.address"
        assert address.read_text().strip() == served.url
    assert not address.exists()
    with serving(MemoryDesk(), tmp_path) as served:
        assert served.token == first
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="mode 0644"):
        HttpDesk(MemoryDesk(), "127.0.0.1:0", path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(InvalidInput, match="holds no token"):
        HttpDesk(MemoryDesk(), "127.0.0.1:0", path)


@pytest.mark.parametrize("address", ["0.0.0.0:80", "10.1.2.3:80", "example.org:80", "[::]:80"])
def test_other_addresses_need_the_bundle(tmp_path, address):
    with pytest.raises(InvalidInput, match="others can reach"):
        HttpDesk(MemoryDesk(), address, tmp_path / "http.token")
    with pytest.raises(InvalidInput, match="cannot be used for TLS"):
        HttpDesk(MemoryDesk(), address, tmp_path / "http.token", bundle=tmp_path)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:99999", "", "/socket", ":80"])
def test_what_is_no_address_is_refused(tmp_path, address):
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        HttpDesk(MemoryDesk(), address, tmp_path / "http.token")


def test_a_taken_port_is_said(served, tmp_path):
    taken = HttpDesk(MemoryDesk(), f"127.0.0.1:{served.place[1]}", tmp_path / "http.token")
    with pytest.raises(InvalidInput, match="cannot be served"):
        asyncio.run(taken.start())


def a_bundle(folder: Path) -> Path:
    make_network(
        folder / "net",
        name="trial",
        addresses=["127.0.0.1:7440", "127.0.0.1:7441"],
        settings={"task": "blobs", "forget.kind": "nothing"},
    )
    bundle = folder / "net" / "peer-0"
    (bundle / "store").mkdir(exist_ok=True)
    return bundle


def test_other_addresses_speak_tls_with_the_peers_certificate(tmp_path):
    bundle = a_bundle(tmp_path)
    with serving(MemoryDesk(), bundle / "store", address="0.0.0.0:0", bundle=bundle) as served:
        assert served.url.startswith("https://")
        asker = Asker.of_bundle(bundle)
        assert asker.submit(request_form.RequestForm("a", ("r-1",))).stage == "waiting"
        assert asker.status()["peer"] == "peer-0"
        port = served.place[1]
        stranger = Asker(
            f"https://127.0.0.1:{port}/", served.token, name="peer-1.trial.unwalk.invalid"
        )
        with pytest.raises(InvalidInput, match="does not answer"):
            stranger.status()
        other = Asker(
            f"https://127.0.0.1:{port}/",
            served.token,
            authority=bundle / "ca.pem",
            name=host_name("peer-1", "trial"),
        )
        with pytest.raises(InvalidInput, match="does not answer"):
            other.status()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", port), 5) as plain,
            old.wrap_socket(plain) as secure,
        ):
            assert secure.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /#x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + 2 * b"Content-Length: 1\r\n" + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + 2 * b"Authorization: x\r\n" + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: \x01\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 20_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=range(24),
)  # fmt: skip
def test_a_head_that_is_not_plain_is_refused(served, data, code):
    head, _, body = served.raw(data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % code)
    assert sentence(json.loads(body))


@pytest.mark.parametrize("version", ["1.2", "2.0", "0.9"])
def test_a_head_of_another_version_raises_nothing(served, version):
    raised: list[dict[str, Any]] = []
    served.loop.set_exception_handler(lambda _loop, context: raised.append(context))
    answer = served.raw(f"HEAD / HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
    until(lambda: not served.http.connections.open)
    ask(served, "GET", "/v1/status")
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert not raised


def test_an_answer_that_is_no_http_ends_its_connection_only(tmp_path):
    raised: list[dict[str, Any]] = []

    async def wrong(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"two"})

    with serving(MemoryDesk(), tmp_path) as served:
        served.loop.set_exception_handler(lambda _loop, context: raised.append(context))
        right, served.http.connections.app = served.http.connections.app, wrong
        with suppress(ConnectionResetError):
            served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served.http.connections.app = right
        assert ask(served, "GET", "/v1/status")[0] == 200
    assert not raised


def test_two_questions_in_one_connection_get_one_answer(served):
    one = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert served.raw(one + one).count(b"HTTP/1.1 ") == 1


def test_post_needs_its_length_and_its_type(served):
    assert served.raw(head_of(served, "POST", "/v1/requests")).startswith(b"HTTP/1.1 411 ")
    code, found, _ = ask(served, "POST", "/v1/requests", body=b"{}", Content_Type="text/plain")
    assert code == 415
    assert "'text/plain'" in sentence(found)


def test_a_client_that_waits_for_its_turn_gets_it(served):
    body = json.dumps({"id": "expect", "records": ["r-50"]}).encode()
    said = (
        f"Content-Length: {len(body)}",
        "Expect: 100-continue",
        "Content-Type: application/json",
    )
    with socket.create_connection(served.place, 5) as connection:
        connection.sendall(head_of(served, "POST", "/v1/requests", *said))
        assert connection.recv(1 << 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1 << 10).startswith(b"HTTP/1.1 202 ")


def test_slow_heads_and_bodies_end_in_time(tmp_path):
    limits = HttpLimits(read=0.3)
    with serving(MemoryDesk(), tmp_path, limits=limits) as served:
        post = head_of(served, "POST", "/v1/requests", "Content-Length: 10") + b"abc"
        for data in (b"", b"GET / HTTP/1.1\r\n", post):
            start = time.monotonic()
            answer = served.raw(data)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert time.monotonic() - start < 8
        with socket.create_connection(served.place, 5) as drip:
            start = time.monotonic()
            with pytest.raises(OSError, match=r".*"):  # noqa: PT012
                for letter in b"GET / HTTP/1.1\r\nHost: localhost\r\n" * 99:
                    drip.sendall(bytes([letter]))
                    time.sleep(0.02)
            assert time.monotonic() - start < 9
        assert served.desk.submitted == 0


def test_connections_that_say_nothing_keep_nobody_out(tmp_path):
    limits = HttpLimits(connections=8, read=30.0)
    with serving(MemoryDesk(), tmp_path, limits=limits) as served:
        silent = [socket.create_connection(served.place, 5) for _ in range(40)]
        for connection in silent[:20]:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(20):
                assert ask(served, "GET", "/v1/status")[0] == 200
        finally:
            for connection in silent:
                connection.close()


@pytest.mark.parametrize("answered", [False, True])
def test_connections_count_from_before_tls_until_the_other_side_has_gone(tmp_path, answered):
    bundle, most, count = a_bundle(tmp_path), 8, 24
    limits = HttpLimits(connections=most, read=30.0, write=30.0)
    tls = ssl.create_default_context(cafile=bundle / "ca.pem")
    with (
        serving(
            MemoryDesk(), bundle / "store", address="0.0.0.0:0", bundle=bundle, limits=limits
        ) as served,
        ExitStack() as kept,
    ):
        before = descriptors(os.getpid())
        for _ in range(count):
            one = kept.enter_context(socket.create_connection(served.place, 5))
            if answered:
                name = host_name("peer-0", "trial")
                one = kept.enter_context(tls.wrap_socket(one, server_hostname=name))
                one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while one.recv(1 << 16):
                    pass
        until(lambda: descriptors(os.getpid()) - before <= count + most)
        assert Asker.of_bundle(bundle).status()["peer"] == "peer-0"


def test_without_descriptors_connections_wait_and_nothing_is_busy(tmp_path):
    raised: list[dict[str, Any]] = []
    with serving(MemoryDesk(), tmp_path) as served, socket.socket() as one:
        served.loop.set_exception_handler(lambda _loop, context: raised.append(context))
        waits = watch(served)
        one.settimeout(5)
        with no_descriptors():
            one.connect(served.place)
            one.sendall(head_of(served, "GET", "/v1/status"))
            time.sleep(0.5)
        assert len(waits) < 50
        assert one.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
    assert not raised


def test_without_descriptors_questions_that_came_in_are_refused_for_a_while(tmp_path):
    """Their connections are open already; what they ask for lies in files."""
    desk: Any = MemoryDesk()
    file: Path = tmp_path / "certificate.json"
    file.write_text("{}")

    def certificate(name: str) -> bytes:
        return file.read_bytes()

    async def evidence(name: str) -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read.") from error

    desk.certificate, desk.evidence = certificate, evidence
    paths = ("/", "/style.css", "/v1/certificates/one", "/v1/certificates/one/files")
    page_file.cache_clear()
    with serving(desk, tmp_path) as served, ExitStack() as kept:
        questions = [
            (kept.enter_context(socket.create_connection(served.place, 5)), p) for p in paths
        ]
        until(lambda: len(served.http.connections.open) == len(questions))
        with no_descriptors():
            for one, path in questions:
                one.sendall(head_of(served, "GET", path))
                head, _, body = received(one).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 "), path
                assert b"\r\nretry-after: " in head.lower()
                assert "ulimit -n" in json.loads(body)["error"]
        for path in paths:
            assert ask(served, "GET", path)[0] == 200


def received(one: socket.socket) -> bytes:
    """All that comes until the other side has gone."""
    found = b""
    while data := one.recv(1 << 16):
        found += data
    return found


def test_a_reader_that_does_not_read_keeps_nobody_out(tmp_path):
    desk = MemoryDesk()
    huge = b"x" * (32 << 20)
    desk.certificate = lambda name: huge  # type: ignore[method-assign]
    with serving(desk, tmp_path, limits=HttpLimits(write=0.4, connections=4)) as served:
        lazy = []
        for _ in range(4):
            connection = socket.create_connection(served.place, 5)
            connection.sendall(head_of(served, "GET", "/v1/certificates/a"))
            lazy.append(connection)
        until(lambda: len(served.http.connections.open) == 4)
        until(lambda: not served.http.connections.open)
        assert ask(served, "GET", "/v1/status")[0] == 200
        for connection in lazy:
            got = 0
            with suppress(ConnectionResetError):
                while piece := connection.recv(1 << 20):
                    got += len(piece)
            connection.close()
            assert got < len(huge), "what nobody read was kept for them"


def test_many_questions_are_slowed_down_and_guessers_slow_only_guessers(tmp_path):
    with serving(MemoryDesk(), tmp_path, limits=HttpLimits(rate=5.0, anonymous=1.0)) as served:
        served.http.gate.clock = lambda: 100.0
        wrong = [ask(served, "GET", "/v1/status", token="x")[0] for _ in range(6)]
        assert wrong == [401] * 2 + [429] * 4
        right = [ask(served, "GET", "/v1/status") for _ in range(13)]
        assert [answer[0] for answer in right] == [200] * 10 + [429] * 3
        assert right[-1][2]["retry-after"] == "1"
        served.http.gate.clock = lambda: 101.0
        assert [ask(served, "GET", "/v1/status")[0] for _ in range(6)] == [200] * 5 + [429]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"no question\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
        (b"HEAD / HTTP/1.2\r\nHost: localhost\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    ],
    ids=lambda given: str(given) if isinstance(given, int) else "",
)
def test_what_is_no_question_counts_as_one_without_the_token(tmp_path, data, code):
    said: list[dict[str, Any]] = []
    limits, journal = HttpLimits(anonymous=1.0), Journal(None, "peer-0", [said.append])
    with serving(MemoryDesk(), tmp_path, limits=limits, journal=journal) as served:
        served.http.gate.clock = lambda: 100.0
        codes = [int(served.raw(data).split()[1]) for _ in range(4)]
        assert codes == [code] * 2 + [429] * 2
        assert ask(served, "GET", "/", token=None)[0] == 429
        assert ask(served, "GET", "/v1/status")[0] == 200, "who has the token is not slowed down"
    refused = [line for line in said if line["event"] == "http refused"]
    assert [line["status"] for line in refused] == [code], "one line a second"


def test_stopping_ends_open_connections(tmp_path):
    with serving(MemoryDesk(), tmp_path) as served:
        open_one = socket.create_connection(served.place, 5)
        ask(served, "GET", "/v1/status")
        start = time.monotonic()
    assert time.monotonic() - start < 8
    assert open_one.recv(10) == b""
    open_one.close()


def test_an_idle_endpoint_does_nothing(tmp_path):
    with serving(MemoryDesk(), tmp_path) as served:
        ask(served, "GET", "/v1/status")
        time.sleep(0.3)
        waits = watch(served)
        time.sleep(0.5)
        assert len(waits) <= 1


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=300)
def test_any_head_is_read_or_refused(data, prefixed):
    code, found = 0, None
    try:
        head = b"GET / HTTP/1.1\r\nHost: a\r\n" + data if prefixed else data
        found = parse_head(head + b"\r\n\r\n", h11.Connection(h11.SERVER))
    except Problem as problem:
        code = problem.status_code
    if found is None:
        assert code in (400, 431, 505)
    else:
        assert found["path"].startswith("/")
        assert dict(found["headers"])[b"host"] is not None
