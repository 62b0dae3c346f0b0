# SPDX-License-Identifier: Apache-2.0
"""The status of a GPUStack, from what runs and what the parts report. Its size is bounded.

A pass that finds what is written already writes nothing: no field changes with time alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from dovetail.kube.api.resources import DAEMON_SETS
from dovetail.kube.api.texts import clipped
from dovetail.kube.objects.stack import ComponentStatus, StackStatus
from dovetail.operator.kinds import WORKLOADS
from dovetail.operator.live import LiveObject, ObjectRef
from dovetail.operator.rendering.stack_objects import Document

MOST_COMPONENTS, MOST_BLOCKED, MOST_FOREIGN, MOST_NAMES = 64, 50, 50, 20
_MESSAGE_BYTES = 256


def components(owned: Iterable[tuple[ObjectRef, LiveObject]]) -> tuple[ComponentStatus, ...]:
    """The Deployments, DaemonSets and StatefulSets, by name."""
    found = [_component(ref, live) for ref, live in owned if ref.resource in WORKLOADS]
    return tuple(sorted(found, key=lambda one: (one.name, one.kind)))


def _component(ref: ObjectRef, live: LiveObject) -> ComponentStatus:
    spec, status = _mapping(live.spec), _mapping(live.status)
    if ref.resource != DAEMON_SETS:
        desired, ready = _number(spec.get("replicas", 1)), _number(status.get("readyReplicas"))
        updated = _number(status.get("updatedReplicas"))
    else:
        desired, ready = _number(status.get("desiredNumberScheduled")), _number(status.get("numberReady"))
        updated = _number(status.get("updatedNumberScheduled"))
    image = _image(spec)
    behind = live.metadata.generation > _number(status.get("observedGeneration"))
    message = _failure(status) or (
        "its controller has not seen the newest spec yet" if behind
        else f"{desired - ready} of {desired} pods are not ready" if ready < desired
        else f"{desired - updated} of {desired} pods are of an older spec" if updated < desired
        else ""
    )  # fmt: skip
    return ComponentStatus(
        ref.name, ref.resource.kind, image, _version(image), desired, 0 if behind else ready,
        clipped(message, _MESSAGE_BYTES),
    )  # fmt: skip


def _failure(status: dict[str, Any]) -> str:
    """Why a controller could not make pods: a quota, a webhook, Pod Security."""
    for one in status.get("conditions") or ():
        failed = one.get("type") == "ReplicaFailure" and one.get("status") == "True"
        stuck = one.get("type") == "Progressing" and one.get("status") == "False"
        if failed or stuck:
            return str(one.get("message", ""))
    return ""


def _image(spec: dict[str, Any]) -> str:
    pod = _mapping(_mapping(spec.get("template")).get("spec"))
    containers = pod.get("containers") or [{}]
    return str(_mapping(containers[0]).get("image", ""))


def _version(image: str) -> str:
    """The tag of an image; "" where it is named by a digest alone."""
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def bounded(status: StackStatus) -> StackStatus:
    """The status with its lists cut to their maximum."""
    rollout = status.rollout
    if rollout is not None:
        rollout = replace(rollout, failed=rollout.failed[:MOST_NAMES], working=rollout.working[:MOST_NAMES])
    return replace(
        status,
        components=status.components[:MOST_COMPONENTS],
        blocked=status.blocked[:MOST_BLOCKED],
        foreign=status.foreign[:MOST_FOREIGN],
        rollout=rollout,
    )


def document(status: StackStatus) -> Document:
    """The status as JSON, without fields that have no value, and without empty maps: an apply that takes the last entry
    out of a map leaves null there, which the schema refuses."""
    found: Document = _with_values(msgspec.to_builtins(status))
    return found


def _with_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_values(one) for name, one in value.items() if one is not None and one != {}}
    if isinstance(value, list | tuple):
        return [_with_values(one) for one in value]
    return value
