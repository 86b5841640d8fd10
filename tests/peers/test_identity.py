"""Identities: what is issued, what is refused, and in which words."""

from __future__ import annotations

import base64
import datetime as dt
import json
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from tests.peers.harness import SETTINGS, network
from unwalk.cli import app
from unwalk.core.errors import InvalidInput, Refused
from unwalk.peers import provision
from unwalk.peers.identity import credentials
from unwalk.peers.identity.credentials import Keys, fingerprint_of, request
from unwalk.peers.identity.network_file import Limits, Member, Network
from unwalk.peers.identity.trust import Bundle
from unwalk.peers.protocol.hoplog import sign_entry


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "net"
    network(folder, peers=3)
    return folder


def test_secrets_are_private_and_others_are_refused(made):
    for name in ("tls.key", "signing.key", "noise.secret"):
        path = made / "peer-1" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)
        with pytest.raises(InvalidInput, match=f"{name} has mode 0640; allowed: 0600"):
            Bundle.read(made / "peer-1")
        path.chmod(0o600)
    assert stat.S_IMODE((made / "ca.key").stat().st_mode) == 0o600
    assert Bundle.read(made / "peer-1").index == 1


@pytest.mark.parametrize(
    "name", ["tls.key", "signing.key", "noise.secret", "certificate.pem", "ca.pem", "network.json"]
)
def test_nothing_runs_without_its_files(made, name):
    (made / "peer-0" / name).unlink()
    with pytest.raises(InvalidInput, match=name):
        Bundle.read(made / "peer-0")


@pytest.mark.parametrize("name", ["tls.key", "signing.key", "certificate.pem", "ca.pem"])
def test_somebody_elses_file_is_refused(made, tmp_path, name):
    network(tmp_path / "other", peers=3)
    source = tmp_path / "other" if name == "ca.pem" else made / "peer-2"
    (made / "peer-0" / name).write_bytes((source / name).read_bytes())
    with pytest.raises(InvalidInput):
        Bundle.read(made / "peer-0")


def test_a_certificate_of_another_network_is_refused(made, tmp_path):
    network(tmp_path / "other", peers=3)
    for name in ("tls.key", "signing.key", "certificate.pem"):
        (made / "peer-0" / name).write_bytes((tmp_path / "other/peer-0" / name).read_bytes())
    with pytest.raises(InvalidInput, match="not issued by the CA of network test"):
        Bundle.read(made / "peer-0")


def test_an_expired_certificate_stops_the_peer(made, monkeypatch):
    provision.make_bundle(made, "peer-0", days=1)
    assert Bundle.read(made / "peer-0").index == 0
    later = credentials.now() + dt.timedelta(days=2)
    monkeypatch.setattr("unwalk.peers.identity.trust.now", lambda: later)
    with pytest.raises(InvalidInput, match="certificate of peer-0 is not valid now: it runs from"):
        Bundle.read(made / "peer-0")


def test_a_changed_network_file_is_refused(made):
    path = made / "peer-0" / "network.json"
    record = json.loads(path.read_text())
    record["network"]["peers"][1]["address"] = "evil.example:1"
    path.write_text(json.dumps(record))
    with pytest.raises(InvalidInput, match="not signed by the CA"):
        Bundle.read(made / "peer-0")
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="no network file"):
        Bundle.read(made / "peer-0")


def test_rotated_keys_work_and_the_old_ones_do_not(made):
    old = Bundle.read(made / "peer-1")
    provision.rotate(made, "peer-1", chapter=1)
    new = Bundle.read(made / "peer-1")
    trust = Bundle.read(made / "peer-0").trust()
    assert new.network.version == 2
    assert trust.identity(new.certificate_pem.decode()).peer == "peer-1"
    with pytest.raises(Refused, match="certificate of peer-1 was revoked"):
        trust.identity(old.certificate_pem.decode())
    # What it signed before stays in the log.
    entry = sign_entry("0" * 64, {"kind": "x"}, old.sign, old.certificate_pem.decode())
    assert trust.signer(entry) == 1
    entry = sign_entry("0" * 64, {"kind": "x"}, old.sign, new.certificate_pem.decode())
    with pytest.raises(Refused, match="signature is not peer-1's"):
        trust.signer(entry)
    # A signature has one form, so that nobody can spoil what it stands in.
    entry = sign_entry("0" * 64, {"kind": "x"}, new.sign, new.certificate_pem.decode())
    assert trust.signer(entry) == 1
    with pytest.raises(Refused, match="signature is not peer-1's"):
        trust.signer({**entry, "signature": entry["signature"].upper()})


def test_what_was_signed_before_a_certificate_ended_stays_good(made, monkeypatch):
    provision.make_bundle(made, "peer-1", days=1)
    old = Bundle.read(made / "peer-1")
    trust = Bundle.read(made / "peer-0").trust()
    pem = old.certificate_pem.decode()
    entry = sign_entry("0" * 64, {"kind": "x"}, old.sign, pem)
    for days, words in ((2, "not valid now"), (-2, "not valid now")):
        moved = credentials.now() + dt.timedelta(days=days)
        monkeypatch.setattr("unwalk.peers.identity.trust.now", lambda moved=moved: moved)
        with pytest.raises(Refused, match=words):
            trust.identity(pem)
        if days > 0:
            assert trust.signer(entry) == 1
        else:
            with pytest.raises(Refused, match=words):
                trust.signer(entry)


def test_keys_are_rotated_across_organisations_too(made, tmp_path):
    """A new request with new keys is signed, then all certificates but that one are revoked."""
    run = CliRunner()
    old = Bundle.read(made / "peer-1")
    fresh = tmp_path / "fresh"
    provision.make_request(fresh, "peer-1", "test")
    provision.sign_request(made, fresh / "request.csr", fresh, replace=True)
    words = ["net", "revoke", str(made), "peer-1", "--keep-latest"]
    unknown = run.invoke(app, words)
    assert "cannot be known which chapter is next. Give --chapter" in str(unknown.exception)
    done = run.invoke(app, [*words, "--chapter", "1"])
    assert done.exit_code == 0, done.output
    (fresh / "network.json").write_bytes((made / "network.json").read_bytes())
    new = Bundle.read(fresh)
    trust = Bundle.read(made / "peer-0").trust()
    assert trust.identity(new.certificate_pem.decode()).peer == "peer-1"
    with pytest.raises(Refused, match="certificate of peer-1 was revoked"):
        trust.identity(old.certificate_pem.decode())
    again = run.invoke(app, ["net", "revoke", str(made), "peer-2", "--keep-latest"])
    assert "has no certificate but its newest" in str(again.exception)


def test_limits_stand_in_the_network_file(tmp_path):
    run = CliRunner()
    words = ["net", "init", "--no-bundles", *(f"--address=h{n}:7000" for n in range(2))]
    words += [f"--set={k}={v}" for k, v in SETTINGS.items()]
    given = ["--lease=5", "--limit=messages=50", "--limit=token_bytes=2048"]
    made = run.invoke(app, [*words, str(tmp_path / "net"), *given])
    assert made.exit_code == 0, made.output
    limits = provision.network_of(tmp_path / "net")[0].limits
    assert (limits.lease, limits.messages, limits.token_bytes) == (5.0, 50.0, 2048)
    shown = run.invoke(app, ["net", "show", str(tmp_path / "net")]).output
    assert "limits.messages = 50.0" in shown
    large = run.invoke(app, [*words, str(tmp_path / "n"), "--set=data.features=400", *given])
    assert "limits.token_bytes is 2048; allowed: " in str(large.exception)
    assert not (tmp_path / "n").exists()
    odd = ("rate=inf", "rate=1e-300", "visit=inf", "connect=1e9", "weight=inf", "messages=nan")
    for wrong in ("speed=3", "messages", "messages=fast", "token_bytes=1.5", "stop=0", *odd):
        refused = run.invoke(app, [*words, str(tmp_path / wrong), f"--limit={wrong}"])
        assert isinstance(refused.exception, InvalidInput), wrong
        assert "allowed" in str(refused.exception), wrong
        assert not (tmp_path / wrong).exists(), wrong
    with pytest.raises(InvalidInput, match=r"^limits.rate is 1 bytes .* allowed: 772 or more\.$"):
        Limits(rate=1.0).with_lease_for(10**9)


def test_a_revoked_peer_does_not_start(made):
    provision.revoke(made, "peer-2", chapter=1)
    with pytest.raises(InvalidInput, match="certificate of peer-2 was revoked"):
        Bundle.read(made / "peer-2")
    assert Bundle.read(made / "peer-0").name == "peer-0"
    with pytest.raises(InvalidInput, match="no peer of network"):
        provision.revoke(made, "peer-9")


def test_across_organisations_private_keys_never_travel(tmp_path):
    run = CliRunner()
    base = str(tmp_path / "net")
    settings = [f"--set={k}={v}" for k, v in SETTINGS.items()]
    addresses = [f"--address=127.0.0.1:{7000 + n}" for n in range(2)]
    made = run.invoke(
        app, ["net", "init", base, "--no-bundles", "--name=abc", *addresses, *settings]
    )
    assert made.exit_code == 0, made.output
    bundle = tmp_path / "hospital"
    asked = run.invoke(app, ["peer", "csr", str(bundle), "--peer=peer-1", "--network=abc"])
    assert asked.exit_code == 0, asked.output
    out = tmp_path / "answer"
    signed = run.invoke(app, ["net", "sign", base, str(bundle / "request.csr"), "--out", str(out)])
    assert signed.exit_code == 0, signed.output
    assert sorted(p.name for p in out.iterdir()) == ["ca.pem", "certificate.pem", "network.json"]
    (keys,) = [line for line in asked.output.splitlines() if "has keys: " in line]
    assert keys in signed.output.splitlines(), "both sides see the same fingerprint"
    for path in out.iterdir():
        (bundle / path.name).write_bytes(path.read_bytes())
    assert Bundle.read(bundle).index == 1
    told = run.invoke(app, ["peer", "status", str(bundle), "--json"])
    assert json.loads(told.output)["running"] is False


def test_a_second_certificate_for_a_name_has_to_be_asked_for(made, tmp_path):
    """Whoever gets one speaks and votes under that name."""
    run = CliRunner()
    (had,) = provision.certificates_of(made, "peer-1")
    stranger, out = tmp_path / "stranger", tmp_path / "answer"
    _, keys = provision.make_request(stranger, "peer-1", "test")
    command = ["net", "sign", str(made), str(stranger / "request.csr"), "--out", str(out)]
    refused = run.invoke(app, command)
    assert isinstance(refused.exception, InvalidInput)
    said = str(refused.exception)
    assert fingerprint_of(had) in said
    assert keys in said
    assert "add --replace" in said
    assert not out.exists()
    assert len(provision.certificates_of(made, "peer-1")) == 1, "nothing was issued"
    signed = run.invoke(app, [*command, "--replace"])
    assert signed.exit_code == 0, signed.output
    assert f"peer-1 had keys: {fingerprint_of(had)}" in signed.output
    assert f"peer-1 has keys: {keys}" in signed.output
    assert "--keep-latest" in signed.output
    provision.revoke(made, "peer-1", chapter=1)
    again = run.invoke(app, command)
    assert again.exit_code == 0, "a revoked certificate is none"


@pytest.mark.parametrize("days", [0, -1.0])
def test_certificates_last_for_some_time(made, days):
    with pytest.raises(InvalidInput, match="days is"):
        provision.make_bundle(made, "peer-0", days=days)


def test_a_request_must_be_for_a_peer_and_prove_its_signing_key(made):
    _, authority = provision.network_of(made)
    names = ("peer-0", "peer-1")
    keys = Keys.new()
    with pytest.raises(InvalidInput, match="request is for 'stranger'"):
        authority.issue(request(keys, "stranger", "test"), names, "test")
    with pytest.raises(InvalidInput, match="no certificate request"):
        authority.issue(b"hello", names, "test")
    with pytest.raises(InvalidInput, match="request is not for network test"):
        authority.issue(request(keys, "peer-0", "other"), names, "test")

    class Liar:
        """Claims another's signing key."""

        def sign(self, data: bytes) -> bytes:
            return keys.signing.sign(b"something else")

        def public_key(self):
            return keys.signing.public_key()

    with pytest.raises(InvalidInput, match="does not prove"):
        authority.issue(request(Keys(keys.tls, Liar()), "peer-0", "test"), names, "test")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "Bad Name"}, "network name is 'Bad Name'"),
        ({"peers": ()}, "the network has 0 peers"),
        ({"peers": (Member("a", "h:1"), Member("a", "h:2"))}, "same name"),
        ({"peers": (Member("a", "h:1"), Member("b", "h:1"))}, "same address"),
        ({"noise": "some"}, "noise is 'some'"),
        ({"run": 0}, "run is 0"),
    ],
)
def test_networks_that_cannot_be(change, words):
    good = {"name": "n", "peers": (Member("a", "h:1"), Member("b", "h:2")), "settings": {}}
    assert Network(**good).index("b") == 1
    with pytest.raises(InvalidInput, match=words):
        Network(**{**good, **change})


@pytest.mark.parametrize("address", ["nowhere", "h:0", "h:70000", "h:x", "a b:1", ":1"])
def test_addresses_that_cannot_be(address):
    with pytest.raises(InvalidInput, match="allowed: HOST:PORT"):
        Member("a", address)


def test_a_certificate_that_others_keep_has_one_form(made):
    """Padded ones filled memory and made messages of others too long; odd ones ended peers."""
    bundle = Bundle.read(made / "peer-0")
    trust, pem = bundle.trust(), bundle.certificate_pem.decode()
    assert trust.identity(pem).peer == "peer-0"
    with pytest.raises(Refused, match="text around it"):
        trust.identity("some words\n" + pem)
    with pytest.raises(Refused, match="text around it"):
        trust.identity(pem + pem)
    for space in ("\n", " ", "\x0b" * 3000, "\x85", "\u2003"):
        with pytest.raises(Refused, match="text around it"):
            trust.identity(pem + space)
        with pytest.raises(Refused, match="text around it"):
            trust.identity(space + pem)
    with pytest.raises(Refused, match="text around it"):
        trust.identity(pem.strip())
    with pytest.raises(Refused, match="characters; allowed: up to 4096"):
        trust.identity(" " * 300_000 + pem)
    raw = bytearray(x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER))
    place = raw.find(bytes([0xA0, 3, 2, 1, 2]))
    raw[place + 4] = 1  # a version that there is not: the library raises a bare Exception
    body = base64.encodebytes(bytes(raw)).decode()
    odd = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
    with pytest.raises(Refused, match="no certificate"):
        trust.identity(odd)
    assert len(trust._known) == 1
