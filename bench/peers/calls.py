#!/usr/bin/env python3
"""Calls to one worker in another process: Troupe's worker group against a Ray actor.

The worker adds one to an integer and the caller checks the answer, one call at a time and with a
thousand on their way. Bar: 2x, one at a time.
"""

from __future__ import annotations

import sys
import time

import peers
from ray_session import ray_session

ON_THEIR_WAY = 1000


def ray_side(calls: int) -> peers.Figures:
    with ray_session(cpus=2):
        import ray

        @ray.remote
        class Adder:
            def add(self, value: int) -> int:
                return value + 1

        adder = Adder.remote()
        for i in range(200):
            ray.get(adder.add.remote(i))
        begin = time.perf_counter()
        for i in range(calls):
            if ray.get(adder.add.remote(i)) != i + 1:
                raise AssertionError("wrong answer")
        alone = calls / (time.perf_counter() - begin)
        many = max(calls // ON_THEIR_WAY, 1) * ON_THEIR_WAY
        begin = time.perf_counter()
        for first in range(0, many, ON_THEIR_WAY):
            wanted = range(first, first + ON_THEIR_WAY)
            sums = ray.get([adder.add.remote(i) for i in wanted])
            if sums != [i + 1 for i in wanted]:
                raise AssertionError("wrong answers")
        return {"alone": alone, "pipelined": many / (time.perf_counter() - begin)}


def main() -> int:
    parser = peers.parser(__doc__, rounds=5)
    parser.add_argument("--calls", type=int, default=5000, help="one at a time (%(default)s)")
    options = parser.parse_args()
    peers.begin(options, ["ray"])
    ours, theirs = peers.rounds(
        options,
        lambda: peers.troupe(options, "bench/bench_remote_call", "--json", "--calls",
                             str(options.calls)),
        lambda: ray_side(options.calls))
    return peers.report(options, "ray", [
        peers.Row("calls one at a time", "1/s", peers.column(ours, "alone"),
                  peers.column(theirs, "alone"), bar=2),
        peers.Row("calls, 1000 on their way", "1/s", peers.column(ours, "pipelined"),
                  peers.column(theirs, "pipelined"))])


if __name__ == "__main__":
    sys.exit(main())
