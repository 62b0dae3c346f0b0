# SPDX-License-Identifier: Apache-2.0
"""Packing under churn: the share of allocated GPUs, and the waiting time of pods with GPUs.

    python benchmarks/churn.py [--nodes FILE --pods FILE] [--policies fgd ...] [--loads 90 100 110] [--seeds 1 2 3]
        [--compare expected-fill]

Pods of the list's shapes arrive at random at an offered load (`dovetail.sim.churn`) and run for 2 hours on average.
Pods that do not fit wait in the scheduler's queue, which is the same for all policies. The cluster starts empty: 3 mean
run times are warm-up, then 5 are measured. `--every 16` keeps every sixteenth node of each kind, so that a run takes
seconds at 90 % and a minute at 110 %; 1 is the whole cluster. The seed determines the order of the nodes. A pod that
still waits at the end counts with its waiting time so far.

Each figure is the mean over the seeds, with the standard deviation. The seed causes most of the deviation, so a second
table compares one policy with each of the others per seed: the mean of the differences and its standard error.

Idle GPUs are sampled every ten minutes and counted in one of three classes: on nodes with less than one free core, else
in partly allocated GPUs, else whole. A fourth figure is the least idle part of the partly allocated GPUs if their parts
were packed again without constraints.

Without files the benchmark uses the sample that comes with Dovetail (the list `default`). `-o json` prints each run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from dovetail.core.events import NodeChanged
from dovetail.core.model import CPU, WHOLE_GPU_MILLI, Node
from dovetail.core.policy import Policy
from dovetail.sim import sample
from dovetail.sim.churn import churned
from dovetail.sim.clock import Result
from dovetail.sim.engine import Simulation
from dovetail.sim.policies import POLICIES
from dovetail.sim.traces import openb
from dovetail.sim.workload import Workload

RUNTIME_MS = 2 * 3_600_000
LOOK_MS = 600_000
POLICIES_SHOWN = ["bestfit", "fgd", "tightest", "expected-fill"]
WARM_RUNTIMES, MEASURED_RUNTIMES = 3, 5


COLUMNS = {
    "allocated_percent": ("allocated GPU %", 2),
    "wait_p50_s": ("wait p50 s", 0),
    "wait_p95_s": ("wait p95 s", 0),
    "wait_p99_s": ("wait p99 s", 0),
    "wait_mean_s": ("wait mean s", 0),
    "several_mean_s": ("of several GPUs", 0),
    "waiting_percent": ("wait still %", 2),
    "idle_parts_percent": ("idle in parts %", 2),
    "idle_no_cores_percent": ("without cores %", 2),
    "idle_whole_percent": ("idle whole %", 2),
    "packed_anew_percent": ("parts, packed anew %", 2),
}
"""Heading and number of digits of each column."""
COMPARED = "allocated_percent", "wait_p95_s", "wait_mean_s", "several_mean_s"


class Row(Struct, frozen=True):
    """One run. Waiting times are of pods that request GPUs; `waiting_percent` of them still wait at the end.
    `several_mean_s` covers those that request several GPUs; None if there were none."""

    policy: str
    load_percent: int
    seed: int
    allocated_percent: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    several_mean_s: float | None
    waiting_percent: float
    idle_parts_percent: float
    idle_no_cores_percent: float
    idle_whole_percent: float
    packed_anew_percent: float
    cpu_s: float


class Watched(Simulation):
    """Samples idle GPUs. `idle_milli` sums the idle GPUs from `from_ms` on: in parts, without cores, whole, and in
    parts if these were packed again. `looks` is the number of samples."""

    def __init__(self, workload: Workload, policy: Policy, from_ms: int) -> None:
        super().__init__(workload, policy)
        self.idle_milli = np.zeros(4, dtype=np.int64)
        self.looks = 0
        self._look_ms = from_ms

    def decide(self) -> bool:
        acted = super().decide()
        if self.now_ms >= self._look_ms:
            self._look_ms = self.now_ms + LOOK_MS
            self.looks += 1
            nodes = self.state.cluster.nodes
            rooms = nodes.room_milli(slice(0, nodes.size))
            no_cores = nodes.free[nodes.resources[CPU]] < 1000
            whole = np.where(rooms == WHOLE_GPU_MILLI, rooms, 0)[:, ~no_cores].sum()
            stuck = rooms[:, no_cores].sum()
            anew = least_idle_milli(list(self._parts()))
            self.idle_milli += (rooms.sum() - stuck - whole, stuck, whole, anew)
        return acted

    def _parts(self) -> Iterator[int]:
        for placement in self.state.cluster.placements.values():
            yield from [placement.share_milli] * placement.share_bits.bit_count()


def least_idle_milli(parts: Sequence[int]) -> int:
    """A lower bound of the idle part of the GPUs that hold these parts, for any packing.

    It is the bound L2 for bin packing: Martello and Toth, Knapsack Problems, 1990, section 8.3."""
    half, most = WHOLE_GPU_MILLI // 2, 0
    for small in {0, *(part for part in parts if part <= half)}:
        alone = sum(1 for part in parts if part > WHOLE_GPU_MILLI - small)
        large = [part for part in parts if half < part <= WHOLE_GPU_MILLI - small]
        beside = sum(WHOLE_GPU_MILLI - part for part in large)
        others = sum(part for part in parts if small <= part <= half)
        most = max(most, alone + len(large) + max(0, -((beside - others) // WHOLE_GPU_MILLI)))
    return most * WHOLE_GPU_MILLI - sum(parts)


def thinned(nodes: Sequence[Node], every: int, seed: int) -> list[Node]:
    """Every `every`-th node of each kind, shuffled by the seed."""
    ordered = sorted(nodes, key=lambda node: (node.labels, node.allocatable, node.name))
    kept = ordered[::every]
    random.Random(seed).shuffle(kept)
    return kept


def measured(result: Result, from_ms: int, until_ms: int) -> tuple[float, list[float], list[float], float]:
    """(allocated %, waits in seconds, waits of pods with several GPUs, % still waiting) of the pods that arrived
    between the two times."""
    held = 0
    for now, then in pairwise(result.moments):
        held += now.allocated_milli * max(0, min(then.at_ms, until_ms) - max(now.at_ms, from_ms))
    last = result.moments[-1]
    held += last.allocated_milli * max(0, until_ms - max(last.at_ms, from_ms))
    came = [fate for fate in result.fates if fate.milli and from_ms <= fate.job.at_ms < until_ms]
    waiting = [not fate.running and fate.ended_ms is None for fate in came]
    waits = [
        (fate.waited_ms + (until_ms - fate.since_ms if still else 0)) / 1000
        for fate, still in zip(came, waiting, strict=True)
    ]
    allocated = 100 * held / (result.capacity_milli * (until_ms - from_ms))
    several = [wait for fate, wait in zip(came, waits, strict=True) if fate.milli > WHOLE_GPU_MILLI]
    return allocated, waits, several, 100 * sum(waiting) / max(len(came), 1)


def run(nodes: Path, pods: Path, every: int, case: tuple[str, int, int]) -> Row:
    policy, load_percent, seed = case
    cluster = thinned(openb.read_nodes(nodes), every, seed)
    listed = Workload(pods.stem, tuple(map(NodeChanged, cluster)), openb.read_pods(pods))
    from_ms, until_ms = WARM_RUNTIMES * RUNTIME_MS, (WARM_RUNTIMES + MEASURED_RUNTIMES) * RUNTIME_MS
    workload = churned(listed, load_percent, RUNTIME_MS, until_ms, seed)
    scoring = POLICIES[policy](seed, [pod.request for job in listed.jobs for pod in job.pods])
    began_s = time.process_time()
    simulation = Watched(workload, Policy(scoring=scoring), from_ms)
    result = simulation.run(until_ms=until_ms)
    cpu_s = time.process_time() - began_s
    allocated, waits, several, waiting = measured(result, from_ms, until_ms)
    waits.sort()
    p50, p95, p99 = (waits[math.ceil(percent * len(waits) / 100) - 1] for percent in (50, 95, 99))
    mean, of_several = statistics.mean(waits), statistics.mean(several) if several else None
    parts, no_cores, whole, anew = (
        100 * float(idle) / (result.capacity_milli * simulation.looks) for idle in simulation.idle_milli
    )
    return Row(
        policy,
        load_percent,
        seed,
        allocated,
        mean,
        p50,
        p95,
        p99,
        of_several,
        waiting,
        parts,
        no_cores,
        whole,
        anew,
        cpu_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=Path, default=sample.NODES)
    parser.add_argument("--pods", type=Path, default=sample.PODS)
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=POLICIES_SHOWN)
    parser.add_argument("--loads", nargs="+", type=int, default=[90, 100, 110])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--compare", choices=list(POLICIES), default="expected-fill")
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    cases = [(policy, load, seed) for load, seed, policy in product(args.loads, args.seeds, args.policies)]
    rows: list[Row] = []
    with ProcessPoolExecutor(args.processes) as pool:
        for row in pool.map(partial(run, args.nodes, args.pods, args.every), cases):
            rows.append(row)
            print(f"\r{len(rows)} of {len(cases)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if args.output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(f"| load | policy | {' | '.join(heading for heading, _ in COLUMNS.values())} | CPU s |")
    print("|---:|---|" + "---:|" * (len(COLUMNS) + 1))
    for load, policy in product(args.loads, args.policies):
        mine = [row for row in rows if (row.load_percent, row.policy) == (load, policy)]
        cells = [_cell([getattr(row, name) for row in mine], digits) for name, (_, digits) in COLUMNS.items()]
        print(f"| {load} % | {policy} | {' | '.join(cells)} | {statistics.median(row.cpu_s for row in mine):.0f} |")
    if args.compare in args.policies and len(args.policies) > 1 and len(args.seeds) > 1:
        print_compared(rows, args.compare, args.policies, args.loads)


def print_compared(rows: Sequence[Row], compared: str, policies: Sequence[str], loads: Sequence[int]) -> None:
    print(f"\n{compared} less each of the others, seed by seed\n")
    print(f"| load | less | {' | '.join(COLUMNS[name][0] for name in COMPARED)} |")
    print("|---:|---|" + "---:|" * len(COMPARED))
    found = {(row.policy, row.load_percent, row.seed): row for row in rows}
    seeds = {row.seed for row in rows}
    for load, policy in product(loads, (policy for policy in policies if policy != compared)):
        pairs = [(found[compared, load, seed], found[policy, load, seed]) for seed in seeds]
        cells = [_difference([(getattr(a, name), getattr(b, name)) for a, b in pairs], name) for name in COMPARED]
        print(f"| {load} % | {policy} | {' | '.join(cells)} |")


def _difference(pairs: Sequence[tuple[float | None, float | None]], name: str) -> str:
    of_each = [one - other for one, other in pairs if one is not None and other is not None]
    if len(of_each) < 2:
        return "-"
    digits, error = COLUMNS[name][1], statistics.stdev(of_each) / math.sqrt(len(of_each))
    return f"{statistics.mean(of_each):+.{digits}f} +- {error:.{digits}f}"


def _cell(found: list[float | None], digits: int) -> str:
    values = [value for value in found if value is not None]
    if not values:
        return "-"
    spread = f" +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
