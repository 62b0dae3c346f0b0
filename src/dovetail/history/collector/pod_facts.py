# SPDX-License-Identifier: Apache-2.0
"""What the object of a pod shows beside what the core knows: what made it, when it ran, how often, and how it ended.

Rules
- A pod started when the first of its containers did, without init containers.
- A pod that Kubernetes or the scheduler disrupted (condition DisruptionTarget) was preempted, or evicted, however its
  containers ended. One that is deleted ended when its containers did; if that is not known, when it was seen to be
  gone.
- Texts are bounded: they come from users.
"""

from __future__ import annotations

from dovetail.history.pod_records import PodFact
from dovetail.history.records import Outcome
from dovetail.kube.api.changes import Change
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.pods import ContainerStatus, Pod
from dovetail.kube.translate import pod_status
from dovetail.kube.translate.ended import failure

_PREEMPTED = "PreemptionByScheduler"
_MOST_CHARACTERS = 256


def fact_of(change: Change[Pod]) -> PodFact:
    """The fact of a pod after a change."""
    pod, gone = change.object, change.kind == "deleted"
    outcome, code, message = _outcome(pod, gone)
    ended = bool(outcome)
    owner = next((one.kind for one in pod.metadata.owner_references if one.controller), "")
    return PodFact(
        _short(owner),
        pod.spec.scheduler_name,
        min(filter(None, map(_started_ms, pod.status.container_statuses)), default=0),
        pod_status.ended_ms(pod) if ended else 0,
        sum(one.restart_count for one in pod.status.container_statuses),
        outcome,
        _short(code),
        _short(message),
    )


def _started_ms(status: ContainerStatus) -> int:
    state = status.state
    if state is None:
        return 0
    if state.running is not None:
        return epoch_ms(state.running.started_at)
    return epoch_ms(state.terminated.started_at) if state.terminated is not None else 0


def _outcome(pod: Pod, gone: bool) -> tuple[Outcome, str, str]:
    """How it ended, the code and the message; "" while it has not."""
    finished = pod_status.is_finished(pod)
    if not (finished or gone):
        return "", "", ""
    for one in pod.status.conditions:
        if one.type == "DisruptionTarget" and one.status == "True":
            return ("Preempted" if one.reason == _PREEMPTED else "Evicted"), one.reason, ""
    if pod.status.phase == "Succeeded" and pod.metadata.deletion_timestamp is None:
        return "Completed", "", ""
    if pod_status.failed(pod):
        return "Failed", *failure(pod)
    return "Deleted", "", ""


def _short(text: str) -> str:
    return text[:_MOST_CHARACTERS]
