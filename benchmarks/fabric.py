# SPDX-License-Identifier: Apache-2.0
"""Benefit of placing jobs by the network: the bandwidth that their collectives get, and the time that jobs take.

    python benchmarks/fabric.py [--tree 4x16x8x32] [--jobs 8000] [--load 0.9] [--seeds 1 2 3] [--small 40] [-o json]

Load: a tree of switches with nodes of 8 H100 and 8 NICs of 400 Gbit/s. Jobs of 2 to 4,096 whole nodes, each power of
two as much of the work as any other, come at random (Poisson) and have an hour of work in the mean (exponential), in
which they communicate for `--communication` percent of the time where they are placed best. A level of the tree leaves
`--percent` of a node's bandwidth to traffic between its parts, the narrowest level first. The expected all-reduce of
`dovetail.core.placing.collective` states how much longer a step takes elsewhere (`dovetail.sim.network`).

All contestants start the same jobs in the same way: the oldest first, and others before it where that does not delay
it, by the limits of jobs (EASY backfill). Only the choice of nodes differs:

- dovetail: the search of the core for a gang, and its ranks.
- slurm: topology/tree as its guide states it: the lowest switch that has enough free nodes, of several the one with the
  fewest; below it leaves by best fit. Ranks are in the order of the tree.
- kai: its preferred level set to the leaves: the lowest domain that fits, the fullest first; nodes of emptier leaves
  first, in ten classes.
- kube-scheduler: each pod to any of the nodes with the least allocated; among whole free nodes that is chance.

`bandwidth` is that of a job's all-reduce in parts of the best place of the empty cluster. `hops` are the borders that a
ring through the ranks crosses, in parts of the fewest for these nodes. The first fifth of the jobs fills the cluster
and does not count. Large jobs are few, and each changes what follows: one stream shows little, so several are put
together.

Oracle: on trees of 8 nodes, for streams of a few jobs, all placements of all jobs are tried, with the whole stream
known in advance. Stated is what the jobs of the core get of that, in the mean.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.core.model import GPU, WHOLE_GPU_MILLI, Node, Pod, Request
from dovetail.core.placing import ranks
from dovetail.core.placing.gangs import GangSearch, Group
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.placing.scores import Tightest
from dovetail.sim.network import Network
from dovetail.sim.traces.nodes import LEVELS, uniform_nodes
from dovetail.sim.wiring import wired

GPUS, PRODUCT, NIC_GBIT = 8, "H100-SXM5", 400
MEAN_WORK_MS = 3_600_000
LIMIT = 2
"""The limit of a job, in parts of its work."""
LEAST_OF_ORACLE, MOST_HOPS = 0.98, 1.01
Mask = NDArray[np.bool_]


class Job(NamedTuple):
    number: int
    at_ms: int
    nodes: int
    work_ms: int


class Tree:
    """The nodes of a tree, with the domains of each at every level, the narrowest first."""

    def __init__(self, below: Sequence[int], percent: Sequence[int]) -> None:
        self.nodes: tuple[Node, ...] = wired(uniform_nodes(*below, GPUS), PRODUCT, NIC_GBIT)
        self.names = [node.name for node in self.nodes]
        keys = LEVELS[: len(below) - 1]
        self.domains = []
        for key in keys:
            values = [dict(node.labels)[key] for node in self.nodes]
            numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
            self.domains.append(np.array([numbers[value] for value in values]))
        left = {key: percent[min(i, len(percent) - 1)] for i, key in enumerate((*keys, ""))}
        self._network = Network(self.nodes, DEFAULT_FABRIC, left)
        self._communication: dict[tuple[int, ...], int] = {}

    def pace(self, slots: Sequence[int], communication: int) -> int:
        """How long a step of a job takes on these nodes, in thousandths of one in the best place."""
        held = {self.names[slot]: GPUS * WHOLE_GPU_MILLI for slot in slots}
        return self._network.pace(held, len(slots), communication)

    def bandwidth(self, slots: Sequence[int]) -> float:
        """That of an all-reduce on these nodes, in parts of that in the best place."""
        return 1000 / self.pace(slots, 100)

    def hops(self, ring: Sequence[int]) -> int:
        """The borders of domains that a ring crosses; a node counts as a domain."""
        order = np.array([*ring, ring[0]])
        return len(ring) + sum(int((level[order[1:]] != level[order[:-1]]).sum()) for level in self.domains)


Choice = Callable[[int, Mask, Job], Sequence[int]]
"""(first number of a pod, free nodes, job) -> its nodes in the order of ranks."""


class Dovetail:
    """The core: the nodes of a job, until `leave`."""

    def __init__(self, tree: Tree) -> None:
        self._cluster = Cluster(Tightest(), DEFAULT_FABRIC)
        for node in tree.nodes:
            self._cluster.put_node(node)
        self._rows = ScoreCache(self._cluster, Tightest())
        self._slots = self._cluster.nodes.slots
        self._numbers = {self._slots[name]: number for number, name in enumerate(tree.names)}

    def choose(self, free: Mask, job: Job) -> list[int]:
        pods = [
            Pod(f"{job.number}/{i}", "ns", f"j{job.number}-{i}", Request(((GPU, GPUS),)), ordinals=(i,))
            for i in range(job.nodes)
        ]
        group = Group(pods, missing=job.nodes, uniform=True)
        with self._cluster.trial() as trial:
            if not GangSearch(self._cluster, self._rows, 512).place(group):
                raise AssertionError("the nodes are free")
            ranks.settle(self._cluster, group)
            trial.keep()
        return [self._numbers[self._cluster.placements[pod.uid].slot] for pod in pods]

    def leave(self, job: Job) -> None:
        for i in range(job.nodes):
            self._cluster.unplace(f"{job.number}/{i}")


class Rule:
    """A rule of another scheduler; it keeps nothing."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def leave(self, job: Job) -> None:
        pass

    def lowest(self, free: Mask, count: int) -> NDArray[np.int64]:
        """The free nodes of the fullest domain that has enough, of the lowest level that has one."""
        for domains in self.tree.domains:
            sums = np.bincount(domains, weights=free).astype(np.int64)
            able = np.flatnonzero(sums >= count)
            if len(able):
                return np.flatnonzero(free & (domains == able[sums[able].argmin()]))
        return np.flatnonzero(free)


class Slurm(Rule):
    def choose(self, free: Mask, job: Job) -> list[int]:
        inside, leaves = self.lowest(free, job.nodes), self.tree.domains[0]
        sums = np.bincount(leaves[inside], minlength=int(leaves.max()) + 1)
        chosen: list[int] = []
        while len(chosen) < job.nodes:
            lacking = job.nodes - len(chosen)
            able = np.flatnonzero(sums >= lacking)
            leaf = int(able[sums[able].argmin()]) if len(able) else int(sums.argmax())
            chosen += inside[leaves[inside] == leaf][:lacking].tolist()
            sums[leaf] = 0
        return sorted(chosen)


class Kai(Rule):
    def choose(self, free: Mask, job: Job) -> list[int]:
        inside, leaves = self.lowest(free, job.nodes), self.tree.domains[0]
        sums = np.bincount(leaves[inside], minlength=int(leaves.max()) + 1)
        present = [leaf for leaf in np.argsort(-sums, kind="stable").tolist() if sums[leaf]]
        score = np.zeros(len(sums), dtype=np.int64)
        for rank, leaf in enumerate(present):
            score[leaf] = 10 * (len(present) - rank) // len(present)
        chosen: list[int] = inside[np.argsort(-score[leaves[inside]], kind="stable")][: job.nodes].tolist()
        return chosen


class KubeScheduler(Rule):
    def choose(self, free: Mask, job: Job) -> list[int]:
        return random.Random(job.number).sample(np.flatnonzero(free).tolist(), job.nodes)


CONTESTANTS: dict[str, type[Dovetail | Rule]] = {
    "dovetail": Dovetail,
    "slurm": Slurm,
    "kai": Kai,
    "kube-scheduler": KubeScheduler,
}


class Ended(NamedTuple):
    job: Job
    start_ms: int
    end_ms: int
    nodes: Sequence[int]


def arrivals(count: int, nodes: int, load: float, most: int, seed: int) -> list[Job]:
    """Jobs of 2 to `most` nodes that ask for `load` of all nodes if each is placed best."""
    chance = random.Random(seed)
    powers = range(1, most.bit_length())
    drawn = chance.choices(powers, [2.0**-power for power in powers], k=count)
    sizes = [min(most, chance.randrange(2**power, 2 ** (power + 1))) for power in drawn]
    between_ms = statistics.fmean(sizes) * MEAN_WORK_MS / (load * nodes)
    at_ms, jobs = 0.0, []
    for number, size in enumerate(sizes):
        at_ms += chance.expovariate(1 / between_ms)
        jobs.append(Job(number, int(at_ms), size, 1 + int(chance.expovariate(1 / MEAN_WORK_MS))))
    return jobs


def run(tree: Tree, contestant: Any, jobs: Sequence[Job], communication: int) -> Iterator[Ended]:
    """The jobs as they end."""
    free: Mask = np.ones(len(tree.nodes), dtype=np.bool_)
    coming, line = list(reversed(jobs)), list[Job]()
    ends: list[tuple[int, int]] = []
    running: dict[int, tuple[Ended, int]] = {}
    limits: list[tuple[int, int, int]] = []
    """The expected ends of running jobs, sorted, with their number and nodes."""

    def start(job: Job, now_ms: int) -> None:
        chosen = contestant.choose(free, job)
        assert len(set(chosen)) == job.nodes
        assert free[chosen].all()
        free[chosen] = False
        end_ms = now_ms + job.work_ms * tree.pace(chosen, communication) // 1000
        limit_ms = now_ms + LIMIT * job.work_ms
        running[job.number] = Ended(job, now_ms, end_ms, chosen), limit_ms
        heapq.heappush(ends, (end_ms, job.number))
        insort(limits, (limit_ms, job.number, job.nodes))

    while coming or line or ends:
        now_ms = min([at_ms for at_ms, _ in ends[:1]] + [job.at_ms for job in coming[-1:]])
        while ends and ends[0][0] == now_ms:
            ended, limit_ms = running.pop(heapq.heappop(ends)[1])
            limits.remove((limit_ms, ended.job.number, ended.job.nodes))
            free[ended.nodes] = True
            contestant.leave(ended.job)
            yield ended
        while coming and coming[-1].at_ms == now_ms:
            line.append(coming.pop())
        left = int(free.sum())
        while line and line[0].nodes <= left:
            left -= line[0].nodes
            start(line.pop(0), now_ms)
        if not line:
            continue
        shadow_ms, spare = _shadow(line[0].nodes, left, limits)
        for job in line[1:]:
            if job.nodes <= left and (now_ms + LIMIT * job.work_ms <= shadow_ms or job.nodes <= spare):
                if now_ms + LIMIT * job.work_ms > shadow_ms:
                    spare -= job.nodes
                left -= job.nodes
                start(job, now_ms)
        line = [job for job in line if job.number not in running]


def _shadow(wanted: int, left: int, limits: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """When the first of the line can start at the latest, and the nodes that it leaves then."""
    for limit_ms, _, nodes in limits:
        left += nodes
        if left >= wanted:
            return limit_ms, left - wanted
    raise AssertionError("a job has more nodes than the cluster")


class Line(Struct, frozen=True):
    """One contestant. Times are in seconds, `cpu_ms` is that of this program for a job."""

    nodes_by: str
    jobs: int
    bandwidth: float
    job_mean_s: float
    job_p95_s: float
    run_mean_s: float
    hops: float
    cpu_ms: float


def measured(name: str, tree: Tree, streams: Sequence[Sequence[Job]], communication: int) -> Line:
    """One contestant, over all streams."""
    began_s = time.process_time()
    counted = [
        one
        for jobs in streams
        for one in run(tree, CONTESTANTS[name](tree), jobs, communication)
        if one.job.number >= len(jobs) // 5
    ]
    took_s = time.process_time() - began_s
    times = sorted((one.end_ms - one.job.at_ms) / 1000 for one in counted)
    return Line(
        nodes_by=name,
        jobs=len(counted),
        bandwidth=round(statistics.fmean(tree.bandwidth(one.nodes) for one in counted), 4),
        job_mean_s=round(statistics.fmean(times), 1),
        job_p95_s=round(times[math.ceil(0.95 * len(times)) - 1], 1),
        run_mean_s=round(statistics.fmean((one.end_ms - one.start_ms) / 1000 for one in counted), 1),
        hops=round(
            sum(tree.hops(one.nodes) for one in counted) / sum(tree.hops(sorted(one.nodes)) for one in counted), 4
        ),
        cpu_ms=round(1000 * took_s / sum(map(len, streams)), 2),
    )


def of_oracle(streams: int, percent: Sequence[int], seed: int) -> float:
    """What the core's jobs get on small trees, in parts of what the best placements of all jobs together would get."""
    tree, chance = Tree((2, 2, 2), percent), random.Random(seed)
    bandwidth = cache(tree.bandwidth)
    got = best = 0.0
    for _ in range(streams):
        jobs = arrivals(5, len(tree.nodes), 0.9, 4, chance.randrange(10**9))
        ended = sorted(run(tree, Dovetail(tree), jobs, 0), key=lambda one: one.start_ms)
        got += sum(bandwidth(tuple(sorted(one.nodes))) for one in ended)
        best += _best(tree, ended, bandwidth)
    return got / best


def _best(tree: Tree, ended: Sequence[Ended], bandwidth: Callable[[Sequence[int]], float]) -> float:
    """The most that these jobs could get together, started at the same times."""
    leaves = [np.flatnonzero(tree.domains[0] == leaf).tolist() for leaf in range(int(tree.domains[0].max()) + 1)]

    def rest(number: int, placed: tuple[tuple[int, ...], ...]) -> float:
        if number == len(ended):
            return 0.0
        one = ended[number]
        busy = {
            node for other, nodes in zip(ended, placed, strict=False) if other.end_ms > one.start_ms for node in nodes
        }
        free = [[node for node in leaf if node not in busy] for leaf in leaves]
        found = 0.0
        # Free nodes of one leaf are equal, so only their number counts.
        for counts in product(*[range(len(leaf) + 1) for leaf in free]):
            if sum(counts) == one.job.nodes:
                nodes = tuple(node for leaf, count in zip(free, counts, strict=True) for node in leaf[:count])
                found = max(found, bandwidth(nodes) + rest(number + 1, (*placed, nodes)))
        return found

    return rest(0, ())


def kept(lines: Sequence[Line], oracle: float) -> bool:
    own, *others = lines
    better = all(own.job_mean_s < one.job_mean_s and own.job_p95_s < one.job_p95_s for one in others)
    return oracle >= LEAST_OF_ORACLE and own.hops <= MOST_HOPS and better


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.replace("x", ",").split(",")))
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers from 1 on")
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=_numbers, default=(4, 16, 8, 32), help="domains below each, the last are nodes")
    parser.add_argument("--jobs", type=int, default=8000)
    parser.add_argument("--most", type=int, default=4096, help="nodes of the largest job")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--communication", type=int, default=30)
    parser.add_argument("--percent", type=_numbers, default=(100, 50, 25, 12))
    parser.add_argument("--small", type=int, default=40, help="streams of the oracle")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    if min(options.jobs, options.small, options.load) <= 0 or not 2 <= len(options.tree) <= len(LEVELS) + 1:
        parser.error("--jobs, --small and --load must be more than 0, and --tree two to five numbers")
    tree = Tree(options.tree, options.percent)
    if not 2 <= options.most <= len(tree.nodes):
        parser.error("--most must be from 2 to the number of nodes")
    streams = [arrivals(options.jobs, len(tree.nodes), options.load, options.most, seed) for seed in options.seeds]
    lines = []
    for name in CONTESTANTS:
        lines.append(measured(name, tree, streams, options.communication))
        if options.output == "table":
            print(", ".join(f"{key} {value}" for key, value in asdict(lines[-1]).items()), flush=True)
    oracle = of_oracle(options.small, options.percent, options.seeds[0])
    answer = kept(lines, oracle)
    if options.output == "json":
        print(json.dumps({"lines": [asdict(line) for line in lines], "of_oracle": round(oracle, 4), "kept": answer}))
    else:
        floors = "kept" if answer else "BROKEN"
        print(f"of the oracle on {options.small} small streams: {oracle:.4f}; the floors are {floors}")
    return 0 if answer else 1


if __name__ == "__main__":
    sys.exit(main())
