# SPDX-License-Identifier: Apache-2.0
"""What headroom costs the steps of the core: CPU time of a step, with headroom and without.

    python -m benchmarks.headroom_speed [--nodes 5000] [--workloads 4] [--instances 64] [--steps 20] [-o table|json]

Load: nodes of 8 GPUs. So many workloads each state headroom for so many instances of 4 GPUs, within a guarantee that
covers all of it. The nodes that this takes have a job on each GPU that ends within a second, but for one GPU that is
free; on all others runs a job that takes 30 s to end.

Steps
- `idle`: nothing happens.
- `job ends`: a job in the headroom ends; another one, as short, is bound in its place in the step after that.
- `job starts`: a job that ends within a second is submitted, and takes the free GPU of a node with headroom.
- `slow job`: a job on 1 GPU that takes 30 s to end is submitted, and refused: only headroom is left. Each is of a
  kind of its own, so that no refusal is remembered.
- `scale-up`: an instance is submitted. It takes its headroom, for which jobs are evicted.

Each but `idle` is followed by steps that take it back, which are not measured. The state is warm: one of each was done
before. Without headroom the slow job starts, and the scale-up waits or finds its room by reclaiming.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Evict
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State

GPUS, GIB = 8, 2**30
INSTANCE_GPUS = 4
WITHIN_MS = 2000
SECOND_MS = 1000
STEPS = ("idle", "job ends", "job starts", "slow job", "scale-up")


class Load:
    """The cluster, and what happens in it."""

    def __init__(self, nodes: int, workloads: int, instances: int, stated: bool) -> None:
        self.state = State(Policy(fabric=()))
        self.now_ms = 10 * SECOND_MS
        self._made, self._workloads, self._stated = 0, workloads, instances if stated else 0
        self._short = -(-workloads * instances * INSTANCE_GPUS // GPUS)
        amounts = ((CPU, 128_000), (MEMORY, 2048 * GIB), (PODS, 110), (GPU, GPUS))
        guarantee = (("gpu", 1000 * INSTANCE_GPUS * workloads * (instances + 2)),)
        events: list[ev.Event] = [ev.QueueChanged(Queue("web", guarantee=guarantee)), ev.QueueChanged(Queue("lab"))]
        for i in range(nodes):
            events.append(ev.NodeChanged(Node(f"node-{i}", amounts)))
            if i >= self._short:
                events.append(ev.PodChanged(self._job(GPUS, 30 * SECOND_MS, f"node-{i}")))
                continue
            events += [ev.PodChanged(self._job(1, SECOND_MS, f"node-{i}")) for _ in range(GPUS - 1)]
        for event in events:
            apply(self.state, event)
        # The first instance of each is on a node of its own, which it fills together with a job.
        for number in range(workloads):
            apply(self.state, ev.NodeChanged(Node(f"first-{number}", amounts)))
            apply(self.state, ev.PodChanged(self._job(GPUS - INSTANCE_GPUS, 30 * SECOND_MS, f"first-{number}")))
            apply(self.state, ev.PodChanged(self.instance(number, f"first-{number}")))
        self.step([])
        for _ in range(4):
            # What is lacking is searched for once in a second.
            self.now_ms += 2 * SECOND_MS
            self.step([])

    def _pod(self, queue: str, gpus: int, work: Work, node: str, cpu_milli: int = 0) -> Pod:
        self._made += 1
        name = f"{queue}-{self._made}"
        asks = Request(((CPU, cpu_milli or 1000 * gpus), (MEMORY, 16 * GIB * gpus), (GPU, gpus)))
        bound_ms = self.now_ms if node else 0
        return Pod(
            name, "ns", name, asks, queue=queue, owner=f"ns/{queue}", created_ms=self.now_ms, node=node,
            bound_ms=bound_ms, work=work,
        )  # fmt: skip

    def _job(self, gpus: int, grace_ms: int, node: str = "", cpu_milli: int = 0) -> Pod:
        return self._pod("lab", gpus, Work(grace_ms=grace_ms), node, cpu_milli)

    def instance(self, workload: int, node: str = "") -> Pod:
        work = Work(headroom=self._stated, headroom_within_ms=WITHIN_MS if self._stated else 0)
        return replace(self._pod("web", INSTANCE_GPUS, work, node), made_for=f"Deployment/model-{workload}")

    def step(self, events: list[ev.Event]) -> tuple[float, list[Decision]]:
        """The CPU time (s) of a step with these events, and what it decided."""
        self.now_ms += 1
        begin_s = time.process_time()
        decided = step(self.state, events, self.now_ms)
        took_s = time.process_time() - begin_s
        return took_s, decided

    def kept(self) -> int:
        return sum(len(room.places) for room in self.state.headrooms.rooms.values())

    def happen(self, what: str, number: int) -> float:
        """The CPU time (s) of one step of this kind. What happened is taken back."""
        if what == "idle":
            return self.step([])[0]
        if what == "job ends":
            short = self._short_job(number)
            took_s, _ = self.step([ev.PodRemoved(short.uid, self.now_ms, True)])
            self.step([ev.PodChanged(self._job(1, SECOND_MS, short.node))])
            return took_s
        if what == "job starts":
            pod = self._job(1, SECOND_MS)
        elif what == "slow job":
            pod = self._job(1, 30 * SECOND_MS, cpu_milli=1000 + number % 1000)
        else:
            pod = self.instance(number % self._workloads)
        took_s, decided = self.step([ev.PodChanged(pod)])
        if self._stated:
            expected = {"job starts": {Bind}, "slow job": set[type]()}.get(what, {Evict})
            assert {type(one) for one in decided if isinstance(one, (Bind, Evict))} == expected, decided
        self.step([ev.PodRemoved(pod.uid, self.now_ms, True)])
        self.step([])
        return took_s

    def _short_job(self, number: int) -> Pod:
        slot = self.state.cluster.nodes.slots[f"node-{number % self._short}"]
        return next(self.state.workloads.pods[uid] for uid in self.state.cluster.on_slot[slot])


def measure(options: argparse.Namespace, stated: bool) -> dict[str, float]:
    """The median CPU time (ms) of each kind of step, and the instances that there is room for."""
    load = Load(options.nodes, options.workloads, options.instances, stated)
    row: dict[str, float] = {"kept": load.kept()}
    gc.collect()
    gc.freeze()
    for what in STEPS:
        load.happen(what, 0)
        times_s = [load.happen(what, number) for number in range(1, options.steps + 1)]
        row[what] = round(1000 * statistics.median(times_s), 3)
    gc.unfreeze()
    return row


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000, help="of 8 GPUs each")
    parser.add_argument("--workloads", type=int, default=4, help="that state headroom")
    parser.add_argument("--instances", type=int, default=64, help="that each of them states")
    parser.add_argument("--steps", type=int, default=20, help="of each kind; their median is shown")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(None if arguments is None else list(arguments))
    found = {name: measure(options, stated) for name, stated in (("without headroom", False), ("with headroom", True))}
    if options.output == "json":
        print(json.dumps(found))
        return
    print(f"{'ms':18}" + "".join(f"{name:>12}" for name in found["with headroom"]))
    for name, row in found.items():
        print(f"{name:18}" + "".join(f"{value:12g}" for value in row.values()))


if __name__ == "__main__":
    main()
