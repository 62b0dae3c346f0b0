# SPDX-License-Identifier: Apache-2.0
"""Finished pods for lists of jobs: what each was, when it ran, and how it ended.

Rules
- The gang of a bound pod is that of its record. Of a pod without a record it is what its own metadata declare: the
  object that owns it is read only for pods that have not finished.
- The job is called by the object that the pod was made for, else by its gang, else by the pod.
- A pod failed for the reason of its status (`Evicted`, `DeadlineExceeded`), else for that of the first container that
  exited with an error (`OOMKilled`, `Error`).
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.model import Pod
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import pod_status
from dovetail.kube.translate.known import KnownPod

_ERROR = "Error"


class EndedPod(Struct, frozen=True):
    """A finished pod. `workload` is the gang that it declares or was bound in, "" for none, and `job` the
    NAMESPACE/NAME of its job. `started_ms` is when it was bound, `ended_ms` the end of its last container
    (epoch ms, 0 unknown). `code` and `message` are why it failed, "" for a pod that succeeded."""

    pod: Pod
    workload: str
    job: str
    succeeded: bool
    started_ms: int
    ended_ms: int
    code: str = ""
    message: str = ""


def ended_pod(obj: PodObject, known: KnownPod) -> EndedPod:
    """The record of a finished pod; `known` is its translation, with the values of its gang."""
    pod, member = known.reported, known.member
    workload, job = pod.gang, pod.key
    if workload:
        if member is not None and workload.startswith(f"{member.id}/"):
            # It was in a sub-gang.
            workload = member.id
        job = f"{pod.namespace}/{workload.partition(f'/{pod.namespace}/')[2] or workload}"
    if pod.made_for:
        job = f"{pod.namespace}/{pod.made_for.rpartition('/')[2]}"
    succeeded = obj.status.phase == "Succeeded"
    code, message = ("", "") if succeeded else failure(obj)
    started_ms, ended_ms = pod_status.bound_ms(obj), pod_status.ended_ms(obj)
    return EndedPod(pod, workload, job, succeeded, started_ms, ended_ms, code, message)


def failure(obj: PodObject) -> tuple[str, str]:
    """Why the pod failed: a code, and a sentence where more is known."""
    status = obj.status
    if status.reason:
        return status.reason, ""
    for one in (*status.init_container_statuses, *status.container_statuses):
        ended = one.state.terminated if one.state is not None else None
        if ended is not None and ended.exit_code:
            return ended.reason or _ERROR, f"container {one.name} exited with {ended.exit_code}"
    return _ERROR, ""
