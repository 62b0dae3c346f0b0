# SPDX-License-Identifier: Apache-2.0
"""What agents and a sharing policy send each other. One protocol serves policies that divide the GPUs at every event
and brokers that negotiate leases.

A policy is a `SharingPolicy`: `step(now_ms, messages)` returns decisions. It is called whenever there are messages, and
at `wake_ms()`. The world carries the decisions out at once, the agents answer at once, and `step` is called again with
their answers, at the same time, until nobody has anything to send. Then the clock goes on to the next event. Rulings of
one step cross with the answers to them: a ruling about a demand or devices that are gone by then has no effect.

The life of a demand

    AgentAsks --> Refuses                       it can never be met; the agent asks for less or drops the task
              --> Grants                        devices, from now on, until `end_ms` (None: without end)
              --> Proposes --> AgentAccepts --> Grants
                                                at the proposal's start, which may be later
                           --> AgentDeclines or no answer
                                                the proposals lapse at `until_ms`; the demand stays open
                           --> AgentCounters --> Proposes | Refuses
                                                with one alternative changed
    AgentChanges replaces the alternatives of an open demand, AgentWithdraws closes it.

A policy that only divides answers AgentAsks with Grants; it never proposes. The demand stays open and may be granted
more devices, up to its `most`, in further leases, or be granted again after all were revoked; the agent withdraws it at
the end of the task. A broker of leases sets `settled` in Grants: the demand is closed by the lease, and the agent asks
again if it needs more.

The life of a lease

    Grants --> AgentReturns                     all or some devices, at any time
           --> AgentRenews --> Extends | RefusesRenewal
                                                `end_ms` moves; refused, it stays
           --> Revokes --> AgentReturns | TakenBack
                                                the devices must be back by `deadline_ms`; then the world takes them,
                                                and what was not saved is lost
           --> (end_ms) --> TakenBack           the same, without Revokes

What the world guarantees: no device is in two leases; a first grant has at least the demand's `least` devices, all on
one node if it asks for that; a lease that has ended holds nothing. A policy that breaks one of these gets
`BrokenProtocol`, so a benchmark cannot count what is impossible.

What a policy knows: the messages. `Idles` is what the monitoring of the nodes reports, whatever the agent declares.
What it does not know: tasks. An agent may ask for what it does not need, and may use its devices for any of its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class BrokenProtocol(ValueError):
    """A policy, or an agent, did what the protocol does not allow."""


class Wanted(Struct, frozen=True):
    """One alternative of a demand: `least` to `most` GPUs for `ms` milliseconds."""

    least: int
    most: int
    ms: int
    same_node: bool = False


class LeaseDemand(Struct, frozen=True):
    """What an agent asks for: alternatives, the best first. `id` is unique among all agents.

    `checkpoint_ms` and `restart_ms` are what stopping and going on cost; `deadline_ms` is when the agent needs the work
    done, if it has a deadline."""

    id: int
    agent: int
    at_ms: int
    wanted: tuple[Wanted, ...]
    checkpoint_ms: int = 0
    restart_ms: int = 0
    deadline_ms: int | None = None

    @property
    def least(self) -> int:
        """The fewest GPUs of any alternative."""
        return min(each.least for each in self.wanted)

    @property
    def most(self) -> int:
        """The most GPUs of any alternative."""
        return max(each.most for each in self.wanted)

    @property
    def same_node(self) -> bool:
        return any(each.same_node for each in self.wanted)


# From agents to the policy.


class AgentAsks(Struct, frozen=True):
    demand: LeaseDemand


class AgentChanges(Struct, frozen=True):
    """The open demand of the same id has these alternatives from now on. It keeps its place."""

    demand: LeaseDemand


class AgentWithdraws(Struct, frozen=True):
    """The demand is closed. Devices that are held under it stay so until they are returned."""

    agent: int
    demand: int


class AgentAccepts(Struct, frozen=True):
    """Takes the proposal of this number; the others of the demand lapse."""

    agent: int
    demand: int
    number: int


class AgentDeclines(Struct, frozen=True):
    agent: int
    demand: int


class AgentCounters(Struct, frozen=True):
    """Asks for this instead of what was proposed."""

    agent: int
    demand: int
    wanted: Wanted


class AgentRenews(Struct, frozen=True):
    """Asks for a lease to end `ms` later."""

    agent: int
    lease: int
    ms: int


class AgentReturns(Struct, frozen=True):
    """The devices are free at once. A lease without devices is over."""

    agent: int
    lease: int
    devices: tuple[int, ...]


# From the world to the policy.


class TakenBack(Struct, frozen=True):
    """The world took the devices: the lease, or the deadline of its revocation, has ended. They are free."""

    agent: int
    lease: int
    devices: tuple[int, ...]


class Idles(Struct, frozen=True):
    """No task has run on these devices of the lease since this time, or for longer."""

    agent: int
    lease: int
    devices: tuple[int, ...]
    since_ms: int


Message = (
    AgentAsks
    | AgentChanges
    | AgentWithdraws
    | AgentAccepts
    | AgentDeclines
    | AgentCounters
    | AgentRenews
    | AgentReturns
    | TakenBack
    | Idles
)


# From the policy to agents.


class Proposal(Struct, frozen=True):
    """`gpus` GPUs from `start_ms` for `ms`. `revocable`: they may be revoked before that."""

    number: int
    gpus: int
    start_ms: int
    ms: int
    revocable: bool = False
    same_node: bool = False


class Proposes(Struct, frozen=True):
    """Proposals for one demand, which lapse at `until_ms`."""

    agent: int
    demand: int
    proposals: tuple[Proposal, ...]
    until_ms: int


class Grants(Struct, frozen=True):
    """A lease begins. `lease` is unique and grows. `settled`: the demand is closed by this."""

    lease: int
    agent: int
    demand: int
    devices: tuple[int, ...]
    end_ms: int | None = None
    revocable: bool = True
    settled: bool = False


class Extends(Struct, frozen=True):
    """The lease ends at `end_ms`."""

    lease: int
    agent: int
    end_ms: int


class RefusesRenewal(Struct, frozen=True):
    lease: int
    agent: int
    reason: str


class Refuses(Struct, frozen=True):
    """The demand is closed: no alternative of it can ever be met."""

    agent: int
    demand: int
    reason: str


class Revokes(Struct, frozen=True):
    """These devices of the lease must be returned by `deadline_ms`."""

    lease: int
    agent: int
    devices: tuple[int, ...]
    deadline_ms: int
    reason: str


Ruling = Proposes | Grants | Extends | RefusesRenewal | Refuses | Revokes


class SharingPolicy(Protocol):
    """Which agent gets which devices when."""

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        """What follows from the messages, and from the time."""

    def wake_ms(self) -> int | None:
        """When to call `step` again even without a message."""
