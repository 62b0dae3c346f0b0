# SPDX-License-Identifier: Apache-2.0
"""DaemonSets with the shapes of NVIDIA's: names, labels, selectors, containers and commands as in the manifests of the
GPU Operator, the device plugin (static and chart), mig-parted, dcgm-exporter, the DRA driver and NFD; nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from dovetail.operator.watched.pods import WatchedOwner

DEPLOY = "nvidia.com/gpu.deploy."
CHART_TERMS = [
    {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    for key, value in (
        ("feature.node.kubernetes.io/pci-10de.present", "true"),
        ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
        ("nvidia.com/gpu.present", "true"),
    )
]
"""The affinity of NVIDIA's charts for device plugin and DRA driver."""


def owner(
    name: str,
    namespace: str,
    labels: dict[str, str],
    containers: list[dict[str, Any]],
    *,
    selector: dict[str, str] | None = None,
    terms: list[dict[str, Any]] | None = None,
    metadata: dict[str, Any] | None = None,
) -> WatchedOwner:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    document = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", **(metadata or {})},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": containers,
                    "nodeSelector": selector or {},
                    **({"affinity": affinity} if terms else {}),
                },
            },
        },
    }
    return msgspec.convert(document, WatchedOwner)


def _operand(name: str, component: str, container: dict[str, Any], **more: str) -> WatchedOwner:
    return owner(
        name, "gpu-operator", {"app": name}, [container], selector={f"{DEPLOY}{component}": "true", **more},
        metadata={"ownerReferences": [{"kind": "ClusterPolicy", "name": "cluster-policy", "controller": True}]},
    )  # fmt: skip


_SHELL = {"command": ["/bin/sh", "-c"], "args": ["/bin/entrypoint.sh"]}
_MANAGER = {
    "name": "config-manager",
    "image": "nvcr.io/nvidia/k8s-device-plugin:v0.19.3",
    "command": ["config-manager"],
}
_PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"
OPERANDS = {
    "device-plugin": owner(
        "nvidia-device-plugin-daemonset", "gpu-operator", {"app": "nvidia-device-plugin-daemonset"},
        [{"name": "nvidia-device-plugin", "image": _PLUGIN, **_SHELL}, _MANAGER],
        selector={f"{DEPLOY}device-plugin": "true"},
        metadata={"ownerReferences": [{"kind": "ClusterPolicy", "name": "cluster-policy", "controller": True}]},
    ),
    "mps-control-daemon": _operand(
        "nvidia-device-plugin-mps-control-daemon", "device-plugin",
        {"name": "mps-control-daemon-ctr", "image": _PLUGIN, "command": ["mps-control-daemon"]},
        **{"nvidia.com/mps.capable": "true"},
    ),
    "gpu-feature-discovery": _operand(
        "gpu-feature-discovery", "gpu-feature-discovery",
        {"name": "gpu-feature-discovery", "image": _PLUGIN, "command": ["/bin/sh", "-c"]},
    ),
    "mig-manager": _operand(
        "nvidia-mig-manager", "mig-manager",
        {"name": "nvidia-mig-manager", "image": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.14.0"},
    ),
    "dcgm-exporter": _operand(
        "nvidia-dcgm-exporter", "dcgm-exporter",
        {"name": "nvidia-dcgm-exporter", "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.1-4.8.0-distroless"},
    ),
    "dcgm": _operand(
        "nvidia-dcgm", "dcgm", {"name": "nvidia-dcgm-ctr", "image": "nvcr.io/nvidia/cloud-native/dcgm:4.5.1-1"}
    ),
    "driver": _operand(
        "nvidia-driver-daemonset", "driver",
        {"name": "nvidia-driver-ctr", "image": "nvcr.io/nvidia/driver:580.65.06-ubuntu22.04",
         "command": ["nvidia-driver"], "args": ["init"]},
    ),
    "container-toolkit": _operand(
        "nvidia-container-toolkit-daemonset", "container-toolkit",
        {"name": "nvidia-container-toolkit-ctr", "image": "nvcr.io/nvidia/k8s/container-toolkit:v1.18.0", **_SHELL},
    ),
    "operator-validator": _operand(
        "nvidia-operator-validator", "operator-validator",
        {"name": "nvidia-operator-validator", "image": "nvcr.io/nvidia/gpu-operator:v26.3.0",
         "command": ["sh", "-c"], "args": ["echo all validations are successful; sleep infinity"]},
    ),
}  # fmt: skip
"""What the GPU Operator makes, by component."""
_HELM = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "nvdp"},
}
_CHART_LABELS = {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"}
STATIC_PLUGIN = owner(
    "nvidia-device-plugin-daemonset", "kube-system", {"name": "nvidia-device-plugin-ds"},
    [{"name": "nvidia-device-plugin-ctr", "image": "registry.example/mirror/k8s-device-plugin:v0.17.1"}],
)  # fmt: skip
CHART_PLUGIN = owner(
    "nvdp-nvidia-device-plugin", "nvidia", _CHART_LABELS,
    [{"name": "nvidia-device-plugin-sidecar", "image": _PLUGIN, "command": ["config-manager"]},
     {"name": "nvidia-device-plugin-ctr", "image": _PLUGIN, "command": ["nvidia-device-plugin"]}],
    terms=CHART_TERMS, metadata=_HELM,
)  # fmt: skip
CHART_GFD = owner(
    "nvdp-nvidia-device-plugin-gpu-feature-discovery", "nvidia", _CHART_LABELS,
    [{"name": "gpu-feature-discovery-sidecar", "image": _PLUGIN, "command": ["config-manager"]},
     {"name": "gpu-feature-discovery-ctr", "image": _PLUGIN, "command": ["gpu-feature-discovery"]}],
    terms=CHART_TERMS, metadata=_HELM,
)  # fmt: skip
_DRA = "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0"
_DRA_LABELS = {"app.kubernetes.io/name": "dra-driver-nvidia-gpu", "dra-driver-nvidia-gpu-component": "kubelet-plugin"}
DRA_DRIVER = owner(
    "dra-driver-nvidia-gpu-kubelet-plugin", "dra", _DRA_LABELS,
    [{"name": "compute-domains", "image": _DRA, "command": ["bash", "-c"],
      "args": ["# Mask the params file.\nif true; then :; fi\ncompute-domain-kubelet-plugin -v $(LOG_VERBOSITY)"]},
     {"name": "gpus", "image": _DRA, "command": ["bash", "-c"],
      "args": ["# Mask the params file.\nif true; then :; fi\ngpu-kubelet-plugin -v $(LOG_VERBOSITY)"]}],
    terms=CHART_TERMS, metadata=_HELM,
)  # fmt: skip
DCGM_CHART = owner(
    "dcgm-exporter", "monitoring", {"app.kubernetes.io/name": "dcgm-exporter"},
    [{"name": "exporter", "image": "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.1-4.8.0", "args": ["-f", "/etc/list.csv"]}],
    metadata=_HELM,
)  # fmt: skip
NFD_WORKER = owner(
    "nfd-worker", "node-feature-discovery", {"app": "nfd-worker"},
    [{"name": "worker", "image": "registry.k8s.io/nfd/node-feature-discovery:v0.18.0", "command": ["nfd-worker"]}],
)  # fmt: skip
OPERATOR = owner(
    "gpu-operator", "gpu-operator", {"app": "gpu-operator"},
    [{"name": "gpu-operator", "image": "nvcr.io/nvidia/gpu-operator:v26.3.0", "command": ["gpu-operator"]}],
)  # fmt: skip
GKE_PLUGIN = owner(
    "nvidia-gpu-device-plugin", "kube-system", {"k8s-app": "nvidia-gpu-device-plugin"},
    [{"name": "nvidia-gpu-device-plugin", "image": "gke.gcr.io/nvidia-gpu-device-plugin@sha256:0123",
      "command": ["/usr/bin/nvidia-gpu-device-plugin", "-logtostderr"]}],
    terms=[{"matchExpressions": [
        {"key": "cloud.google.com/gke-accelerator", "operator": "Exists"},
        {"key": "gke-no-default-nvidia-gpu-device-plugin", "operator": "DoesNotExist"},
    ]}],
    metadata={"labels": {"addonmanager.kubernetes.io/mode": "Reconcile"}},
)  # fmt: skip
OTHER = owner("rdma-shared-dp-ds", "kube-system", {"name": "rdma"}, [
    {"name": "k8s-rdma-shared-dp-ds", "image": "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3"},
])  # fmt: skip
"""No part of NVIDIA's GPU stack, and no rival."""
