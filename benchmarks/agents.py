# SPDX-License-Identifier: Apache-2.0
"""Bursty agents that share GPUs: the same work under each way of sharing, and what agents gain by lying.

    python benchmarks/agents.py [--seeds 8] [--workloads bursts-60 ...] [--policies static fifo ...] [--hours 12]
                                [--jobs jobs.csv.gz] [--lies [inflate ...]] [--liars 2] [--processes 2] [-o table|json]

128 GPUs in 16 nodes, 16 agents of equal weight, 12 hours of arrivals; each run ends when all tasks are done. In
`bursts-N` the tasks are drawn (`sim/agents/bursts`), and the work that arrives is N % of what the GPUs can do in that
time. `recorded-N` takes bursts from a list of jobs of a real cluster (`sim/agents/recorded`), by default an excerpt of
Philly's that is part of Dovetail. In `large-60` one of the agents asks for 60 GPUs for 30 minutes every 3 hours, and
the 15 others bring the load of `bursts-110`. Checkpoints and restarts cost the same under all policies.

The policies: `static` (each agent its part, first come first served), `fifo` (first come first served, to completion),
`max-min` (divided at every event, with preemption), `karma` (divided each minute, by credits), `leases` (Dovetail's own
broker, `sim/agents/leased`: each agent's plane tries its shortest work first). Figures are those of
`sim/agents/outcome`. Tables have medians over the seeds, and with several seeds the least and the largest value.
Results do not depend on the machine; CPU time does.

`--lies`: one agent at a time lies (`sim/agents/lying`) in `bursts-110`; useful GPU time gained over truth, mean over
the seeds (of each the mean of the agents that lie) with the 95 % confidence interval of Student's t.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.sim.agents.bursts import bursty, with_large
from dovetail.sim.agents.lying import LIARS, gain, interval
from dovetail.sim.agents.outcome import AgentOutcome
from dovetail.sim.agents.recorded import recorded
from dovetail.sim.agents.sharing import SHARING
from dovetail.sim.agents.tasks import AgentWorkload
from dovetail.sim.agents.world import AgentWorld
from dovetail.sim.sample import BURSTS
from dovetail.sim.traces.jobs import read_jobs

WORKLOADS = ["bursts-60", "bursts-95", "bursts-130", "recorded-95", "large-60"]
LIES_IN = "bursts-110"
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "utilisation": ("useful", lambda value: f"{100 * value:.1f} %"),
    "completion_s": ("completion", lambda value: f"{value / 60:.1f} min"),
    "worst_slowdown": ("worst slowdown", lambda value: f"{value:.1f}"),
    "jain": ("Jain U/W", lambda value: f"{value:.3f}"),
    "lost": ("lost", lambda value: f"{100 * value:.2f} %"),
    "overhead": ("overhead", lambda value: f"{100 * value:.1f} %"),
    "idle_leased": ("idle leased", lambda value: f"{100 * value:.2f} %"),
    "free_while_wanted": ("free while wanted", lambda value: f"{100 * value:.1f} %"),
    "deadlines_met": ("deadlines met", lambda value: f"{100 * value:.0f} %"),
    "large_wait_s": ("60 GPUs wait", lambda value: f"{value / 60:.0f} min"),
    "large_wait_max_s": ("at most", lambda value: f"{value / 60:.0f} min"),
    "refused": ("refused", lambda value: f"{value:.0f}"),
    "cpu_s": ("CPU", lambda value: f"{value:.1f} s"),
}
"""The title of each column, and how its values are written."""


def workload(name: str, seed: int, hours: int, jobs: Path | None = None) -> AgentWorkload:
    """The workload of this name and seed. Raises ValueError for an unknown name."""
    kind, _, number = name.partition("-")
    if not number.isdigit():
        raise ValueError(f"{name!r} must be bursts-N, recorded-N or large-N")
    if kind == "bursts":
        return bursty(seed, int(number), hours=hours)
    if kind == "recorded":
        return recorded(read_jobs(jobs or BURSTS, 8), seed, int(number), hours=hours)
    if kind == "large":
        # The part of a sixteenth agent is the work of the large gangs.
        return with_large(bursty(seed, 110, agents=15, hours=hours), int(number))
    raise ValueError(f"{name!r} must be bursts-N, recorded-N or large-N")


def alone_ms(work: AgentWorkload) -> list[int]:
    """The sum of the completion times of each agent's tasks when it is alone, first come first served."""
    totals: list[int] = []
    for agent in range(len(work.agents)):
        own = work.alone(agent)
        total = AgentWorld(own, SHARING["fifo"](own)).run().completion_ms(agent)
        assert total is not None
        totals.append(total)
    return totals


def simulate(work: AgentWorkload, policy: str) -> tuple[AgentOutcome, float]:
    """The outcome, and the CPU time in seconds."""
    began_s = time.process_time()
    outcome = AgentWorld(work, SHARING[policy](work)).run()
    return outcome, time.process_time() - began_s


def measure(case: tuple[str, int], policies: list[str], hours: int, jobs: Path | None) -> list[dict[str, Any]]:
    """The figures of one workload and seed under each policy."""
    name, seed = case
    work = workload(name, seed, hours, jobs)
    alone = alone_ms(work)
    rows: list[dict[str, Any]] = []
    for policy in policies:
        outcome, cpu_s = simulate(work, policy)
        figures = {**outcome.figures(alone), "cpu_s": cpu_s}
        rows.append({"workload": name, "policy": policy, "seed": seed, "tasks": len(work.tasks), **figures})
    return rows


def deceive(case: tuple[str, int], lies: list[str], liars: int, hours: int) -> list[dict[str, Any]]:
    """What lies gain under one policy in one seed: of each lie the mean of the first `liars` agents."""
    policy, seed = case
    work = workload(LIES_IN, seed, hours)
    truth, _ = simulate(work, policy)
    return [
        {
            "policy": policy,
            "seed": seed,
            "lie": lie,
            "gain": statistics.fmean(gain(truth, SHARING[policy], lie, agent) for agent in range(liars)),
        }
        for lie in lies
    ]


def table(rows: list[dict[str, Any]], policies: list[str]) -> Iterable[str]:
    """A table for each workload."""
    for name in dict.fromkeys(row["workload"] for row in rows):
        of_name = [row for row in rows if row["workload"] == name]
        seen = [key for key in COLUMNS if any(row[key] for row in of_name)]
        tasks = statistics.median(row["tasks"] for row in of_name)
        yield f"\n{name}, {tasks:.0f} tasks\n"
        yield f"| policy | {' | '.join(COLUMNS[key][0] for key in seen)} |"
        yield f"|---|{'---:|' * len(seen)}"
        for policy in policies:
            of_policy = [row for row in of_name if row["policy"] == policy]
            yield f"| {policy} | {' | '.join(_cell(key, [row[key] for row in of_policy]) for key in seen)} |"


def _cell(key: str, values: list[float | None]) -> str:
    """The median, and the least and largest value in brackets. A value that is missing in one seed has no median."""
    shown = COLUMNS[key][1]
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return "-"
    span = f" [{shown(min(found))}, {shown(max(found))}]" if len(set(found)) > 1 and key != "cpu_s" else ""
    return shown(statistics.median(found)) + span


def lies_table(rows: list[dict[str, Any]], policies: list[str], lies: list[str]) -> Iterable[str]:
    seeds = len({row["seed"] for row in rows})
    yield f"\nUseful GPU time gained over truth in {LIES_IN}, {seeds} seeds\n"
    yield f"| policy | {' | '.join(lies)} |"
    yield f"|---|{'---:|' * len(lies)}"
    for policy in policies:
        cells: list[str] = []
        for lie in lies:
            gains = [100 * row["gain"] for row in rows if (row["policy"], row["lie"]) == (policy, lie)]
            if len(gains) > 1:
                mean, low, high = interval(gains)
                cells.append(f"{mean:+.1f} % [{low:+.1f}, {high:+.1f}]")
            else:
                cells.append(f"{gains[0]:+.1f} %")
        yield f"| {policy} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--policies", nargs="+", choices=list(SHARING), default=list(SHARING))
    parser.add_argument("--hours", type=int, default=12)
    parser.add_argument("--jobs", type=Path)
    parser.add_argument("--lies", nargs="*", choices=list(LIARS))
    parser.add_argument("--liars", type=int, default=2)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    lying = args.lies is not None
    lies = args.lies or list(LIARS)
    seeds = range(args.seeds)
    one: Callable[[tuple[str, int]], list[dict[str, Any]]]
    if lying:
        one = partial(deceive, lies=lies, liars=args.liars, hours=args.hours)
        cases = [(policy, seed) for seed in seeds for policy in args.policies]
    else:
        one = partial(measure, policies=args.policies, hours=args.hours, jobs=args.jobs)
        cases = [(name, seed) for name in args.workloads for seed in seeds]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.processes) as pool:
        for done, found in enumerate(pool.map(one, cases), 1):
            rows += found
            print(f"\r{done} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    command = shlex.join(["python", "benchmarks/agents.py", *sys.argv[1:]])
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if args.output == "json":
        print(json.dumps({"command": command, "machine": machine, "runs": rows}, indent=1))
        return
    print(f"{command}\n{machine}")
    lines = lies_table(rows, args.policies, lies) if lying else table(rows, args.policies)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
