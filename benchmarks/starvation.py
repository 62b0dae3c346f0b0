# SPDX-License-Identifier: Apache-2.0
"""Starvation: the waiting time of large gangs among many small jobs, and its cost.

    python benchmarks/starvation.py [--seeds 8] [--orders fifo fair ... dovetail] [-o table|json]

100 GPUs, 72 hours, a time resolution of one minute. Five users submit jobs of 4 to 10 GPUs that run 20 to 40 minutes,
at an offered load of 130 % in total. One user submits a gang of 60 GPUs that runs for 60 minutes every 8 hours, nine in
total, the first after 4 hours; each of them arrives at a full cluster. The run time limits are exact, all agents have
the same weight, the half-life of usage is 6 hours, and only `dovetail, preempting` preempts. `no hold`: any job that
fits starts. `hold`: a reservation for the first job that does not fit; later jobs pass it only if they do not delay it
(EASY backfill). `dovetail` is the scheduler's core with a queue per agent.

Waits are of the gangs that started: the mean, and the mean over the seeds of each seed's longest wait. Lost work is
work that is repeated. Utilization is the mean from the first arrival on.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

from dovetail.core.events import NodeChanged
from dovetail.core.model import GPU, Gang, Pod, Request, Work
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.sim.clock import Result, VirtualClock
from dovetail.sim.engine import Simulation
from dovetail.sim.orders import ORDERS
from dovetail.sim.plain import BackfillRule, Plain
from dovetail.sim.traces.nodes import uniform_nodes
from dovetail.sim.workload import SimJob, Workload

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
GPUS, HOURS, LOAD = 100, 72, 1.3
HALF_LIFE_MS = 6 * HOUR_MS
GANG, FIRST_HOUR, EVERY_HOURS = 60, 4, 8
AGENTS = [f"agent-{i}" for i in range(5)]
_MEAN_GPUS, _MEAN_MINUTES = 7, 30


def workload(seed: int) -> Workload:
    """The load of a seed. Each GPU of a job is a separate pod, so that the ten nodes are one pool."""
    chance = random.Random(seed)
    hours = range(FIRST_HOUR, HOURS, EVERY_HOURS)
    jobs = [_job("large", number, hour * 60, GANG, 60) for number, hour in enumerate(hours)]
    per_minute = LOAD * GPUS / _MEAN_GPUS / _MEAN_MINUTES / len(AGENTS)
    for agent in AGENTS:
        minute, number = chance.expovariate(per_minute), 0
        while minute < HOURS * 60:
            jobs.append(_job(agent, number, int(minute), chance.randint(4, 10), chance.randint(20, 40)))
            minute, number = minute + chance.expovariate(per_minute), number + 1
    queues = tuple(Queue(name, half_life_ms=HALF_LIFE_MS) for name in (*AGENTS, "large"))
    ordered = tuple(sorted(jobs, key=lambda job: (job.at_ms, job.pods[0].uid)))
    return Workload("starvation", tuple(map(NodeChanged, uniform_nodes(10, GPUS // 10))), ordered, queues)


def _job(agent: str, number: int, minute: int, gpus: int, minutes: int) -> SimJob:
    name, at_ms, work = f"{agent}-{number}", minute * MINUTE_MS, Work(max_runtime_ms=minutes * MINUTE_MS)
    request = Request(((GPU, 1),))
    members = tuple(
        Pod(f"{name}/{i}", agent, f"{name}-{i}", request, created_ms=at_ms, gang=name, queue=agent, work=work)
        for i in range(gpus)
    )
    return SimJob(at_ms, members, Gang(name, agent, name, gpus, created_ms=at_ms), minutes * MINUTE_MS)


def _plain(order: str) -> dict[str, Callable[[Workload], VirtualClock]]:
    return {
        "no hold": lambda workload: Plain(workload, ORDERS[order], BackfillRule.SKIP, HALF_LIFE_MS),
        "hold": lambda workload: Plain(workload, ORDERS[order], BackfillRule.EASY, HALF_LIFE_MS),
    }


def _core(**choices: Any) -> Callable[[Workload], VirtualClock]:
    return lambda workload: Simulation(workload, Policy(scoring=ExpectedFill(), **choices))


SCHEDULERS: dict[str, dict[str, Callable[[Workload], VirtualClock]]] = {
    **{order: _plain(order) for order in ("fifo", "fair", "fair-history", "credit")},
    "dovetail": {"no hold": _core(preempt=False, reserve=False), "hold": _core(preempt=False)},
    "dovetail, preempting": {"no hold": _core(reserve=False), "hold": _core()},
}


def measure(result: Result) -> dict[str, float | None]:
    """The figures of a run over all hours: gangs and their waits in minutes, waits of small jobs, utilization."""
    waits: dict[str, list[float]] = {"large": [], "small": []}
    for fate in result.fates:
        if fate.started_ms is not None:
            kind = "large" if len(fate.job.pods) == GANG else "small"
            waits[kind].append((fate.started_ms - fate.job.at_ms) / MINUTE_MS)
    moments, end_ms = result.moments, HOURS * HOUR_MS
    ends_ms = [moment.at_ms for moment in moments[1:]] + [end_ms]
    lost_ms = sum(fate.lost_ms * len(fate.job.pods) for fate in result.fates)
    busy = sum(now.allocated_milli * (until_ms - now.at_ms) for now, until_ms in zip(moments, ends_ms, strict=True))
    return {
        "gangs_started": len(waits["large"]),
        "gang_wait_min": statistics.fmean(waits["large"]) if waits["large"] else None,
        "gang_wait_max_min": max(waits["large"], default=None),
        "small_wait_min": statistics.fmean(waits["small"]),
        "evictions": result.evicted,
        "lost_percent": 100 * 1000 * lost_ms / busy,
        "utilisation_percent": 100 * busy / (result.capacity_milli * (end_ms - moments[0].at_ms)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--orders", nargs="+", choices=list(SCHEDULERS), default=list(SCHEDULERS))
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    workloads = [workload(seed) for seed in range(args.seeds)]
    found: list[dict[str, Any]] = []
    for order in args.orders:
        for line, scheduler in SCHEDULERS[order].items():
            for seed, work in enumerate(workloads):
                print(f"\r{order}, {line}, seed {seed}   ", end="", file=sys.stderr, flush=True)
                result = scheduler(work).run(until_ms=HOURS * HOUR_MS - 1)
                found.append({"order": order, "line": line, "seed": seed, **measure(result)})
    print(file=sys.stderr)
    if args.output == "json":
        print(json.dumps(found, indent=1))
        return
    waits = "gangs started of 9 | gang wait, mean | mean of max | small jobs wait"
    print(f"| order | line | {waits} | evictions | lost of used | used |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for order in args.orders:
        for line in SCHEDULERS[order]:
            runs = [run for run in found if (run["order"], run["line"]) == (order, line)]
            print(f"| {order} | {line} | {' | '.join(_mean(runs, key) for key in _COLUMNS)} |")


_COLUMNS = {
    "gangs_started": "{:.1f}",
    "gang_wait_min": "{:.0f} min",
    "gang_wait_max_min": "{:.0f} min",
    "small_wait_min": "{:.0f} min",
    "evictions": "{:.0f}",
    "lost_percent": "{:.1f} %",
    "utilisation_percent": "{:.1f} %",
}


def _mean(runs: list[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in runs if run[key] is not None]
    return _COLUMNS[key].format(statistics.fmean(values)) if values else "-"


if __name__ == "__main__":
    main()
