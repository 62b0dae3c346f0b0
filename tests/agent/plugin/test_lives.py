# SPDX-License-Identifier: Apache-2.0
"""Random lives of pods, devices, kubelet and agent: no device is allocated twice or lost, pods get the chosen ones."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from dovetail.agent.config import Config, Shared
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.offers import ResourceOffer
from tests.agent.agents import GPU, Node, host, running, unhealthy
from tests.agent.fake_kubelet import Pod, Rejected, pod
from tests.agent.plugin.killed import run

MIG = {card: [("1g.5gb", start, 1) for start in range(4)] + [("3g.20gb", 4, 4)] for card in (1, 3)}
WORLDS: dict[str, tuple[Config, Host]] = {
    "whole": (Config(), host(8)),
    "replicas": (Config(sharing={GPU: Shared("time-slicing", 3, False, f"{GPU}.shared")}), host(4)),
    "mixed": (Config(mig_strategy="mixed"), host(4, mig=MIG)),
}


class Life:
    """A scheduler that keeps one pod in flight, and what it has decided so far."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.chance = random.Random(seed)
        self.running: dict[str, tuple[Pod, str, Counter[str]]] = {}
        self.names = 0
        self.rejected = 0

    @property
    def offers(self) -> dict[str, ResourceOffer]:
        return self.node.plugins.offered

    def free(self, resource: str) -> Counter[str]:
        """How many devices of each part are healthy and not allocated."""
        offer = self.offers[resource]
        free = Counter(d.part for d in offer.devices.values() if d.healthy)
        for _, of, parts in self.running.values():
            if of == resource:
                free -= parts
        return free

    async def bind(self) -> None:
        resource = self.chance.choice(sorted(self.offers))
        free = sorted(self.free(resource))
        size = self.chance.randint(1, 4)
        if size > len(free):
            return
        parts = self.chance.sample(free, size)
        split = self.chance.randint(1, size)
        rest = [{resource: size - split}] if size > split else []
        init = {resource: self.chance.randint(1, size)} if self.chance.random() < 0.3 else None
        self.names += 1
        one = pod(f"p{self.names}", {resource: split}, devices=",".join(parts), containers=rest, init=init)
        try:
            allocated = (await self.node.run(one))[resource]
        except Rejected:
            # Not by anything that happens here: whatever the scheduler takes for free is.
            self.rejected += 1
            raise
        assert Counter(self.offers[resource].part(id) for id in allocated) == Counter(parts)
        self.running[one["metadata"]["uid"]] = (one, resource, Counter(parts))

    async def end(self) -> None:
        if self.running:
            self.node.end(self.running.pop(self.chance.choice(sorted(self.running)))[0])

    async def sicken(self) -> None:
        count = len(self.node.host.gpus)
        self.node.unhealthy = unhealthy(*self.chance.sample(range(count), self.chance.choice((0, 0, 1, 2))))
        await self.node.plugins.update(self.node.host, self.node.unhealthy)
        await self.node.ready()

    async def restart_kubelet(self) -> None:
        await self.node.kubelet.restart(kill=self.chance.random() < 0.5)
        await self.node.ready()

    async def restart_agent(self) -> None:
        await self.node.end_agent()
        await self.node.begin_agent(unhealthy=self.node.unhealthy)
        await self.node.ready()

    def check(self) -> None:
        for resource, offer in self.offers.items():
            held = [id for ids in self.node.kubelet.held(resource).values() for id in ids]
            assert len(held) == len({*held}), "a device was allocated twice"
            known = self.node.kubelet.listed(resource)
            assert {*known} == {*offer.devices}, "a device was lost"
            assert self.node.kubelet.capacity(resource) == (
                len(offer.devices),
                sum(device.healthy for device in offer.devices.values()),
            )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("world", WORLDS)
async def test_no_device_is_allocated_twice_or_lost_and_pods_get_the_chosen_ones(world: str, seed: int) -> None:
    config, of = WORLDS[world]
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        async with running(Path(folder), config, of) as node:
            life = Life(node, seed)
            steps = {life.bind: 12, life.end: 8, life.sicken: 3, life.restart_kubelet: 1, life.restart_agent: 1}
            for _ in range(60):
                (step,) = life.chance.choices(list(steps), list(steps.values()))
                await step()
                life.check()
            await node.settled(lambda: not any(p.unconfirmed(r) for p in node.chosen.pods for r in life.offers))
            assert node.plugins.differences == () and node.plugins.differed == 0
            assert life.names >= 8


@pytest.mark.slow
async def test_an_agent_that_is_killed_at_any_moment_gives_nothing_twice_and_loses_nothing() -> None:
    result = await run(rounds=25, seed=11)
    assert result.rounds == 25 and result.admitted > 0
