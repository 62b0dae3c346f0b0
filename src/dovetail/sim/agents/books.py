# SPDX-License-Identifier: Apache-2.0
"""The books of the policies that are compared: open demands, leases, and free devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.sim.agents.devices import FreeDevices, node_of_devices
from dovetail.sim.agents.protocol import (
    AgentAsks,
    AgentChanges,
    AgentReturns,
    AgentWithdraws,
    Grants,
    LeaseDemand,
    Message,
    Refuses,
    Revokes,
    Ruling,
    TakenBack,
)


class LeaseBooks:
    """Demands in the order in which they were asked, leases without an end, and the devices in their parts.

    `part_of` is the part of the devices that an agent's leases come from. Devices that are revoked stay in `leaving`
    until they are returned."""

    def __init__(self, nodes: Sequence[int], parts: Sequence[Iterable[int]], part_of: Sequence[int]) -> None:
        self.node_of = node_of_devices(nodes)
        self.free = [FreeDevices(nodes, part) for part in parts]
        self.sizes = [free.count for free in self.free]
        self._per_node = [max(map(len, map(free.of_node, range(len(nodes))))) for free in self.free]
        self.part_of = part_of
        self.demands: dict[int, LeaseDemand] = {}
        self.least: dict[int, int] = {}
        self.most: dict[int, int] = {}
        """The fewest and the most GPUs that each open demand asks for."""
        self.held: dict[int, set[int]] = {}
        """The devices of each demand, those that are leaving included."""
        self.leaving: set[int] = set()
        self.agent_of: dict[int, int] = {}
        """The agent of each demand that is open, or holds devices."""
        self._lease_of: dict[int, int] = {}
        self._demand_of: dict[int, int] = {}
        self._leases = 0

    def apply(self, message: Message) -> list[Ruling]:
        """Note what was sent. A demand that its part can never meet is refused."""
        match message:
            case AgentAsks(demand):
                part = self.part_of[demand.agent]
                most = self._per_node[part] if demand.same_node else self.sizes[part]
                if demand.least > most:
                    reason = f"{demand.least} GPUs are asked for, and there are never more than {most}"
                    return [Refuses(demand.agent, demand.id, reason)]
                self._note(demand)
                self.held[demand.id] = set()
                self.agent_of[demand.id] = demand.agent
            case AgentChanges(demand):
                if demand.id in self.demands:
                    self._note(demand)
            case AgentWithdraws(_, number):
                if self.demands.pop(number, None) is not None:
                    del self.least[number], self.most[number]
                    if not self.held[number]:
                        self._forget(number)
            case AgentReturns(_, lease, devices) | TakenBack(_, lease, devices):
                number = self._demand_of[lease]
                self.held[number].difference_update(devices)
                self.leaving.difference_update(devices)
                for device in devices:
                    del self._lease_of[device]
                self.free[self.part_of[self.agent_of[number]]].add(devices)
                if number not in self.demands and not self.held[number]:
                    self._forget(number)
        return []

    def staying(self, number: int) -> int:
        """How many devices the demand holds that are not revoked."""
        return len(self.held[number] - self.leaving) if self.leaving else len(self.held[number])

    def grant(self, demand: LeaseDemand, devices: tuple[int, ...]) -> Grants:
        """A lease without an end, on devices that are free."""
        self._leases += 1
        self.free[self.part_of[demand.agent]].remove(devices)
        self.held[demand.id].update(devices)
        for device in devices:
            self._lease_of[device] = self._leases
        self._demand_of[self._leases] = demand.id
        return Grants(self._leases, demand.agent, demand.id, devices)

    def revoke(self, number: int, devices: Iterable[int], deadline_ms: int, reason: str) -> list[Ruling]:
        """Ask the agent for devices that this demand holds."""
        by_lease: dict[int, list[int]] = {}
        for device in sorted(devices):
            by_lease.setdefault(self._lease_of[device], []).append(device)
            self.leaving.add(device)
        agent = self.agent_of[number]
        return [Revokes(lease, agent, tuple(mine), deadline_ms, reason) for lease, mine in by_lease.items()]

    def _note(self, demand: LeaseDemand) -> None:
        self.demands[demand.id] = demand
        self.least[demand.id], self.most[demand.id] = demand.least, demand.most

    def _forget(self, number: int) -> None:
        del self.held[number], self.agent_of[number]
