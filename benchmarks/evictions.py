# SPDX-License-Identifier: Apache-2.0
"""Evictions per hour and lost work while the demand of queues exceeds the cluster for days.

    python benchmarks/evictions.py [--hours 48] [--seeds 10] [-o table|json]

The benchmark runs the core with a virtual clock (`dovetail.sim`). Jobs run for ever, request CPU and memory besides
their GPUs, and are submitted again after an eviction. The columns of each case are the evictions per hour in the first
and in the second half of the time, the most evictions of one job in any hour, and the lost work as a share of all work.
The cases:

- `guarantees`: 4 H100 and 4 A100. Two queues have a guarantee of 4 GPUs, and both want the H100s.
- `given back`: a queue within its guarantee arrives while another queue holds all 8 GPUs.
- `large`: 8 GPUs, and queues with one job of 8 GPUs each without checkpoints. `large, saving`: with a checkpoint every
  10 minutes and a start within 5. There are 2 or 10 queues; the half-life is an hour or a week.
- `odd`: 1 GPU and 2 queues, or 8 GPUs and 10 queues, with more jobs of 1 GPU than fit.
- `random`: the mean over the seeds of random queues (guarantees, weights, priorities, a parent level) and jobs. Half of
  the jobs write checkpoints, some end, and some arrive later.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.core.events import NodeChanged
from dovetail.core.model import CPU, GPU, MEMORY, NO_WORK, PODS, Node, Pod, Request, Work
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.policy import Policy
from dovetail.core.queues.types import GPU as GPU_CLASS
from dovetail.core.queues.types import MODEL_LABEL, Queue
from dovetail.sim.clock import Fate
from dovetail.sim.engine import Simulation
from dovetail.sim.workload import SimJob, Workload

MINUTE_MS, HOUR_MS, WEEK_MS = 60_000, 3_600_000, 7 * 86_400_000
GIB = 2**30
SAVING = Work(checkpoint_interval_ms=10 * MINUTE_MS, startup_ms=5 * MINUTE_MS)


class Row(Struct, frozen=True):
    case: str
    first_half_per_hour: float
    last_half_per_hour: float
    most_of_a_job_in_an_hour: int
    lost_percent: float


class Counted(Simulation):
    """Records the time and the job of each eviction."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, Policy(scoring=ExpectedFill()))
        self.evictions: list[tuple[int, int]] = []

    def evict(self, fate: Fate, grace_ms: int) -> None:
        if not fate.leaving:
            self.evictions.append((self.now_ms, fate.number))
        super().evict(fate, grace_ms)


def node(name: str, gpus: int, model: str = "H100") -> NodeChanged:
    amounts = {CPU: gpus * 16_000, MEMORY: gpus * 128 * GIB, GPU: gpus, PODS: 110}
    return NodeChanged(Node(name, tuple(sorted(amounts.items())), ((MODEL_LABEL, model),)))


def job(
    name: str, queue: str, gpus: int, at_ms: int = 0, model: str = "", work: Work = NO_WORK, minutes: int = 0,
    priority: int = 0,
) -> SimJob:  # fmt: skip
    amounts = {CPU: gpus * 8000, GPU: gpus, MEMORY: gpus * 32 * GIB}
    request = Request(tuple(amounts.items()), node_selector=((MODEL_LABEL, model),) if model else ())
    about: dict[str, Any] = {"owner": f"job-{name}", "queue": queue, "work": work, "priority": priority}
    pod = Pod(name, "team", name, request, created_ms=at_ms + 1, **about)
    return SimJob(at_ms, (pod,), duration_ms=minutes * MINUTE_MS or None)


def equal_jobs(queues: int, jobs: int, gpus: int, node_gpus: int, half_life_ms: int, work: Work = NO_WORK) -> Workload:
    """`queues` queues of equal weight with `jobs` equal jobs each."""
    names = [f"q{number}" for number in range(queues)]
    made = [job(f"{name}-{i}", name, gpus, work=work) for i in range(jobs) for name in names]
    return _workload([node("a", node_gpus)], made, [Queue(name, half_life_ms=half_life_ms) for name in names])


def guarantees() -> Workload:
    queues = [Queue(name, guarantee=((GPU_CLASS, 4000),)) for name in "xy"]
    jobs = [job(f"{name}{i}", name, 1, model="H100") for i in range(4) for name in "xy"]
    return _workload([node("h", 4), node("a", 4, "A100")], jobs, queues)


def reclaimed() -> Workload:
    jobs = [job(f"y{i}", "y", 1) for i in range(8)] + [job(f"x{i}", "x", 1, MINUTE_MS) for i in range(4)]
    return _workload([node("a", 8)], jobs, [Queue("x", guarantee=((GPU_CLASS, 4000),)), Queue("y")])


def drawn(seed: int) -> Workload:
    chance = random.Random(seed)
    nodes = [node(f"n{i}", chance.choice([4, 8])) for i in range(chance.randint(1, 4))]
    names = [f"q{number}" for number in range(chance.choice([2, 3, 5, 8]))]
    half_life_ms = chance.choice([MINUTE_MS, HOUR_MS, 24 * HOUR_MS, WEEK_MS])
    above = [Queue("above", half_life_ms=half_life_ms)] if chance.random() < 0.4 else []
    queues = []
    for number, name in enumerate(names):
        inside = bool(above and number)
        guarantee = 0 if inside else chance.choice([0, 0, 1000, 2000, 4000])
        queues.append(
            Queue(
                name, parent="above" if inside else "", guarantee=((GPU_CLASS, guarantee),) if guarantee else (),
                weight=chance.randint(1, 3), half_life_ms=half_life_ms,
            )
        )  # fmt: skip
    jobs = [
        job(
            f"j{number}", chance.choice(names), chance.choice([1, 1, 2, 4, 8]),
            chance.choice([0, 0, chance.randint(0, 240) * MINUTE_MS]), work=chance.choice([NO_WORK, SAVING]),
            minutes=chance.choice([0, 0, 60, 600]), priority=chance.choice([0, 0, 0, 1]),
        )
        for number in range(chance.randint(6, 30))
    ]  # fmt: skip
    return _workload(nodes, jobs, [*queues, *above])


def _workload(nodes: Iterable[NodeChanged], jobs: Iterable[SimJob], queues: Iterable[Queue]) -> Workload:
    return Workload("evictions", tuple(nodes), tuple(sorted(jobs, key=lambda one: one.at_ms)), tuple(queues))


CASES: dict[str, Workload] = {
    "guarantees": guarantees(),
    "given back": reclaimed(),
    **{
        f"large{saves}, {queues} queues, {half_life}": equal_jobs(queues, 1, 8, 8, half_life_ms, work)
        for saves, work in (("", NO_WORK), (", saving", SAVING))
        for queues in (2, 10)
        for half_life, half_life_ms in (("1h", HOUR_MS), ("7d", WEEK_MS))
    },
    **{
        f"odd, {gpus} GPUs, {queues} queues, {half_life}": equal_jobs(queues, gpus, 1, gpus, half_life_ms)
        for gpus, queues in ((1, 2), (8, 10))
        for half_life, half_life_ms in (("1h", HOUR_MS), ("7d", WEEK_MS))
    },
}


def measure(case: str, workloads: Sequence[Workload], hours: int) -> Row:
    first = last = most = lost = worked = 0
    for workload in workloads:
        # An arrival at the end keeps the clock running until then.
        tick = SimJob(hours * HOUR_MS, (Pod("end", "team", "end", Request(((CPU, 1),))),))
        run = Counted(Workload(workload.name, workload.cluster, (*workload.jobs, tick), workload.queues))
        result = run.run(until_ms=hours * HOUR_MS)
        first += sum(at_ms < hours * HOUR_MS // 2 for at_ms, _ in run.evictions)
        last += sum(at_ms >= hours * HOUR_MS // 2 for at_ms, _ in run.evictions)
        by_hour = Counter((at_ms // HOUR_MS, number) for at_ms, number in run.evictions)
        most = max(most, *by_hour.values(), 0)
        lost += sum(fate.lost_ms * fate.milli for fate in result.fates)
        worked += sum(fate.served_ms(run.now_ms) * fate.milli for fate in result.fates)
    halves = hours / 2 * len(workloads)
    return Row(case, first / halves, last / halves, most, 100 * lost / max(1, worked))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    chosen = parser.parse_args(arguments)
    rows = [measure(case, [workload], chosen.hours) for case, workload in CASES.items()]
    rows.append(measure("random", [drawn(seed) for seed in range(chosen.seeds)], chosen.hours))
    if chosen.output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'case':32}{'first half/h':>14}{'last half/h':>14}{'most, job/h':>14}{'lost %':>9}")
    for row in rows:
        print(
            f"{row.case:32}{row.first_half_per_hour:14.2f}{row.last_half_per_hour:14.2f}"
            f"{row.most_of_a_job_in_an_hour:14}{row.lost_percent:9.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
