# SPDX-License-Identifier: Apache-2.0
"""The server over streamable HTTP, with the SDK's client, and against requests that no client of it sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from dovetail.plane import FakeBroker, Plane
from dovetail.plane.mcp.server import RESOURCE, AgentServer
from dovetail.plane.mcp.tools import TOOLS
from dovetail.plane.mcp.transports import MOST_BODY_BYTES, PATH, is_loopback, listen, serve_http

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-a-test"
MODES = ("auto", "legacy")
DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


@asynccontextmanager
async def served(token: str = "", hosts: Sequence[str] = ()) -> AsyncIterator[tuple[str, FakeBroker]]:
    """The address of a server, and its broker."""
    broker = FakeBroker({"n0": 8})
    time_goes_on = asyncio.create_task(broker.real_time())
    bound = listen("127.0.0.1:0")
    async with Plane(broker, "team/a") as plane, AgentServer(plane) as server:
        task = asyncio.create_task(serve_http(server, bound, token, hosts))
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}{PATH}", broker
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert not broker.leases and not broker.requests
    time_goes_on.cancel()


async def post(url: str, message: Any = DISCOVER, **headers: str) -> httpx2.Response:
    """One request; underscores in the names of headers are hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    content = message if isinstance(message, bytes) else json.dumps(message).encode()
    async with httpx2.AsyncClient(timeout=20) as client:
        return await client.post(url, content=content, headers={**accept, **named})


@pytest.mark.parametrize("mode", MODES)
async def test_a_model_negotiates_over_http(mode: str) -> None:
    async with served() as (url, broker):
        async with Client(url, mode=mode) as here:
            assert [tool.name for tool in (await here.list_tools()).tools] == list(TOOLS)
            asked = await here.call_tool("ask", {"options": [{"gpus": 4, "minutes": 30}]})
            assert asked.structured_content["offers"][0]["offer"] == "r1.1"
            bad = await here.call_tool("ask", {"options": [{"gpus": "all"}]})
            assert bad.is_error and bad.structured_content["error"]["field"] == "options[0].gpus"
        # One process is one agent: another connection goes on.
        async with Client(url, mode=mode) as here:
            held = await here.call_tool("accept", {"offer": "r1.1"})
            assert held.structured_content["state"] == "held" and len(broker.leases) == 1
            assert RESOURCE in [resource.uri for resource in (await here.list_resources()).resources]


async def test_a_client_that_listens_over_http_is_notified() -> None:
    async with served() as (url, broker), Client(url) as here, here.listen(resource_subscriptions=[RESOURCE]) as events:
        await here.call_tool("ask", {"options": [{"gpus": 1}], "firm": True})
        broker.maintain("n0")
        async with asyncio.timeout(20):
            async for event in events:
                assert event.uri == RESOURCE  # type: ignore[union-attr]
                break
        answer = await here.call_tool("leases", {})
        assert answer.content[0].text.startswith("CHECKPOINT NOW: lease r1 ends in ")


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_with_the_token_is_served(mode: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        served(TOKEN) as (url, _),
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as here,
    ):
        assert not (await here.call_tool("leases", {})).is_error


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": TOKEN},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Basic {TOKEN}"},
    ],
)
async def test_a_request_without_the_token_is_refused(headers: dict[str, str]) -> None:
    async with served(TOKEN) as (url, _):
        refused = await post(url, **headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Bearer")
        assert TOKEN not in refused.text
        for method in ("GET", "DELETE", "OPTIONS"):
            async with httpx2.AsyncClient() as client:
                assert (await client.request(method, url, headers=headers)).status_code == 401


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_hosts_and_origins_of_others_are_refused(version: str) -> None:
    async with served(hosts=["agents.example"]) as (url, _):
        for headers in (
            {"host": "evil.example"},
            {"host": "evil.example:80"},
            {"host": "127.0.0.1.evil.example"},
            {"host": "agents.example.evil"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
        ):
            refused = await post(url, mcp_protocol_version=version, **headers)
            assert refused.status_code in (403, 421), headers
        for host in ("agents.example", "agents.example:8443", "localhost:1"):
            taken = await post(url, mcp_protocol_version=version, host=host)
            assert taken.status_code not in (401, 403, 421)


async def test_large_and_malformed_bodies_are_refused_and_the_server_goes_on() -> None:
    async with served() as (url, _):
        assert (await post(url, b"x" * (MOST_BODY_BYTES + 1))).status_code == 413
        for body in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"jsonrpc": "2.0", "id": {}, "method": 1}'):
            assert 400 <= (await post(url, body)).status_code < 500, body[:20]
        async with Client(url) as here:
            assert not (await here.call_tool("leases", {})).is_error


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:80", True),
        ("127.1.2.3:80", True),
        ("localhost:80", True),
        ("[::1]:80", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        (":80", False),
        ("10.0.0.1:80", False),
        ("agents.example:80", False),
    ],
)
def test_what_only_this_machine_reaches(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
