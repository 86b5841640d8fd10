"""Commands that only list or read do not wait for torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import ROOT
from unwalk.peers.provision import make_network

# Each command in a fork of its own, of a process that has imported the command line alone.
PROGRAM = """
import json, os, sys, time
import unwalk.cli

for words in json.loads(sys.argv[1]):
    sys.stdout.flush()
    if os.fork():
        if os.wait()[1]:
            sys.exit(f"{words} failed")
        continue
    sys.argv = ["unwalk", *words]
    out, sys.stdout = sys.stdout, open(os.devnull, "w")
    code = 0
    try:
        unwalk.cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    loaded = sorted({"torch", "grpc", "starlette", "sklearn"} & set(sys.modules))
    line = {"words": words, "code": code, "loaded": loaded, "seconds": time.process_time()}
    print(json.dumps(line), file=out, flush=True)
    os._exit(0)
print(json.dumps({"start": time.process_time()}))
"""


def test_a_listing_loads_no_torch(tmp_path):
    addresses = [f"127.0.0.1:{port}" for port in (7001, 7002, 7003)]
    make_network(tmp_path / "net", name="net", addresses=addresses, settings={})
    status = ["peer", "status", str(tmp_path / "net" / "peer-0")]
    commands = [[], ["methods"], ["tasks"], ["settings"], ["settings", "--task", "heart"], status]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = map(json.loads, done.stdout.splitlines())
    for line in lines:
        words = " ".join(["unwalk", *line["words"]])
        print(f"{words}: {last['start'] + line['seconds']:.2f} s of processor time")
    assert [line["words"] for line in lines] == commands
    assert [line["code"] for line in lines] == [2, 0, 0, 0, 0, 0], done.stderr
    assert [line["loaded"] for line in lines] == [[]] * len(commands)
