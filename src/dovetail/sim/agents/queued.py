# SPDX-License-Identifier: Apache-2.0
"""Policies that never take devices back: first come, first served, of all GPUs or of each team's own part.

Rules
- Demands are served in the order in which they were asked. One that does not fit stops those behind it.
- An elastic demand gets as many GPUs as are free, from `least` on. GPUs that nobody waits for go to elastic demands
  that run with fewer than they could use, again in order.
- Static shares: each team has as many devices as its weight of all, rounded by largest remainder, in the order of the
  teams, and lends none. A demand that is larger than the part is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.sim.agents.books import LeaseBooks
from dovetail.sim.agents.protocol import Message, Ruling
from dovetail.sim.agents.tasks import AgentWorkload


class FirstComeFirstServed:
    """One line for each part of the devices."""

    def __init__(self, nodes: Sequence[int], parts: Sequence[range], part_of: Sequence[int]) -> None:
        self.books = LeaseBooks(nodes, parts, part_of)

    def wake_ms(self) -> int | None:
        return None

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        rulings: list[Ruling] = []
        for message in messages:
            rulings += self.books.apply(message)
        blocked: set[int] = set()
        books = self.books
        for starting in (True, False):
            for demand in books.demands.values():
                part, held = books.part_of[demand.agent], books.held[demand.id]
                if starting == bool(held) or part in blocked or len(held) >= books.most[demand.id]:
                    continue
                node = books.node_of[min(held)] if held and demand.same_node else None
                least, most = max(1, books.least[demand.id] - len(held)), books.most[demand.id] - len(held)
                free = books.free[part]
                devices = free.pick(least, most, same_node=demand.same_node, node=node) if free.count >= least else ()
                if devices:
                    rulings.append(books.grant(demand, devices))
                elif starting:
                    blocked.add(part)
        return rulings


def first_come_first_served(workload: AgentWorkload) -> FirstComeFirstServed:
    """All devices are one part."""
    return FirstComeFirstServed(workload.nodes, [range(workload.capacity)], [0] * len(workload.agents))


def static_shares(workload: AgentWorkload) -> FirstComeFirstServed:
    """Each team has its part, by the weight of its first agent."""
    teams = workload.teams()
    weights = {team: agent.weight for team, agent in reversed(list(zip(teams, workload.agents, strict=True)))}
    names = list(dict.fromkeys(teams))
    sizes = rounded(workload.capacity, [weights[name] for name in names])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    parts = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return FirstComeFirstServed(workload.nodes, parts, [names.index(team) for team in teams])


def rounded(total: int, weights: Sequence[int]) -> list[int]:
    """`total` divided by weight in whole numbers: the largest remainders are rounded up, the first of equal ones."""
    whole = [total * weight // sum(weights) for weight in weights]
    remainders = [total * weight % sum(weights) for weight in weights]
    for i in sorted(range(len(weights)), key=lambda i: -remainders[i])[: total - sum(whole)]:
        whole[i] += 1
    return whole
