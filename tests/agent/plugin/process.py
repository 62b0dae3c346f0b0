# SPDX-License-Identifier: Apache-2.0
"""Device plugins in a process of their own, to be killed: `python -m tests.agent.plugin.process FOLDER URL GPUS`.

Reads commands from its input: `start` forks a child that runs an agent's device plugins, and prints its pid. So the
next one is there in no time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from dovetail.agent.config import Config
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.plugin import DevicePlugins
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from tests.agent.agents import host, no_edits, no_mps


async def serve(folder: Path, url: str, gpus: int) -> None:
    async with Client(ClusterConfig(url)) as client:
        chosen = Allocations(client, "n1")
        plugins = DevicePlugins(
            folder / "device-plugins",
            Config(),
            chosen,
            no_edits,
            no_mps,
            pod_resources=PodResources(folder / "pod-resources" / "kubelet.sock"),
        )
        await plugins.update(host(gpus), ())
        await chosen.run()


def main(folder: str, url: str, gpus: str) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(serve(Path(folder), url, int(gpus)))
            os._exit(1)
        print(child, flush=True)
        # The driver kills it, and its parent has to collect the exit status.
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
