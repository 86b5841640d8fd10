"""Three peers, one of which has a small disk that is filled and emptied again.

    unshare -rm python -m tests.peers.full_disk FOLDER [HOPS]

The disk is a file system in memory, which only this process and its children see.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.peers.harness import Town, check_end, network, town
from tests.peers.trials import events, furthest

SIZE = 16 << 20
FULL = 1


def fill(path: Path, seconds: float) -> None:
    """Take every byte that there is, and that becomes free."""
    end = time.monotonic() + seconds
    with path.open("ab", buffering=0) as file:
        while time.monotonic() < end:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
            time.sleep(0.05)


def main(folder: Path, hops: int) -> None:
    made = network(folder, peers=3, lease=0.8, train__hops=hops)
    store = folder / f"peer-{FULL}" / "store"
    store.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "none", str(store)], check=True
    )
    with town(folder, made, pause=0.02) as here:
        for peer in range(3):
            here.start(peer)
        here.until(lambda: furthest(here) >= 5)
        fill(store / "filler", 1.5)
        assert here.state(FULL)["disk"] == "full", here.state(FULL)
        others_end(here)
        assert here.processes[FULL].is_alive(), "it stays, and says why it takes nothing"
        assert here.state(FULL)["disk"] == "full"
        (store / "filler").unlink()
        here.until(here.finished, timeout=30.0)
        here.until(lambda: "disk has room again" in events(folder, FULL), timeout=10.0)
        assert here.state(FULL)["disk"] == "ok"
    served = check_end(folder, made, range(3))
    passed = [e for peer in (0, 2) for e in lines(folder, peer) if e["event"] == "passed over"]
    found = {
        "served": served,
        "recovered": sum(events(folder, peer).count("recovered") for peer in range(3)),
        "passed over": sum("disk of this peer is full" in str(e["why"]) for e in passed),
    }
    print(json.dumps(found))


def others_end(here: Town) -> None:
    """The others go on without it."""
    here.until(lambda: all(here.state(p).get("model") for p in (0, 2)), timeout=30.0)


def lines(folder: Path, peer: int) -> list[dict[str, object]]:
    text = (folder / f"peer-{peer}" / "store" / "log.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40)
