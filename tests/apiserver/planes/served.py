# SPDX-License-Identifier: Apache-2.0
"""What serves the planes of a folder, the first argument, until its process is killed. Prints URL and token of
the plane team/one, of which it makes a new token at each start."""

import asyncio
import sys
from pathlib import Path

from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from dovetail.apiserver.planes.limits import PlaneLimits


async def main() -> None:
    limits = PlaneLimits(requests_per_s=1e6, burst=1_000_000)
    host = PlaneHost(Path(sys.argv[1]), HostOptions(limits=limits))
    await host.start()
    await host.create("team", "one")
    print(host.url_of("team", "one"), await host.issue_token("team", "one"), flush=True)
    await asyncio.Event().wait()


def run() -> None:
    asyncio.run(main())
