# SPDX-License-Identifier: Apache-2.0
"""Exporters that are read through the API server: one that hangs or fails delays none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.gpu_exporters import GpuExporters, Readings
from dovetail.playground import Fault, Playground

PATIENCE_S = 20.0


def node(name: str, gpus: int = 2) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": str(gpus)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def pod(name: str, on: str, namespace: str = "default", labels: dict[str, str] | None = None) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": {}}
    spec = {"nodeName": on, "containers": [{"name": "main", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def agent(on: str) -> dict[str, Any]:
    return pod(f"agent-{on}", on, "kube-system", {"app.kubernetes.io/name": "dovetail-agent"})


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    found = Playground(start_delay_s=0.0)
    await found.start()
    for name in ("n1", "n2", "n3"):
        found.put(node(name))
        found.put(agent(name))
    try:
        yield found
    finally:
        await found.stop()


async def test_all_nodes_are_read_with_their_gpus(playground: Playground) -> None:
    async with GpuExporters(ClusterConfig(playground.url)) as exporters:
        readings = await exporters.read(PATIENCE_S)
    assert [(one.node, len(one.devices), one.fault) for one in readings.nodes] == [
        ("n1", 2, ""), ("n2", 2, ""), ("n3", 2, ""),
    ]  # fmt: skip


async def test_an_exporter_that_hangs_delays_no_other(playground: Playground) -> None:
    playground.faults.add(Fault("delay", "GET", "pods/proxy", "agent-n2", delay_s=600))
    async with GpuExporters(ClusterConfig(playground.url)) as exporters:
        while True:
            readings = await asyncio.wait_for(exporters.read(0.05), PATIENCE_S)
            if all(one.at_s for one in readings.nodes if one.node != "n2"):
                break
    (slow,) = [one for one in readings.nodes if one.node == "n2"]
    assert (slow.fault, slow.devices) == ("no answer yet", ())


async def test_a_failed_exporter_keeps_its_last_sample_with_the_reason(playground: Playground) -> None:
    async with GpuExporters(ClusterConfig(playground.url)) as exporters:
        before = await exporters.read(PATIENCE_S)
        playground.faults.add(Fault("answer", "GET", "pods/proxy", "agent-n2", status=503))
        after = await exporters.read(PATIENCE_S)
        # It is not read again at once.
        again = await exporters.read(PATIENCE_S)
    assert [bool(one.fault) for one in after.nodes] == [False, True, False]
    assert "503" in after.nodes[1].fault
    assert after.nodes[1].at_s == before.nodes[1].at_s and after.nodes[1].devices
    assert again.nodes[1].fault == after.nodes[1].fault


async def test_dcgm_exporters_are_read_where_there_is_no_agent() -> None:
    """The playground simulates no dcgm-exporter; it answers for its pods that it does not."""
    playground = Playground()
    await playground.start()
    playground.put(node("n1"))
    playground.put(pod("dcgm-1", "n1", "default", {"app.kubernetes.io/name": "dcgm-exporter"}))
    try:
        async with GpuExporters(ClusterConfig(playground.url)) as exporters:
            readings = await exporters.read(PATIENCE_S)
    finally:
        await playground.stop()
    assert [one.node for one in readings.nodes] == ["n1"]
    assert "no server of this pod" in readings.nodes[0].fault


async def holders(playground: Playground) -> dict[str, tuple[str, str, str]]:
    async with GpuExporters(ClusterConfig(playground.url)) as exporters:
        readings: Readings = await exporters.read(PATIENCE_S)
    return {
        one.pod: (one.job, one.queue, one.user)
        for samples in readings.nodes
        for device in samples.devices
        for one in device.holders
    }


async def test_jobs_and_queues_come_from_the_pods(playground: Playground) -> None:
    labelled = pod("train-0", "n1", labels={"dovetail.dev/queue": "research"})
    labelled["metadata"]["annotations"]["dovetail.dev/devices"] = "1"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
    labelled["metadata"]["ownerReferences"] = [owner]
    playground.store.put_raw("pods", labelled)
    bound = pod("eval-0", "n2")
    bound["metadata"]["uid"] = "7"
    bound["metadata"]["annotations"] = {
        "dovetail.dev/devices": "0",
        "dovetail.dev/bound": '{"version":1,"uid":"7","queue":"product","user":"ann","gang":"podgroup/default/eval"}',
    }
    playground.store.put_raw("pods", bound)
    stolen = pod("thief", "n3")
    stolen["metadata"]["annotations"] = bound["metadata"]["annotations"]
    playground.store.put_raw("pods", stolen)
    assert await holders(playground) == {
        "train-0": ("train", "research", ""), "eval-0": ("eval", "product", "ann"), "thief": ("thief", "", ""),
    }  # fmt: skip


async def test_without_the_right_to_list_pods_the_jobs_are_unknown_and_this_is_noted(playground: Playground) -> None:
    async with GpuExporters(ClusterConfig(playground.url)) as exporters:
        # The first list is that of the agents.
        playground.faults.add(Fault("delay", "GET", "pods", delay_s=0.0))
        playground.faults.add(Fault("answer", "GET", "pods", status=403))
        readings = await exporters.read(PATIENCE_S)
    assert len(readings.nodes) == 3
    assert [note.partition(":")[0] for note in readings.notes] == ["jobs and queues are not known"]


async def test_a_long_answer_is_not_read(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.kube.reading.gpu_exporters.MOST_BYTES", 100)
    async with GpuExporters(ClusterConfig(playground.url)) as exporters:
        readings = await exporters.read(PATIENCE_S)
    assert all("more than 100 bytes" in one.fault for one in readings.nodes)
