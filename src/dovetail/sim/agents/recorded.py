# SPDX-License-Identifier: Apache-2.0
"""Bursts of tasks from a list of jobs of a real cluster.

Rules
- The list has the columns of `dovetail simulate --jobs` (`traces/jobs`). Each virtual cluster is an agent; with more
  agents than virtual clusters, several agents have different parts of one. The seed decides which agent has which, and
  which `JOBS` consecutive jobs of it.
- The times of submission are scaled to the window, so bursts and gaps stay as they are in the list, in proportion. Run
  times are scaled so that every agent has the same amount of work, `load_percent` of its equal share; none is scaled to
  more than a quarter of the window.
- A job of up to an equal share of the GPUs and one node is a gang on one node. A larger one is elastic, from there on.
- The list has no costs of checkpoints and restarts: these are drawn as in `bursts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dovetail.core.model import WHOLE_GPU_MILLI
from dovetail.sim.agents.bursts import HOUR_MS, drawn_costs_ms
from dovetail.sim.agents.tasks import AgentTask, AgentWorkload, BurstyAgent
from dovetail.sim.workload import SimJob, gpu_milli

JOBS = 80


def recorded(
    jobs: Sequence[SimJob],
    seed: int,
    load_percent: int,
    agents: int = 16,
    nodes: int = 16,
    gpus: int = 8,
    hours: int = 12,
) -> AgentWorkload:
    """The workload of a seed. Raises ValueError if no virtual cluster has `JOBS` jobs with a run time."""
    lists: dict[str, list[SimJob]] = {}
    for job in jobs:
        if job.duration_ms:
            lists.setdefault(job.pods[0].namespace, []).append(job)
    long = {name: sorted(each, key=lambda job: job.at_ms) for name, each in lists.items() if len(each) >= JOBS}
    if not long:
        raise ValueError(f"no virtual cluster of the list has {JOBS} jobs with a run time: use a longer list")
    until_ms, capacity = hours * HOUR_MS, nodes * gpus
    due, share = capacity * until_ms * load_percent // 100 // agents, max(1, min(gpus, capacity // agents))
    names = sorted(long)
    tasks: list[AgentTask] = []
    owners: list[BurstyAgent] = []
    for agent in range(agents):
        name, chance = names[(agent + seed) % len(names)], Random(f"{seed}/{agent}")
        first = chance.randint(0, len(long[name]) - JOBS)
        owners.append(BurstyAgent(f"{name}-{agent}"))
        tasks += _stream(chance, agent, long[name][first : first + JOBS], due, until_ms, share)
    tasks.sort(key=lambda task: (task.at_ms, task.agent))
    return AgentWorkload(f"recorded-{load_percent}", (gpus,) * nodes, tuple(owners), tuple(tasks), until_ms)


def _stream(chance: Random, agent: int, jobs: list[SimJob], due: int, until_ms: int, share: int) -> list[AgentTask]:
    begin_ms, span_ms = jobs[0].at_ms, max(1, jobs[-1].at_ms - jobs[0].at_ms)
    sizes = [max(1, sum(gpu_milli(pod.request) for pod in job.pods) // WHOLE_GPU_MILLI) for job in jobs]
    took_ms = _scaled(sizes, [job.duration_ms or 0 for job in jobs], due, until_ms // 4)
    tasks: list[AgentTask] = []
    for job, size, run_ms in zip(jobs, sizes, took_ms, strict=True):
        # The last job arrives a little before the end.
        at_ms = (job.at_ms - begin_ms) * (until_ms - 1) // span_ms
        checkpoint_ms, restart_ms = drawn_costs_ms(chance)
        least, node = min(size, share), 1 < size <= share
        tasks.append(AgentTask(agent, at_ms, least, size, size * run_ms, checkpoint_ms, restart_ms, node))
    return tasks


def _scaled(sizes: list[int], times_ms: list[int], due: int, longest_ms: int) -> list[int]:
    """The times, scaled and cut, so that the work is what is due, or all times are the longest."""

    def times(scale: float) -> list[int]:
        return [max(1, min(longest_ms, int(each * scale))) for each in times_ms]

    low, high = 0.0, longest_ms / max(1, min(times_ms))
    for _ in range(60):
        middle = (low + high) / 2
        work = sum(size * each for size, each in zip(sizes, times(middle), strict=True))
        low, high = (middle, high) if work < due else (low, middle)
    return times(high)
