# SPDX-License-Identifier: Apache-2.0
"""Random markets of agents and jobs that live on: what tests of the look-ahead with leases share."""

from __future__ import annotations

import random

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.model import GPU, Pod, Request, Work
from tests.core.bargaining.market import MINUTE, POLICY, Market, nodes


class World(Market):
    """A market in which jobs run as long as they declare, and agents accept the first offer at once. `started` has the
    time of each grant and of each first bind, by the name of the request or the uid of the pod."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(*nodes(dice.randint(1, 3)), policy=replace(POLICY, preempt=False))
        self.dice = dice
        self.started: dict[str, int] = {}
        self.runs_ms: dict[str, int] = {}

    def job(self, name: str, gpus: int, runs_ms: int) -> None:
        self.runs_ms[name] = runs_ms
        work = Work(max_runtime_ms=runs_ms)
        self.step(ev.PodChanged(Pod(name, "jobs", name, Request(((GPU, gpus),)), created_ms=self.now_ms, work=work)))

    def at(self, now_ms: int, *events: ev.Event) -> None:
        super().at(now_ms, *events)
        for name in list(self.leases):
            self.started.setdefault(name, now_ms)
        for uid in self.bound:
            self.started.setdefault(uid, now_ms)

    def live(self, until_ms: int) -> None:
        """Until then, answering offers and ending jobs."""
        while self.now_ms < until_ms:
            while self.offers:
                self.answer(next(iter(self.offers)))
            ends = [self.started[uid] + self.runs_ms[uid] for uid in self.bound if uid in self.state.workloads.pods]
            wakes = [at_ms for at_ms in (self.state.next_wake_ms(),) if at_ms is not None and at_ms > self.now_ms]
            now_ms = min([until_ms, *[at_ms for at_ms in ends if at_ms > self.now_ms], *wakes])
            over = [uid for uid in self.bound if self.started[uid] + self.runs_ms[uid] <= now_ms]
            gone = [uid for uid in over if uid in self.state.workloads.pods]
            self.at(now_ms, *[ev.PodRemoved(uid, now_ms, succeeded=True) for uid in gone])


def world(seed: int) -> World:
    dice = random.Random(seed)
    found = World(dice)
    planes = ["a", "b", "c"][: dice.randint(1, 3)]
    for name in planes:
        found.plane(name)
    for number in range(dice.randint(2, 10)):
        if dice.random() < 0.4:
            found.job(f"job-{number}", dice.choice((1, 2, 4, 8)), dice.randint(5, 120) * MINUTE)
        else:
            each = dice.choice((1, 2, 4, 8))
            one = LeaseAlternative(
                each * dice.choice((1, 1, 2)), per_node=each, duration_ms=dice.randint(2, 90) * MINUTE,
                service=dice.choice((ServiceClass.BURST, ServiceClass.SCAVENGER)),
            )  # fmt: skip
            found.ask(f"request-{number}", one, plane=dice.choice(planes), firm=dice.random() < 0.5)
        if dice.random() < 0.5:
            found.live(found.now_ms + dice.randint(1, 20) * MINUTE)
    return found
