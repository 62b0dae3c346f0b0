# SPDX-License-Identifier: Apache-2.0
"""What a rule of spare nodes costs the scheduler: the same stream of jobs with a rule and without one.

    python benchmarks/spares.py [--racks 911] [--steps 400] [--runs 3] [--per-domain 2] [-o json]

Load: racks of 18 nodes of 4 GPUs, each one NVLink clique, 16,398 nodes by default. Jobs of 1 to 16 whole nodes, gangs
that stay in one clique, fill nine tenths of what a rule leaves. Then each step ends 4 jobs, breaks a node or returns
one, and lets as many jobs come as have ended. Stated is the CPU time of a step, median and mean, without a rule, with
a rule, and their ratio; and that of `Spares.settle` alone in a step of its kind. Runs alternate.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import NamedTuple

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.fabric import FABRIC_NAME, FabricSpeeds, SpareRule
from dovetail.core.model import GPU, PODS, Gang, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State

CLIQUE, TRAYS, GPUS = "nvidia.com/gpu.clique", 18, 4
SIZES = (1, 2, 4, 8, 16)
ENDING = 4


class StepCost(NamedTuple):
    """Milliseconds of a step without a rule and with one (`_held`)."""

    seed: int
    median: float
    median_held: float
    mean: float
    mean_held: float
    settle: float


class SpareStream:
    """A cluster under the stream of a seed."""

    def __init__(self, racks: int, per_domain: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = State(Policy())
        self.nodes = [
            Node(f"r{rack:04}-{tray:02}", ((GPU, GPUS), (PODS, 50)), ((CLIQUE, f"r{rack:04}"),))
            for rack in range(racks)
            for tray in range(TRAYS)
        ]
        self.jobs: dict[str, list[str]] = {}
        self.broken: list[Node] = []
        self.made = 0
        self.now_ms = 0
        self.settle_s = 0.0
        self._time_settle()
        first: list[ev.Event] = [ev.NodeChanged(node) for node in self.nodes]
        if per_domain:
            first.append(ev.FabricChanged(FabricSpeeds(FABRIC_NAME, spares=(SpareRule(CLIQUE, per_domain),))))
        self.take(first)
        most, asked = racks * (TRAYS - 2) * 9 // 10, 0
        while asked < most:
            coming: list[ev.Event] = []
            while asked < most and len(coming) < 2000:
                events, size = self.job()
                coming += events
                asked += size
            self.take(coming)

    def _time_settle(self) -> None:
        spares = self.state.cluster.spares
        settle = spares.settle

        def timed(promised: frozenset[int]) -> bool:
            began = time.thread_time()
            try:
                return settle(promised)
            finally:
                self.settle_s += time.thread_time() - began

        spares.settle = timed  # type: ignore[method-assign]

    def job(self) -> tuple[list[ev.Event], int]:
        self.made += 1
        name, size = f"j{self.made}", self.random.choice(SIZES)
        uids = [f"{name}-{i}" for i in range(size)]
        self.jobs[name] = uids
        request = Request(((GPU, GPUS),))
        pods = [Pod(uid, "ns", uid, request, gang=name, created_ms=self.now_ms + 1) for uid in uids]
        return [ev.GangChanged(Gang(name, "ns", name, size, required=(CLIQUE,))), *map(ev.PodChanged, pods)], size

    def take(self, events: list[ev.Event]) -> None:
        """Steps until nothing more can start."""
        while True:
            self.now_ms += 10
            decided = step(self.state, events, self.now_ms)
            pods = self.state.workloads.pods
            bound = [
                replace(pods[one.uid], node=one.node, bound_ms=self.now_ms) for one in decided if isinstance(one, Bind)
            ]
            events = [ev.PodChanged(pod) for pod in bound]
            if not events and not self.state.busy:
                return

    def turn(self) -> float:
        """One step of the stream; its CPU time in seconds."""
        placed = self.state.cluster.placements
        running = [name for name, uids in self.jobs.items() if uids[0] in placed]
        events: list[ev.Event] = []
        for name in self.random.sample(running, ENDING):
            events += [*(ev.PodRemoved(uid) for uid in self.jobs.pop(name)), ev.GangRemoved(name)]
        if len(self.broken) > 20:
            events.append(ev.NodeChanged(self.broken.pop(0)))
        else:
            node = self.random.choice(self.nodes)
            self.broken.append(node)
            events.append(ev.NodeChanged(replace(node, unschedulable=True)))
        for _ in range(ENDING):
            events += self.job()[0]
        began = time.thread_time()
        self.take(events)
        return time.thread_time() - began


def run(racks: int, steps: int, per_domain: int, seed: int) -> tuple[list[float], float]:
    stream = SpareStream(racks, per_domain, seed)
    stream.settle_s = 0.0
    found = [stream.turn() for _ in range(steps)]
    return found, stream.settle_s / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--racks", type=int, default=911)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--per-domain", type=int, default=2)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    if min(options.racks, options.steps, options.runs, options.per_domain) < 1 or options.per_domain > TRAYS - max(
        SIZES
    ):
        parser.error(f"numbers must be positive, and jobs of {max(SIZES)} nodes must fit in a rack")
    rows = list[StepCost]()
    for seed in range(1, options.runs + 1):
        (plain, _), (held, settle_s) = (
            run(options.racks, options.steps, per_domain, seed) for per_domain in (0, options.per_domain)
        )
        median, mean = statistics.median, statistics.mean
        ms = [round(1e3 * one, 3) for one in (median(plain), median(held), mean(plain), mean(held), settle_s)]
        rows.append(StepCost(seed, *ms))
    if options.output == "json":
        print(json.dumps([one._asdict() for one in rows]))
        return
    nodes = options.racks * TRAYS
    print(f"{nodes} nodes, {options.per_domain} spares in each rack; CPU time of a step in ms, without and with")
    for one in rows:
        medians = f"median {one.median} and {one.median_held} ({one.median_held / one.median:.2f})"
        means = f"mean {one.mean} and {one.mean_held} ({one.mean_held / one.mean:.2f})"
        print(f"seed {one.seed}: {medians}, {means}; of it settle {one.settle}")


if __name__ == "__main__":
    main()
