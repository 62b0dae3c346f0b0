# SPDX-License-Identifier: Apache-2.0
"""Small clusters that are full, a job that wants in, and all sets of pods that could be evicted.

The oracle knows pods, not units: a set is lawful where of every gang either enough go on or nobody does, and where
no other is evicted. Only whole GPUs count.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.event_handlers import apply
from dovetail.core.model import GPU, Gang, Node, Pod, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from tests.core.gang_oracle import FABRIC, RACK, ZONE, Tree, gpu_node, gpu_pod, placeable

NOW_MS = 1_000_000
POLICY = Policy(fabric=FABRIC, search_limit=100_000, probes=100_000)


class Contest(Struct):
    """`running` are gangs that run (a pod on its own is a gang of one without a name), and `wanted` is the job that
    wants in."""

    nodes: list[Node]
    running: list[tuple[Gang | None, list[Pod]]] = field(default_factory=list)
    wanted: Tree | None = None
    queues: list[Queue] = field(default_factory=list)

    def state(self, policy: Policy = POLICY) -> State:
        state = State(policy)
        reported: list[ev.Event] = [ev.NodeChanged(node) for node in self.nodes]
        reported += [ev.QueueChanged(queue) for queue in self.queues]
        for gang, pods in self.running:
            reported += [ev.GangChanged(gang)] if gang is not None else []
            reported += [ev.PodChanged(pod) for pod in pods]
        assert self.wanted is not None
        for event in [*reported, *self.wanted.events()]:
            apply(state, event)
        state.advance(NOW_MS)
        return state

    def pods(self) -> list[Pod]:
        return [pod for _, pods in self.running for pod in pods]

    def fits_without(self, gone: set[str]) -> bool:
        assert self.wanted is not None
        taken: dict[str, int] = {}
        for pod in self.pods():
            if pod.uid not in gone:
                taken[pod.node] = taken.get(pod.node, 0) + gpus_of(pod)
        free = [
            replace(node, allocatable=tuple((n, a - taken.get(node.name, 0) * (n == GPU)) for n, a in node.allocatable))
            for node in self.nodes
        ]
        return placeable(self.wanted, free)

    def lawful(self, below: int) -> Iterator[frozenset[str]]:
        """All sets of pods that may be evicted together to a priority above `below`."""
        choices: list[list[frozenset[str]]] = []
        for gang, pods in self.running:
            least = gang.min_count if gang is not None else 1
            uids = [pod.uid for pod in pods]
            options = [frozenset[str]()]
            if all(pod.priority < below and pod.work.preemptible is not False for pod in pods):
                sizes = [n for n in range(1, len(uids) + 1) if len(uids) - n >= least or n == len(uids)]
                options += [frozenset(some) for n in sizes for some in combinations(uids, n)]
            choices.append(options)
        sets = [frozenset[str]()]
        for options in choices:
            sets = [one | more for one in sets for more in options]
        yield from sets

    def loss(self, gone: frozenset[str]) -> tuple[int, int]:
        """Lost work of pods that take their whole gang along, and of those whose gangs go on; milli-GPU times ms."""
        whole = surplus = 0
        for _, pods in self.running:
            lost = sum(lost_of(pod) for pod in pods if pod.uid in gone)
            if all(pod.uid in gone for pod in pods):
                whole += lost
            else:
                surplus += lost
        return whole, surplus


def lost_of(pod: Pod) -> int:
    return gpus_of(pod) * 1000 * (NOW_MS - pod.bound_ms)


def gpus_of(pod: Pod) -> int:
    return dict(pod.request.resources)[GPU]


def random_contest(dice: random.Random) -> Contest:
    nodes = [
        gpu_node(f"n{i}", dice.randint(1, 4), dice.choice("ab"), dice.choice(["r", "s"]))
        for i in range(dice.randint(1, 4))
    ]
    contest = Contest(nodes)
    free = {node.name: dict(node.allocatable)[GPU] for node in nodes}
    for number in range(dice.randint(1, 4)):
        size = dice.choice([1, 1, 2, 3])
        least = dice.randint(1, size)
        name = f"g{number}" if size > 1 else ""
        priority, preemptible = dice.choice([0, 0, 0, 1]), dice.choice([None, None, None, False])
        pods = []
        for i in range(size):
            gpus = dice.choice([1, 1, 2, 3])
            homes = [n for n, left in free.items() if left >= gpus]
            if homes:
                home = dice.choice(homes)
                free[home] -= gpus
                bound_ms = NOW_MS - dice.randint(1, 9) * 100_000
                pods.append(
                    gpu_pod(
                        f"p{number}-{i}", gpus, name, node=home, bound_ms=bound_ms, created_ms=1,
                        priority=priority, work=Work(preemptible=preemptible),
                    )
                )  # fmt: skip
        if pods:
            gang = Gang(name, "ns", name, min(least, len(pods)), priority=priority) if name else None
            contest.running.append((gang, pods))
    count = dice.choice([1, 1, 2, 3])
    required = dice.choice([(), (), (RACK,), (ZONE,)])
    gang = Gang("big", "ns", "big", dice.randint(1, count), required=required, priority=1)
    contest.wanted = Tree(gang, [dice.choice([1, 2, 2, 4]) for _ in range(count)])
    return contest
