# SPDX-License-Identifier: Apache-2.0
"""Jobs by name. What is decided as one is a workload: a gang, or a pod on its own.

Rules
- A job is called NAMESPACE/NAME after the object that its user made (see `kube.gangs.made_for`), else after its gang,
  or its pod. Pods on their own of one object are workloads of one name.
- A job is also found by the names of its pods, of its gangs, and of the objects between the pods and the user's object,
  by the labels in which controllers write these.
- Where the kind is named, a pod is found by its own name alone, and a job by all names but those of its pods. A pod
  on its own that nothing made is a job of its name where no other job has it.
- A request for a lease is a job with its NAMESPACE/NAME while it waits; its placeholders are no pods that have a name.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.states import RequestState
from dovetail.core.bargaining.types import PREFIX
from dovetail.core.model import Pod
from dovetail.core.queues.types import GPU
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.kube.gangs.owners import JOB_LABEL, JOBSET_LABEL, LWS_LABEL, OLD_JOB_LABEL, RAY_LABEL, TRAINING_LABEL
from dovetail.views.job_types import JobView
from dovetail.views.leased import is_placeholder, key_of
from dovetail.views.names import ANY, JOB, POD, JobNotFound, nearest

OWNER_LABELS = (
    JOB_LABEL,
    OLD_JOB_LABEL,
    JOBSET_LABEL,
    LWS_LABEL,
    TRAINING_LABEL,
    RAY_LABEL,
)
"""Labels of pods in which controllers write the name of the object that the pods were made for."""
_NAMED = {ANY: "pod, gang or job", POD: "pod", JOB: "gang or job"}


def job_of(state: State, workload: str) -> JobView:
    """The job of a workload that has pods."""
    pods = state.workloads.members(workload)
    waiting = [pod for pod in pods if pod.managed and not pod.node and pod.uid not in state.cluster.placements]
    gpus_milli = state.shares.wanted(waiting).get(GPU, 0)
    return JobView(
        workload, name_of(state, workload), state.shares.pod_queues.of(pods[0]), tuple(pods), tuple(waiting), gpus_milli
    )


def requests_of(state: State) -> Iterator[Negotiation]:
    """The requests for leases that wait, or are offered something."""
    for one in state.requests.negotiations.values():
        if one.state not in (RequestState.GRANTED, RequestState.DENIED):
            yield one


def request_job(state: State, one: Negotiation) -> JobView:
    """The job of a request. One whose placeholders are in no queue now has no pods."""
    if one.waiting:
        return job_of(state, one.waiting)
    plane = state.requests.planes.get(one.request.plane)
    return JobView(f"{PREFIX}{one.request.id}", one.request.id, plane.leaf if plane is not None else "", (), (), 0)


def name_of(state: State, workload: str) -> str:
    """The NAMESPACE/NAME of a workload's job. It is also the end of the id of a gang whose object does not exist
    yet."""
    index = state.workloads
    if workload.startswith(LONE) or workload in index.gangs or index.made_for(workload):
        return index.name_of(workload)
    namespace = index.members(workload)[0].namespace
    return f"{namespace}/{workload.partition(f'/{namespace}/')[2] or workload}"


def job_id(state: State, workload: str) -> str:
    """The same for all workloads of one object, and for no others: two objects of one name are two jobs."""
    pod, found = state.workloads.first(workload), state.workloads.made_for(workload)
    return f"{pod.namespace}/{found}" if found and pod is not None else workload


def job_and_name(state: State, pod: Pod) -> tuple[str, str]:
    """The id of the pod's job, and its name."""
    workload = state.workloads.workload_of(pod)
    return job_id(state, workload), key_of(pod) if is_placeholder(pod) else name_of(state, workload)


def waiting_jobs(state: State) -> list[JobView]:
    """All jobs of ours with waiting pods."""
    workloads = dict.fromkeys(
        state.workloads.workload_of(pod)
        for pod in state.workloads.pods.values()
        if pod.managed and not pod.node and pod.uid not in state.cluster.placements
    )
    return [job_of(state, workload) for workload in workloads]


def find_pod(state: State, key: str) -> Pod:
    """The pod "namespace/name". Raises JobNotFound."""
    pods = [pod for pod in state.workloads.pods.values() if not is_placeholder(pod)]
    for pod in pods:
        if pod.key == key:
            return pod
    near = nearest(key, (pod.key for pod in pods))
    raise JobNotFound(f"pod {key} does not exist or is finished{near}")


def names_of(state: State, pod: Pod) -> Iterator[str]:
    """The NAMESPACE/NAME by which the job of a pod is found, beside its own."""
    yield pod.key
    yield from _names_above(state, pod)


def _names_above(state: State, pod: Pod) -> Iterator[str]:
    """Those of the objects and of the gang between the pod and its job."""
    yield from (f"{pod.namespace}/{value}" for label, value in pod.labels if label in OWNER_LABELS)
    gang = state.workloads.gangs.get(state.workloads.workload_of(pod)) if pod.gang else None
    if gang is not None:
        yield f"{gang.namespace}/{gang.name}"


def find_jobs(state: State, key: str, kind: str = ANY) -> list[JobView]:
    """The workloads of the job "namespace/name", or of the pod if that is the `kind`. Those that wait come first, the
    oldest first. Raises JobNotFound."""
    workloads = workloads_called(state, key, kind)
    if not workloads:
        names = dict.fromkeys(name for _, own in _named(state, kind) for name in own)
        raise JobNotFound(f"there is no unfinished {_NAMED[kind]} {key}{nearest(key, names)}")
    jobs = [job_of(state, workload) for workload in workloads]
    return sorted(jobs, key=lambda job: (not job.waiting, job.since_ms, job.name))


def workloads_called(state: State, key: str, kind: str = ANY) -> list[str]:
    """The workloads that `find_jobs` finds, in no order of their own; none where nothing has this name."""
    found = dict.fromkeys(workload for workload, names in _named(state, kind, key.partition("/")[0]) if key in names)
    if kind == JOB:
        return [one for one in found if not _is_pod(state, one)] or list(found)
    return list(found)


def _named(state: State, kind: str, namespace: str = "") -> Iterator[tuple[str, Iterator[str]]]:
    """The workload of each pod, of this namespace if one is named, and the names by which it is found. All of them
    begin with the pod's namespace."""
    called: dict[str, str] = {}
    for pod in state.workloads.pods.values():
        if (namespace and pod.namespace != namespace) or is_placeholder(pod):
            continue
        workload = state.workloads.workload_of(pod)
        if workload not in called:
            called[workload] = name_of(state, workload)
        yield workload, _names(state, pod, called[workload], kind)


def _names(state: State, pod: Pod, called: str, kind: str) -> Iterator[str]:
    """The names by which a pod is found whose job is `called` so."""
    if kind != JOB:
        yield pod.key
    if kind != POD:
        yield called
        yield from _names_above(state, pod)


def _is_pod(state: State, workload: str) -> bool:
    """Whether the workload is a pod that nothing made."""
    return workload.startswith(LONE) and not state.workloads.made_for(workload)


def not_waiting(job: JobView) -> str:
    """Why a job is not in the queue."""
    if not job.pods:
        return "its placeholders are in no queue now; `dovetail why` has the reason"
    if not any(pod.managed for pod in job.pods):
        return "its spec.schedulerName names another scheduler"
    return f"all of its {len(job.pods)} pods have a node" if len(job.pods) > 1 else "it has a node"


def restarted(pod: Pod, now_ms: int) -> Pod:
    """The pod that a controller makes in place of one that left its node."""
    return replace(
        pod, uid=f"{pod.uid}+", node="", bound_ms=0, created_ms=now_ms, deleting=False, devices=None, instances=(),
        by_claim=(), nominated_node="",
    )  # fmt: skip
