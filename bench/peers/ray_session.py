"""A Ray of one round: a local cluster of one node, ended with the block."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator


@contextlib.contextmanager
def ray_session(cpus: int, object_store_gib: float = 0.5, **more: object) -> Iterator[None]:
    # No usage reports, no dashboard: what is measured is the core.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False,
             logging_level=logging.ERROR, object_store_memory=int(object_store_gib * 2**30), **more)
    try:
        yield
    finally:
        ray.shutdown()
