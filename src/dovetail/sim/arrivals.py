# SPDX-License-Identifier: Apache-2.0
"""The arrivals and the metric of the published FGD protocol (Weng et al., USENIX ATC'23, the artifact's scripts).

Rules
- The target is a percentage of all GPUs of the cluster.
- The nodes are in a random order. The order matters: it breaks ties between equal scores.
- The pods of the list arrive in a random order. Then pods are drawn from the list with replacement, until the next one
  would exceed the target. If the list alone exceeds the target, random pods are removed from it.
- Times are dropped: no pod ends, and a pod that does not fit is not tried again.
- All randomness comes from the seed.
"""

from __future__ import annotations

import random
from collections import defaultdict

from msgspec.structs import replace

from dovetail.core.events import NodeChanged
from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.sim.clock import Result
from dovetail.sim.workload import SimJob, Workload, gpu_milli


def inflated(workload: Workload, percent: int, seed: int) -> Workload:
    """The same cluster; single pods arrive one after another until their demand is `percent` of the cluster's GPUs.

    Raises ValueError if that demand is 0, or no pod requests a GPU."""
    chance = random.Random(seed)
    nodes = [event for event in workload.cluster if isinstance(event, NodeChanged)]
    others = [event for event in workload.cluster if not isinstance(event, NodeChanged)]
    target = sum(dict(event.node.allocatable).get(GPU, 0) for event in nodes) * WHOLE_GPU_MILLI * percent // 100
    jobs = list(workload.jobs)
    demand = {job: gpu_milli(job.pods[0].request) for job in jobs}
    if not target or not any(demand.values()):
        raise ValueError(f"{workload.name}: no number of these pods asks for {percent} % of these GPUs")
    chance.shuffle(nodes)
    chance.shuffle(jobs)
    total = sum(demand.values())
    if total > target:
        while total > target:
            total -= demand[jobs.pop(chance.randrange(len(jobs)))]
    else:
        # As in the artifact, the next pod counts as at most one GPU in this check.
        while total + min(demand[job := chance.choice(workload.jobs)], WHOLE_GPU_MILLI) <= target:
            total += demand[job]
            jobs.append(_again(job, len(jobs)))
    return Workload(
        workload.name, (*nodes, *others), tuple(replace(job, at_ms=i, duration_ms=None) for i, job in enumerate(jobs))
    )


def _again(job: SimJob, number: int) -> SimJob:
    """A copy of the job with a new name."""
    [pod] = job.pods
    name = f"{pod.name}-{number}"
    return replace(job, pods=(replace(pod, uid=name, name=name),))


def unallocated_percent(result: Result) -> dict[int, float]:
    """The published metric: unallocated GPUs in % of all GPUs, by arrived demand in % of all GPUs.

    The demand is rounded to a whole percent; the value is the mean over the arrivals that round to the same percent."""
    allocated: dict[int, list[int]] = defaultdict(list)
    for moment in result.moments:
        allocated[round(100 * moment.arrived_milli / result.capacity_milli)].append(moment.allocated_milli)
    return {
        arrived: 100 - 100 * sum(samples) / len(samples) / result.capacity_milli
        for arrived, samples in allocated.items()
    }
