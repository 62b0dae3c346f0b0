# SPDX-License-Identifier: Apache-2.0
"""The status that a pod of an endpoint shows.

Rules
- What containers do is shown as the host has it. Of the host's conditions the reason is shown, and the message of the
  kubelet's alone: others may name jobs and queues of other users.
- A pod that waits has the reason in its status and in the condition PodScheduled. One that is, or was, on the host has
  `dovetail.dev/Carried`: without its pod on the host it has failed.
- A pod that ended since its lease did has failed, whatever its programs returned: they were stopped.
"""

from __future__ import annotations

from dovetail.agentplanes.facts import FINISHED, HostPod
from dovetail.apiserver.objects import Object, condition_of, object_at, objects_at, with_condition, with_status
from dovetail.kube.api.texts import clipped

CARRIED = "dovetail.dev/Carried"
ENDING = "dovetail.dev/LeaseEnding"
_MESSAGE_BYTES = 1024
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled")
_OF_THE_KUBELET = _CONDITIONS[:4]
_FIELDS = ("containerStatuses", "initContainerStatuses", "podIP", "podIPs", "startTime", "reason", "message")
_HIDDEN = ("allocatedResourcesStatus",)


def waiting(pod: Object, reason: str, message: str, now_s: float) -> Object:
    """The status of a pod that is not on the host yet. kubectl shows reason and message of the status, and none of
    conditions."""
    text = clipped(message, _MESSAGE_BYTES)
    shown = with_status(pod, reason=reason, message=text)
    return object_at(with_condition(shown, "PodScheduled", "False", now_s, reason, text), "status")


def was_carried(pod: Object) -> bool:
    """Whether the pod is, or was, on the host."""
    return condition_of(pod, CARRIED).get("status") == "True"


def failed(pod: Object, reason: str, message: str, now_s: float) -> Object:
    """The status of a pod that ends without its pod on the host, or before that one has ended."""
    ended = with_status(pod, phase="Failed", reason=reason, message=clipped(message, _MESSAGE_BYTES))
    for kind in ("Ready", "ContainersReady"):
        ended = with_condition(ended, kind, "False", now_s, "PodFailed")
    ended = with_condition(ended, "DisruptionTarget", "True", now_s, reason, clipped(message, _MESSAGE_BYTES))
    statuses = [_stopped(one) for one in objects_at(ended, "status.containerStatuses")]
    return object_at(with_status(ended, containerStatuses=statuses or None), "status")


def _stopped(status: Object) -> Object:
    """The status of a container that is not running any more, as far as is known."""
    if "terminated" in object_at(status, "state"):
        return status
    state = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    return status | {"state": state, "ready": False, "started": False}


def shown(pod: Object, host: HostPod, how: str, ending: tuple[str, str] | None, now_s: float) -> Object:
    """The status of a pod that is on the host. `how` is shown from the first time on; `ending` are reason and
    message of a lease that ends."""
    status = {"phase": host.phase or "Pending"} | {
        field: host.status[field] for field in _FIELDS if field in host.status and host.status[field] not in (None, "")
    }
    for field in ("containerStatuses", "initContainerStatuses"):
        if field in status:
            status[field] = [
                {k: v for k, v in one.items() if k not in _HIDDEN} for one in objects_at(host.status, field)
            ]
    conditions = [_condition(one) for one in objects_at({"s": host.status}, "s.conditions")]
    status["conditions"] = [one for one in conditions if one]
    if quality := object_at(pod, "status").get("qosClass"):
        status["qosClass"] = quality
    made = pod | {"status": status}
    before = condition_of(pod, CARRIED)
    if before:
        made = with_status(made, conditions=[*status["conditions"], before])
    else:
        made = with_condition(made, CARRIED, "True", now_s, "OnHost", clipped(how, _MESSAGE_BYTES))
    if ending is not None:
        made = _with_ending(pod, made, ending, now_s)
    return object_at(made, "status")


def _condition(condition: Object) -> Object:
    kind = condition.get("type")
    if kind not in _CONDITIONS:
        return {}
    fields = ("type", "status", "reason", "lastTransitionTime", *(("message",) if kind in _OF_THE_KUBELET else ()))
    return {field: condition[field] for field in fields if condition.get(field) not in (None, "")}


def _with_ending(pod: Object, made: Object, ending: tuple[str, str], now_s: float) -> Object:
    before = condition_of(pod, ENDING)
    if before:
        made = with_status(made, conditions=[*objects_at(made, "status.conditions"), before])
    return with_condition(made, ENDING, "True", now_s, ending[0], clipped(ending[1], _MESSAGE_BYTES))


def finished(pod: Object) -> bool:
    return object_at(pod, "status").get("phase") in FINISHED
