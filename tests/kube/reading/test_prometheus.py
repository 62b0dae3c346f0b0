# SPDX-License-Identifier: Apache-2.0
"""Readings of a Prometheus: of a real one that scrapes simulated exporters, and of servers that answer badly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.kube.reading.prometheus import Prometheus
from dovetail.kube.reading.prometheus_api import PrometheusAccess, PrometheusError
from dovetail.playground import Playground
from tests.kube.reading.test_gpu_exporters import agent, node, pod
from tests.patience import PATIENCE_S
from tools.prometheus.server import Prometheus as Server

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def failure(answer: Answer, **access: str) -> str:
    async with served(answer) as url, Prometheus(PrometheusAccess(url, **access)) as prometheus:
        with pytest.raises(PrometheusError) as error:
            await prometheus.read()
    return str(error.value)


async def empty(_: web.Request) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})


async def test_a_prometheus_without_gpus_has_no_nodes() -> None:
    async with served(empty) as url, Prometheus(PrometheusAccess(url)) as prometheus:
        assert (await prometheus.read()).nodes == ()


async def test_the_reason_of_a_refused_query_is_reported() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"status": "error", "errorType": "execution", "error": "too many"}, status=422)

    assert await failure(refuse) == "refuses a query (422): too many"


@pytest.mark.parametrize("body", ["<html>", "", "[]", '{"status": 5}'])
async def test_what_is_no_prometheus_is_reported(body: str) -> None:
    async def other(_: web.Request) -> web.Response:
        return web.Response(text=body)

    assert "not as a Prometheus does" in await failure(other)


async def test_a_long_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.kube.reading.prometheus_api.MOST_BYTES", 10)
    assert await failure(empty) == "an answer has more than 10 bytes"


async def test_a_redirect_is_not_followed() -> None:
    async def redirect(request: web.Request) -> web.Response:
        assert "followed" not in request.path
        return web.Response(status=302, headers={"Location": "/followed"})

    assert "302" in await failure(redirect)


async def test_a_server_that_is_gone() -> None:
    async with served(empty) as url:
        pass
    async with Prometheus(PrometheusAccess(url)) as prometheus:
        with pytest.raises(PrometheusError, match="cannot be read"):
            await prometheus.read()


async def test_the_token_is_sent_and_read_again(tmp_path: Path) -> None:
    seen = set()

    async def remember(request: web.Request) -> web.Response:
        seen.add(request.headers.get("Authorization"))
        return await empty(request)

    token = tmp_path / "token"
    async with served(remember) as url, Prometheus(PrometheusAccess(url, str(token))) as prometheus:
        for text in ("one\n", "two"):
            token.write_text(text)
            await prometheus.read()
        token.unlink()
        with pytest.raises(PrometheusError, match="no token"):
            await prometheus.read()
    assert seen == {"Bearer one", "Bearer two"}


def test_a_password_is_not_shown() -> None:
    assert PrometheusAccess("https://ann:secret@prometheus:9090/x").shown == "https://prometheus:9090/x"


async def test_certificates_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    with pytest.raises(PrometheusError, match="no certificates"):
        async with Prometheus(PrometheusAccess("https://x", ca_file=str(tmp_path / "ca"))):
            pass


def _cluster() -> Playground:
    playground = Playground()
    for name, pods in (("n1", ("a", "b")), ("n2", ("c",))):
        playground.put(node(name, 2))
        playground.put(agent(name))
        for one in pods:
            document: dict[str, Any] = pod(one, name)
            share = {"dovetail.dev/gpu-fraction": "0.5"} if name == "n1" else {}
            document["metadata"]["annotations"] = {"dovetail.dev/devices": "1"} | share
            playground.store.put_raw("pods", document)
    return playground


def _gpus(nodes: tuple[NodeSamples, ...]) -> list[tuple[str, int, list[tuple[str, float]]]]:
    return [
        (one.node, device.index, [(holder.pod, holder.share) for holder in device.holders])
        for one in nodes
        for device in one.devices
    ]


@pytest.mark.plane
async def test_a_real_prometheus_has_the_gpus_their_holders_and_means(
    prometheus_factory: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    playground = _cluster()
    exporters = playground.exporters

    def metrics(on: str) -> Answer:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=exporters.metrics("kube-system", f"agent-{on}", ()))

        return answer

    window = f"max by (UUID, GPU_I_ID) ({names.SM})[60s:1s]"
    monkeypatch.setattr("dovetail.kube.reading.prometheus._SM", window)
    async with served(metrics("n1")) as one, served(metrics("n2")) as two:
        targets = {"dovetail-agent": [url.removeprefix("http://") for url in (one, two)]}
        server = await asyncio.to_thread(prometheus_factory, targets, scrape_s=1.0)
        await asyncio.to_thread(
            server.await_,
            lambda found: len(found.query(f"count_over_time({window})")) >= 4,
            PATIENCE_S,
            "all GPUs are scraped",
        )
        async with Prometheus(PrometheusAccess(server.url)) as prometheus:
            readings = await prometheus.read()
    assert _gpus(readings.nodes) == [("n1", 0, []), ("n1", 1, [("a", 0.5), ("b", 0.5)]), ("n2", 0, []),
                                     ("n2", 1, [("c", 1.0)])]  # fmt: skip
    whole = readings.nodes[1].devices[1]
    assert 0.6 < whole.values[names.SM] < 0.8
    assert whole.samples and all(60 < one < 80 for one in whole.samples)
    assert whole.values[names.PCIE_SENT] > 1e8
    assert 0 < whole.values[names.POWER] <= whole.values[names.POWER_LIMIT]
    shared = readings.nodes[0].devices[1]
    assert all(holder.utilization and holder.memory_mib for holder in shared.holders)
    # The scrape's own label `job` is no job.
    assert {holder.job for device in (whole, shared) for holder in device.holders} == {""}
    # Health is read of devices that are not healthy.
    assert whole.state == ""
