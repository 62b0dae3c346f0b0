# SPDX-License-Identifier: Apache-2.0
"""HAMi: GPU shares by resources of containers.

Sources: https://github.com/Project-HAMi/HAMi: docs/config.md, pkg/device/nvidia/device.go. gpumem is in MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.lint.pods import Template
from dovetail.advice.migrate.dialects.pods import ShareNames, scheduled, shares
from dovetail.advice.migrate.step import MigrationStep, SourceDialect, World
from dovetail.core.model import GPU

_SHARES = ShareNames(GPU, "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "HAMi")
_PRIORITY = "nvidia.com/priority"
_SELECT = "select nodes by nvidia.com/gpu.product: nodeSelector, or affinity with In or NotIn"
_POLICY = "Dovetail packs by the wiring of the GPUs, and reads no policy from pods"
_NO_EQUAL = {
    "nvidia.com/use-gputype": _SELECT,
    "nvidia.com/nouse-gputype": _SELECT,
    "nvidia.com/use-gpuuuid": "a pod cannot request a GPU by its UUID",
    "nvidia.com/nouse-gpuuuid": "a pod cannot exclude a GPU by its UUID",
    "nvidia.com/vgpu-mode": "the device plugin of the nodes configures sharing; for MIG request nvidia.com/mig-PROFILE",
    "nvidia.com/numa-bind": "the Topology Manager of the kubelet decides this",
    "hami.io/node-scheduler-policy": _POLICY,
    "hami.io/gpu-scheduler-policy": _POLICY,
    "hami.io/device-scoring-weights": _POLICY,
    _PRIORITY: "priorities are those of pods, not of containers on a card: set priorityClassName",
    **{
        f"hami.io/{name}": "HAMi wrote it: drop it"
        for name in (
            "vgpu-node",
            "vgpu-time",
            "bind-phase",
            "bind-time",
            "vgpu-devices-to-allocate",
            "vgpu-devices-allocated",
        )
    },
}


def _template(pod: Template, _: World) -> Iterator[MigrationStep]:
    marked = any(
        container.at("resources", side, name)
        for container in pod.all_containers for side in ("limits", "requests") for name in _SHARES.parts
    )  # fmt: skip
    yield from scheduled(pod, HAMI.schedulers, marked=marked)
    yield from shares(pod, _SHARES)


HAMI = SourceDialect("HAMi", None, _template, ("hami-scheduler",), ("hami.io",), _NO_EQUAL)
