# SPDX-License-Identifier: Apache-2.0
"""What a simulation is about: a cluster, its queues and failures, and jobs that arrive one after another.

Rules: records only, as the core knows them; times are milliseconds of the trace's own clock. A job is a lone pod or a
gang; its pods arrive together and, once they run, run for the same time. Queue, user, and what is known of the work
(family, run time limit, checkpoints) are those of its first pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.events import Event, NodeChanged, PodChanged
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Gang, Node, Pod, Request
from dovetail.core.queues.types import Queue


class SimJob(Struct, frozen=True):
    """`gang` is None for a lone pod. `duration_ms` is the work that there is to do, counted from the start of the job;
    None runs until the end of the simulation. The pods' `created_ms` is `at_ms`."""

    at_ms: int
    pods: tuple[Pod, ...]
    gang: Gang | None = None
    duration_ms: int | None = None


class Outage(Struct, frozen=True):
    """A node is down from `from_ms` until just before `until_ms`."""

    node: str
    from_ms: int
    until_ms: int


class Workload(Struct, frozen=True):
    """`cluster` tells what is there before the first arrival, nodes first; `jobs` are in the order of the trace.
    `name` is for people: which list this is. `queues` are the leaves that the pods name, if they name any. Outages of
    one node do not overlap."""

    name: str
    cluster: tuple[Event, ...]
    jobs: tuple[SimJob, ...]
    queues: tuple[Queue, ...] = ()
    outages: tuple[Outage, ...] = ()

    def nodes(self) -> dict[str, Node]:
        """By name, as last told."""
        return {event.node.name: event.node for event in self.cluster if isinstance(event, NodeChanged)}


def gpu_milli(request: Request) -> int:
    """The GPU demand of one pod, in milli-GPU: what it says of each GPU that it asks for, or of one."""
    return (request.gpu_milli or WHOLE_GPU_MILLI) * dict(request.resources).get(GPU, 0) or request.gpu_milli


def in_queues(workload: Workload, by: Callable[[Pod], str], weights: Mapping[str, int]) -> Workload:
    """Each job in a queue of its own name, in the order in which they come first. `weights` are 1 where not given."""
    names = dict.fromkeys(by(job.pods[0]) for job in workload.jobs)
    jobs = tuple(
        replace(job, pods=tuple(replace(pod, queue=by(job.pods[0])) for pod in job.pods)) for job in workload.jobs
    )
    return replace(workload, jobs=jobs, queues=tuple(Queue(name, weight=weights.get(name, 1)) for name in names))


def snapshot(name: str, events: Sequence[Event]) -> Workload:
    """A cluster as it is: the pods that wait for this scheduler arrive at once, in the order of the events."""
    waiting = [e.pod for e in events if isinstance(e, PodChanged) and e.pod.managed and not e.pod.node]
    uids = {pod.uid for pod in waiting}
    cluster = tuple(e for e in events if not (isinstance(e, PodChanged) and e.pod.uid in uids))
    return Workload(name, cluster, tuple(SimJob(0, (pod,)) for pod in waiting))
