# SPDX-License-Identifier: Apache-2.0
"""Events (events.k8s.io/v1): what is written about an object, for `kubectl describe` and the owners of the object.

Rules: those of the API server (pkg/apis/core/validation/events.go), in this place alone.
- The name is a DNS subdomain of 253 characters. It is made of the name of the object, cut to fit, and an ending.
- An event is in the namespace of its object; one about an object of the whole cluster is in `default`.
- `reportingInstance` is there and has 128 bytes at most, `note` 1024. `reason` and `action` are there, with 128 bytes
  at most: they are constants.
- `eventTime` is there; the fields of core/v1 that begin with `deprecated` are not.
- Nothing of an event changes but its series, which has a count of at least 2.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from dovetail.kube.api.resources import EVENTS, NODES, Resource
from dovetail.kube.api.texts import NOTE_BYTES, clipped
from dovetail.kube.objects.base import micro_time_text

_NAME_LENGTH, _INSTANCE_BYTES = 253, 128
_OF_THE_CLUSTER = "default"


class EventObject(Struct, frozen=True):
    """The object that an event is about. `namespace` is "" for one of the whole cluster."""

    resource: Resource
    namespace: str
    name: str
    uid: str


class EventNote(Struct, frozen=True):
    """What an event reports. `type` is "Normal" or "Warning"; a longer `note` is clipped."""

    reason: str
    action: str
    type: str
    note: str


class EventReporter(Struct, frozen=True):
    """The part of Dovetail that writes an event, and which one of several it is."""

    controller: str
    instance: str

    @classmethod
    def here(cls, controller: str) -> EventReporter:
        """The instance is this machine."""
        return cls(controller, socket.gethostname())


def event_document(
    about: EventObject, report: EventNote, reporter: EventReporter, at_ms: int, ending: str,
    related: EventObject | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The Event to create. Two events of one object and `ending` have one name: the second is AlreadyExists."""
    # Without an ellipsis: deploy/agent/own-node.yaml compares it with the name of the node.
    instance = reporter.instance.encode()[:_INSTANCE_BYTES].decode(errors="ignore")
    document = {
        **_type_of(EVENTS),
        "metadata": {"namespace": about.namespace or _OF_THE_CLUSTER, "name": event_name(about.name, ending)},
        "eventTime": micro_time_text(at_ms),
        "reportingController": reporter.controller,
        "reportingInstance": instance or reporter.controller,
        "reason": report.reason,
        "action": report.action,
        "type": report.type,
        "note": clipped(report.note, NOTE_BYTES),
    }
    for field, one in (("regarding", about), ("related", related)):
        if one is not None:
            namespace = {"namespace": one.namespace} if one.namespace else {}
            # The kubelet's events on a node have the name of the node as uid, and `kubectl describe node` shows those
            # alone.
            uid = one.name if one.resource == NODES else one.uid
            document[field] = {**_type_of(one.resource), **namespace, "name": one.name, "uid": uid}
    return document


def event_name(name: str, ending: str) -> str:
    """The name of an event. A part of a DNS subdomain must not end with what a cut may leave there."""
    most = _NAME_LENGTH - 1 - len(ending)
    return f"{name if len(name) <= most else name[:most].rstrip('-.')}.{ending}"


def series_document(count: int, at_ms: int) -> dict[str, Any]:
    """A merge patch of an event that has happened `count` times by now, the last time at `at_ms`."""
    return {"series": {"count": count, "lastObservedTime": micro_time_text(at_ms)}}


@cache
def _type_of(resource: Resource) -> Mapping[str, str]:
    return {"apiVersion": resource.api_version, "kind": resource.kind}
