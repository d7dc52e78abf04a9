#!/usr/bin/env python3
"""New weights from trainer to rollout, FSDP 2 to tp 2: Troupe against gather-and-slice over Gloo.

Four processes on one host: two hold the trainer's weights cut by rows (DTensor, as FSDP 2 does),
two the rollout's, cut as tensor parallelism does. The usual way: the trainer's ranks gather every
tensor (`DTensor.full_tensor`), one of them broadcasts it to the rollout's ranks, each of which cuts
its part out; the broadcast of a tensor overlaps the gathering of the next. Also the kinder form in
which two processes are trainer and rollout at once: gather and cut, nothing is broadcast.
Troupe moves each byte once, by direct copies between processes, which is what one host gets, and
over TCP on loopback, which is what Gloo has; checksums of all tensors are on. Bar: 2x for either.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

import peers

HIDDEN, MLP, VOCABULARY, KV = 1024, 2752, 4096, 512
SOURCES = TARGETS = 2


def shapes(mib: int) -> list[tuple[tuple[int, ...], int | None]]:
    """Shape and cut dimension (None: whole everywhere) of the tensors of Troupe's bench_shape."""
    layer_bytes = (HIDDEN * HIDDEN * 3 + 3 * HIDDEN * MLP) * 4
    layers = max(1, ((mib << 20) - 2 * VOCABULARY * HIDDEN * 4) // layer_bytes)
    layer = [((HIDDEN, HIDDEN), 0), ((KV, HIDDEN), 0), ((KV, HIDDEN), 0), ((HIDDEN, HIDDEN), 1),
             ((MLP, HIDDEN), 0), ((MLP, HIDDEN), 0), ((HIDDEN, MLP), 1),
             ((HIDDEN,), None), ((HIDDEN,), None)]
    ends = [((VOCABULARY, HIDDEN), 0), ((HIDDEN,), None), ((VOCABULARY, HIDDEN), 0)]
    return ends + layer * layers


def target_bytes(mib: int) -> int:
    """Bytes that all targets together hold."""
    total = 0
    for shape, cut in shapes(mib):
        count = 4
        for size in shape:
            count *= size
        total += count * (TARGETS if cut is None else 1)
    return total


class Member:
    """One process of the peer's side."""

    def __init__(self, rank: int, mib: int, colocated: bool) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        torch.set_num_threads(1)
        world = SOURCES if colocated else SOURCES + TARGETS
        dist.init_process_group("gloo", rank=rank, world_size=world)
        self.dist, self.colocated = dist, colocated
        self.is_source = rank < SOURCES
        self.index = rank if self.is_source else rank - SOURCES
        # Every process has to take part in making each group.
        mesh = DeviceMesh("cpu", list(range(SOURCES)))
        self.receivers = dist.new_group([0] + list(range(SOURCES, world)))
        self.shapes = shapes(mib)
        self.weights = []
        if self.is_source:
            for number, (shape, _) in enumerate(self.shapes):
                local = torch.full((shape[0] // SOURCES, *shape[1:]), float(number + 1))
                self.weights.append(DTensor.from_local(local, mesh, [Shard(0)]))
        self.parts = []
        if colocated or not self.is_source:
            self.parts = [torch.zeros(self.part_shape(shape, cut)) for shape, cut in self.shapes]
        self.torch = torch

    @staticmethod
    def part_shape(shape: tuple[int, ...], cut: int | None) -> list[int]:
        return [size // TARGETS if dim == cut else size for dim, size in enumerate(shape)]

    def keep(self, number: int, whole) -> None:
        """Cuts this rank's part of a tensor out."""
        cut = self.shapes[number][1]
        part = whole if cut is None else whole.chunk(TARGETS, dim=cut)[self.index]
        self.parts[number].copy_(part)

    def publish(self) -> None:
        waiting = None  # the broadcast that is under way, and what keeps its tensor
        for number, (shape, _) in enumerate(self.shapes):
            if self.is_source:
                whole = self.weights[number].full_tensor()
                if self.colocated:
                    self.keep(number, whole)
                if self.colocated or self.index != 0:
                    continue
                if waiting:
                    waiting[0].wait()
                waiting = (self.dist.broadcast(whole, 0, group=self.receivers, async_op=True),
                           whole)
            else:
                whole = self.torch.empty(shape)
                work = self.dist.broadcast(whole, 0, group=self.receivers, async_op=True)
                if waiting:
                    self.take(waiting)
                waiting = (work, whole, number)
        if waiting and self.is_source:
            waiting[0].wait()
        elif waiting:
            self.take(waiting)

    def take(self, waiting: tuple) -> None:
        waiting[0].wait()
        self.keep(waiting[2], waiting[1])

    def run(self, repeats: int) -> float:
        """The median time of all publications but the first."""
        seconds = []
        for _ in range(repeats + 1):
            self.dist.barrier()
            begin = time.perf_counter()
            self.publish()
            self.dist.barrier()
            seconds.append(time.perf_counter() - begin)
        for number, part in enumerate(self.parts):
            if not bool((part == number + 1).all()):
                raise AssertionError(f"tensor {number} is wrong")
        return statistics.median(seconds[1:])


def member(words: list[str]) -> int:
    rank, mib, repeats, colocated = (int(word) for word in words)
    one = Member(rank, mib, bool(colocated))
    seconds = one.run(repeats)
    if rank == 0:
        print(seconds, flush=True)
    one.dist.destroy_process_group()
    return 0


def gloo_seconds(options, colocated: bool) -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # One thread each, as there are as many processes as threads wanted; memory in huge pages, as on
    # Troupe's side.
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                       GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
    world = SOURCES if colocated else SOURCES + TARGETS
    children = [subprocess.Popen(
        [sys.executable, __file__, "--member", str(rank), str(options.mib), str(options.repeats),
         str(int(colocated))], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(world)]
    texts = [child.communicate(timeout=600)[0] for child in children]
    if any(child.returncode != 0 for child in children):
        peers.stop("a process of the gather over Gloo failed; its message is above")
    return float(texts[0])


def gloo_side(options) -> peers.Figures:
    return {"apart": gloo_seconds(options, False), "colocated": gloo_seconds(options, True)}


def main() -> int:
    parser = peers.parser(__doc__, rounds=5)
    parser.add_argument("--mib", type=int, default=512, help="size of the model (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="in a round (%(default)s)")
    options = parser.parse_args()
    peers.begin(options, ["torch"])
    ours, theirs = peers.rounds(
        options,
        lambda: peers.troupe(options, "bench/bench_reshard", "--json", "--mib", str(options.mib),
                             "--rounds", str(options.repeats)),
        lambda: gloo_side(options))
    if int(ours[0]["bytes"]) != target_bytes(options.mib):
        peers.stop(f"Troupe's model has {ours[0]['bytes']:.0f} bytes at its targets, Gloo's "
                   f"{target_bytes(options.mib)}")
    rows = []
    for lane in ("direct", "tcp"):
        for form, text in (("apart", "gather, broadcast, cut"), ("colocated", "gather, cut")):
            rows.append(peers.Row(
                f"{lane} against {text}", "ms", [1e3 * x for x in peers.column(ours, lane)],
                [1e3 * x for x in peers.column(theirs, form)],
                bar=2 if form == "apart" else 0, more_is_better=False))
    return peers.report(options, "gloo", rows)


if __name__ == "__main__":
    sys.exit(member(sys.argv[2:]) if sys.argv[1:2] == ["--member"] else main())
