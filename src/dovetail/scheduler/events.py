# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what was decided or happened, and by which decision.

Rules: what can happen is a closed set, which docs/reference/events.md lists. Events go through the reporter, behind the
binds; while one waits, a later one of the same kind and pod takes its place.
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
    """One run of a scheduler. `id` and the number of a step are the id of what was decided in it, which events carry;
    `instance` is the replica."""

    id: str
    instance: str


class EventKind(Enum):
    """Reasons and actions are kube-scheduler's own where it has the event."""

    BOUND = EventType("Scheduled", "Binding", "Normal")
    HELD = EventType("FailedScheduling", "Scheduling", "Warning")
    BIND_FAILED = EventType("FailedScheduling", "Binding", "Warning")
    PREEMPTED = EventType("Preempted", "Preempting", "Normal")
    MOVED = EventType("Moved", "Preempting", "Normal")
    RELEASED = EventType("GangReleased", "Evicting", "Warning")
    BROKEN = EventType("GangBroken", "Evicting", "Warning")
    PREEMPTING = EventType("WaitingForEvictions", "Preempting", "Normal")
    GIVEN_UP = EventType("PreemptionGivenUp", "Preempting", "Warning")


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
        """About a pod. `step` is when it was decided, None where it was not; `related` is another pod that it is
        about."""
        body = wire.event(
            kind.value, regarding=target, related=related, note=note,
            decision="" if step is None else wire.decision_id(self._run.id, step),
            instance=self._run.instance, now_ms=self._clock.now_ms(),
        )  # fmt: skip
        report = StepReport("event", "POST", kinds.EVENTS.path(target.namespace), body)
        self._reporter.put(f"event/{kind.name}/{target.uid}", report)
