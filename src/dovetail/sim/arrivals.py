# SPDX-License-Identifier: Apache-2.0
"""The arrivals of the published FGD protocol, and its read-out (Weng et al., USENIX ATC'23, the artifact's scripts).

Rules: the nodes in a random order; the pods of the list in a random order, then pods drawn from the list with
replacement until the next one would take the GPU demand beyond the target, a percentage of all GPUs; where the list
itself asks for more, pods are taken out at random. Times are dropped: nobody leaves, and who does not fit is not tried
again. The order of the nodes matters: it decides between equal scores. The seed gives all of it.
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
    """The same cluster and jobs, lone pods all, one arrival after another, up to `percent` of the cluster's GPUs.

    Raises ValueError where no number of these pods reaches that."""
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
        # The artifact counts one GPU of the next pod here, however many it asks for.
        while total + min(demand[job := chance.choice(workload.jobs)], WHOLE_GPU_MILLI) <= target:
            total += demand[job]
            jobs.append(_again(job, len(jobs)))
    return Workload(
        workload.name, (*nodes, *others), tuple(replace(job, at_ms=i, duration_ms=None) for i, job in enumerate(jobs))
    )


def _again(job: SimJob, number: int) -> SimJob:
    """The job once more, under another name."""
    [pod] = job.pods
    name = f"{pod.name}-{number}"
    return replace(job, pods=(replace(pod, uid=name, name=name),))


def unallocated_percent(result: Result) -> dict[int, float]:
    """The published read-out: GPUs that are not allocated, in % of all, by arrived demand in % of all, rounded, and
    averaged over the arrivals that round to the same number."""
    allocated: dict[int, list[int]] = defaultdict(list)
    for moment in result.moments:
        allocated[round(100 * moment.arrived_milli / result.capacity_milli)].append(moment.allocated_milli)
    return {
        arrived: 100 - 100 * sum(samples) / len(samples) / result.capacity_milli
        for arrived, samples in allocated.items()
    }
