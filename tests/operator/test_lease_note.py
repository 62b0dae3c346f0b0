# SPDX-License-Identifier: Apache-2.0
"""An operator without the right to read GPUStacks reports that at its endpoint and in its Lease, and begins to work
when it gets the right."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dovetail.kube.api.config import ClusterConfig
from dovetail.operator.lease_note import NOTE
from dovetail.operator.run import OperatorOptions, run
from dovetail.playground import Fault
from dovetail.views.status import WAITS_FOR
from tests.operator.stack_world import Document, World, small

LEASES, SYSTEM, NAME = "leases.coordination.k8s.io", "dovetail-system", "dovetail-operator"
WHY = 'gpustacks.dovetail.dev is forbidden: User "operator" cannot list resource'


def lease(world: World) -> Document:
    return world.get(LEASES, SYSTEM, NAME) or {"metadata": {}, "spec": {}}


def note(world: World) -> str:
    return str(lease(world)["metadata"].get("annotations", {}).get(NOTE, ""))


async def get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@pytest.mark.slow
async def test_it_is_reported_with_what_to_do_until_the_right_is_there(world: World) -> None:
    world.stack()
    for verb in ("GET", "WATCH"):
        fault = Fault("answer", verb, "gpustacks", times=10_000, status=403, message=WHY)
        world.playground.faults.add(fault)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = OperatorOptions(listen=f"127.0.0.1:{port}", image="dovetail:1")
    running = asyncio.create_task(run(ClusterConfig(server=world.playground.url), options, render=small))
    await world.until(lambda: WHY in note(world))
    assert not lease(world)["spec"].get("holderIdentity") and world.condition("Applied") == ("", "", "")
    status, text = await get(port, "/readyz")
    assert status == 503 and WHY in text and "dovetail install" in text
    assert (await get(port, "/healthz"))[0] == 200
    world.playground.faults.clear()
    await world.applied()
    assert note(world) == "" and lease(world)["spec"]["holderIdentity"]
    assert await get(port, "/readyz") == (200, "ok\n")
    running.cancel()
    await asyncio.wait([running])


def test_the_status_reads_what_the_operator_writes() -> None:
    assert WAITS_FOR == NOTE
