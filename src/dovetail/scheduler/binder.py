# SPDX-License-Identifier: Apache-2.0
"""Executes binds, many at a time: volumes and devices first. A failed bind goes back to the core as an event.

Rules
- Nothing is written unless this process is the leader at that moment.
- A bind carries the pod's uid as precondition: it cannot hit another pod of the same name, and may be repeated.
- After any answer but success the pod is read until its state is certain. Then the core always gets an event, as a pod
  that is not bound must not stay assumed. For a pod that is bound to another node, the watch delivers that event.
- A bind that waits for volumes, for drivers that prepare devices, or for its turn on a node (see `bind_serializer`)
  delays no other bind.
- A failed bind releases the pod's ResourceClaims before the core gets the event.
- Where the node needs a NUMA guard (see `numa_guard`), it is requested last, right before the bind.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.decisions import Bind, VolumePick
from dovetail.core.events import BindFailed
from dovetail.core.model import Pod
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import MERGE_PATCH, Attempts, Client
from dovetail.kube.api.errors import Conflict, KubeError, NotFound, OutcomeUnknown, Unreachable
from dovetail.kube.informers import Informers
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.objects.topology import GPUNode
from dovetail.scheduler import metrics, wire
from dovetail.scheduler.bind_serializer import BindSerializer
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.numa_guard import NumaGuards
from dovetail.scheduler.reservations import DeviceReservations, NotReady

WORKERS = 96
_LULL_S = 0.1
"""Binds come in bursts. Work that waits for the end of a burst must not start between two binds."""
_SOON_MS = 1_000
_NODE_RETRY_MS = 5_000
_REFUSED_RETRY_MS = 10_000
_ASK_AGAIN_S = 1.0
_PREPARE_TIMEOUT_S = 600.0
_PREPARE_POLL_S = 0.2
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""The annotation of the volume controller. A claim with a volume name but without it may still lose the volume."""


class _Item(Struct, frozen=True):
    """A bind decided at `decided_s` (time.monotonic), with the record to write. `claims`: the pod has ResourceClaims to
    reserve. `slow`: it waits for volumes or drivers first. `stale`: it goes back to the core, to be decided again."""

    bind: Bind
    target: Pod
    record: str
    decided_s: float
    claims: bool
    slow: bool
    stale: bool = False


class NotLeader(Exception):
    """This process is not the leader and must not write."""


class Binder:
    """`put` takes each Bind; its devices and record are written to the pod with the bind. `bound` is called for each
    success. `failed` is called with the event for the core and with the pod to report on (None: no report). `forbidden`
    answers why a pod of a lease must not be bound any more."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        mirror: Informers,
        *,
        may_write: Callable[[], bool],
        failed: Callable[[BindFailed, Pod | None], None],
        bound: Callable[[Bind, Pod], None],
        run_id: str,
        forbidden: Callable[[str], str] = lambda uid: "",
    ) -> None:
        self._client = client
        self._clock = clock
        self._mirror = mirror
        self._may_write = may_write
        self._failed = failed
        self._bound = bound
        self._run_id = run_id
        self._forbidden = forbidden
        self._fences = NumaGuards(client, mirror.feed, run_id)
        self._reservations = DeviceReservations(client, clock, mirror, self._check_leader)
        self._queue: deque[_Item] = deque()
        self._tasks: asyncio.TaskGroup
        self._workers = 0
        self._turns: BindSerializer[_Item] = BindSerializer(mirror.feed, self._enqueue, self._decide_anew)
        mirror.feed.on_gpu_node = self._on_gpu_node
        self._in_flight = 0
        self.idle = asyncio.Event()
        """Set when no bind has been in flight for a moment. Binds that wait for volumes, drivers or their turn do not
        count."""
        self.idle.set()
        self._lull: asyncio.TimerHandle | None = None

    def put(self, bind: Bind, target: Pod, record: str) -> None:
        claims, slow = bool(bind.reserve) or bind.made is not None, bool(bind.volumes)
        if claims:
            self._reservations.expect(bind)
            slow = slow or self._reservations.waits(bind)
        item = _Item(bind, target, record, time.monotonic(), claims, slow)
        if slow or self._mirror.feed.node_records.gpu_node(bind.node) is None:
            self._enqueue(item)
        else:
            self._turns.take(bind.node, bind.uid, item)

    async def let_go(self, keys: Sequence[str], uid: str, made: str) -> None:
        """Release devices that will not become ready, of a pod that waits for them."""
        with suppress(NotLeader):
            await self._reservations.let_go(keys, uid, made)

    def _on_gpu_node(self, node: GPUNode) -> None:
        self._fences.on_gpu_node(node)
        self._turns.on_gpu_node(node)

    def _decide_anew(self, item: _Item) -> None:
        self._enqueue(replace(item, stale=True))

    async def _withdraw(self, bind: Bind) -> str:
        """Return a stale bind to the core, without an event on the pod: this is no error."""
        await self._reservations.give_back(bind, bind.uid)
        why = "its node has changed before its turn came"
        self._failed(BindFailed(bind.uid, "", why, self._clock.now_ms()), None)
        return "decided anew"

    def _enqueue(self, item: _Item) -> None:
        self._in_flight += 1
        self.idle.clear()
        if self._lull is not None:
            self._lull.cancel()
        self._queue.append(item)
        if self._workers < WORKERS:
            self._workers += 1
            self._tasks.create_task(self._work())

    async def run(self) -> None:
        """Work until cancelled; `put` needs it to run. Raises NotLeader if a bind is due and another process leads."""
        async with asyncio.TaskGroup() as self._tasks:
            await asyncio.Event().wait()

    async def _work(self) -> None:
        while self._queue:
            item = self._queue.popleft()
            if item.slow:
                # A provisioner or driver may take minutes: a task of its own, so that no worker is blocked.
                self._tasks.create_task(self._prepare(item))
            elif item.stale:
                self._end(item, await self._withdraw(item.bind))
            else:
                self._end(item, await self._carry_out(item))
            self._in_flight -= 1
            if not self._in_flight:
                self._lull = asyncio.get_running_loop().call_later(_LULL_S, self.idle.set)
        self._workers -= 1

    def _end(self, item: _Item, result: str) -> None:
        if item.claims:
            self._reservations.forget(item.bind)
        if result != "bound":
            self._turns.failed(item.bind.uid)
        metrics.count(metrics.BINDS, result)
        metrics.BIND_SECONDS.observe(time.monotonic() - item.decided_s)

    async def _carry_out(self, item: _Item) -> str:
        """Bind one pod. Returns the result as the metric labels it."""
        bind, target = item.bind, item.target
        if ("", bind.node) not in self._mirror.nodes.known:
            # The API server would still bind the pod, and the pod garbage collector would delete it a minute later.
            return await self._fail(bind, target, bind.node, _NODE_RETRY_MS, "the node was deleted", "node gone")
        self._check_leader()
        if item.claims:
            try:
                await self._reservations.reserve(bind, target.name, target.uid)
            except (KubeError, NotReady) as error:
                return await self._not_reserved(bind, target, error)
        if self._mirror.feed.node_records.gpu_node(bind.node) is not None:
            if await self._fences.put_up(bind):
                self._turns.fence_stands(bind.uid)
            self._check_leader()
            if self._turns.barred(bind.node, bind.uid):
                return await self._withdraw(bind)
        if target.lease and (why := self._forbidden(bind.uid)):
            return await self._fail(bind, target, "", _SOON_MS, why, "lease over")
        self._check_leader()
        body = wire.binding(target.namespace, target.name, target.uid, bind, self._run_id, item.record)
        path = kinds.PODS.path(target.namespace, target.name, "binding")
        try:
            await self._client.fetch("POST", path, body, attempts=Attempts(idempotent=True))
        except KubeError as error:
            # Even a refusal may follow an earlier attempt that succeeded, if its answer was lost.
            return await self._resolve(bind, target, error)
        self._bound(bind, target)
        return "bound"

    async def _not_reserved(self, bind: Bind, target: Pod, error: KubeError | NotReady) -> str:
        soon = isinstance(error, NotReady | Unreachable | OutcomeUnknown)
        return await self._fail(bind, target, "", _SOON_MS if soon else _REFUSED_RETRY_MS, str(error), "claims")

    async def _resolve(self, bind: Bind, target: Pod, error: KubeError) -> str:
        """Read the pod until its state is certain, however long the server is away."""
        path = kinds.PODS.path(target.namespace, target.name)
        while True:
            try:
                pod = await self._client.request("GET", path, decode=PodObject)
            except NotFound:
                return self._gone(bind)
            except KubeError as unknown:
                self._check_leader()
                if not isinstance(unknown, Unreachable):
                    # When the server is away, the reflectors log it.
                    what = "it is not known whether %s was bound to %s: %s"
                    metrics.log.warning(what, target.key, bind.node, unknown)
                await asyncio.sleep(_ASK_AGAIN_S)
                continue
            if pod.metadata.uid != target.uid:
                return self._gone(bind)
            if pod.spec.node_name == bind.node:
                self._bound(bind, target)
                return "bound"
            if pod.spec.node_name:
                # Another scheduler was faster: the watch delivers the node of the pod.
                return "bound elsewhere"
            if isinstance(error, Conflict | Unreachable | OutcomeUnknown):
                return await self._fail(bind, target, "", _SOON_MS, str(error), "conflict")
            return await self._fail(bind, target, "", _REFUSED_RETRY_MS, str(error), "refused")

    def _gone(self, bind: Bind) -> str:
        self._failed(BindFailed(bind.uid, "", "the pod is gone", self._clock.now_ms() + _REFUSED_RETRY_MS), None)
        return "gone"

    async def _fail(self, bind: Bind, target: Pod, node: str, retry_ms: int, why: str, result: str) -> str:
        """Report a failed bind. The pod avoids `node` ("": every node) for `retry_ms`. Returns `result`."""
        await self._reservations.give_back(bind, target.uid)
        metrics.log.warning("pod %s was not bound to %s (%s): %s", target.key, bind.node, result, why)
        self._failed(BindFailed(bind.uid, node, why, self._clock.now_ms() + retry_ms), target)
        return result

    def _check_leader(self) -> None:
        if not self._may_write():
            raise NotLeader("the lease is no longer ours: nothing more is written")

    async def _prepare(self, item: _Item) -> None:
        """Reserve the chosen volumes and devices, request provisioning of the other volumes, and bind when all are
        ready.

        Fails after ten minutes (kube-scheduler's bindTimeoutSeconds and bindingTimeout), and at once when a claim is
        deleted.
        """
        bind, target = item.bind, item.target
        deadline_s = time.monotonic() + _PREPARE_TIMEOUT_S
        asked: set[str] = set()
        try:
            for pick in bind.volumes:
                await self._choose_volume(pick, bind.node)
            await self._reservations.reserve(bind, target.name, target.uid)
            while waiting := self._waiting(bind, asked):
                if self._mirror.feed.reported(target.uid) is None:
                    self._end(item, "gone")
                    return
                if time.monotonic() > deadline_s:
                    raise NotReady(f"not within {_PREPARE_TIMEOUT_S:g} s: {', '.join(waiting)}")
                await asyncio.sleep(_PREPARE_POLL_S)
        except (KubeError, NotReady) as error:
            result = "volumes" if bind.volumes else "claims"
            ended = await self._fail(bind, target, bind.node, _NODE_RETRY_MS, str(error), result)
            self._end(item, ended)
        else:
            self._turns.take(bind.node, bind.uid, replace(item, slow=False))

    def _waiting(self, bind: Bind, asked: set[str]) -> list[str]:
        """The volumes and device conditions that are not ready yet, as text for the message."""
        unbound = [pick.claim for pick in bind.volumes if not self._claim_bound(pick, bind.node, asked)]
        volumes = [f"a volume for {claim} (see its events and the logs of its provisioner)" for claim in unbound]
        return volumes + self._reservations.unmet(bind)

    async def _choose_volume(self, pick: VolumePick, node: str) -> None:
        """Reserve the volume, or request its provisioning. Every write is conditional on the version that was read: a
        volume or claim that another component has taken is not overwritten."""
        self._check_leader()
        namespace, name = pick.claim.split("/", 1)
        claim = self._mirror.claims.known.get((namespace, name))
        if claim is None or claim.spec.volume_name:
            return
        if not pick.volume:
            chosen = claim.metadata.annotations.get(wire.SELECTED_NODE_ANNOTATION, "")
            if chosen not in ("", node):
                raise NotReady(f"the volume of claim {pick.claim} is being made for node {chosen}")
            path, body = kinds.PVCS.path(namespace, name), wire.node_of_claim(node, claim.metadata.resource_version)
            await self._client.request("PATCH", path, body, content_type=MERGE_PATCH)
            return
        volume = self._mirror.volumes.known.get(("", pick.volume))
        if volume is None:
            raise NotReady(f"the persistentvolume {pick.volume} was deleted")
        owner = volume.spec.claim_ref
        if owner is not None and (owner.namespace, owner.name) != (namespace, name):
            raise NotReady(f"the persistentvolume {pick.volume} was taken by {owner.namespace}/{owner.name}")
        body = wire.claim_of_volume(namespace, name, claim.metadata.uid, volume.metadata.resource_version)
        await self._client.request("PATCH", kinds.PVS.path(name=pick.volume), body, content_type=MERGE_PATCH)

    def _claim_bound(self, pick: VolumePick, node: str, asked: set[str]) -> bool:
        """Whether the claim is bound to its volume for good. `asked` collects the claims seen with the annotation that
        selects this node: a provisioner that cannot make the volume there removes the annotation again."""
        namespace, name = pick.claim.split("/", 1)
        claim = self._mirror.claims.known.get((namespace, name))
        if claim is None:
            raise NotReady(f"the claim {pick.claim} was deleted")
        if claim.spec.volume_name and _BIND_COMPLETED in claim.metadata.annotations:
            return True
        if claim.metadata.annotations.get(wire.SELECTED_NODE_ANNOTATION) == node:
            asked.add(pick.claim)
        elif pick.claim in asked:
            raise NotReady(f"the provisioner cannot make the volume of claim {pick.claim} for this node")
        return False
