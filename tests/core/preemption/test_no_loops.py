# SPDX-License-Identifier: Apache-2.0
"""Evicted jobs come back and want in again: in one instant evictions come to an end."""

import random

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Evict
from dovetail.core.event_handlers import apply
from dovetail.core.model import Gang
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.gang_oracle import FABRIC, gpu_node, gpu_pod

NOW_MS = 1_000_000
MOST_STEPS = 60
QUIET_STEPS = 3


class Restless:
    """Evictions and binds come true at once, and evicted pods are made anew."""

    def __init__(self, *events: ev.Event) -> None:
        self.state = State(Policy(fabric=FABRIC))
        self.evicted: list[str] = []
        self._made = 0
        for event in events:
            apply(self.state, event)

    def settle(self) -> int:
        """How many steps it takes until no pod starts or is evicted any more; MOST_STEPS where that does not happen."""
        quiet = 0
        for taken in range(MOST_STEPS):
            decided = step(self.state, [], NOW_MS)
            assert self.state.cluster.check() == []
            done = [d for d in decided if isinstance(d, Bind | Evict)]
            quiet = 0 if done else quiet + 1
            if quiet == QUIET_STEPS:
                return taken
            for decision in done:
                for event in self._come_true(decision):
                    apply(self.state, event)
        return MOST_STEPS

    def _come_true(self, decision: Bind | Evict) -> list[ev.Event]:
        pods = self.state.workloads.pods
        if isinstance(decision, Bind):
            return [ev.PodChanged(replace(pods[decision.uid], node=decision.node, bound_ms=NOW_MS))]
        events: list[ev.Event] = []
        for uid in decision.uids:
            self._made += 1
            self.evicted.append(uid)
            anew = replace(
                pods[uid], uid=f"again{self._made}", name=f"again{self._made}", node="", bound_ms=0, created_ms=NOW_MS
            )
            events += [ev.PodRemoved(uid), ev.PodChanged(anew)]
        return events


def random_queues(dice: random.Random) -> tuple[list[ev.Event], list[str]]:
    """One or two levels of queues; their leaves."""
    events: list[ev.Event] = []
    leaves = []
    for name in "abc"[: dice.randint(2, 3)]:
        deep = dice.random() < 0.4
        guarantee = (("gpu", dice.randint(1, 3) * 1000),) if dice.random() < 0.7 else ()
        events.append(ev.QueueChanged(Queue(name, guarantee=guarantee, weight=dice.randint(1, 3))))
        below = [f"{name}{i}" for i in range(2)] if deep else []
        for child in below:
            own = (("gpu", dice.randint(0, 1) * 1000),) if guarantee else ()
            events.append(ev.QueueChanged(Queue(child, parent=name, guarantee=own, weight=dice.randint(1, 2))))
        leaves += below or [name]
    return events, leaves


def random_jobs(dice: random.Random, leaves: list[str]) -> list[ev.Event]:
    events: list[ev.Event] = []
    for number in range(dice.randint(4, 9)):
        size, queue, priority = dice.choice([1, 1, 2, 3]), dice.choice(leaves), dice.choice([0, 0, 1])
        name = f"g{number}" if size > 1 else ""
        if name:
            least = dice.randint(1, size)
            events.append(ev.GangChanged(Gang(name, "ns", name, least, priority=priority)))
        for i in range(size):
            pod = gpu_pod(f"p{number}-{i}", dice.choice([1, 1, 2]), name, priority=priority, queue=queue)
            events.append(ev.PodChanged(replace(pod, created_ms=number + 1)))
    return events


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(4))
def test_queues_and_priorities_come_to_rest(chunk: int) -> None:
    gave_way = 0
    for seed in seeds(200)[chunk::4]:
        dice = random.Random(seed)
        queues, leaves = random_queues(dice)
        world = Restless(
            *(ev.NodeChanged(gpu_node(f"n{i}", dice.randint(1, 4))) for i in range(dice.randint(1, 3))), *queues
        )
        jobs = random_jobs(dice, leaves)
        for part in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
            for event in part:
                apply(world.state, event)
            assert world.settle() < MOST_STEPS, seed
        gave_way += bool(world.evicted)
    assert gave_way > 2
