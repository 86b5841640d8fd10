"""Token files, metrics and the command line of peers."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from tests.peers.harness import network
from unwalk.cli import app
from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.token import Token
from unwalk.peers.daemon import stop_peer
from unwalk.peers.protocol import codec
from unwalk.peers.status import status
from unwalk.peers.storage.token_files import (
    check_token,
    cut,
    extremes,
    open_token,
    shapes_of,
    token_pieces,
)
from unwalk.peers.telemetry import Journal, Metrics
from unwalk.peers.web.http_server import serve_metrics


def token() -> Token:
    return Token(
        torch.arange(5.0),
        {"mean": torch.tensor(3)},
        moments={"momentum": torch.ones(5)},
        hop=4,
        at=1,
        memory={"visits": 2},
    )


def test_a_token_file_gives_the_token_back(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"".join(token_pieces(token())))
    file = open_token(path, peers=3)
    assert file.token().digest() == token().digest()
    assert Token.from_bytes(path.read_bytes()).digest() == token().digest()
    file.give_back()
    assert file.token().digest() == token().digest(), "it is read from the file again"
    shapes = shapes_of(token())
    check_token(file, shapes)
    with pytest.raises(Corrupt, match="no tensor 'kept/average'"):
        check_token(file, {**shapes, "kept/average": ("F32", (5,))})
    few = {k: v for k, v in shapes.items() if k != "moment/momentum"}
    with pytest.raises(Corrupt, match="no visit here uses"):
        check_token(file, few)
    with pytest.raises(Corrupt, match="allowed"):
        check_token(file, {**shapes, "parameters": ("F64", (5,))})


def safetensors(header: dict[str, object]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "shape",
    [[0, 1 << 47, 1 << 47], [1] * 17, [3] * 100_000, [1 << 48], [-1], [1.5]],
    ids=lambda s: str(s[:3]),
)
def test_sizes_that_no_tensor_has_are_refused_soon(tmp_path, shape):
    """A product of so many sides that it overflows, or takes minutes, is not even begun."""
    path = tmp_path / "t"
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    path.write_bytes(safetensors(header))
    with pytest.raises(Corrupt, match=r"is no (safetensors file|token)"):
        open_token(path, peers=3)


@pytest.mark.parametrize(
    "words",
    ["[" * 100_000, '{"hop": 1%s}' % (400 * "0"), '{"hop": 1%s}' % (5000 * "0")],
    ids=["nested", "401 digits", "5001 digits"],
)
def test_words_of_a_token_that_cannot_be_read_are_refused(tmp_path, words):
    path = tmp_path / "t"
    path.write_bytes(safetensors({"__metadata__": {"unwalk-token": words}}))
    with pytest.raises(Corrupt, match="is no token") as caught:
        open_token(path, peers=3)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "number", ["1" + 400 * "0", "9223372036854775808", "-1" + 5000 * "0", "1e999", "-1e999", "NaN"]
)
def test_a_message_with_a_number_that_fits_nowhere_is_refused(number):
    with pytest.raises(Corrupt, match="not JSON"):
        codec.parse(b'{"a": [%s]}' % number.encode(), 1 << 18)
    assert codec.parse(b'{"a": [-9223372036854775808, 1e308]}', 99)["a"] == [-(1 << 63), 1e308]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:4],
        lambda d: d[:-1],
        lambda d: d + b"x",
        lambda d: (1 << 40).to_bytes(8, "little") + d[8:],
        lambda d: d.replace(b'"shape":[5]', b'"shape":[9]', 1),
        lambda d: d.replace(b'"F32"', b'"F99"', 1),
        lambda d: d.replace(b'\\"hop\\":4', b'\\"hop\\":-'),
        lambda d: d.replace(b'\\"at\\":1', b'\\"at\\":7'),
    ],
)
def test_damaged_token_files_are_refused(tmp_path, damage):
    path = tmp_path / "t"
    path.write_bytes(damage(b"".join(token_pieces(token()))))
    with pytest.raises(Corrupt):
        open_token(path, peers=3)


def test_the_extremes_show_what_is_not_finite():
    assert extremes(torch.full((4,), -3e38)) == pytest.approx((-3e38, -3e38))
    for odd in ([1.0, math.nan], [math.inf, -math.inf]):
        assert not any(map(math.isfinite, extremes(torch.tensor(odd))))


def test_what_a_visit_leaves_is_cut_off_where_others_would_refuse_it(tmp_path):
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.25, -9.0])
    wild = replace(token(), parameters=values, moments={"square": values.clone()})
    assert cut(wild.tensors(), 0.1)
    assert wild.parameters.tolist() == torch.tensor([0.0, 0.1, -0.1, 0.1, -0.1]).tolist()
    assert wild.moments["square"].tolist() == torch.tensor([0.0, 0.1, 0.0, 0.1, 0.0]).tolist()
    path = tmp_path / "t"
    path.write_bytes(b"".join(token_pieces(wild)))
    same = {"buffer/count": torch.tensor(3)}
    check_token(open_token(path, peers=3), shapes_of(wild), 0.1)
    assert not cut({**wild.tensors(), **same}, 0.1), "once is enough"


def test_a_second_moment_below_zero_is_refused(tmp_path):
    """Its root is not a number: the next visit would leave a model of such."""
    path = tmp_path / "t"
    wild = replace(token(), moments={"square": torch.tensor([0.0, -1e-9, 1.0, 2.0, 3.0])})
    path.write_bytes(b"".join(token_pieces(wild)))
    with pytest.raises(Corrupt, match=r"'moment/square' holds -1e-09; allowed: 0 to 7"):
        check_token(open_token(path, peers=3), shapes_of(wild), 7.0)


def test_a_long_header_is_not_read(tmp_path):
    """One of 1 MiB with 18,000 empty tensors took a quarter of a second."""
    path = tmp_path / "t"
    tensors = {f"{n:x}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(999)}
    path.write_bytes(safetensors(tensors))
    with pytest.raises(Corrupt, match="a header of"):
        open_token(path, peers=3, longest=4096)


def test_a_token_says_nothing_besides_its_header(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(
        b"".join(token_pieces(token())).replace(b'"__metadata__":{', b'"__metadata__":{"x":"y",', 1)
    )
    data = bytearray(path.read_bytes())
    data[:8] = (int.from_bytes(data[:8], "little") + 8).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="says more than a token's header"):
        open_token(path, peers=3)


@pytest.mark.parametrize(("value", "right"), [(-7.0, True), (7.5, False), (-1e30, False)])
def test_weights_that_are_too_large_are_refused(tmp_path, value, right):
    path = tmp_path / "t"
    wild = replace(token(), parameters=torch.tensor([0.0, value, 1.0, 2.0, 3.0]))
    path.write_bytes(b"".join(token_pieces(wild)))
    file, shapes = open_token(path, peers=3), shapes_of(wild)
    check_token(file, shapes)
    if right:
        check_token(file, shapes, 7.0)
    else:
        with pytest.raises(Corrupt, match=r"'parameters' holds .*; allowed: -7 to 7"):
            check_token(file, shapes, 7.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("largest", [math.inf, 7.0])
def test_weights_that_are_not_finite_are_refused_whatever_the_limit(tmp_path, value, largest):
    path = tmp_path / "t"
    wild = replace(token(), parameters=torch.tensor([0.0, value, 1.0, 2.0, 3.0]))
    path.write_bytes(b"".join(token_pieces(wild)))
    with pytest.raises(Corrupt, match="'parameters' holds values that are not finite"):
        check_token(open_token(path, peers=3), shapes_of(wild), largest)


def test_metrics_are_served_on_loopback_only():
    metrics = Metrics("r", "p")

    async def main() -> tuple[str, str]:
        with pytest.raises(InvalidInput, match=r"allowed: 127\.0\.0\.1:PORT"):
            await serve_metrics(metrics, "0.0.0.0:9")
        served = await serve_metrics(metrics, "127.0.0.1:0")
        metrics.add("visits_total", 3)
        answers = []
        for what in ("/metrics", "/else"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(f"GET {what} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answers.append((await reader.read()).decode())
            writer.close()
        await served.stop()
        return answers[0], answers[1]

    found, other = asyncio.run(main())
    assert 'unwalk_visits_total{peer="p",run="r"} 3' in found
    assert other.startswith("HTTP/1.1 404")


def test_the_log_is_set_aside_when_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr("unwalk.peers.telemetry.LARGEST_LOG", 200)
    journal = Journal(tmp_path / "log.jsonl", "p")
    for number in range(5):
        journal.write("event", number=number)
    journal.close()
    assert (tmp_path / "log.old.jsonl").exists()
    last = (tmp_path / "log.jsonl").read_text() if (tmp_path / "log.jsonl").exists() else ""
    text = (tmp_path / "log.old.jsonl").read_text() + last
    assert json.loads(text.splitlines()[-1])["number"] == 4


def test_the_command_line_says_what_is_wrong(tmp_path):
    run = CliRunner()
    network(tmp_path / "net", peers=2)
    bundle = tmp_path / "net" / "peer-0"
    shown = run.invoke(app, ["net", "show", str(tmp_path / "net")])
    assert "peer-1" in shown.output
    (bundle / "tls.key").chmod(0o644)
    refused = run.invoke(app, ["peer", "start", str(bundle)])
    assert isinstance(refused.exception, InvalidInput)
    assert "mode 0644; allowed: 0600" in str(refused.exception)
    (bundle / "tls.key").chmod(0o600)
    assert status(bundle)["running"] is False
    assert stop_peer(bundle) is False
    assert "not running" in run.invoke(app, ["peer", "stop", str(bundle)]).output
    log = run.invoke(app, ["peer", "log", str(bundle)])
    assert "no peer was ever started" in str(log.exception)
    nowhere = run.invoke(app, ["peer", "stop", str(bundle / "nowhere")])
    assert "is no folder" in str(nowhere.exception)
    revoked = run.invoke(app, ["net", "revoke", str(tmp_path / "net"), "peer-1", "--chapter=1"])
    assert "revoked certificate: " in revoked.output
    other = tmp_path / "net" / "peer-1"
    (other / "store").mkdir()
    journal = Journal(other / "store" / "log.jsonl", "peer-1")
    journal.write("certificate", reason="it was revoked")
    journal.close()
    told = run.invoke(app, ["peer", "log", str(other)])
    assert "it was revoked" in told.output, "a log can be read when the peer cannot start"
