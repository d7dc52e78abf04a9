"""What the comparisons of this folder share: cores, Troupe's side, rounds, and the report.

Both sides run on the same cores and take turns, round by round; each round starts the processes of
a side anew and ends them, so that neither disturbs the other. The ratio that counts is the median
over rounds of the two figures of one round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, float]


def stop(message: str) -> None:
    """Ends the script as for a wrong command line."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(2)


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--check", action="store_true", help="end with 1 when a bar is missed")
    made.add_argument("--rounds", type=int, default=rounds, help="turns of each side (%(default)s)")
    made.add_argument("--cores", default="0,1", help="cores of both sides (%(default)s)")
    made.add_argument("--build", default=str(ROOT / "build" / "release"),
                      help="Troupe's build folder (%(default)s)")
    return made


def begin(options: argparse.Namespace, packages: list[str]) -> int:
    """Pins this process and what it starts; says what is compared. Returns the number of cores."""
    from importlib.metadata import PackageNotFoundError, version

    cores = sorted({int(core) for core in options.cores.split(",")})
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    try:
        versions = ", ".join(f"{name} {version(name)}" for name in packages)
    except PackageNotFoundError as missing:
        stop(f"package {missing} is not here; run bench/peers/setup, and this with its python")
    load = os.getloadavg()[0]
    print(f"{versions}; cores {options.cores}, OMP_NUM_THREADS={len(cores)}, load {load:.2f}"
          + ("  (not idle: figures are no measurement)" if load > 0.5 else ""), flush=True)
    return len(cores)


def troupe(options: argparse.Namespace, program: str, *words: str, **environment: str) -> Figures:
    """The figures that a program of Troupe's prints as one JSON line, its last."""
    path = Path(options.build) / program
    if not path.exists():
        stop(f"{path} is not there; build it, or name the build folder by --build")
    done = subprocess.run([str(path), *words], capture_output=True, text=True, check=False,
                          env=dict(os.environ, **environment))
    if done.returncode != 0:
        stop(f"{path} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def rounds(options: argparse.Namespace, *sides: Callable[[], Figures]) -> list[list[Figures]]:
    """Each side in turn, so many times; the figures of each side by round."""
    all_figures: list[list[Figures]] = [[] for _ in sides]
    for number in range(options.rounds):
        for side, figures in zip(sides, all_figures):
            figures.append(side())
            print(f"  round {number + 1}: " + json.dumps(figures[-1]), file=sys.stderr, flush=True)
    return all_figures


@dataclass
class Row:
    """One comparison; `more_is_better` tells rates from times."""

    name: str
    unit: str
    ours: list[float]
    theirs: list[float]
    bar: float = 0.0
    more_is_better: bool = True

    def ratio(self) -> float:
        pairs = zip(self.ours, self.theirs)
        return statistics.median(a / b if self.more_is_better else b / a for a, b in pairs)


def report(options: argparse.Namespace, peer: str, rows: list[Row]) -> int:
    """Prints the rows; the exit status."""
    held = True
    print(f"{'':<44} {'troupe':>12} {peer:>12}   ratio (least to most)")
    for row in rows:
        ratio = row.ratio()
        singles = sorted(Row("", "", [a], [b], 0, row.more_is_better).ratio()
                         for a, b in zip(row.ours, row.theirs))
        verdict = ""
        if row.bar:
            verdict = f"   bar {row.bar:g}: {'met' if ratio >= row.bar else 'MISSED'}"
            held = held and ratio >= row.bar
        print(f"{row.name + ', ' + row.unit:<44} {statistics.median(row.ours):>12,.2f} "
              f"{statistics.median(row.theirs):>12,.2f}   {ratio:.2f}x "
              f"({singles[0]:.2f} to {singles[-1]:.2f}){verdict}", flush=True)
    print(f"load at the end {os.getloadavg()[0]:.2f}")
    return 1 if options.check and not held else 0


def column(figures: list[Figures], name: str) -> list[float]:
    return [one[name] for one in figures]
