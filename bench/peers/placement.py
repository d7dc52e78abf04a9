#!/usr/bin/env python3
"""Placement groups of one bundle, created, ready and removed again: Troupe against Ray.

One at a time, and a hundred at a time (all created, all waited for, all removed). Troupe's client,
head and two node agents are four processes; Ray's cluster has one node, which is the least work for
it. Ray keeps its groups in memory, so Troupe's ledger lies in memory too (/dev/shm) where the bar
judges, 5x for both; what it gives when each change of the ledger is flushed to disk, as it runs by
default, is printed beside it.
"""

from __future__ import annotations

import sys
import time

import peers
from ray_session import ray_session

AT_ONCE = 100


def ray_side(seconds: float) -> peers.Figures:
    # Enough of a resource of its own name that no group ever waits for room.
    with ray_session(cpus=2, resources={"slot": 100_000}):
        from ray.util.placement_group import placement_group, remove_placement_group

        def cycle(count: int) -> None:
            made = [placement_group([{"slot": 1}], strategy="PACK") for _ in range(count)]
            for group in made:
                if not group.wait(timeout_seconds=60):
                    raise AssertionError("a placement group is not ready in 60 s")
            for group in made:
                remove_placement_group(group)

        def rate(count: int) -> float:
            cycle(count)
            done = 0
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds:
                cycle(count)
                done += count
            return done / (time.perf_counter() - begin)

        return {"alone": rate(1), "batches": rate(AT_ONCE)}


def main() -> int:
    parser = peers.parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=3, help="of one figure (%(default)s)")
    options = parser.parse_args()
    peers.begin(options, ["ray"])
    words = ["bench/bench_placement_actors", "--json", "--seconds", str(options.seconds)]
    memory, disk, theirs = peers.rounds(
        options,
        lambda: peers.troupe(options, *words, TMPDIR="/dev/shm"),
        lambda: peers.troupe(options, *words),
        lambda: ray_side(options.seconds))
    rows = []
    for ours, place, bar in ((memory, "in memory", 5), (disk, "on disk", 0)):
        for name, text in (("alone", "one at a time"), ("batches", "100 at a time")):
            rows.append(peers.Row(f"{text}, ledger {place}", "groups/s", peers.column(ours, name),
                                  peers.column(theirs, name), bar=bar))
    return peers.report(options, "ray", rows)


if __name__ == "__main__":
    sys.exit(main())
