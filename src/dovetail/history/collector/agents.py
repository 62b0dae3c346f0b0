# SPDX-License-Identifier: Apache-2.0
"""The agents of the nodes, and what each of them may report the use of.

Rules
- An agent is a running pod with the agent's label in the namespace of the agents. No other namespace counts: a user
  could give its pod that label.
- A node reports on GPUs that are or were its own, and on pods that were bound to it, for as long as agents keep hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field

from dovetail.history.records import HOUR_MS, HistoryBatch
from dovetail.kube.api.changes import Change
from dovetail.kube.objects.base import ObjectMeta, Wire

SELECTOR = "app.kubernetes.io/name=dovetail-agent"
PORT = 9400
_KEPT_MS = 26 * HOUR_MS
_EVERY = 4096


class _Spec(Wire, frozen=True):
    node_name: str = ""


class _Status(Wire, frozen=True):
    phase: str = ""
    pod_ip: str = field(default="", name="podIP")


class AgentInstance(Wire, frozen=True):
    """What is read of the pod of an agent."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def address(self) -> str:
        """Where it answers; "" while it does not run."""
        ip = self.status.pod_ip
        if self.status.phase != "Running" or not ip or not self.spec.node_name:
            return ""
        return f"http://[{ip}]:{PORT}" if ":" in ip else f"http://{ip}:{PORT}"


class Agents:
    """The addresses of the agents, by node. Changes of their pods come to `see`."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, str]] = {}

    def see(self, changes: Iterable[Change[AgentInstance]]) -> None:
        for change in changes:
            pod = change.object
            self._pods.pop(pod.metadata.uid, None)
            if change.kind != "deleted" and pod.address:
                self._pods[pod.metadata.uid] = pod.spec.node_name, pod.address

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where two agents run on a node, as while one is replaced, the newer one counts."""
        return dict(self._pods.values())


class Reported:
    """Which node may report on which GPUs and pods, from the records that are written."""

    def __init__(self) -> None:
        self._gpus: dict[str, dict[str, int]] = {}
        """By GPU: the nodes that have or had it, each with the time of its end, 0 while it has it."""
        self._pods: dict[str, tuple[str, int]] = {}
        """By pod: its node, and the time of its end, 0 while it is there."""
        self._added = 0

    def add(self, batch: HistoryBatch) -> None:
        for span in batch.spans:
            self._gpus.setdefault(span.gpu, {})[span.node] = span.end_ms
        for pod in batch.pods:
            if pod.node:
                self._pods[pod.uid] = pod.node, pod.ended_ms
        self._added += len(batch.pods) + len(batch.spans)
        if self._added >= _EVERY:
            self._added = 0
            self._forget(batch.until_ms - _KEPT_MS)

    def _forget(self, before_ms: int) -> None:
        self._pods = {uid: one for uid, one in self._pods.items() if not one[1] or one[1] >= before_ms}
        for gpu, nodes in list(self._gpus.items()):
            kept = {node: end_ms for node, end_ms in nodes.items() if not end_ms or end_ms >= before_ms}
            if kept:
                self._gpus[gpu] = kept
            else:
                del self._gpus[gpu]

    def may_use(self, node: str, gpu: str, pod_uid: str) -> bool:
        """Whether the node may report that the pod of this uid ("" for none) used this GPU."""
        return node in self._gpus.get(gpu, ()) and (not pod_uid or self._pods.get(pod_uid, ("", 0))[0] == node)
