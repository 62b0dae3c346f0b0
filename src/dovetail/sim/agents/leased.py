# SPDX-License-Identifier: Apache-2.0
"""Dovetail's own broker as a policy: the core negotiates leases with each agent through its own control plane.

Rules
- Each agent has a plane; all planes are leaves below one queue, those of a team below a queue of the team in that one,
  by weight. Usage counts half after an hour. Within a plane the shortest work goes first.
- A demand is a request. Of a task that runs on more or fewer GPUs each alternative is a range, from what the agent
  named down to the next smaller one, for the time that the smallest of the range takes: it starts on what is free.
- What a task could use beside what it has is a scavenger's request of its own: for at least as many GPUs as pay for the
  restart, and a quarter of what it lacks.
- The core treats time 0 as unknown, so its clock is one millisecond ahead.
- The core takes a lease back as a whole. Devices that an agent returns before are used by no other until its lease is
  over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import (
    Answer,
    GpuLease,
    Holding,
    LeaseAction,
    LeaseAlternative,
    LeaseRequest,
    Offer,
    Plane,
    ServiceClass,
)
from dovetail.core.cycle import step
from dovetail.core.decisions import Decision, GrantLease, LeaseStatus, MakeOffers, RequestStatus, RevokeLease
from dovetail.core.model import GPU, PODS, Node
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import When
from dovetail.core.state import State
from dovetail.sim.agents.protocol import (
    AgentAccepts,
    AgentAsks,
    AgentChanges,
    AgentDeclines,
    AgentRenews,
    AgentReturns,
    AgentWithdraws,
    Extends,
    Grants,
    LeaseDemand,
    Message,
    Proposal,
    Proposes,
    Refuses,
    RefusesRenewal,
    Revokes,
    Ruling,
    TakenBack,
)
from dovetail.sim.agents.tasks import AgentWorkload

_QUEUE = "agents"
_GRACE_MS = 120_000
_HALF_LIFE_MS = 3_600_000
_LEAST_PART = 4


class _Lease:
    """A live lease: the number of the world, the demand that it is for, and the devices that are not returned."""

    def __init__(self, number: int, demand: int, lease: GpuLease, devices: tuple[int, ...]) -> None:
        self.number, self.demand, self.lease, self.all, self.left = number, demand, lease, devices, set(devices)


class Leased:
    """The core, its time, and which of its leases is which of the world's."""

    def __init__(self, workload: AgentWorkload, policy: Policy | None = None) -> None:
        self.state = State(policy or Policy())
        self._first: dict[str, int] = {}
        at, events = 0, list[ev.Event]()
        for number, gpus in enumerate(workload.nodes):
            name = f"n{number}"
            self._first[name] = at
            at += gpus
            events.append(ev.NodeChanged(Node(name, ((GPU, gpus), (PODS, 110)))))
        events.append(ev.QueueChanged(Queue(_QUEUE, planes=True, half_life_ms=_HALF_LIFE_MS)))
        self._planes = [f"a{number}/a{number}" for number in range(len(workload.agents))]
        for plane, agent in zip(self._planes, workload.agents, strict=True):
            above = agent.team or _QUEUE
            if agent.team:
                # Of several agents of a team the first one has its weight.
                team = Queue(agent.team, _QUEUE, weight=agent.weight, planes=True, half_life_ms=_HALF_LIFE_MS)
                events.append(ev.QueueChanged(team))
            leaf = Plane(plane, above, agent.weight, heartbeat_ms=0, idle_ms=0, grace_ms=_GRACE_MS,
                         most_leases=10_000, most_requests=10_000)  # fmt: skip
            events.append(ev.PlaneChanged(leaf))
        self._demands: dict[int, LeaseDemand] = {}
        self._open: dict[int, LeaseRequest] = {}
        """By demand the request that waits for it."""
        self._demand_of: dict[str, int] = {}
        """The demand of each open request."""
        self._held: dict[int, int] = {}
        """How many devices were granted for each open demand."""
        self._later: list[ev.Event] = []
        self._leases: dict[int, _Lease] = {}
        self._by_id: dict[str, _Lease] = {}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._number = 0
        self._decide(0, events)

    def wake_ms(self) -> int | None:
        due_ms = self.state.next_wake_ms()
        return None if due_ms is None else due_ms - 1

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        return self._decide(now_ms, [event for message in messages for event in self._read(message)])

    def _decide(self, now_ms: int, events: list[ev.Event]) -> list[Ruling]:
        rulings: list[Ruling] = []
        due_ms = self.state.next_wake_ms()
        due = due_ms is not None and due_ms <= now_ms + 1
        while events or due or self.state.busy:
            for decision in step(self.state, events, now_ms + 1):
                rulings += self._ruled(decision)
            events, self._later, due = self._later, [], False
        return rulings

    def _read(self, message: Message) -> list[ev.Event]:
        match message:
            case AgentAsks(demand) | AgentChanges(demand):
                return self._ask(demand)
            case AgentAccepts(_, number, offer):
                return self._answered(number, "accept", offer)
            case AgentDeclines(_, number):
                return self._answered(number, "decline", 0)
            case AgentWithdraws(_, number):
                return self._closed(number)
            case AgentReturns(_, lease, devices) | TakenBack(_, lease, devices):
                return self._returned(lease, devices)
            case AgentRenews(_, number, ms):
                live = self._leases[number].lease
                until_ms = min(live.end_ms + ms, self.state.now_ms + live.alternative.duration_ms)
                return [ev.LeaseActed(LeaseAction(live.id, self._next(), live.fence, "renew", until_ms))]
        return []

    def _ask(self, demand: LeaseDemand) -> list[ev.Event]:
        """A demand is open, or is for something else now: one request waits for it."""
        before = self._open.pop(demand.id, None)
        self._demands[demand.id] = demand
        held = self._held.get(demand.id, 0)
        alternatives = _more(demand, held) if held else _ranges(demand)
        if not alternatives:
            return [ev.LeaseRequestRemoved(before.id)] if before is not None else []
        name = before.id if before is not None else f"{demand.id}.{self._next()}"
        shortest = min(one.most * one.ms for one in demand.wanted)
        request = self._open[demand.id] = LeaseRequest(
            name, self._planes[demand.agent], name, alternatives, created_ms=demand.at_ms + 1,
            grace_ms=demand.checkpoint_ms, startup_ms=demand.restart_ms, priority=-shortest.bit_length(),
        )  # fmt: skip
        self._demand_of[name] = demand.id
        return [ev.LeaseRequestChanged(request)]

    def _closed(self, number: int) -> list[ev.Event]:
        self._demands.pop(number, None)
        self._held.pop(number, None)
        request = self._open.pop(number, None)
        return [ev.LeaseRequestRemoved(request.id)] if request is not None else []

    def _answered(self, number: int, action: Literal["accept", "decline"], offer: int) -> list[ev.Event]:
        request = self._open.get(number)
        offers = self._offers.pop(request.id, ()) if request is not None else ()
        if request is None or offer >= len(offers):
            return []
        return [ev.LeaseRequestChanged(replace(request, answer=Answer(offers[offer].id, action)))]

    def _returned(self, number: int, devices: Sequence[int]) -> list[ev.Event]:
        known = self._leases.get(number)
        if known is None:
            return []
        gone = known.left.intersection(devices)
        known.left -= gone
        events: list[ev.Event] = []
        if not known.left:
            del self._leases[number]
            del self._by_id[known.lease.id]
            action = LeaseAction(known.lease.id, self._next(), known.lease.fence, "return")
            events += [ev.LeaseActed(action), ev.LeaseRequestRemoved(known.lease.id)]
        if gone and (demand := self._demands.get(known.demand)) is not None:
            self._held[demand.id] -= len(gone)
            events += self._ask(demand)
        return events

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ruled(self, decision: Decision) -> list[Ruling]:
        match decision:
            case GrantLease(lease):
                number = self._demand_of.pop(lease.id)
                demand = self._demands[number]
                known = _Lease(self._next(), number, lease, self._devices(lease.holdings))
                self._leases[known.number] = self._by_id[lease.id] = known
                held = self._held[number] = self._held.get(number, 0) + lease.alternative.count
                self._open.pop(number)
                if held < demand.most and not demand.same_node:
                    self._later += self._ask(demand)
                return [Grants(known.number, demand.agent, demand.id, known.all, lease.end_ms - 1)]
            case MakeOffers(request, offers, until_ms):
                self._offers[request] = offers
                demand = self._demands[self._demand_of[request]]
                proposals = tuple([_proposal(number, one) for number, one in enumerate(offers)])
                return [Proposes(demand.agent, demand.id, proposals, until_ms - 1)]
            case RevokeLease(lease_id, revocation):
                known = self._by_id[lease_id]
                agent, left = self._agent(known), tuple(sorted(known.left))
                cause = revocation.cause.value
                return [Revokes(known.number, agent, left, revocation.deadline_ms - 1, cause)]
            case LeaseStatus(lease, "Active", _, ""):
                known = self._by_id[lease.id]
                known.lease = lease
                return [Extends(known.number, self._agent(known), lease.end_ms - 1)]
            case LeaseStatus(lease, _, _, refused) if refused:
                known = self._by_id[lease.id]
                return [RefusesRenewal(known.number, self._agent(known), refused)]
            case RequestStatus(request, "Denied" | "Pending", refusal) if refusal is not None:
                number = self._demand_of.get(request, -1)
                found = self._demands.get(number)
                if refusal.when is When.NEVER and found is not None and not self._held.get(number):
                    self._later += self._closed(number)
                    return [Refuses(found.agent, number, str(refusal))]
        return []

    def _agent(self, known: _Lease) -> int:
        return self._planes.index(known.lease.plane)

    def _devices(self, holdings: Sequence[Holding]) -> tuple[int, ...]:
        return tuple([self._first[one.node] + gpu for one in holdings for gpu in one.devices])


def _ranges(demand: LeaseDemand) -> tuple[LeaseAlternative, ...]:
    """The alternatives of a task that waits."""
    wanted = demand.wanted
    if len(wanted) == 1 or demand.same_node:
        return tuple(
            [
                LeaseAlternative(
                    count=one.most,
                    least=one.most if one.same_node else one.least,
                    per_node=one.most if one.same_node else 1,
                    duration_ms=one.ms,
                )
                for one in wanted
            ]
        )
    last = len(wanted) - 2
    return tuple(
        [
            LeaseAlternative(count=one.most, least=fewer.most + (number < last), duration_ms=fewer.ms)
            for number, (one, fewer) in enumerate(pairwise(wanted))
        ]
    )


def _more(demand: LeaseDemand, held: int) -> tuple[LeaseAlternative, ...]:
    """What a task that runs on `held` GPUs could use beside them; nothing where no number of them pays."""
    work, room = demand.wanted[0].ms * demand.most, demand.most - held
    pays = [more for more in range(1, room + 1) if work // held - work // (held + more) >= 2 * demand.restart_ms]
    if not pays:
        return ()
    least = max(pays[0], room // _LEAST_PART)
    term_ms = work // (held + least)
    return (LeaseAlternative(count=room, least=least, duration_ms=term_ms, service=ServiceClass.SCAVENGER),)


def _proposal(number: int, offer: Offer) -> Proposal:
    what = offer.alternative
    return Proposal(number, what.count, offer.start_ms - 1, what.duration_ms, same_node=what.per_node == what.count)
