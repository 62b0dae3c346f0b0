# SPDX-License-Identifier: Apache-2.0
"""Arrivals to which nothing ever happens again: the scheduler's own placing under the virtual clock, without its line.

Rules: lone pods come one after another; each is placed at once where the core would, or goes. So nobody waits, no queue
is due anything and nobody gives way, and what the core does for those who wait (`engine`) would only take time: the
result is the same as that of an impatient `Simulation`, save that who goes is not told why.
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
        """Raises ValueError where something else happens than that lone pods come to nodes."""
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
        """Shapes that fit nowhere any more, by id: room only becomes less."""

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
        """Who goes was never there."""

    def node_down(self, name: str) -> None:
        raise AssertionError("no node fails")

    def node_up(self, name: str) -> None:
        raise AssertionError("no node fails")


def _more_than_placed(job: SimJob) -> bool:
    stays = job.gang is None and job.duration_ms is None
    return not stays or any(pod.request.scattered or pod.claims or pod.device_claims for pod in job.pods)
