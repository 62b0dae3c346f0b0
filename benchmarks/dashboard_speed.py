# SPDX-License-Identifier: Apache-2.0
"""How fast the web pages are: on a playground with many nodes, in a real Chromium.

    python -m benchmarks.dashboard_speed [--nodes 1000] [--waiting 500] [--viewers 50] [-o json]

The API server in memory, `dovetail dashboard` and Chromium are processes of their own. Five pods on each node hold five
to eight of its GPUs; no scheduler runs, so those that wait stay. Times are on the clock: from the navigation to the
grid (for the first time, and again), from the reply to a new pod to the change on the page (one each three seconds, the
median), and between frames while the grid is scrolled. Beside them is the CPU time of the server and of the main thread
of the page (of a frame: `frame_cpu_ms`). `server` is the CPU of the dashboard with one viewer and with many while the
cluster changes each second, as a part of one core. Of the pages Queue and Jobs there are the seconds until their rows
are there and until others are found by a word, the CPU time of the dashboard, and the KiB of the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import re
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import ClientSession
from playwright.async_api import CDPSession, Page, async_playwright, expect

from dovetail.dashboard.assets import FOLDER, read_assets
from dovetail.playground import Playground
from tests.dashboard.worlds import node, pod
from tools.chromium import build

COMMAND = "from dovetail.cli import main; main()"
MOST_MS = 120_000
_ROWS_KIB = """
(path) => performance.getEntriesByType("resource").filter((one) => new URL(one.name).pathname.startsWith(path))
  .reduce(([packed, whole], one) => [packed + one.encodedBodySize / 1024, whole + one.decodedBodySize / 1024], [0, 0])
"""
_FRAMES = """
() => new Promise((done) => {
  const times = [];
  const frame = (at) => {
    times.push(at);
    scrollBy(0, 60);
    if (times.length < 121) requestAnimationFrame(frame);
    else done(times.slice(1).map((one, index) => one - times[index]));
  };
  requestAnimationFrame(frame);
})
"""


async def play(nodes: int, waiting: int, kubeconfig: Path) -> None:
    """Serve the cluster until killed."""
    playground = Playground()
    await playground.start(still=True)
    for number in range(20):
        playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}})
    for number in range(nodes):
        playground.put(node(f"node-{number:05}", rack=f"rack-{number // 16:04}", block=f"block-{number // 256:02}"))
        for at in range(5):
            playground.put(
                pod(f"runs-{number}-{at}", 1 if at < 4 else number % 4 + 1, f"team-{number % 20}", f"node-{number:05}")
            )
    for number in range(waiting):
        playground.put(pod(f"waits-{number}", 16, f"team-{number % 20}"))
    playground.kubeconfig(kubeconfig)
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


def cpu_s(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def shown(page: Page, url: str) -> float:
    """Seconds until the grid is there."""
    began_s = time.monotonic()
    await page.goto(url)
    await page.wait_for_selector("a.node", timeout=MOST_MS)
    return time.monotonic() - began_s


async def cpu_of_page(session: CDPSession) -> dict[str, float]:
    """Seconds of the main thread of the page: all, scripts, layout and style."""
    found = {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}
    return {name: found[f"{name}Duration"] for name in ("Task", "Script", "Layout", "RecalcStyle")}


async def changed(page: Page, server: ClientSession, name: str) -> float:
    """Seconds from the reply to a new pod on the first node to the page."""
    await asyncio.sleep(3)
    tile = page.locator("a.node[title^='node-00000:']")
    before = await tile.get_attribute("title") or ""
    async with server.post("/api/v1/namespaces/team-0/pods", json=pod(name, 1, "team-0", "node-00000")) as reply:
        assert reply.status == 201, await reply.text()
    began_s = time.monotonic()
    await expect(tile).not_to_have_attribute("title", before, timeout=MOST_MS)
    return time.monotonic() - began_s


async def listed(page: Page, session: CDPSession, server: int, url: str, name: str) -> dict[str, Any]:
    """A page of rows: seconds until they are there, and until one word has found others; the CPU seconds of the server
    and of the page, and the KiB of rows as they are sent and unpacked, for the first of these."""
    server_s, began_s = cpu_s(server), time.monotonic()
    await page.goto(f"{url}{name}")
    await page.wait_for_selector("tbody tr", timeout=MOST_MS)
    found: dict[str, Any] = {f"{name}_s": time.monotonic() - began_s}
    found[f"{name}_server_cpu_s"] = cpu_s(server) - server_s
    # It counts from the navigation on.
    found[f"{name}_page_cpu_s"] = (await cpu_of_page(session))["Task"]
    found[f"{name}_kib"], found[f"{name}_unpacked_kib"] = await page.evaluate(_ROWS_KIB, f"/api/{name}")
    began_s = time.monotonic()
    await page.locator(".filter input").fill("waits-17")
    await expect(page.locator("tbody tr").first).to_contain_text("waits-17", timeout=MOST_MS)
    found[f"{name}_found_s"] = time.monotonic() - began_s
    return found


async def viewer(url: str) -> None:
    """Follow the fleet as a browser does."""
    async with ClientSession(url) as client, client.get("/api/stream?on=fleet", timeout=None) as stream:
        async for line in stream.content:
            if line.startswith(b"data:") and b'"fleet"' in line:
                async with client.get("/api/fleet.json") as reply:
                    await reply.read()


async def part_of_core(pid: int, url: str, server: ClientSession, viewers: int, label: str) -> float:
    tasks = [asyncio.create_task(viewer(url)) for _ in range(viewers)]
    await asyncio.sleep(3)
    began_s, before_s = time.monotonic(), cpu_s(pid)
    for number in range(10):
        async with server.post("/api/v1/namespaces/team-1/pods", json=pod(f"{label}-{number}", 16, "team-1")) as reply:
            assert reply.status == 201
        await asyncio.sleep(1)
    found = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return found


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    kubeconfig = folder / "kubeconfig"
    own = (
        sys.executable,
        "-m",
        "benchmarks.dashboard_speed",
        "--nodes",
        str(options.nodes),
        "--waiting",
        str(options.waiting),
    )
    playing = await asyncio.create_subprocess_exec(*own, "--play", str(kubeconfig), stdout=asyncio.subprocess.PIPE)
    serving = None
    try:
        assert playing.stdout is not None
        await playing.stdout.readline()
        command = (
            sys.executable,
            "-c",
            COMMAND,
            "dashboard",
            "--listen",
            "127.0.0.1:0",
            "--kubeconfig",
            str(kubeconfig),
        )
        serving = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert serving.stdout is not None
        url = re.findall(r"http://\S+/", (await serving.stdout.readline()).decode())[0]
        address = re.findall(r"http://\S+", kubeconfig.read_text())[0]
        async with async_playwright() as playwright, ClientSession(address) as server, ClientSession(url) as client:
            began_s = time.monotonic()
            for _ in range(MOST_MS // 100):
                if (await client.get("/api/fleet.json")).status == 200:
                    break
                await asyncio.sleep(0.1)
            found: dict[str, Any] = {"nodes": options.nodes, "read_s": time.monotonic() - began_s}
            browser = await playwright.chromium.launch(executable_path=str(build(print)), args=["--no-sandbox"])
            first = await browser.new_page(viewport={"width": 1500, "height": 900})
            session = await first.context.new_cdp_session(first)
            await session.send("Performance.enable", {"timeDomain": "threadTicks"})
            before_s = cpu_s(serving.pid)
            found["first_page_s"] = await shown(first, url)
            found["first_server_cpu_s"] = cpu_s(serving.pid) - before_s
            found["first_page_cpu_s"] = await cpu_of_page(session)
            found["again_s"] = statistics.median([await shown(first, url) for _ in range(3)])
            await first.wait_for_timeout(3000)
            cpu_before, server_before_s = await cpu_of_page(session), cpu_s(serving.pid)
            found["change_s"] = statistics.median(
                [await changed(first, server, f"new-{number}") for number in range(3)]
            )
            cpu_after = await cpu_of_page(session)
            found["change_page_cpu_s"] = {name: (cpu_after[name] - cpu_before[name]) / 3 for name in cpu_after}
            found["change_server_cpu_s"] = (cpu_s(serving.pid) - server_before_s) / 3
            before_frames = await cpu_of_page(session)
            frames = sorted(await first.evaluate(_FRAMES))
            used = (await cpu_of_page(session))["Task"] - before_frames["Task"]
            found["frame_cpu_ms"] = 1000 * used / len(frames)
            found["frame_ms"] = {"median": frames[len(frames) // 2], "p95": frames[int(len(frames) * 0.95)]}
            await session.send("HeapProfiler.collectGarbage")
            found["heap_mib"] = (await session.send("Runtime.getHeapUsage"))["usedSize"] / (1 << 20)
            for name in ("queue", "jobs"):
                found |= await listed(first, session, serving.pid, url, name)
            await browser.close()
            found["server"] = {
                viewers: await part_of_core(serving.pid, url, server, viewers, f"v{viewers}")
                for viewers in dict.fromkeys((1, options.viewers))
            }
            found["fleet_kib"] = len(gzip.compress(await (await client.get("/api/fleet.json")).read())) / 1024
            found["assets_kib"] = sum(len(one.packed) for one in read_assets(FOLDER).values()) / 1024
        return found
    finally:
        for process in (serving, playing):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


def show(found: dict[str, Any], output: str) -> None:
    """Print the figures, as `table` or `json`."""
    if output == "json":
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:14} {value:.3f}" if isinstance(value, float) else f"{name:14} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=500)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        asyncio.run(play(options.nodes, options.waiting, options.play))
        return
    with TemporaryDirectory() as folder:
        found = asyncio.run(measure(options, Path(folder)))
    show(found, options.output)


if __name__ == "__main__":
    main()
