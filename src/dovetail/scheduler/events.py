# SPDX-License-Identifier: Apache-2.0
"""Events on pods: what was decided or happened, and by which decision.

Rules: what can happen is a closed set, which docs/reference/events.md lists. Events go through the reporter, behind the
binds; while one waits, a later one of the same kind and pod takes its place.
"""

from __future__ import annotations

from enum import Enum

from dovetail.kube.api import resources as kinds
from dovetail.kube.translate.translator import PodRef
from dovetail.scheduler import wire
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.reporter import Reporter, StepReport


class EventKind(Enum):
    """(reason, action, type). Reasons and actions are kube-scheduler's own where it has the event."""

    BOUND = ("Scheduled", "Binding", "Normal")
    HELD = ("FailedScheduling", "Scheduling", "Warning")
    BIND_FAILED = ("FailedScheduling", "Binding", "Warning")
    PREEMPTED = ("Preempted", "Preempting", "Normal")
    MOVED = ("Moved", "Preempting", "Normal")
    RELEASED = ("GangReleased", "Evicting", "Warning")
    BROKEN = ("GangBroken", "Evicting", "Warning")
    PREEMPTING = ("WaitingForEvictions", "Preempting", "Normal")
    GIVEN_UP = ("PreemptionGivenUp", "Preempting", "Warning")

    def __init__(self, reason: str, action: str, severity: str) -> None:
        self.reason = reason
        self.action = action
        self.severity = severity


class Events:
    """`run_id` and the number of a step are the id of what was decided in it, which the event carries; `instance` is
    who writes."""

    def __init__(self, reporter: Reporter, clock: Clock, run_id: str, instance: str) -> None:
        self._reporter = reporter
        self._clock = clock
        self._run_id = run_id
        self._instance = instance

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
            regarding=target, related=related,
            severity=kind.severity, reason=kind.reason, action=kind.action, note=note, instance=self._instance,
            decision="" if step is None else wire.decision_id(self._run_id, step), now_ms=self._clock.now_ms(),
        )  # fmt: skip
        report = StepReport("event", "POST", kinds.EVENTS.path(target.namespace), body)
        self._reporter.put(f"event/{kind.name}/{target.uid}", report)
