# SPDX-License-Identifier: Apache-2.0
"""The agent's control plane that a command of `dovetail plane` runs: on a cluster, or in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.plane.agent_plane import AgentPlane

GPUS_PER_NODE = 8


@asynccontextmanager
async def fake_plane(plane_id: str, nodes: int) -> AsyncIterator[AgentPlane]:
    """The plane of a broker in memory on the time of this machine, with so many nodes of GPUS_PER_NODE GPUs."""
    import asyncio

    from dovetail.plane.agent_plane import AgentPlane
    from dovetail.plane.fake import FakeBroker
    from dovetail.plane.fake_clock import FakeClock

    gpus = {f"fake-{number}": GPUS_PER_NODE for number in range(nodes)}
    broker = FakeBroker(gpus, FakeClock(time.time_ns() // 1_000_000))
    time_goes_on = asyncio.create_task(broker.real_time())
    try:
        async with AgentPlane(broker, plane_id) as plane:
            yield plane
    finally:
        time_goes_on.cancel()
        await asyncio.gather(time_goes_on, return_exceptions=True)


@asynccontextmanager
async def cluster_plane(plane_id: str, kubeconfig: str | None, context: str | None) -> AsyncIterator[AgentPlane]:
    """The plane of a cluster. Raises BrokerRefused, BrokerUnavailable."""
    from dovetail.plane.kubernetes import on_cluster

    async with on_cluster(plane_id, kubeconfig=kubeconfig, context=context) as plane:
        yield plane
