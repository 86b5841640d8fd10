"""Runs that were made before there was a version 2 of public streams: ``version_1`` holds two.

``ended`` is a whole run, ``stopped`` what was on disk when the same run was stopped after its
fourth hop.  Their settings, headers and checkpoints say nothing of streams.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.runs.small import small
from unwalk.certificates import read_certificate, verify
from unwalk.core.transcript import Transcript
from unwalk.runs.replay import replay
from unwalk.runs.run import run
from unwalk.runs.store import partial_of
from unwalk.settings.config import to_toml

OLD = Path(__file__).parent / "version_1"
ENDED = OLD / "ended"
REWIND = small(method="rewind", compare=[], streams=1, performance__checkpoint=2.0)


def walked(folder: Path) -> list[object]:
    """Header and hops; other processors may round sums otherwise, which only digests show."""
    transcript = Transcript.read(folder / "transcript.jsonl")
    return [transcript.header, *(replace(hop, digest=None) for hop in transcript.hops)]


def same_model(folder: Path) -> bool:
    mine, theirs = (load_file(place / "model.safetensors") for place in (folder, ENDED))
    return mine.keys() == theirs.keys() and all(
        torch.allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-6) for name in theirs
    )


def test_its_certificate_is_verified_and_its_walk_done_again():
    transcript = Transcript.read(ENDED / "transcript.jsonl")
    raw = (ENDED / "model.safetensors").read_bytes()
    verdict = verify(read_certificate(ENDED / "certificate.json"), transcript, model=raw)
    assert (verdict.problems, verdict.model) == ((), "checked")
    last = f"transcript line {len(transcript.hops) + 1} differs in digest when done again"
    assert replay(ENDED, transcript) in ([], [last])


def test_with_streams_of_version_2_its_walk_is_another(tmp_path):
    shutil.copytree(ENDED, tmp_path / "out")
    (tmp_path / "out" / "config.toml").write_text(to_toml(replace(REWIND, streams=2)))
    (difference,) = replay(tmp_path / "out", Transcript.read(ENDED / "transcript.jsonl"))
    assert "line 1 differs in" in difference
    assert "streams" in difference


def test_the_same_settings_give_the_same_files_as_before(tmp_path):
    written = set(to_toml(REWIND).splitlines())
    assert set((ENDED / "config.toml").read_text().splitlines()) <= written
    run(REWIND, out=tmp_path / "out")
    assert walked(tmp_path / "out") == walked(ENDED)
    assert same_model(tmp_path / "out")


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path):
    out = tmp_path / "out"
    shutil.copytree(OLD / "stopped", partial_of(out))
    lines = (OLD / "stopped" / "walks" / "train.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["hop"] == 4
    run(REWIND, out=out, resume=True)
    assert walked(out) == walked(ENDED)
    assert same_model(out)
