# SPDX-License-Identifier: Apache-2.0
"""Whether something else starts a workload again that the policy has stopped: an autoscaler, a GitOps controller, a
queue that resumes it. Pure.

Rules
- It was put back if, within `PUT_BACK_MS` of the stop, another field manager wrote the field by which it was stopped:
  the API server records the owner of each field (metadata.managedFields). It is not stopped again then, as it would
  only be put back again.
- The stop took the field from all others, so another owner wrote it later. What is written by the subresource `scale`
  has no time: of that it is not known whether it was within `PUT_BACK_MS`, and it counts.
- A person that undoes a stop is none of these: what `kubectl` writes, or `dovetail release`, is no controller. Nor is a
  HorizontalPodAutoscaler (`kube-controller-manager`), which scales, and starts nothing that has no replicas.
- That ends when the manager writes a field of its own more than that later, or when the annotation
  `dovetail.dev/idle-stopped` is removed.
Sources: sigs.k8s.io/structured-merge-diff and apimachinery, ManagedFieldsEntry (`time` changes when the manager changes
a field that it owns); kubernetes, pkg/controller/podautoscaler/horizontal.go, ScalingDisabled. KEDA, Argo CD and Flux
put replicas back that they own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from dovetail.jobs.kinds import Document, at
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate.annotations import IDLE_STOPPED

PUT_BACK_MS = 3_600_000
"""Flux reconciles every ten minutes as its guides set it, Argo CD every three, KEDA every 30 s."""
_OTHERS = ("kubectl", "dovetail", "kube-controller-manager")
"""How the names of managers begin that put nothing back."""


class PutBack(Struct, frozen=True):
    """Which field manager put the field at this path back, and when, in epoch ms, 0 if that is not known."""

    manager: str
    path: str
    at_ms: int

    @property
    def why_not(self) -> str:
        """Why the workload is not stopped again, for its owner."""
        at = f" at {datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC" if self.at_ms else ""
        return (
            f"after the last stop {self.manager} put {self.path} back{at}, and would do so again; let it leave "
            f"that field alone, then remove the annotation {IDLE_STOPPED}"
        )


def put_back(document: Document, path: str) -> PutBack | None:
    """What put the field at this path (`spec.replicas`) back after the last stop; None where nothing did."""
    annotations, entries = at(document, "metadata.annotations"), at(document, "metadata.managedFields")
    if not isinstance(annotations, Mapping) or not isinstance(entries, list):
        return None
    stopped_ms = _time_ms(str(annotations.get(IDLE_STOPPED, "")).partition(",")[0])
    if not stopped_ms:
        return None
    found = [
        PutBack(manager, path, at_ms)
        for entry in entries
        if isinstance(entry, Mapping) and _owns(entry.get("fieldsV1"), path)
        for manager, at_ms in [(str(entry.get("manager", "")), _time_ms(str(entry.get("time", ""))))]
        if not manager.startswith(_OTHERS) and (not at_ms or stopped_ms <= at_ms <= stopped_ms + PUT_BACK_MS)
    ]
    return min(found, key=lambda one: (one.at_ms, one.manager), default=None)


def _owns(fields: Any, path: str) -> bool:
    for step in path.split("."):
        if not isinstance(fields, Mapping):
            return False
        fields = fields.get(f"f:{step}")
    return fields is not None


def _time_ms(text: str) -> int:
    """0 where that is none."""
    try:
        moment = datetime.fromisoformat(text[:32])
    except ValueError:
        return 0
    return epoch_ms(moment) if moment.tzinfo is not None else 0
