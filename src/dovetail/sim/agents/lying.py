# SPDX-License-Identifier: Apache-2.0
"""Agents that do not ask for what they need, so that one can see what each policy lets them gain.

Rules
- Each kind changes one thing of `Truthful`. What a liar gets beyond the needs of a task it uses for its other tasks, as
  far as they wait; what then is left over it returns, or keeps if it hoards.
- `inflate` asks for twice the GPUs of each task, gangs included. When that can never be met, or it returned what it
  could not use, it asks for what the task needs.
- `split` acts as four agents of its team, each with its weight, and a quarter of the tasks.
- `churn` withdraws what waits every two minutes, and asks again.
- `withhold` asks only every 30 minutes, for all that has come until then.
- `cancel` returns what is less than the task could use and declines offers of less, three times for each task, and asks
  again at once.
- `hoard` keeps devices for ten minutes after each task, and leaves its demands open meanwhile.
- The gain is the useful GPU time of the liar's tasks in the window, relative to that of the same agent when it is
  truthful: the same seed, policy and other agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev

from msgspec.structs import replace

from dovetail.sim.agents.actions import AgentAction
from dovetail.sim.agents.outcome import AgentOutcome
from dovetail.sim.agents.protocol import AgentDeclines, Grants, Proposes, Wanted
from dovetail.sim.agents.task_run import TaskRun
from dovetail.sim.agents.tasks import AgentWorkload
from dovetail.sim.agents.truthful import Desk, Truthful
from dovetail.sim.agents.world import AgentWorld, MakeAgent, MakePolicy

PARTS = 4
CHURN_MS, WITHHOLD_MS, KEEP_MS = 2 * 60_000, 30 * 60_000, 10 * 60_000
MOST_CANCELS = 3


class Greedy(Truthful):
    """Uses spare devices for its other tasks before it returns them."""

    def spare(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        left, actions = list(devices), list[AgentAction]()
        for other in list(self.waiting.values()):
            # A task on one node would need to know the nodes.
            if other is run or other.task.same_node or other.task.least > len(left) or _stopped(now_ms, other):
                continue
            taken, left = left[: other.task.most], left[other.task.most :]
            self.assign(taken, other)
            actions += [*self.run_on(other, tuple(taken)), *self.withdraw_of(other)]
        return [*actions, *self.unused(now_ms, run, left)]

    def place(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        return self.ask_later(now_ms, run) if _stopped(now_ms, run) else super().place(now_ms, run)

    def pays(self, now_ms: int, run: TaskRun, gpus: int) -> bool:
        # What it just left is not taken again at once.
        return run.since_ms < now_ms and super().pays(now_ms, run, gpus)

    def narrow(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        # The task may run on devices of another demand, so that its own seems to lack some: then it is closed.
        return super().narrow(now_ms, run) or self.withdraw_of(run)

    def unused(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        """No task of this agent can use these, which were for this task."""
        return self.give_back(devices)


class Inflating(Greedy):
    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._honest: set[int] = set()
        """The tasks for which it asks for what they need from now on."""

    def wanted(self, now_ms: int, run: TaskRun) -> tuple[Wanted, ...]:
        honest = super().wanted(now_ms, run)
        if run.number in self._honest:
            return honest
        return tuple(replace(each, least=2 * each.least, most=2 * each.most) for each in honest)

    def unused(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        if not devices or run.number in self._honest:
            return self.give_back(devices)
        self._honest.add(run.number)
        return [*self.give_back(devices), *self.change(now_ms, run)]

    def refused(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        if run.number in self._honest:
            return super().refused(now_ms, run)
        self._honest.add(run.number)
        return self.ask(now_ms, run)


class Churning(Truthful):
    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._next_ms = CHURN_MS

    def wake_ms(self) -> int | None:
        return _first(super().wake_ms(), self._next_ms if self.waiting else None)

    def wakes(self, now_ms: int) -> list[AgentAction]:
        actions = super().wakes(now_ms)
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + CHURN_MS
            for run in list(self.waiting.values()):
                actions += [*self.withdraw_of(run), *self.ask(now_ms, run)]
        return actions


class Withholding(Truthful):
    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._later: list[TaskRun] = []
        self._next_ms = WITHHOLD_MS

    def arrives(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        self.waiting[run.number] = run
        self._later.append(run)
        self._next_ms = now_ms - now_ms % WITHHOLD_MS + WITHHOLD_MS
        return []

    def wake_ms(self) -> int | None:
        return _first(super().wake_ms(), self._next_ms if self._later else None)

    def wakes(self, now_ms: int) -> list[AgentAction]:
        actions = super().wakes(now_ms)
        if self._later and now_ms >= self._next_ms:
            later, self._later = self._later, []
            for run in later:
                actions += self.ask(now_ms, run)
        return actions


class Cancelling(Truthful):
    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._cancels: dict[int, int] = {}

    def granted(self, now_ms: int, grant: Grants) -> list[AgentAction]:
        run = self.open.get(grant.demand)
        if run is None or run.active or len(grant.devices) >= run.task.most or not self._cancel(run):
            return super().granted(now_ms, grant)
        self.receive(now_ms, grant, run)
        return [*self.give_back(grant.devices), *self.withdraw_of(run), *self.ask(now_ms, run)]

    def answer(self, now_ms: int, proposed: Proposes) -> list[AgentAction]:
        run = self.open.get(proposed.demand)
        if run is None or any(each.gpus >= run.task.most for each in proposed.proposals) or not self._cancel(run):
            return super().answer(now_ms, proposed)
        decline: AgentAction = AgentDeclines(self.desk.agent, proposed.demand)
        return [decline, *self.withdraw_of(run), *self.ask(now_ms, run)]

    def _cancel(self, run: TaskRun) -> bool:
        self._cancels[run.number] = self._cancels.get(run.number, 0) + 1
        return self._cancels[run.number] <= MOST_CANCELS


class Hoarding(Greedy):
    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._kept: dict[int, int] = {}
        """When each kept device is returned."""
        self._done: dict[int, int] = {}
        """When each demand of a task that is done is withdrawn."""

    def finished(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        demand = self.demand_of(run)
        if demand in self.open:
            self._done[demand] = now_ms + KEEP_MS
        return self.spare_of(now_ms, run, self.usable(run))

    def arrives(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        actions = super().arrives(now_ms, run)
        kept = [device for device in self._kept if self.holds(device)]
        if run.task.same_node or run.task.least > len(kept):
            return actions
        taken = kept[: run.task.most]
        self.assign(taken, run)
        return [*actions, *self.run_on(run, tuple(taken)), *self.withdraw_of(run)]

    def spare(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        for device in devices:
            self._kept.pop(device, None)
        return super().spare(now_ms, run, devices)

    def unused(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        self._kept.update(dict.fromkeys(devices, now_ms + KEEP_MS))
        return []

    def run_on(self, run: TaskRun, devices: tuple[int, ...]) -> list[AgentAction]:
        for device in devices:
            self._kept.pop(device, None)
        return super().run_on(run, devices)

    def forget(self, lease: int, devices: Iterable[int]) -> None:
        for device in devices:
            self._kept.pop(device, None)
        super().forget(lease, devices)

    def wake_ms(self) -> int | None:
        return _first(super().wake_ms(), *self._kept.values(), *self._done.values())

    def wakes(self, now_ms: int) -> list[AgentAction]:
        actions = super().wakes(now_ms)
        actions += self.give_back([device for device, at_ms in self._kept.items() if at_ms <= now_ms])
        for demand in [demand for demand, at_ms in self._done.items() if at_ms <= now_ms]:
            del self._done[demand]
            actions += self.withdraw(demand)
        return actions


LIARS: dict[str, MakeAgent] = {
    "inflate": Inflating,
    "split": Truthful,
    "churn": Churning,
    "withhold": Withholding,
    "cancel": Cancelling,
    "hoard": Hoarding,
}
"""The loop of each kind. `split` changes the workload (`lie`)."""


def lie(workload: AgentWorkload, policy: MakePolicy, kind: str, agent: int) -> int:
    """The useful GPU time in the window, in GPU-milliseconds, of an agent that lies in this way."""
    if kind == "split":
        agents = [agent, *range(len(workload.agents), len(workload.agents) + PARTS - 1)]
        workload = workload.split(agent, PARTS)
    else:
        agents = [agent]
    outcome = AgentWorld(workload, policy(workload), dict.fromkeys(agents, LIARS[kind])).run()
    return outcome.useful_of(agents)


def gain(truth: AgentOutcome, policy: MakePolicy, kind: str, agent: int) -> float:
    """What the agent gains by this lie, as a part of what it has in `truth`, a run in which nobody lies."""
    honest = truth.useful_of([agent])
    return lie(truth.workload, policy, kind, agent) / honest - 1


_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantiles of Student's t distribution with 1 to 30 degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the 95 % confidence interval of the mean: lower and upper end. At least two values."""
    mean, freedom = fmean(values), len(values) - 1
    half = _STUDENT[min(freedom, len(_STUDENT)) - 1] * stdev(values) / sqrt(len(values))
    return mean, mean - half, mean + half


def _stopped(now_ms: int, run: TaskRun) -> bool:
    """Whether the task was stopped at this very time: started again at once, it would only be passed to and fro."""
    return not run.active and run.ended_ms is None and run.starts > 0 and run.since_ms == now_ms


def _first(*times: int | None) -> int | None:
    return min((at_ms for at_ms in times if at_ms is not None), default=None)
