# SPDX-License-Identifier: Apache-2.0
"""Arrivals of single pods that never end: the core's placement under the virtual clock, without its queue.

Rules: each pod is placed on arrival, on the node that the core would choose, or is dropped. No pod waits and none is
evicted, so the core's queueing (`engine`) is skipped to save time. The result equals that of `Simulation` with
`patient=False`, except that dropped pods have no refusal.
"""

from __future__ import annotations

from dovetail.core.cluster import Cluster
from dovetail.core.events import NodeChanged
from dovetail.core.placing.pods import fill
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.policy import Policy
from dovetail.sim.clock import Fate, VirtualClock
from dovetail.sim.workload import SimJob, Workload


class PlacedAtOnce(VirtualClock):
    def __init__(self, workload: Workload, policy: Policy) -> None:
        """Raises ValueError if the workload has anything but nodes and single pods that never end."""
        super().__init__(workload)
        if workload.outages or workload.queues or any(map(_more_than_placed, workload.jobs)):
            raise ValueError(f"{workload.name}: only lone pods that stay and look at no others are placed at once")
        self.cluster = Cluster(policy.scoring, policy.fabric)
        self._rows = ScoreCache(self.cluster, policy.scoring)
        for event in workload.cluster:
            if not isinstance(event, NodeChanged):
                raise ValueError(f"{workload.name}: besides nodes there must be nothing before the first arrival")
            self.cluster.put_node(event.node)
        self._came: list[Fate] = []
        self._refused: set[int] = set()
        """Ids of the shapes that no longer fit on any node. Free room only shrinks, so none of them fits again."""

    def admit(self, fate: Fate) -> None:
        self._came.append(fate)

    def decide(self) -> bool:
        cluster, came = self.cluster, self._came
        self._came = []
        for fate in came:
            [pod] = fate.job.pods
            cluster.mix.see(pod)
            shape = cluster.shape_of(pod)
            if shape.id not in self._refused and fill(cluster, self._rows, shape, [pod], None):
                self.hold(fate, pod.uid, fate.milli, cluster.nodes.names[cluster.placements[pod.uid].slot])
            else:
                self._refused.add(shape.id)
                self.drop(fate)
        return bool(came)

    def discharge(self, fate: Fate) -> None:
        """Nothing to do: a dropped pod was never placed."""

    def node_down(self, name: str) -> None:
        raise AssertionError("no node fails")

    def node_up(self, name: str) -> None:
        raise AssertionError("no node fails")


def _more_than_placed(job: SimJob) -> bool:
    stays = job.gang is None and job.duration_ms is None
    return not stays or any(pod.request.scattered or pod.claims or pod.device_claims for pod in job.pods)
