# SPDX-License-Identifier: Apache-2.0
"""Cost of the history of a cluster: file size, CPU and memory of the writer, and what a month cost by team.

    python -m benchmarks.history [--nodes 1000] [--days 30] [--apart 15] [--sampled-hours 1] [--runs 3] [--records]

Load: nodes x 8 GPUs. Each GPU is held for 80 % of the time, by pods of 8 GPUs (a half of the GPUs), of 1 GPU (a
quarter) and of half a GPU (a quarter). Run times are exponential, 8 hours on average. Each pod belongs to one of 40
teams. Each GPU is used as in 6 of 20 bins of the histogram, with 4 activities.

A process of its own writes the file, another one adds up its days, and others read it.

- ingest: `--sampled-hours` of the load as the collector writes it, every `--apart` seconds a batch with the use of each
  GPU since the last one, and with what started and ended. CPU is shown as part of a core, memory as the peak of the
  resident set.
- file: the rest of the days is written by hours, since that is what is kept of them. The size is that of the file at
  the end, scaled by nothing.
- sums: the sums of days are made, step by step as the collector makes them. `sums_longest_step_s` is for how long a
  batch can have to wait for that.
- cost, report: what `dovetail cost --by team` and `report` compute of all that is known, each in `--runs` processes of
  its own: wall-clock time without the start of Python, and the peak of memory; `_by_job` the same by job, of which
  there are as many as pods here. With `--records` also `records_cost`, by team without sums.

Medians are shown.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.cost.cells import gpu_times
from dovetail.cost.costs import CostAnswer, costs
from dovetail.cost.grouping import Grouping
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.cost.utilization import Utilization, utilization
from dovetail.history.day_sums import DaySums
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord, UseHour
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.historyserver.questions import MOST_ROWS

GPUS = 8
TEAMS = 40
MEAN_MS = 8 * HOUR_MS
BUSY = 0.8
PRICES = (PriceRule(55_040_000, "USD", "2026-07-20", "a bill", model="h100-sxm5"),)
START_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS


class Load(Struct, frozen=True):
    """What there is, sorted by start."""

    spans: list[GpuSpan]
    pods: list[PodRecord]
    holds: list[GpuHold]


def load(nodes: int, days: int) -> Load:
    chance = random.Random(1)
    end_ms = START_MS + days * 24 * HOUR_MS
    spans, pods, holds = list[GpuSpan](), list[PodRecord](), list[GpuHold]()
    for node in range(nodes):
        gpus = [f"GPU-{chance.getrandbits(128):032x}" for _ in range(GPUS)]
        spans += [
            GpuSpan(gpu, f"node-{node}", number, GPUS, "NVIDIA-H100-80GB-HBM3", "healthy", START_MS)
            for number, gpu in enumerate(gpus)
        ]
        size, milli = [(8, 1000), (8, 1000), (1, 1000), (1, 500)][node % 4]
        for first in range(0, GPUS, size):
            for _ in range(1000 // milli):
                now_ms = START_MS + (chance.random() > BUSY) * int(chance.expovariate(1 / MEAN_MS))
                while now_ms < end_ms:
                    until_ms = now_ms + int(chance.expovariate(1 / MEAN_MS)) + 1000
                    uid = f"{chance.getrandbits(128):032x}"
                    ended_ms = until_ms if until_ms < end_ms else 0
                    team = f"team-{chance.randrange(TEAMS)}"
                    pods.append(
                        PodRecord(
                            uid, team, f"train-{uid[:8]}-0", f"train-{uid[:8]}", "Job", "someone@example.org", team,
                            "dovetail", labels={"team": team, "app": "train"}, gpus=str(size), gpu_milli=size * milli,
                            node=f"node-{node}", submitted_ms=now_ms - 60_000, bound_ms=now_ms,
                            started_ms=now_ms + 9_000, ended_ms=ended_ms,
                            outcome="Completed" if ended_ms else "",
                        )
                    )  # fmt: skip
                    kind: Any = "whole" if milli == 1000 else "share"
                    holds += [GpuHold(uid, gpu, milli, kind, now_ms, ended_ms) for gpu in gpus[first : first + size]]
                    now_ms = until_ms + int(chance.expovariate(BUSY / (1 - BUSY) / MEAN_MS))
    return Load(spans, sorted(pods, key=lambda one: one.bound_ms), sorted(holds, key=lambda one: one.start_ms))


def used(held: list[tuple[str, str]], start_ms: int, length_ms: int) -> list[UseHour]:
    """Of the hour so far, as sources report it."""
    hour_ms = start_ms // HOUR_MS * HOUR_MS
    until_ms = start_ms + length_ms
    ms = until_ms - hour_ms
    histogram = tuple(ms // 6 if 4 <= bin < 10 else 0 for bin in range(20))
    activity = {"sm": 600 * ms, "tensor": 300 * ms, "dram": 400 * ms, "gr": 700 * ms}
    return [
        UseHour(gpu, uid, hour_ms, ms, 437 * ms, ms // 9, 61_234, histogram, activity, until_ms, "node@1")
        for gpu, uid in held
    ]


class Progress:
    """The load as it goes on."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._pods = {one.uid: one for one in load.pods}
        self._begun = 0
        self._active: list[GpuHold] = []

    def until(self, end_ms: int) -> tuple[HistoryBatch, list[tuple[str, str]]]:
        """What started and ended since the last time, and the GPUs with the pods that held them."""
        holds, begun = self._load.holds, self._begun
        while self._begun < len(holds) and holds[self._begun].start_ms < end_ms:
            self._begun += 1
        new = holds[begun : self._begun]
        held = [*self._active, *new]
        ended = [one for one in held if one.end_ms and one.end_ms < end_ms]
        self._active = [one for one in held if not (one.end_ms and one.end_ms < end_ms)]
        pods = [self._pods[uid] for uid in dict.fromkeys(one.pod_uid for one in (*new, *ended))]
        batch = HistoryBatch(
            end_ms,
            () if begun else self._load.spans,
            [one if one.end_ms < end_ms else replace(one, end_ms=0) for one in (*new, *ended)],
            [one if one.ended_ms < end_ms else replace(one, ended_ms=0, outcome="") for one in pods],
        )
        return batch, [(one.gpu, one.pod_uid) for one in held]


def write(path: Path, options: argparse.Namespace) -> dict[str, float]:
    found = load(options.nodes, options.days)
    progress = Progress(found)
    base_mib = resident_mib()
    apart_ms = options.apart * 1000
    sampled_ms = options.sampled_hours * HOUR_MS
    cpu_s, batches = 0.0, 0
    longest_s = 0.0
    with closing(SqliteStore(path)) as store:
        for start_ms in range(START_MS, START_MS + sampled_ms, apart_ms):
            batch, held = progress.until(start_ms + apart_ms)
            began_s, wall_s = time.process_time(), time.monotonic()
            store.write(replace(batch, use=used(held, start_ms, apart_ms)))
            cpu_s += time.process_time() - began_s
            longest_s = max(longest_s, time.monotonic() - wall_s)
            batches += 1
        ingest_mib = resident_mib() - base_mib
        for start_ms in range(START_MS + sampled_ms, START_MS + options.days * 24 * HOUR_MS, HOUR_MS):
            batch, held = progress.until(start_ms + HOUR_MS)
            store.write(replace(batch, use=used(held, start_ms, HOUR_MS)))
    ingest = {"ingest_core_percent": 100 * cpu_s / batches / options.apart, "longest_batch_s": longest_s,
              "grown_mib": ingest_mib} if batches else {}  # fmt: skip
    return ingest | {
        "file_mib": path.stat().st_size / 2**20,
        "holds": len(found.holds),
        "pods": len(found.pods),
    }


def add_up(path: Path, options: argparse.Namespace) -> dict[str, float]:
    steps, cpu = list[float](), list[float]()
    began_s = time.monotonic()
    with closing(SqliteStore(path)) as store:
        opened_s, before_mib = time.monotonic() - began_s, resident_mib()
        more = True
        while more:
            step_s, cpu_s = time.monotonic(), time.process_time()
            more = store.retain(START_MS + options.days * DAY_MS)
            steps.append(time.monotonic() - step_s)
            cpu.append(time.process_time() - cpu_s)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        ((days, size),) = store.run("SELECT count(*), total(length(sums)) FROM day_sums").fetchall()
    return {
        "open_to_write_s": opened_s,
        "sums_of_day_cpu_s": sum(cpu) / max(1, days),
        "sums_of_day_steps": len(steps) / max(1, days),
        "sums_step_s": statistics.median(steps),
        "sums_longest_step_s": max(steps),
        "sums_longest_step_cpu_s": max(cpu),
        "sums_grown_mib": peak_mib - before_mib,
        "sums_file_mib": size / 2**20,
        "sums_days": days,
    }


class Records(SqliteReader):
    """A file without sums."""

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        return iter(())


def answer(
    path: Path, reader: type[SqliteReader], book: PriceBook | None, by: str = "team"
) -> CostAnswer | Utilization:
    """Of all that is known: costs, or without prices how the GPUs were used."""
    grouping = Grouping(by)
    with closing(reader(path)) as opened:
        times = gpu_times(opened, opened.known(), book, by=by, pods=grouping.of_pod_days)
    if book is None:
        return utilization(times, grouping, MOST_ROWS)
    return costs(times, grouping, "separate", book.currency, MOST_ROWS)


ANSWERS: dict[str, tuple[type[SqliteReader], tuple[PriceRule, ...], str]] = {
    "cost": (SqliteReader, PRICES, "team"),
    "report": (SqliteReader, (), "team"),
    "cost_by_job": (SqliteReader, PRICES, "job"),
    "report_by_job": (SqliteReader, (), "job"),
    "records_cost": (Records, PRICES, "team"),
}


def timed(path: Path, name: str) -> dict[str, float]:
    reader, prices, by = ANSWERS[name]
    began_s, cpu_s = time.monotonic(), time.process_time()
    found = answer(path, reader, PriceBook([prices]) if prices else None, by)
    return {
        f"{name}_s": time.monotonic() - began_s,
        f"{name}_cpu_s": time.process_time() - cpu_s,
        f"{name}_rows": len(found.rows),
    }


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--apart", type=int, default=15)
    parser.add_argument("--sampled-hours", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", action="store_true")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--step", choices=["write", "sums", *ANSWERS], help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        gc.disable()  # as the commands do
        step = {"write": write, "sums": add_up}.get(options.step)
        found = step(options.file, options) if step is not None else timed(options.file, options.step)
        found[f"{options.step}_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    answers = [name for name in ANSWERS if options.records or name != "records_cost"]
    results: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for step_name in ("write", "sums", *answers * options.runs):
            argv = [sys.executable, "-m", "benchmarks.history", *sys.argv[1:], "--step", step_name]
            argv += ["--file", f"{folder}/history.db"]
            run = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True)
            for name, value in json.loads(run.stdout).items():
                results[name].append(value)
    medians = {name: statistics.median(values) for name, values in results.items()}
    if options.output == "json":
        print(json.dumps(medians))
    else:
        for name, value in medians.items():
            print(f"{name:24} {value:12,.2f}")


if __name__ == "__main__":
    main()
