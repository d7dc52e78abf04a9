#!/usr/bin/env python3
"""A training batch to worker processes and its results back: Troupe against Ray and verl on Ray.

1,024 prompts x 8 samples of 2,048 tokens: `input_ids` and `attention_mask` int64,
`rollout_log_probs` float32 (320 MiB). A worker reads one element of each page of its rows and
answers with `old_log_probs` float32 (64 MiB in all), each row filled with what it read; answers are
compared outside of the time.

verl: DataProto chunks as arguments of actor calls, results concatenated, as its worker groups do;
as it packs tensors by default, and as it does with VERL_DATAPROTO_SERIALIZATION_METHOD=numpy.
Ray: the same with plain numpy arrays (zero-copy reads in the workers), which is the best that it
gives. In both the payload goes through the caller; that is how these tools run a training loop.
Troupe runs three ways: `values` does the same; `kept` and `reordered` are its own training loop,
where the batch is a result of the same group, lies with the workers, and stays there, with rows in
place or shuffled over the workers. Bar: 20x verl on Ray, by default, for `kept` and `reordered`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import peers
from ray_session import ray_session

PAGE = 4096


def touched(ids, mask, log_probs):
    """What a worker reads of each row of these arrays, or tensors."""
    return (ids[:, ::PAGE // 8].sum(1) + mask[:, ::PAGE // 8].sum(1)
            + log_probs[:, ::PAGE // 4].sum(1))


def median_seconds(repeats: int, step: Callable[[], None]) -> float:
    """The median of all repeats but the first."""
    seconds = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def make_columns(rows: int, tokens: int) -> dict:
    import numpy as np

    ids = np.repeat((np.arange(rows, dtype=np.int64) % 1000)[:, None], tokens, axis=1)
    return {"input_ids": ids, "attention_mask": np.ones((rows, tokens), np.int64),
            "rollout_log_probs": np.full((rows, tokens), -0.5, np.float32)}


def compare(answers, columns: dict) -> None:
    import numpy as np

    wanted = touched(*columns.values()).astype(np.float32)
    found = np.asarray(answers)
    if found.shape != columns["input_ids"].shape:
        raise AssertionError(f"answers of shape {found.shape}")
    if not ((found[:, 0] == wanted).all() and (found[:, -1] == wanted).all()):
        raise AssertionError("wrong answers")


def ray_side(options) -> peers.Figures:
    with ray_session(cpus=options.ranks, object_store_gib=3):
        import numpy as np
        import ray

        @ray.remote
        class Policy:
            def score(self, columns: dict) -> dict:
                seen = touched(*columns.values()).astype(np.float32)
                answers = np.empty(columns["input_ids"].shape, np.float32)
                answers[:] = seen[:, None]
                return {"old_log_probs": answers}

        columns = make_columns(options.rows, options.tokens)
        workers = [Policy.remote() for _ in range(options.ranks)]
        cuts = np.linspace(0, options.rows, options.ranks + 1).astype(int)
        answers = {}

        def step() -> None:
            calls = [worker.score.remote({name: value[first:last]
                                          for name, value in columns.items()})
                     for worker, first, last in zip(workers, cuts, cuts[1:])]
            parts = ray.get(calls)
            answers["all"] = np.concatenate([part["old_log_probs"] for part in parts])

        seconds = median_seconds(options.repeats, step)
        compare(answers["all"], columns)
        return {"seconds": seconds}


def verl_side(options, packing: str) -> peers.Figures:
    # Read at each use by this process, and by the workers, which inherit it.
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = packing
    with ray_session(cpus=options.ranks, object_store_gib=3):
        import ray
        import torch
        from verl import DataProto

        @ray.remote
        class Policy:
            def score(self, share: DataProto) -> DataProto:
                names = ("input_ids", "attention_mask", "rollout_log_probs")
                seen = touched(*(share.batch[name] for name in names)).to(torch.float32)
                answers = torch.empty(share.batch["input_ids"].shape, dtype=torch.float32)
                answers[:] = seen[:, None]
                return DataProto.from_dict(tensors={"old_log_probs": answers})

        columns = make_columns(options.rows, options.tokens)
        batch = DataProto.from_dict(
            tensors={name: torch.from_numpy(value) for name, value in columns.items()})
        workers = [Policy.remote() for _ in range(options.ranks)]
        answers = {}

        def step() -> None:
            calls = [worker.score.remote(share)
                     for worker, share in zip(workers, batch.chunk(options.ranks))]
            answers["all"] = DataProto.concat(ray.get(calls))

        seconds = median_seconds(options.repeats, step)
        compare(answers["all"].batch["old_log_probs"], columns)
        return {"seconds": seconds}


def main() -> int:
    parser = peers.parser(__doc__, rounds=3)
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=2, help="worker processes (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="in a round (%(default)s)")
    options = parser.parse_args()
    options.rows = options.prompts * options.samples
    peers.begin(options, ["ray", "verl", "tensordict", "torch", "numpy"])
    ours, rays, verls, packed = peers.rounds(
        options,
        lambda: peers.troupe(options, "bench/bench_batch_call", "--json",
                             "--rows", str(options.rows), "--tokens", str(options.tokens),
                             "--ranks", str(options.ranks), "--repeats", str(options.repeats)),
        lambda: ray_side(options), lambda: verl_side(options, ""),
        lambda: verl_side(options, "numpy"))
    status = 0
    for peer, figures in (("verl on ray", verls), ("verl, numpy", packed), ("ray, numpy", rays)):
        theirs = [1e3 * seconds for seconds in peers.column(figures, "seconds")]
        status |= peers.report(options, peer, [
            peers.Row(f"dispatch and collect, {name}", "ms",
                      [1e3 * seconds for seconds in peers.column(ours, name)], theirs,
                      bar=20 if figures is verls and name != "values" else 0,
                      more_is_better=False)
            for name in ("values", "kept", "reordered")])
    return status


if __name__ == "__main__":
    sys.exit(main())
