# SPDX-License-Identifier: Apache-2.0
"""Small clusters and jobs to write down in seconds, for the tests of the simulator."""

from __future__ import annotations

import random

from dovetail.core.events import NodeChanged
from dovetail.core.model import CPU, GPU, PODS, Gang, Node, Pod, Request, Work
from dovetail.core.queues.types import Queue
from dovetail.sim.clock import VirtualClock
from dovetail.sim.workload import Outage, SimJob, Workload


def cluster(*gpus: int) -> tuple[NodeChanged, ...]:
    return tuple(NodeChanged(Node(f"n{i}", ((CPU, 64_000), (GPU, n), (PODS, 100)))) for i, n in enumerate(gpus))


def job(
    name: str,
    at_s: int,
    gpus: int,
    seconds: int | None,
    pods: int = 1,
    queue: str = "",
    checkpoint_s: int = 0,
    startup_s: int = 0,
    limit_s: int = 0,
) -> SimJob:
    gang = Gang(name, "ns", name, pods, created_ms=1000 * at_s) if pods > 1 else None
    work = Work("f", 1000 * limit_s, 1000 * checkpoint_s, 1000 * startup_s, grace_ms=0)
    members = tuple(
        Pod(
            f"{name}-{i}",
            "ns",
            f"{name}-{i}",
            Request(((GPU, gpus),)),
            created_ms=1000 * at_s,
            gang=name if gang else "",
            queue=queue,
            work=work,
        )
        for i in range(pods)
    )
    return SimJob(1000 * at_s, members, gang, None if seconds is None else 1000 * seconds)


def workload(gpus: tuple[int, ...], *jobs: SimJob, outages: tuple[Outage, ...] = (), **weights: int) -> Workload:
    """Jobs in the order in which they come; queues by weight."""
    queues = tuple(Queue(name, weight=weight) for name, weight in weights.items())
    return Workload("w", cluster(*gpus), jobs, queues, outages)


def stream(
    seed: int, nodes: tuple[int, ...], count: int, most_gpus: int, queues: int = 1, costs: bool = False
) -> Workload:
    """Random jobs that come a little faster than the cluster can do them."""
    chance = random.Random(seed)
    at_s, jobs = 0, []
    for i in range(count):
        at_s += chance.randint(0, 2 * 10 * most_gpus // 2 // sum(nodes) + 1)
        pods = 2 if most_gpus > 1 and len(nodes) > 1 and chance.random() < 0.2 else 1
        queue = f"q{chance.randrange(queues)}" if queues > 1 else ""
        checkpoint_s = chance.choice((0, 3, 7)) if costs else 0
        gpus = chance.randint(1, most_gpus)
        jobs.append(job(f"j{i}", at_s, gpus, chance.randint(1, 20), pods, queue, checkpoint_s))
    return workload(nodes, *jobs, **({f"q{i}": i + 1 for i in range(queues)} if queues > 1 else {}))


def times(simulation: VirtualClock) -> list[tuple[int | None, int | None]]:
    """First start and end of each job, in seconds."""
    fates = simulation.result.fates
    return [tuple(None if at is None else at // 1000 for at in (fate.started_ms, fate.ended_ms)) for fate in fates]  # type: ignore[misc]


def mean_wait_s(simulation: VirtualClock) -> float:
    fates = simulation.result.fates
    return sum(fate.waited_ms for fate in fates) / len(fates) / 1000
