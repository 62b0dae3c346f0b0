# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what happened, and the id of the decision behind it.

Rules: the reasons are a closed set; docs/reference/events.md lists them. Events go through the reporter, after the
binds. While an event waits, a later one of the same kind and pod replaces it.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from dovetail.core.model import Pod
from dovetail.kube.api.resources import EVENTS, PODS
from dovetail.kube.translate.annotations import DECISION
from dovetail.kube.translate.event_documents import EventNote, EventObject, EventReporter, event_document
from dovetail.scheduler import wire
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.reporter import Reporter, StepReport

REPORTER = "dovetail"
_encode = msgspec.json.Encoder().encode


class SchedulerRun(Struct, frozen=True):
    """One run of a scheduler. `id` and the number of a step form the decision id, which events carry; `instance` is the
    replica."""

    id: str
    instance: str


class EventType(NamedTuple):
    """The machine-readable part of an Event: its reason, its action, and its type ("Normal" or "Warning")."""

    reason: str
    action: str
    type: str


class EventKind(Enum):
    """Reasons and actions are those of kube-scheduler where it has the same event."""

    BOUND = EventType("Scheduled", "Binding", "Normal")
    HELD = EventType("FailedScheduling", "Scheduling", "Warning")
    BIND_FAILED = EventType("FailedScheduling", "Binding", "Warning")
    PREEMPTED = EventType("Preempted", "Preempting", "Normal")
    MOVED = EventType("Moved", "Preempting", "Normal")
    DRAINED = EventType("Drained", "Evicting", "Normal")
    RELEASED = EventType("GangReleased", "Evicting", "Warning")
    BROKEN = EventType("GangBroken", "Evicting", "Warning")
    PREEMPTING = EventType("WaitingForEvictions", "Preempting", "Normal")
    PREEMPTION_ENDED = EventType("PreemptionGivenUp", "Preempting", "Warning")


class Events:
    def __init__(self, reporter: Reporter, clock: Clock, run: SchedulerRun) -> None:
        self._reporter = reporter
        self._clock = clock
        self._run = run
        self._writer = EventReporter(REPORTER, run.instance)

    def put(
        self,
        target: Pod,
        kind: EventKind,
        note: str,
        *,
        step: int | None = None,
        related: Pod | None = None,
    ) -> None:
        """Queue an Event about a pod. `step` is the step of the decision, None if there is none; `related` is a second
        pod that it concerns. The name of the Event has the time in nanoseconds, as in client-go."""
        about = EventObject(PODS, target.namespace, target.name, target.uid)
        other = EventObject(PODS, related.namespace, related.name, related.uid) if related is not None else None
        document = event_document(
            about, EventNote(*kind.value, note), self._writer, self._clock.now_ms(), f"{time.time_ns():x}", other
        )
        if step is not None:
            document["metadata"]["annotations"] = {DECISION: wire.decision_id(self._run.id, step)}
        report = StepReport("event", "POST", EVENTS.path(target.namespace), _encode(document))
        self._reporter.put(f"event/{kind.name}/{target.uid}", report)
