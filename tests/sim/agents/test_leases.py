# SPDX-License-Identifier: Apache-2.0
"""Agents under a broker of leases that proposes, grants, extends, refuses and revokes at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.sim.agents.devices import FreeDevices
from dovetail.sim.agents.lying import LIARS
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
    RefusesRenewal,
    Revokes,
    Ruling,
    TakenBack,
)
from dovetail.sim.agents.tasks import AgentTask, AgentWorkload
from dovetail.sim.agents.world import AgentWorld
from tests.sim.agents.small import TASKS, Watched, check_accounts, small

MOST_REVOCATIONS = 10


class RandomBroker:
    """Leases end after the time that was asked for, or half of it if a renewal is to be possible."""

    def __init__(self, work: AgentWorkload, seed: int) -> None:
        self.chance = Random(seed)
        self.free = FreeDevices(work.nodes, range(work.capacity))
        self.demands: dict[int, LeaseDemand] = {}
        self.proposed: dict[int, tuple[Proposal, ...]] = {}
        self.accepted: dict[int, Proposal] = {}
        self.leases: dict[int, tuple[int, set[int], int]] = {}
        self.made = 0
        self.revocations = 0
        self._wake_ms: int | None = None

    def wake_ms(self) -> int | None:
        return self._wake_ms

    def step(self, now_ms: int, messages: Sequence[Message]) -> list[Ruling]:
        rulings: list[Ruling] = []
        for message in messages:
            match message:
                case AgentAsks(demand) | AgentChanges(demand):
                    self.demands[demand.id] = demand
                case AgentWithdraws(_, number):
                    for table in (self.demands, self.proposed, self.accepted):
                        table.pop(number, None)  # type: ignore[attr-defined]
                case AgentAccepts(_, number, chosen):
                    [self.accepted[number]] = [each for each in self.proposed.pop(number) if each.number == chosen]
                case AgentDeclines(_, number):
                    self.proposed.pop(number, None)
                case AgentReturns(_, lease, devices) | TakenBack(_, lease, devices):
                    self.leases[lease][1].difference_update(devices)
                    self.free.add(devices)
                case AgentRenews(agent, lease, ms) if self.leases[lease][1]:
                    rulings.append(self._renewal(agent, lease, ms))
        for demand in list(self.demands.values()):
            rulings += self._serve(now_ms, demand)
        rulings += self._revoke(now_ms)
        waiting = bool(self.demands)
        self._wake_ms = now_ms + 5_000 if waiting else None
        return rulings

    def _renewal(self, agent: int, lease: int, ms: int) -> Ruling:
        _, devices, end_ms = self.leases[lease]
        if self.chance.random() < 0.5:
            return RefusesRenewal(lease, agent, "by chance")
        self.leases[lease] = agent, devices, end_ms + ms
        return Extends(lease, agent, end_ms + ms)

    def _serve(self, now_ms: int, demand: LeaseDemand) -> list[Ruling]:
        if demand.id in self.proposed:
            return []
        if demand.id in self.accepted:
            chosen = self.accepted[demand.id]
            if chosen.start_ms > now_ms:
                return []
            return self._grant(now_ms, demand, chosen.gpus, chosen.ms)
        proposals = tuple(
            Proposal(number, wanted.most, now_ms + self.chance.choice((0, 2_500)), wanted.ms)
            for number, wanted in enumerate(demand.wanted)
        )[:3]
        if self.chance.random() < 0.5:
            self.proposed[demand.id] = proposals
            return [Proposes(demand.agent, demand.id, proposals, now_ms + 15_000)]
        wanted = self.chance.choice(demand.wanted)
        return self._grant(now_ms, demand, wanted.most, wanted.ms)

    def _grant(self, now_ms: int, demand: LeaseDemand, gpus: int, ms: int) -> list[Ruling]:
        gpus = max(gpus, demand.least)
        devices = self.free.pick(gpus, gpus, same_node=demand.same_node)
        if not devices:
            # An accepted proposal that does not fit any more is asked about again.
            self.accepted.pop(demand.id, None)
            return []
        self.made += 1
        self.free.remove(devices)
        costs_ms = demand.checkpoint_ms + demand.restart_ms + 1_000
        end_ms = now_ms + max(costs_ms, ms if self.chance.random() < 0.5 else ms // 2)
        self.leases[self.made] = demand.agent, set(devices), end_ms
        for table in (self.demands, self.proposed, self.accepted):
            table.pop(demand.id, None)  # type: ignore[attr-defined]
        return [Grants(self.made, demand.agent, demand.id, devices, end_ms, settled=True)]

    def _revoke(self, now_ms: int) -> list[Ruling]:
        held = [(lease, agent, devices) for lease, (agent, devices, _) in self.leases.items() if devices]
        if not held or self.revocations == MOST_REVOCATIONS or self.chance.random() < 0.8:
            return []
        self.revocations += 1
        lease, agent, devices = self.chance.choice(held)
        some = tuple(sorted(self.chance.sample(sorted(devices), self.chance.randint(1, len(devices)))))
        return [Revokes(lease, agent, some, now_ms + self.chance.choice((0, 1_000, 20_000)), "by chance")]


@settings(max_examples=40)
@given(TASKS, st.integers(0, 10**6), st.sampled_from(["", *sorted(LIARS)]))
@pytest.mark.slow
def test_all_work_is_done_under_any_broker(tasks: list[AgentTask], seed: int, kind: str) -> None:
    work = small(*tasks, nodes=(4, 4), agents=3, until_ms=61_000)
    watched = Watched(RandomBroker(work, seed))
    liars = {0: LIARS[kind]} if kind else {}
    outcome = AgentWorld(work, watched, liars).run()
    check_accounts(outcome)
