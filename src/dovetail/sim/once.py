# SPDX-License-Identifier: Apache-2.0
"""The next step of a scheduler on a cluster as it stands: who of those that wait is placed, and what the others hear.

Rules: time is that of the cluster and does not run. Who would be asked to give way to others stays: who needs the room
waits for that, as on the cluster.
"""

from __future__ import annotations

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step, tell
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
        events, self._told = self._told, []
        tell(self.state, events, self.core_ms)
        # Canonical, as every way of looking has it: of equal nodes all take the same.
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
