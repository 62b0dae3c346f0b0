# SPDX-License-Identifier: Apache-2.0
"""Pods as far as it counts whether they hold GPUs of their nodes. Rules of the structs: see `base`.

Source: k8s.io/api core/v1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that may hold something."""
_VENDOR = "nvidia.com/"


class HoldingResources(Wire, frozen=True):
    limits: Quantities = field(default_factory=dict)


class HoldingContainer(Wire, frozen=True):
    resources: HoldingResources = HoldingResources()


class HoldingPodSpec(Wire, frozen=True):
    node_name: str = ""
    containers: tuple[HoldingContainer, ...] = ()
    init_containers: tuple[HoldingContainer, ...] = ()
    resource_claims: tuple[Any, ...] = ()
    active_deadline_seconds: int | None = None
    scheduler_name: str = ""


class HoldingPodStatus(Wire, frozen=True):
    phase: str = ""
    start_time: datetime | None = None


class HoldingPod(Wire, frozen=True):
    """A pod that may hold GPUs of its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HoldingPodSpec = HoldingPodSpec()
    status: HoldingPodStatus = HoldingPodStatus()

    @property
    def holds(self) -> bool:
        """Whether it holds devices of its node."""
        finished = self.status.phase in ("Succeeded", "Failed")
        return bool(self.spec.node_name) and not finished and self.asks

    @property
    def asks(self) -> bool:
        """Whether it asks for devices."""
        containers = (*self.spec.containers, *self.spec.init_containers)
        asked = any(name.startswith(_VENDOR) for one in containers for name in one.resources.limits)
        return asked or bool(self.spec.resource_claims)
