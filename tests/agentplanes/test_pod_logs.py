# SPDX-License-Identifier: Apache-2.0
"""kubectl logs on an endpoint: the logs of the pod's own pod on the host, and of no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from dovetail.agentplanes.facts import HostPod
from dovetail.agentplanes.pod_logs import PodLogs
from dovetail.apiserver.planes.host import MOST_LOGS, PlaneHost
from dovetail.apiserver.planes.plane import CATALOGUE
from dovetail.apiserver.planes.registry import PlaneName
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from tests.contract.api import Api

POD = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main", "image": "i"}]}}


class HostApi:
    """Stands in for the host's API server: it has the logs of one pod, and writes as much of them as `more` lets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.more = asyncio.Event()
        self.more.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.query)))
        if not request.path.endswith("/one-host/log"):
            status = {"kind": "Status", "reason": "NotFound", "message": "pods not found", "code": 404}
            return web.json_response(status, status=404)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(b"first\n")
        await self.more.wait()
        await response.write(b"second\n")
        await response.write_eof()
        return response


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[PlaneHost]:
    host = PlaneHost(tmp_path)
    await host.start()
    yield host
    await host.stop()


@contextlib.asynccontextmanager
async def agent(host: PlaneHost, name: str = "one") -> AsyncIterator[Api]:
    """A client of the endpoint of this plane."""
    await host.create("team", name)
    headers = {"Authorization": f"Bearer {await host.issue_token('team', name)}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield Api(session, "default", host.url_of("team", name))


@pytest.fixture
async def cluster(host: PlaneHost) -> AsyncIterator[HostApi]:
    """The host's API server, with the endpoints of `host` in front of it."""
    api, application = HostApi(), web.Application()
    application.router.add_get("/{path:.*}", api.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with Client(ClusterConfig(f"http://127.0.0.1:{port}")) as to_host:
        carried: dict[str, HostPod] = {}

        def host_pod(_: PlaneName, uid: str) -> HostPod | None:
            return carried.get(uid)

        host.logs = PodLogs(to_host, host, host_pod).answer
        await host.create("team", "one")
        pods = CATALOGUE.of_collection("pods")
        assert pods is not None
        async with host.plane("team", "one") as plane:
            made = plane.writes.create(pods, "default", POD)
            carried[made["metadata"]["uid"]] = HostPod("one-host", "uid", made["metadata"]["uid"])
            plane.writes.create(pods, "default", POD | {"metadata": {"name": "waits"}})
            gone = plane.writes.create(pods, "default", POD | {"metadata": {"name": "gone"}})
            carried[gone["metadata"]["uid"]] = HostPod("gone-host", "uid", gone["metadata"]["uid"])
        yield api
    await runner.cleanup()


async def log(api: Api, name: str, **query: str) -> tuple[int, str]:
    reply = await api.get(api.path("pods", f"{name}/log"), **query)
    return reply.status, str(reply.body.get("text") or reply.body.get("message"))


async def test_logs_are_those_of_the_pod_on_the_host(cluster: HostApi, host: PlaneHost) -> None:
    async with agent(host) as api:
        shown = await log(api, "one", container="main", tailLines="5", insecureSkipTLSVerifyBackend="true")
    assert shown == (200, "first\nsecond\n")
    assert cluster.asked == [("/api/v1/namespaces/team/pods/one-host/log", {"container": "main", "tailLines": "5"})]


async def test_pods_without_one_on_the_host_have_none(cluster: HostApi, host: PlaneHost) -> None:
    async with agent(host) as api:
        assert (await log(api, "waits"))[0] == 400 and (await log(api, "missing"))[0] == 404
        assert cluster.asked == []
        assert await log(api, "gone") == (404, "pods not found")


async def test_another_plane_has_no_such_pod(cluster: HostApi, host: PlaneHost) -> None:
    async with agent(host, "two") as api:
        assert (await log(api, "one"))[0] == 404 and cluster.asked == []


async def test_what_is_written_is_shown_at_once_and_there_is_a_limit(cluster: HostApi, host: PlaneHost) -> None:
    cluster.more.clear()
    async with agent(host) as api, contextlib.AsyncExitStack() as open_now:
        token = await host.issue_token("team", "one")
        session = await open_now.enter_async_context(
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"})
        )
        url = f"{host.url_of('team', 'one')}{api.path('pods', 'one/log')}?follow=true"
        for _ in range(MOST_LOGS):
            response = await open_now.enter_async_context(session.get(url))
            assert await response.content.readline() == b"first\n"
        assert (await log(api, "one"))[0] == 429
        cluster.more.set()
        assert await response.content.read() == b"second\n"
        await open_now.aclose()
        assert (await log(api, "one"))[0] == 200
