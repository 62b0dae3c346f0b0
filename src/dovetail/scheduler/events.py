# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what happened, and the id of the decision behind it.

Rules: the reasons are a closed set; docs/reference/events.md lists them. Events go through the reporter, after the
binds. While an event waits, a later one of the same kind and pod replaces it.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from dovetail.kube.api import resources as kinds
from dovetail.kube.translate.translator import PodRef
from dovetail.scheduler import wire
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.reporter import Reporter, StepReport
from dovetail.scheduler.wire import EventType


class SchedulerRun(Struct, frozen=True):
    """One run of a scheduler. `id` and the number of a step form the decision id, which events carry; `instance` is the
    replica."""

    id: str
    instance: str


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

    def put(
        self,
        target: PodRef,
        kind: EventKind,
        note: str,
        *,
        step: int | None = None,
        related: PodRef | None = None,
    ) -> None:
        """Queue an Event about a pod. `step` is the step of the decision, None if there is none; `related` is a second
        pod that it concerns."""
        body = wire.event(
            kind.value, regarding=target, related=related, note=note,
            decision="" if step is None else wire.decision_id(self._run.id, step),
            instance=self._run.instance, now_ms=self._clock.now_ms(),
        )  # fmt: skip
        report = StepReport("event", "POST", kinds.EVENTS.path(target.namespace), body)
        self._reporter.put(f"event/{kind.name}/{target.uid}", report)
