# SPDX-License-Identifier: Apache-2.0
"""Small worlds of agents, and a policy that is watched."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.sim.agents.protocol import AgentReturns, Grants, Message, Ruling, SharingPolicy, TakenBack
from dovetail.sim.agents.tasks import AgentTask, AgentWorkload, BurstyAgent


def small(*tasks: AgentTask, nodes: tuple[int, ...] = (4,), agents: int = 2, until_ms: int = 100_000) -> AgentWorkload:
    names = tuple(BurstyAgent(f"agent-{i}") for i in range(agents))
    ordered = tuple(sorted(tasks, key=lambda task: task.at_ms))
    return AgentWorkload("small", nodes, names, ordered, until_ms)


def gang(agent: int, at_ms: int, gpus: int, ms: int, checkpoint_ms: int = 0, restart_ms: int = 0) -> AgentTask:
    """A gang that takes so long on its GPUs."""
    return AgentTask(agent, at_ms, gpus, gpus, gpus * ms, checkpoint_ms, restart_ms)


class Watched:
    """A policy, and the books of its leases as they follow from what is sent: no device is in two."""

    def __init__(self, policy: SharingPolicy) -> None:
        self.policy = policy
        self.lease_of: dict[int, int] = {}
        self.most_held = 0

    def wake_ms(self) -> int | None:
        return self.policy.wake_ms()

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        for message in messages:
            if isinstance(message, AgentReturns | TakenBack):
                for device in message.devices:
                    assert self.lease_of.pop(device) == message.lease
        rulings = self.policy.step(now_ms, messages)
        for ruling in rulings:
            if isinstance(ruling, Grants):
                for device in ruling.devices:
                    assert device not in self.lease_of
                    self.lease_of[device] = ruling.lease
        self.most_held = max(self.most_held, len(self.lease_of))
        return rulings
