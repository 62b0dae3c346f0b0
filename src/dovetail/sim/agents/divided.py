# SPDX-License-Identifier: Apache-2.0
"""Policies that divide the GPUs among the agents again and again, and take back what is above a share.

Rules
- A division has a target for each agent, from its demands: what it asks for, all demands together. Each agent's target
  goes to its demands: first those that run keep what they have, then those that wait start in the order in which they
  were asked, then those that run get more.
- What the targets leave over, because gangs are whole, goes to other demands, those of the agent with the least for its
  weight first.
- Devices are revoked only for a demand that is to have more, and only as many as it lacks: from the agents that are
  furthest above their targets, the latest demand first. They have `grace_ms` to make a checkpoint and return them.
- Devices for a gang that are still on their way are not granted to others. Free devices that no target covers start
  what fits, and may be revoked like all others.
- `MaxMin` divides at every event, weighted max-min. Karma (`karma`) divides once in a quantum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from dovetail.sim.agents.books import LeaseBooks
from dovetail.sim.agents.protocol import LeaseDemand, Message, Ruling
from dovetail.sim.agents.tasks import AgentWorkload

GRACE_MS = 60_000


class Divided(ABC):
    """The policy without its division."""

    def __init__(self, workload: AgentWorkload, grace_ms: int = GRACE_MS) -> None:
        agents = len(workload.agents)
        self.books = LeaseBooks(workload.nodes, [range(workload.capacity)], [0] * agents)
        self.capacity, self.weights = workload.capacity, [agent.weight for agent in workload.agents]
        self._grace_ms = grace_ms

    @abstractmethod
    def targets(self, now_ms: int, wanted: Sequence[int]) -> list[int]:
        """The number of GPUs for each agent; `wanted` is what each asks for. At most `wanted`."""

    def wake_ms(self) -> int | None:
        return None

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        rulings: list[Ruling] = []
        for message in messages:
            rulings += self.books.apply(message)
        wanted = [0] * len(self.weights)
        for number, demand in self.books.demands.items():
            wanted[demand.agent] += self.books.most[number]
        targets = self.targets(now_ms, wanted)
        return rulings + self._realise(now_ms, targets, self.sizes(targets))

    def sizes(self, targets: Sequence[int]) -> dict[int, int]:
        """How many devices each demand is to have: none, or from `least` to `most`."""
        books, left = self.books, list(targets)
        sizes = dict.fromkeys(books.demands, 0)

        def take(number: int, upto: int) -> None:
            """Up to this many of what is left of the agent's target, or nothing if that is too little."""
            agent = books.agent_of[number]
            more = min(upto - sizes[number], left[agent])
            if more > 0 and sizes[number] + more >= books.least[number]:
                sizes[number] += more
                left[agent] -= more

        staying = {number: books.staying(number) for number in sizes}
        running = [number for number, count in staying.items() if count]
        waiting = [number for number, count in staying.items() if not count]
        for number in running:
            take(number, min(books.most[number], staying[number]))
        for number in waiting:
            take(number, books.most[number])
        for number in running:
            take(number, books.most[number])
        self._add_rest([*running, *waiting], sizes)
        return sizes

    def _add_rest(self, numbers: list[int], sizes: dict[int, int]) -> None:
        """Add what the targets leave over, to the agent with the least for its weight; its demands in this order."""
        books, over = self.books, self.capacity - sum(sizes.values())
        if not over:
            return
        got = [0] * len(self.weights)
        able: list[list[int]] = [[] for _ in self.weights]
        for number in numbers:
            got[books.agent_of[number]] += sizes[number]
            if sizes[number] < books.most[number]:
                able[books.agent_of[number]].append(number)
        line = [(got[agent] / self.weights[agent], agent) for agent, its in enumerate(able) if its]
        heapify(line)
        able = [its[::-1] for its in able]
        while over and line:
            _, agent = line[0]
            its = able[agent]
            number = its[-1]
            more = 1 if sizes[number] else books.least[number]
            fits = more <= over
            if fits:
                sizes[number] += more
                got[agent] += more
                over -= more
            if not fits or sizes[number] == books.most[number]:
                its.pop()  # what does not fit now never will, as less and less is over
            if its:
                heapreplace(line, (got[agent] / self.weights[agent], agent))
            else:
                heappop(line)

    def _realise(self, now_ms: int, targets: Sequence[int], sizes: dict[int, int]) -> list[Ruling]:
        books, free = self.books, self.books.free[0]
        lacking = [d for d in books.demands.values() if sizes[d.id] > books.staying(d.id)]
        if not lacking and not free.count:
            return []
        held = [0] * len(self.weights)
        for number in books.held:
            held[books.agent_of[number]] += books.staying(number)
        lacking.sort(key=lambda d: (held[d.agent] - targets[d.agent]) / self.weights[d.agent])
        rulings: list[Ruling] = []
        coming, aside = set(books.leaving), list[tuple[int, ...]]()
        for demand in lacking:
            rulings += self._grant(demand, sizes[demand.id] - books.staying(demand.id))
            running = books.staying(demand.id)
            lacks = sizes[demand.id] - running
            if not lacks or (running and demand.same_node):
                continue
            node = self._best_node(demand, coming, sizes) if demand.same_node else None
            if demand.same_node and node is None:
                continue
            found = tuple(free.of_node(node)[:lacks]) if node is not None else free.pick(0, lacks)
            on_way = [device for device in sorted(coming) if node is None or books.node_of[device] == node]
            on_way = on_way[: lacks - len(found)]
            have = len(found) + len(on_way)
            chosen = self._surplus(lacks - have, node, targets, sizes, held)
            gained = [device for devices in chosen.values() for device in devices if self._is_of(device, node)]
            if have + len(gained) < (1 if running else books.least[demand.id]):
                continue
            for number, devices in chosen.items():
                rulings += books.revoke(number, devices, now_ms + self._grace_ms, "above the fair share of its agent")
                held[books.agent_of[number]] -= len(devices)
            # What is more than it lacks is free for others when it comes.
            coming = (coming | {device for devices in chosen.values() for device in devices}) - set(on_way)
            coming.difference_update(gained[: lacks - have])
            free.remove(found)
            aside.append(found)
        rulings += self._fill()
        for found in aside:
            free.add(found)
        return rulings

    def _is_of(self, device: int, node: int | None) -> bool:
        return node is None or self.books.node_of[device] == node

    def _grant(self, demand: LeaseDemand, lacks: int) -> list[Ruling]:
        """A lease for it on free devices, if they are enough."""
        books, held = self.books, self.books.held[demand.id]
        node = books.node_of[min(held)] if held and demand.same_node else None
        # A gang that is leaving its devices starts again when they are back.
        if held and not books.staying(demand.id):
            return []
        least = max(1, books.least[demand.id] - len(held))
        devices = books.free[0].pick(least, lacks, same_node=demand.same_node, node=node)
        return [books.grant(demand, devices)] if devices else []

    def _best_node(self, demand: LeaseDemand, coming: set[int], sizes: dict[int, int]) -> int | None:
        """The node on which the fewest devices have to be revoked for this gang; None if none can have enough."""
        books = self.books
        ready = [len(books.free[0].of_node(node)) for node in range(max(books.node_of) + 1)]
        for device in coming:
            ready[books.node_of[device]] += 1
        most = list(ready)
        for number, devices in books.held.items():
            above = books.staying(number) - sizes.get(number, 0)
            if above > 0:
                there = Counter(books.node_of[device] for device in devices - books.leaving)
                for node, count in there.items():
                    most[node] += min(count, above)
        able = [node for node in range(len(ready)) if most[node] >= books.least[demand.id]]
        return max(able, key=lambda node: (ready[node], -node)) if able else None

    def _surplus(
        self, missing: int, node: int | None, targets: Sequence[int], sizes: dict[int, int], held: list[int]
    ) -> dict[int, list[int]]:
        """Up to `missing` devices, of this node if it is not None, by demand that holds more than it is to have. All
        devices of a demand that is to have none."""
        books = self.books
        over = [number for number in books.held if books.staying(number) > sizes.get(number, 0)] if missing > 0 else []
        over.sort(key=lambda n: ((targets[a := books.agent_of[n]] - held[a]) / self.weights[a], -n))
        chosen: dict[int, list[int]] = {}
        for number in over:
            if missing <= 0:
                break
            mine = sorted(books.held[number] - books.leaving)
            there = [device for device in mine if self._is_of(device, node)]
            size = sizes.get(number, 0)
            count = min(len(there), len(mine) - size, missing)
            if count:
                # Less than all is of no use to a demand that is to have none.
                chosen[number] = there[len(there) - count :] if size else mine
                missing -= count
        return chosen

    def _fill(self) -> list[Ruling]:
        """Grant free devices that no target covers: to what waits, then to what runs."""
        books, free = self.books, self.books.free[0]
        rulings: list[Ruling] = []
        for starting in (True, False):
            for demand in books.demands.values():
                if not free.count:
                    return rulings
                lacks = books.most[demand.id] - len(books.held[demand.id])
                if lacks > 0 and starting == (not books.held[demand.id]):
                    rulings += self._grant(demand, lacks)
        return rulings


class MaxMin(Divided):
    """Weighted max-min of what the agents ask for now, in whole GPUs, at every event."""

    def targets(self, now_ms: int, wanted: Sequence[int]) -> list[int]:
        return max_min(self.capacity, wanted, self.weights)


def max_min(capacity: int, wanted: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Weighted max-min in whole units. One after the other goes to the agent that wants more and has, with this unit,
    the least for its weight; of equal ones, to the first."""
    parts, left = [0] * len(wanted), capacity
    active = [i for i in range(len(wanted)) if wanted[i]]
    while left and active:
        # All get the same number per weight, as long as this satisfies nobody.
        level = min((wanted[i] - parts[i]) // weights[i] for i in active)
        level = min(level, left // sum(weights[i] for i in active))
        if level:
            for i in active:
                parts[i] += level * weights[i]
                left -= level * weights[i]
        else:
            i = min(active, key=lambda i: ((parts[i] + 1) / weights[i], i))
            parts[i] += 1
            left -= 1
        active = [i for i in active if parts[i] < wanted[i]]
    return parts
