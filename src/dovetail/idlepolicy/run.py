# SPDX-License-Identifier: Apache-2.0
"""Repeats: read which pods are idle, write the notices that are due, and stop one workload if one is due.

Rules
- Directly before a workload is stopped all that speaks for it is read again. What is not so any more is left alone.
- What fails for one workload is tried again in a later pass, and keeps no other from its turn.
- A pass writes about `_MOST_NOTICES`, and of the pods of a workload `MOST_PODS`; the others are written by the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from msgspec import Struct

from dovetail import __runs__, __version__
from dovetail.idlepolicy import metrics, records
from dovetail.idlepolicy.decision import IdlePolicy, next_act, step_of
from dovetail.idlepolicy.reading import ClusterReader, PodsOwner, Reports
from dovetail.idlepolicy.stoppable import NOTHING
from dovetail.kube import probe_server
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover_when_up
from dovetail.kube.api.errors import Conflict, KubeError
from dovetail.kube.objects.holding import HoldingPod
from dovetail.kube.probe_server import Answer
from dovetail.kube.translate.annotations import options_of

PATHS = ("/healthz", "/readyz", "/metrics")
_MOST_NOTICES = 100
_STUCK_S = 1800.0


class IdlePolicyOptions(Struct, frozen=True):
    """The options of `dovetail idle-policy`. `listen` is HOST:PORT of health and metrics, "" for none; `every_s` is
    between two passes."""

    policy: IdlePolicy = IdlePolicy()
    exempt_namespaces: frozenset[str] = frozenset()
    listen: str = "0.0.0.0:10357"
    every_s: float = 60.0


async def run(config: ClusterConfig, options: IdlePolicyOptions) -> None:
    """Until cancelled. Raises ApiError when the API server refuses the first contact, OSError if the port is taken."""
    async with Client(config, user_agent="dovetail-idle-policy") as client:
        passes = IdlePasses(client, options)
        async with _listening(options, passes):
            metrics.log.info("dovetail %s (%s), reading the cluster at %s", __version__, __runs__(), config.server)
            await discover_when_up(client, metrics.log)
            while True:
                await passes.once()
                await asyncio.sleep(options.every_s)


class IdlePasses:
    """`clock_ms` is the time of day, `monotonic_s` a clock that never goes back."""

    def __init__(
        self,
        client: Client,
        options: IdlePolicyOptions,
        clock_ms: Callable[[], int] = lambda: round(time.time() * 1000),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._reader = ClusterReader(client)
        self._options = options
        self._clock_ms = clock_ms
        self._monotonic_s = monotonic_s
        self._acted_s = self.ended_s = monotonic_s()
        self._noticed_ms: dict[str, int] = {}
        self._tried_ms: dict[str, int] = {}
        self.failure = "waiting for the first pass"
        """Why the last pass was not whole; "" if it was."""

    async def once(self) -> None:
        """One pass."""
        now_ms = self._clock_ms()
        try:
            reports = await self._reader.reports(now_ms)
            found = await self._idle_workloads(reports, now_ms)
            await self._notify(found, now_ms)
            await self._act(found, now_ms)
        except KubeError as error:
            self._failed("the cluster cannot be read", error)
            self.failure = str(error)
        else:
            self.failure = ""
            metrics.LAST_PASS.set(now_ms / 1000)
        self.ended_s = self._monotonic_s()

    async def _idle_workloads(self, reports: Reports, now_ms: int) -> dict[str, PodsOwner]:
        """The workloads with a pod that is due for a notice, by uid."""
        least_ms, found, seen = self._options.policy.notify_after_ms, dict[str, PodsOwner](), set[str]()
        idle_now = {uid for idle in reports.values() for uid in idle}
        self._noticed_ms = {uid: at_ms for uid, at_ms in self._noticed_ms.items() if uid in idle_now}
        for node, idle in sorted(reports.items()):
            due = {uid for uid, since_ms in idle.items() if now_ms - since_ms >= least_ms}
            for pod in await self._reader.pods_on(node) if due else ():
                if pod.metadata.uid not in due - seen or pod.metadata.namespace in self._options.exempt_namespaces:
                    continue
                try:
                    workload = await self._reader.workload_of(pod, reports)
                except KubeError as error:
                    self._failed(f"what made pod {pod.metadata.namespace}/{pod.metadata.name} cannot be read", error)
                    continue
                seen.update(workload.since_ms)
                if workload.when_idle != NOTHING:
                    found[workload.uid] = workload
        self._tried_ms = {uid: at_ms for uid, at_ms in self._tried_ms.items() if uid in found}
        return found

    async def _notify(self, found: Mapping[str, PodsOwner], now_ms: int) -> None:
        """Write the notices that are due."""
        policy, left, waiting, back = self._options.policy, _MOST_NOTICES, 0, 0
        for workload in sorted(found.values(), key=lambda one: (one.facts(now_ms).since_ms, one.uid)):
            facts = workload.facts(now_ms)
            step = step_of(facts, policy, now_ms)
            waiting += step in ("wait", "act")
            back += workload.put_back
            due = [pod for pod in workload.pods if self._pod_is_due(pod, workload, now_ms)] if left > 0 else []
            try:
                for pod in due[: records.MOST_PODS]:
                    left -= 1
                    if await records.notify_pod(self._client, pod, workload, policy, now_ms):
                        metrics.NOTICES.labels("pod").inc()
                    self._noticed_ms[pod.metadata.uid] = now_ms
                if left > 0 and facts.consents and step == "notify":
                    left -= 1
                    await records.notify_owner(self._client, workload, policy, now_ms)
                    metrics.NOTICES.labels("workload").inc()
            except KubeError as error:
                self._failed(f"no notice for {workload.namespace}/{workload.name}", error)
        metrics.WAITING.set(waiting)
        metrics.PUT_BACK.set(back)

    def _pod_is_due(self, pod: HoldingPod, workload: PodsOwner, now_ms: int) -> bool:
        since_ms = workload.since_ms[pod.metadata.uid]
        idle = since_ms and now_ms - since_ms >= self._options.policy.notify_after_ms
        again = self._noticed_ms.get(pod.metadata.uid, 0) < since_ms
        return bool(idle) and again and options_of(pod.metadata).when_idle != NOTHING

    async def _act(self, found: Mapping[str, PodsOwner], now_ms: int) -> None:
        """Stop the workload that is due, if one is and it is time for the next."""
        policy = self._options.policy
        facts = [one.facts(now_ms, self._tried_ms.get(one.uid, 0)) for one in found.values()]
        chosen = next_act(facts, policy, now_ms, round((self._monotonic_s() - self._acted_s) * 1000))
        if chosen is None:
            return
        self._tried_ms[chosen.uid] = now_ms
        workload = found[chosen.uid]
        kind = workload.kind
        assert kind is not None and kind.way is not None
        name = f"{kind.resource.kind} {workload.namespace}/{workload.name}"
        try:
            now_ms = self._clock_ms()
            reports = await self._reader.reports_of((pod.spec.node_name for pod in workload.pods), now_ms)
            again = await self._reader.again(workload, reports)
            if again is None or step_of(again.facts(now_ms), policy, now_ms) != "act":
                metrics.ACTS.labels(kind.way.consent, "changed").inc()
                return
            self._acted_s = self._monotonic_s()
            await records.stop(self._client, again, now_ms)
        except Conflict:
            metrics.ACTS.labels(kind.way.consent, "changed").inc()
            return
        except KubeError as error:
            metrics.ACTS.labels(kind.way.consent, "refused").inc()
            self._failed(f"{name} cannot be {kind.way.done}", error)
            return
        metrics.ACTS.labels(kind.way.consent, "done").inc()
        metrics.log.info("%s was %s: its GPUs are idle", name, kind.way.done)
        try:
            await records.report_stop(self._client, again, now_ms)
        except KubeError as error:
            self._failed(f"no event that {name} was {kind.way.done}", error)

    def _failed(self, what: str, error: KubeError) -> None:
        metrics.ERRORS.inc()
        metrics.log.warning("%s: %s; trying again", what, error)

    @property
    def stuck_s(self) -> float:
        """For how long no pass has ended, if that is too long; else 0."""
        since_s = self._monotonic_s() - self.ended_s
        return since_s if since_s > _STUCK_S else 0.0

    def answers(self) -> Mapping[str, Answer]:
        """The handler of each path of health and metrics."""
        return dict(zip(PATHS, (self._healthz, self._readyz, self._metrics), strict=True))

    async def _healthz(self, _: web.BaseRequest) -> web.Response:
        text = f"no pass for {self.stuck_s:.0f} s" if self.stuck_s else "ok"
        return web.Response(status=503 if self.stuck_s else 200, text=f"{text}\n")

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        return web.Response(status=503 if self.failure else 200, text=f"{self.failure or 'ok'}\n")

    async def _metrics(self, _: web.BaseRequest) -> web.Response:
        return probe_server.exposition()


@asynccontextmanager
async def _listening(options: IdlePolicyOptions, passes: IdlePasses) -> AsyncIterator[None]:
    """Serve health and metrics until the end of the block, if enabled. Raises OSError."""
    if not options.listen:
        yield
        return
    async with probe_server.opened(options.listen, passes.answers()):
        yield
