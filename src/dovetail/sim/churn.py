# SPDX-License-Identifier: Apache-2.0
"""Pods that arrive and end at a constant offered load, with the requests of a pod list.

Rules: pods are drawn from the list with replacement. Arrivals are a Poisson process; run times are exponential. The
offered load is the arriving GPU time per unit of time, in % of the cluster's GPUs: at 100 %, the work that arrives
keeps all GPUs busy. The cluster starts empty and needs a few mean run times to fill.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.sim.workload import SimJob, Workload, gpu_milli


def churned(workload: Workload, load_percent: int, mean_runtime_ms: int, until_ms: int, seed: int) -> Workload:
    """The same cluster, with single pods drawn from the list that arrive before `until_ms`.

    Raises ValueError if no pod requests a GPU, or no node has one."""
    chance = random.Random(seed)
    capacity = sum(dict(node.allocatable).get(GPU, 0) for node in workload.nodes().values()) * WHOLE_GPU_MILLI
    demand = sum(gpu_milli(job.pods[0].request) for job in workload.jobs)
    if not capacity or not demand:
        what = "these pods ask for" if capacity else "there are"
        raise ValueError(f"{workload.name}: load is of GPUs, and {what} none")
    pods_per_ms = capacity * load_percent / 100 / mean_runtime_ms / (demand / len(workload.jobs))
    jobs: list[SimJob] = []
    at_ms = chance.expovariate(pods_per_ms)
    while at_ms < until_ms:
        [pod] = chance.choice(workload.jobs).pods
        name, arrived_ms = f"{pod.name}-{len(jobs)}", int(at_ms)
        again = replace(pod, uid=name, name=name, created_ms=arrived_ms)
        jobs.append(SimJob(arrived_ms, (again,), duration_ms=1 + int(chance.expovariate(1 / mean_runtime_ms))))
        at_ms += chance.expovariate(pods_per_ms)
    return replace(workload, jobs=tuple(jobs))
