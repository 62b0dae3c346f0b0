# SPDX-License-Identifier: Apache-2.0
"""The input of a simulation: a cluster, its queues and outages, and jobs that arrive one after another.

Rules: all records are those of the core; times are milliseconds of the trace's own clock. A job is a single pod or a
gang; its pods arrive together and run for the same time. The queue, the user and the work (family, run time limit,
checkpoints) of a job are those of its first pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.events import Event, NodeChanged, PodChanged
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Gang, Node, Pod, Request
from dovetail.core.queues.types import Queue

PERMILLE = 1000


class SimJob(Struct, frozen=True):
    """A job that arrives at `at_ms`, which is also the `created_ms` of its pods. `gang` is None for a single pod.
    `duration_ms` is its run time; None: it runs until the end of the simulation. `communication_percent` is the part of
    a step that its GPUs take to communicate, where it is placed best."""

    at_ms: int
    pods: tuple[Pod, ...]
    gang: Gang | None = None
    duration_ms: int | None = None
    communication_percent: int = 0


class Outage(Struct, frozen=True):
    """The node is down from `from_ms` until just before `until_ms`."""

    node: str
    from_ms: int
    until_ms: int


class Workload(Struct, frozen=True):
    """`name` is shown in reports. `cluster` describes the state before the first arrival, nodes first. `jobs` are in
    the order of the trace. `queues` are the leaf queues of the pods, if any. Outages of one node do not overlap."""

    name: str
    cluster: tuple[Event, ...]
    jobs: tuple[SimJob, ...]
    queues: tuple[Queue, ...] = ()
    outages: tuple[Outage, ...] = ()

    def nodes(self) -> dict[str, Node]:
        """The nodes by name, in their last state."""
        return {event.node.name: event.node for event in self.cluster if isinstance(event, NodeChanged)}


def gpu_milli(request: Request) -> int:
    """The GPU demand of one pod, in milli-GPU: the share (or 1000) times the number of GPUs, or the share alone."""
    return (request.gpu_milli or WHOLE_GPU_MILLI) * dict(request.resources).get(GPU, 0) or request.gpu_milli


def in_queues(workload: Workload, by: Callable[[Pod], str], weights: Mapping[str, int]) -> Workload:
    """The workload with the job's queue set to `by` of its first pod. Queues are in the order of their first job.

    `weights` maps names of queues to weights; the default is 1."""
    names = dict.fromkeys(by(job.pods[0]) for job in workload.jobs)
    jobs = tuple(
        replace(job, pods=tuple(replace(pod, queue=by(job.pods[0])) for pod in job.pods)) for job in workload.jobs
    )
    return replace(workload, jobs=jobs, queues=tuple(Queue(name, weight=weights.get(name, 1)) for name in names))


def snapshot(name: str, events: Sequence[Event]) -> Workload:
    """The current state of a cluster as a workload: all pending pods of this scheduler arrive at time 0, in the order
    of the events. Of several events about a pod the last one counts, as of a pod whose gang is known only by then."""
    last = {event.pod.uid: event.pod for event in events if isinstance(event, PodChanged)}
    waiting = [pod for pod in last.values() if pod.managed and not pod.node]
    uids = {pod.uid for pod in waiting}
    cluster = tuple(e for e in events if not (isinstance(e, PodChanged) and e.pod.uid in uids))
    return Workload(name, cluster, tuple(SimJob(0, (pod,)) for pod in waiting))
