# SPDX-License-Identifier: Apache-2.0
"""The world that agents share: the virtual clock, the leases, and the tasks that run on the devices of the leases.

Rules
- The clock jumps from event to event. Events at one time are handled in this order: ends of tasks, completed
  checkpoints, deadlines of leases and revocations, arrivals, reports of idle devices, wake-ups. Then messages and
  rulings go to and fro until there are none (`protocol`).
- A task runs on any devices that its agent holds. When the world takes a device, the task on it stops.
- After `until_ms` nothing arrives; the world goes on until all tasks are done or refused. Use is measured up to
  `until_ms`, completion of all tasks.
- Every `idle_ms` of a lease the policy hears which of its devices nothing has used for `idle_ms`.
The same workload, policy and agents give the same result on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from msgspec import Struct

from dovetail.sim.agents.actions import AgentAction, GivesUp, RunsOn, Saves, Stops
from dovetail.sim.agents.devices import node_of_devices
from dovetail.sim.agents.outcome import AgentOutcome, AgentUse
from dovetail.sim.agents.protocol import (
    AgentAsks,
    AgentChanges,
    AgentReturns,
    AgentWithdraws,
    BrokenProtocol,
    Extends,
    Grants,
    Idles,
    LeaseDemand,
    Message,
    Refuses,
    Revokes,
    Ruling,
    SharingPolicy,
    TakenBack,
)
from dovetail.sim.agents.task_run import TaskRun
from dovetail.sim.agents.tasks import AgentWorkload
from dovetail.sim.agents.truthful import Desk, Truthful

_END, _SAVED, _DEADLINE, _ARRIVAL, _IDLE, _WAKE = range(6)
IDLE_MS = 5 * 60_000
_MOST_ROUNDS = 10_000
"""Of messages and rulings at one time. More are an endless quarrel."""

MakeAgent = Callable[[Desk], Truthful]
"""Makes the loop of an agent."""
MakePolicy = Callable[[AgentWorkload], SharingPolicy]
"""Makes the policy for a workload."""


class _Lease(Struct):
    agent: int
    demand: int
    devices: set[int]
    end_ms: int | None


class AgentWorld:
    """`agents` makes the loop of each agent, by index; others are `Truthful`."""

    def __init__(
        self,
        workload: AgentWorkload,
        policy: SharingPolicy,
        agents: dict[int, MakeAgent] | None = None,
        idle_ms: int = IDLE_MS,
    ) -> None:
        self.workload, self.policy, self.now_ms = workload, policy, 0
        self.runs = [TaskRun(number, task) for number, task in enumerate(workload.tasks)]
        ids = count()
        makers = agents or {}
        self.loops = [
            makers.get(agent, Truthful)(Desk(agent, lambda: next(ids))) for agent in range(len(workload.agents))
        ]
        self.leases: dict[int, _Lease] = {}
        self.outcome = AgentOutcome(workload, self.runs, [AgentUse() for _ in workload.agents])
        self._node_of = node_of_devices(workload.nodes)
        self._lease_of: list[int | None] = [None] * workload.capacity
        self._task_on: list[int | None] = [None] * workload.capacity
        self._idle_since = [0] * workload.capacity
        self._idle_ms = idle_ms
        self._demands: dict[int, LeaseDemand] = {}
        self._granted: dict[int, int] = {}
        """The devices that each demand holds."""
        self._wanting = 0
        """The most GPUs of all tasks that wait."""
        self._accounted_ms = 0
        self._open = len(self.runs)
        self._agenda: list[tuple[int, int, int, int]] = [(run.task.at_ms, _ARRIVAL, run.number, 0) for run in self.runs]
        heapq.heapify(self._agenda)
        self._messages: list[Message] = []
        self._planned_ms = -1

    def run(self) -> AgentOutcome:
        """Until every task is done or refused. Raises BrokenProtocol."""
        heapq.heappush(self._agenda, (self.workload.until_ms, _WAKE, 0, 0))
        while self._agenda and (self._open or self.now_ms < self.workload.until_ms):
            at_ms = self._agenda[0][0]
            self._account(at_ms)
            self.now_ms = at_ms
            if at_ms == self.workload.until_ms:
                self.outcome.close_window([run.progress(at_ms) for run in self.runs])
            while self._agenda and self._agenda[0][0] == at_ms:
                _, kind, number, version = heapq.heappop(self._agenda)
                _HANDLERS[kind](self, number, version)
            self._wake_agents()
            self._converse()
            self._plan_wake()
        if self._open:
            waiting = [run.number for run in self.runs if run.ended_ms is None and not run.refused]
            raise BrokenProtocol(f"nothing happens any more, and {len(waiting)} tasks wait, the first is {waiting[0]}")
        self.outcome.ended_ms = self.now_ms
        return self.outcome

    # Events.

    def _arrive(self, number: int, version: int) -> None:
        run = self.runs[number]
        self._wanting += run.task.most
        self._act(run.task.agent, self.loops[run.task.agent].arrives(self.now_ms, run))

    def _end(self, number: int, version: int) -> None:
        run = self.runs[number]
        if run.version != version:
            return
        self.outcome.uses[run.task.agent].uses -= len(run.devices)
        self._leave(run.devices)
        run.end(self.now_ms)
        self._open -= 1
        self._act(run.task.agent, self.loops[run.task.agent].finished(self.now_ms, run))

    def _saved(self, number: int, version: int) -> None:
        run = self.runs[number]
        if run.version == version:
            run.complete_save(self.now_ms)
            self._act(run.task.agent, self.loops[run.task.agent].saved(self.now_ms, run))

    def _deadline(self, lease_id: int, device: int) -> None:
        """The lease has ended (`device` -1), or the revocation of one of its devices."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return
        if device < 0:
            if lease.end_ms != self.now_ms:
                return  # it was extended
            devices = tuple(sorted(lease.devices))
        elif device in lease.devices:
            devices = (device,)
        else:
            return
        stopped = {self._task_on[device]: None for device in devices if self._task_on[device] is not None}
        for number in stopped:
            assert number is not None
            self._stop(self.runs[number])
        self._release(lease_id, devices)
        self._messages.append(TakenBack(lease.agent, lease_id, devices))
        runs = [self.runs[number] for number in stopped if number is not None]
        self._act(lease.agent, self.loops[lease.agent].lost(self.now_ms, lease_id, devices, runs))

    def _idle(self, lease_id: int, version: int) -> None:
        lease = self.leases.get(lease_id)
        if lease is None:
            return
        idle = [device for device in sorted(lease.devices) if self._task_on[device] is None]
        idle = [device for device in idle if self._idle_since[device] <= self.now_ms - self._idle_ms]
        if idle:
            since_ms = max(self._idle_since[device] for device in idle)
            self._messages.append(Idles(lease.agent, lease_id, tuple(idle), since_ms))
        heapq.heappush(self._agenda, (self.now_ms + self._idle_ms, _IDLE, lease_id, 0))

    def _wake(self, number: int, version: int) -> None:
        """Agents and policy are asked at every event."""

    # Messages and rulings.

    def _wake_agents(self) -> None:
        for agent, loop in enumerate(self.loops):
            wake_ms = loop.wake_ms()
            if wake_ms is not None and wake_ms <= self.now_ms:
                self._act(agent, loop.wakes(self.now_ms))

    def _converse(self) -> None:
        wake_ms = self.policy.wake_ms()
        due = wake_ms is not None and wake_ms <= self.now_ms
        for _ in range(_MOST_ROUNDS):
            if not self._messages and not due:
                return
            messages, self._messages, due = self._messages, [], False
            rulings = self.policy.step(self.now_ms, messages)
            for ruling in rulings:
                self._carry_out(ruling)
            # An agent may return, for the first of these, what the second is about: it then hears of what is gone.
            for ruling in rulings:
                self._act(ruling.agent, self.loops[ruling.agent].decided(self.now_ms, ruling))
        raise BrokenProtocol(f"agents and policy do not come to an end at {self.now_ms} ms: {self._messages[:3]}")

    def _plan_wake(self) -> None:
        """The next time at which an agent or the policy wants to be asked, if nothing happens before."""
        times = [self.policy.wake_ms(), *(loop.wake_ms() for loop in self.loops)]
        next_ms = min((at_ms for at_ms in times if at_ms is not None and at_ms > self.now_ms), default=None)
        if next_ms is not None and next_ms != self._planned_ms and self._open:
            self._planned_ms = next_ms
            heapq.heappush(self._agenda, (next_ms, _WAKE, 0, 0))

    def _carry_out(self, ruling: Ruling) -> None:
        match ruling:
            case Grants():
                self._grant(ruling)
            case Revokes():
                for device in ruling.devices:
                    if self._lease_of[device] != ruling.lease:
                        raise BrokenProtocol(f"{ruling}: device {device} is not in the lease")
                    heapq.heappush(self._agenda, (ruling.deadline_ms, _DEADLINE, ruling.lease, device))
            case Extends():
                lease = self.leases[ruling.lease]
                lease.end_ms = ruling.end_ms
                heapq.heappush(self._agenda, (ruling.end_ms, _DEADLINE, ruling.lease, -1))
            case Refuses():
                self._demands.pop(ruling.demand)

    def _grant(self, grant: Grants) -> None:
        demand = self._demands.get(grant.demand)
        if demand is None or demand.agent != grant.agent:
            raise BrokenProtocol(f"{grant}: its agent has no such open demand")
        devices = set(grant.devices)
        if grant.lease in self.leases or len(devices) < len(grant.devices) or not devices:
            raise BrokenProtocol(f"{grant}: a lease is new, and has devices, each once")
        if any(self._lease_of[device] is not None for device in devices):
            raise BrokenProtocol(f"{grant}: a device is in another lease")
        held = self._granted.get(grant.demand, 0)
        if held + len(devices) < demand.least:
            raise BrokenProtocol(f"{grant}: {held + len(devices)} devices, and {demand.least} are the least")
        if demand.same_node and len({self._node_of[device] for device in devices}) > 1:
            raise BrokenProtocol(f"{grant}: the devices are not on one node")
        self._granted[grant.demand] = held + len(devices)
        if grant.settled:
            del self._demands[grant.demand]
        self.leases[grant.lease] = _Lease(grant.agent, grant.demand, devices, grant.end_ms)
        for device in grant.devices:
            self._lease_of[device], self._idle_since[device] = grant.lease, self.now_ms
        self.outcome.uses[grant.agent].holds += len(devices)
        heapq.heappush(self._agenda, (self.now_ms + self._idle_ms, _IDLE, grant.lease, 0))
        if grant.end_ms is not None:
            heapq.heappush(self._agenda, (grant.end_ms, _DEADLINE, grant.lease, -1))

    def _act(self, agent: int, actions: Iterable[AgentAction]) -> None:
        """Carry out what an agent does with its tasks, and pass on what it sends."""
        for action in actions:
            match action:
                case RunsOn(run, devices):
                    self._run(agent, run, devices)
                case Saves(run):
                    heapq.heappush(self._agenda, (run.save(self.now_ms), _SAVED, run.number, run.version))
                case Stops(run):
                    self._stop(run)
                case GivesUp(run):
                    run.refused = True
                    self._open -= 1
                    self._wanting -= run.task.most
                case _:
                    self._send(agent, action)

    def _send(self, agent: int, message: Message) -> None:
        if isinstance(message, AgentAsks | AgentChanges):
            demand = message.demand
            if isinstance(message, AgentChanges) and demand.id not in self._demands:
                return  # it was closed at this time
            self._demands[demand.id] = demand
        elif isinstance(message, AgentWithdraws):
            if self._demands.pop(message.demand, None) is None:
                return
        elif isinstance(message, AgentReturns):
            if any(self._task_on[device] is not None for device in message.devices):
                raise BrokenProtocol(f"{message}: a task runs on a returned device")
            self._release(message.lease, message.devices)
        self._messages.append(message)

    # Tasks and devices.

    def _run(self, agent: int, run: TaskRun, devices: tuple[int, ...]) -> None:
        task = run.task
        if task.agent != agent or not task.least <= len(devices) <= task.most or run.ended_ms is not None:
            raise BrokenProtocol(f"task {run.number} of agent {task.agent} cannot run on {devices} of agent {agent}")
        if task.same_node and len({self._node_of[device] for device in devices}) > 1:
            raise BrokenProtocol(f"task {run.number} needs one node, and {devices} are on more")
        for device in devices:
            lease = self._lease_of[device]
            if lease is None or self.leases[lease].agent != agent or self._task_on[device] not in (None, run.number):
                raise BrokenProtocol(f"task {run.number} cannot run on device {device}")
        was = run.devices
        if not was:
            self._wanting -= task.most
        run.run(self.now_ms, devices)
        self._leave([device for device in was if device not in devices])
        for device in devices:
            self._task_on[device] = run.number
        self.outcome.uses[agent].uses += len(devices)
        self.outcome.uses[agent].uses -= len(was)
        heapq.heappush(self._agenda, (run.end_ms(self.now_ms), _END, run.number, run.version))

    def _stop(self, run: TaskRun) -> None:
        if run.devices:
            self._leave(run.devices)
            self.outcome.uses[run.task.agent].uses -= len(run.devices)
            self._wanting += run.task.most
            run.stop(self.now_ms)

    def _leave(self, devices: Sequence[int]) -> None:
        for device in devices:
            self._task_on[device], self._idle_since[device] = None, self.now_ms

    def _release(self, lease_id: int, devices: Iterable[int]) -> None:
        lease = self.leases.get(lease_id)
        if lease is None or not set(devices) <= lease.devices:
            raise BrokenProtocol(f"lease {lease_id} does not hold {devices}")
        for device in devices:
            lease.devices.remove(device)
            self._lease_of[device] = None
            self._granted[lease.demand] -= 1
            self.outcome.uses[lease.agent].holds -= 1
        if not lease.devices:
            del self.leases[lease_id]

    def _account(self, at_ms: int) -> None:
        """Add up what was held, used and free since the last event."""
        lasted_ms = at_ms - self._accounted_ms
        self._accounted_ms = at_ms
        if not lasted_ms:
            return
        held = 0
        for use in self.outcome.uses:
            use.held += use.holds * lasted_ms
            use.idle += (use.holds - use.uses) * lasted_ms
            held += use.holds
        self.outcome.free_while_wanted += min(self.workload.capacity - held, self._wanting) * lasted_ms


_HANDLERS = (
    AgentWorld._end,
    AgentWorld._saved,
    AgentWorld._deadline,
    AgentWorld._arrive,
    AgentWorld._idle,
    AgentWorld._wake,
)
