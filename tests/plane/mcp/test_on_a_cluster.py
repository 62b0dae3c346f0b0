# SPDX-License-Identifier: Apache-2.0
"""A model that negotiates on a cluster: the server, with the SDK's client, and a scheduler on a playground."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client, StdioServerParameters, stdio_client

from dovetail.cli import main
from dovetail.plane.mcp.server import AgentServer
from tests.piped import piped
from tests.plane.benches import cluster_bench, plane
from tests.plane.mcp.process import IMPORTED

pytestmark = pytest.mark.slow


async def answer(here: Client, tool: str, **arguments: Any) -> Any:
    """The content of an answer that is no error."""
    found = await here.call_tool(tool, arguments)
    assert not found.is_error, found.content
    return found.structured_content


async def test_a_model_negotiates_uses_and_returns() -> None:
    async with cluster_bench() as bench:
        async with plane(bench) as agent, AgentServer(agent) as server, Client(server.sdk) as here:
            asked = await answer(here, "ask", options=[{"gpus": 4, "minutes": 5}], name="first", wait_seconds=30)
            assert asked["offers"][0]["gpus"] == 4 and len(bench.requests()) == 1
            fewer = await answer(here, "counter", request="r1", option={"gpus": 2, "minutes": 5}, wait_seconds=30)
            (offer,) = fewer["offers"]
            held = await answer(here, "accept", offer=offer["offer"], wait_seconds=30)
            assert held["lease"]["gpus"] == 2 and bench.leases() == {held["lease"]["object"]}
            declined = await answer(here, "ask", options=[{"gpus": 8}], wait_seconds=30)
            again = await answer(here, "decline", request=declined["request"], wait_seconds=30)
            assert again["state"] == "offered"
            await answer(here, "withdraw", request=declined["request"])
            assert await answer(here, "give_back", lease="r1") == {"returned": "r1"}
            await bench.until(lambda: not bench.leases())
            taken = await answer(here, "ask", options=[{"gpus": 8, "per_node": 8, "minutes": 5}], firm=True)
            node = (taken if "lease" in taken else await answer(here, "offers", request="r3"))["lease"]["devices"][0]
            bench.maintain(node["node"])
            await bench.until(lambda: server.session.warnings.open)
            text = (await here.call_tool("leases", {})).content[0].text  # type: ignore[union-attr]
            assert text.startswith("CHECKPOINT NOW: lease r3 ends in ")
        await bench.until(lambda: not bench.leases() and not bench.requests())


def written(folder: Path, url: str) -> str:
    """A kubeconfig for the API server at this address."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c"}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    return str(folder / "config")


async def test_a_command_without_its_plane_or_its_cluster_ends_with_one_line(tmp_path: Path) -> None:
    async with cluster_bench() as bench:
        line = await asyncio.to_thread(refused, "one/none", written(tmp_path, bench.cluster.playground.url))
        assert "there is no AgentControlPlane 'none' in the namespace 'one'" in line
    assert "127.0.0.1:1" in await asyncio.to_thread(refused, "one/one", written(tmp_path, "http://127.0.0.1:1"))


def refused(plane_id: str, kubeconfig: str) -> str:
    """The line with which the command ends."""
    arguments = ["plane", "mcp", "--plane", plane_id, "--kubeconfig", kubeconfig]
    command = piped(main, *arguments, imported=IMPORTED)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


async def test_signals_return_the_leases_of_the_command(tmp_path: Path) -> None:
    async with cluster_bench() as bench:
        kubeconfig = written(tmp_path, bench.cluster.playground.url)
        arguments = ["plane", "mcp", "--plane", "one/one", "--kubeconfig", kubeconfig]
        process = await asyncio.create_subprocess_exec(
            *piped(main, *arguments, "--transport", "http", "--listen", "127.0.0.1:0", imported=IMPORTED),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        async with Client(line.split()[-1]) as here:
            await answer(here, "ask", options=[{"gpus": 4}], firm=True, wait_seconds=30)
            await bench.until(bench.leases)
        for _ in range(3):
            process.terminate()
        log = (await process.stderr.read()).decode()
        assert await process.wait() == 0 and "Traceback" not in log
        await bench.until(lambda: not bench.leases() and not bench.requests())


async def test_the_command_serves_the_plane_of_a_kubeconfig_and_returns_its_leases(tmp_path: Path) -> None:
    async with cluster_bench() as bench:
        kubeconfig = written(tmp_path, bench.cluster.playground.url)
        command, *arguments = piped(
            main, "plane", "mcp", "--plane", "one/one", "--kubeconfig", kubeconfig, imported=IMPORTED
        )
        server = StdioServerParameters(command=command, args=arguments)
        async with Client(stdio_client(server)) as here:
            asked = await answer(here, "ask", options=[{"gpus": 4}], firm=True, wait_seconds=30)
            if asked["state"] != "held":
                asked = await answer(here, "offers", request="r1", wait_seconds=30)
            assert bench.leases() == {asked["lease"]["object"]}
        await bench.until(lambda: not bench.leases() and not bench.requests())
