# SPDX-License-Identifier: Apache-2.0
"""The logs of a pod of an endpoint: those of its pod on the host, passed on as they come."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from dovetail.agentplanes.facts import HostPod
from dovetail.apiserver.failures import Failure, bad_request, not_found
from dovetail.apiserver.objects import text_at
from dovetail.apiserver.planes.host import PlaneHost
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.http1 import Dropped
from dovetail.kube.api.resources import PODS

QUERY = ("container", "follow", "limitBytes", "previous", "sinceSeconds", "sinceTime", "tailLines", "timestamps")
"""Parameters that are passed on."""
HostPodOf = Callable[[PlaneName, str], HostPod | None]


class PodLogs:
    """`host_pod` finds the pod on the host by the uid of the endpoint's pod."""

    def __init__(self, client: Client, planes: PlaneHost, host_pod: HostPodOf) -> None:
        self._client = client
        self._planes = planes
        self._host_pod = host_pod

    async def answer(
        self, request: web.BaseRequest, plane: PlaneName, namespace: str, name: str
    ) -> web.StreamResponse:  # fmt: skip
        """What containers of the pod have written. Raises Failures."""
        async with self._planes.plane(plane.namespace, plane.name) as api:
            pod = api.store.get(PODS.plural, namespace, name)
        if pod is None:
            raise not_found("", "pods", name)
        host = self._host_pod(plane, text_at(pod, "metadata.uid"))
        if host is None:
            why = text_at(pod, "status.reason") or text_at(pod, "status.phase")
            raise bad_request(f'pod "{name}" has no logs: it is not on the host ({why})')
        query = {field: request.query[field] for field in QUERY if field in request.query}
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        try:
            async with self._client.stream(PODS.path(plane.namespace, host.name, "log"), query) as connection:
                await response.prepare(request)
                while data := await connection.read():
                    await response.write(data)
                await response.write_eof()
        except ApiError as error:
            raise Failure(error.status or 503, error.reason, error.message.replace(host.name, name)) from error
        except Dropped:
            # What came is shown; the rest is cut off, as where a kubelet goes away.
            if request.transport is not None:
                request.transport.abort()
        return response
