# SPDX-License-Identifier: Apache-2.0
"""Speed of `cost --by team` over a month of a large cluster, from a history in memory.

    python benchmarks/cost.py [--nodes 1000] [--hours 20] [--runs 3] [--profile] [--by team|day|...] [-o table|json]

The history has 30 days of nodes with 8 GPUs each. Each GPU is held, one pod after another, for `--hours` on average,
with a break after each; jobs hold 1, 2, 4 or 8 GPUs of a node, of 200 queues in 20 teams; 1 in 50 GPUs is unhealthy for
some hours. The figures are the wall-clock time from the reader to the answer, and the fastest run in CPU time; records
of pods, holds and sums of use are in memory, as a store returns them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import random
import statistics
import time
from collections.abc import Collection, Iterator
from itertools import pairwise

from msgspec import Struct

from dovetail.advice.prices import built_in
from dovetail.cost.calendar import days, zone_of
from dovetail.cost.cells import gpu_times
from dovetail.cost.costs import CostAnswer, costs
from dovetail.cost.grouping import Grouping
from dovetail.cost.list_prices import rules
from dovetail.cost.price_rules import PriceBook
from dovetail.history.day_sums import DaySums
from dovetail.history.gpu_use import day_parts
from dovetail.history.pod_days import PodDay
from dovetail.history.records import DAY_MS, HOUR_MS, Gap, GpuHold, GpuSpan, Period, PodRecord, UseHour, UseSum

MONTH = Period(1_790_812_800_000, 1_790_812_800_000 + 30 * DAY_MS)
GPUS = 8
TEAMS, QUEUES = 20, 200
PARENTS = {f"queue-{number}": f"team-{number % TEAMS}" for number in range(QUEUES)}


class Memory(Struct):
    """The history; each list in the order of the reader."""

    span_list: list[GpuSpan]
    hold_list: list[GpuHold]
    pod_list: list[PodRecord]
    use_of_day: dict[int, list[UseSum]]

    def known(self) -> Period:
        return MONTH

    def spans(self, period: Period) -> Iterator[GpuSpan]:
        return iter(self.span_list)

    def holds(self, period: Period) -> Iterator[GpuHold]:
        return iter(self.hold_list)

    def pods(self, period: Period) -> Iterator[PodRecord]:
        return iter(self.pod_list)

    def pods_of(self, uids: Collection[str]) -> Iterator[PodRecord]:
        return (pod for pod in self.pod_list if pod.uid in uids)

    def job(self, name: str, namespace: str = "") -> Iterator[PodRecord]:
        return iter(())

    def use(self, period: Period) -> Iterator[UseHour]:
        return iter(())

    def use_by_pod(self, period: Period) -> Iterator[UseSum]:
        """Of one day."""
        return iter(self.use_of_day.get(period.start_ms // DAY_MS, ()))

    def pod_names(self, period: Period) -> Iterator[PodRecord]:
        return iter(self.pod_list)

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        return iter(())

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        return iter(())

    def gaps(self, period: Period) -> Iterator[Gap]:
        return iter(())


def history(nodes: int, hours: float, seed: int = 1) -> Memory:
    chance = random.Random(seed)
    memory = Memory([], [], [], {})
    for node in range(nodes):
        name = f"gpu-{node:04}"
        for index in range(GPUS):
            uuid = f"GPU-{node:04}-{index}"
            times = [0, 30 * DAY_MS]
            if chance.random() < 0.02:
                times[1:1] = sorted(chance.sample(range(1, 30 * DAY_MS), 2))
            for number, (start, end) in enumerate(pairwise(times)):
                memory.span_list.append(GpuSpan(
                    uuid, name, index, GPUS, "NVIDIA-H100-80GB-HBM3", "unhealthy" if number == 1 else "healthy",
                    MONTH.start_ms + start, MONTH.start_ms + end, "p5.48xlarge", "us-east-1", "us-east-1a",
                ))  # fmt: skip
        first = 0
        while first < GPUS:
            wide = chance.choice([size for size in (1, 2, 4, 8) if first % size == 0 and first + size <= GPUS])
            at = MONTH.start_ms + int(chance.random() * hours * HOUR_MS)
            while at < MONTH.end_ms:
                length = int(chance.expovariate(1 / (hours * HOUR_MS))) + 60_000
                number = len(memory.pod_list)
                uid = f"pod-{number:07}"
                queue = f"queue-{chance.randrange(QUEUES)}"
                memory.pod_list.append(PodRecord(
                    uid, f"ns-{queue}", f"train-{number}-0", f"train-{number}", "Job", f"user-{number % 500}", queue,
                    submitted_ms=at - 60_000, bound_ms=at, started_ms=at + 40_000, ended_ms=at + length,
                ))  # fmt: skip
                used = chance.randrange(1000)
                for part in day_parts(MONTH.clipped(at, at + length)):
                    here = UseSum(uid, wide * part.ms, wide * part.ms * used, 0)
                    memory.use_of_day.setdefault(part.start_ms // DAY_MS, []).append(here)
                memory.hold_list += (
                    GpuHold(uid, f"GPU-{node:04}-{first + index}", 1000, "whole", at, at + length)
                    for index in range(wide)
                )
                at += length + int(chance.expovariate(4 / (hours * HOUR_MS)))
            first += wide
    memory.hold_list.sort(key=lambda hold: (hold.gpu, hold.start_ms))
    return memory


def answer(memory: Memory, by: str) -> CostAnswer:
    book = PriceBook([], list(rules(built_in())))
    named = list(days(MONTH, zone_of("UTC"))) if by == "day" else []
    times = gpu_times(memory, MONTH, book, [part for _, part in named], by)
    return costs(times, Grouping(by, 1, PARENTS, tuple(day for day, _ in named)), "separate", book.currency)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--by", default="team")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    memory = history(options.nodes, options.hours)
    gc.disable()  # as the command does
    if options.profile:
        profiler = cProfile.Profile()
        profiler.runcall(answer, memory, options.by)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(15)
        return
    seconds, cpu = [], []
    for _ in range(options.runs):
        start, used = time.perf_counter(), time.process_time()
        found = answer(memory, options.by)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    figures = {
        "gpus": options.nodes * GPUS, "holds": len(memory.hold_list), "pods": len(memory.pod_list), "by": options.by,
        "rows": len(found.rows), "median_s": round(statistics.median(seconds), 3), "fastest_s": round(min(seconds), 3),
        "slowest_s": round(max(seconds), 3), "cpu_s": round(min(cpu), 3),
    }  # fmt: skip
    if options.output == "json":
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:10} {figure}")


if __name__ == "__main__":
    main()
