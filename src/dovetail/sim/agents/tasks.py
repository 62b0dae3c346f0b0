# SPDX-License-Identifier: Apache-2.0
"""The work of software agents: tasks that arrive in bursts, and the nodes that the agents share.

Rules
- A task has an amount of work in GPU-milliseconds. It makes progress on `least` to `most` GPUs, one GPU-millisecond per
  GPU and millisecond. With `least` = `most` it is a gang.
- A task can be stopped at any time. What it did since its last checkpoint is then lost. A checkpoint takes
  `checkpoint_ms`. To go on later, or on other GPUs, takes `restart_ms`. The task holds its GPUs in both.
- Agents of one team are one customer: a team that splits into more agents is still one team.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace


class AgentTask(Struct, frozen=True):
    """One task. `agent` is the index of its agent. `same_node`: all of its GPUs are on one node. `deadline_ms` is the
    time by which the agent wants it done, if any; a late task is still done."""

    agent: int
    at_ms: int
    least: int
    most: int
    work_gpu_ms: int
    checkpoint_ms: int = 0
    restart_ms: int = 0
    same_node: bool = False
    deadline_ms: int | None = None


class BurstyAgent(Struct, frozen=True):
    """An agent. Its weight is relative to those of the other agents."""

    name: str
    weight: int = 1
    team: str = ""


class AgentWorkload(Struct, frozen=True):
    """`nodes` has the number of GPUs of each node. Tasks are in order of arrival, all before `until_ms`, the end of the
    window in which use is measured."""

    name: str
    nodes: tuple[int, ...]
    agents: tuple[BurstyAgent, ...]
    tasks: tuple[AgentTask, ...]
    until_ms: int

    @property
    def capacity(self) -> int:
        """All GPUs."""
        return sum(self.nodes)

    def teams(self) -> list[str]:
        """The team of each agent; one without a team is a team of its own."""
        return [agent.team or agent.name for agent in self.agents]

    def load(self) -> float:
        """The work that arrives, relative to what the GPUs can do in the window."""
        return sum(task.work_gpu_ms for task in self.tasks) / (self.capacity * self.until_ms)

    def alone(self, agent: int) -> AgentWorkload:
        """The same nodes with the tasks of one agent only."""
        return replace(self, tasks=tuple(task for task in self.tasks if task.agent == agent))

    def split(self, agent: int, parts: int) -> AgentWorkload:
        """The agent as `parts` agents of one team, each with its weight; its tasks go to them in turn. The new agents
        come after the others."""
        count, own = len(self.agents), self.agents[agent]
        team = own.team or own.name
        more = (replace(own, name=f"{own.name}-{part}", team=team) for part in range(1, parts))
        owner = _in_turn(agent, [agent, *range(count, count + parts - 1)])
        agents = tuple(replace(each, team=team) if i == agent else each for i, each in enumerate(self.agents))
        tasks = tuple(replace(task, agent=owner(task)) for task in self.tasks)
        return replace(self, agents=(*agents, *more), tasks=tasks)


def _in_turn(agent: int, parts: list[int]) -> Callable[[AgentTask], int]:
    """The new owner of each task, called in the order of the tasks."""
    number = 0

    def owner(task: AgentTask) -> int:
        nonlocal number
        if task.agent != agent:
            return task.agent
        number += 1
        return parts[(number - 1) % len(parts)]

    return owner
