# SPDX-License-Identifier: Apache-2.0
"""Jobs by the names that people call them by: a gang, or a pod on its own, is one job of the line.

Rules: a job is called NAMESPACE/NAME after its gang, or after its pod. Who asks may also name what made the pods: the
labels in which controllers write the name of their object lead to all of its jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Pod
from dovetail.core.queues.types import GPU
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE

OWNER_LABELS = (
    "batch.kubernetes.io/job-name",
    "job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
)
"""Of pods, in which controllers write the name of the object that they were made for."""
_SHOWN = 5


class JobNotFound(Exception):
    """Nothing that is not finished is called so; the message says what was looked for and names that come near."""


class JobView(Struct, frozen=True):
    """`name` is NAMESPACE/NAME. `pods` are all that are known of it, `waiting` those of ours that have no place;
    `gpus_milli` is what these will be counted with in their `queue`, which may not exist."""

    workload: str
    name: str
    queue: str
    pods: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    gpus_milli: int

    @property
    def user(self) -> str:
        return self.pods[0].user

    @property
    def since_ms(self) -> int:
        """When its oldest waiting pod was made; 0 where nobody knows."""
        return min((pod.created_ms for pod in self.waiting), default=0)


def job_of(state: State, workload: str) -> JobView:
    """The job of a workload that has pods."""
    pods = state.workloads.members(workload)
    waiting = [pod for pod in pods if pod.managed and not pod.node and pod.uid not in state.cluster.placements]
    gpus_milli = state.shares.wanted(waiting).get(GPU, 0)
    return JobView(
        workload, name_of(state, workload), state.shares.queue_of(pods[0]), tuple(pods), tuple(waiting), gpus_milli
    )


def name_of(state: State, workload: str) -> str:
    """What people call a workload: NAMESPACE/NAME. The id of a gang that nobody has declared yet ends with the same."""
    if workload.startswith(LONE) or workload in state.workloads.gangs:
        return state.workloads.name_of(workload)
    namespace = state.workloads.members(workload)[0].namespace
    return f"{namespace}/{workload.partition(f'/{namespace}/')[2] or workload}"


def waiting_jobs(state: State) -> list[JobView]:
    """Everybody of ours who waits."""
    workloads = dict.fromkeys(
        state.workloads.workload_of(pod)
        for pod in state.workloads.pods.values()
        if pod.managed and not pod.node and pod.uid not in state.cluster.placements
    )
    return [job_of(state, workload) for workload in workloads]


def find_pod(state: State, key: str) -> Pod:
    """The pod "namespace/name". Raises NotFound."""
    for pod in state.workloads.pods.values():
        if pod.key == key:
            return pod
    near = nearest(key, (pod.key for pod in state.workloads.pods.values()))
    raise JobNotFound(f"pod {key} does not exist or is finished{near}")


def find_jobs(state: State, key: str) -> list[JobView]:
    """The job "namespace/name": a pod, the gang of this name, or all that an object of this name made; who waits comes
    first, the oldest first of these. Raises NotFound."""
    workloads: dict[str, None] = {}
    names: dict[str, None] = {}
    for pod in state.workloads.pods.values():
        workload = state.workloads.workload_of(pod)
        called = {pod.name, *(value for label, value in pod.labels if label in OWNER_LABELS)}
        own = {f"{pod.namespace}/{one}" for one in called} | ({name_of(state, workload)} if pod.gang else set())
        names.update(dict.fromkeys(own))
        if key in own:
            workloads[workload] = None
    if not workloads:
        raise JobNotFound(f"no pod, gang or job {key} exists that is not finished{nearest(key, names)}")
    jobs = [job_of(state, workload) for workload in workloads]
    return sorted(jobs, key=lambda job: (not job.waiting, job.since_ms, job.name))


def not_waiting(job: JobView) -> str:
    """Why a job is not in the line."""
    if not any(pod.managed for pod in job.pods):
        return "another scheduler is named in spec.schedulerName"
    return f"all of its {len(job.pods)} pods have their place" if len(job.pods) > 1 else "it has its place"


def restarted(pod: Pod, now_ms: int) -> Pod:
    """The pod that a controller makes instead of one that left its node."""
    return replace(
        pod, uid=f"{pod.uid}+", node="", bound_ms=0, created_ms=now_ms, deleting=False, devices=None, instances=(),
        by_claim=(), nominated_node="",
    )  # fmt: skip


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; did you mean A, B?" for names that come near, else ""."""
    known = dict.fromkeys(names)
    short = name.rpartition("/")[2]
    inside = sorted(one for one in known if short and (short in one or one.rpartition("/")[2] in short))
    near = list(dict.fromkeys((*get_close_matches(name, known, _SHOWN), *inside)))[:_SHOWN]
    return f"; did you mean {', '.join(near)}?" if near else ""


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first few, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
