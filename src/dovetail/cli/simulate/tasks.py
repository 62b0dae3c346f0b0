# SPDX-License-Identifier: Apache-2.0
"""The task of `dovetail simulate`: its workload, from files and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices.layout import LayoutError
from dovetail.core.events import NodeChanged
from dovetail.core.model import GPU, Node, Pod
from dovetail.core.queues.types import DEFAULT_QUEUE
from dovetail.sim import sample
from dovetail.sim.arrivals import inflated
from dovetail.sim.churn import churned
from dovetail.sim.failures import horizon_ms, outages
from dovetail.sim.network import Network
from dovetail.sim.report import SimulationReport, SimulationRun, of_arrivals, of_queue, of_snapshot
from dovetail.sim.traces import jobs as job_lists
from dovetail.sim.traces import nodes as clusters
from dovetail.sim.traces import openb
from dovetail.sim.traces.errors import TraceError
from dovetail.sim.wiring import wired
from dovetail.sim.workload import SimJob, Workload, in_queues, snapshot

if TYPE_CHECKING:
    from dovetail.kube.manifests.cluster import Manifests

QUEUES_BY: Mapping[str, Callable[[Pod], str]] = {
    "vc": lambda pod: pod.namespace,
    "user": lambda pod: pod.user or pod.namespace,
}
_ONE_QUEUE: dict[str, Callable[[Pod], str]] = {**QUEUES_BY, "": lambda pod: DEFAULT_QUEUE}


class Task(Struct, frozen=True):
    """A workload to simulate. `patient` as in Simulation; `report` makes the report of a run, and `picture` is the
    function of `sim.plots` that draws it. `job_list`: the workload is a job list, whose jobs request only GPUs.
    `taken_ms` is the epoch time of a snapshot, 0 for other input. `network` slows jobs down that are placed badly."""

    workload: Workload
    patient: bool
    report: Callable[[SimulationRun], SimulationReport]
    picture: str
    job_list: bool = False
    taken_ms: int = 0
    network: Network | None = None

    @property
    def snapshot(self) -> bool:
        """Whether the workload is a cluster at one moment."""
        return self.picture == "draw_nodes"

    @property
    def queues(self) -> bool:
        """Whether jobs queue, so that the queue order matters."""
        return self.picture == "draw_queue"


class Churn(Struct, frozen=True):
    """Pods that arrive and end at random: the offered load in percent of the GPUs, the mean run time, and for how long
    they arrive."""

    percent: int
    runtime_ms: int
    for_ms: int


class Communication(Struct, frozen=True):
    """How GPUs communicate: the part of a step for jobs that state none, the product of all GPUs, the line rate of the
    NIC beside each, the label keys of the fabric, the widest first, and what its levels leave of the bandwidth of a
    node, in percent, from the narrowest on; the last of these counts for wider ones, too."""

    communication_percent: int
    product: str
    nic_gbit: int
    levels: tuple[str, ...]
    level_percent: tuple[int, ...]


class Habits(Struct, frozen=True):
    """What a job list lacks: the checkpoint interval of jobs and the time to resume from one, the field that is the
    queue of a job ("": one queue for all), weights and half-life of queues, whether queues order jobs by attained
    service, and the mean time between failures of a node (0: none) and to repair. `communication`: jobs communicate
    over this network."""

    checkpoint_ms: int
    startup_ms: int
    queues_by: str
    weights: Mapping[str, int]
    half_life_ms: int
    least_served_first: bool
    failure_ms: int
    repair_ms: int
    seed: int
    communication: Communication | None = None


def of_pods(nodes: str | None, pods: str | None, seed: int, until: int, timed: bool, churn: Churn | None) -> Task:
    """A pod list, or the sample. Raises TraceError."""
    cluster = openb.read_nodes(sample.NODES if nodes is None else Path(nodes))
    arrivals = openb.read_pods(sample.PODS if pods is None else Path(pods))
    name = "openb default (sample)" if pods is None else _stem(pods)
    workload = Workload(name, tuple(map(NodeChanged, cluster)), arrivals)
    if timed:
        if not openb.has_times(arrivals):
            raise TraceError("has no creation_time, scheduled_time and deletion_time, which --timed needs", str(pods))
        return Task(workload, True, of_queue, "draw_queue")
    try:
        if churn is not None:
            churning = churned(workload, churn.percent, churn.runtime_ms, churn.for_ms, seed)
            return Task(churning, True, of_queue, "draw_queue")
        return Task(inflated(workload, until, seed), False, lambda run: of_arrivals(run, until), "draw_arrivals")
    except ValueError as error:
        raise TraceError(str(error)) from error


def of_jobs(jobs: str, nodes: str, vcs: tuple[str, ...], habits: Habits) -> Task:
    """A job list. Raises TraceError."""
    cluster, network = _cluster(nodes), None
    if habits.communication is not None:
        cluster, network = _networked(cluster, habits.communication, nodes)
    most = max((dict(node.allocatable).get(GPU, 0) for node in cluster), default=0)
    if not most:
        raise TraceError("has no node with a GPU, and every job requests one", nodes)
    read = tuple(_with_habits(job, habits) for job in job_lists.read_jobs(Path(jobs), most, vcs))
    name = f"{' '.join((_stem(jobs), *vcs))} on {_stem(nodes)}"
    workload = Workload(name, tuple(map(NodeChanged, cluster)), read)
    if habits.queues_by or habits.least_served_first:
        workload = in_queues(workload, _ONE_QUEUE[habits.queues_by], habits.weights)
        unknown = habits.weights.keys() - {queue.name for queue in workload.queues}
        if unknown:
            raise TraceError(f"--weight: there is no {habits.queues_by} {', '.join(sorted(unknown))}", jobs)
        queues = tuple(
            replace(queue, half_life_ms=habits.half_life_ms, least_served_first=habits.least_served_first)
            for queue in workload.queues
        )
        workload = replace(workload, queues=queues)
    if habits.failure_ms:
        plan = outages(workload, habits.failure_ms, habits.repair_ms, horizon_ms(workload), habits.seed)
        workload = replace(workload, outages=plan)
    return Task(workload, True, of_queue, "draw_queue", job_list=True, network=network)


def of_manifests(paths: tuple[str, ...], found: Manifests) -> Task:
    """A cluster at one moment, from manifests."""
    problems = tuple(map(str, found.problems))
    workload = snapshot(", ".join(paths), found.events)
    taken_ms = found.record.taken_ms if found.record is not None else 0
    return Task(workload, True, lambda run: of_snapshot(run, problems), "draw_nodes", taken_ms=taken_ms)


def _cluster(nodes: str) -> tuple[Node, ...]:
    """The nodes of a node list, or of a size such as 16x8."""
    if Path(nodes).is_file():
        return openb.read_nodes(Path(nodes))
    return clusters.uniform_nodes(*clusters.parse_uniform(nodes))


def _networked(nodes: tuple[Node, ...], ways: Communication, source: str) -> tuple[tuple[Node, ...], Network]:
    """The nodes with their wiring, and the network above them. Raises TraceError."""
    try:
        nodes = wired(nodes, ways.product, ways.nic_gbit)
    except LayoutError as error:
        raise TraceError(f"--gpu-product: {error.message}", source) from error
    labels = {key for node in nodes for key, _ in node.labels}
    here = [key for key in reversed(ways.levels) if key in labels]
    left = ways.level_percent
    percent = {key: left[min(i, len(left) - 1)] for i, key in enumerate((*here, ""))}
    return nodes, Network(nodes, ways.levels, percent)


def _with_habits(job: SimJob, habits: Habits) -> SimJob:
    work = job.pods[0].work
    interval_ms = work.checkpoint_interval_ms or habits.checkpoint_ms
    startup_ms = work.startup_ms or habits.startup_ms
    work = replace(work, checkpoint_interval_ms=interval_ms, startup_ms=startup_ms)
    ways = habits.communication
    percent = (job.communication_percent or ways.communication_percent) if ways is not None else 0
    pods = tuple(replace(pod, work=work) for pod in job.pods)
    return replace(job, pods=pods, communication_percent=percent)


def _stem(path: str) -> str:
    return Path(path).name.removesuffix(".gz").removesuffix(".csv")
