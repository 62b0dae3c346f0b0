# SPDX-License-Identifier: Apache-2.0
"""`dovetail top --once` on a playground: as a table, as JSON, and where nodes or exporters are missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cli.top import sources
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.objects.views import GPU_HOLDERS, ViewDocument
from dovetail.kube.reading.views import ViewRequest
from dovetail.playground import Fault, Playground
from dovetail.views.held_types import HeldGpus, NodeGpus, NodeHolder
from dovetail.views.top_holders import NOT_MEASURED
from tests.kube.reading.test_gpu_exporters import agent, node, pod

PODS = (
    ("train-0", "n1", "0,1", "sm=90,tensor=70,dram=40,engine=99"),
    ("notebook", "n2", "0", "sm=0,tensor=0,dram=0,engine=0,pcie=0"),
)


class Cluster:
    """Two nodes of two GPUs, with two pods."""

    def __init__(self, kubeconfig: Path) -> None:
        self.playground = Playground(start_delay_s=0.0)
        self._kubeconfig = kubeconfig

    async def start(self) -> None:
        await self.playground.start()
        self.playground.kubeconfig(self._kubeconfig)
        for name in ("n1", "n2"):
            self.playground.put(node(name))
            self.playground.put(agent(name))
        for name, on, devices, load in PODS:
            document = pod(name, on, labels={"dovetail.dev/queue": "research"})
            document["metadata"]["annotations"] = {
                "dovetail.dev/devices": devices,
                "playground.dovetail.dev/gpu-load": load,
            }
            self.playground.store.put_raw("pods", document)

    async def top(self, *arguments: str) -> Result:
        call = ["top", "--once", "--kubeconfig", str(self._kubeconfig), *arguments]
        return await asyncio.to_thread(CliRunner().invoke, cli, call)

    async def json(self, *arguments: str) -> dict[str, Any]:
        result = await self.top("-o", "json", *arguments)
        assert result.exit_code == 0, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    found = Cluster(tmp_path / "kubeconfig")
    await found.start()
    yield found
    await found.playground.stop()


async def test_each_gpu_is_a_line_with_its_pod_and_class(cluster: Cluster) -> None:
    result = await cluster.top()
    assert result.exit_code == 0
    heading, *lines, summary = result.stdout.splitlines()
    assert heading.split()[:5] == ["NODE", "GPU", "POD", "JOB", "@QUEUE"]
    assert [line.split()[:3] for line in lines] == [
        ["n1", "0", "default/train-0"], ["n1", "1", "default/train-0"], ["n2", "0", "default/notebook"],
        ["n2", "1", "free"],
    ]  # fmt: skip
    assert [line.split()[-1] for line in lines[:3]] == ["tensor-heavy", "tensor-heavy", "idle"]
    assert summary == "4 GPUs, 3 allocated, 2 computing, 1 allocated and idle, 0 unhealthy"


async def test_json_has_everything(cluster: Cluster) -> None:
    answer = await cluster.json("--by", "team")
    assert answer["summary"] == {
        "nodes": 2, "gpus": 4, "devices": 4, "allocated": 3, "computing": 2, "idleAllocated": 1, "unhealthy": 0,
        "unreadNodes": 0,
    }  # fmt: skip
    assert [(one["name"], one["gpus"], one["classes"]) for one in answer["groups"]] == [
        ("research", 3.0, [["tensor-heavy", 2], ["idle", 1]])
    ]
    assert answer["gpus"][0]["holders"][0]["pod"] == "default/train-0"


@pytest.mark.parametrize(("by", "expected"), [("job", ["default/notebook", "default/train-0"]), ("team", ["research"])])
async def test_jobs_and_teams_are_a_line_each(cluster: Cluster, by: str, expected: list[str]) -> None:
    result = await cluster.top("--by", by)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:-1]] == expected


async def test_a_filter_and_an_order(cluster: Cluster) -> None:
    result = await cluster.top("--filter", "research", "--sort", "use")
    assert [line.split()[2] for line in result.stdout.splitlines()[1:-1]] == [
        "default/train-0", "default/train-0", "default/notebook",
    ]  # fmt: skip


async def test_a_node_that_does_not_answer_is_named_with_the_reason(cluster: Cluster) -> None:
    cluster.playground.faults.add(Fault("answer", "GET", "pods/proxy", "agent-n2", status=502))
    result = await cluster.top()
    assert result.exit_code == 3
    assert "1 of 2 nodes do not answer" in result.stdout
    (fault,) = [line for line in result.stdout.splitlines() if line.startswith("node n2:")]
    assert "502" in fault


async def test_without_exporters_the_next_step_is_printed(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    try:
        path = playground.kubeconfig(tmp_path / "kubeconfig")
        call = ["top", "--once", "--kubeconfig", str(path)]
        result = await asyncio.to_thread(CliRunner().invoke, cli, call)
    finally:
        await playground.stop()
    assert result.exit_code == 0
    assert "kubectl apply -k deploy/agent" in result.stdout


@pytest.mark.slow
async def test_a_server_that_is_gone_is_one_line(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    path = playground.kubeconfig(tmp_path / "kubeconfig")
    await playground.stop()
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["top", "--once", "--kubeconfig", str(path)])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


NOT_YOURS = 'pods is forbidden: User "ada" cannot list resource "pods" in API group "" at the cluster scope'


async def test_to_a_user_without_rights_the_scheduler_answers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = (NodeHolder("default/train", "default/train", "ada", "q", 2, (0, 1), ()),)
    document = ViewDocument(answer=msgspec.Raw(msgspec.json.encode(HeldGpus(1, (NodeGpus("n1", "H100", 3, held),)))))

    async def read_view(_config: ClusterConfig, asked: ViewRequest) -> ViewDocument:
        assert (asked.resource, asked.namespace) == (GPU_HOLDERS, "default")
        return document

    monkeypatch.setattr(sources, "read_view", read_view)
    for refused in ("pods", "pods/proxy"):
        cluster.playground.faults.add(Fault("answer", "GET", refused, status=403, message=NOT_YOURS, times=2))
        result = await cluster.top()
        assert result.exit_code == 0, result.output
        assert [line.split()[:3] for line in result.stdout.splitlines()[1:4]] == [
            ["n1", "0", "default/train"], ["n1", "1", "default/train"], ["n1", "2", "free"],
        ]  # fmt: skip
        assert "3 GPUs, 2 allocated, 0 computing, 0 allocated and idle" in result.stdout
        assert f"attention: {NOT_MEASURED}" in result.stdout
        cluster.playground.faults.clear()


async def test_without_a_scheduler_both_reasons_are_named(cluster: Cluster) -> None:
    cluster.playground.faults.add(Fault("answer", "GET", "pods", status=403, message=NOT_YOURS))
    result = await cluster.top()
    assert result.exit_code == 1
    assert "user ada has no right to list pods" in result.output
    assert "the API server has no views.dovetail.dev/v1alpha1" in result.output
