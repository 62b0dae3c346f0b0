# SPDX-License-Identifier: Apache-2.0
"""Benefit of choosing GPUs by topology: the bandwidth of jobs relative to the best possible one.

    python benchmarks/topology.py [--nodes 4] [--jobs 3000] [--load 0.9] [--seeds 1 2 3] [--by layout] [-o json]

Load: `--nodes` nodes of each published layout in tests/topology/samples in random order; jobs of 1, 2, 4 and 8 GPUs
with Poisson arrivals and exponential run times, one hour on average. Any job that fits starts, the oldest first. All
schedulers get the same nodes and arrivals:

- dovetail: the core with layouts and its default policy, `expected-fill`.
- tightest: the core with layouts and the policy `tightest`.
- best-effort: the core without layouts chooses the node, NVIDIA's published policy the GPUs.
- blind: the core without layouts chooses the node; the GPUs are random, as with a device plugin without preferences.
- oracle: an exhaustive search over all sets of free GPUs of all nodes. It takes a set with the best ratio, on the node
  with the fewest GPUs left; among equal sets the one that leaves the best sets of 2, 4 and 8. It has its own ring
  search.

The ratio of a job with several GPUs is the bandwidth of their best ring relative to the best ring of as many GPUs on an
empty node with that layout. `missed` is the share of these jobs for which GPUs with a better ratio were free on any
node. `split` is the share that spans more NUMA nodes than necessary. Utilization is measured until the last arrival.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate, combinations, pairwise, permutations
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.devices.bandwidth import sets_of
from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS, UNKNOWN, Layout
from dovetail.core.events import Event, NodeChanged, PodChanged, PodRemoved
from dovetail.core.model import GPU, PODS, Node, Pod, Request
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.scores import Scoring, Tightest
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.topology import nvidia_smi

SAMPLES = Path(__file__).parent.parent / "tests" / "topology" / "samples"
PRODUCTS = {
    "4gpu-four-numa-nps4": None,
    "a100-custom-4gpu-nv4-4nic": "A100-SXM4-40GB",
    "a100-pcie-4gpu-one-bridge": "A100-PCIe-40GB",
    "a6000-class-4gpu-nv4-pairs-nic": "RTX-A6000",
    "aws-p4d-a100-8gpu": "A100-SXM4-40GB",
    "dgx-a100-12nic": "A100-SXM4-40GB",
    "dgx-h100-h200-8gpu-12nic": "H100-SXM5",
    "dgx1-v100": "V100-SXM2",
    "gb200-4gpu-8nic": "GB200",
    "h100-4gpu-vm-phb": "H100-SXM5",
    "l40s-4gpu-two-numa": "L40S",
    "mixed-5gpu-two-numa-no-nvlink": None,
    "pcie-8gpu-plx-two-numa": None,
    "rtx4090-8gpu-two-numa-all-sys": "RTX4090",
    "v100-sxm2-8gpu-1nic": "V100-SXM2",
}
"""The GPU product of each sample, which determines the link rates; None means the default rates."""
SHARES = {1: 40, 2: 30, 4: 20, 8: 10}
"""The percentage of jobs by number of GPUs."""
MEAN_RUN_MS = 3_600_000
FLOOR = 0.99


class Job(NamedTuple):
    number: int
    at_ms: int
    gpus: int
    run_ms: int


class Placed(NamedTuple):
    """A started job with its node and its GPUs as a bit mask."""

    job: Job
    node: int
    gpus: int


Machines = Sequence[tuple[str, Layout]]
"""The nodes: the sample and the layout of each."""
Pick = Callable[[Layout, int, int], int]
"""(layout, bit mask of the free GPUs, number) -> bit mask of the chosen GPUs."""


def layouts() -> dict[str, Layout]:
    return {name: nvidia_smi.parse((SAMPLES / f"{name}.txt").read_text(), gpu) for name, gpu in PRODUCTS.items()}


def arrivals(count: int, gpus: int, load: float, chance: random.Random) -> list[Job]:
    """Jobs with an offered load of `load` on `gpus` GPUs."""
    mean_gpus = sum(size * share for size, share in SHARES.items()) / sum(SHARES.values())
    between_ms = mean_gpus * MEAN_RUN_MS / (load * gpus)
    sizes = chance.choices(list(SHARES), list(SHARES.values()), k=count)
    times = accumulate(chance.expovariate(1 / between_ms) for _ in range(count))
    return [
        Job(i, int(next(times)), size, 1 + int(chance.expovariate(1 / MEAN_RUN_MS))) for i, size in enumerate(sizes)
    ]


class Core:
    """Dovetail's core. With `pick` the core gets no layouts, and `pick` chooses the GPUs on the node."""

    def __init__(self, machines: Machines, pick: Pick | None = None, scoring: Scoring | None = None) -> None:
        self._state = State(Policy(scoring=scoring or Tightest()))
        self._pick = pick
        self._layouts = [layout for _, layout in machines]
        self._jobs: dict[str, Job] = {}
        self._events: list[Event] = [
            NodeChanged(Node(str(i), ((GPU, layout.gpus), (PODS, 110)), layout=None if pick else layout))
            for i, layout in enumerate(self._layouts)
        ]

    def decide(self, now_ms: int, free: list[int], gone: list[Placed], come: list[Job]) -> Iterator[Placed]:
        """The jobs that start now, after the jobs in `gone` have ended and those in `come` have arrived. `free` are the
        bit masks of the free GPUs of each node; the caller updates it before it takes the next job."""
        self._events += [PodRemoved(str(placed.job.number)) for placed in gone]
        for job in come:
            uid = str(job.number)
            self._jobs[uid] = job
            request = Request(((GPU, job.gpus),))
            self._events.append(PodChanged(Pod(uid, "default", uid, request, created_ms=job.at_ms)))
        while self._events or self._state.busy:
            events, self._events = self._events, []
            for decision in step(self._state, events, now_ms):
                if isinstance(decision, Bind):
                    pod = replace(self._state.workloads.pods[decision.uid], node=decision.node, bound_ms=now_ms)
                    self._events.append(PodChanged(pod))
                    job, node, pick = self._jobs.pop(decision.uid), int(decision.node), self._pick
                    gpus = pick(self._layouts[node], free[node], job.gpus) if pick else _mask(decision.devices)
                    yield Placed(job, node, gpus)


class Oracle:
    def __init__(self, machines: Machines) -> None:
        self._layouts = [layout for _, layout in machines]
        self._line: list[Job] = []

    def decide(self, now_ms: int, free: list[int], gone: list[Placed], come: list[Job]) -> Iterator[Placed]:
        line, self._line = [*self._line, *come], []
        too_many: set[int] = set()  # Free GPUs only decrease within one call.
        for job in line:
            size = job.gpus
            fitting = [] if size in too_many else [i for i, gpus in enumerate(free) if gpus.bit_count() >= size]
            if fitting:
                ranks = [(best_ratio(self._layouts[i], free[i], size), -free[i].bit_count(), -i) for i in fitting]
                node = -max(ranks)[2]
                yield Placed(job, node, best_set(self._layouts[node], free[node], size))
            else:
                too_many.add(size)
                self._line.append(job)


@cache
def best_ratio(layout: Layout, free: int, size: int) -> Fraction:
    """The bandwidth of the best `size` free GPUs relative to the best `size` of all; 1 for one GPU, 0 if too few."""
    if not 1 < size <= free.bit_count():
        return Fraction(size == 1 and free != 0)
    best, ideal = (max(ring_mbps(layout, s) for s in _subsets(of, size)) for of in (free, (1 << layout.gpus) - 1))
    return Fraction(best, ideal)


@cache
def best_set(layout: Layout, free: int, size: int) -> int:
    """The set of GPUs with the best ring. Ties: the set that leaves the best remaining sets, then the first."""
    return max(
        _subsets(free, size),
        key=lambda chosen: (ring_mbps(layout, chosen), sum(best_ratio(layout, free ^ chosen, k) for k in SHARES)),
    )


@cache
def ring_mbps(layout: Layout, gpus: int) -> int:
    """The slowest hop of the best ring through these GPUs, by exhaustive search; 0 for one GPU."""
    first, *others = _gpus(gpus)
    rings = ((first, *order, first) for order in permutations(others))
    return max(min((layout.pair_mbps(a, b) for a, b in pairwise(ring) if a != b), default=0) for ring in rings)


PCIE_SCORES = {SYS: 10, NODE: 20, PHB: 30, PXB: 40, PIX: 50, BOARD: 60}
MOST_LINKS = 18
"""The most NVLinks of a GPU in the samples. If the counts to the other GPUs add up to more, there are switches."""
NOBODY = -1


@cache
def best_effort(layout: Layout, free: int, size: int) -> int:
    """The GPUs that NVIDIA's device plugin prefers: go-gpuallocator's best-effort policy, as of August 2026.

    It partitions the free GPUs into groups of this size with the highest total score and takes the best group; the
    first by index wins ties. If the number is not divisible, one group is short and is never taken. As in the original,
    the search covers all partitions for any number of GPUs: two million for pairs of 16."""
    gpus = _gpus(free)
    padded = gpus + (NOBODY,) * (-len(gpus) % size)
    best = max(partitions(padded, size), key=lambda groups: sum(group_score(layout, group) for group in groups))
    chosen = max((group for group in best if NOBODY not in group), key=lambda group: group_score(layout, group))
    return _mask(chosen)


def partitions(gpus: tuple[int, ...], size: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All partitions into groups of this size, with the padding in one group."""
    if len(gpus) == size:
        yield (gpus,)
        return
    first, *others = gpus
    for peers in combinations(others, size - 1):
        if peers.count(NOBODY) in (0, others.count(NOBODY)):
            left = tuple(gpu for gpu in others if gpu not in peers)
            for parts in partitions(left, size):
                yield ((first, *peers), *parts)


def group_score(layout: Layout, group: tuple[int, ...]) -> int:
    return sum(pair_score(layout, i, j) for i, j in combinations(group, 2) if NOBODY not in (i, j))


@cache
def pair_score(layout: Layout, i: int, j: int) -> int:
    """The score of a pair from its PCIe level and its direct NVLinks. The driver knows the PCIe level of pairs for
    which the text shows NVLinks. Here it follows from NICs that are close to both, else from the NUMA nodes."""
    level = layout.pcie[i][j]
    if level == UNKNOWN:
        numa = NODE if layout.numa[i] == layout.numa[j] != UNKNOWN else SYS
        level = min([numa, *(max(nic.levels[i], nic.levels[j]) for nic in layout.nics)])
    switched = max(map(sum, layout.nvlinks)) > MOST_LINKS
    return PCIE_SCORES[level] + 100 * layout.nvlinks[i][j] * (not switched)


CONTESTANTS: dict[str, Callable[[Machines, random.Random], Core | Oracle]] = {
    "dovetail": lambda machines, chance: Core(machines, scoring=ExpectedFill()),
    "tightest": lambda machines, chance: Core(machines),
    "best-effort": lambda machines, chance: Core(machines, best_effort),
    "blind": lambda machines, chance: Core(machines, lambda _, free, size: _mask(chance.sample(_gpus(free), size))),
    "oracle": lambda machines, chance: Oracle(machines),
}


class Start(NamedTuple):
    """The placement of a job. Bandwidths are 0 for one GPU. `held_ms` is GPUs times duration, until the last
    arrival."""

    layout: str
    gpus: int
    waited_ms: int
    held_ms: int
    mbps: int
    ideal_mbps: int
    missed: bool
    split: bool


def simulate(scheduler: Core | Oracle, machines: Machines, jobs: Sequence[Job]) -> list[Start]:
    """Simulate all jobs until their end. Raises RuntimeError if the scheduler assigns GPUs that are not free, or never
    starts a job."""
    free = [(1 << layout.gpus) - 1 for _, layout in machines]
    # At equal times departures precede arrivals.
    agenda = [(job.at_ms, 1, job.number) for job in jobs]
    running: dict[int, Placed] = {}
    starts: list[Start] = []
    while agenda:
        now_ms, gone, come = agenda[0][0], list[Placed](), list[Job]()
        while agenda and agenda[0][0] == now_ms:
            _, comes, number = heapq.heappop(agenda)
            if comes:
                come.append(jobs[number])
            else:
                gone.append(running.pop(number))
                free[gone[-1].node] |= gone[-1].gpus
        for placed in scheduler.decide(now_ms, free, gone, come):
            job, node = placed.job, placed.node
            if placed.gpus & ~free[node] or placed.gpus.bit_count() != job.gpus:
                raise RuntimeError(f"{placed}: {free[node]:b} are free")
            starts.append(_start(machines, free, placed, now_ms, jobs[-1].at_ms))
            free[node] ^= placed.gpus
            running[job.number] = placed
            heapq.heappush(agenda, (now_ms + job.run_ms, 0, job.number))
    if len(starts) != len(jobs):
        raise RuntimeError(f"{len(jobs) - len(starts)} of {len(jobs)} jobs never started")
    return starts


def _start(machines: Machines, free: list[int], placed: Placed, now_ms: int, last_ms: int) -> Start:
    (name, layout), job = machines[placed.node], placed.job
    sets = sets_of(layout)
    mbps, ideal_mbps = int(sets.mbps[placed.gpus]), sets.ideal_mbps[job.gpus]
    best = max(best_ratio(other, left, job.gpus) for (_, other), left in zip(machines, free, strict=True))
    spanned = len({layout.numa[gpu] for gpu in _gpus(placed.gpus)})
    room = accumulate(count for _, count in Counter(layout.numa).most_common())
    needed = next(nodes for nodes, gpus in enumerate(room, 1) if gpus >= job.gpus)
    held_ms = job.gpus * max(0, min(now_ms + job.run_ms, last_ms) - now_ms)
    waited_ms, missed = now_ms - job.at_ms, mbps < best * ideal_mbps
    return Start(name, job.gpus, waited_ms, held_ms, mbps, ideal_mbps, missed, spanned > needed)


def _gpus(mask: int) -> tuple[int, ...]:
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


def _mask(gpus: Sequence[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


def _subsets(mask: int, size: int) -> list[int]:
    return [_mask(gpus) for gpus in combinations(_gpus(mask), size)]


COLUMNS = {
    "group": ("jobs on, or of", "{}"),
    "gpus_by": ("GPUs by", "{}"),
    "jobs": ("jobs", "{}"),
    "wide": ("of several GPUs", "{}"),
    "mean": ("mean", "{:.4f}"),
    "worst": ("worst", "{:.3f}"),
    "best": ("at 100 %", "{:.1%}"),
    "missed": ("missed", "{:.1%}"),
    "split": ("split", "{:.1%}"),
    "wait_s": ("mean wait", "{:.0f} s"),
    "utilisation": ("utilisation", "{:.1%}"),
}
"""Heading and format of each column; None is shown as a dash."""


def line(group: str, gpus_by: str, starts: Sequence[Start], capacity_ms: int) -> dict[str, Any]:
    wide = [start for start in starts if start.gpus > 1]
    ratios = [start.mbps / start.ideal_mbps for start in wide]
    return {
        "group": group,
        "gpus_by": gpus_by,
        "jobs": len(starts),
        "wide": len(wide),
        "mean": _mean(ratios),
        "worst": min(ratios, default=None),
        "best": _mean([start.mbps == start.ideal_mbps for start in wide]),
        "missed": _mean([start.missed for start in wide]),
        "split": _mean([start.split for start in wide]),
        "wait_s": _mean([start.waited_ms / 1000 for start in starts]),
        "utilisation": sum(start.held_ms for start in starts) / capacity_ms,
    }


def _of_size(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus > 1)}"


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--by", choices=["layout", "size"])
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    args = parser.parse_args()
    if min(args.nodes, args.jobs) < 1 or args.load <= 0:
        parser.error("--nodes, --jobs and --load must be more than 0")
    known = layouts()
    gpus = {kind: args.nodes * layout.gpus for kind, layout in known.items()}
    starts: dict[str, list[Start]] = {name: [] for name in CONTESTANTS}
    window_ms = 0
    for number, seed in enumerate(args.seeds):
        chance = random.Random(seed)
        machines = [kind for kind in known.items() for _ in range(args.nodes)]
        chance.shuffle(machines)
        jobs = arrivals(args.jobs, sum(gpus.values()), args.load, chance)
        window_ms += jobs[-1].at_ms
        for done, (name, contestant) in enumerate(CONTESTANTS.items(), number * len(CONTESTANTS) + 1):
            starts[name] += simulate(contestant(machines, random.Random(seed)), machines, jobs)
            print(f"\r{done} of {len(args.seeds) * len(CONTESTANTS)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    total = sum(gpus.values())
    parts = {"layout": gpus, "size": {_of_size(size): total for size in SHARES}}
    groups = {"all": total, **parts.get(args.by, {})}
    lines = [
        line(
            group,
            name,
            [start for start in found if group in ("all", start.layout, _of_size(start.gpus))],
            window_ms * count,
        )
        for group, count in groups.items()
        for name, found in starts.items()
    ]
    means = {each["gpus_by"]: each["mean"] for each in lines[: len(CONTESTANTS)]}
    of_oracle = means["dovetail"] / means["oracle"] if means["oracle"] else None
    kept = of_oracle is None or of_oracle >= FLOOR
    if args.output == "json":
        print(json.dumps({"lines": lines, "of_oracle": of_oracle, "floor": FLOOR, "kept": kept}, indent=1))
        return int(not kept)
    print(f"{args.jobs} jobs, {args.nodes} nodes of each layout, {groups['all']} GPUs, load {args.load}, ", end="")
    print(f"seeds {', '.join(map(str, args.seeds))}\n")
    print(f"| {' | '.join(heading for heading, _ in COLUMNS.values())} |\n|---|---|{'---:|' * (len(COLUMNS) - 2)}")
    for each in lines:
        cells = ["-" if each[key] is None else form.format(each[key]) for key, (_, form) in COLUMNS.items()]
        print(f"| {' | '.join(cells)} |")
    if of_oracle is not None:
        print(f"\ndovetail's mean is {of_oracle:.4f} of the oracle's; floor {FLOOR}: {'kept' if kept else 'BROKEN'}")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
