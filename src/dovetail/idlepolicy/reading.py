# SPDX-License-Identifier: Apache-2.0
"""What is read of a cluster: which pods are idle, which workload made them, and whether all of its pods are.

Rules
- A node reports its own pods alone, and only a report counts that is at most `FRESH_MS` old: of a node that is away,
  or whose agent is, no pod is idle. A pod is idle since it was created at the earliest, whatever its node reports.
- The workload of a pod is the last of its controllers, from the pod up, that is in the table of kinds. Each of them has
  to be there under the uid that the reference has; references do not leave the namespace, and the API server takes any
  name in them. Where one is not, the pod has no workload: it gets a notice, and nothing is stopped.
- The pods of a workload are those that its kind's label or its selector finds, and the pod from which it was found has
  to be one of them. It is idle if each of them that holds GPUs, or waits for some, is.
- When its owner had a notice is in its annotation `dovetail.dev/idle-noticed`. An owner that writes another time there
  changes when its own workload is stopped, if it consents to that at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.idlepolicy.decision import IdleWorkload
from dovetail.idlepolicy.put_back import put_back
from dovetail.idlepolicy.stoppable import Stoppable, stoppable
from dovetail.jobs.kinds import Document, at, text_at
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import NotFound
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import GPU_NODES, NAME, PODS
from dovetail.kube.objects.base import ObjectMeta, OwnerReference, Wire, epoch_ms
from dovetail.kube.objects.holding import UNFINISHED, HoldingPod
from dovetail.kube.objects.topology import PodIdleSince
from dovetail.kube.translate.annotations import IDLE_NOTICED, options_of

FRESH_MS = 420_000
"""An agent writes its GPUNode every five minutes at least (docs/reference/gpunode.md)."""
_AHEAD_MS = 60_000
"""By how much the clock of a node may be ahead."""
_MOST_CONTROLLERS = 4
"""The worker of a LeaderWorkerSet: its StatefulSet, the leader, the leader's StatefulSet, the LeaderWorkerSet. No kind
of the table is further from its pods."""


class _Status(Wire, frozen=True):
    observed_time: datetime | None = None
    idle_pods: tuple[PodIdleSince, ...] = ()


class ReportingNode(Wire, frozen=True):
    """A GPUNode, as far as it reports idle pods."""

    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class PodsOwner(Struct, frozen=True):
    """What made a pod: its kind, its object, and the pods with GPUs that it has, by uid the time since which each is
    idle (0: it is not). A pod without one is its own workload: `kind` is None."""

    kind: Stoppable | None
    document: Document
    namespace: str
    name: str
    pods: tuple[HoldingPod, ...]
    since_ms: Mapping[str, int]
    when_idle: str

    @property
    def uid(self) -> str:
        return text_at(self.document, "metadata.uid")

    @property
    def put_back(self) -> bool:
        """Whether something else has started it again after a stop."""
        way = self.kind.way if self.kind is not None else None
        return way is not None and put_back(self.document, way.path) is not None

    def facts(self, now_ms: int, tried_ms: int = 0) -> IdleWorkload:
        """What the decision is about."""
        since = self.since_ms.values()
        since_ms = max(since) if since and all(since) else 0
        noticed_ms = _time_ms(at(self.document, "metadata.annotations"))
        consents = self.kind is not None and self.kind.consents(self.document, self.when_idle)
        return IdleWorkload(self.uid, since_ms, consents, noticed_ms, tried_ms)


Reports = Mapping[str, Mapping[str, int]]
"""By node and uid since when its pods are idle, in epoch ms."""


class ClusterReader:
    """Reads what a pass needs. All methods raise ApiError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def reports(self, now_ms: int) -> Reports:
        """Of all nodes whose report is fresh and has idle pods."""
        found = await list_all(self._client, GPU_NODES, ReportingNode)
        return {one.metadata.name: idle for one in found.objects.values() if (idle := _idle(one, now_ms))}

    async def reports_of(self, nodes: Iterable[str], now_ms: int) -> Reports:
        """Of these nodes, as the API server has them now."""
        found = {}
        for name in sorted(set(nodes) - {""}):
            try:
                one = await self._client.request("GET", GPU_NODES.path(None, name), decode=ReportingNode)
            except NotFound:
                continue
            found[name] = _idle(one, now_ms)
        return found

    async def pods_on(self, node: str) -> list[HoldingPod]:
        """The pods that hold devices of the node."""
        params = {"fieldSelector": f"spec.nodeName={node},{UNFINISHED}"}
        listed = await list_all(self._client, PODS, HoldingPod, params=params)
        return [pod for pod in listed.objects.values() if pod.holds and pod.metadata.deletion_timestamp is None]

    async def workload_of(self, pod: HoldingPod, reports: Reports) -> PodsOwner:
        """What made the pod, with all of its pods."""
        kind, document, namespace = None, None, pod.metadata.namespace
        reference = _controller(pod.metadata.owner_references)
        for _ in range(_MOST_CONTROLLERS):
            above = stoppable(reference.api_version.rpartition("/")[0], reference.kind) if reference else None
            if reference is None or above is None:
                break
            named = NAME.fullmatch(reference.name)
            found = await self._object(above, namespace, reference.name, reference.uid) if named else None
            if found is None:
                return _alone(pod, reports)
            kind, document = above, found
            reference = _controller(_references(found))
        if kind is None or document is None:
            return _alone(pod, reports)
        whole = await self._whole(kind, document, namespace, reports)
        return whole if pod.metadata.uid in whole.since_ms else _alone(pod, reports)

    async def again(self, workload: PodsOwner, reports: Reports) -> PodsOwner | None:
        """The workload as it is now; None where it is gone."""
        if workload.kind is None:
            return None
        found = await self._object(workload.kind, workload.namespace, workload.name, workload.uid)
        return await self._whole(workload.kind, found, workload.namespace, reports) if found is not None else None

    async def _object(self, kind: Stoppable, namespace: str, name: str, uid: str) -> Document | None:
        """The object of this name, if it has this uid."""
        try:
            path = kind.resource.path(namespace, name)
            found = await self._client.request("GET", path, decode=dict[str, Any])
        except NotFound:
            return None
        return found if uid and text_at(found, "metadata.uid") == uid else None

    async def _whole(self, kind: Stoppable, document: Document, namespace: str, reports: Reports) -> PodsOwner:
        selector, pods = kind.job.selector(document), list[HoldingPod]()
        if selector:
            params = {"labelSelector": selector, "fieldSelector": UNFINISHED}
            listed = await list_all(self._client, PODS.inside(namespace), HoldingPod, params=params)
            pods = [pod for pod in listed.objects.values() if pod.metadata.deletion_timestamp is None and pod.asks]
        keys = {key: at(document, f"metadata.{key}") or {} for key in ("labels", "annotations")}
        meta = msgspec.convert(keys, ObjectMeta)
        return PodsOwner(
            kind, document, namespace, text_at(document, "metadata.name"), tuple(pods),
            {pod.metadata.uid: idle_since_ms(pod, reports) for pod in pods}, options_of(meta).when_idle,
        )  # fmt: skip


def idle_since_ms(pod: HoldingPod, reports: Reports) -> int:
    """Since when the pod uses none of its GPUs, as its own node reports; 0 if it does, or if that is not known."""
    since_ms = reports.get(pod.spec.node_name, {}).get(pod.metadata.uid, 0)
    return max(since_ms, epoch_ms(pod.metadata.creation_timestamp)) if since_ms else 0


def _idle(node: ReportingNode, now_ms: int) -> dict[str, int]:
    age_ms = now_ms - epoch_ms(node.status.observed_time)
    if not -_AHEAD_MS <= age_ms <= FRESH_MS:
        return {}
    idle = {one.uid: epoch_ms(one.since) for one in node.status.idle_pods}
    return {uid: since_ms for uid, since_ms in idle.items() if 0 < since_ms <= now_ms}


def _alone(pod: HoldingPod, reports: Reports) -> PodsOwner:
    meta = pod.metadata
    return PodsOwner(
        None, {"metadata": {"uid": meta.uid}}, meta.namespace, meta.name, (pod,),
        {meta.uid: idle_since_ms(pod, reports)}, options_of(meta).when_idle,
    )  # fmt: skip


def _controller(references: Iterable[OwnerReference]) -> OwnerReference | None:
    return next((one for one in references if one.controller), None)


def _references(document: Document) -> tuple[OwnerReference, ...]:
    return msgspec.convert(at(document, "metadata.ownerReferences") or [], tuple[OwnerReference, ...])


def _time_ms(annotations: Any) -> int:
    """When the owner had a notice; 0 where that is not known."""
    text = annotations.get(IDLE_NOTICED, "") if isinstance(annotations, dict) else ""
    try:
        moment = datetime.fromisoformat(text[:32])
    except ValueError:
        return 0
    return epoch_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
