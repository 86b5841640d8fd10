"""The systemd unit and the container file fit the package and its command line."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from unwalk.cli import app
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.provision import make_network
from unwalk.peers.transport.wire import CONNECTIONS

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "examples" / "unwalk-peer.service"
CONTAINER = ROOT / "examples" / "Containerfile"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def instructions() -> dict[str, list[str]]:
    """Instructions of the container file with their arguments."""
    text = CONTAINER.read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest.strip())
    return found


def known_options() -> set[str]:
    shown = CliRunner().invoke(app, ["peer", "start", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    return set(re.findall(r"--[a-z]+", re.sub(r"\x1b\[[0-9;]*m", "", shown.output)))


def test_the_unit_starts_a_peer_in_its_bundle():
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "unwalk"
    assert words[:2] == ["peer", "start"]
    assert service["ReadWritePaths"] == words[2]
    options = {w.partition("=")[0] for w in words if w.startswith("--")}
    assert options <= known_options()
    assert service["ExecReload"].split()[1] == "-HUP"


def test_the_unit_gives_a_peer_time_to_hand_over_and_does_not_repeat_what_a_person_must_mend():
    service = unit()["Service"]
    assert service["KillSignal"] == "SIGTERM"
    assert float(service["TimeoutStopSec"]) > Limits().stop
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_the_unit_sets_limits_within_which_all_connections_have_room():
    service = unit()["Service"]
    assert int(service["LimitNOFILE"]) // 4 >= CONNECTIONS
    assert {"MemoryHigh", "MemoryMax", "TasksMax"} <= set(service)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    copy = tmp_path / UNIT.name
    program = shlex.split(unit()["Service"]["ExecStart"])[0]
    copy.write_text(UNIT.read_text().replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_container_has_all_that_the_package_is_built_from():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = [name for line in instructions()["COPY"] for name in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    needed = {"pyproject.toml", "src", project["readme"], *project["license-files"]}
    assert needed <= set(copied)
    (install,) = (line for line in instructions()["RUN"] if "pip install" in line)
    constraints = re.search(r"-c (\S+)", install)
    assert constraints
    assert constraints[1] in copied
    extras = Requirement("unwalk" + re.search(r"'\.(\[\w+\])'", install)[1]).extras
    assert extras == {"peers"}
    assert extras <= set(project["optional-dependencies"])
    version = re.search(r"python:(\d+\.\d+)", instructions()["FROM"][0])
    assert version
    assert SpecifierSet(project["requires-python"]).contains(version[1])


def test_the_container_starts_a_peer_in_its_volume():
    found = instructions()
    (command,) = map(json.loads, found["ENTRYPOINT"])
    assert command[:3] == ["unwalk", "peer", "start"]
    assert found["VOLUME"] == command[3:]
    assert found["STOPSIGNAL"] == ["SIGTERM"]
    assert found["USER"][0] not in ("root", "0")
    assert "--listen" in CONTAINER.read_text()
    assert '--user "$(stat -c %u:%g network/peer-0)"' in CONTAINER.read_text()


def test_a_bundle_is_refused_to_anybody_but_its_owner(tmp_path):
    """Why the container runs as the owner of the bundle: nobody else can read its keys."""
    addresses = [f"127.0.0.1:{port}" for port in (7001, 7002)]
    make_network(tmp_path / "net", name="net", addresses=addresses, settings={})
    bundle = tmp_path / "net" / "peer-0"
    owner = bundle.stat().st_uid
    for name in ("tls.key", "signing.key", "noise.secret"):
        found = (bundle / name).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (owner, 0o600)
    assert "--listen" in known_options()
