"""Does a run again from its configuration, data and secrets, and compares hop by hop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from unwalk.core.errors import InvalidInput
from unwalk.core.transcript import Transcript
from unwalk.runs.assemble import assemble, resolve
from unwalk.runs.config import read_toml
from unwalk.runs.run import Runner
from unwalk.runs.store import CONFIG
from unwalk.tasks import ShardedTask


def replay(run_dir: Path, recorded: Transcript, task: ShardedTask | None = None) -> list[str]:
    """What came out otherwise; empty where every line and the model's bytes are the same."""
    path = run_dir / CONFIG
    if not path.is_file():
        raise InvalidInput(f"{run_dir} has no {CONFIG}; allowed: the folder of a finished run.")
    config = resolve({}, read_toml(path), file_name=str(path))
    assembled, method = assemble(config, task), config.method
    if "release" in recorded.header:  # entered then; doing it again is no new release
        assembled = replace(assembled, releases={method: recorded.header["release"]})
    runner = Runner(assembled)
    trained = runner.walk("train", assembled.training(), None)
    plan = assembled.unlearning(method, trained.outcome.transcript)
    again = runner.walk(method, plan, trained)
    differences = compare_lines(recorded.lines, again.outcome.transcript.lines)
    model = run_dir / "model.safetensors"
    if not differences and model.is_file() and again.saved() != model.read_bytes():
        differences.append("model.safetensors is not the model that the run gives")
    return differences


def compare_lines(recorded: list[str], again: list[str]) -> list[str]:
    """The first line that differs, with the fields that do.

    >>> compare_lines(['{"hop":1,"chain":"a"}'], ['{"hop":2,"chain":"b"}'])
    ['transcript line 1 differs in hop when done again']
    """
    for number, (one, other) in enumerate(zip(recorded, again, strict=False), 1):
        if one != other:
            mine, theirs = json.loads(one), json.loads(other)
            keys = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
            named = [k for k in keys if k != "chain"] or keys
            return [f"transcript line {number} differs in {', '.join(named)} when done again"]
    if len(recorded) != len(again):
        return [f"the transcript has {len(recorded)} lines; done again it has {len(again)}"]
    return []
