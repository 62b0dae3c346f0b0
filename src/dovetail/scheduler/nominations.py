# SPDX-License-Identifier: Apache-2.0
"""status.nominatedNodeName of pods for which others give way: set while their room is held, and taken back with it.

Rules: a nomination is ours where the pod carries the id of our decision and is not bound; those of other components
(an autoscaler's) are left alone. One of ours that nobody here holds is from a scheduler that ended before its
preemption did, and is cleared: it would keep room from others that nobody waits for. Most API servers clear it when
they bind the pod; where one does not, it is cleared afterwards.
"""

from __future__ import annotations

from dovetail.core.model import Pod
from dovetail.kube.api import resources as kinds
from dovetail.kube.translate.annotations import DECISION
from dovetail.scheduler import wire
from dovetail.scheduler.informers import Informers
from dovetail.scheduler.reporter import Reporter, StepReport

KEY = "nomination/{}"
"""The reporter's key of what is written of the pod with this uid."""


class Nominations:
    def __init__(self, mirror: Informers, reporter: Reporter, run_id: str) -> None:
        self._mirror = mirror
        self._reporter = reporter
        self._run_id = run_id
        self._held: set[str] = set()

    def put(self, uid: str, node: str, step: int) -> None:
        """In this step room was held for the pod on the node."""
        self._held.add(uid)
        self._write(uid, wire.nomination(uid, node, wire.decision_id(self._run_id, step)))

    def clear(self, uid: str) -> None:
        """What was held for the pod is given up."""
        self._held.discard(uid)
        self._write(uid, wire.nomination(uid, None))

    def bind_failed(self, uid: str) -> None:
        """The pod was not bound where its room was."""
        if uid in self._held:
            self.clear(uid)

    def seen(self, pod: Pod) -> None:
        """A pod as the API server has it now."""
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
        ref = self._mirror.feed.pod_ref(uid)
        if ref is not None:
            path = kinds.PODS.path(ref.namespace, ref.name, "status")
            self._reporter.put(KEY.format(uid), StepReport("nomination", "PATCH", path, body))
