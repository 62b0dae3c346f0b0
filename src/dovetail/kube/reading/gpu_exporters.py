# SPDX-License-Identifier: Apache-2.0
"""The exporters of a cluster's GPU nodes, read through the API server's proxy.

Rules
- The agent's pods are found by their label; where there are none, those of dcgm-exporter.
- All exporters are read at the same time, with a bound. One that does not answer does not delay the others: after
  `patience_s` their samples are used, its request goes on, and its node has the reason. After a failure it is read
  again later each time.
- An answer of more than MOST_BYTES is not read.
- The pods' jobs, queues and users come from the exporter's labels; where it has none, from the pods, which are listed
  every PODS_AGE_S: of a pod that our scheduler bound from its record, else from its labels and annotations.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import ApiError, Forbidden
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.pods import SchedulingGroup
from dovetail.kube.reading.exposition import parse
from dovetail.kube.reading.gpu_samples import NAMES, DeviceSample, devices_of
from dovetail.kube.translate.annotations import BOUND, options_of
from dovetail.kube.translate.bound import NOT_RECORDED, Bound

AGENTS, DCGM_EXPORTERS = "app.kubernetes.io/name=dovetail-agent", "app.kubernetes.io/name=dcgm-exporter"
PORT = 9400
MOST_BYTES = 16 << 20
PODS_AGE_S = 30.0
_TIMEOUT_S = 10.0
_AT_ONCE = 128
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_PARAMS = {"name[]": tuple(sorted(NAMES))}


class NodeSamples(Struct, frozen=True):
    """The devices of a node at a time (epoch seconds; 0 if it was never read). `fault` is why it could not be read now;
    then `devices` are the last ones."""

    node: str
    devices: tuple[DeviceSample, ...] = ()
    at_s: float = 0.0
    fault: str = ""


class Readings(Struct, frozen=True):
    """All nodes with an exporter, by name. `notes` are sentences about what could not be read."""

    nodes: tuple[NodeSamples, ...]
    notes: tuple[str, ...] = ()


class _Spec(Wire, frozen=True):
    node_name: str = ""
    scheduling_group: SchedulingGroup | None = None


class _Pod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()


class PodNames(Struct, frozen=True):
    """The job, queue and user of a pod; "" for one that is not known."""

    job: str
    queue: str
    user: str


class _Exporter(Struct):
    path: str
    samples: NodeSamples
    task: asyncio.Task[None] | None = None
    failures: int = 0
    next_s: float = 0.0
    refused: Forbidden | None = None


class GpuExporters:
    """Reads the exporters of a cluster again and again. `async with GpuExporters(config) as exporters:`"""

    def __init__(self, config: ClusterConfig, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._client = Client(config, concurrency=_AT_ONCE, user_agent="dovetail")
        self._timeout_s = timeout_s
        self._exporters: dict[str, _Exporter] = {}
        self._pods: dict[tuple[str, str], PodNames] = {}
        self._listed_s = float("-inf")
        self._note = ""

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [one.task for one in self._exporters.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.__aexit__(kind, error, trace)

    async def read(self, patience_s: float) -> Readings:
        """The samples of all nodes: what has come after `patience_s` at most. Raises KubeError if the pods of the
        exporters cannot be listed, and Forbidden if none of them may be read."""
        now_s = time.monotonic()
        if now_s - self._listed_s > PODS_AGE_S or not self._exporters:
            await self._discover()
            self._listed_s = now_s
        for one in self._exporters.values():
            if one.task is None and one.next_s <= now_s:
                one.task = asyncio.create_task(self._scrape(one))
        tasks = [one.task for one in self._exporters.values() if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        refusals = [one.refused for one in self._exporters.values()]
        if refusals and refusals[0] is not None and all(refusals):
            raise refusals[0]
        nodes = [self._named(one) for one in self._exporters.values()]
        return Readings(tuple(sorted(nodes, key=lambda one: one.node)), (self._note,) if self._note else ())

    async def _discover(self) -> None:
        for selector in (AGENTS, DCGM_EXPORTERS):
            listing = await list_all(self._client, PODS, _Pod, params={"labelSelector": selector})
            pods = {pod.spec.node_name: pod for pod in listing.objects.values() if pod.spec.node_name}
            if pods:
                break
        gone = self._exporters.keys() - pods.keys()
        for node in gone:
            if (task := self._exporters.pop(node).task) is not None:
                task.cancel()
        for node, pod in pods.items():
            path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}:{PORT}/proxy/metrics"
            if node not in self._exporters:
                self._exporters[node] = _Exporter(path, NodeSamples(node, fault="no answer yet"))
            self._exporters[node].path = path
        await self._list_pods()

    async def _list_pods(self) -> None:
        params = {"fieldSelector": "status.phase=Running"}
        try:
            listing = await list_all(self._client, PODS, _Pod, params=params)
        except Forbidden as error:
            self._note = f"jobs and queues are not known: {error}"
        else:
            self._pods = {key: _names_of(pod) for key, pod in listing.objects.items()}
            self._note = ""

    async def _scrape(self, exporter: _Exporter) -> None:
        before = exporter.samples
        try:
            body = await self._client.fetch(
                "GET", exporter.path, params=_PARAMS, accept="text/plain", most_bytes=MOST_BYTES,
                attempts=Attempts(timeout_s=self._timeout_s, retries=0),
            )  # fmt: skip
        except ApiError as error:
            exporter.refused = error if isinstance(error, Forbidden) else None
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**exporter.failures)
            exporter.failures += 1
            exporter.next_s = time.monotonic() + pause_s
            exporter.samples = NodeSamples(before.node, before.devices, before.at_s, str(error))
        else:
            devices = devices_of(parse(body.decode(errors="replace"), NAMES), before.node)
            exporter.failures, exporter.refused = 0, None
            exporter.samples = NodeSamples(before.node, tuple(devices), time.time())
        finally:
            exporter.task = None

    def _named(self, exporter: _Exporter) -> NodeSamples:
        samples = exporter.samples
        for device in samples.devices:
            for holder in device.holders:
                names = self._pods.get((holder.namespace, holder.pod))
                if not holder.job and names is not None:
                    holder.job, holder.queue, holder.user = names.job, names.queue, names.user
        if exporter.task is not None and not samples.fault:
            return NodeSamples(samples.node, samples.devices, samples.at_s, "no answer yet")
        return samples


def _names_of(pod: _Pod) -> PodNames:
    meta = pod.metadata
    bound = _bound_of(meta)
    options = options_of(meta)
    group = pod.spec.scheduling_group
    controller = next((one.name for one in meta.owner_references if one.controller), "")
    gang = bound.gang.rpartition("/")[2] or options.gang or (group.pod_group_name if group is not None else "")
    return PodNames(gang or controller or meta.name, bound.queue or options.queue, bound.user or options.user)


def _bound_of(meta: ObjectMeta) -> Bound:
    try:
        bound = decode_json(meta.annotations.get(BOUND, "{}"), Bound)
    except JsonError:
        return NOT_RECORDED
    return bound if bound.uid == meta.uid else NOT_RECORDED
