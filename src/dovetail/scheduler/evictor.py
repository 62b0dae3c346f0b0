# SPDX-License-Identifier: Apache-2.0
"""Executes evictions through the Eviction API, which respects disruption budgets: all pods of one decision or, as far
as a dry run shows, none.

Rules
- Nothing is written unless this process is the leader at that moment. Every request carries the pod's uid: another pod
  of the same name is never evicted. Pods end with their own grace period.
- Before the first of several pods is evicted, a dry run asks for all of them: a budget that forbids one keeps the
  others running. A budget may allow each eviction alone and not all together, so the real request may still be refused.
- A temporary refusal (a budget, an overloaded server) is retried with back-off for half a minute; then the eviction has
  failed. An unreachable server is retried without limit. A pod that is gone counts as evicted.
- The eviction comes first, then the reason in the pod's condition DisruptionTarget: on eviction the API server writes
  that condition itself, over any other, and a pod that stays must not carry it.
Sources: k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go; pkg/scheduler/framework/preemption (the reason).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from dovetail.core.decisions import Cause
from dovetail.core.model import Pod
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import STRATEGIC_PATCH, Attempts, Client
from dovetail.kube.api.errors import ApiError, Conflict, KubeError, NotFound, OutcomeUnknown, Unreachable
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import metrics, wire
from dovetail.scheduler.clock import Clock

_IN_FLIGHT = 16
_PATIENCE_S = 30.0
_AGAIN_S = 0.5
_AGAIN_MAX_S = 8.0
_FOR_NOW = (401, 408, 409, 429)
"""Temporary refusals. A conflict is about the uid; the watch then shows the pod's state."""

_REASONS = {
    "reclaim": "PreemptionByScheduler",
    "preempt": "PreemptionByScheduler",
    "move": "PreemptionByScheduler",
    "release": "GangReleased",
    "broken": "GangBroken",
    "drain": "NodeMaintenance",
    "stop": "QueueStopped",
}
"""The reason in the condition DisruptionTarget: the upstream one where there is one."""

Result = Literal["evicted", "gone", "refused", "withdrawn", "not leader"]


class Victim(Struct, frozen=True):
    """A pod to evict. `workload` is the gang, or the uid of the single pod, that gets the capacity; for a released or
    broken gang it is that gang itself, for a drain the node or the queue. `note` states the beneficiary and the reason,
    `step` is the step of the decision, `preemptor` is one of the pods that get the capacity."""

    target: Pod
    cause: Cause | Literal["release", "broken", "drain", "stop"]
    workload: str
    note: str
    step: int
    preemptor: Pod | None = None


class Evictor:
    """`evicted` is called for each evicted pod, `failed` for a pod that stays, with the reason."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        feed: Translator,
        *,
        may_write: Callable[[], bool],
        evicted: Callable[[Victim], None],
        failed: Callable[[Victim, str], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._feed = feed
        self._may_write = may_write
        self._evicted = evicted
        self._failed = failed
        self._wanted: dict[str, Victim] = {}
        """By uid. A pod that is no longer in it is not evicted."""
        self._room = asyncio.Semaphore(_IN_FLIGHT)

    async def evict(self, victims: Sequence[Victim]) -> None:
        """Evict the pods of one decision. Returns when each request has its final result."""
        self._wanted |= {victim.target.uid: victim for victim in victims}
        if len(victims) == 1 or await self._agreed(victims):
            await asyncio.gather(*(self._carry_out(victim) for victim in victims))

    def withdraw(self, workload: str) -> None:
        """Cancel the evictions for this workload that are not done yet: it no longer needs the capacity."""
        self._wanted = {uid: victim for uid, victim in self._wanted.items() if victim.workload != workload}

    async def _agreed(self, victims: Sequence[Victim]) -> bool:
        """Whether the dry run allows each eviction. If not, all pods stay, and one is reported as failed."""
        answers = await asyncio.gather(*(self._ask(victim, dry_run=True) for victim in victims))
        if all(result in ("evicted", "gone") for result, _ in answers):
            return True
        reported = False
        for victim, (result, why) in zip(victims, answers, strict=True):
            if result == "refused" and not reported:
                reported = True
                self._fail(victim, why)
            else:
                self._end(victim, "withdrawn" if result in ("evicted", "gone") else result)
        return False

    async def _carry_out(self, victim: Victim) -> None:
        result, why = await self._ask(victim, dry_run=False)
        if result == "refused":
            self._fail(victim, why)
            return
        if result == "evicted":
            await self._write_condition(victim)
            self._evicted(victim)
        self._end(victim, result)

    def _fail(self, victim: Victim, why: str) -> None:
        metrics.log.warning("pod %s is not evicted: %s", victim.target.key, why)
        self._end(victim, "refused")
        self._failed(victim, why)

    def _end(self, victim: Victim, result: Result) -> None:
        if self._wanted.get(victim.target.uid) is victim:
            del self._wanted[victim.target.uid]
        metrics.count(metrics.EVICTIONS, victim.cause, result)

    async def _ask(self, victim: Victim, *, dry_run: bool) -> tuple[Result, str]:
        """Request one eviction, with retries. Returns the result, and the reason of a refusal."""
        target = victim.target
        path = kinds.PODS.path(target.namespace, target.name, "eviction")
        body = wire.eviction(target.namespace, target.name, target.uid)
        params = {"dryRun": "All"} if dry_run else None
        deadline_s, wait_s = time.monotonic() + _PATIENCE_S, _AGAIN_S
        while True:
            async with self._room:
                if self._wanted.get(target.uid) is not victim:
                    return "withdrawn", ""
                if self._feed.reported(target.uid) is None:
                    return "gone", ""
                if not self._may_write():
                    return "not leader", ""
                try:
                    # Safe to repeat: a second request finds the pod terminating, which is no further disruption.
                    await self._client.request("POST", path, body, params=params, attempts=Attempts(idempotent=True))
                    return "evicted", ""
                except NotFound:
                    return "gone", ""
                except KubeError as error:
                    if _final(error) or (time.monotonic() > deadline_s and not _lost(error)):
                        return "refused", _cause_of(error)
                    after_s = error.retry_after_s if isinstance(error, ApiError) else None
            await asyncio.sleep(max(wait_s, min(after_s or 0.0, _AGAIN_MAX_S)))
            wait_s = min(2 * wait_s, _AGAIN_MAX_S)

    async def _write_condition(self, victim: Victim) -> None:
        """Write the reason into the condition DisruptionTarget; the pod may be gone by now."""
        target = victim.target
        path = kinds.PODS.path(target.namespace, target.name, "status")
        body = wire.disruption_target(target.uid, _REASONS[victim.cause], victim.note, self._clock.now_ms())
        try:
            await self._client.request("PATCH", path, body, content_type=STRATEGIC_PATCH)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            metrics.log.warning("the condition of %s has no reason of the eviction: %s", target.key, error)


def _lost(error: KubeError) -> bool:
    return isinstance(error, Unreachable | OutcomeUnknown)


def _final(error: KubeError) -> bool:
    return isinstance(error, ApiError) and 400 <= error.status < 500 and error.status not in _FOR_NOW


def _cause_of(error: KubeError) -> str:
    """The error, with the messages of the budget that forbids the eviction."""
    causes = [cause.message for cause in error.details.causes if cause.message] if isinstance(error, ApiError) else []
    return "; ".join([str(error), *causes])
