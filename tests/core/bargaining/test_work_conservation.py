# SPDX-License-Identifier: Apache-2.0
"""Nothing stays idle that a scavenger could use: after each step none that waits fits on free devices, those included
that are held for others, for as long as their time lasts."""

from __future__ import annotations

import random

import pytest

from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from tests.breadth import seeds
from tests.core.bargaining.market import MINUTE, Market
from tests.core.gang_oracle import gpu_node

NODES = [gpu_node(f"n{i}", 4, "z", f"r{i // 2}") for i in range(4)]
LEAST_MS = 2 * MINUTE


class Conserving(Market):
    """`a` and `b` ask for bursts, of which some are large and get a reservation; `s` scavenges."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = self.checked = self.before = 0
        super().__init__(*NODES)
        for name in "abs":
            self.plane(name, grace_ms=MINUTE)

    def act_once(self) -> None:
        chance = self.random
        self.count += 1
        name, act = f"x{self.count}", chance.randrange(8)
        if act <= 1:
            count = chance.choice((1, 2, 4, 8, 12, 16))
            per_node = chance.choice([size for size in (1, 2, 4) if size <= count])
            wanted = LeaseAlternative(count=count, per_node=per_node, duration_ms=chance.randint(2, 40) * MINUTE)
            self.ask(name, wanted, plane=chance.choice("ab"), firm=chance.random() < 0.7)
        elif act <= 3:
            per_node = chance.choice((1, 1, 2, 4))
            count = per_node * chance.randint(1, 3)
            wanted = LeaseAlternative(
                count=count, least=per_node * chance.randint(1, count // per_node), per_node=per_node,
                duration_ms=chance.randint(2, 60) * MINUTE, least_duration_ms=LEAST_MS,
                service=ServiceClass.SCAVENGER,
            )  # fmt: skip
            self.ask(name, wanted, plane="s", firm=True)
        elif act == 4 and self.leases:
            self.act(chance.choice(sorted(self.leases)), "return")
        elif act == 5 and self.offers:
            self.answer(chance.choice(sorted(self.offers)), chance.choice(("accept", "decline")))
        elif act == 6 and self.requests:
            self.withdraw(chance.choice(sorted(self.requests)))
        else:
            self.wait(chance.choice((10_000, MINUTE, 5 * MINUTE)))

    def waiting_scavengers(self) -> list[LeaseAlternative]:
        negotiations = self.state.requests.negotiations.values()
        return [one.alternatives[0] for one in negotiations if one.waiting and one.request.plane == "s/s"]

    def check_idle(self) -> None:
        cluster, reservations = self.state.cluster, list(self.state.reservations)
        soonest_ms = min([one.start_ms for one in reservations], default=self.now_ms + 24 * 60 * MINUTE)
        self.before += soonest_ms - self.now_ms >= LEAST_MS and bool(reservations)
        free = [int(bits).bit_count() for bits in cluster.nodes.gpu_free_bits[: len(NODES)]]
        for wanted in self.waiting_scavengers():
            self.checked += 1
            fits = sum(gpus // wanted.per_node for gpus in free) * wanted.per_node
            assert fits < wanted.least or soonest_ms - self.now_ms < LEAST_MS, (wanted, free)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_no_scavenger_waits_that_fits_on_free_devices(seed: int) -> None:
    market = Conserving(seed)
    for _ in range(150):
        market.act_once()
        market.check_idle()
    assert market.checked > 20 and market.before > 10
