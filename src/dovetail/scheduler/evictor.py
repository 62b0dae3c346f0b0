# SPDX-License-Identifier: Apache-2.0
"""Carrying out evictions: by the API that keeps disruption budgets, all pods of one decision or, as far as that can be
known before, none.

Rules
- Nothing is written unless this process is the leader at that moment. Every request names the pod's uid: another pod of
  the same name is left alone. Pods end with their own grace.
- Before the first of several pods is evicted, all are asked for without effect (dryRun): a budget that forbids one
  keeps the others running. What a budget still allows for each of them it may not allow for all, so the second asking
  may be refused as well.
- What is refused for now (a budget, a server that has too much to do) is asked for again, later each time, for half a
  minute; then it has failed. A server that cannot be reached is waited for. A pod that is gone is as good as evicted.
- The eviction comes first, then the reason in the pod's condition DisruptionTarget: the API server writes that
  condition itself, over any other, when it evicts, and a pod that stays must not carry it.
Sources: k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go; pkg/scheduler/framework/preemption (the reason).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from dovetail.core.decisions import Cause
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import STRATEGIC_PATCH, Attempts, Client
from dovetail.kube.api.errors import ApiError, Conflict, KubeError, NotFound, OutcomeUnknown, Unreachable
from dovetail.kube.translate.translator import PodRef, Translator
from dovetail.scheduler import metrics, wire
from dovetail.scheduler.clock import Clock

_IN_FLIGHT = 16
_PATIENCE_S = 30.0
_AGAIN_S = 0.5
_AGAIN_MAX_S = 8.0
_FOR_NOW = (401, 408, 409, 429)
"""Refusals that may end by themselves; a conflict is about the uid, and the watch tells what became of the pod."""

_REASONS = {
    "reclaim": "PreemptionByScheduler",
    "preempt": "PreemptionByScheduler",
    "move": "PreemptionByScheduler",
    "release": "GangReleased",
    "broken": "GangBroken",
}
"""Of the condition: upstream's own word where there is one."""

Result = Literal["evicted", "gone", "refused", "withdrawn", "not leader"]


class Victim(Struct, frozen=True):
    """A pod that is to leave its node, for `workload` (the gang, or the lone pod's uid, that gets the room; of a gang
    that is released, or broken, that gang itself). `note` says for whom and why, `step` is when it was decided, and
    `preemptor` one of the pods that get the room."""

    target: PodRef
    cause: Cause | Literal["release", "broken"]
    workload: str
    note: str
    step: int
    preemptor: PodRef | None = None


class Evictor:
    """`evicted` is called for each pod that was told to end, `failed` for one that stays, with why."""

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
        """By uid. Who is not in it any more is left alone."""
        self._room = asyncio.Semaphore(_IN_FLIGHT)

    async def evict(self, victims: Sequence[Victim]) -> None:
        """All of one decision. Returns when it is known what became of each."""
        self._wanted |= {victim.target.uid: victim for victim in victims}
        if len(victims) == 1 or await self._agreed(victims):
            await asyncio.gather(*(self._carry_out(victim) for victim in victims))

    def withdraw(self, workload: str) -> None:
        """Whoever was to have the room wants it no more: who was not evicted yet stays."""
        self._wanted = {uid: victim for uid, victim in self._wanted.items() if victim.workload != workload}

    async def _agreed(self, victims: Sequence[Victim]) -> bool:
        """Whether each of them could be evicted now. If not, all stay, and one is told as failed."""
        answers = await asyncio.gather(*(self._ask(victim, dry_run=True) for victim in victims))
        if all(result in ("evicted", "gone") for result, _ in answers):
            return True
        told = False
        for victim, (result, why) in zip(victims, answers, strict=True):
            if result == "refused" and not told:
                told = True
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
            await self._say_why(victim)
            self._evicted(victim)
        self._end(victim, result)

    def _fail(self, victim: Victim, why: str) -> None:
        metrics.log.warning("pod %s is not evicted: %s", victim.target, why)
        self._end(victim, "refused")
        self._failed(victim, why)

    def _end(self, victim: Victim, result: Result) -> None:
        if self._wanted.get(victim.target.uid) is victim:
            del self._wanted[victim.target.uid]
        metrics.count(metrics.EVICTIONS, victim.cause, result)

    async def _ask(self, victim: Victim, *, dry_run: bool) -> tuple[Result, str]:
        """How it ended, and why it was refused."""
        target = victim.target
        path = kinds.PODS.path(target.namespace, target.name, "eviction")
        body = wire.eviction(target.namespace, target.name, target.uid)
        params = {"dryRun": "All"} if dry_run else None
        deadline_s, wait_s = time.monotonic() + _PATIENCE_S, _AGAIN_S
        while True:
            async with self._room:
                if self._wanted.get(target.uid) is not victim:
                    return "withdrawn", ""
                if self._feed.pod_ref(target.uid) is None:
                    return "gone", ""
                if not self._may_write():
                    return "not leader", ""
                try:
                    # Sent twice, the second finds the pod ending, which is no disruption any more.
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

    async def _say_why(self, victim: Victim) -> None:
        """In the condition of a pod that may be gone by now."""
        target = victim.target
        path = kinds.PODS.path(target.namespace, target.name, "status")
        body = wire.disruption_target(target.uid, _REASONS[victim.cause], victim.note, self._clock.now_ms())
        try:
            await self._client.request("PATCH", path, body, content_type=STRATEGIC_PATCH)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            metrics.log.warning("the condition of %s does not say why it was evicted: %s", target, error)


def _lost(error: KubeError) -> bool:
    return isinstance(error, Unreachable | OutcomeUnknown)


def _final(error: KubeError) -> bool:
    return isinstance(error, ApiError) and 400 <= error.status < 500 and error.status not in _FOR_NOW


def _cause_of(error: KubeError) -> str:
    """In a budget's own words, where one forbids it."""
    causes = [cause.message for cause in error.details.causes if cause.message] if isinstance(error, ApiError) else []
    return "; ".join([str(error), *causes])
