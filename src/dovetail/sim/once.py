# SPDX-License-Identifier: Apache-2.0
"""One scheduling step on the current state of a cluster: the pods it places, and the reason for which each other waits.

Rules: the time is the cluster's and does not advance. Victims stay, as the eviction takes time on the cluster; the
preempting job waits.
"""

from __future__ import annotations

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import apply_events, step
from dovetail.core.decisions import Bind
from dovetail.core.policy import Policy, unhurried
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

    def decide(self) -> bool:
        events, self._events = self._events, []
        apply_events(self.state, events, self.core_ms)
        # A restored checkpoint has the canonical order, so that ties between nodes break as in every other dry run.
        self.state = restore(self.state.policy, take(self.state))
        for decision in step(self.state, (), self.core_ms):
            if isinstance(decision, Bind):
                fate, i = self._owner[decision.uid]
                pod = fate.job.pods[i]
                self.hold(fate, pod.uid, gpu_milli(pod.request), decision.node)
        for fate in self.result.fates:
            if fate.waiting:
                pod = fate.job.pods[0]
                fate.refusal = self.state.queue.refusal(self.state.workloads.workload_of(pod))
        return True
