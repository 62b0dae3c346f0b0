# SPDX-License-Identifier: Apache-2.0
"""Packing on openb compared with the published numbers: unallocated GPU % by list and policy, means over the seeds.

    python benchmarks/packing.py [--traces FOLDER] [--lists default ...] [--policies fgd ...] [--seeds 42 43 44]

Without `--traces` the benchmark uses the sample that comes with Dovetail (the list `default`). `--traces` is a folder
with `openb_node_list_gpu_node.csv.gz` and `openb_pod_list_NAME.csv.gz` as published (data/csv in
hkust-adsl/kubernetes-scheduler-simulator). The benchmark then uses those of the 15 published lists that are there, or
those of `--lists`. A run equals `dovetail simulate --until 130` with less overhead (`dovetail.sim.placing`). `-o json`
prints each run.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.core.events import NodeChanged
from dovetail.core.policy import Policy
from dovetail.scheduler.serve import COLLECT_AFTER
from dovetail.sim import sample
from dovetail.sim.arrivals import inflated
from dovetail.sim.placing import PlacedAtOnce
from dovetail.sim.policies import POLICIES
from dovetail.sim.report import SimulationRun, of_arrivals
from dovetail.sim.traces import openb
from dovetail.sim.workload import Workload

PUBLISHED = Path(__file__).parent / "published" / "fgd_atc23.csv"
TABLE = ["random", "dotprod", "clustering", "packing", "bestfit", "fgd", "expected-fill"]
"""The six policies of the published table, and Dovetail's."""
UNTIL_PERCENT = 130
_NODES, _PREFIX, _SUFFIX = "openb_node_list_gpu_node.csv.gz", "openb_pod_list_", ".csv.gz"


class Row(Struct, frozen=True):
    """One run: the unallocated GPUs in % of all after the arrival of pods that request 100 % and 130 % of the GPUs.
    `first_refusal_percent` as in `ArrivalReport`."""

    list: str
    policy: str
    seed: int
    unallocated_100: float
    unallocated_130: float
    first_refusal_percent: float | None
    cpu_s: float


@lru_cache(maxsize=1)
def arrivals(traces: Path | None, name: str, seed: int) -> Workload:
    nodes = sample.NODES if traces is None else traces / _NODES
    pods = sample.PODS if traces is None else traces / f"{_PREFIX}{name}{_SUFFIX}"
    listed = Workload(name, tuple(map(NodeChanged, openb.read_nodes(nodes))), openb.read_pods(pods))
    return inflated(listed, UNTIL_PERCENT, seed)


def run(traces: Path | None, case: tuple[str, int, str]) -> Row:
    name, seed, policy = case
    workload = arrivals(traces, name, seed)
    scoring = POLICIES[policy](seed, [pod.request for job in workload.jobs for pod in job.pods])
    began_s = time.process_time()
    result = PlacedAtOnce(workload, Policy(scoring=scoring)).run()
    cpu_s = time.process_time() - began_s
    report = of_arrivals(SimulationRun(workload, policy, seed, result, cpu_s), UNTIL_PERCENT)
    at_100, at_130 = (report.unallocated_gpu_percent[column] for column in ("100", "130"))
    if at_100 is None or at_130 is None:
        raise ValueError(f"{name}: of so few GPUs no arrival falls on 100 % and on {UNTIL_PERCENT} %")
    return Row(name, policy, seed, at_100, at_130, report.first_refusal_percent, cpu_s)


def published() -> dict[tuple[str, str], tuple[float, float]]:
    with PUBLISHED.open() as file:
        return {
            (row["list"], row["policy"]): (float(row["unallocated_100"]), float(row["unallocated_130"]))
            for row in csv.DictReader(file)
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--lists", nargs="+")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=TABLE)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    known, lists = published(), args.lists or ["default"]
    if args.traces is not None and not args.lists:
        there = {path.name for path in args.traces.glob(f"{_PREFIX}*{_SUFFIX}")}
        lists = [name for name in dict.fromkeys(name for name, _ in known) if f"{_PREFIX}{name}{_SUFFIX}" in there]
    elif args.traces is None and lists != ["default"]:
        parser.error("the sample has the list default alone; the others need --traces")
    cases = list(product(lists, args.seeds, args.policies))
    rows: list[Row] = []
    began_s = time.monotonic()
    # As the live scheduler does.
    with ProcessPoolExecutor(args.processes, initializer=gc.set_threshold, initargs=(COLLECT_AFTER,)) as pool:
        # A process reads the arrivals once and runs all policies on them.
        for row in pool.map(partial(run, args.traces), cases, chunksize=len(args.policies)):
            rows.append(row)
            print(f"\r{len(rows)} of {len(cases)} runs", end="", file=sys.stderr, flush=True)
    print(f" in {time.monotonic() - began_s:.0f} s, {sum(row.cpu_s for row in rows):.0f} CPU s", file=sys.stderr)
    if args.output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    seeds = ", ".join(map(str, args.seeds))
    print(f"seeds {seeds}; unallocated GPU % (published), and the median of the CPU seconds of a run\n")
    print("| list | policy | at 100 % | at 130 % | first refusal at | CPU s |\n|---|---|---:|---:|---:|---:|")
    columns: list[Callable[[Row], float]] = [lambda row: row.unallocated_100, lambda row: row.unallocated_130]
    for name, policy in product(lists, args.policies):
        mine = [row for row in rows if (row.list, row.policy) == (name, policy)]
        theirs = known.get((name, policy))
        cells = [f"{statistics.mean(map(column, mine)):.2f}" for column in columns]
        if theirs:
            cells = [f"{cell} ({value:.2f})" for cell, value in zip(cells, theirs, strict=True)]
        refusals = [row.first_refusal_percent for row in mine if row.first_refusal_percent is not None]
        first = f"{statistics.mean(refusals):.1f} %" if len(refusals) == len(mine) else "-"
        cpu_s = statistics.median(row.cpu_s for row in mine)
        print(f"| {name} | {policy} | {' | '.join(cells)} | {first} | {cpu_s:.1f} |")


if __name__ == "__main__":
    main()
