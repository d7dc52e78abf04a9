#!/usr/bin/env python3
"""Events of a simulation a second: Troupe's engine against SimPy.

Two models, the same on both sides: 1,024 clocks that tick after exponential gaps (for Troupe as
coroutine programs, which is what a SimPy process is, and as handlers), and an M/M/1 queue at load
0.8, whose mean time in the system both sides have to get right (5 s, within 10 %). No bar.
"""

from __future__ import annotations

import random
import sys
import time

import peers

CLOCKS = 1024
LOAD = 0.8


def clocks_rate(ticks: int) -> float:
    import simpy

    environment = simpy.Environment()
    counted = 0

    def clock(draw):
        nonlocal counted
        while True:
            yield environment.timeout(draw(1000.0))
            counted += 1

    for number in range(CLOCKS):
        environment.process(clock(random.Random(number).expovariate))
    begin = time.perf_counter()
    environment.run(until=ticks / CLOCKS / 1000.0)
    return counted / (time.perf_counter() - begin)


def queue_rate(customers: int) -> tuple[float, float]:
    """Customers a second, and the mean time that one spent."""
    import simpy

    environment = simpy.Environment()
    server = simpy.Resource(environment)
    gaps, services = random.Random(1).expovariate, random.Random(2).expovariate
    spent = 0.0

    def customer():
        nonlocal spent
        arrived = environment.now
        with server.request() as turn:
            yield turn
            yield environment.timeout(services(1.0))
        spent += environment.now - arrived

    def arrivals():
        for _ in range(customers):
            yield environment.timeout(gaps(LOAD))
            environment.process(customer())

    environment.process(arrivals())
    begin = time.perf_counter()
    environment.run()
    return customers / (time.perf_counter() - begin), spent / customers


def simpy_side(events: int) -> peers.Figures:
    rate, spent = queue_rate(events // 2)
    return {"clocks": clocks_rate(events), "customers": rate, "spent_s": spent}


def main() -> int:
    parser = peers.parser(__doc__, rounds=5)
    parser.add_argument("--events", type=int, default=400_000, help="of SimPy (%(default)s)")
    options = parser.parse_args()
    peers.begin(options, ["simpy"])
    # Troupe's side takes five times as many, to run about as long as a clock can tell.
    ours, theirs = peers.rounds(
        options,
        lambda: peers.troupe(options, "bench/bench_sim_events", "--json", "--events",
                             str(5 * options.events)),
        lambda: simpy_side(options.events))
    for spent in peers.column(ours, "spent_s") + peers.column(theirs, "spent_s"):
        if abs(spent * (1 - LOAD) - 1) > 0.1:
            peers.stop(f"M/M/1 at load {LOAD}: {spent:.3f} s in the system, wanted "
                       f"{1 / (1 - LOAD):.3f}")
    return peers.report(options, "simpy", [
        peers.Row("ticks of 1,024 clocks, programs", "1/s", peers.column(ours, "programs"),
                  peers.column(theirs, "clocks")),
        peers.Row("ticks of 1,024 clocks, handlers", "1/s", peers.column(ours, "handlers"),
                  peers.column(theirs, "clocks")),
        peers.Row("customers of an M/M/1 queue", "1/s", peers.column(ours, "customers"),
                  peers.column(theirs, "customers"))])


if __name__ == "__main__":
    sys.exit(main())
