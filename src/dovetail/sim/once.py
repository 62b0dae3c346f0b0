# SPDX-License-Identifier: Apache-2.0
"""One scheduling step on the current state of a cluster: the pods it places, and the reason for which each other waits.

Rules: the time is the cluster's and does not advance. Victims stay, as the eviction takes time on the cluster; the
preempting job waits. Requests for leases get offers, and no answer.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.core.bargaining.types import GpuLease, Offer
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, step
from dovetail.core.decisions import Bind, GrantLease, MakeOffers
from dovetail.core.policy import Policy, unhurried
from dovetail.sim.clock import RequestFate, Result
from dovetail.sim.engine import Simulation
from dovetail.sim.workload import Workload, gpu_milli


class Once(Simulation):
    def __init__(self, workload: Workload, policy: Policy, at_ms: int) -> None:
        super().__init__(workload, unhurried(policy))
        self._at_ms = at_ms

    @property
    def core_ms(self) -> int:
        return self._at_ms

    def wake_ms(self) -> int | None:
        return None

    def run(self, watch: Callable[[int], None] = lambda events: None, until_ms: int | None = None) -> Result:
        if not self.result.fates:
            # Without a pod that waits there is no event, but requests may wait.
            self.decide()
        return super().run(watch, until_ms)

    def decide(self) -> bool:
        events, self._events = self._events, []
        apply_events(self.state, events, self.core_ms)
        # A restored checkpoint has the canonical order, so that ties between nodes break as in every other dry run.
        self.state = restore(self.state.policy, take(self.state))
        offers: dict[str, tuple[Offer, ...]] = {}
        leases: dict[str, GpuLease] = {}
        for decision in step(self.state, (), self.core_ms):
            if isinstance(decision, MakeOffers):
                offers[decision.request] = decision.offers
            elif isinstance(decision, GrantLease):
                leases[decision.lease.id] = decision.lease
            elif isinstance(decision, Bind):
                fate, i = self._owner[decision.uid]
                pod = fate.job.pods[i]
                self.hold(fate, pod.uid, gpu_milli(pod.request), decision.node)
        for fate in self.result.fates:
            if fate.waiting:
                pod = fate.job.pods[0]
                fate.refusal = self.state.queue.refusal(self.state.workloads.workload_of(pod))
        self.result.requests = [
            RequestFate(one.request, offers.get(id_, ()), leases.get(id_), one.reported)
            for id_, one in self.state.requests.negotiations.items()
        ]
        return True
