# SPDX-License-Identifier: Apache-2.0
"""A cluster with planes, and the smallest driver of the broker: what is granted becomes true at once, the pods of a
lease that is over are gone after a moment, and every step is checked."""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.types import Answer, GpuLease, LeaseAction, LeaseAlternative, LeaseRequest, Offer, Plane
from dovetail.core.cycle import step
from dovetail.core.decisions import (
    Bind,
    Decision,
    EndLease,
    Evict,
    GrantLease,
    Hold,
    LeaseStatus,
    MakeOffers,
    RequestStatus,
    RevokeLease,
)
from dovetail.core.model import GPU, PODS, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.reasons import Refusal
from dovetail.core.state import State
from tests.core.gang_oracle import FABRIC, gpu_node

MINUTE = 60_000
POLICY = Policy(fabric=FABRIC, searches_per_step=64, tell_again_ms=0)


class Market:
    """`leases` are those that are live for the driver, `ended` why others are over, `offers` the outstanding ones by
    request, `states` the last reported state of each request with its refusal."""

    def __init__(self, *nodes: Node, policy: Policy = POLICY) -> None:
        self.state = State(policy)
        self.now_ms = 1
        self.last: list[Decision] = []
        self.leases: dict[str, GpuLease] = {}
        self.ended: dict[str, str] = {}
        self.offers: dict[str, tuple[Offer, ...]] = {}
        self.states: dict[str, tuple[str, Refusal | None]] = {}
        self.requests: dict[str, LeaseRequest] = {}
        self.revoked: dict[str, RevokeLease] = {}
        self.refused: dict[str, str] = {}
        self.bound: dict[str, Bind] = {}
        self._actions = 0
        self.at(1, *map(ev.NodeChanged, nodes), ev.QueueChanged(Queue("team", planes=True)))

    def plane(self, name: str = "a", **more: object) -> Plane:
        plane = Plane(f"{name}/{name}", **{"queue": "team", "heartbeat_ms": 0, "idle_ms": 0} | more)
        self.step(ev.PlaneChanged(plane))
        return plane

    def ask(
        self, name: str, *alternatives: LeaseAlternative, plane: str = "a", firm: bool = False, **more: object
    ) -> str:
        """A request; returns its id."""
        request = LeaseRequest(
            name, f"{plane}/{plane}", name, alternatives or (LeaseAlternative(),), firm, created_ms=self.now_ms, **more
        )
        self.requests[name] = request
        self.step(ev.LeaseRequestChanged(request))
        return name

    def answer(
        self, name: str, action: str = "accept", number: int = 0, counter: LeaseAlternative | None = None
    ) -> None:
        answer = Answer(self.offers[name][number].id, action, counter)
        self.requests[name] = replace(self.requests[name], answer=answer)
        self.step(ev.LeaseRequestChanged(self.requests[name]))

    def withdraw(self, name: str) -> None:
        del self.requests[name]
        self.offers.pop(name, None)
        self.step(ev.LeaseRequestRemoved(name))

    def act(self, name: str, action: str, until_ms: int = 0, fence: int | None = None) -> None:
        self._actions += 1
        fence = self.leases[name].fence if fence is None else fence
        self.step(ev.LeaseActed(LeaseAction(name, self._actions, fence, action, until_ms)))

    def pod(self, uid: str, lease: str, gpus: int = 1, plane: str = "a", **more: object) -> None:
        fence = self.leases[lease].fence if lease in self.leases else 0
        request = Request(((GPU, gpus),))
        self.step(ev.PodChanged(Pod(uid, plane, uid, request, **{"lease": lease, "fence": fence} | more)))

    def wait(self, ms: int) -> None:
        """Let time pass, with a step whenever one is due."""
        until_ms = self.now_ms + ms
        while (due_ms := self.state.next_wake_ms()) is not None and due_ms <= until_ms:
            self.at(max(due_ms, self.now_ms))
        self.at(until_ms)

    def step(self, *events: ev.Event) -> None:
        self.at(self.now_ms, *events)

    def at(self, now_ms: int, *events: ev.Event) -> None:
        """Steps until nothing is due any more."""
        self.now_ms, self.last = now_ms, []
        queued = list(events)
        for _ in range(1000):
            decisions = step(self.state, queued, now_ms)
            self.check()
            self.last += decisions
            queued = [event for decision in decisions for event in self._carry_out(decision)]
            if not queued and not self.state.busy and (self.state.next_wake_ms() or now_ms + 1) > now_ms:
                return
        raise AssertionError("the steps do not come to an end")

    def _carry_out(self, decision: Decision) -> list[ev.Event]:
        pods = self.state.workloads.pods
        match decision:
            case Bind():
                pod = pods[decision.uid]
                self.bound[decision.uid] = decision
                more = {"node": decision.node, "bound_ms": self.now_ms, "devices": decision.devices}
                return [ev.PodChanged(replace(pod, instances=decision.instances, recorded=True, **more))]
            case MakeOffers():
                self.offers[decision.request] = decision.offers
            case RequestStatus():
                self.states[decision.request] = decision.state, decision.refusal
                if decision.state != "Offered":
                    self.offers.pop(decision.request, None)
            case GrantLease():
                self.offers.pop(decision.lease.id, None)
                assert decision.lease.id not in self.leases
                self.leases[decision.lease.id] = decision.lease
            case LeaseStatus():
                self.leases[decision.lease.id] = decision.lease
                self.refused[decision.lease.id] = decision.refused
            case RevokeLease():
                self.revoked[decision.lease] = decision
            case EndLease():
                self.leases.pop(decision.lease, None)
                self.ended[decision.lease] = decision.cause.value
                return [ev.PodRemoved(uid) for uid in decision.uids]
            case Evict():
                return [ev.PodRemoved(uid) for uid in decision.uids]
            case Hold():
                pass
        return []

    def check(self) -> None:
        """The books are sound: no device twice, and what each live lease holds is placed on its devices."""
        state, cluster = self.state, self.state.cluster
        assert cluster.check() == []
        there = [name for name, slot in cluster.nodes.slots.items() if cluster.nodes.records[slot] is not None]
        for live in state.leases.live.values():
            held: dict[str, set[int]] = {}
            for uid in [*live.whole, *live.inside]:
                placement = cluster.placements[uid]
                node = held.setdefault(cluster.nodes.names[placement.slot], set())
                assert node.isdisjoint(placement.devices)
                node.update(placement.devices)
            wanted: dict[str, set[int]] = {}
            for holding in live.lease.holdings:
                wanted.setdefault(holding.node, set()).update(holding.devices)
            assert all(held[node] == wanted[node] for node in wanted if node in there), live.lease.id
        for plane_id, request_id in state.requests.offered.items():
            assert state.requests.negotiations[request_id].request.plane == plane_id

    def free(self) -> int:
        """The GPUs that are free."""
        nodes = self.state.cluster.nodes
        return sum(int(nodes.gpu_free_bits[slot]).bit_count() for slot in nodes.slots.values())


def nodes(count: int = 2, gpus: int = 8) -> list[Node]:
    return [gpu_node(f"n{i}", gpus) for i in range(count)]


def plain_node(name: str, gpus: int) -> Node:
    return Node(name, ((GPU, gpus), (PODS, 99)))
