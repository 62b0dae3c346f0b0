# SPDX-License-Identifier: Apache-2.0
"""The broker that a command of `dovetail plane` uses: one in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail.plane.broker import Broker

GPUS_PER_NODE = 8


@asynccontextmanager
async def fake_broker(nodes: int) -> AsyncIterator[Broker]:
    """A broker in memory on the time of this machine, with so many nodes of GPUS_PER_NODE GPUs."""
    from dovetail.plane.fake import FakeBroker, FakeClock

    gpus = {f"fake-{number}": GPUS_PER_NODE for number in range(nodes)}
    broker = FakeBroker(gpus, FakeClock(time.time_ns() // 1_000_000))
    time_goes_on = asyncio.create_task(broker.real_time())
    try:
        yield broker
    finally:
        time_goes_on.cancel()
        await asyncio.gather(time_goes_on, return_exceptions=True)
