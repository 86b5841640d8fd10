"""``unwalk doctor`` says what is here without loading torch, and what noise would be worth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unwalk.cli import app
from unwalk.tasks import official


def told(*words: str) -> dict[str, dict[str, tuple[str, str]]]:
    done = CliRunner().invoke(app, ["doctor", "--json", *words])
    assert done.exit_code == 0, done.output
    sections = json.loads(done.output)
    return {
        title: {row["what"]: (row["found"], row["means"]) for row in rows}
        for title, rows in sections.items()
    }


def secret(folder: Path, count: int = 32, mode: int = 0o600) -> tuple[str, ...]:
    path = folder / "noise.secret"
    path.write_bytes(bytes(count))
    path.chmod(mode)
    return "--set", "noise.source=secret", "--set", f"noise.secret_file={path}"


def test_it_loads_no_torch():
    program = (
        "import sys; from typer.testing import CliRunner; from unwalk.cli import app;"
        "done = CliRunner().invoke(app, ['doctor']); assert done.exit_code == 0, done.output;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_noise_from_a_known_seed_certifies_nothing():
    found = told()
    assert found["noise"]["source"][0] == "simulated"
    assert found["a certificate from here"]["certified"][0] == "rehearsal only"
    assert found["a certificate from here"]["exact"][0] == "yes"


def test_noise_from_a_secret_does(tmp_path):
    found = told(*secret(tmp_path))
    assert found["noise"]["source"][0] == "secret"
    assert found["a certificate from here"]["certified"][0] == "yes"


def test_settings_of_a_file_are_looked_at(tmp_path):
    _, _, _, second = secret(tmp_path)
    path = second.partition("=")[2]
    (tmp_path / "run.toml").write_text(f'[noise]\nsource = "secret"\nsecret_file = "{path}"\n')
    assert told(str(tmp_path / "run.toml"))["noise"]["source"][0] == "secret"


@pytest.mark.parametrize(
    ("count", "mode", "why"), [(31, 0o600, "31 bytes"), (32, 0o644, "mode 0644")]
)
def test_a_secret_that_a_run_would_refuse_is_none(tmp_path, count, mode, why):
    found = told(*secret(tmp_path, count, mode))
    state, meaning = found["noise"]["source"]
    assert state == "secret, not usable"
    assert why in meaning
    assert found["a certificate from here"]["certified"][0] == "rehearsal only"


def test_data_are_found_by_their_files(tmp_path, monkeypatch):
    monkeypatch.setenv("UNWALK_DATA", str(tmp_path))
    assert {told()["data"][name][0] for name in official.DATASETS} == {"missing"}
    for one in official.DATASETS["heart"].files:
        place = tmp_path / one.name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(bytes(one.size))
    assert told()["data"]["heart"][0] == "here"
    assert told()["data"]["a9a"][0] == "missing"
