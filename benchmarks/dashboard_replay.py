# SPDX-License-Identifier: Apache-2.0
"""How fast a recorded day is shown: on many nodes, in a real Chromium.

    python -m benchmarks.dashboard_replay [--nodes 1000] [--jobs 3000] [-o json]

A simulated day of jobs of 1 to 8 GPUs is recorded and read. `read_cpu_s` is the CPU time of reading it, of which
`repeat_cpu_s` is what `dovetail replay` takes; `film_kib` what the browser can read of the grid, and `state_s` the CPU
time for the state at a time, at most and in the mean of 12. `frame_ms` are the times between frames while the bar is
dragged to and fro over the day, two seconds long, and `frame_cpu_ms` is the CPU time of the page's main thread for
each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from playwright.async_api import async_playwright, expect

from benchmarks.dashboard_speed import show
from dovetail.core.events import NodeChanged
from dovetail.core.model import CPU, GPU, PODS, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.dashboard.day_pages import DayPages
from dovetail.dashboard.recorded_day import RecordedDay
from dovetail.dashboard.replay_app import replay_app
from dovetail.dashboard.serve import bound, listening_app
from dovetail.recording.reader import find
from dovetail.recording.recording_file import RecordingFile
from dovetail.recording.replay import replay
from dovetail.sim.engine import Simulation
from dovetail.sim.workload import SimJob, Workload
from tools.chromium import build

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
_DRAG = """
() => new Promise((done) => {
  const bar = document.querySelector("input[type=range]");
  const [low, high, times] = [Number(bar.min), Number(bar.max), []];
  const frame = (at) => {
    times.push(at);
    bar.value = String(low + (high - low) * (0.5 + 0.5 * Math.sin(times.length / 9)));
    bar.dispatchEvent(new Event("input", { bubbles: true }));
    if (times.length < 121) requestAnimationFrame(frame);
    else done(times.slice(1).map((one, index) => one - times[index]));
  };
  requestAnimationFrame(frame);
})
"""


def recorded(nodes: int, jobs: int, path: Path) -> None:
    """Write the recording of a day."""
    chance, made = random.Random(42), []
    cluster = tuple(
        NodeChanged(
            Node(
                f"node-{number:05}",
                ((CPU, 96_000), (GPU, 8), (PODS, 110)),
                (("topology.kubernetes.io/rack", f"rack-{number // 16:04}"),),
            )
        )
        for number in range(nodes)
    )
    for number, at_ms in enumerate(sorted(chance.randrange(DAY_MS) for _ in range(jobs))):
        pod = Pod(
            f"job-{number}", f"team-{number % 20}", f"job-{number}", Request(((GPU, chance.choice((1, 2, 4, 8))),)),
            created_ms=at_ms + 1, work=Work("f", grace_ms=0),
        )  # fmt: skip
        made.append(SimJob(at_ms, (pod,), None, chance.randrange(HOUR_MS, 12 * HOUR_MS)))
    with RecordingFile(path, "simulated") as file:
        policy = Policy(fabric=("topology.kubernetes.io/rack",))
        Simulation(Workload("day", cluster, tuple(made)), policy, take_step=file.step).run()


async def measure(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"nodes": options.nodes}
    began_s = time.process_time()
    result = replay(find((path,))[0][0])
    assert result.verdict == "equal", result
    found |= {"steps": result.steps, "repeat_cpu_s": time.process_time() - began_s}
    day = RecordedDay(path)
    found["recording_kib"] = day.size_bytes / 1024
    thread, began_s = Thread(target=day.read), time.process_time()
    thread.start()
    thread.join()
    assert not day.problem, day.problem
    found["read_cpu_s"] = time.process_time() - began_s
    parts = [day.film.part(number) or b"" for number in range(len(day.film.starts_ms))]
    found |= {"parts": len(parts), "film_kib": sum(map(len, parts)) / 1024}
    took = []
    for part in range(1, 13):
        began_s = time.process_time()
        day.state_at(day.start_ms + part * (day.end_ms - day.start_ms) // 12)
        took.append(time.process_time() - began_s)
    found["state_s"] = {"max": max(took), "mean": sum(took) / len(took)}
    pages, listening = DayPages(RecordedDay(path), "dovetail"), bound("127.0.0.1:0")
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    async with listening_app(replay_app(pages), listening), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(build(print)), args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1500, "height": 900})
        await page.goto(url)
        await expect(page.locator(".old")).to_have_count(0, timeout=600_000)
        await expect(page.locator(".day-facts")).to_contain_text("in use")
        await page.wait_for_timeout(3000)
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})

        async def task_s() -> float:
            metrics = (await session.send("Performance.getMetrics"))["metrics"]
            return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

        await page.evaluate(_DRAG)
        before_s = await task_s()
        frames = sorted(await page.evaluate(_DRAG))
        found["frame_cpu_ms"] = 1000 * (await task_s() - before_s) / len(frames)
        found["frame_ms"] = {"median": frames[len(frames) // 2], "p95": frames[int(len(frames) * 0.95)]}
        await session.send("HeapProfiler.collectGarbage")
        found["heap_mib"] = (await session.send("Runtime.getHeapUsage"))["usedSize"] / (1 << 20)
        await browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        recorded(options.nodes, options.jobs, path)
        found = asyncio.run(measure(options, path))
    show(found, options.output)


if __name__ == "__main__":
    main()
