# SPDX-License-Identifier: Apache-2.0
"""Speed of the core when teams share a full cluster by queues.

    python benchmarks/queues_speed.py [--cases ...] [--nodes 500] [--waiting 4000] [--steps 40] [--runs 3] [-o json]

Load: nodes x 8 GPUs, 192 cores, 2 TiB, racks of 16, all GPUs in use. Twenty queues in a tree of 4 x 5 run pods of one
GPU: half of them lone, half in gangs of 4, of random ages, most with a run time limit, a third with checkpoints.
`--waiting` is the number of waiting jobs.

Each queue submits jobs from ten templates. `lone`, `gangs`: the waiting jobs are lone pods of 48 shapes (1, 2, 4 or 8
GPUs), or gangs of 4 such pods; each queue holds exactly its guarantee. `unequal`: lone pods; the weights and guarantees
of the queues differ from their usage, so that jobs are preempted too. `nothing fits`: every lone pod requests 8 GPUs.
Before each step of these four cases 20 jobs end, the earlier decisions take effect, and as many jobs arrive as have
started. A step may try all waiting jobs. The table has the median and the longest step, and the mean decisions per
step.

`unplaceable`: a queue without usage requests 10 pods x 8 GPUs within its guarantee, and all nodes but 9 have a pod that
must not be preempted, so the refusal is "not even by reclaim". `beyond due`: the same with preemptible pods, where the
tenth pod exceeds the fair share of the queue. `reclaim`: a queue without usage requests 250 pods x 8 GPUs, half of the
nodes, within its guarantee; the guarantees of the others are nine tenths of the rest, as pods on whole nodes seldom add
up to exactly what each queue holds beyond its guarantee. The table has the total time of all steps until the decision,
or until all of its pods are bound, including the steps that observe the end of the victims; the number of victims; and
their lost work.

The figures are CPU time of one process and medians of the runs. Each run is a separate process.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Evict, Hold
from dovetail.core.events import Event, GangChanged, NodeChanged, PodChanged, PodRemoved, QueueChanged
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import GPU as GPUS
from dovetail.core.queues.types import Queue, Usage
from dovetail.core.state import State

GIB = 2**30
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
RACK = "dovetail.dev/rack"
GPUS_PER_NODE = 8
GANG = 4
TEMPLATES = 10
ENDED = 20
"""Jobs that end before each step."""
POLICY = Policy(attempts_per_step=10**6)
LEAVES = [f"team-{i}-{j}" for i in range(4) for j in range(5)]
STEADY = ("lone", "gangs", "unequal", "nothing fits")
ONCE = ("unplaceable", "beyond due", "reclaim")


def nodes(count: int) -> list[Event]:
    amounts = ((CPU, 192_000), (GPU, GPUS_PER_NODE), (MEMORY, 2048 * GIB), (PODS, 110))
    labels = [(("kubernetes.io/hostname", f"node-{i}"), (RACK, f"rack-{i // 16}")) for i in range(count)]
    return [NodeChanged(Node(f"node-{i}", amounts, labels[i])) for i in range(count)]


def tree(gpus: int, dice: random.Random, *, equal: bool) -> list[Event]:
    """Four teams of five queues. With `equal`, the guarantee of each queue is its usage."""
    each = 1000 * gpus // len(LEAVES)
    events: list[Event] = []
    for i in range(4):
        events.append(QueueChanged(Queue(f"team-{i}", guarantee=((GPUS, 5 * each),))))
    for name in LEAVES:
        guarantee = each if equal else dice.randrange(each // 2000) * 1000
        usage = Usage(NOW_MS, dice.randrange(each * 24 * HOUR_MS), each)
        events.append(
            QueueChanged(
                Queue(
                    name,
                    parent=name.rpartition("-")[0],
                    guarantee=((GPUS, guarantee),),
                    weight=1 if equal else dice.randrange(1, 5),
                    by_user=True,
                    usage=usage,
                )
            )
        )
    return events


def work(family: str, dice: random.Random) -> Work:
    return Work(
        family=family,
        max_runtime_ms=dice.choice((0, 1, 4, 12, 24)) * HOUR_MS,
        checkpoint_interval_ms=dice.choice((0, 0, HOUR_MS // 2)),
        startup_ms=dice.choice((0, 120_000)),
    )


def templates(wanted: list[Request], dice: random.Random) -> dict[str, list[tuple[Request, Work]]]:
    """The templates that each queue submits repeatedly."""
    return {
        queue: [(dice.choice(wanted), work(f"{queue}/family-{i}", dice)) for i in range(TEMPLATES)] for queue in LEAVES
    }


class Day(Struct):
    """A cluster and its events. `jobs` are the pod uids of each running or waiting job."""

    dice: random.Random
    state: State = field(default_factory=lambda: State(POLICY))
    now_ms: int = NOW_MS
    jobs: dict[str, list[str]] = field(default_factory=dict)
    count: int = 0

    def job(self, queue: str, request: Request, pods: int, work: Work, nodes: tuple[str, ...] = ()) -> list[Event]:
        """The events of a lone pod or a gang that runs on these nodes, or waits."""
        self.count += 1
        name = f"job-{self.count}"
        created_ms = self.now_ms - (self.dice.randrange(20 * HOUR_MS) if nodes else 0)
        gang = f"group/{name}" if pods > 1 else ""
        events: list[Event] = []
        if gang:
            events.append(GangChanged(Gang(gang, "ns", name, min_count=pods, preferred=(RACK,), created_ms=created_ms)))
        self.jobs[gang or f"pod/{name}-0"] = [f"{name}-{i}" for i in range(pods)]
        user = f"user-{self.dice.randrange(5)}"
        for i in range(pods):
            uid = f"{name}-{i}"
            pod = Pod(uid, "ns", uid, request, created_ms=created_ms, gang=gang, queue=queue, user=user, work=work)
            if nodes:
                saved_ms = self.now_ms - self.dice.randrange(work.checkpoint_interval_ms or 1)
                saved_ms = max(created_ms, saved_ms) if work.checkpoint_interval_ms else 0
                pod = replace(pod, node=nodes[i], bound_ms=created_ms, checkpoint_ms=saved_ms)
            events.append(PodChanged(pod))
        return events

    def fill(self, node_count: int, queues: list[str], pinned: int = 0) -> list[Event]:
        """Fill all GPUs with pods of one GPU, the same number for each queue. On each of the first `pinned` nodes one
        pod must not be preempted."""
        events: list[Event] = []
        one = Request(((CPU, 8_000), (GPU, 1), (MEMORY, 64 * GIB)))
        held = dict.fromkeys(queues, 0)

        part = node_count * GPUS_PER_NODE // len(queues)

        works = {queue: [work(f"{queue}/running-{i}", self.dice) for i in range(TEMPLATES)] for queue in queues}

        def put(homes: list[str], most: int, preemptible: bool | None = None) -> list[str]:
            """Put a job on the first of these nodes. Returns the remaining nodes."""
            queue = min(queues, key=held.__getitem__)
            size = min(most, len(homes), max(1, part - held[queue]))
            held[queue] += size
            runs = replace(self.dice.choice(works[queue]), preemptible=preemptible)
            events.extend(self.job(queue, one, size, runs, tuple(homes[:size])))
            return homes[size:]

        for i in range(0, node_count, 2):
            homes = [f"node-{i + k // GPUS_PER_NODE}" for k in range(2 * GPUS_PER_NODE)]
            if i + 1 >= node_count:
                homes = homes[:GPUS_PER_NODE]
            self.dice.shuffle(homes)
            for number, home in enumerate((f"node-{i}", f"node-{i + 1}")):
                if i + number < pinned:
                    homes.remove(home)
                    put([home], 1, preemptible=False)
            while homes:
                homes = put(homes, GANG if self.dice.randrange(5) == 0 else 1)
        return events

    def step(self, events: Iterable[Event]) -> tuple[list[Decision], float]:
        """The decisions, and the CPU seconds of the step."""
        events = list(events)
        began_s = time.process_time()
        decisions = step(self.state, events, self.now_ms)
        return decisions, time.process_time() - began_s

    def settle(self, decisions: list[Decision]) -> list[Event]:
        """The events that follow from decisions: pods are bound and victims removed."""
        events: list[Event] = []
        pods = self.state.workloads.pods
        for decision in decisions:
            match decision:
                case Bind():
                    events.append(PodChanged(replace(pods[decision.uid], node=decision.node, bound_ms=self.now_ms)))
                case Evict():
                    events += [PodRemoved(uid, self.now_ms) for uid in decision.uids]
        return events


def shapes(dice: random.Random, gpus: tuple[int, ...]) -> list[Request]:
    found = []
    for i in range(48):
        each = gpus[i % len(gpus)]
        cpu, memory = dice.randrange(1, 12) * 1000 * each, dice.randrange(4, 96) * GIB * each
        found.append(Request(((CPU, cpu), (GPU, each), (MEMORY, memory))))
    return found


def steady(case: str, node_count: int, waiting: int, steps: int, seed: int) -> dict[str, float]:
    """Measure steps on a full cluster while jobs end and arrive."""
    dice = random.Random(seed)
    day = Day(dice)
    wanted = shapes(dice, (8,) if case == "nothing fits" else (1, 2, 4, 8) if case == "gangs" else (1, 1, 1, 2, 4, 8))
    size = GANG if case == "gangs" else 1

    known = templates(wanted, dice)

    def arrive(count: int) -> list[Event]:
        events: list[Event] = []
        for _ in range(count):
            queue = dice.choice(LEAVES)
            request, runs = dice.choice(known[queue])
            events += day.job(queue, request, size, runs)
        return events

    events = nodes(node_count) + tree(node_count * GPUS_PER_NODE, dice, equal=case != "unequal")
    events += day.fill(node_count, LEAVES) + arrive(waiting)
    inbox: list[Event] = []
    times_s: list[float] = []
    counts = {Bind: 0, Hold: 0, Evict: 0}
    evicted = 0
    for number in range(-3, steps):
        if number == 0:
            # As the live scheduler does after its first list. The first steps report each job's refusal.
            gc.collect()
            gc.freeze()
        decisions, took_s = day.step(events if number == -3 else inbox)
        if number >= 0:
            times_s.append(took_s)
            for kind in counts:
                counts[kind] += sum(isinstance(decision, kind) for decision in decisions)
            evicted += sum(len(decision.uids) for decision in decisions if isinstance(decision, Evict))
        day.now_ms += 1_000
        inbox = day.settle(decisions)
        started = {d.gang or f"pod/{d.uid}" for d in decisions if isinstance(d, Bind)}
        inbox += ended(day, dice) + arrive(len(started))
    assert not (problems := day.state.cluster.check()), problems[:3]
    return {
        "step_ms": 1000 * statistics.median(times_s),
        "longest_ms": 1000 * max(times_s),
        "binds": counts[Bind] / steps,
        "holds": counts[Hold] / steps,
        "victims": evicted / steps,
    }


def ended(day: Day, dice: random.Random) -> list[Event]:
    pods = day.state.workloads.pods
    gone: list[Event] = []
    running = [root for root, uids in day.jobs.items() if uids[0] in pods and pods[uids[0]].node]
    for root in dice.sample(running, ENDED):
        gone += [PodRemoved(uid, day.now_ms, True) for uid in day.jobs.pop(root)]
    return gone


def once(case: str, node_count: int, seed: int) -> dict[str, float]:
    """Measure the arrival of one large job at a full cluster."""
    dice = random.Random(seed)
    day = Day(dice)
    gpus = node_count * GPUS_PER_NODE
    pods = node_count // 2 if case == "reclaim" else 10
    mine = 1000 * (pods * GPUS_PER_NODE - (GPUS_PER_NODE if case == "beyond due" else 0))
    others = [f"other-{i}" for i in range(4)]
    rest = 1000 * gpus - mine
    each = (rest * 9 // 10 if case == "reclaim" else rest) // 4 // 1000 * 1000
    events = nodes(node_count)
    events.append(QueueChanged(Queue("mine", guarantee=((GPUS, mine),), limit=((GPUS, 1000 * gpus),))))
    events += [QueueChanged(Queue(name, guarantee=((GPUS, each),))) for name in others]
    events += day.fill(node_count, others, pinned=node_count - 9 if case == "unplaceable" else 0)
    day.step(events)
    gc.collect()
    gc.freeze()
    whole = Request(((CPU, 128_000), (GPU, GPUS_PER_NODE), (MEMORY, 1024 * GIB)))
    inbox = day.job("mine", whole, pods, Work(max_runtime_ms=4 * HOUR_MS))
    decided: list[Decision] = []
    times_s: list[float] = []
    for _ in range(20):
        decisions, took_s = day.step(inbox)
        times_s.append(took_s)
        decided += decisions
        day.now_ms += 1_000
        inbox = day.settle(decisions)
        if not inbox and not day.state.busy:
            break
    binds = sum(isinstance(decision, Bind) for decision in decided)
    evictions = [decision for decision in decided if isinstance(decision, Evict)]
    assert binds == (pods if case == "reclaim" else 0), f"{case}: {binds} of {pods} pods were bound"
    assert bool(evictions) == (case == "reclaim"), f"{case}: {len(evictions)} evictions"
    assert not (problems := day.state.cluster.check()), problems[:3]
    return {
        "step_ms": 1000 * sum(times_s),
        "longest_ms": 1000 * max(times_s),
        "binds": binds,
        "holds": sum(isinstance(decision, Hold) for decision in decided),
        "victims": sum(len(decision.uids) for decision in evictions),
        "lost_gpu_h": sum(decision.lost_milli_ms for decision in evictions) / 1000 / HOUR_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", choices=(*STEADY, *ONCE), nargs="+", default=[*STEADY, *ONCE])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--waiting", type=int, default=4_000, help="jobs that wait")
    parser.add_argument("--steps", type=int, default=40, help="steps that are measured")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        case = options.cases[0]
        if case in STEADY:
            print(json.dumps(steady(case, options.nodes, options.waiting, options.steps, options.child)))
        else:
            print(json.dumps(once(case, options.nodes, options.child)))
        return
    rows = []
    for case in options.cases:
        runs = []
        for seed in range(options.runs):
            command = [sys.executable, __file__, "--child", str(seed), "--cases", case, "--nodes", str(options.nodes)]
            command += ["--waiting", str(options.waiting), "--steps", str(options.steps)]
            runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        rows.append({"case": case, **{key: statistics.median(run[key] for run in runs) for key in runs[0]}})
    if options.output == "json":
        print(json.dumps(rows, indent=1))
        return
    print(f"CPU time of the core, medians of {options.runs} runs, {options.nodes} nodes x {GPUS_PER_NODE} GPUs")
    print(f"{'case':<13} {'step ms':>8} {'longest ms':>11} {'binds':>7} {'holds':>7} {'victims':>8} {'lost GPU-h':>11}")
    for row in rows:
        counts = f"{row['binds']:>7.1f} {row['holds']:>7.1f} {row['victims']:>8.1f} {row.get('lost_gpu_h', 0):>11.1f}"
        print(f"{row['case']:<13} {row['step_ms']:>8.1f} {row['longest_ms']:>11.1f} {counts}")


if __name__ == "__main__":
    main()
