"""Seeded trials: five real processes over mutual TLS, one fault at a random instant.

Half of the faults are aimed at the peer that has the token, the others at any peer.

    python -m tests.peers.trials [COUNT]

runs COUNT trials (200) and prints what happened; each must end as an undisturbed walk does.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.peers.harness import Town, check_end, network, town
from unwalk.core.errors import InvalidInput
from unwalk.peers.daemon import committed_log
from unwalk.peers.hoplog import Entry

FAULTS = ["SIGKILL", "SIGSTOP", "cut link"]
PEERS, HOPS = 5, 30
LEASE, CONNECT = 0.6, 0.4
AWAY = (1.0, 3.5)
"""Seconds that a fault lasts: a recovery falls before its end, after it, or together with it."""
PAUSE = 0.01
"""Seconds that each visit takes longer here, so that faults meet visits as well as hand-overs."""


@dataclass(frozen=True)
class Trial:
    """How one trial went.

    ``met``: the walk was under way when the fault came.  ``recovered`` and ``passed_over`` count
    what the committed log says of them; ``dropped`` counts tokens of a lower generation.
    """

    fault: str
    met: bool
    served: tuple[int, ...]
    recovered: int
    passed_over: int
    dropped: int
    seconds: float


def fault_of(seed: int) -> str:
    """Which fault a trial has."""
    return random.Random(seed).choice(FAULTS)


def run_trial(folder: Path, seed: int) -> Trial:
    """One trial; an AssertionError unless it ends with one lineage, whole, and the right bits."""
    rng = random.Random(seed)
    begun = time.monotonic()
    made = network(folder, peers=PEERS, lease=LEASE, connect=CONNECT, train__hops=HOPS)
    fault = rng.choice(FAULTS)
    victim, instant = rng.randrange(PEERS), rng.uniform(0.0, HOPS * (PAUSE + 0.007))
    aimed, step = rng.random() < 0.5, 1 + rng.randrange(PEERS - 1)
    away = rng.choice([0.0, 1.0]) if fault == "SIGKILL" else 1.0
    away *= rng.uniform(*AWAY)
    with town(folder, made, PAUSE) as here:
        for peer in range(PEERS):
            here.start(peer)
        here.until(lambda: furthest(here) >= 1)
        time.sleep(instant)
        states = [here.state(p) for p in range(PEERS)]
        if aimed:  # at whoever has the token, as far as one can see
            victim = next((p for p in range(PEERS) if states[p].get("holding")), victim)
        strike(here, fault, victim, (victim + step) % PEERS, away)
        met = not any(state.get("committed") for state in states)
        here.until(here.finished)
        here.until(lambda: any(whole_log(folder, p) for p in here.processes))
    served = check_end(folder, made, range(PEERS))
    log = next(found for p in range(PEERS) if (found := whole_log(folder, p)))
    return Trial(
        fault,
        met,
        tuple(served),
        sum(e["body"]["kind"] == "recovery" for e in log),
        sum(len(e["body"].get("passed_over", ())) for e in log),
        sum(events(folder, peer).count("dropped") for peer in range(PEERS)),
        time.monotonic() - begun,
    )


def strike(here: Town, fault: str, victim: int, other: int, away: float) -> None:
    """The fault comes, lasts, and goes."""
    if fault == "SIGKILL":
        here.signal(victim, signal.SIGKILL)
        time.sleep(away)
        here.start(victim)
    elif fault == "SIGSTOP":
        here.signal(victim, signal.SIGSTOP)
        time.sleep(away)
        here.signal(victim, signal.SIGCONT)
    else:
        here.cut(victim, other)
        time.sleep(away)
        here.heal(victim, other)


def furthest(here: Town) -> int:
    """How many visits were done, as far as anybody knows."""
    return max(int(here.state(p).get("hop", 0)) for p in here.processes)


def whole_log(folder: Path, peer: int) -> list[Entry]:
    """The committed log of a peer, or nothing if it has not gathered it yet."""
    try:
        return committed_log(folder / f"peer-{peer}")
    except InvalidInput:
        return []


def events(folder: Path, peer: int) -> list[str]:
    """What a peer wrote down."""
    text = (folder / f"peer-{peer}" / "store" / "log.jsonl").read_text()
    return [json.loads(line)["event"] for line in text.splitlines()]


def main(count: int) -> int:
    """Run and tell."""
    done: list[Trial] = []
    failed = []
    for seed in range(count):
        with tempfile.TemporaryDirectory() as place:
            try:
                done.append(run_trial(Path(place) / "net", seed))
            except AssertionError as error:
                failed.append(seed)
                print(f"trial {seed} ({fault_of(seed)}) failed: {str(error)[:2000]}", flush=True)
    print(f"{len(done)} of {count} trials ended as they should")
    for fault in FAULTS:
        these = [t for t in done if t.fault == fault]
        print(
            f"{fault:9} {len(these):4} trials, {sum(t.met for t in these):4} in the middle of the "
            f"walk, {sum(t.recovered > 0 for t in these):4} with a recovery, "
            f"{sum(t.dropped > 0 for t in these):4} with a token dropped, "
            f"{sum(t.passed_over > 0 for t in these):4} with a peer passed over"
        )
    recoveries = Counter(t.recovered for t in done)
    print(f"recoveries in one lineage: {dict(sorted(recoveries.items()))}; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
