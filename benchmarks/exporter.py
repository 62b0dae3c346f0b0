# SPDX-License-Identifier: Apache-2.0
"""Cost of a scrape of the agent's GPU metrics, and of the agent, on the stand-in library.

    python -m benchmarks.exporter [--scrapes 60] [--apart 5] [--unsteady] [--host dgx-h100] [--gzip] [-o json]

A whole agent runs as a process of its own, on a stand-in machine and an in-memory API. Scrapes come at a steady period,
as those of a Prometheus, or (`--unsteady`) at gaps that the agent cannot foresee: each of these waits until all GPUs
are read. Latency is that of the client, with connecting. CPU is that of the agent's process: per scrape, less what the
agent needs without scrapes in the same time, and the share of a core at one scrape in 15 seconds. Memory is the
resident set at the end, after all scrapes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from dovetail.playground import Playground
from tools.standin import Standin

UNCOUNTED = 3
"""The scrapes in which the agent learns their period."""
INTERVAL_S = 15.0
_NODE = "gpu-1"
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_S = 40.0


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(standin: Standin, kubeconfig: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The agent, with the exporter at the port."""
    roots = {"sysfs": standin.sysfs, "proc": standin.proc, "dev": standin.dev, "driver": standin.driver_root}
    argv = [
        sys.executable, "-c", "from dovetail.cli import main; main()",
        "agent", "run", f"--node-name={_NODE}", f"--kubeconfig={kubeconfig}",
        f"--listen=127.0.0.1:{free_port()}", f"--exporter=127.0.0.1:{port}", f"--state-folder={folder / 'state'}",
        f"--kubelet-folder={folder / 'kubelet'}", f"--cdi-folder={folder / 'cdi'}",
        *(f"--{name}-root={path}" for name, path in roots.items()),
    ]  # fmt: skip
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(argv, env=os.environ | standin.environment, stdout=log, stderr=log)


async def measure(options: argparse.Namespace) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dovetail-") as name:
        folder = Path(name)
        (folder / "machine").mkdir()
        standin = Standin(folder / "machine", options.host)
        for gpu in standin.description.gpus:
            standin.load(gpu.index, sm=0.8, tensor=0.5, dram=0.4, nvlink_tx_mbps=9000, nvlink_rx_mbps=9000)
        playground = Playground()
        await playground.start()
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}})
        playground.kubeconfig(folder / "kubeconfig")
        port = free_port()
        agent = start(standin, folder / "kubeconfig", folder, port)
        try:
            return await scraped(agent.pid, f"http://127.0.0.1:{port}/metrics", options)
        except Exception:
            print((folder / "agent.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            agent.terminate()
            await asyncio.to_thread(agent.wait)
            await playground.stop()


async def scraped(pid: int, url: str, options: argparse.Namespace) -> Mapping[str, Any]:
    headers = {"Accept-Encoding": "gzip" if options.gzip else "identity"}
    gpus = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), auto_decompress=False) as client:

        async def scrape() -> bytes:
            async with client.get(url, headers=headers) as answer:
                answer.raise_for_status()
                return await answer.read()

        async with asyncio.timeout(_READY_S):
            while not gpus:
                await asyncio.sleep(1)
                try:
                    async with client.get(url, headers={"Accept-Encoding": "identity"}) as answer:
                        gpus = (await answer.text()).count("\nDCGM_FI_DEV_GPU_TEMP{")
                except aiohttp.ClientError:
                    continue
        # The first readings, in which the sources of all kinds are found, are over now.
        await asyncio.sleep(5)
        began, used = time.monotonic(), cpu_s(pid)
        await asyncio.sleep(max(30.0, options.scrapes * options.apart / 4))
        idle = (cpu_s(pid) - used) / (time.monotonic() - began)
        latencies, size, chance, due = [], 0, random.Random(1), time.monotonic()
        for number in range(-UNCOUNTED, options.scrapes):
            if not number:
                began, used = time.monotonic(), cpu_s(pid)
            due += options.apart * (chance.uniform(0.5, 1.5) if options.unsteady else 1)
            await asyncio.sleep(due - time.monotonic())
            before = time.perf_counter()
            size = len(await scrape())
            if number >= 0:
                latencies.append((time.perf_counter() - before) * 1000)
        per_scrape = (cpu_s(pid) - used - idle * (time.monotonic() - began)) / options.scrapes
        async with client.get(url, headers={"Accept-Encoding": "identity"}) as answer:
            lines = (await answer.text()).splitlines()
    series = sum(not line.startswith("#") for line in lines)
    return {
        "gpus": gpus,
        "series": series,
        "kinds": sum(line.startswith("# TYPE") for line in lines),
        "bytes": size,
        "p50_ms": statistics.median(latencies),
        "p99_ms": statistics.quantiles(latencies, n=100, method="inclusive")[98],
        "cpu_ms_per_scrape": per_scrape * 1000,
        "core_percent": per_scrape / INTERVAL_S * 100,
        "agent_idle_core_percent": idle * 100,
        "resident_mib": resident_mib(pid),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=60)
    parser.add_argument("--apart", type=float, default=5.0, help="seconds between two scrapes; 5")
    parser.add_argument("--unsteady", action="store_true", help="gaps that the agent cannot foresee")
    parser.add_argument("--host", default="dgx-h100")
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    if options.output == "json":
        print(json.dumps(found, indent=1))
        return
    print("| what | value |\n|---|---:|")
    for name, value in found.items():
        print(f"| {name} | {value:.2f} |" if isinstance(value, float) else f"| {name} | {value} |")


if __name__ == "__main__":
    main()
