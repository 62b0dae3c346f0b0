# SPDX-License-Identifier: Apache-2.0
"""Which nodes of clouds have NVIDIA's GPUs, by labels that are there before any software for GPUs.

Sources: the documents of GKE, EKS, Karpenter and AKS (November 2026); instance types: the table of instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from dovetail.advice.prices import built_in

_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_ACCELERATORS = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "eks.amazonaws.com/instance-gpu-manufacturer",
    "kubernetes.azure.com/accelerator",
    "accelerator",
)
"""Labels of GPU nodes whose value is `nvidia`, or begins with `nvidia-`."""


def accelerator_label(labels: Mapping[str, str]) -> str:
    """The label by which the cloud states that the node has NVIDIA's GPUs, as `key=value`; "" for none."""
    for key in _ACCELERATORS:
        value = labels.get(key, "")
        if value == "nvidia" or value.startswith("nvidia-"):
            return f"{key}={value}"
    return next((f"{key}={labels[key]}" for key in _TYPES if labels.get(key) in _gpus_of_types()), "")


def gpus_of_type(labels: Mapping[str, str]) -> int:
    """The number of whole GPUs of the instance type of a node; 0 if it is not known."""
    return next((_gpus_of_types().get(labels[key], 0) for key in _TYPES if key in labels), 0)


@cache
def _gpus_of_types() -> dict[str, int]:
    return {one.instance_type: one.gpu_milli // 1000 for one in built_in()}
