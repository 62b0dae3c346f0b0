# SPDX-License-Identifier: Apache-2.0
"""status.nominatedNodeName of preemptors: set while capacity is held for the pod, cleared when the hold ends.

Rules: a nomination is ours if the pod carries the id of our decision and is not bound; those of other components (an
autoscaler) are not touched. One of ours without a hold is from a scheduler that ended before its preemption did. It is
cleared, as it would block capacity for no pod. Most API servers clear the field when they bind the pod; where one does
not, it is cleared here.
"""

from __future__ import annotations

from dovetail.core.model import Pod
from dovetail.kube.api import resources as kinds
from dovetail.kube.informers import Informers
from dovetail.kube.translate.annotations import DECISION
from dovetail.scheduler import wire
from dovetail.scheduler.reporter import Reporter, StepReport

KEY = "nomination/"
"""The reporter's key for the nomination of a pod begins so; the pod's uid follows."""


class Nominations:
    def __init__(self, mirror: Informers, reporter: Reporter, run_id: str) -> None:
        self._mirror = mirror
        self._reporter = reporter
        self._run_id = run_id
        self._held: set[str] = set()

    def put(self, uid: str, node: str, step: int) -> None:
        """Nominate the pod to the node; `step` is the step of the decision that holds capacity there."""
        self._held.add(uid)
        self._write(uid, wire.nomination(uid, node, wire.decision_id(self._run_id, step)))

    def clear(self, uid: str) -> None:
        """Clear the nomination: the hold for the pod has ended."""
        self._held.discard(uid)
        self._write(uid, wire.nomination(uid, None))

    def bind_failed(self, uid: str) -> None:
        """Clear the nomination of a pod after its bind has failed."""
        if uid in self._held:
            self.clear(uid)

    def seen(self, pod: Pod) -> None:
        """Process the current state of a pod at the API server."""
        if pod.node:
            self._held.discard(pod.uid)
        if pod.nominated_node and pod.managed and pod.uid not in self._held and self._ours(pod):
            self.clear(pod.uid)

    def gone(self, uid: str) -> None:
        self._held.discard(uid)

    def _ours(self, pod: Pod) -> bool:
        known = self._mirror.pods.known.get((pod.namespace, pod.name))
        return known is not None and known.metadata.uid == pod.uid and DECISION in known.metadata.annotations

    def _write(self, uid: str, body: bytes) -> None:
        target = self._mirror.feed.reported(uid)
        if target is not None:
            path = kinds.PODS.path(target.namespace, target.name, "status")
            self._reporter.put(KEY + uid, StepReport("nomination", "PATCH", path, body))
