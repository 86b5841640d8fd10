"""The cost model of ``docs/scaling.md``: formulas, and the tables that they give.

Constants come from ``results/scale.json``, which ``benchmarks/scale.py`` measures; a link between
peers is assumed (:class:`Link`).  Limits are those of the code itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unwalk.certificates import document
from unwalk.core import transcript
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.protocol.codec import LONGEST_LINEAGE
from unwalk.peers.transport.wire import CHUNK, CONNECTIONS, MESSAGE

PEERS = tuple(10**k for k in range(2, 7))
PARAMETERS = tuple(10**k for k in range(5, 11))
SHOWN = (10**5, 10**7, 10**10)
"""Models whose deletions are timed in a table."""
DEGREE = 4
SIZE = 4
"""Bytes of a parameter."""
RECORDS = 320
"""Records of a visit: ten steps of 32."""
AFTER_SEAL = 100
"""Hops after a seal (T_u of the paper)."""
DECISIONS = 2
"""Decisions of a deletion: which chapter comes next, and how its walk ended."""
Measured = Mapping[str, Any]


@dataclass(frozen=True)
class Link:
    """What is assumed of the line between two peers: seconds to and fro, bytes a second."""

    round_trip: float = 0.02
    bandwidth: float = 125e6

    @property
    def speed(self) -> float:
        """Bytes a second of a token: a piece is asked for once the one before has arrived."""
        return min(self.bandwidth, CHUNK / self.round_trip)


def leaving(graph: str) -> float:
    """Share of a walk's visits that are at fresh places, as it were, in the limit of many peers.

    On a random regular graph of degree d a walk comes back to where it was so often that it meets
    new peers as one on the complete graph with (d - 2)/(d - 1) of its hops (Cooper and Frieze,
    *The cover time of random regular graphs*, 2005).
    """
    return 1.0 if graph == "complete" else (DEGREE - 2) / (DEGREE - 1)


def visited(peers: int, hops: float, graph: str) -> float:
    """Share of the peers that a walk has met: 1 - exp(-a T / N)."""
    return -math.expm1(-leaving(graph) * hops / peers)


def hops_to_visit(peers: int, share: float, graph: str) -> float:
    """Hops until so many of the peers were met: N ln(1 / (1 - share)) / a."""
    return -peers * math.log1p(-share) / leaving(graph)


def hops_to_cover(peers: int, graph: str) -> float:
    """Hops until nearly surely all were met, in the mean: N (ln N + 0.577) / a."""
    return peers * (math.log(peers) + 0.5772156649) / leaving(graph)


def cover_spread(peers: int, graph: str) -> float:
    """Standard deviation of the hops until all were met, which follow Gumbel's law."""
    return math.pi / math.sqrt(6) * peers / leaving(graph)


def first_contact(peers: int, graph: str) -> float:
    """Hops until the token first arrives at a given peer, in the mean: N / a."""
    return peers / leaving(graph)


def rewind_hops(peers: int, hops: float, graph: str) -> float:
    """Hops of a rewind, in the mean over peers: those since first contact, 0 if there was none."""
    return hops - first_contact(peers, graph) * visited(peers, hops, graph)


def travel(peers: int, graph: str) -> float:
    """Messages from the holder to u: 1, or about ln N / ln(d - 1) on a random regular graph."""
    return 1.0 if graph == "complete" else math.log(peers) / math.log(DEGREE - 1)


def token_bytes(parameters: int) -> float:
    return float(SIZE * parameters)


def line_through(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: what is fixed, and what each unit adds."""
    xs, ys = zip(*points, strict=True)
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )
    return y - slope * x, slope


@dataclass(frozen=True)
class Model:
    """The measured constants, and what follows from them."""

    found: Measured
    link: Link = Link()

    def overhead(self, parameters: int) -> float:
        """Seconds between two visits on loopback: hash, write, flush, sign, TLS, check."""
        fixed, each = line_through((r["bytes"], r["overhead_ms"]) for r in self.found["peers"])
        return 1e-3 * (max(fixed, 0.0) + each * token_bytes(parameters))

    def on_the_line(self, parameters: int) -> float:
        """Seconds that the assumed link adds."""
        return self.link.round_trip + token_bytes(parameters) / self.link.speed

    def compute(self, parameters: int) -> float:
        """Seconds of a visit's steps, on one thread of the machine that was measured."""
        return float(self.found["compute"][-1]["ns"]) * 1e-9 * parameters * RECORDS

    def hop(self, parameters: int) -> float:
        return self.overhead(parameters) + self.on_the_line(parameters) + self.compute(parameters)

    def memory(self, parameters: int) -> float:
        """Bytes that a peer needs for tokens at its peak."""
        return float(self.found["memory_tokens"]) * token_bytes(parameters)

    def messages(self, members: int) -> float:
        """Messages of one decision: so many for each ordered pair of members."""
        pairs = [float(v["messages"]) / (v["n"] * (v["n"] - 1)) for v in self.found["votes"]]
        return float(sum(pairs) / len(pairs) * members * (members - 1))

    def longest_message(self, members: int) -> float:
        """Bytes of the longest message of a decision: votes and certificates of all members."""
        fixed, each = line_through((v["n"], v["longest"]) for v in self.found["votes"])
        return fixed + each * members

    def vote_bytes(self, members: int) -> float:
        """Bytes of one decision: messages times their mean length, which grows with members."""
        fixed, each = line_through(
            (v["n"], v["bytes"] / v["messages"]) for v in self.found["votes"]
        )
        return self.messages(members) * (fixed + each * members)

    def member_seconds(self, members: int) -> float:
        """Processor time of one decision at one member: about n messages, each of up to n votes."""
        fixed, each = line_through((v["n"], v["member_s"] / v["n"]) for v in self.found["votes"])
        return max(0.0, members * (fixed + each * members))  # a short measurement can slope down

    def peer_certificate(self, members: int) -> float:
        """Bytes of a peer's certificate: a receipt of each, and the votes of three decisions."""
        fixed, each = line_through((v["n"], v["decision"]) for v in self.found["votes"])
        return float(self.found["log"]["receipt"]) * members + 3 * (fixed + each * members)

    def members_by_message(self) -> int:
        """Members with whom the longest message is as long as one may be."""
        fixed, each = line_through((v["n"], v["longest"]) for v in self.found["votes"])
        return int((MESSAGE - fixed) / each)

    def transcript_bytes(self, hops: float) -> float:
        return float(self.found["certificates"][-1]["bytes_hop"]) * hops

    def verify(self, hops: float) -> float:
        """Seconds to verify a certificate; from the longest transcript that was measured."""
        last = self.found["certificates"][-1]
        return float(last["verify_s"] / last["hops"] * hops)


# What people read


def number(value: float) -> str:
    """Two digits that count, with thousands apart; powers of ten above a hundred million."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.2g}")
    if rounded >= 1e8:
        mantissa, power = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(power)}"
    if rounded >= 10:
        return f"{rounded:,.0f}"
    return f"{rounded:.{max(0, 1 - math.floor(math.log10(rounded)))}f}"


def _in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
    size, name = next((u for u in units if float(f"{value / u[0]:.2g}") >= 1), units[-1])
    return f"{number(value / size)} {name}"


def time_text(seconds: float) -> str:
    """Seconds in the largest unit of which there is one."""
    year = 365.25 * 86400
    units = ((year, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))
    return _in_units(seconds, units)


def bytes_text(count: float) -> str:
    """Bytes in the largest unit of which there is one."""
    units = (
        (1e21, "ZB"),
        (1e18, "EB"),
        (1e15, "PB"),
        (1e12, "TB"),
        (1e9, "GB"),
        (1e6, "MB"),
        (1e3, "KB"),
        (1, "B"),
    )
    return _in_units(count, units)


def power(count: int) -> str:
    return f"10^{round(math.log10(count))}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def hops_table(model: Model) -> str:
    """Hops by peers and graph; T = N where a walk's length matters."""
    head = (
        "peers N",
        "graph",
        "to visit half",
        "90 %",
        "all",
        "never visited after N hops",
        "rewind after N hops",
        "messages to u",
    )
    rows = []
    for peers in PEERS:
        for graph in ("complete", "random-regular"):
            shares = [number(hops_to_visit(peers, share, graph)) for share in (0.5, 0.9)]
            rows.append(
                (
                    power(peers),
                    graph,
                    *shares,
                    number(hops_to_cover(peers, graph)),
                    f"{100 * (1 - visited(peers, peers, graph)):.0f} %",
                    number(rewind_hops(peers, peers, graph)),
                    number(travel(peers, graph)),
                )
            )
    return markdown(head, rows)


def hop_table(model: Model) -> str:
    """One hop by model."""
    head = (
        "parameters",
        "token",
        "overhead (measured up to 45 MB)",
        "line (assumed)",
        f"{RECORDS} records, one thread",
        "a hop",
        "memory for tokens",
    )
    rows = [
        (
            power(count),
            bytes_text(token_bytes(count)),
            time_text(model.overhead(count)),
            time_text(model.on_the_line(count)),
            time_text(model.compute(count)),
            time_text(model.hop(count)),
            bytes_text(model.memory(count)),
        )
        for count in PARAMETERS
    ]
    return markdown(head, rows)


def walk_table(model: Model) -> str:
    """Bytes and time of a walk of N hops: each peer is visited once in the mean."""
    head = ("parameters", *(f"N = {power(peers)}" for peers in PEERS))
    rows = [
        (
            power(count),
            *(
                f"{bytes_text(peers * token_bytes(count))}, {time_text(peers * model.hop(count))}"
                for peers in PEERS
            ),
        )
        for count in PARAMETERS
    ]
    return markdown(head, rows)


def deletion_table(model: Model) -> str:
    """Deletions after a walk of N hops on the complete graph."""
    shown = [f"{power(count)} parameters" for count in SHOWN]
    head = ("peers N", "method", "hops", *shown)
    rows = []
    for peers in PEERS:
        ways = {
            "rewind": rewind_hops(peers, peers, "complete"),
            "restart": float(peers),
            "seal": 1.0 + AFTER_SEAL,
        }
        for name, hops in ways.items():
            times = [
                f"{time_text(hops * model.hop(c))}, {bytes_text(hops * token_bytes(c))}"
                for c in SHOWN
            ]
            rows.append((power(peers), name, f"{hops:,.0f}", *times))
    return markdown(head, rows)


def decision_table(model: Model) -> str:
    """Votes by members: what was measured, then what follows if nothing forbade it."""
    counted = {v["n"]: v for v in model.found["votes"]}
    check = model.found["votes_check"]
    head = (
        "members n",
        "",
        "messages",
        "longest message",
        "bytes of a decision",
        "processor time at a member",
        "certificate of a deletion",
    )
    rows = [
        (
            str(n),
            "counted",
            number(v["messages"]),
            bytes_text(v["longest"]),
            bytes_text(v["bytes"]),
            time_text(v["member_s"]),
            bytes_text(model.found["log"]["receipt"] * n + 3 * v["decision"]),
        )
        for n, v in (counted | {check["n"]: check}).items()
    ]
    rows += [
        (
            power(n) if n in PEERS else str(n),
            "formula",
            number(model.messages(n)),
            bytes_text(model.longest_message(n)),
            bytes_text(model.vote_bytes(n)),
            time_text(model.member_seconds(n)),
            bytes_text(model.peer_certificate(n)),
        )
        for n in (check["n"], *PEERS)
    ]
    return markdown(head, rows)


def certificate_table(model: Model) -> str:
    """Transcript and check by hops."""
    head = ("hops of the transcript", "", "certificate", "transcript", "to verify")
    rows = [
        (
            f"{c['hops']:,}",
            "measured",
            bytes_text(c["certificate"]),
            bytes_text(c["transcript"]),
            time_text(c["verify_s"]),
        )
        for c in model.found["certificates"]
    ]
    size = model.found["certificates"][-1]["certificate"]
    rows += [
        (
            power(hops),
            "formula",
            bytes_text(size),
            bytes_text(model.transcript_bytes(hops)),
            time_text(model.verify(hops)),
        )
        for hops in (10**5, 10**6)
    ]
    return markdown(head, rows)


def check_table(model: Model) -> str:
    """Predictions beside the simulation, with their ratio."""
    head = ("peers N", "graph", "what", "predicted", "simulated", "ratio")
    rows = [
        (
            power(row["peers"]),
            row["graph"],
            row["what"],
            f"{row['predicted']:,.4g}" if row["predicted"] < 1e4 else f"{row['predicted']:,.0f}",
            f"{row['simulated']:,.4g}" if row["simulated"] < 1e4 else f"{row['simulated']:,.0f}",
            f"{row['simulated'] / row['predicted']:.3f}",
        )
        for row in checks(model.found)
        if row["peers"] == max(r["peers"] for r in model.found["routes"])
    ]
    return markdown(head, rows)


def checks(found: Measured) -> list[dict[str, Any]]:
    """Every number that the model predicts and a simulation counted."""
    rows: list[dict[str, Any]] = []
    for route in found["routes"]:
        peers, graph = route["peers"], route["graph"]
        pairs = {
            "share of peers visited after N hops": (visited(peers, peers, graph), "visited"),
            "hops until half are visited": (hops_to_visit(peers, 0.5, graph), "half"),
            "hops until 90 % are visited": (hops_to_visit(peers, 0.9, graph), "ninety"),
            "hops until all are visited": (hops_to_cover(peers, graph), "all"),
            "hops to first contact, mean": (first_contact(peers, graph), "first_contact"),
            "hops of a rewind after N hops, mean": (rewind_hops(peers, peers, graph), "rewind"),
            "messages from holder to u": (travel(peers, graph), "travel"),
        }
        for what, (predicted, name) in pairs.items():
            same = {"peers": peers, "graph": graph, "what": what}
            rows.append({**same, "predicted": predicted, "simulated": route[name]})
    few = sorted({r["peers"] for r in found["simulator"]})[1]  # of both visits enough for a mean
    by = {(r["peers"], r["graph"]): r for r in found["simulator"]}
    for (peers, graph), run in by.items():
        if peers <= few:
            continue
        base = by[few, graph]
        fresh = visited(peers, run["hops"], graph) * peers
        time = 1e-6 * (fresh * base["first_us"] + (run["hops"] - fresh) * base["later_us"])
        same = {"peers": peers, "graph": graph}
        rows.append(
            {
                **same,
                "what": f"seconds of {run['hops']:,} hops of the engine",
                "predicted": time,
                "simulated": run["seconds"],
            }
        )
        moved = (run["hops"] - 1) * run["token_bytes"]
        rows.append(
            {**same, "what": "bytes of these", "predicted": moved, "simulated": run["bytes"]}
        )
    return rows


def simulator_table(model: Model) -> str:
    """What the simulator needs by peers and graph."""
    head = (
        "peers N",
        "graph",
        "to make the graph",
        "hop, first visit",
        "hop, later visit",
        "hops",
        "visited",
        "memory at most",
    )
    rows = [
        (
            power(r["peers"]),
            r["graph"],
            time_text(r["build_s"]),
            f"{r['first_us']:,.0f} us",
            f"{r['later_us']:,.0f} us" if r["later_us"] else "-",
            f"{r['hops']:,}",
            f"{r['visited']:,}",
            f"{r['memory_mb']:,.0f} MB",
        )
        for r in model.found["simulator"]
    ]
    return markdown(head, rows)


def constants_table(model: Model) -> str:
    """The constants of the formulas."""
    found = model.found
    fixed, each = line_through((r["bytes"], r["overhead_ms"]) for r in found["peers"])
    pairs = model.messages(2) / 2
    votes, added = line_through((v["n"], v["longest"]) for v in found["votes"])
    last = found["certificates"][-1]
    rows = [
        ("a hop of the simulator without steps", f"{found['bookkeeping']['hop_us']:.0f} us"),
        (
            "its line of the transcript, written when read",
            f"{found['bookkeeping']['line_us']:.0f} us",
        ),
        ("a hop between real peers, fixed part", f"{fixed:.1f} ms"),
        ("and for each byte of the token", f"{1e6 * each:.2f} ns"),
        ("SHA-256 alone, for each byte", f"{found['bytes']['hash_ns']:.2f} ns"),
        ("write and flush alone, for each byte", f"{found['bytes']['write_ns']:.2f} ns"),
        (
            "one record through one parameter, forward and back",
            f"{found['compute'][-1]['ns']:.3f} ns",
        ),
        ("memory of a peer above its data", f"{found['memory_tokens']:.2f} tokens"),
        ("hop log at a peer, for each entry", f"{found['log']['entry']:,.0f} bytes"),
        ("a signed visit in a certificate", f"{found['log']['visit']:,.0f} bytes"),
        ("to check its signature", f"{found['log']['visit_check_us']:,.0f} us"),
        ("a receipt in a certificate", f"{found['log']['receipt']:,.0f} bytes"),
        ("transcript, for each hop", f"{last['bytes_hop']:,.0f} bytes"),
        ("to verify, for each hop", f"{1e6 * last['verify_s'] / last['hops']:,.0f} us"),
        ("messages of a decision, for each ordered pair of members", f"{pairs:.2f}"),
        ("longest message of a decision", f"{votes:,.0f} + {added:,.0f} n bytes"),
    ]
    return markdown(("what", "measured"), rows)


def limits_table(model: Model) -> str:
    """Where each limit of the code is met, in the order of the peers that it allows."""
    limits = Limits()
    hops = transcript.LONGEST / model.found["certificates"][-1]["bytes_hop"]
    receipts = document.LONGEST / (model.peer_certificate(10**6) / 10**6)
    in_lease = limits.lease * model.link.speed
    in_visit = limits.visit / (model.compute(10**6) / 10**6)
    rows = [
        (
            "messages of a vote are at most 256 KiB",
            f"n = {number(model.members_by_message())} peers",
        ),
        (f"a peer accepts {CONNECTIONS} connections", f"n = {CONNECTIONS + 1} peers"),
        (
            f"the generations of a walk are at most {LONGEST_LINEAGE:,}: a peer may open 4,095 / n",
            f"n = {LONGEST_LINEAGE:,} peers",
        ),
        ("a certificate that is read has at most 64 MiB", f"n = {number(receipts)} peers"),
        ("a transcript that is read has at most 256 MiB", f"T = {number(hops)} hops"),
        (
            f"`limits.lease` is {limits.lease:.0f} s, and a transfer has to end within it",
            f"{number(in_lease / SIZE)} parameters on the assumed line",
        ),
        (
            f"`limits.visit` is {limits.visit:.0f} s (with {RECORDS} records on one thread)",
            f"{number(in_visit)} parameters",
        ),
    ]
    return markdown(("limit", "met at"), rows)


TABLES = {
    "constants": constants_table,
    "hops": hops_table,
    "hop": hop_table,
    "walk": walk_table,
    "deletion": deletion_table,
    "decision": decision_table,
    "certificate": certificate_table,
    "simulator": simulator_table,
    "check": check_table,
    "limits": limits_table,
}


def filled(page: str, model: Model) -> str:
    """A page whose tables, between ``<!-- table: NAME -->`` and ``<!-- end -->``, are made anew."""
    for name, make in TABLES.items():
        opened, closed = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(opened)
        _, ended, after = rest.partition(closed)
        if not found or not ended:
            raise SystemExit(
                f"the page has no place for the table {name!r}: write {opened}{closed}"
            )
        page = f"{before}{opened}{make(model)}\n{closed}{after}"
    return page
