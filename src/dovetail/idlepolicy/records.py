# SPDX-License-Identifier: Apache-2.0
"""What is written: events for the owner, the time of the notice, and the one change that stops a workload.

Rules
- The time of the notice is written after its events, and the events that a workload was stopped after that: where the
  process ends in between, the next one writes the events once more, which changes nothing, or the annotation has it.
- Before a workload is stopped a dry run shows whether its kind has the field: the API server drops one that the
  CustomResourceDefinition does not have, and would answer as if it were written.
- It is stopped by one request, together with its annotation `dovetail.dev/idle-stopped`. The request is for the
  object as it was read: a change meanwhile, such as a consent that was withdrawn, refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dovetail.idlepolicy.decision import IdlePolicy, act_ms, notice_ms
from dovetail.idlepolicy.reading import PodsOwner
from dovetail.idlepolicy.stoppable import SUSPEND
from dovetail.jobs.kinds import Document, at, text_at
from dovetail.jobs.notices import REASON, STOPPED_REASON, Notice, write_one
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.errors import KubeError
from dovetail.kube.objects.base import time_text
from dovetail.kube.objects.holding import HoldingPod
from dovetail.kube.translate.annotations import IDLE_NOTICED, IDLE_STOPPED, PREFIX, WHEN_IDLE

MANAGER = "dovetail-idle-policy"
MOST_PODS = 16
"""Pods of a workload that get an event in one pass; the event on the workload is always written."""


class FieldDropped(KubeError):
    """The field by which a workload is stopped is not in its kind."""


_INTENT = {True: "suspended", False: "scaled to zero"}
_KEY = PREFIX + WHEN_IDLE


async def notify_pod(client: Client, pod: HoldingPod, workload: PodsOwner, policy: IdlePolicy, now_ms: int) -> bool:
    """Write the event on an idle pod; False where it is there. Raises ApiError."""
    since_ms = workload.since_ms[pod.metadata.uid]
    note = f"Its GPUs are idle since {_minute(since_ms)}. {consequence(workload, policy, now_ms)}"
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return await write_one(client, Notice(name, pod.metadata.uid, _time(since_ms), note), _time(now_ms))


async def notify_owner(client: Client, workload: PodsOwner, policy: IdlePolicy, now_ms: int) -> None:
    """Write the event on a workload, and then that it has one. Raises ApiError."""
    since_ms = workload.facts(now_ms).since_ms
    note = f"The GPUs of its pods are idle since {_minute(since_ms)}. {consequence(workload, policy, now_ms)}"
    await write_one(client, _notice(workload, since_ms, note, REASON), _time(now_ms))
    await _patch(client, workload, {"metadata": {"annotations": {IDLE_NOTICED: time_text(now_ms)}}})


async def stop(client: Client, workload: PodsOwner, now_ms: int) -> None:
    """Suspend it or scale it to zero. Raises ApiError, Conflict where it has changed since it was read, FieldDropped
    where its kind has no such field."""
    assert workload.kind is not None and workload.kind.way is not None
    way = workload.kind.way
    before = at(workload.document, way.path)
    replicas = f", replicas {1 if before is None else before}" if way.path == "spec.replicas" else ""
    change: Any = way.value(time_text(now_ms))
    for step in reversed(way.path.split(".")):
        change = {step: change}
    annotations = change.setdefault("metadata", {}).setdefault("annotations", {})
    annotations[IDLE_STOPPED] = f"{time_text(now_ms)}{replicas}"
    tried = await _patch(client, workload, change, {"dryRun": "All"})
    if not way.holds(at(tried, way.path)):
        raise FieldDropped(f"the CustomResourceDefinition of {workload.kind.resource.kind} has no {way.path}")
    await _patch(client, workload, change)


async def report_stop(client: Client, workload: PodsOwner, now_ms: int) -> None:
    """Write the events about a workload that was stopped. Raises ApiError."""
    assert workload.kind is not None and workload.kind.way is not None
    way, resource = workload.kind.way, workload.kind.resource
    since_ms = workload.facts(now_ms).since_ms
    plural = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    undo = way.undo(plural, workload.name, at(workload.document, way.path))
    note = (
        f"{_title(workload)} was {way.done} at {_minute(now_ms)}, as its GPUs were idle since {_minute(since_ms)} and "
        f"its annotation {_KEY} is {way.consent}. To undo it: {undo} -n {workload.namespace}"
    )
    await write_one(client, _notice(workload, since_ms, note, STOPPED_REASON), _time(now_ms))
    for pod in workload.pods[:MOST_PODS]:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        notice = Notice(name, pod.metadata.uid, _time(since_ms), note, reason=STOPPED_REASON)
        await write_one(client, notice, _time(now_ms))


def consequence(workload: PodsOwner, policy: IdlePolicy, now_ms: int) -> str:
    """What follows, for the owner."""
    facts, title = workload.facts(now_ms), _title(workload)
    if workload.kind is None or workload.kind.way is None:
        return "Nothing is changed: end it if nobody needs it."
    consent = workload.kind.way.consent
    becomes = _INTENT[consent == SUSPEND]
    if workload.when_idle == consent and not facts.consents:
        return f"{title} is not {becomes}: {workload.kind.why_not(workload.document)}."
    if not facts.consents:
        return (
            f"Nothing is changed: end it if nobody needs it. With the annotation {_KEY}: {consent} on {title} it would "
            f"be {becomes}."
        )
    if not facts.since_ms:
        return f"{title} will be {becomes}, as its annotation {_KEY} asks, if all of its GPUs become idle."
    due_ms = act_ms(facts.since_ms, notice_ms(facts, policy, now_ms), policy)
    return (
        f"{title} will be {becomes} at {_minute(due_ms)} or later, as its annotation {_KEY} asks, unless one of its "
        f"GPUs is used before or the annotation is removed."
    )


def _title(workload: PodsOwner) -> str:
    kind = workload.kind.resource.kind if workload.kind is not None else "Pod"
    return f"{kind} {workload.namespace}/{workload.name}"


def _notice(workload: PodsOwner, since_ms: int, note: str, reason: str) -> Notice:
    assert workload.kind is not None
    name = f"{workload.namespace}/{workload.name}"
    return Notice(name, workload.uid, _time(since_ms), note, workload.kind.resource, reason)


async def _patch(
    client: Client, workload: PodsOwner, change: dict[str, Any], params: Mapping[str, str] = {}
) -> Document:  # fmt: skip
    assert workload.kind is not None
    meta = {key: text_at(workload.document, f"metadata.{key}") for key in ("uid", "resourceVersion")}
    body = {**change, "metadata": {**change["metadata"], **meta}}
    path = workload.kind.resource.path(workload.namespace, workload.name)
    params = {"fieldManager": MANAGER, **params}
    found: Document = await client.request(
        "PATCH", path, body, params=params, content_type=MERGE_PATCH, decode=dict[str, Any]
    )
    return found


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)


def _minute(ms: int) -> str:
    return f"{_time(ms):%Y-%m-%d %H:%M} UTC"
