# SPDX-License-Identifier: Apache-2.0
"""What `dovetail plane serve` costs for many control planes, and how long an agent's pod takes to run.

    python -m benchmarks.carried_planes [--planes 40] [--idle-s 60] [--jobs 40] [-o json]

The host is the playground, in this process with the scheduler that negotiates; the command is a child. Measured: memory
and CPU of the child with one plane, and with many, while no agent does anything (each plane sends its heartbeats, and
follows its pods, requests and leases); and for one Job after the other, each on another plane, the time from its
creation on the endpoint until the endpoint shows its pod as running, without devices and with a GPU. Kubelets take no
time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

from benchmarks.planes import Access, Server
from dovetail.kube.api.config import ClusterConfig
from dovetail.playground import Playground
from dovetail.playground.lending import control_plane, definitions, gpu_node, lending_queue
from dovetail.scheduler.serve import LEASE_NAMESPACE, SchedulerOptions, run

ROOT = Path(__file__).parent.parent
DOVETAIL = str(Path(sys.executable).with_name("dovetail"))
SECRET = "dovetail-agent-endpoint"
GPUS = 8
_SETTLED_S = 2.0


class CarriedOptions(Struct, frozen=True):
    planes: int
    idle_s: float
    jobs: int


@contextlib.asynccontextmanager
async def host(planes: int) -> AsyncIterator[Playground]:
    """A cluster with a scheduler, a GPU for each plane, and so many control planes with an endpoint."""
    playground = Playground(start_delay_s=0.0, stop_delay_s=0.0)
    await playground.start()
    scheduler: asyncio.Task[None] | None = None
    try:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
        for document in (*definitions(ROOT / "deploy/crds"), namespace, lending_queue()):
            playground.put(document)
        for number in range(-(-planes // GPUS)):
            playground.put(gpu_node(f"node-{number}", GPUS))
        for number in range(planes):
            for document in control_plane(f"agent-{number}", "agent", backend="api"):
                playground.put(document)
        options = SchedulerOptions(listen="", leader_elect=False)
        scheduler = asyncio.create_task(run(ClusterConfig(playground.url), options))
        yield playground
    finally:
        if scheduler is not None:
            scheduler.cancel()
            await asyncio.gather(scheduler, return_exceptions=True)
        await playground.stop()


@contextlib.asynccontextmanager
async def serving(playground: Playground, planes: int) -> AsyncIterator[Server]:
    """The command, once every agent has its Secret."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = playground.kubeconfig(Path(folder) / "kubeconfig")
        process = await asyncio.create_subprocess_exec(
            DOVETAIL, "plane", "serve", f"--kubeconfig={kubeconfig}", f"--state={folder}/state",
            "--address=127.0.0.1:0", "--listen=", "--log-level=error",
        )  # fmt: skip
        try:
            while len(playground.store.list("secrets")) < planes:
                assert process.returncode is None, "the command has ended"
                await asyncio.sleep(0.05)
            access = []
            for secret in playground.store.list("secrets"):
                data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
                access.append(Access(data["server"], data["token"]))
            yield Server(process.pid, access)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def idle(planes: int, idle_s: float) -> tuple[float, float]:
    """Memory in MiB and share of a core, of a process with so many planes that no agent uses."""
    async with host(planes) as playground, serving(playground, planes) as server:
        await asyncio.sleep(_SETTLED_S)
        start, before_s = time.monotonic(), server.cpu_s()
        await asyncio.sleep(idle_s)
        share = (server.cpu_s() - before_s) / (time.monotonic() - start)
        return server.memory_kib() / 1024, share


async def started(planes: int, jobs: int) -> dict[str, float]:
    """How long pods take to run, with a GPU and without."""
    found: dict[str, float] = {}
    async with host(planes) as playground, serving(playground, planes) as server, aiohttp.ClientSession() as session:
        await asyncio.sleep(_SETTLED_S)
        for kind, gpus in (("without devices", 0), ("with a GPU", 1)):
            times = []
            for number in range(jobs):
                plane = server.access[number % planes]
                times.append(1000 * await _run(session, plane, f"job-{gpus}-{number}", gpus))
            cuts = statistics.quantiles(times, n=100)
            found |= {f"pod {kind}, p50, ms": round(cuts[49], 1), f"pod {kind}, p99, ms": round(cuts[98], 1)}
    return found


async def _run(session: aiohttp.ClientSession, plane: Access, name: str, gpus: int) -> float:
    """Seconds from the creation of a Job until its pod runs. It is deleted then."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "registry.example/none", "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 0}
    meta = {"name": name}
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"template": {"spec": spec}},
    }
    jobs = f"{plane.url}/apis/batch/v1/namespaces/default/jobs"
    pods = f"{plane.url}/api/v1/namespaces/default/pods"
    query = {"watch": "true", "labelSelector": f"job-name={name}"}
    async with session.get(pods, params=query, headers=plane.headers) as watch:
        start = time.perf_counter()
        async with session.post(jobs, json=job, headers=plane.headers) as reply:
            assert reply.status == 201, await reply.text()
        while json.loads(await watch.content.readline())["object"].get("status", {}).get("phase") != "Running":
            pass
        seconds = time.perf_counter() - start
    async with session.delete(f"{jobs}/{name}", headers=plane.headers) as reply:
        assert reply.status == 200, await reply.text()
    return seconds


async def measure(options: CarriedOptions) -> dict[str, float]:
    one_mib, one_share = await idle(1, options.idle_s)
    all_mib, all_share = await idle(options.planes, options.idle_s)
    more = max(1, options.planes - 1)
    return {
        "memory of a process with one plane, MiB": round(one_mib, 1),
        "memory of each further plane, MiB": round((all_mib - one_mib) / more, 2),
        "CPU of each further plane, % of a core": round(100 * (all_share - one_share) / more, 4),
    } | await started(options.planes, options.jobs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="what control planes with endpoints cost, and how long their pods take"
    )
    parser.add_argument("--planes", type=int, default=40)
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds for which an idle process is observed")
    parser.add_argument("--jobs", type=int, default=40, help="Jobs without devices, and as many with a GPU")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    found = asyncio.run(measure(CarriedOptions(arguments.planes, arguments.idle_s, arguments.jobs)))
    if arguments.output == "json":
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:45} {value:>10g}")


if __name__ == "__main__":
    main()
