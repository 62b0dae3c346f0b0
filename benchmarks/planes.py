# SPDX-License-Identifier: Apache-2.0
"""What the API endpoints of many software agents cost in one process, and how fast they answer.

    python -m benchmarks.planes [--planes 100] [--idle-s 20] [--requests 4000] [-o json]

The process that serves is a child, with nothing else in it. Each plane has five pods, five ConfigMaps and a Job with
its pod. Measured: the resident memory of a process with one plane; what each of the planes adds while it is open with a
watch (an agent is connected), open without, and closed; the CPU of the process while nothing is requested; and the
latency of requests over all planes at a fixed rate: half reads, a quarter writes, a quarter lists. A write is answered
when it is on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

RATE_PER_S = 200
CLIENTS = 64
SERVE = "--serve"
POD_SPEC = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/train:1"}]}


class Access(Struct, frozen=True):
    """Where a plane is, and its token."""

    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


async def serve(folder: Path, planes: int, idle_s: float) -> None:
    """The child: serves until its standard input ends. Prints where the planes are."""
    from dovetail.apiserver.planes.host import HostOptions, PlaneHost

    host = PlaneHost(folder, HostOptions(idle_s=idle_s))
    await host.start()
    access = []
    for number in range(planes):
        await host.create("team", f"agent-{number}")
        token = await host.issue_token("team", f"agent-{number}")
        access.append([host.url_of("team", f"agent-{number}"), token])
    print(json.dumps(access), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await host.stop()


class Server:
    """The child process, seen from outside."""

    def __init__(self, pid: int, access: list[Access]) -> None:
        self._pid = pid
        self.access = access

    def memory_kib(self) -> int:
        """Resident memory."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def cpu_s(self) -> float:
        """CPU so far, of all threads."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serving(planes: int, idle_s: float) -> AsyncIterator[Server]:
    """A process that serves so many planes, which it closes after so long without a request."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "benchmarks.planes", SERVE, folder, str(planes), str(idle_s)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*arguments, limit=1 << 24, stdin=pipe, stdout=pipe)
        assert process.stdin is not None and process.stdout is not None
        try:
            access = [Access(url, token) for url, token in json.loads(await process.stdout.readline())]
            yield Server(process.pid, access)
        finally:
            process.stdin.close()
            await process.wait()


async def fill(session: aiohttp.ClientSession, plane: Access) -> None:
    """Makes the objects of a plane."""
    base = f"{plane.url}/api/v1/namespaces/default"
    for number in range(5):
        labels = {"app": "train", "number": str(number)}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{number}", "labels": labels},
            "spec": POD_SPEC,
        }
        await checked(session.post(f"{base}/pods", json=pod, headers=plane.headers))
        data = {"key": "value" * 20}
        one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"map-{number}"}, "data": data}
        await checked(session.post(f"{base}/configmaps", json=one, headers=plane.headers))
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"template": {"spec": POD_SPEC}},
    }
    await checked(session.post(f"{plane.url}/apis/batch/v1/namespaces/default/jobs", json=job, headers=plane.headers))


async def checked(request: Any) -> None:
    async with request as response:
        body = await response.read()
        assert response.status in (200, 201), body


async def settled(server: Server, seconds: float) -> tuple[int, float]:
    """Memory after a time without requests, and the share of a core in that time."""
    await asyncio.sleep(2)
    start, before_s = time.monotonic(), server.cpu_s()
    await asyncio.sleep(seconds)
    return server.memory_kib(), (server.cpu_s() - before_s) / (time.monotonic() - start)


async def alone(idle_s: float) -> dict[str, float]:
    """A process with one plane that is in use."""
    async with serving(1, 3600) as server, aiohttp.ClientSession() as session:
        await fill(session, server.access[0])
        memory_kib, _ = await settled(server, idle_s)
    return {"memory of a process with one plane, MiB": round(memory_kib / 1024, 1)}


async def idle(planes: int, idle_s: float) -> dict[str, float]:
    """What planes add that are watched, then open, then closed."""
    found: dict[str, float] = {}
    close_s = idle_s + 4
    async with (
        serving(planes, close_s) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        empty_kib = server.memory_kib()
        for plane in server.access:
            await fill(session, plane)

        def note(name: str, memory_kib: int, share: float) -> None:
            found[f"{name}: memory of each, KiB"] = round((memory_kib - empty_kib) / planes, 1)
            found[f"{name}: CPU of each, % of a core"] = round(100 * share / planes, 5)

        async def watch(plane: Access) -> None:
            url, query = f"{plane.url}/api/v1/namespaces/default/pods", {"watch": "true", "allowWatchBookmarks": "true"}
            async with session.get(url, params=query, headers=plane.headers) as response:
                async for _ in response.content:
                    pass

        watches = [asyncio.create_task(watch(plane)) for plane in server.access]
        note("open and watched", *await settled(server, idle_s))
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        note("open", *await settled(server, idle_s))
        await asyncio.sleep(close_s)
        note("closed", *await settled(server, idle_s))
    return found


async def requests(planes: int, number: int) -> dict[str, float]:
    """Latencies over all planes, at a fixed rate."""
    latencies: dict[str, list[float]] = {"get": [], "list": [], "write": []}
    async with (
        serving(planes, 3600) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CLIENTS)) as session,
    ):
        for plane in server.access:
            await fill(session, plane)
        before_s = server.cpu_s()

        async def one(n: int) -> None:
            plane = server.access[n * 7 % planes]
            base = f"{plane.url}/api/v1/namespaces/default"
            start = time.perf_counter()
            match n % 4:
                case 0 | 1:
                    kind, request = "get", session.get(f"{base}/pods/pod-{n % 5}", headers=plane.headers)
                case 2:
                    kind, request = "list", session.get(f"{base}/pods", headers=plane.headers)
                case _:
                    headers = plane.headers | {"Content-Type": "application/merge-patch+json"}
                    body = json.dumps({"data": {"key": str(n)}})
                    kind = "write"
                    request = session.patch(f"{base}/configmaps/map-{n % 5}", data=body, headers=headers)
            await checked(request)
            latencies[kind].append(1000 * (time.perf_counter() - start))

        start, running = time.perf_counter(), set()
        for n in range(number):
            await asyncio.sleep(start + n / RATE_PER_S - time.perf_counter())
            task = asyncio.create_task(one(n))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        cpu_ms = 1000 * (server.cpu_s() - before_s) / number
    found: dict[str, float] = {"CPU of a request, ms": round(cpu_ms, 2)}
    for kind, values in latencies.items():
        cuts = statistics.quantiles(values, n=100)
        found |= {f"{kind} p50, ms": round(cuts[49], 2), f"{kind} p99, ms": round(cuts[98], 2)}
    return found


async def measure(planes: int, idle_s: float, number: int) -> dict[str, float]:
    return await alone(idle_s) | await idle(planes, idle_s) | await requests(planes, number)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == SERVE:
        asyncio.run(serve(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description="memory, CPU and latency of many planes in one process")
    parser.add_argument("--planes", type=int, default=100)
    parser.add_argument("--idle-s", type=float, default=20.0, help="seconds for which an idle process is observed")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    found = asyncio.run(measure(options.planes, options.idle_s, options.requests))
    if options.output == "json":
        print(json.dumps(found, indent=2))
    else:
        width = max(map(len, found))
        for name, value in found.items():
            print(f"{name:{width}}  {value:>10}")


if __name__ == "__main__":
    main()
