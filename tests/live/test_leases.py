# SPDX-License-Identifier: Apache-2.0
"""Agents lease GPUs on the playground and on the real API server: there each part has the rights that deploy/ gives it,
and no others."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dovetail.agentplanes.serving import ServeOptions, run
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.errors import NotFound
from dovetail.plane import Option, on_cluster
from dovetail.plane.kubernetes import KubernetesBroker
from dovetail.playground.lending import definitions
from tests.agentplanes.world import job
from tests.contract.api import Api
from tests.live.conftest import Cluster, eventually
from tests.paths import ROOT

GROUP = "/apis/dovetail.dev/v1alpha1"
KIND = {"apiVersion": "dovetail.dev/v1alpha1"}
PROCESS = "dovetail-system:dovetail-agent-planes"


async def lend(cluster: Cluster, **spec: Any) -> str:
    """A node, and a control plane in the namespace of the test. Returns its id."""
    if cluster.playground is not None:
        for document in definitions(ROOT / "deploy/crds"):
            cluster.playground.put(document)
    await cluster.node("n")
    queue = {"kind": "Queue", "metadata": {"name": f"agents-{cluster.name}"}, "spec": {"planes": True}}
    await cluster.create(f"{GROUP}/queues", KIND | queue)
    plane = {"kind": "AgentControlPlane", "metadata": {"name": "a"}}
    spec = {"queue": f"agents-{cluster.name}", "heartbeat": "1s"} | spec
    await cluster.create(f"{GROUP}/namespaces/{cluster.namespace}/agentcontrolplanes", KIND | plane | {"spec": spec})
    return f"{cluster.namespace}/a"


def agent_kubeconfig(cluster: Cluster, request: pytest.FixtureRequest, folder: Path) -> str:
    """The kubeconfig of the agent; on the real API server with the rights of an agent in its namespace."""
    if cluster.playground is not None:
        cluster.playground.kubeconfig(folder / "kubeconfig")
        return str(folder / "kubeconfig")
    plane, role, where = request.getfixturevalue("deployed_plane"), "dovetail-software-agent", cluster.namespace
    plane.kubectl("create", "serviceaccount", "agent", f"--namespace={where}")
    bind_role(plane, where, role, f"{where}:agent")
    return str(plane.service_account_kubeconfig(where, "agent"))


def bind_role(plane: Any, namespace: str, role: str, account: str) -> None:
    """The account has the ClusterRole in the namespace, and in no other."""
    names = f"--clusterrole={role}", f"--serviceaccount={account}", f"--namespace={namespace}"
    plane.kubectl("create", "rolebinding", role, *names)


async def test_an_agent_negotiates_with_its_own_rights_and_its_pod_runs_in_the_lease(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    id_ = await lend(cluster)
    kubeconfig = agent_kubeconfig(cluster, request, tmp_path)
    async with cluster.scheduler():
        async with on_cluster(id_, kubeconfig=kubeconfig) as plane:
            async with plane.lease(Option(gpus=4, same_node=True, minutes=5)) as lease:
                assert len(lease.devices) == 4
                annotations = {"dovetail.dev/lease": lease.name, "dovetail.dev/lease-fence": str(lease.fence)}
                await cluster.pod("inside", 4, annotations=annotations)
                await cluster.pod("beside", 1)
                await eventually(cluster.bound, lambda bound: bound == {"inside": lease.devices[0].node})
                refused = "pods of a control plane get devices within a lease only"
                await eventually(
                    lambda: cluster.condition("beside"), lambda condition: refused in condition.get("message", "")
                )
            # The lease is over: its pod is deleted, and others may have the devices.
            await eventually(lambda: ended(cluster, "inside"), bool)
        control = f"{GROUP}/namespaces/{cluster.namespace}/agentcontrolplanes/a"
        found = await eventually(lambda: cluster.get(control), lambda found: found["status"].get("leases") == 0)
        assert found["status"]["phase"] == "Ready" and found["status"]["lastHeartbeat"]
        assert (await cluster.get(f"{GROUP}/namespaces/{cluster.namespace}/leaserequests"))["items"] == []


async def ended(cluster: Cluster, pod: str) -> bool:
    """Whether the pod is deleted, or is being deleted: where no kubelet is, it stays."""
    try:
        return "deletionTimestamp" in (await cluster.get(cluster.pods_path(pod)))["metadata"]
    except NotFound:
        return True


@pytest.mark.plane
async def test_jobs_of_an_endpoint_are_carried_with_the_rights_of_its_process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On the real API server alone: the playground allows everything."""
    plane = request.getfixturevalue("deployed_plane")
    config = load_config(str(plane.kubeconfig))
    scheduler = load_config(str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")))
    plane.kubectl("apply", "-f", "deploy/agent-planes/rbac.yaml")
    async with Client(config) as client:
        cluster = Cluster(client, scheduler, None)
        plane.kubectl("create", "namespace", cluster.namespace)
        bind_role(plane, cluster.namespace, "dovetail-agent-planes-namespace", PROCESS)
        await eventually(lambda: cluster.get(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default"), bool)
        id_ = await lend(cluster, backend="api")
        carrier = load_config(str(plane.service_account_kubeconfig(*PROCESS.split(":"))))
        options = ServeOptions(folder=tmp_path, address="127.0.0.1:0", listen="", plane=id_)
        async with cluster.scheduler():
            serving = asyncio.create_task(run(carrier, options, KubernetesBroker))
            try:
                path = f"/api/v1/namespaces/{cluster.namespace}/secrets/dovetail-agent-endpoint"
                secret = (await eventually(lambda: cluster.get(path), bool))["data"]
                server, token = (base64.b64decode(secret[key]).decode() for key in ("server", "token"))
                async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
                    api = Api(session, "default", server)
                    await api.create(api.path("jobs", version="batch/v1"), job("train", 2, 1.0))
                    await eventually(cluster.bound, lambda bound: len(bound) == 1)
                    pods = (await api.get(api.path("pods"))).body["items"]
                    assert [one["metadata"]["name"].rpartition("-")[0] for one in pods] == ["train"]
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
        await cluster.clean_up()
