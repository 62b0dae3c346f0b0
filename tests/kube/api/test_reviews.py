# SPDX-License-Identifier: Apache-2.0
"""The right to read the metrics, as the API server decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from dovetail.kube.api import reviews
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig, load_kubeconfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.reviews import METRICS, Reviews
from tests.paths import ROOT
from tools.controlplane.plane import Plane

ROLE = ROOT / "deploy/functions/authorized-metrics/role.yaml"
KNOWN = {"good": "prometheus", "poor": "tenant"}


class Server:
    """Answers reviews, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0
        self.status = 201

    async def answer(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        body = await request.json()
        self.asked.append(body)
        if body["kind"] == "TokenReview":
            name = KNOWN.get(body["spec"]["token"])
            status: dict[str, Any] = {"authenticated": name is not None}
            if name is not None:
                status["user"] = {"username": name, "uid": "1", "groups": ["system:authenticated"]}
        else:
            status = {"allowed": body["spec"]["user"] == "prometheus"}
        return web.json_response({"status": status}, status=self.status)


@asynccontextmanager
async def reviewing(server: Server) -> AsyncIterator[Reviews]:
    app = web.Application()
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        config = ClusterConfig(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with Client(config, jitter=lambda: 0.0) as client:
            yield Reviews(client)
    finally:
        await runner.cleanup()


async def test_a_token_is_known_and_its_bearer_may() -> None:
    server = Server()
    async with reviewing(server) as asked:
        assert await asked.refusal("Bearer good", METRICS) is None
        assert await asked.refusal("Bearer poor", METRICS) == (
            403, "tenant may not get the nonResourceURL /metrics: bind a role that lets it",
        )  # fmt: skip
        assert await asked.refusal("Bearer unknown", METRICS) == (401, "the API server does not know this token")
    assert server.asked[1]["spec"] == {
        "user": "prometheus", "uid": "1", "groups": ["system:authenticated"], "extra": {},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }  # fmt: skip


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic good", "good", "Bearer " + "x" * 20_000])
async def test_without_a_token_nobody_is_asked(header: str) -> None:
    server = Server()
    async with reviewing(server) as asked:
        refusal = await asked.refusal(header, METRICS)
    assert refusal is not None and refusal[0] == 401
    assert server.asked == []


async def test_an_answer_holds_for_a_while_and_then_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(reviews, "time", SimpleNamespace(monotonic=lambda: now_s))
    server = Server()
    async with reviewing(server) as asked:
        for _ in range(3):
            assert await asked.refusal("Bearer good", METRICS) is None
        assert len(server.asked) == 2
        now_s += 61.0
        assert await asked.refusal("Bearer good", METRICS) is None
        assert len(server.asked) == 4
        assert await asked.refusal("Bearer bad", METRICS) is not None
        KNOWN["bad"] = "prometheus"
        try:
            now_s += 11.0
            assert await asked.refusal("Bearer bad", METRICS) is None
        finally:
            del KNOWN["bad"]


@pytest.mark.slow
async def test_strangers_cost_the_api_server_and_us_little() -> None:
    server = Server()
    async with reviewing(server) as asked:
        await asyncio.gather(*(asked.refusal(f"Bearer {n}", METRICS) for n in range(600)))
        assert server.most_at_once <= 4
        assert len(asked._known) <= 256


async def test_an_api_server_that_is_away_lets_nobody_in() -> None:
    async with Client(ClusterConfig("http://127.0.0.1:1"), jitter=lambda: 0.0) as client:
        refusal = await Reviews(client).refusal("Bearer good", METRICS)
    assert refusal is not None and refusal[0] == 503


@pytest.mark.plane
async def test_the_real_api_server_decides_the_rights(plane: Plane) -> None:
    """Asked with the rights that deploy/ gives for it."""
    for namespace, name in (
        ("watchers", "prometheus"),
        ("watchers", "tenant"),
        ("dovetail-system", "dovetail-scheduler"),
    ):
        for manifest in (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        ):
            plane.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    plane.kubectl("apply", "-f", str(ROLE))
    plane.kubectl(
        "create", "clusterrolebinding", "reads-metrics", "--clusterrole=dovetail-metrics-reader",
        "--serviceaccount=watchers:prometheus",
    )  # fmt: skip

    def token(namespace: str, name: str) -> str:
        return plane.kubectl(f"--namespace={namespace}", "create", "token", name).strip()

    own = Files(token=token("dovetail-system", "dovetail-scheduler"))
    async with Client(replace(load_kubeconfig([plane.kubeconfig]), source=own)) as client:
        asked = Reviews(client)
        may = token("watchers", "prometheus")
        assert await asked.refusal(f"Bearer {may}", METRICS) is None
        refusal = await asked.refusal(f"Bearer {token('watchers', 'tenant')}", METRICS)
        assert refusal is not None and refusal[0] == 403 and "system:serviceaccount:watchers:tenant" in refusal[1]
        assert await asked.refusal(f"Bearer {may}x", METRICS) == (401, "the API server does not know this token")
