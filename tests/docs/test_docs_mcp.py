# SPDX-License-Identifier: Apache-2.0
"""The tools for language models: the reference names all that there is, and the client of the guide runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from dovetail.plane import FakeBroker, Plane
from dovetail.plane.mcp import answers, session
from dovetail.plane.mcp.answers import ToolErrorCode
from dovetail.plane.mcp.arguments import OptionArguments
from dovetail.plane.mcp.notices import MOST_SHOWN
from dovetail.plane.mcp.server import RESOURCE, AgentServer
from dovetail.plane.mcp.tools import TOOLS
from dovetail.plane.mcp.transports import MOST_BODY_BYTES, MOST_LINE_BYTES, MOST_SESSIONS, listen, serve_http
from tests.docs.pages import page
from tests.paths import ROOT
from tests.plane.mcp.model import SECOND, model, occupied

REFERENCE = page("docs/reference/mcp.md")
GUIDE = page("docs/how-to/connect-a-model.md")


def spans(head: str, section: str) -> list[str]:
    """The code spans in the first column of the table with this heading."""
    return [span for row in REFERENCE.section(section).rows(head) for span in row.code[0]]


def test_each_tool_argument_and_error_is_named() -> None:
    assert spans("tool", "Tools") == list(TOOLS)
    assert spans("field", "Options") == sorted(OptionArguments.__struct_fields__, key=spans("field", "Options").index)
    assert spans("code", "Errors") == [code.value for code in ToolErrorCode]
    written = {row.code[0][0]: row.code[1] for row in REFERENCE.section("Arguments").rows("argument")}
    takers: dict[str, list[str]] = {}
    for tool in TOOLS.values():
        for name in tool.arguments.__struct_fields__:
            takers.setdefault(name, []).append(tool.name)
    assert written == takers


def test_the_bounds_are_those_of_the_code() -> None:
    text = REFERENCE.text
    assert f"at most {answers.MOST_TEXT:,} characters" in text and f"dovetail://{RESOURCE.partition('://')[2]}" in text
    assert f"{session.MOST_OPEN} requests are open, or {session.MOST_HELD} requests and leases" in text
    assert f"more than {session.CALLS_PER_SECOND} calls a second, after {session.CALLS_AT_ONCE} at once" in text
    assert f"{session.MOST_WAITING} calls wait" in text and MOST_SHOWN == 8
    assert f"a line of {MOST_LINE_BYTES // 1024} KiB" in text
    assert f"a body of {MOST_BODY_BYTES // 1024} KiB, {MOST_SESSIONS} sessions" in text


async def test_the_fields_of_answers_are_named() -> None:
    named = set(spans("field", "Answers")) | {
        "node",
        "gpus",
        "mig",
        "cause",
        "message",
        "kind",
        "action",
        "seconds_left",
    }
    found = set[str]()

    def collect(value: Any) -> None:
        if isinstance(value, list):
            for one in value:
                collect(one)
        elif isinstance(value, dict):
            found.update(value)
            for one in value.values():
                collect(one)

    async with model(8) as one, occupied(one.broker, 4, 20):
        for tool, arguments in [
            ("ask", {"options": [{"gpus": 8}, {"gpus": 2}]}),
            ("accept", {"offer": "r1.1"}),
            ("counter", {"request": "r1", "option": {}}),
            ("ask", {"options": [{"gpus": 2}]}),
            ("counter", {"request": "r2", "option": {"gpus": 8}}),
            ("withdraw", {"request": "r2"}),
        ]:
            collect((await one.call(tool, **arguments)).content)
        one.broker.maintain("n0")
        await one.broker.advance(SECOND)
        collect((await one.call("leases")).content)
        collect((await one.call("give_back", lease="r1")).content)
    found -= {"code", "what", "field", "next"}
    assert found <= named and {"revoked", "answer_refused", "returned", "notices"} <= found


def test_the_configurations_are_json() -> None:
    blocks = [block for block in GUIDE.blocks if block.language == "json"]
    assert [list(json.loads(block.text)["mcpServers"]["gpus"]) for block in blocks] == [
        ["command", "args"],
        ["url", "headers"],
    ]


@pytest.mark.slow
async def test_the_client_of_the_guide_runs() -> None:
    (program,) = [block.text for block in GUIDE.blocks if block.language == "python"]
    (printed,) = [block.text for block in GUIDE.blocks if block.language == "text"]
    broker = FakeBroker({"fake-0": 8, "fake-1": 8})
    time_goes_on = asyncio.create_task(broker.real_time())
    bound = listen("127.0.0.1:0")
    async with Plane(broker, "fake/agent") as plane, AgentServer(plane) as server:
        serving = asyncio.create_task(serve_http(server, bound, "", ()))
        here = program.replace("127.0.0.1:10358", f"127.0.0.1:{bound.getsockname()[1]}")
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", here], capture_output=True, text=True, cwd=ROOT
        )
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    time_goes_on.cancel()
    assert done.returncode == 0, done.stderr
    fence = printed.partition("fence ")[2].partition(";")[0]
    shown = done.stdout.partition("fence ")[2].partition(";")[0]
    assert done.stdout.strip() == printed.strip().replace(fence, shown)
