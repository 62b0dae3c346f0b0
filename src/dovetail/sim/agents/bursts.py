# SPDX-License-Identifier: Apache-2.0
"""Bursts of tasks, drawn from a seed.

Rules
- Each agent has the same amount of work: its part of `load_percent` of what all GPUs can do until the end. A burst has
  1, 3, 10 or 30 tasks, a few seconds apart. The times between bursts are Pareto distributed (heavy tails), and scaled
  so that the bursts fill the window: the load is exact.
- Half of the tasks are elastic, from 1 or a quarter of their GPUs up to 2 to 32. The others are gangs of 1 to 8, half
  of these on one node. On all its GPUs a task takes 30 seconds to an hour, 6 minutes in the median. Checkpoints take 2
  to 45 seconds, restarts 5 to 60. One task in four has a deadline, at four times that.
- No gang is larger than an equal share of the GPUs, so that static shares can run all of them.
- A seed draws the same tasks at every load but for their number.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from dovetail.sim.agents.tasks import AgentTask, AgentWorkload, BurstyAgent

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
_SIZES, _SIZE_WEIGHTS = (1, 3, 10, 30), (4, 3, 2, 1)
_SHORTEST_MS, _LONGEST_MS = 30_000, HOUR_MS
_WITHIN_BURST_MS = 5_000
_TAIL = 1.3
"""The exponent of the Pareto distribution: a finite mean, an infinite variance."""


def bursty(
    seed: int, load_percent: int, agents: int = 16, nodes: int = 16, gpus: int = 8, hours: int = 12
) -> AgentWorkload:
    """The workload of a seed on `nodes` nodes of `gpus` GPUs each."""
    until_ms, capacity = hours * HOUR_MS, nodes * gpus
    due = capacity * until_ms * load_percent // 100 // agents
    share = max(1, min(gpus, capacity // agents))
    tasks = [task for agent in range(agents) for task in _stream(seed, agent, due, until_ms, share)]
    tasks.sort(key=lambda task: (task.at_ms, task.agent))
    names = tuple(BurstyAgent(f"agent-{agent}") for agent in range(agents))
    return AgentWorkload(f"bursts-{load_percent}", (gpus,) * nodes, names, tuple(tasks), until_ms)


def with_large(workload: AgentWorkload, gpus: int = 60, minutes: int = 30, every_hours: int = 3) -> AgentWorkload:
    """One more agent, with a gang of this size every few hours, the first after one hour."""
    agent, until_ms = len(workload.agents), workload.until_ms
    work, longest_ms = gpus * minutes * MINUTE_MS, 30_000
    large = [
        AgentTask(agent, at_ms, gpus, gpus, work, longest_ms, 60_000)
        for at_ms in range(HOUR_MS, until_ms, every_hours * HOUR_MS)
    ]
    tasks = sorted((*workload.tasks, *large), key=lambda task: (task.at_ms, task.agent))
    agents = (*workload.agents, BurstyAgent("large"))
    return replace(workload, name=f"large-{gpus}", agents=agents, tasks=tuple(tasks))


def drawn_costs_ms(chance: Random) -> tuple[int, int]:
    """What a checkpoint and a restart take."""
    return chance.randint(2_000, 45_000), chance.randint(5_000, 60_000)


def _stream(seed: int, agent: int, due: int, until_ms: int, share: int) -> list[AgentTask]:
    """The tasks of one agent."""
    chance = Random(f"{seed}/{agent}")
    gaps, bursts, left = list[float](), list[list[AgentTask]](), due
    while left > 0:
        gaps.append(chance.paretovariate(_TAIL))
        burst: list[AgentTask] = []
        for _ in range(chance.choices(_SIZES, _SIZE_WEIGHTS)[0]):
            task = _task(chance, agent, share)
            if left > 0:
                burst.append(replace(task, work_gpu_ms=min(task.work_gpu_ms, left)))
                left -= task.work_gpu_ms
        bursts.append(burst)
    gaps.append(chance.paretovariate(_TAIL))
    tasks, passed = list[AgentTask](), 0.0
    for gap, burst in zip(gaps, bursts, strict=False):
        passed += gap
        at_ms = passed / sum(gaps) * until_ms
        for task in burst:
            arrived_ms = min(int(at_ms), until_ms - 1)
            deadline_ms = None if task.deadline_ms is None else arrived_ms + task.deadline_ms
            tasks.append(replace(task, at_ms=arrived_ms, deadline_ms=deadline_ms))
            at_ms += chance.expovariate(1 / _WITHIN_BURST_MS)
    return tasks


def _task(chance: Random, agent: int, share: int) -> AgentTask:
    """A task that arrives at 0; its deadline is relative to that."""
    elastic = chance.random() < 0.5
    most = chance.choice((2, 4, 8, 16, 32) if elastic else (1, 2, 4, 8))
    least = chance.choice((1, max(1, most // 4))) if elastic else min(most, share)
    most = most if elastic else least
    same_node = not elastic and most > 1 and chance.random() < 0.5
    took_ms = int(min(max(chance.lognormvariate(0, 1.0) * 6 * MINUTE_MS, _SHORTEST_MS), _LONGEST_MS))
    checkpoint_ms, restart_ms = drawn_costs_ms(chance)
    deadline_ms = 4 * took_ms if chance.random() < 0.25 else None
    least = min(least, share)
    return AgentTask(agent, 0, least, most, took_ms * most, checkpoint_ms, restart_ms, same_node, deadline_ms)
