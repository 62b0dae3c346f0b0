# SPDX-License-Identifier: Apache-2.0
"""Karma: division with credits (Vuppalapati et al., "Karma: Resource Allocation for Dynamic Demands", OSDI'23).

Rules, of one quantum, for n agents with the fair share f = capacity / n each
- Of its fair share, alpha is guaranteed to an agent, rounded down; the rest of all is shared. Each agent earns its part
  of the shared units as credits.
- An agent that wants less than its guarantee donates the difference. One that wants more borrows units, for one credit
  each: first donated ones, then shared ones. Each time the borrower with the most credits is next; the credit of a
  donated unit goes to the donor with the fewest. Ties go to the first agent.
- An agent without credits does not borrow.
With alpha = 1 nothing is shared, with alpha = 0 everything is. Credits are counted in parts of 1/n, so all is exact.

The paper's units are interchangeable and change their owner without a cost. Gangs and checkpoints are not in it: what
is done about them is in `divided`. Weights are not supported, as the paper's main part has none.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

from dovetail.sim.agents.divided import GRACE_MS, Divided
from dovetail.sim.agents.tasks import AgentWorkload

QUANTUM_MS = 60_000
START_QUANTA = 1000
"""Agents begin with the credits of their fair share in this many quanta, so that nobody runs out early."""


class KarmaLedger:
    """The credits of the agents. Each begins with `start` of them."""

    def __init__(self, capacity: int, agents: int, alpha: Fraction, start: int) -> None:
        self.guaranteed = int(alpha * capacity / agents)
        self._agents = agents
        self._shared = capacity - agents * self.guaranteed
        self._credits = [start * agents] * agents

    @property
    def credits(self) -> list[Fraction]:
        return [Fraction(credit, self._agents) for credit in self._credits]

    def divide(self, wanted: Sequence[int]) -> list[int]:
        """The units of each agent in this quantum. Credits change hands."""
        credits, price, shared = self._credits, self._agents, self._shared
        for i in range(self._agents):
            credits[i] += shared
        parts = [min(want, self.guaranteed) for want in wanted]
        donated = {i: self.guaranteed - part for i, part in enumerate(parts) if part < self.guaranteed}
        donors = [(credits[i], i) for i in donated]
        borrowers = [(-credits[i], i) for i, want in enumerate(wanted) if want > parts[i] and credits[i] >= price]
        heapq.heapify(donors)
        heapq.heapify(borrowers)
        while borrowers and (donors or shared):
            _, borrower = heapq.heappop(borrowers)
            if donors:
                credit, donor = heapq.heappop(donors)
                credits[donor] += price
                donated[donor] -= 1
                if donated[donor]:
                    heapq.heappush(donors, (credit + price, donor))
            else:
                shared -= 1
            credits[borrower] -= price
            parts[borrower] += 1
            if parts[borrower] < wanted[borrower] and credits[borrower] >= price:
                heapq.heappush(borrowers, (-credits[borrower], borrower))
        return parts


class KarmaQuanta(Divided):
    """Karma's targets, for one quantum at a time. Between two quanta the targets stay as they are."""

    def __init__(
        self,
        workload: AgentWorkload,
        alpha: Fraction = Fraction(1, 2),
        quantum_ms: int = QUANTUM_MS,
        grace_ms: int = GRACE_MS,
    ) -> None:
        super().__init__(workload, grace_ms)
        if len(set(self.weights)) > 1:
            raise ValueError(f"Karma has no weights, and these agents have {sorted(set(self.weights))}")
        agents = len(self.weights)
        self.ledger = KarmaLedger(self.capacity, agents, alpha, START_QUANTA * max(1, self.capacity // agents))
        self._quantum_ms, self._next_ms = quantum_ms, 0
        self._parts = [0] * agents

    def wake_ms(self) -> int | None:
        return self._next_ms

    def targets(self, now_ms: int, wanted: Sequence[int]) -> list[int]:
        if now_ms >= self._next_ms:
            self._parts = self.ledger.divide(wanted)
            self._next_ms = now_ms - now_ms % self._quantum_ms + self._quantum_ms
        return [min(part, want) for part, want in zip(self._parts, wanted, strict=True)]
