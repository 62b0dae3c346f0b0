# SPDX-License-Identifier: Apache-2.0
"""The API server with faults in front of it, with the servers in pods that are simulated behind its proxy, and with the
logs of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec import Struct

from dovetail.apiserver import failures
from dovetail.apiserver.connections import break_connection
from dovetail.apiserver.resources import Catalogue
from dovetail.apiserver.server import ApiServer, is_watch, reply, target_of
from dovetail.apiserver.store import Store
from dovetail.playground.faults import Fault, Faults
from dovetail.playground.gpu_exporters import SimulatedExporters
from dovetail.playground.pod_logs import WrittenLogs


def proxied_pod(path: str) -> tuple[str, str, str] | None:
    """Namespace, name and path of a request that goes through the proxy to a pod: `.../pods/NAME:PORT/proxy/PATH`."""
    match path.strip("/").split("/", 7):
        case ["api", "v1", "namespaces", namespace, "pods", pod, "proxy", rest]:
            return namespace, pod.partition(":")[0], rest
    return None


def logged_pod(path: str) -> tuple[str, str] | None:
    """Namespace and name of the pod whose logs are at this path."""
    match path.strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "pods", name, "log"]:
            return namespace, name
    return None


PodServer = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
"""Answers a request for a path of the server in a pod."""


class FaultyServer(Struct, frozen=True):
    """Answers the requests of one playground. A fault may happen to each of them first."""

    server: ApiServer
    store: Store
    catalogue: Catalogue
    faults: Faults
    exporters: SimulatedExporters
    logs: WrittenLogs
    pod_servers: dict[tuple[str, str], PodServer]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request comes here."""
        target, watching = target_of(self.catalogue, request.path), is_watch(request)
        proxied, logged = proxied_pod(request.path), logged_pod(request.path)
        label, name = (target.label, target.name) if target else ("", "")
        if proxied is not None:
            label, name = "pods/proxy", proxied[1]
        elif logged is not None:
            label, name = "pods/log", logged[1]
        fault = self.faults.next_for("WATCH" if watching else request.method, label, name)
        try:
            if fault is not None:
                await _happen(fault, request)
            if proxied is not None:
                response = await self._proxy(request, *proxied)
            elif logged is not None and request.method == "GET":
                response = await self.logs.answer(request, *logged)
            else:
                response = await self.server.handle(request)
        except failures.Failure as failure:
            response = reply(failure.code, failure.status)
        if fault is not None and fault.effect == "drop-after" and not watching:
            break_connection(request.transport)
        return response

    async def _proxy(self, request: web.BaseRequest, namespace: str, name: str, path: str) -> web.StreamResponse:
        """The answer of the server in a pod: one of `pod_servers`, or the simulated exporter of an agent."""
        if self.store.get("pods", namespace, name) is None:
            raise failures.not_found("", "pods", name)
        own = self.pod_servers.get((namespace, name))
        if own is not None:
            return await own(request, path)
        text = self.exporters.metrics(namespace, name, frozenset(request.query.getall("name[]", ())))
        if text is None or path != "metrics":
            raise failures.Failure(503, "ServiceUnavailable", "no server of this pod is simulated here")
        return web.Response(text=text, content_type="text/plain")


async def _happen(fault: Fault, request: web.BaseRequest) -> None:
    """Apply the part of a fault that comes before the request is carried out. Raises the Failure of an `answer`."""
    match fault.effect:
        case "answer":
            why = fault.message or f"the playground is set to answer {fault.status}"
            reason = failures.REASONS.get(fault.status, "")
            raise failures.Failure(fault.status, reason, why, retry_after_s=fault.retry_after_s)
        case "delay":
            await asyncio.sleep(fault.delay_s)
        case "drop-before":
            break_connection(request.transport)
            raise failures.Failure(500, "", "the connection is broken, nobody reads this")
        case "drop-after":
            pass
