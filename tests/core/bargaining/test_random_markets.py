# SPDX-License-Identifier: Apache-2.0
"""Random markets over virtual hours: planes that ask, answer, renew, return and fall silent, jobs beside them, nodes
that come and go, and a scheduler that begins anew from a checkpoint or from the objects alone."""

from __future__ import annotations

import random
from math import log

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.states import GpuLeaseState
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.checkpoint import restore, take
from dovetail.core.decisions import EndLease
from dovetail.core.queues.types import DEFAULT_HALF_LIFE_MS, Queue
from dovetail.core.state import State
from tests.breadth import BREADTH, seeds
from tests.core.bargaining.market import MINUTE, POLICY, Market
from tests.core.gang_oracle import gpu_node, gpu_pod

PLANES = ("a", "b", "c")
NODES = [gpu_node(f"n{i}", 4, "z", f"r{i // 2}") for i in range(4)]
LN2 = log(2)


class RandomMarket(Market):
    """`used` is the usage of each plane in milli-GPU times ms, worked out from what its pods hold as time passes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.used = dict.fromkeys(PLANES, 0.0)
        self.count = 0
        self.jobs: list[str] = []
        self.inside: list[str] = []
        super().__init__(*NODES, policy=replace(POLICY, offer_ms=10_000))
        self.step(ev.QueueChanged(Queue("jobs", guarantee=(("gpu", 4000),))))
        for name in PLANES:
            self.plane(name, heartbeat_ms=0, grace_ms=MINUTE, idle_ms=20 * MINUTE, most_leases=3, most_requests=4)

    def held_milli(self, name: str) -> int:
        cluster, queue = self.state.cluster, f"planes/{name}/{name}"
        of = self.state.shares.pod_queues.of
        placed = [p for p in cluster.placements.values() if p.pod.managed and of(p.pod) == queue and not p.pod.offered]
        return sum(1000 * len(one.devices) for one in placed)

    def at(self, now_ms: int, *events: ev.Event) -> None:
        ms = now_ms - self.now_ms
        decay = 2 ** (-ms / DEFAULT_HALF_LIFE_MS)
        for name in PLANES:
            whole = self.held_milli(name) * DEFAULT_HALF_LIFE_MS / LN2
            self.used[name] = self.used[name] * decay + whole * (1 - decay)
        leases = dict(self.leases)
        super().at(now_ms, *events)
        leases |= self.leases
        for decision in self.last:
            if isinstance(decision, EndLease) and (lease := leases.get(decision.lease)) is not None:
                missing_ms = max(0, MINUTE - (now_ms - lease.start_ms))
                if lease.alternative.service is not ServiceClass.SCAVENGER:
                    count = sum(len(one.devices) for one in lease.holdings)
                    self.used[lease.plane.partition("/")[0]] += 1000 * count * missing_ms

    def alternative(self) -> LeaseAlternative:
        chance = self.random
        per_node = chance.choice((1, 1, 2, 4))
        count = per_node * chance.randint(1, 4)
        return LeaseAlternative(
            count=count,
            least=per_node * chance.randint(1, count // per_node),
            per_node=per_node,
            within=chance.choice(((), (), ("rack",))),
            duration_ms=chance.randint(1, 40) * MINUTE,
            least_duration_ms=MINUTE,
            latest_ms=chance.choice((0, 0, self.now_ms + 30 * MINUTE)),
            service=chance.choice((ServiceClass.BURST, ServiceClass.BURST, ServiceClass.SCAVENGER)),
        )

    def one_act(self) -> None:
        chance = self.random
        act = chance.randrange(12)
        name = f"x{self.count}"
        self.count += 1
        if act <= 2:
            alternatives = [self.alternative() for _ in range(chance.randint(1, 4))]
            self.ask(name, *alternatives, plane=chance.choice(PLANES), firm=chance.random() < 0.4)
        elif act == 3 and self.offers:
            request = chance.choice(sorted(self.offers))
            action = chance.choice(("accept", "accept", "accept", "decline", "counter"))
            number = chance.randrange(len(self.offers[request]))
            self.answer(request, action, number, self.alternative())
        elif act == 4 and self.requests:
            self.withdraw(chance.choice(sorted(self.requests)))
        elif act == 5 and self.leases:
            lease = chance.choice(sorted(self.leases))
            until_ms = self.now_ms + chance.randint(1, 40) * MINUTE
            self.act(lease, chance.choice(("renew", "renew", "return")), until_ms)
        elif act == 6 and self.leases:
            lease = chance.choice(sorted(self.leases))
            plane = self.leases[lease].plane.partition("/")[0]
            self.pod(name, lease, chance.randint(1, 3), plane)
            self.inside.append(name)
        elif act == 7 and self.inside:
            self.step(ev.PodRemoved(self.inside.pop(chance.randrange(len(self.inside))), succeeded=True))
        elif act == 8:
            queue = chance.choice(("jobs", "default"))
            self.step(ev.PodChanged(gpu_pod(name, chance.randint(1, 4), queue=queue, created_ms=self.now_ms)))
            self.jobs.append(name)
        elif act == 9 and self.jobs:
            self.step(ev.PodRemoved(self.jobs.pop(chance.randrange(len(self.jobs))), succeeded=True))
        elif act == 10 and chance.random() < 0.1:
            node = chance.choice(NODES)
            self.step(ev.NodeChanged(replace(node, unschedulable=chance.random() < 0.5)))
        else:
            self.wait(chance.choice((1000, 20_000, MINUTE, 7 * MINUTE)))

    def begin_anew(self) -> None:
        """A new process goes on from a checkpoint."""
        self.state = restore(self.state.policy, take(self.state))
        self.at(self.now_ms)

    def check(self) -> None:
        super().check()
        state = self.state
        held: dict[tuple[str, int], str] = {}
        for live in state.leases.live.values():
            assert live.state is not GpuLeaseState.ENDED
            end_ms = state.leases.end_ms(live.lease.id)
            assert self.now_ms <= end_ms <= live.lease.end_ms
            for one in live.lease.holdings:
                for gpu in one.devices:
                    assert held.setdefault((one.node, gpu), live.lease.id) == live.lease.id, "two leases of a device"
        for plane_id, request_id in state.requests.offered.items():
            assert state.requests.negotiations[request_id].request.plane == plane_id
        for plane in state.requests.planes.values():
            assert len(state.leases.by_plane.get(plane.id, ())) <= plane.most_leases


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 4] if BREADTH == 1 else seeds(6))
def test_leases_end_devices_are_leased_once_and_what_is_held_is_charged(seed: int) -> None:
    market = RandomMarket(seed)
    for number in range(150):
        market.one_act()
        assert set(market.leases) == set(market.state.leases.live)
        if number % 50 == 49:
            market.begin_anew()
    for name in PLANES:
        charged = market.state.shares.accounts.of(f"planes/{name}/{name}").at(market.now_ms)
        assert charged == pytest.approx(market.used[name], rel=1e-6, abs=2000), name
    for lease in list(market.leases):
        market.wait(max(0, market.leases[lease].end_ms - market.now_ms) if lease in market.leases else 0)
    assert len(market.ended) > 3


def objects(market: Market) -> State:
    """What a new process knows that reads all objects: planes, requests, leases and pods."""
    state = market.state
    again = State(state.policy)
    events: list[ev.Event] = [ev.QueueChanged(queue) for queue in state.shares.read_queues()]
    events += [ev.NodeChanged(node) for node in state.cluster.nodes.records if node is not None]
    events += [ev.PlaneChanged(plane) for plane in state.requests.planes.values()]
    events += [ev.PodChanged(pod) for uid, pod in state.workloads.pods.items() if not uid.startswith("lease/")]
    events += [ev.LeaseChanged(live.lease) for live in state.leases.live.values()]
    market.state = again
    market.at(market.now_ms, *events)
    return again


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
def test_a_process_that_reads_all_objects_has_the_same_leases(seed: int) -> None:
    market = RandomMarket(seed)
    for _ in range(80):
        market.one_act()
    before = {key: (one.lease, set(one.inside)) for key, one in market.state.leases.live.items()}
    again = objects(market)
    after = {key: (one.lease, set(one.inside)) for key, one in again.leases.live.items()}
    assert after == before
    market.wait(2 * 3_600_000)
    assert not again.leases.live
