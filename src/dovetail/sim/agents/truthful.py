# SPDX-License-Identifier: Apache-2.0
"""The loop of an agent that asks for what it needs, uses what it gets, and returns what it does not use.

Rules
- Each task is asked for by a demand of its own, when it arrives, and again when it lost its devices and its demand is
  closed. An elastic task asks for `most` GPUs, or half of them, and so on down to `least`; each alternative has the
  time that the work takes on so many.
- A task starts as soon as its leases have `least` devices, and takes more while it runs if that pays: if it ends
  earlier by twice the pause of a restart, or more. Else the agent returns them and asks for no more.
- Of the proposals of an offer it takes the one that starts first, since a task that runs may get more; of several of
  these the one with the earliest end, the smaller one of two.
- Devices that are revoked, or whose lease ends before the task does, are left after a checkpoint, which begins as late
  as the end of a lease permits. If there is no time for it, they are left at once. The task goes on with the others if
  these are enough.
- After 70 % of a lease the agent asks for the time that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.sim.agents.actions import AgentAction, GivesUp, RunsOn, Saves, Stops
from dovetail.sim.agents.protocol import (
    AgentAccepts,
    AgentAsks,
    AgentChanges,
    AgentRenews,
    AgentReturns,
    AgentWithdraws,
    Extends,
    Grants,
    LeaseDemand,
    Proposes,
    Refuses,
    RefusesRenewal,
    Revokes,
    Ruling,
    Wanted,
)
from dovetail.sim.agents.task_run import TaskRun

MOST_ALTERNATIVES = 8
RENEW_PERCENT = 70
BACKOFF_MS = 1_000
"""Before a task is asked for a second time at one time."""


class Desk(Struct, frozen=True):
    """What an agent has of the world: its index, and new numbers for demands."""

    agent: int
    new_id: Callable[[], int]


class OwnLease(Struct):
    """A lease of this agent. `renewal_ms` is the time to ask for a renewal, `leave_ms` the time to leave it, if it
    ends."""

    id: int
    devices: set[int]
    end_ms: int | None = None
    renewal_ms: int | None = None
    leave_ms: int | None = None


class Truthful:
    """The loop. Each method returns what the agent does about an event."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.open: dict[int, TaskRun] = {}
        """The tasks of open demands, by demand."""
        self.waiting: dict[int, TaskRun] = {}
        """The tasks without devices, by number, in order of arrival."""
        self.leases: dict[int, OwnLease] = {}
        self._ending: dict[int, OwnLease] = {}
        """Those of them that have an end."""
        self._run_of: dict[int, TaskRun] = {}
        """The task that each held device is for."""
        self._demand_of: dict[int, int] = {}
        """The last demand of each task."""
        self._asked_ms: dict[int, int] = {}
        """When that was."""
        self._again_ms: dict[int, int] = {}
        """When tasks are asked for again that lost their devices at the time at which they were asked for."""
        self._narrowed: set[int] = set()
        """The demands that ask for less than the task could use."""
        self._leaving: dict[int, int] = {}
        """The deadline of each device that is to be returned."""

    # Events.

    def arrives(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        self.waiting[run.number] = run
        return self.ask(now_ms, run)

    def decided(self, now_ms: int, ruling: Ruling) -> list[AgentAction]:
        match ruling:
            case Grants():
                return self.granted(now_ms, ruling)
            case Revokes(lease, _, devices, deadline_ms):
                held = self.leases.get(lease)
                return self._leave(now_ms, held, devices, deadline_ms) if held is not None else []
            case Proposes():
                return self.answer(now_ms, ruling)
            case Extends(lease, _, end_ms):
                if (extended := self.leases.get(lease)) is not None:
                    self._set_end(now_ms, extended, end_ms)
                return []
            case RefusesRenewal():
                return []
            case Refuses():
                run = self.open.pop(ruling.demand, None)
                return self.refused(now_ms, run) if run is not None else []

    def finished(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """The task is done."""
        return [*self.give_back(self._devices_of(run)), *self.withdraw_of(run)]

    def saved(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """The checkpoint is complete."""
        return self._go_on(now_ms, run)

    def lost(self, now_ms: int, lease: int, devices: Sequence[int], stopped: Sequence[TaskRun]) -> list[AgentAction]:
        """The world took the devices; these tasks ran on them, and have stopped."""
        self.forget(lease, devices)
        actions: list[AgentAction] = []
        for run in stopped:
            self.waiting[run.number] = run
            actions += self._go_on(now_ms, run)
        return actions

    def demand_of(self, run: TaskRun) -> int:
        """The last demand of the task."""
        return self._demand_of[run.number]

    def holds(self, device: int) -> bool:
        """Whether the device is held, and stays."""
        return device in self._run_of and device not in self._leaving

    def wake_ms(self) -> int | None:
        """When this agent has something to do by itself."""
        if not self._ending and not self._again_ms:
            return None
        times = [at_ms for held in self._ending.values() for at_ms in (held.renewal_ms, held.leave_ms)]
        times += self._again_ms.values()
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def wakes(self, now_ms: int) -> list[AgentAction]:
        actions: list[AgentAction] = []
        for number in [number for number, at_ms in self._again_ms.items() if at_ms <= now_ms]:
            del self._again_ms[number]
            if number in self.waiting and self._demand_of[number] not in self.open:
                actions += self.ask(now_ms, self.waiting[number])
        for held in list(self._ending.values()):
            if held.renewal_ms is not None and held.renewal_ms <= now_ms:
                held.renewal_ms = None
                missing_ms = self._missing_ms(now_ms, held)
                if missing_ms > 0:
                    actions.append(AgentRenews(self.desk.agent, held.id, missing_ms))
            elif held.leave_ms is not None and held.leave_ms <= now_ms:
                held.leave_ms = None
                if self._missing_ms(now_ms, held) > 0 and held.end_ms is not None:
                    actions += self._leave(now_ms, held, sorted(held.devices), held.end_ms)
        return actions

    # What other agents do in another way.

    def ask(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """A new demand for the task."""
        demand = self._demand(now_ms, run, self.desk.new_id())
        self.open[demand.id] = run
        self._demand_of[run.number] = demand.id
        self._asked_ms[run.number] = now_ms
        return [AgentAsks(demand)]

    def wanted(self, now_ms: int, run: TaskRun) -> tuple[Wanted, ...]:
        """The alternatives for what is left of the task."""
        task = run.task
        left, gpus, found = run.remaining(now_ms), task.most, list[Wanted]()
        pauses_ms = task.checkpoint_ms + (task.restart_ms if run.starts else 0)
        while gpus >= task.least and len(found) < MOST_ALTERNATIVES:
            found.append(Wanted(gpus, gpus, -(-left // gpus) + pauses_ms, task.same_node))
            if gpus == task.least:
                break
            gpus = max(task.least, gpus // 2)
        return tuple(found)

    def granted(self, now_ms: int, grant: Grants) -> list[AgentAction]:
        run = self.open.get(grant.demand)
        if run is None:  # withdrawn meanwhile
            return [AgentReturns(self.desk.agent, grant.lease, grant.devices)]
        self.receive(now_ms, grant, run)
        return self.place(now_ms, run)

    def refused(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """The demand can never be met: neither can the task be done."""
        if run.active or run.number not in self.waiting:
            return []
        del self.waiting[run.number]
        return [GivesUp(run)]

    def answer(self, now_ms: int, offers: Proposes) -> list[AgentAction]:
        """Take the proposal by which the task starts first."""
        run = self.open.get(offers.demand)
        if run is None:
            return []
        left = run.remaining(now_ms)
        best = min(offers.proposals, key=lambda each: (each.start_ms, -(-left // each.gpus), each.gpus, each.number))
        return [AgentAccepts(self.desk.agent, offers.demand, best.number)]

    def withdraw(self, demand: int) -> list[AgentAction]:
        """Close the demand if it is open."""
        return [AgentWithdraws(self.desk.agent, demand)] if self.open.pop(demand, None) is not None else []

    def withdraw_of(self, run: TaskRun) -> list[AgentAction]:
        """Close the last demand of the task if it is open."""
        return self.withdraw(self._demand_of[run.number])

    def spare(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        """The leases of the task have more devices than it uses: return these."""
        return self.give_back(devices)

    # Parts of the loop.

    def receive(self, now_ms: int, grant: Grants, run: TaskRun) -> None:
        """Note a lease; its devices are for this task."""
        if grant.settled:
            del self.open[grant.demand]
        held = self.leases[grant.lease] = OwnLease(grant.lease, set(grant.devices))
        self.assign(grant.devices, run)
        if grant.end_ms is not None:
            self._set_end(now_ms, held, grant.end_ms)

    def assign(self, devices: Iterable[int], run: TaskRun) -> None:
        """These devices are for this task from now on."""
        self._run_of.update(dict.fromkeys(devices, run))

    def place(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """Run the task on what is there for it, as far as that pays."""
        if run.saving:
            return []
        task, there = run.task, self.usable(run)
        if run.ended_ms is not None:
            return self.spare_of(now_ms, run, there)
        more = [device for device in there if device not in run.devices]
        if not run.active:
            if len(there) < task.least:
                # Other tasks use the rest of what this demand holds.
                return self.ask_later(now_ms, run)
            return [*self.run_on(run, tuple(there[: task.most])), *self.spare_of(now_ms, run, there[task.most :])]
        room = task.most - len(run.devices)
        chosen = (*run.devices, *more[:room])
        if room > 0 and more and self.pays(now_ms, run, len(chosen)):
            return [*self.run_on(run, chosen), *self.spare_of(now_ms, run, more[room:])]
        return [*self.spare_of(now_ms, run, more), *self.narrow(now_ms, run)]

    def ask_later(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """Return what there is for a task that waits, and ask for it again after a while."""
        self._again_ms[run.number] = now_ms + BACKOFF_MS
        return [*self.give_back(self.usable(run)), *self.withdraw_of(run)]

    def run_on(self, run: TaskRun, devices: tuple[int, ...]) -> list[AgentAction]:
        """The task runs on these devices from now on."""
        self.waiting.pop(run.number, None)
        return [RunsOn(run, devices)]

    def spare_of(self, now_ms: int, run: TaskRun, devices: Sequence[int]) -> list[AgentAction]:
        return self.spare(now_ms, run, devices) if devices else []

    def usable(self, run: TaskRun) -> list[int]:
        """The devices for the task that stay."""
        return [device for device in self._devices_of(run) if device not in self._leaving]

    def _devices_of(self, run: TaskRun) -> list[int]:
        return [
            device for held in self.leases.values() for device in sorted(held.devices) if self._run_of[device] is run
        ]

    def give_back(self, devices: Sequence[int]) -> list[AgentAction]:
        """Return devices that no task uses, to whatever leases they belong."""
        gone = set(devices)
        actions: list[AgentAction] = []
        for held in list(self.leases.values()):
            if mine := tuple(sorted(held.devices & gone)):
                self.forget(held.id, mine)
                actions.append(AgentReturns(self.desk.agent, held.id, mine))
        return actions

    def _leave(self, now_ms: int, held: OwnLease, devices: Sequence[int], deadline_ms: int) -> list[AgentAction]:
        """These devices have to be returned by the deadline."""
        mine = [device for device in devices if device in held.devices]
        for device in mine:
            self._leaving[device] = deadline_ms
        runs = {self._run_of[device].number: self._run_of[device] for device in mine}
        used = {device for run in runs.values() for device in run.devices}
        actions = self.give_back([device for device in mine if device not in used])
        for run in runs.values():
            if run.saving or not set(mine) & set(run.devices):
                continue
            if run.unsaved(now_ms) and now_ms + run.task.checkpoint_ms <= deadline_ms:
                actions.append(Saves(run))
            else:
                actions += self._go_on(now_ms, run)
        return actions

    def _go_on(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """The task is saved, or cannot be: it goes on with the devices that stay, if they are enough."""
        there = self.usable(run)[: run.task.most]
        leaving = [device for device in run.devices if device in self._leaving]
        if len(there) >= run.task.least:
            return [*self.run_on(run, tuple(there)), *self.give_back(leaving), *self._widen(now_ms, run)]
        actions: list[AgentAction] = [Stops(run)] if run.active else []
        self.waiting[run.number] = run
        actions += self.give_back(self._devices_of(run))
        if self._demand_of[run.number] in self.open:
            return [*actions, *self._widen(now_ms, run)]
        if self._asked_ms[run.number] < now_ms:
            return [*actions, *self.ask(now_ms, run)]
        self._again_ms[run.number] = now_ms + BACKOFF_MS
        return actions

    def pays(self, now_ms: int, run: TaskRun, gpus: int) -> bool:
        """Whether to go on with so many GPUs ends the task early enough."""
        left, pause_ms = run.remaining(now_ms), 2 * run.task.restart_ms
        return left // len(run.devices) - left // gpus >= pause_ms

    def narrow(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """Ask for no more than the task has now."""
        number = self._demand_of[run.number]
        if number not in self.open or number in self._narrowed:
            return []
        self._narrowed.add(number)
        demand, gpus = self._demand(now_ms, run, number), len(run.devices)
        fewer = tuple(each for each in demand.wanted if each.most < gpus)
        left_ms = -(-run.remaining(now_ms) // gpus)
        return [self._changed(demand, (Wanted(gpus, gpus, left_ms, run.task.same_node), *fewer))]

    def _widen(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """Ask for all that the task can use again."""
        return self.change(now_ms, run) if self._demand_of[run.number] in self._narrowed else []

    def _demand(self, now_ms: int, run: TaskRun, number: int) -> LeaseDemand:
        task = run.task
        wanted, agent = self.wanted(now_ms, run), self.desk.agent
        return LeaseDemand(number, agent, now_ms, wanted, task.checkpoint_ms, task.restart_ms, task.deadline_ms)

    def change(self, now_ms: int, run: TaskRun) -> list[AgentAction]:
        """Replace the alternatives of the task's demand by `wanted`, if it is open."""
        number = self._demand_of[run.number]
        self._narrowed.discard(number)
        if number not in self.open:
            return []
        demand = self._demand(now_ms, run, number)
        return [self._changed(demand, demand.wanted)]

    def _changed(self, demand: LeaseDemand, wanted: tuple[Wanted, ...]) -> AgentChanges:
        return AgentChanges(replace(demand, wanted=wanted))

    def _set_end(self, now_ms: int, held: OwnLease, end_ms: int) -> None:
        held.end_ms = end_ms
        self._ending[held.id] = held
        held.renewal_ms = now_ms + (end_ms - now_ms) * RENEW_PERCENT // 100
        saving_ms = max(self._run_of[device].task.checkpoint_ms for device in held.devices)
        held.leave_ms = max(now_ms, end_ms - saving_ms)

    def _missing_ms(self, now_ms: int, held: OwnLease) -> int:
        """How much longer than the lease the tasks on it will run."""
        runs = {self._run_of[device].number: self._run_of[device] for device in held.devices}
        on_it = [run for run in runs.values() if not held.devices.isdisjoint(run.devices)]
        if held.end_ms is None or not on_it:
            return 0
        return max(1 if run.saving else run.end_ms(now_ms) - held.end_ms for run in on_it)

    def forget(self, lease: int, devices: Iterable[int]) -> None:
        """These devices of the lease are gone."""
        held = self.leases[lease]
        for device in devices:
            held.devices.remove(device)
            del self._run_of[device]
            self._leaving.pop(device, None)
        if not held.devices:
            del self.leases[lease]
            self._ending.pop(lease, None)
