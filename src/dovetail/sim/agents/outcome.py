# SPDX-License-Identifier: Apache-2.0
"""What came of a workload under one policy, and the figures that are compared.

Definitions
- Utilisation: progress made by the end of the window, that is not lost, of what all GPUs could do in the window.
- Completion time: from the arrival of a task to its end, waiting included. The slowdown of an agent is the sum of its
  tasks' completion times over the same sum when the agent has all nodes for itself (finish-time fairness of Themis,
  Mahajan et al., NSDI'20). A refused task has no end, and its agent no slowdown.
- Jain index: of U/W over the agents with work, U what an agent held in the window and W its share by weight.
- Lost: progress that was made and lost, of all that was held. Overhead: checkpoints and restarts, likewise.
- Idle leased: held, and used by no task, of all GPU time up to the end. Free while wanted: free, while tasks wait that
  could use as many, likewise. The second is what reservations, parts and fragments cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from dovetail.sim.agents.task_run import TaskRun
from dovetail.sim.agents.tasks import AgentWorkload
from dovetail.sim.fairness import jain


class AgentUse(Struct):
    """What an agent holds and uses now, in GPUs, and the sums in GPU-milliseconds. `idle` is held and not used."""

    holds: int = 0
    uses: int = 0
    held: int = 0
    idle: int = 0
    held_in_window: int = 0


class AgentOutcome:
    """The books of a run. `useful` is each task's progress at the end of the window."""

    def __init__(self, workload: AgentWorkload, runs: list[TaskRun], uses: list[AgentUse]) -> None:
        self.workload, self.runs, self.uses = workload, runs, uses
        self.useful: list[int] = [0] * len(runs)
        self.free_while_wanted = 0
        self.ended_ms = 0

    def close_window(self, progress: list[int]) -> None:
        self.useful = progress
        for use in self.uses:
            use.held_in_window = use.held

    def useful_of(self, agents: Sequence[int]) -> int:
        """The progress of these agents' tasks in the window."""
        return sum(done for done, run in zip(self.useful, self.runs, strict=True) if run.task.agent in agents)

    def completion_ms(self, agent: int) -> int | None:
        """The sum of the completion times of the agent's tasks; None if one was refused."""
        total = 0
        for run in self.runs:
            if run.task.agent == agent:
                if run.ended_ms is None:
                    return None
                total += run.ended_ms - run.task.at_ms
        return total

    def slowdowns(self, alone_ms: Sequence[int]) -> list[float]:
        """By agent that has work and whose tasks are all done. `alone_ms` are the sums when each agent is alone."""
        totals = [(self.completion_ms(agent), alone) for agent, alone in enumerate(alone_ms)]
        return [total / alone for total, alone in totals if total is not None and alone]

    def waits_ms(self, at_least: int) -> list[int]:
        """The waits until their first start of the tasks that need this many GPUs or more, and were not refused."""
        waiting = [run for run in self.runs if run.task.least >= at_least and run.started_ms is not None]
        return [run.started_ms - run.task.at_ms for run in waiting if run.started_ms is not None]

    def figures(self, alone_ms: Sequence[int], large: int = 60) -> dict[str, float | None]:
        """All figures by name: parts of one, seconds, or counts. None: there is no such thing in this run."""
        work = self.workload
        ended = [run.ended_ms - run.task.at_ms for run in self.runs if run.ended_ms is not None]
        refused = sum(run.refused for run in self.runs)
        everything = work.capacity * max(1, self.ended_ms)
        held = max(1, sum(use.held for use in self.uses))
        slowdowns = self.slowdowns(alone_ms)
        waits = self.waits_ms(large)
        weights = [agent.weight for agent in work.agents]
        busy = {run.task.agent for run in self.runs}
        late = [run for run in self.runs if run.task.deadline_ms is not None]
        return {
            "utilisation": sum(self.useful) / (work.capacity * work.until_ms),
            "completion_s": fmean(ended) / 1000 if ended and not refused else None,
            "worst_slowdown": max(slowdowns) if slowdowns and not refused else None,
            "jain": jain([self.uses[agent].held_in_window * sum(weights) / weights[agent] for agent in sorted(busy)]),
            "lost": sum(run.lost for run in self.runs) / held,
            "overhead": sum(run.overhead for run in self.runs) / held,
            "idle_leased": sum(use.idle for use in self.uses) / everything,
            "free_while_wanted": self.free_while_wanted / everything,
            "large_wait_s": fmean(waits) / 1000 if waits else None,
            "large_wait_max_s": max(waits) / 1000 if waits else None,
            "deadlines_met": fmean(_in_time(run) for run in late) if late else None,
            "refused": refused,
            "makespan_s": self.ended_ms / 1000,
        }


def _in_time(run: TaskRun) -> bool:
    return run.ended_ms is not None and run.task.deadline_ms is not None and run.ended_ms <= run.task.deadline_ms
