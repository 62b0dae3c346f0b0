# SPDX-License-Identifier: Apache-2.0
"""The status of a pod: whether it is finished, how it ended, whether its kubelet rejected it, and when it was bound.

Rules
- A pod was rejected by its kubelet if its status has a reason of the kubelet's admission. `Evicted` does not count,
  although a kubelet may reject with it: pods that ran fail with it too.
- A pod that is deleted or evicted and exits with 0 is Succeeded too; it did not complete its work.
"""

from __future__ import annotations

from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.pods import Pod

FINISHED = frozenset({"Succeeded", "Failed"})
_REJECTIONS = frozenset(
    {
        "AppArmor", "EmptyPodSharedPoolError", "InitContainerRestartPolicyForbidden", "InvalidNodeInfo", "NodeAffinity",
        "NodeName", "NodePorts", "NodeShutdown", "PodFeatureUnsupported", "PodLevelResourcesNotSupported",
        "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch", "SMTAlignmentError",
        "SupplementalGroupsPolicyNotSupported", "SysctlForbidden", "TaintToleration", "TopologyAffinityError",
        "UnexpectedAdmissionError", "UnexpectedPredicateFailureType", "UnknownReason", "VolumeAttachmentLimitExceeded",
    }
)  # fmt: skip
"""The reasons of kubelets for rejections (v1.37: pkg/kubelet/kubelet.go, lifecycle/predicate.go,
cm/admission/errors.go)."""
_ENDED = frozenset({"Ready", "ContainersReady", "DisruptionTarget"})
"""The conditions that change when a pod ends."""
_OUT_OF = "OutOf"
"""The prefix of all reasons that name a resource: OutOfcpu, OutOfnvidia.com/gpu."""


def is_finished(obj: Pod) -> bool:
    """Whether the pod is in a final phase: it holds no resources any more."""
    return obj.status.phase in FINISHED


def rejection(obj: Pod) -> str:
    """The reason of the kubelet that rejected the pod; "" if none did."""
    reason = obj.status.reason if obj.status.phase == "Failed" and obj.spec.node_name else ""
    return reason if reason in _REJECTIONS or reason.startswith(_OUT_OF) else ""


def succeeded(obj: Pod) -> bool:
    """Whether the pod completed its work. A pod that is deleted or evicted and exits with 0 is Succeeded too; it does
    not count."""
    evicted = obj.metadata.deletion_timestamp is not None or any(
        one.type == "DisruptionTarget" and one.status == "True" for one in obj.status.conditions
    )
    return obj.status.phase == "Succeeded" and not evicted


def failed(obj: Pod) -> bool:
    """Whether the pod failed without having been deleted."""
    return obj.status.phase == "Failed" and obj.metadata.deletion_timestamp is None


def ended_ms(obj: Pod) -> int:
    """The end of a finished pod's last container, 0 if unknown. Without container states, as after the loss of a node,
    it is the last change of the conditions that mark the end."""
    status = obj.status
    states = [one.state for one in (*status.init_container_statuses, *status.container_statuses)]
    ends = [epoch_ms(s.terminated.finished_at) for s in states if s is not None and s.terminated is not None]
    changes = [epoch_ms(one.last_transition_time) for one in status.conditions if one.type in _ENDED]
    return max(ends, default=0) or max(changes, default=0)


def bound_ms(obj: Pod) -> int:
    """The time when the pod was bound; 0 if it is not bound or the time is unknown."""
    if not obj.spec.node_name:
        return 0
    for condition in obj.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return epoch_ms(condition.last_transition_time)
    return 0
