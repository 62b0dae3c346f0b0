# SPDX-License-Identifier: Apache-2.0
"""The broker on a cluster: an agent's calls become objects, and what the scheduler writes into them becomes news.

    async with on_cluster("agent-tuner/tuner") as plane, plane.lease(Option(gpus=2)) as lease: ...

Rules
- A request is a LeaseRequest, a lease the GPULease of its name, a heartbeat the Lease (coordination.k8s.io) of the
  plane's name. Every write may be repeated: names and numbers make the second one harmless.
- `follow` lists, then watches the three kinds from there. Whatever ends a watch for good ends `follow`, and the next
  one lists again.
- Current: watches of different kinds come in no order, so a watch alone never shows that nothing is missing. The
  scheduler answers a heartbeat in the status of the AgentControlPlane (`lastHeartbeat` by its clock, `renewTime` as it
  was read) once all that it decided until then is written. So a list of GPULeases that is read after that answer was
  seen shows all of it: only then Current is yielded. A plane without leases needs no such list.
- The clock is that of the scheduler, from the same answers (`cluster_clock`), and is set in the same moment as Current
  is yielded: the next scheduler has another clock. Nothing is yielded before the first.
- What repeating cannot cure is BrokerRefused, the rest BrokerUnavailable. Once the scheduler was heard, 401, 403 and
  404 may pass: an API server that starts answers so before it has read its rules and definitions.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from dovetail import __version__
from dovetail.core.bargaining.types import LeaseAction, LeaseRequest
from dovetail.kube.api.client import JSON_PATCH, MERGE_PATCH, Attempts, Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
)
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, LEASE_REQUESTS, LEASES
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import agent_documents, leases
from dovetail.kube.translate.lease_documents import Acknowledged, acknowledged
from dovetail.plane.agent_plane import AgentPlane
from dovetail.plane.broker import BrokerRefused, BrokerUnavailable, Current, Notice
from dovetail.plane.cluster_clock import ClusterClock
from dovetail.plane.cluster_view import PlaneView
from dovetail.plane.cluster_watches import ObjectsSeen, PlaneWatches

log = logging.getLogger(__name__)

_CALL = Attempts(timeout_s=10.0, retries=2, idempotent=True)
_BEAT = Attempts(timeout_s=5.0, retries=0, idempotent=True, urgent=True)
_PERIOD_MS = 10_000
"""Between heartbeats where the control plane expects none: their answers are what leases are sure by."""
_FIRST_ANSWER_MS, _NEXT_ANSWER_MS = 30_000, 180_000
"""Longer than a scheduler takes to answer the first heartbeat, and than it leaves between answers."""
_MOST_PERIOD_MS = 60_000
_MOST_SENT = 64
_INVALID = frozenset({400, 405, 413, 415, 422})
_AT_FIRST = frozenset({401, 403, 404})
_ROLE = "bind the ClusterRole dovetail-software-agent (deploy/leases.yaml) in this namespace to the agent's identity"
_KINDS = "is the namespace there, and are the definitions of Dovetail installed (kubectl apply -k deploy/crds)?"


class KubernetesBroker:
    """For any number of planes of one cluster. `wall_ms` makes heartbeats differ from those of earlier processes, and
    decides nothing."""

    def __init__(
        self, client: Client, *, clock: ClusterClock | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:  # fmt: skip
        self._client = client
        self._clock = clock or ClusterClock()
        self._holder = f"dovetail-plane_{secrets.token_hex(4)}"
        # A wall clock that is set back would stand still here: only our steady clock moves it.
        self._wall_from_ms = wall_ms() - self._clock.steady_ms()
        self._renewed_ms = 0
        self._sent: dict[str, deque[tuple[int, int]]] = {}
        """By plane the heartbeats that are not answered: the time in each, and when it was sent by our clock."""
        self._last: dict[str, Acknowledged] = {}
        """By plane the last answer to one of ours."""
        self._periods: dict[str, int] = {}
        self._silent: dict[str, tuple[int, int]] = {}
        """By plane since when there was no answer, by our clock, and after how long that is worth a warning."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kubeconfig: str | None = None, context: str | None = None
    ) -> AsyncIterator[KubernetesBroker]:
        """The cluster of the named kubeconfig, else of $KUBECONFIG, else of the pod's service account, else of
        ~/.kube/config. Raises BrokerRefused where the configuration cannot be used."""
        try:
            client = Client(load_config(kubeconfig, context), user_agent=f"dovetail-plane/{__version__}")
            await client.__aenter__()
        except ConfigError as error:
            raise BrokerRefused(str(error)) from error
        try:
            yield cls(client)
        finally:
            await client.__aexit__(None, None, None)

    @property
    def clock(self) -> ClusterClock:
        return self._clock

    async def period_ms(self, plane: str) -> int:
        """How often the agent of the plane should be heard: what its AgentControlPlane expects, or more often."""
        namespace, _, name = plane.partition("/")
        try:
            path = CONTROL_PLANES.path(namespace, name)
            found = await self._client.request("GET", path, decode=wire.AgentControlPlane, attempts=_CALL)
        except KubeError as error:
            raise self._error(error, _absent(plane)) from error
        self._periods[plane] = min(leases.plane(found).heartbeat_ms or _PERIOD_MS, _MOST_PERIOD_MS)
        return self._periods[plane]

    async def heartbeat(self, plane: str) -> None:
        namespace, _, name = plane.partition("/")
        sent = self._sent.setdefault(plane, deque(maxlen=_MOST_SENT))
        sent_ms = self._clock.steady_ms()
        self._renewed_ms = max(self._renewed_ms + 1, self._wall_from_ms + sent_ms)
        sent.append((self._renewed_ms, sent_ms))
        self._warn_of_silence(plane, sent_ms)
        period_ms = self._periods.get(plane, _PERIOD_MS)
        body = agent_documents.heartbeat_document(plane, self._holder, period_ms, self._renewed_ms)
        path = LEASES.path(namespace, name)
        try:
            try:
                await self._client.request("PATCH", path, body, content_type=MERGE_PATCH, attempts=_BEAT)
            except NotFound:
                await self._client.request("POST", LEASES.path(namespace), body, attempts=_BEAT)
        except AlreadyExists as error:
            raise BrokerUnavailable(str(error)) from error
        except KubeError as error:
            raise self._error(error) from error

    def _warn_of_silence(self, plane: str, now_ms: int) -> None:
        since_ms, most_ms = self._silent.setdefault(plane, (now_ms, _FIRST_ANSWER_MS))
        if now_ms - since_ms >= most_ms:
            self._silent[plane] = since_ms, 2 * most_ms
            log.warning(
                "%s: the scheduler has not answered heartbeats for %d s: is it running, and of this release? Does an "
                "older AgentControlPlane of the namespace count?", plane, (now_ms - since_ms) // 1000,
            )  # fmt: skip

    async def put(self, request: LeaseRequest) -> None:
        namespace, _, name = request.id.partition("/")
        path = LEASE_REQUESTS.path(namespace, name)
        try:
            if request.answer is not None:
                answer = agent_documents.answer_document(request.answer)
                try:
                    await self._set(path, "/spec/answer", answer)
                except NotFound:
                    pass
                else:
                    return
            body = agent_documents.request_document(request)
            try:
                await self._client.request("POST", LEASE_REQUESTS.path(namespace), body, attempts=_CALL)
            except AlreadyExists as error:
                found = await self._client.request("GET", path, decode=wire.LeaseRequest, attempts=_CALL)
                if not agent_documents.asks_for(request, found):
                    rule = "another request has this name: the session of a Plane must differ from all earlier ones"
                    raise BrokerRefused(f"LeaseRequest {request.id}: {rule}") from error
        except KubeError as error:
            if isinstance(error, Forbidden):
                # A quota, or a policy of the cluster.
                raise BrokerRefused(f"{error}: {_ROLE}") from error
            raise self._error(error) from error

    async def withdraw(self, plane: str, request: str) -> None:
        namespace, _, name = request.partition("/")
        try:
            await self._client.request("DELETE", LEASE_REQUESTS.path(namespace, name), attempts=_CALL)
        except NotFound:
            return
        except KubeError as error:
            raise self._error(error) from error

    async def act(self, plane: str, action: LeaseAction) -> None:
        namespace, _, name = action.lease.partition("/")
        path = GPU_LEASES.path(namespace, name)
        try:
            try:
                await self._set(path, "/spec/action", agent_documents.action_document(action))
            except Invalid:
                found = await self._client.request("GET", path, decode=wire.GPULease, attempts=_CALL)
                last = found.spec.action
                if found.spec.fence != action.fence:
                    # It is over, and another lease has its name.
                    return
                if last is None or last.number < action.number:
                    raise
                # An earlier process of the agent wrote an action that the scheduler has not read.
                action = replace(action, number=last.number + 1)
                await self._set(path, "/spec/action", agent_documents.action_document(action))
        except NotFound:
            return
        except KubeError as error:
            raise self._error(error) from error

    async def _set(self, path: str, field: str, value: dict[str, Any]) -> None:
        """Replace a field as a whole."""
        patch = [{"op": "add", "path": field, "value": value}]
        await self._client.request("PATCH", path, patch, content_type=JSON_PATCH, attempts=_CALL)

    async def follow(self, plane: str) -> AsyncIterator[Notice]:
        view = PlaneView(plane)
        watches = PlaneWatches(self._client, view)
        try:
            await watches.begin()
            at_ms, begun = self._answered(plane, view), self._clock.known
            news = view.all(at_ms) if begun else []
            while True:
                for notice in news:
                    yield notice
                self._require(plane, view)
                news = await self._news(plane, view, watches, await watches.next())
                if not begun:
                    # Nothing can be dated before the scheduler has answered.
                    at_ms, begun = self._answered(plane, view), self._clock.known
                    news = view.all(at_ms) if begun else []
        except KubeError as error:
            raise self._error(error) from error
        finally:
            await watches.end()

    async def _news(self, plane: str, view: PlaneView, watches: PlaneWatches, seen: ObjectsSeen) -> list[Notice]:
        if seen.kind == GPU_LEASES.kind:
            return view.leases_changed(seen.events)
        if seen.kind == LEASE_REQUESTS.kind:
            news = view.requests_changed(seen.events)
            return [*await watches.leases(), *news] if view.unsettled(news) else news
        view.control_changed(seen.events)
        answer = acknowledged(view.control.status) if view.control is not None else None
        if answer is None or answer == self._last.get(plane):
            return []
        found = await watches.leases() if view.holds else []
        at_ms = self._answered(plane, view)
        return [*found, Current(at_ms)] if at_ms else found

    def _answered(self, plane: str, view: PlaneView) -> int:
        """Take the answer to a heartbeat of ours. Returns when it was answered, by the scheduler's clock; 0 where the
        last one that was answered is not ours."""
        answer = acknowledged(view.control.status) if view.control is not None else None
        if answer is None:
            return 0
        sent = self._sent.get(plane, deque())
        for number, (renewed_ms, sent_ms) in enumerate(sent):
            if answer.renewed_ms == renewed_ms:
                self._clock.answered(sent_ms, answer.at_ms)
                self._silent[plane] = self._clock.steady_ms(), _NEXT_ANSWER_MS
                self._last[plane] = answer
                for _ in range(number + 1):
                    sent.popleft()
                break
        return answer.at_ms if self._last.get(plane) == answer else 0

    def _require(self, plane: str, view: PlaneView) -> None:
        """Raises BrokerRefused where no scheduler will ever answer, and no lease is left to follow."""
        if view.holds:
            return
        if view.control is None:
            raise BrokerRefused(_absent(plane))
        status = view.control.status
        if status is not None and status.phase == "Ignored":
            older = "an older AgentControlPlane of the namespace counts: use that one, or have it deleted"
            raise BrokerRefused(f"AgentControlPlane {plane}: {older}")

    def _error(self, error: KubeError, hint: str = _KINDS) -> BrokerRefused | BrokerUnavailable:
        """What to raise for an error: whether repeating the call may help, and if not, what does. `hint` is for what is
        not found."""
        status = error.status if isinstance(error, ApiError) else 0
        if status in _INVALID or (status in _AT_FIRST and not self._clock.known):
            about = _ROLE if isinstance(error, Forbidden) else hint if isinstance(error, NotFound) else ""
            return BrokerRefused(f"{error}: {about}" if about else str(error))
        log.log(logging.WARNING if status in _AT_FIRST else logging.INFO, "%s; trying again", error)
        return BrokerUnavailable(str(error))


@asynccontextmanager
async def on_cluster(
    plane: str, *, kubeconfig: str | None = None, context: str | None = None, adopt: bool = False
) -> AsyncIterator[AgentPlane]:
    """The plane of this id ("namespace/name") on a cluster, which is found as `KubernetesBroker.connect` does. Raises
    BrokerRefused where the plane does not exist, or this identity may not be its agent, and BrokerUnavailable where the
    API server does not answer."""
    if not all(plane.partition("/")):
        raise BrokerRefused(f"{plane!r}: a plane is named namespace/name, as its AgentControlPlane")
    async with KubernetesBroker.connect(kubeconfig, context) as broker:
        period_ms = await broker.period_ms(plane)
        async with AgentPlane(broker, plane, heartbeat_ms=period_ms, adopt=adopt) as agent:
            yield agent


def _absent(plane: str) -> str:
    namespace, _, name = plane.partition("/")
    return (
        f"there is no AgentControlPlane {name!r} in the namespace {namespace!r}: have it created "
        "(docs/reference/leases.md)"
    )
