# SPDX-License-Identifier: Apache-2.0
"""Carries out what the core decides about leases: makes GPULeases, writes their status and that of LeaseRequests, and
ends leases.

Rules
- What concerns a request and its lease is written in the order of the decisions (`ordered_writes`). A lease that cannot
  be made is reported to the core as removed, and its request begins again.
- A lease is made after the ends of earlier leases on its nodes, so that no device is in two leases in the API. The ends
  of later ones wait for it.
- At the end of a lease its status comes first, then its pods are deleted with a grace period of 30 s at most: budgets
  and longer grace periods are the agent's, which had its notice. The object is deleted when the server has taken all of
  that and the status of the plane has what the lease charged. So a process that starts finds what is left to do and to
  charge: leases that have ended, and pods of leases that are no more.
- Where the server refuses the last status, the object is deleted at once: other leases may have its devices then, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec import Struct

from dovetail.core.bargaining.leases import LiveLease
from dovetail.core.bargaining.states import GpuLeaseState, RequestState
from dovetail.core.bargaining.types import Answer, GpuLease, LeaseRequest
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.decisions import Decision, EndLease, GrantLease, LeaseStatus, MakeOffers, RequestStatus, RevokeLease
from dovetail.core.events import LeaseRemoved
from dovetail.core.model import Pod
from dovetail.core.state import State
from dovetail.kube.api.client import Client
from dovetail.kube.api.resources import GPU_LEASES, LEASE_REQUESTS
from dovetail.kube.informers import Informers
from dovetail.kube.objects import leases as wire
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.translate import lease_documents
from dovetail.kube.translate.lease_requests import lease_id
from dovetail.scheduler import metrics
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.lease_api import LeaseApi, key_of
from dovetail.scheduler.ordered_writes import OrderedWrites, WriteRefused

GRANTED = RequestState.GRANTED.value
_FENCE = "/spec/fence"
_BEGIN_AGAIN_S = 10.0
Document = dict[str, Any]


class _Lease(Struct, frozen=True):
    """A lease in the API: its fence, its plane, its nodes, and its status as it was last decided."""

    fence: int
    plane: str
    nodes: frozenset[str]
    status: Document


class _Ended(Struct, frozen=True):
    """A lease that was over at `at_ms`: its fence (0: not known), its plane, its last status (None: it has it), and the
    pods that ran in it."""

    fence: int
    plane: str
    at_ms: int
    status: Document | None
    pods: tuple[str, ...]


class LeaseWriter:
    """`put` takes each decision of the core about leases, after the step. `begin` is to be called once, when this
    process begins to lead, and `read` with each lease that was read. `spawn` runs work in the background."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        mirror: Informers,
        *,
        state: Callable[[], State],
        may_write: Callable[[], bool],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._clock = clock
        self._mirror = mirror
        self._state = state
        self._spawn = spawn
        self._api = LeaseApi(client, mirror)
        self._writes = OrderedWrites(may_write=may_write, spawn=spawn, refused=self._not_made)
        """By the id of a request, which is that of its lease."""
        self._requests: dict[str, Document] = {}
        """The status of each request that waits, as it was last decided."""
        self._answers: dict[str, Answer | None] = {}
        """The answer to the last offers of each request, None before it came."""
        self._leases: dict[str, _Lease] = {}
        self._ending: dict[int, frozenset[str]] = {}
        """The nodes of leases with an end that is not written yet, by fence."""
        self._ended = asyncio.Event()
        self._over: dict[str, dict[str, tuple[str, int]]] = {}
        """By plane the leases that are over but for their object: its uid, and the time of the end."""

    def pending(self, namespace: str) -> bool:
        """Whether something that was decided about the namespace is not written yet."""
        return self._writes.pending(namespace)

    def begin(self) -> None:
        """Finish what the last leader left behind."""
        state, left = self._state(), dict[str, tuple[int, str, int]]()
        for obj in self._mirror.gpu_leases.known.values():
            id_ = lease_id(obj.metadata)
            if id_ in state.leases.live:
                self.read(id_)
            elif obj.status is not None and obj.status.state == GpuLeaseState.ENDED.value:
                ended_ms = epoch_ms(obj.status.ended)
                left[id_] = obj.spec.fence, f"{obj.metadata.namespace}/{obj.spec.plane}", ended_ms
        for pod in state.workloads.pods.values():
            if _inside(pod) and pod.lease not in state.leases.live:
                left.setdefault(pod.lease, (0, "", 0))
        for id_, (fence, plane, ended_ms) in left.items():
            pods = [pod.uid for pod in state.workloads.pods.values() if _inside(pod) and pod.lease == id_]
            self._writes.add(id_, "end", partial(self._finish, id_, _Ended(fence, plane, ended_ms, None, tuple(pods))))

    def over(self, plane: str) -> bool:
        """Whether leases of the plane are over whose objects wait until the status of the plane has them."""
        return plane in self._over

    def counted(self, plane: str, at_ms: int) -> None:
        """The status of the plane has all that was charged until then."""
        over = self._over.get(plane, {})
        for id_, (uid, ended_ms) in list(over.items()):
            if ended_ms <= at_ms:
                del over[id_]
                self._writes.add(id_, "deletion", partial(self._api.delete, id_, uid))
        if not over:
            self._over.pop(plane, None)

    def plane_gone(self, plane: str) -> None:
        """The plane was removed: it has no status any more that leases could wait for."""
        self.counted(plane, FOR_EVER_MS)

    def request_gone(self, id_: str) -> None:
        """A request was removed, or begins again."""
        if key_of(id_) not in self._mirror.lease_requests.known:
            self._forget(id_)

    def read(self, id_: str) -> None:
        """A lease was read. What an earlier process has not written of it is written now."""
        live, obj = self._state().leases.live.get(id_), self._mirror.gpu_leases.known.get(key_of(id_))
        if live is None or obj is None or id_ in self._leases:
            return
        before = obj.status.state if obj.status is not None else ""
        if before != live.state.value:
            self._write_status(live.lease, _status(live))
        else:
            self._remember(live.lease, _status(live))
        self._led_to(id_, obj)

    def _led_to(self, id_: str, obj: wire.GPULease) -> None:
        """A lease was read. An earlier process may have ended before it wrote the status of its request."""
        asked = self._mirror.lease_requests.known.get(key_of(id_))
        led_to_it = asked is not None and asked.metadata.uid == obj.spec.request_uid
        if led_to_it and asked is not None and (asked.status is None or asked.status.state != GRANTED):
            self._granted(id_)

    def put(self, decision: Decision) -> None:
        match decision:
            case MakeOffers():
                self._first_answer(decision.request)
                self._answers[decision.request] = None
                self._request(decision.request, lease_documents.offered(decision, self._generation(decision.request)))
            case RequestStatus():
                before, generation = self._requests.get(decision.request), self._generation(decision.request)
                if decision.state == RequestState.BACKING_OFF.value and self._answers.get(decision.request) is None:
                    metrics.count(metrics.LEASE_ANSWERS, "lapsed")
                self._request(decision.request, lease_documents.request_status(decision, generation, before))
            case GrantLease():
                self._first_answer(decision.lease.id)
                self._grant(decision.lease)
            case LeaseStatus(lease, _, _, refused):
                self._count_renewal(lease, refused)
                self._changed(lease.id, refused)
            case RevokeLease(lease_id):
                self._changed(lease_id, "")
            case EndLease():
                self._end(decision)

    def answered(self, request: LeaseRequest) -> None:
        """An agent has written its request: count its answer to the offers that stand."""
        answer = request.answer
        if answer is not None and self._answers.get(request.id, answer) is None:
            self._answers[request.id] = answer
            metrics.count(metrics.LEASE_ANSWERS, answer.action)

    def _count_renewal(self, lease: GpuLease, refused: str) -> None:
        known = self._leases.get(lease.id)
        if refused:
            metrics.count(metrics.LEASE_RENEWALS, "refused")
        elif known is not None and known.status["renewals"] < lease.renewals:
            metrics.count(metrics.LEASE_RENEWALS, "renewed")

    def _first_answer(self, id_: str) -> None:
        """Measure how long the first offer of a request, or its lease, took."""
        known = self._mirror.lease_requests.known.get(key_of(id_))
        state = self._requests.get(id_, {}).get("offers")
        if known is not None and state is None and known.metadata.creation_timestamp is not None:
            waited_ms = self._clock.now_ms() - epoch_ms(known.metadata.creation_timestamp)
            metrics.LEASE_WAIT_SECONDS.observe(max(0, waited_ms) / 1000)

    def _generation(self, request: str) -> int:
        known = self._mirror.lease_requests.known.get(key_of(request))
        return known.metadata.generation if known is not None else 0

    def _request(self, id_: str, status: Document) -> None:
        known = self._mirror.lease_requests.known.get(key_of(id_))
        if known is None:
            self._forget(id_)
            return
        self._requests[id_] = status
        test = "/metadata/uid", known.metadata.uid
        write = partial(self._api.patch, LEASE_REQUESTS, id_, test, status)
        self._writes.add(id_, "request", write, replaces=True, patient=True)

    def _granted(self, id_: str) -> None:
        self._request(id_, lease_documents.granted(key_of(id_)[1], self._generation(id_)))
        self._forget(id_)

    def _forget(self, request: str) -> None:
        self._requests.pop(request, None)
        self._answers.pop(request, None)

    def _grant(self, lease: GpuLease) -> None:
        # By the time of the write another request may have the name.
        asked = self._mirror.lease_requests.known.get(key_of(lease.id))
        uid = asked.metadata.uid if asked is not None else ""
        self._writes.add(lease.id, "lease", partial(self._make, lease, uid))
        self._write_status(lease, lease_documents.lease_status(lease))
        self._granted(lease.id)

    def _changed(self, id_: str, refused: str) -> None:
        live = self._state().leases.live.get(id_)
        # One that ended in the same step has no other status.
        if live is not None:
            self._write_status(live.lease, _status(live, refused))

    def _remember(self, lease: GpuLease, status: Document) -> None:
        nodes = frozenset(holding.node for holding in lease.holdings)
        self._leases[lease.id] = _Lease(lease.fence, lease.plane, nodes, status)

    def _write_status(self, lease: GpuLease, status: Document) -> None:
        self._remember(lease, status)
        write = partial(self._api.patch, GPU_LEASES, lease.id, (_FENCE, lease.fence), status)
        self._writes.add(lease.id, "status", write, replaces=True)

    def _end(self, decision: EndLease) -> None:
        id_, known = decision.lease, self._mirror.gpu_leases.known.get(key_of(decision.lease))
        lease = self._leases.pop(id_, None)
        if lease is None:
            # Read by this process, and over at once.
            fence = known.spec.fence if known is not None else 0
            plane = f"{key_of(id_)[0]}/{known.spec.plane}" if known is not None else ""
            lease = _Lease(fence, plane, frozenset(), {})
            if known is not None:
                self._led_to(id_, known)
        self._ending[lease.fence] = lease.nodes
        self._mirror.feed.leases.over(id_, lease.fence)
        # It was charged until the step.
        ended_ms = self._state().now_ms
        status = lease_documents.ended(decision, ended_ms, lease.status)
        ended = _Ended(lease.fence, lease.plane, ended_ms, status, decision.uids)
        self._writes.add(id_, "end", partial(self._finish, id_, ended))
        metrics.count(metrics.LEASE_ENDS, decision.cause.value)

    def _not_made(self, id_: str, _: WriteRefused) -> None:
        """The lease ends for the core, and its request begins again after a while."""
        lease, known = self._leases.pop(id_, None), self._mirror.gpu_leases.known.get(key_of(id_))
        # The answer to a write that was carried out may have been lost, and a quota refuses the next one.
        made = lease is not None and known is not None and known.spec.fence == lease.fence
        self._mirror.put([LeaseRemoved(id_, lease.fence if lease is not None else 0, made)])
        self._spawn(self._begin_again(id_))

    async def _begin_again(self, id_: str) -> None:
        await asyncio.sleep(_BEGIN_AGAIN_S)
        self._mirror.put(self._mirror.feed.leases.again(id_))

    async def _make(self, lease: GpuLease, request_uid: str) -> None:
        nodes = {holding.node for holding in lease.holdings}
        while any(fence < lease.fence and nodes & ending for fence, ending in self._ending.items()):
            await self._ended.wait()
        try:
            await self._api.make(lease, request_uid)
        except WriteRefused:
            # If it is over by now, its end is not written either.
            self._end_written(lease.fence)
            raise

    def _end_written(self, fence: int) -> None:
        """Leases on its nodes need not wait for this end any more."""
        self._ending.pop(fence, None)
        self._ended.set()
        self._ended = asyncio.Event()

    async def _finish(self, id_: str, ended: _Ended) -> None:
        uid = ""
        if ended.status is not None and ended.fence:
            uid = await self._api.end(id_, ended.fence, ended.status)
        self._end_written(ended.fence)
        await asyncio.gather(*(self._api.delete_pod(pod) for pod in ended.pods))
        known = self._mirror.gpu_leases.known.get(key_of(id_))
        if not uid and known is not None and known.spec.fence == ended.fence:
            uid = known.metadata.uid
        if not uid:
            return
        if ended.plane in self._state().requests.planes:
            self._over.setdefault(ended.plane, {})[id_] = uid, ended.at_ms
        else:
            await self._api.delete(id_, uid)


def _status(live: LiveLease, refused: str = "") -> Document:
    return lease_documents.lease_status(live.lease, live.state.value, refused, live.action)


def _inside(pod: Pod) -> bool:
    """Whether the scheduler has placed the pod within a lease."""
    return bool(pod.lease and pod.node and pod.recorded)
