# SPDX-License-Identifier: Apache-2.0
"""What software agents on a cluster cost while they hold nothing: alone, and many in one process.

    python -m benchmarks.idle_agents [--planes 50] [--idle-s 60] [-o json]

The API server is the playground, with a scheduler that negotiates. The agents are a child process with nothing else in
it: each follows its control plane and sends a heartbeat every ten seconds. Measured from outside: the resident memory
of a process with one agent, what each further one adds, and CPU while nothing is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.findings import output_option, show

# What only the parent needs is imported by its functions, as the child is to be measured without it.
from dovetail.kube.api.config import ClusterConfig

if TYPE_CHECKING:
    from dovetail.playground import Playground

AGENTS = "--agents"
ROOT = Path(__file__).parents[1]


async def live(url: str, planes: int) -> None:
    """The child: agents until its standard input ends. Prints a line when all have heard the scheduler."""
    from dovetail.kube.api.client import Client
    from dovetail.plane import KubernetesBroker, Plane

    async with Client(ClusterConfig(url)) as client:
        broker = KubernetesBroker(client)
        agents = [Plane(broker, f"agent-{number}/agent") for number in range(planes)]
        for agent in agents:
            await agent.__aenter__()
        await asyncio.gather(*[agent.listed() for agent in agents])
        print("heard", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for agent in agents:
            await agent.__aexit__(None, None, None)


def fill(playground: Playground, planes: int) -> None:
    """The definitions, a queue, and the control planes."""
    from dovetail.playground.lending import control_plane, definitions, lending_queue
    from dovetail.scheduler.serve import LEASE_NAMESPACE

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
    for document in (*definitions(ROOT / "deploy/crds"), namespace, lending_queue()):
        playground.put(document)
    for number in range(planes):
        for document in control_plane(f"agent-{number}", "agent"):
            playground.put(document)


async def observed(planes: int, idle_s: float) -> tuple[float, float]:
    """MiB of a process with so many agents, and its share of a core while nothing is asked."""
    from dovetail.playground import Playground
    from dovetail.scheduler.serve import SchedulerOptions, run

    playground = Playground()
    url = await playground.start()
    fill(playground, planes)
    options = SchedulerOptions(listen="", leader_elect=False)
    scheduler = asyncio.create_task(run(ClusterConfig(url), options))
    pipe = asyncio.subprocess.PIPE
    arguments = [sys.executable, "-m", "benchmarks.idle_agents", AGENTS, url, str(planes)]
    process = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert await process.stdout.readline() == b"heard\n"
        await asyncio.sleep(min(idle_s, 15.0))
        start_s, before_s = time.monotonic(), _cpu_s(process.pid)
        await asyncio.sleep(idle_s)
        return _memory_mib(process.pid), (_cpu_s(process.pid) - before_s) / (time.monotonic() - start_s)
    finally:
        process.stdin.close()
        await process.wait()
        scheduler.cancel()
        await asyncio.gather(scheduler, return_exceptions=True)
        await playground.stop()


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _cpu_s(pid: int) -> float:
    """CPU so far, of all threads; to the nanosecond, as an idle agent needs less than a tick in a second."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


async def measure(planes: int, idle_s: float) -> dict[str, float]:
    alone_mib, alone_share = await observed(1, idle_s)
    many_mib, many_share = await observed(planes, idle_s)
    return {
        "memory of a process with one agent, MiB": round(alone_mib, 1),
        "CPU of it, % of a core": round(100 * alone_share, 4),
        "memory of each further agent, MiB": round((many_mib - alone_mib) / (planes - 1), 3),
        "CPU of each of many, % of a core": round(100 * many_share / planes, 4),
    }


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == AGENTS:
        asyncio.run(live(sys.argv[2], int(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description="memory and CPU of software agents on a cluster that hold nothing")
    parser.add_argument("--planes", type=int, default=50, help="agents of one process, at least 2")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds for which the processes are observed")
    output_option(parser)
    options = parser.parse_args()
    show(asyncio.run(measure(options.planes, options.idle_s)), options.output)


if __name__ == "__main__":
    main()
