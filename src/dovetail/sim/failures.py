# SPDX-License-Identifier: Apache-2.0
"""A schedule of node failures, drawn from a seed.

Rules: nodes fail independently. Uptimes are exponential with the mean time between failures; downtimes are exponential
with the mean time to repair. No failure begins after the horizon.
"""

from __future__ import annotations

import random

from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.sim.workload import Outage, Workload, gpu_milli


def outages(workload: Workload, between_ms: int, repair_ms: int, until_ms: int, seed: int) -> tuple[Outage, ...]:
    """The outages that begin before `until_ms`, in order of time. `between_ms` and `repair_ms` are means of at least
    1 ms."""
    chance = random.Random(seed)
    plan = []
    for name in workload.nodes():
        at_ms = _draw(chance, between_ms)
        while at_ms < until_ms:
            down_ms = _draw(chance, repair_ms)
            plan.append(Outage(name, at_ms, at_ms + down_ms))
            at_ms += down_ms + _draw(chance, between_ms)
    return tuple(sorted(plan, key=lambda outage: (outage.from_ms, outage.node)))


def horizon_ms(workload: Workload) -> int:
    """An estimate of the end of the simulation: last arrival + longest duration + 2 * total GPU time / GPUs."""
    capacity = sum(dict(node.allocatable).get(GPU, 0) for node in workload.nodes().values()) * WHOLE_GPU_MILLI
    work = sum((job.duration_ms or 0) * gpu_milli(pod.request) for job in workload.jobs for pod in job.pods)
    last_ms = max((job.at_ms for job in workload.jobs), default=0)
    longest_ms = max((job.duration_ms or 0 for job in workload.jobs), default=0)
    return last_ms + longest_ms + 2 * work // max(1, capacity)


def _draw(chance: random.Random, mean_ms: int) -> int:
    return 1 + int(chance.expovariate(1 / mean_ms))
