# SPDX-License-Identifier: Apache-2.0
"""What of a pod is carried to the host, field by field.

Rules
- PASSED: as it is. DROPPED: the pod is carried without it. SET: the host's pod has a value of ours. CHECKED: a part of
  it is passed, see `host_pod`. REFUSED: a pod that has it is not carried, and shows why. A field that is in no table is
  refused: what is not known here may reach further than its agent may.
- A field that is empty, or false, is not there.
The tables are also in docs/reference/agent-plane-api.md, with the reasons.
Source of what is restricted: https://kubernetes.io/docs/concepts/security/pod-security-standards/ (Restricted).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Treatment(Enum):
    PASSED = "passed"
    DROPPED = "dropped"
    SET = "set"
    CHECKED = "checked"
    REFUSED = "refused"


_T = Treatment
POD_FIELDS: Mapping[str, Treatment] = {
    "activeDeadlineSeconds": _T.PASSED,
    "affinity": _T.CHECKED,
    "automountServiceAccountToken": _T.SET,
    "containers": _T.CHECKED,
    "dnsConfig": _T.PASSED,
    "dnsPolicy": _T.PASSED,
    "enableServiceLinks": _T.SET,
    "ephemeralContainers": _T.DROPPED,
    "hostAliases": _T.PASSED,
    "hostIPC": _T.REFUSED,
    "hostNetwork": _T.REFUSED,
    "hostPID": _T.REFUSED,
    "hostUsers": _T.PASSED,
    "hostname": _T.PASSED,
    "imagePullSecrets": _T.REFUSED,
    "initContainers": _T.CHECKED,
    "nodeName": _T.REFUSED,
    "nodeSelector": _T.CHECKED,
    "os": _T.DROPPED,
    "overhead": _T.REFUSED,
    "preemptionPolicy": _T.DROPPED,
    "priority": _T.DROPPED,
    "priorityClassName": _T.REFUSED,
    "readinessGates": _T.REFUSED,
    "resourceClaims": _T.REFUSED,
    "restartPolicy": _T.PASSED,
    "runtimeClassName": _T.REFUSED,
    "schedulerName": _T.SET,
    "schedulingGates": _T.DROPPED,
    "schedulingGroup": _T.DROPPED,
    "securityContext": _T.CHECKED,
    "serviceAccount": _T.DROPPED,
    "serviceAccountName": _T.DROPPED,
    "setHostnameAsFQDN": _T.PASSED,
    "shareProcessNamespace": _T.PASSED,
    "subdomain": _T.DROPPED,
    "terminationGracePeriodSeconds": _T.CHECKED,
    "tolerations": _T.SET,
    "topologySpreadConstraints": _T.CHECKED,
    "volumes": _T.CHECKED,
}
"""Fields of `spec`."""

CONTAINER_FIELDS: Mapping[str, Treatment] = {
    "args": _T.PASSED,
    "command": _T.PASSED,
    "env": _T.CHECKED,
    "envFrom": _T.CHECKED,
    "image": _T.PASSED,
    "imagePullPolicy": _T.PASSED,
    "lifecycle": _T.CHECKED,
    "livenessProbe": _T.CHECKED,
    "name": _T.PASSED,
    "ports": _T.CHECKED,
    "readinessProbe": _T.CHECKED,
    "resources": _T.CHECKED,
    "restartPolicy": _T.PASSED,
    "restartPolicyRules": _T.PASSED,
    "securityContext": _T.CHECKED,
    "startupProbe": _T.CHECKED,
    "stdin": _T.PASSED,
    "stdinOnce": _T.PASSED,
    "terminationMessagePath": _T.PASSED,
    "terminationMessagePolicy": _T.SET,
    "tty": _T.PASSED,
    "volumeDevices": _T.REFUSED,
    "volumeMounts": _T.CHECKED,
    "workingDir": _T.PASSED,
}
"""Fields of a container and of an init container."""

POD_SECURITY_FIELDS: Mapping[str, Treatment] = {
    "fsGroup": _T.PASSED,
    "fsGroupChangePolicy": _T.PASSED,
    "runAsGroup": _T.PASSED,
    "runAsNonRoot": _T.SET,
    "runAsUser": _T.CHECKED,
    "seccompProfile": _T.CHECKED,
    "supplementalGroups": _T.PASSED,
    "supplementalGroupsPolicy": _T.PASSED,
}
"""Fields of the `securityContext` of a pod."""

CONTAINER_SECURITY_FIELDS: Mapping[str, Treatment] = {
    "allowPrivilegeEscalation": _T.SET,
    "capabilities": _T.CHECKED,
    "privileged": _T.REFUSED,
    "readOnlyRootFilesystem": _T.PASSED,
    "runAsGroup": _T.PASSED,
    "runAsNonRoot": _T.SET,
    "runAsUser": _T.CHECKED,
    "seccompProfile": _T.CHECKED,
}
"""Fields of the `securityContext` of a container."""

VOLUME_SOURCES = ("configMap", "emptyDir")
"""Volumes that are carried."""

PASSED_ANNOTATIONS = (
    "dovetail.dev/checkpoint-interval",
    "dovetail.dev/last-checkpoint",
    "dovetail.dev/nvlink",
    "dovetail.dev/startup-time",
    "playground.dovetail.dev/exit-code",
    "playground.dovetail.dev/gpu-load",
    "playground.dovetail.dev/run-seconds",
)
"""Annotations that are carried. Labels are not: they would select the pod for Services and policies of the host."""

REFUSED_ANNOTATIONS = (
    "dovetail.dev/gpu-fraction", "dovetail.dev/gpu-memory", "dovetail.dev/gpu-memory-asleep",
    "dovetail.dev/gpu-isolation",
)  # fmt: skip
"""Shares of GPUs, which are not carried."""

REFUSED_VARIABLES = (
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
"""By these variables NVIDIA's container runtime gives a container devices that it did not ask for. Source:
https://github.com/NVIDIA/nvidia-container-toolkit, accept-nvidia-visible-devices-envvar-when-unprivileged."""
