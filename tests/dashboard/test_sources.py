# SPDX-License-Identifier: Apache-2.0
"""What answers the pages: the running scheduler, and a copy of a playground that is followed by watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from dovetail.core.json_text import decode_json
from dovetail.core.policy import Policy, unhurried
from dovetail.dashboard.copied_cluster import CopiedCluster, follow
from dovetail.dashboard.serve import ShownCluster, bound, run
from dovetail.dashboard.sources import SchedulerViews, SourceAway
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig, load_kubeconfig
from dovetail.kube.objects.views import EXPLANATIONS, NODE_LISTS
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.playground import Fault, Playground
from dovetail.views.node_types import NodeList
from tests.cli.viewed import serving
from tests.dashboard.worlds import answers_of, node, pod

POLICY = unhurried(Policy())


@asynccontextmanager
async def playing() -> AsyncIterator[tuple[Playground, ClusterConfig]]:
    playground = Playground()
    try:
        config = ClusterConfig(await playground.start(still=True))
        playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        playground.put(node("a"))
        yield playground, config
    finally:
        await playground.stop()


@asynccontextmanager
async def cancelled(task: asyncio.Task[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_running_scheduler_answers_and_its_step_shows_whether_there_is_news(tmp_path: Path) -> None:
    with serving(answers_of(node("a"), pod("waits", 9)), tmp_path) as config:
        loaded = load_kubeconfig((config,))
        async with Client(loaded) as client:
            source = SchedulerViews(loaded, client)
            assert await source.moment("") == await source.moment("")
            found = await source.ask(ViewRequest(NODE_LISTS, ""))
            assert [one.node for one in decode_json(found.answer, NodeList).nodes] == ["a"]
            assert (await source.ask(ViewRequest(NODE_LISTS, "team-a", alone=True))).metadata.namespace == "team-a"
            with pytest.raises(NoSuchObject, match="did you mean"):
                await source.ask(ViewRequest(EXPLANATIONS, "team-a", "wait", query={"kind": "job"}))
    async with Client(loaded) as client:
        with pytest.raises(SourceAway):
            await SchedulerViews(loaded, client).moment("")


async def test_a_copy_follows_a_playground(caplog: pytest.LogCaptureFixture) -> None:
    async with playing() as (playground, config):
        copy = CopiedCluster(config.server, POLICY, "dovetail")
        with pytest.raises(SourceAway, match="not read yet"):
            await copy.moment("")
        async with cancelled(asyncio.create_task(follow(copy, config, "dovetail"))), asyncio.timeout(60):
            await copy.changed.wait()
            assert await _used(copy) == {"a": 0}
            moment = await copy.moment("")
            assert await copy.moment("") == moment
            copy.changed.clear()
            playground.put(pod("runs", 3, on="a"))
            await copy.changed.wait()
            assert await copy.moment("") != moment
            assert await _used(copy) == {"a": 3}
            with pytest.raises(NoSuchObject, match="did you mean"):
                await copy.ask(ViewRequest(EXPLANATIONS, "team-a", "run", query={"kind": "job"}))


async def _used(copy: CopiedCluster) -> dict[str, int]:
    found = decode_json((await copy.ask(ViewRequest(NODE_LISTS, ""))).answer, NodeList)
    return {one.node: one.used for one in found.nodes}


async def test_a_list_that_cannot_be_read_is_named() -> None:
    async with playing() as (playground, config):
        playground.faults.add(Fault("answer", "", "pods", times=1000, status=403))
        copy = CopiedCluster(config.server, POLICY, "dovetail")
        async with cancelled(asyncio.create_task(follow(copy, config, "dovetail"))):
            for _ in range(600):
                if copy.unread == "the cluster is not read yet: pods/v1 (the log has what the API server answered)":
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(copy.unread)


@asynccontextmanager
async def shown(cluster: ShownCluster) -> AsyncIterator[ClientSession]:
    listening, ready = bound("127.0.0.1:0"), asyncio.Event()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    work = run(cluster, listening, authorize=False, ready=lambda _: ready.set())
    async with cancelled(asyncio.create_task(work)), asyncio.timeout(60), ClientSession(url) as client:
        await ready.wait()
        yield client


async def test_where_the_api_server_has_no_views_the_cluster_is_followed() -> None:
    async with playing() as (_, config), shown(ShownCluster(POLICY, "dovetail", config)) as client:
        status = 503
        while status == 503:
            async with client.get("/api/fleet.json") as reply:
                status, document = reply.status, await reply.json()
        assert [one["node"] for one in document["page"]["nodes"]] == ["a"]


async def test_with_views_only_no_cluster_is_followed_and_the_pages_report_what_lacks() -> None:
    async with playing() as (_, config), shown(ShownCluster(POLICY, "dovetail", config, views_only=True)) as client:
        async with client.get("/api/fleet.json") as reply:
            assert reply.status == 503
            assert (await reply.json())["error"] == "the API server has no views.dovetail.dev/v1alpha1"
        async with client.get("/healthz") as reply:
            assert (reply.status, await reply.text()) == (200, "ok"), "the process itself is well"
