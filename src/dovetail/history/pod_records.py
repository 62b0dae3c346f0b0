# SPDX-License-Identifier: Apache-2.0
"""The record of a pod, from the state and from what objects show besides.

Rules
- The job of a pod is the object that it was made for (`Pod.made_for`); else its gang; else the pod itself. What holds
  a lease is the job of the request.
- The times of a pod are those of the API server; what it has no time for is when it was seen.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.bargaining.types import PREFIX
from dovetail.core.model import CPU, GPU, MEMORY, WHOLE_GPU_MILLI, Pod
from dovetail.core.queues.types import GPU as GPU_AMOUNT
from dovetail.core.state import State
from dovetail.history.records import Outcome, PodRecord

_NVIDIA = "nvidia.com/"
_MIB = 1 << 20
LEASE_KIND = "GPULease"


class PodFact(Struct, frozen=True):
    """What objects, or a simulation, show of a pod beside what the core knows of it (see `PodRecord`)."""

    kind: str = ""
    scheduler: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    restarts: int = 0
    outcome: Outcome = ""
    code: str = ""
    message: str = ""


NO_FACT = PodFact()


def asks_gpus(pod: Pod) -> bool:
    """Whether the pod asks for GPUs, or for devices by claim, which may be GPUs."""
    request = pod.request
    named = any(name.startswith(_NVIDIA) for name, _ in request.resources)
    return bool(named or request.gpu_milli or request.gpu_memory_mib or pod.device_claims or pod.by_claim)


def is_lease(pod: Pod) -> bool:
    """Whether it is what a lease holds, and no pod."""
    return pod.uid.startswith(PREFIX)


def requested(pod: Pod) -> str:
    """What it asks for, in words."""
    request, amounts = pod.request, dict(pod.request.resources)
    found = [
        f"{count} x {name.removeprefix(_NVIDIA)}" if name != GPU else f"{count} GPU{'s' * (count > 1)}"
        for name, count in amounts.items()
        if name.startswith(_NVIDIA)
    ]
    if request.gpu_milli and request.gpu_milli < WHOLE_GPU_MILLI:
        found.append(f"{request.gpu_milli / WHOLE_GPU_MILLI:g} of a GPU")
    if request.gpu_memory_mib:
        found.append(f"{request.gpu_memory_mib} MiB of a GPU")
    claims = len(pod.device_claims)
    if claims:
        found.append(f"{claims} claim{'s' * (claims > 1)}")
    return ", ".join(found)


def job_of(state: State, pod: Pod) -> tuple[str, str]:
    """The name of its job in the namespace, and the kind of the object that made it, "" where that is not known."""
    if is_lease(pod):
        return pod.name, LEASE_KIND
    if pod.made_for:
        kind, _, name = pod.made_for.partition("/")
        return name, kind
    gang = state.workloads.gangs.get(state.workloads.workload_of(pod))
    return (gang.name, "") if gang is not None else (pod.name, "")


def record_of(state: State, pod: Pod, fact: PodFact, offset_ms: int) -> PodRecord:
    """The record of a pod that is there, without what it holds."""
    placement = state.cluster.placements.get(pod.uid)
    node = pod.node or (state.cluster.nodes.names[placement.slot] if placement is not None else "")
    wanted = 0 if placement is not None else state.shares.wanted([pod]).get(GPU_AMOUNT, 0)
    job, kind = job_of(state, pod)
    amounts = dict(pod.request.resources)
    return PodRecord(
        pod.uid, pod.namespace, pod.name, job, kind or fact.kind, pod.user, state.shares.pod_queues.of(pod),
        fact.scheduler or ("dovetail" if pod.managed else ""), pod.lease, pod.priority, dict(pod.labels),
        requested(pod), wanted, node,
        pod.created_ms and pod.created_ms + offset_ms,
        pod.bound_ms and pod.bound_ms + offset_ms,
        fact.started_ms, 0, fact.restarts, "", fact.code, fact.message, amounts.get(CPU, 0),
        amounts.get(MEMORY, 0) // _MIB, pod.work.checkpoint_interval_ms,
    )  # fmt: skip
