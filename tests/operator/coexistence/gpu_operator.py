# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's GPU Operator leaves in a cluster, as documents: its ClusterPolicy, the DaemonSets that this owns, the
pods' accounts; and its work on the labels of nodes.

Sources: NVIDIA/gpu-operator v26.3, assets/ (names, labels, selectors, containers, commands, tolerations) and
controllers/ (owner references, labels and annotations of DaemonSets, switches of nodes); nothing else of it is here.
"""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
NAMESPACE = "gpu-operator"
DEPLOY = "nvidia.com/gpu.deploy."
SWITCHED = (
    "driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter",
    "node-status-exporter", "operator-validator",
)  # fmt: skip
"""The switches of a node that runs containers; and of one with MIG that of the MIG manager."""
PLUGIN, GFD, EXPORTER, MIG, VALIDATOR, MPS = (
    "nvidia-device-plugin-daemonset", "gpu-feature-discovery", "nvidia-dcgm-exporter", "nvidia-mig-manager",
    "nvidia-operator-validator", "nvidia-device-plugin-mps-control-daemon",
)  # fmt: skip
FOUND = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "H100",
    "nvidia.com/mig.capable": "true",
}
"""Labels that Node Feature Discovery, GFD and the GPU Operator write on a node with GPUs."""
_PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"
_OPERATOR_IMAGE = "nvcr.io/nvidia/gpu-operator:v26.3.0"
_CONFIG_MANAGER = {"name": "config-manager", "image": _PLUGIN_IMAGE, "command": ["config-manager"]}
_SHELL = {"command": ["/bin/sh", "-c"], "args": ["/bin/entrypoint.sh"]}
CLUSTER_POLICIES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com", "scope": "Cluster",
        "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
        "versions": [
            {
                "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip
POLICY = {
    "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
    "spec": {
        "operator": {"defaultRuntime": "containerd", "runtimeClass": "nvidia"},
        "driver": {"enabled": False}, "toolkit": {"enabled": False}, "devicePlugin": {"enabled": True},
        "gfd": {"enabled": True}, "dcgmExporter": {"enabled": True}, "migManager": {"enabled": True},
        "mig": {"strategy": "single"},
    },
}  # fmt: skip


def daemon_sets(policy_uid: str) -> list[Document]:
    """Owned by the ClusterPolicy of this uid."""
    plugin = {"name": "nvidia-device-plugin", "image": _PLUGIN_IMAGE, **_SHELL}
    gfd = {"name": GFD, "image": _PLUGIN_IMAGE, "command": [GFD]}
    exporter = {
        "name": EXPORTER, "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.1-4.8.0-distroless",
        "ports": [{"name": "metrics", "containerPort": 9400}],
    }  # fmt: skip
    manager = {"name": MIG, "image": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.14.0"}
    validator = {"name": VALIDATOR, "image": _OPERATOR_IMAGE, "command": ["sh", "-c"], "args": ["sleep infinity"]}
    mps = {"name": "mps-control-daemon-ctr", "image": _PLUGIN_IMAGE, "command": ["mps-control-daemon"]}
    part_of = {"app.kubernetes.io/part-of": "nvidia-gpu"}
    return [
        _operand(policy_uid, PLUGIN, "device-plugin", [plugin, _CONFIG_MANAGER], "nvidia-device-plugin"),
        _operand(
            policy_uid, GFD, "gpu-feature-discovery", [gfd, _CONFIG_MANAGER], "nvidia-gpu-feature-discovery",
            labels=part_of,
        ),
        _operand(policy_uid, EXPORTER, "dcgm-exporter", [exporter], EXPORTER),
        _operand(policy_uid, MIG, "mig-manager", [manager], MIG),
        _operand(policy_uid, VALIDATOR, "operator-validator", [validator], VALIDATOR),
        _operand(
            policy_uid, MPS, "device-plugin", [mps, _CONFIG_MANAGER], "nvidia-device-plugin-mps-control-daemon",
            selector={"nvidia.com/mps.capable": "true"},
        ),
    ]  # fmt: skip


def _operand(
    policy_uid: str, name: str, component: str, containers: list[Document], account: str, *,
    labels: dict[str, str] | None = None, selector: dict[str, str] | None = None,
) -> Document:  # fmt: skip
    own = {"app": name, **(labels or {})}
    owner = {
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": policy_uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    marks = {"app.kubernetes.io/managed-by": "gpu-operator", "helm.sh/chart": "gpu-operator-v26.3.0"}
    waits = {"name": "toolkit-validation", "image": _OPERATOR_IMAGE, "command": ["sh", "-c"], "args": ["true"]}
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {**own, **marks}, "ownerReferences": [owner],
            "annotations": {"nvidia.com/last-applied-hash": "2166136261"},
        },
        "spec": {
            "selector": {"matchLabels": own},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {**own, **marks}},
                "spec": {
                    "nodeSelector": {f"{DEPLOY}{component}": "true", **(selector or {})},
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "priorityClassName": "system-node-critical", "runtimeClassName": "nvidia",
                    "serviceAccountName": account, "initContainers": [waits], "containers": containers,
                },
            },
        },
    }  # fmt: skip


def accounts() -> list[Document]:
    """The ServiceAccounts of its pods."""
    names = {one["spec"]["template"]["spec"]["serviceAccountName"] for one in daemon_sets("")}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
        for name in sorted(names)
    ]


def missing_switches(labels: dict[str, str]) -> dict[str, str]:
    """The switches that it adds to a node; one that is there stays as it is."""
    if labels.get("nvidia.com/gpu.present") != "true" or labels.get(f"{DEPLOY}operands") == "false":
        return {}
    wanted = {f"{DEPLOY}{name}": "true" for name in SWITCHED}
    if labels.get("nvidia.com/mig.capable") == "true":
        wanted[f"{DEPLOY}mig-manager"] = "true"
    return {key: value for key, value in wanted.items() if key not in labels}


def runtime_class(policy_uid: str) -> Document:
    """The one that its pods name, and the agents."""
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": policy_uid}
    return {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia",
        "metadata": {"name": "nvidia", "ownerReferences": [owner]},
    }  # fmt: skip
