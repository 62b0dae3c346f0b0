# SPDX-License-Identifier: Apache-2.0
"""Repeats: reads the load of the engines, counts the replicas of each workload, and publishes them as metrics.

Rules
- What is not known has no metric: an autoscaler then leaves the workload as it is. A number of an earlier pass is
  withdrawn when a pass fails.
- The load of all workloads is one reading of the Prometheus, of their namespace alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct
from prometheus_client import Gauge

from dovetail.kube import probe_server
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.resources import Resource
from dovetail.kube.manifests.documents import Document
from dovetail.kube.reading.engines import read_engines
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from dovetail.monitoring.engine_load import EngineLoad
from dovetail.replicas import metrics
from dovetail.replicas.count import ReplicaCount, count_of
from dovetail.replicas.need import NeedTarget
from dovetail.replicas.workload import WorkloadError, read_workload
from dovetail.views.engines import loads_of

_NUMBERS: tuple[tuple[str, Gauge], ...] = (
    ("current", metrics.CURRENT), ("waiting", metrics.WAITING), ("needed", metrics.NEEDED),
    ("placeable", metrics.PLACEABLE), ("desired", metrics.DESIRED),
)  # fmt: skip


class ReplicasAsked(Struct, frozen=True):
    """The workloads of a namespace, by kind and name, and the Prometheus that has the metrics of their engines."""

    namespace: str
    workloads: tuple[tuple[Resource, str], ...]
    target: NeedTarget
    prometheus: PrometheusAccess


async def counted(config: ClusterConfig, asked: ReplicasAsked) -> tuple[ReplicaCount, ...]:
    """The replicas of all workloads, once. Raises WorkloadError, KubeError."""
    async with Client(config, user_agent="dovetail-replicas") as client:
        loads, promised = await _loads(asked), list[Document]()
        return tuple([
            await count_of(
                client, await read_workload(client, kind, asked.namespace, name), loads, asked.target, promised
            )
            for kind, name in asked.workloads
        ])  # fmt: skip


async def run(config: ClusterConfig, asked: ReplicasAsked, listen: str, every_s: float) -> None:
    """Publish them every `every_s` until cancelled, at `listen` (HOST:PORT). Raises OSError if the port is taken."""
    async with (
        Client(config, user_agent="dovetail-replicas") as client,
        probe_server.opened(listen, probe_server.plain_answers()),
    ):
        while True:
            await publish(client, asked)
            await asyncio.sleep(every_s)


async def publish(client: Client, asked: ReplicasAsked) -> None:
    """One pass."""
    try:
        loads = await _loads(asked)
    except KubeError as error:
        for kind, name in asked.workloads:
            _failed(kind, name, error)
        return
    promised: list[Document] = []
    for kind, name in asked.workloads:
        try:
            workload = await read_workload(client, kind, asked.namespace, name)
            _set(kind, name, await count_of(client, workload, loads, asked.target, promised))
        except (WorkloadError, KubeError) as error:
            _failed(kind, name, error)


async def _loads(asked: ReplicasAsked) -> Mapping[str, EngineLoad]:
    found = loads_of(await read_engines(asked.prometheus, asked.namespace))
    return {one.name: one for one in found if one.kind == "replica" and one.engine}


def _set(kind: Resource, name: str, count: ReplicaCount) -> None:
    for field, gauge in _NUMBERS:
        value = getattr(count, field)
        if value is None:
            _withdraw(gauge, kind, name)
        else:
            gauge.labels(kind.kind, name).set(value)
    metrics.log.info("%s %s: %s needed, %s desired: %s", kind.kind, name, count.needed, count.desired, count.because)


def _failed(kind: Resource, name: str, error: Exception) -> None:
    metrics.ERRORS.labels(kind.kind, name).inc()
    metrics.log.warning("%s %s: no number until the next pass: %s", kind.kind, name, error)
    for _, gauge in _NUMBERS:
        _withdraw(gauge, kind, name)


def _withdraw(gauge: Gauge, kind: Resource, name: str) -> None:
    # `remove` raises for labels that have no value.
    gauge.labels(kind.kind, name)
    gauge.remove(kind.kind, name)
