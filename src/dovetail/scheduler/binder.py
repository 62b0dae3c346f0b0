# SPDX-License-Identifier: Apache-2.0
"""Carrying out binds: many at a time, volumes first, and what went wrong goes back to the core as an event.

Rules: nothing is written unless this process is the leader at that moment. A bind is sent with the pod's uid, so it
cannot hit another pod of the same name, and may be repeated. Where its outcome is not known (a lost answer, a server
that is away), the pod is read until it is known; only then the core is told. A pod that the server says is bound, or
gone, is left to the watch to tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from dovetail.core.decisions import Bind, VolumePick
from dovetail.core.events import BindFailed, Event
from dovetail.kube import resources as kinds
from dovetail.kube.client import MERGE_PATCH, Client
from dovetail.kube.errors import ApiError, Conflict, KubeError, NotFound, OutcomeUnknown, Unreachable
from dovetail.kube.objects_pod import Pod
from dovetail.kube.objects_storage import PersistentVolumeClaim
from dovetail.kube.reflector import Reflector
from dovetail.scheduler import metrics, wire
from dovetail.scheduler.clock import Clock

WORKERS = 96
_NODE_RETRY_MS = 5_000
_POD_RETRY_MS = 10_000
_ASK_AGAIN_S = 1.0
_VOLUME_TIMEOUT_S = 600.0
_VOLUME_POLL_S = 0.2
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""The volume controller's mark; a volume name alone may still be taken back."""


@dataclass(frozen=True, slots=True)
class Target:
    """A pod to bind, as the API server knows it."""

    namespace: str
    name: str
    uid: str


class NotLeader(Exception):
    """This process must not write any more."""


class Binder:
    """`put` is given every Bind; `tell` receives what the core must know; `bound` is called for each success."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        claims: Reflector[PersistentVolumeClaim],
        *,
        may_write: Callable[[], bool],
        tell: Callable[[Event], None],
        bound: Callable[[Bind, Target], None],
        run_id: str,
    ) -> None:
        self._client = client
        self._clock = clock
        self._claims = claims
        self._may_write = may_write
        self._tell = tell
        self._bound = bound
        self._run_id = run_id
        self._queue: asyncio.Queue[tuple[Bind, Target, float]] = asyncio.Queue()
        self._in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def put(self, bind: Bind, target: Target) -> None:
        self._in_flight += 1
        self.idle.clear()
        self._queue.put_nowait((bind, target, time.monotonic()))

    async def run(self) -> None:
        """Work until cancelled. Raises NotLeader when a bind is due and another process leads."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            bind, target, decided_s = await self._queue.get()
            result = await self._carry_out(bind, target)
            metrics.BINDS.labels(result).inc()
            metrics.BIND_SECONDS.observe(time.monotonic() - decided_s)
            self._in_flight -= 1
            if not self._in_flight:
                self.idle.set()

    async def _carry_out(self, bind: Bind, target: Target) -> str:
        """Bind one pod; the name of how it ended, for the metric."""
        try:
            if bind.volumes:
                await self._prepare_volumes(bind)
            await self._post(bind, target)
        except Conflict as error:
            # Bound already (perhaps by this very request, sent twice), or not to be bound at all: ask.
            return await self._resolve(bind, target, error)
        except NotFound as error:
            return self._failed(bind, "", _POD_RETRY_MS, error, "gone")
        except (OutcomeUnknown, Unreachable) as error:
            return await self._resolve(bind, target, error)
        except ApiError as error:
            return self._failed(bind, "", _POD_RETRY_MS, error, "refused")
        except TimeoutError as error:
            return self._failed(bind, bind.node, _NODE_RETRY_MS, error, "volumes")
        self._bound(bind, target)
        return "bound"

    async def _post(self, bind: Bind, target: Target) -> None:
        self._check_leader()
        body = wire.binding(target.namespace, target.name, target.uid, bind.node, f"{self._run_id}-{bind.step}")
        path = kinds.PODS.path(target.namespace, target.name, "binding")
        await self._client.request("POST", path, body, idempotent=True)

    async def _resolve(self, bind: Bind, target: Target, error: KubeError) -> str:
        """Find out what became of the pod, however long the server is away."""
        while True:
            try:
                pod = await self._client.request("GET", kinds.PODS.path(target.namespace, target.name), decode=Pod)
            except NotFound:
                return self._failed(bind, "", _POD_RETRY_MS, error, "gone")
            except KubeError:
                self._check_leader()
                await asyncio.sleep(_ASK_AGAIN_S)
                continue
            if pod is None or pod.metadata.uid != target.uid:
                return self._failed(bind, "", _POD_RETRY_MS, error, "gone")
            if pod.spec.node_name == bind.node:
                self._bound(bind, target)
                return "bound"
            if pod.spec.node_name:
                # Another scheduler was faster: the watch tells where it went, and that place counts.
                return "bound elsewhere"
            return self._failed(bind, bind.node, _NODE_RETRY_MS, error, "conflict")

    def _failed(self, bind: Bind, node: str, retry_ms: int, error: Exception, result: str) -> str:
        metrics.log.warning("bind of pod %s to %s failed (%s): %s", bind.uid, bind.node, result, error)
        self._tell(BindFailed(bind.uid, node, str(error), self._clock.now_ms() + retry_ms))
        return result

    def _check_leader(self) -> None:
        if not self._may_write():
            raise NotLeader("the lease is no longer ours: nothing more is written")

    async def _prepare_volumes(self, bind: Bind) -> None:
        """Reserve the chosen volumes, ask for the others to be provisioned, and wait until every claim is bound.

        Raises ApiError, and TimeoutError after ten minutes (kube-scheduler's bindTimeoutSeconds).
        """
        for pick in bind.volumes:
            await self._choose_volume(pick, bind.node)
        async with asyncio.timeout(_VOLUME_TIMEOUT_S):
            while True:
                if all(self._claim_bound(pick) for pick in bind.volumes):
                    return
                await asyncio.sleep(_VOLUME_POLL_S)

    async def _choose_volume(self, pick: VolumePick, node: str) -> None:
        self._check_leader()
        namespace, name = pick.claim.split("/", 1)
        claim = self._claims.known.get((namespace, name))
        if claim is None or claim.spec.volume_name:
            return
        if pick.volume:
            body = wire.claim_of_volume(namespace, name, claim.metadata.uid)
            await self._client.request("PATCH", kinds.PVS.path(name=pick.volume), body, content_type=MERGE_PATCH)
        else:
            path = kinds.PVCS.path(namespace, name)
            await self._client.request("PATCH", path, wire.node_of_claim(node), content_type=MERGE_PATCH)

    def _claim_bound(self, pick: VolumePick) -> bool:
        namespace, name = pick.claim.split("/", 1)
        claim = self._claims.known.get((namespace, name))
        return claim is not None and bool(claim.spec.volume_name) and _BIND_COMPLETED in claim.metadata.annotations
