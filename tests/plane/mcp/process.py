# SPDX-License-Identifier: Apache-2.0
"""A server of its own process, whose broker reports at the end: python -m tests.plane.mcp.process REPORT.

REPORT gets what the broker has when the plane has ended.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from dovetail.cli.service import serve
from dovetail.plane import FakeBroker, Plane
from dovetail.plane.mcp.server import AgentServer
from dovetail.plane.mcp.transports import serve_stdio

IMPORTED = ("dovetail.plane.mcp.server", "dovetail.plane.mcp.transports", "tests.plane.mcp.process")
"""What costs most of the start of a server."""


async def _run(broker: FakeBroker) -> None:
    time_goes_on = asyncio.create_task(broker.real_time())
    try:
        async with Plane(broker, "team/a") as plane, AgentServer(plane) as server:
            await serve_stdio(server)
    finally:
        time_goes_on.cancel()


def main() -> None:
    gpus = FakeBroker({"n0": 8})
    serve(_run(gpus), logging.getLogger("test"))
    left = f"{len(gpus.leases)} left, {'act' in gpus.calls} returned, {len(gpus.requests)} open"
    Path(sys.argv[1]).write_text(left)


if __name__ == "__main__":
    main()
