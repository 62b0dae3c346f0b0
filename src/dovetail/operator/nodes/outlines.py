# SPDX-License-Identifier: Apache-2.0
"""The marks of validation pods, and the events that a walk reads. Source: k8s.io/api events/v1."""

from __future__ import annotations

from datetime import datetime

from dovetail.kube.objects.base import ObjectMeta, Wire, epoch_ms

NODE_OF_VALIDATION = "operator.dovetail.dev/node"
"""Annotation of a validation pod: the node that it validates."""
KEY_OF_VALIDATION = "operator.dovetail.dev/key"
"""Annotation of a validation pod: the driver, agent and layout that it validates."""
SPEC_OF_VALIDATION = "operator.dovetail.dev/spec"
"""Annotation of a validation pod: a digest of the spec.validation that it was made for."""
DEVICES = "dovetail.dev/devices"
"""Annotation that the scheduler writes with the binding: the devices that it chose."""


class EventSeries(Wire, frozen=True):
    last_observed_time: datetime | None = None


class WalkedEvent(Wire, frozen=True):
    """An event of events.k8s.io/v1. Writers of the older API set `deprecated_last_timestamp` alone."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    reason: str = ""
    note: str = ""
    event_time: datetime | None = None
    series: EventSeries | None = None
    deprecated_last_timestamp: datetime | None = None

    @property
    def last_ms(self) -> int:
        """When it was seen last; 0 where that is not known."""
        series = self.series.last_observed_time if self.series is not None else None
        return max(map(epoch_ms, (series, self.deprecated_last_timestamp, self.event_time)))
