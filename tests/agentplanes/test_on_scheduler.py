# SPDX-License-Identifier: Apache-2.0
"""Jobs on an endpoint, from the agent's kubeconfig to the end, with the scheduler that runs on clusters as the broker
and the playground as the host; with the command and kubectl, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from dovetail.agentplanes.facts import CarryLimits
from dovetail.agentplanes.serving import ServeOptions, run
from dovetail.apiserver.objects import Object, condition_of
from dovetail.kube.api.config import ClusterConfig
from dovetail.plane.kubernetes import KubernetesBroker
from tests.agentplanes.on_cluster import AGENT, carried, new_address, secret
from tests.agentplanes.world import job, template
from tests.apiserver.planes.certificates import self_signed
from tests.contract.api import Api
from tests.forked import Forked
from tests.patience import PATIENCE_S
from tests.scheduler.leased import LEASES, LeasedCluster
from tests.scheduler.scripted import until
from tools.controlplane import binaries

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def endpoint(cluster: LeasedCluster, folder: Path) -> AsyncIterator[Api]:
    """The process in this one, and a client with the agent's token."""
    options = ServeOptions(folder=folder, address=new_address(), listen="", limits=CarryLimits(logs_s=0))
    before = secret(cluster)
    task = asyncio.create_task(run(ClusterConfig(cluster.playground.url), options, KubernetesBroker))
    try:
        await until(lambda: secret(cluster) != before or task.done())
        headers = {"Authorization": f"Bearer {secret(cluster)['token']}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            yield Api(session, "default", secret(cluster)["server"])
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def listed(api: Api, plural: str) -> list[Object]:
    version = "batch/v1" if plural == "jobs" else "v1"
    items: list[Object] = (await api.get(api.path(plural, version=version))).body["items"]
    return items


async def when(api: Api, plural: str, holds: Any) -> list[Object]:
    """The objects, once this holds of them."""
    for _ in range(int(PATIENCE_S / 0.05)):
        found = await listed(api, plural)
        if holds(found):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError([one.get("status") for one in found])


def complete(jobs: list[Object]) -> bool:
    return all(condition_of(one, "Complete").get("status") == "True" for one in jobs)


async def test_a_job_leases_gpus_and_completes(tmp_path: Path) -> None:
    async with (
        LeasedCluster.opened(AGENT, backend="api", heartbeat="1s") as cluster,
        cluster.scheduler(),
        endpoint(cluster, tmp_path) as api,
    ):
        seen = set[str]()
        cluster.playground.store.collection(LEASES).listeners.append(lambda c: seen.add(c.object["metadata"]["name"]))
        await api.post(api.path("jobs", version="batch/v1"), job("train", 4, 0.2, pods=3))
        await when(api, "jobs", complete)
        pods = await listed(api, "pods")
        assert sorted(pod["status"]["phase"] for pod in pods) == ["Succeeded"] * 3
        assert {pod["spec"]["nodeName"] for pod in pods} == {"a", "b"}
        assert len(seen) == 1
        await until(lambda: not carried(cluster))
        (name,) = seen
        await until(lambda: cluster.state(AGENT, name) in ("Ended", ""))


async def test_what_the_host_lacks_is_shown_and_a_pod_starts_once_it_is_there(tmp_path: Path) -> None:
    async with (
        LeasedCluster.opened(AGENT, backend="api", heartbeat="1s") as cluster,
        cluster.scheduler(),
        endpoint(cluster, tmp_path) as api,
    ):
        await api.post(api.path("jobs", version="batch/v1"), job("large", 8, None, pods=3))
        await when(
            api,
            "pods",
            lambda pods: {condition_of(p, "PodScheduled").get("reason") for p in pods} == {"WaitingForLease"},
        )
        assert not carried(cluster)
        cluster.node("c")
        await when(api, "pods", lambda pods: [pod["status"]["phase"] for pod in pods] == ["Running"] * 3)


async def test_another_process_adopts_leases_and_pods(tmp_path: Path) -> None:
    async with LeasedCluster.opened(AGENT, backend="api", heartbeat="1s") as cluster, cluster.scheduler():
        async with endpoint(cluster, tmp_path) as api:
            await api.post(api.path("jobs", version="batch/v1"), job("serve", 2, None))
            await when(api, "pods", lambda pods: [pod["status"]["phase"] for pod in pods] == ["Running"])
        (before,) = carried(cluster)
        async with endpoint(cluster, tmp_path) as api:
            await asyncio.sleep(2)
            assert [pod["status"]["phase"] for pod in await listed(api, "pods")] == ["Running"]
            (after,) = carried(cluster)
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            await api.delete(api.path("jobs", "serve", version="batch/v1"), propagationPolicy="Background")
            await until(lambda: not carried(cluster))


@pytest.mark.plane
async def test_kubectl_and_the_command(tmp_path: Path) -> None:
    _, pem = self_signed(tmp_path)
    (tmp_path / "ca.pem").write_bytes(pem)
    async with LeasedCluster.opened(AGENT, backend="api", heartbeat="1s") as cluster, cluster.scheduler():
        kubeconfig = cluster.playground.kubeconfig(tmp_path / "host.yaml")
        pair = str(tmp_path / "pair.pem")
        command = Forked(
            "plane", "serve", f"--kubeconfig={kubeconfig}", f"--state={tmp_path / 'state'}", "--listen=",
            "--address=127.0.0.1:0", f"--tls-cert={pair}", f"--tls-key={pair}", f"--tls-ca={tmp_path / 'ca.pem'}",
        )  # fmt: skip
        try:
            await until(lambda: bool(secret(cluster)) or command.poll() is not None)
            (tmp_path / "agent.yaml").write_text(secret(cluster)["kubeconfig"])

            async def kubectl(*arguments: str, text: str = "") -> str:
                environment = os.environ | {"KUBECACHEDIR": str(tmp_path / "cache"), "KUBERC": "off"}
                process = await asyncio.create_subprocess_exec(
                    binaries.build(print) / "kubectl", f"--kubeconfig={tmp_path / 'agent.yaml'}", *arguments,
                    env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                output, _ = await process.communicate(text.encode())
                assert process.returncode == 0, output
                return output.decode()

            train = yaml.safe_dump(job("train", 2, 0.5))
            assert await kubectl("create", "-f-", text=train) == "job.batch/train created\n"
            await kubectl("wait", "--for=condition=Complete", "job/train", f"--timeout={PATIENCE_S:g}s")
            row = (await kubectl("get", "pods", "-o", "wide")).splitlines()[1].split()
            assert row[2] == "Completed" and row[6] in ("a", "b")
            bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}}
            bad["spec"] = template(1, None)["spec"] | {"hostPID": True}
            await kubectl("create", "-f-", text=yaml.safe_dump(bad))
            await kubectl(
                "wait", "pod/bad", "--for=jsonpath={.status.conditions[0].reason}=NotCarried", "--timeout=60s"
            )
            assert "spec.hostPID" in await kubectl("describe", "pod", "bad")
            assert "NotCarried" in await kubectl("get", "pod", "bad")
        finally:
            command.terminate()
            assert await command.ended() == 0
