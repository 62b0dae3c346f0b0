# SPDX-License-Identifier: Apache-2.0
"""The server over stdio, in a process of its own, with the SDK's client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPDeprecationWarning, MCPError, StdioServerParameters, stdio_client

from dovetail.plane.mcp.server import RESOURCE
from dovetail.plane.mcp.tools import INSTRUCTIONS, TOOLS
from tests.paths import ROOT
from tests.piped import piped
from tests.plane.mcp.process import IMPORTED, main

pytestmark = pytest.mark.slow
MODERN, BEFORE = "auto", "legacy"


@asynccontextmanager
async def client(report: Path, mode: str = MODERN, **options: Any) -> AsyncIterator[Client]:
    """A client of a process with 8 GPUs."""
    command, *arguments = piped(main, str(report), imported=IMPORTED)
    server = StdioServerParameters(command=command, args=arguments)
    async with Client(stdio_client(server), mode=mode, **options) as found:
        yield found


async def answer(here: Client, tool: str, **arguments: Any) -> Any:
    """The content of an answer. Its text is not empty."""
    found = await here.call_tool(tool, arguments)
    assert found.content[0].type == "text" and found.content[0].text
    assert found.is_error == ("error" in found.structured_content)
    return found.structured_content


@pytest.mark.parametrize("mode", [MODERN, BEFORE])
async def test_every_tool_and_the_return_of_leases_at_the_end(mode: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    async with client(report, mode) as here:
        assert here.instructions == INSTRUCTIONS
        tools = (await here.list_tools()).tools
        assert [tool.name for tool in tools] == list(TOOLS)
        assert all(tool.input_schema == TOOLS[tool.name].schema and tool.description for tool in tools)
        assert (await answer(here, "ask", options=[{"gpus": 4, "minutes": 30}]))["offers"][0]["offer"] == "r1.1"
        assert (await answer(here, "counter", request="r1", option={"gpus": 2}))["offers"][0]["gpus"] == 2
        assert (await answer(here, "decline", request="r1", wait_seconds=0))["request"] == "r1"
        assert (await answer(here, "offers", request="r1", wait_seconds=30))["state"] == "offered"
        assert (await answer(here, "accept", offer="r1.2"))["state"] == "held"
        assert (await answer(here, "leases"))["leases"][0]["lease"] == "r1"
        assert (await answer(here, "renew", lease="r1", minutes=5))["error"]["code"] == "RenewalRefused"
        assert (await answer(here, "give_back", lease="r1")) == {"returned": "r1"}
        assert (await answer(here, "ask", options=[{"gpus": 99}]))["state"] == "waiting"
        assert (await answer(here, "why", request="r2"))["why"]
        assert (await answer(here, "withdraw", request="r2")) == {"withdrawn": "r2"}
        held = await answer(here, "ask", options=[{"gpus": 8}], firm=True)
        assert held["state"] == "held"
        assert (await answer(here, "ask", options=[{"gpus": 1}]))["state"] == "waiting"
    assert report.read_text() == "0 left, True returned, 0 open"


async def test_bad_input_is_an_answer_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with client(tmp_path / "report") as here:
        for arguments in ({}, {"options": "all"}, {"options": [{"gpus": -1}]}, {"options": [{}], "x": {"y": [[]]}}):
            assert (await answer(here, "ask", **arguments))["error"]["code"] == "InvalidArguments"
        assert (await answer(here, "rm -rf"))["error"]["code"] == "UnknownTool"
        with pytest.raises(MCPError, match="no resource"):
            await here.read_resource("file:///etc/passwd")
        assert (await answer(here, "leases"))["leases"] == []


async def test_a_client_that_listens_is_notified_of_the_end_of_a_term(tmp_path: Path) -> None:
    async with client(tmp_path / "report") as here, here.listen(resource_subscriptions=[RESOURCE]) as events:
        asked = await answer(here, "ask", options=[{"gpus": 1, "minutes": 0.05}], firm=True, grace_minutes=0.02)
        assert asked["state"] == "held"
        with anyio.fail_after(30):
            async for event in events:
                assert event.uri == RESOURCE  # type: ignore[union-attr]
                break
        shown = json.loads((await here.read_resource(RESOURCE)).contents[0].text)  # type: ignore[union-attr]
        assert [one["kind"] for one in shown["notices"]] in (["checkpoint"], ["over"])
        assert (await answer(here, "leases"))["notices"]


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
async def test_a_client_of_an_earlier_revision_is_notified_too(tmp_path: Path) -> None:
    updated = anyio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            updated.set()

    assert issubclass(MCPDeprecationWarning, Warning)
    async with client(tmp_path / "report", BEFORE, message_handler=hear) as here:
        await here.subscribe_resource(RESOURCE)
        await answer(here, "ask", options=[{"gpus": 1, "minutes": 0.05}], firm=True, grace_minutes=0.02)
        with anyio.fail_after(30):
            await updated.wait()
        await here.unsubscribe_resource(RESOURCE)


def test_a_signal_returns_the_leases_while_the_input_is_open(tmp_path: Path) -> None:
    report = tmp_path / "report"
    messages: list[dict[str, Any]] = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {"name": "ask", "arguments": {"options": [{"gpus": 8}], "firm": True}},
        },
    ]
    # No fork: the interpreter has to end while a thread still reads.
    command = [sys.executable, "-m", "tests.plane.mcp.process", str(report)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        assert json.loads(process.stdout.readline())["result"]["structuredContent"]["state"] == "held"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert report.read_text() == "0 left, True returned, 0 open"


def test_garbage_on_the_input_ends_nothing_and_a_line_without_end_ends_it(tmp_path: Path) -> None:
    report = tmp_path / "report"
    command = piped(main, str(report), imported=IMPORTED)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"\xff\xfe\n[]\n{}\n[[[[\nnull\n")
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": {}}}\n')
        process.stdin.flush()
        with pytest.raises(BrokenPipeError):
            for _ in range(1000):
                process.stdin.write(b"x" * 65_536)
                process.stdin.flush()
        assert process.wait(20) == 0
        process.stdin = None
    assert report.read_text() == "0 left, False returned, 0 open"
