# SPDX-License-Identifier: Apache-2.0
"""Agents lease GPUs on the playground and on the real API server: there each part has the rights that deploy/ gives it,
and no others."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dovetail.agentplanes.serving import ServeOptions, run
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig, load_config
from dovetail.kube.api.errors import ApiError, NotFound
from dovetail.kube.api.resources import LEASE_REQUESTS, Resource
from dovetail.plane import Option, on_cluster
from dovetail.plane.kubernetes import KubernetesBroker
from dovetail.playground.lending import definitions
from dovetail.scheduler import ordered_writes
from dovetail.scheduler.lease_api import LeaseApi
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


async def lease(cluster: Cluster, name: str) -> dict[str, Any]:
    """A GPULease of the test, {} for none."""
    try:
        return await cluster.get(f"{GROUP}/namespaces/{cluster.namespace}/gpuleases/{name}")
    except NotFound:
        return {}


def wanted(name: str, duration: str) -> dict[str, Any]:
    """A request for all GPUs of a node of the test."""
    alternative = {"count": 8, "perNode": 8, "duration": duration}
    spec = {"plane": "a", "firm": True, "alternatives": [alternative]}
    return KIND | {"kind": "LeaseRequest", "metadata": {"name": name}, "spec": spec}


ETCD_TAKES = 3 << 19
"""The most bytes of a request to etcd, with the key and what belongs to the transaction."""
EXPECTED = (ETCD_TAKES - 207, ETCD_TAKES - 192)
"""Sizes of an object of which etcd takes the first and not the second, as far as is known: each try has a price."""
LONG = ".".join(["p" * 60] * 4)
"""A prefix of labels. Few long ones fill an object with a tenth of the CPU time that many short ones need."""


async def fill(client: Client, path: str, document: dict[str, Any]) -> None:
    """Give the object as many labels as etcd takes, so that not 16 bytes more fit in."""
    # A label is `,"KEY":"VALUE"`. The managed fields, which have each key once more, are left out where it gets large.
    long, short = len(LONG) + 6 + 66, 3 + 66
    taken, refused, answers = ETCD_TAKES - 1_000, ETCD_TAKES, set()
    meta = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    others = len(json.dumps(document | {"metadata": meta}, separators=(",", ":")))
    expected = [*EXPECTED]
    while refused - taken >= 16:
        size = expected.pop(0) if expected and expected[0] < refused else (taken + refused) // 2
        more, rest = divmod(size - others, long)
        labels = {f"{LONG}/{n:05}": "v" * 60 for n in range(more)}
        labels |= {f"s{n:02}": "v" * 60 for n in range(rest // short)} | {"x" * 20: "v" * (rest % short // 2)}
        labels |= {"y": "v" * (rest % short - rest % short // 2)}
        meta = document["metadata"] | {"labels": labels}
        try:
            document = await client.request("PUT", path, document | {"metadata": meta}, decode=dict[str, Any])
            taken = size
        except ApiError as error:
            assert "request is too large" in error.message
            refused = size
        answers.add(taken == size)
    assert answers == {True, False}, "the size is between these"


@pytest.mark.plane
async def test_an_agent_that_fills_its_request_holds_up_no_lease_on_its_nodes(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No status fits into the request any more. The playground has no limit."""
    monkeypatch.setattr(ordered_writes, "_AGAIN_S", 0.05)
    monkeypatch.setattr(ordered_writes, "_MOST_REFUSALS", 2)
    filled, patch = asyncio.Event(), LeaseApi.patch

    async def late(self: LeaseApi, resource: Resource, *arguments: Any) -> str:
        if resource == LEASE_REQUESTS:
            await filled.wait()
        return await patch(self, resource, *arguments)

    # The scheduler reads only a request that is small, and its first status may come later than the agent's next write.
    monkeypatch.setattr(LeaseApi, "patch", late)
    plane = request.getfixturevalue("deployed_plane")
    config = load_config(str(plane.kubeconfig))
    scheduler = load_config(str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")))
    async with Client(config) as client:
        cluster = Cluster(client, scheduler, None)
        plane.kubectl("create", "namespace", cluster.namespace)
        await lend(cluster, heartbeat="0s")
        requests = f"{GROUP}/namespaces/{cluster.namespace}/leaserequests"
        kubeconfig = agent_kubeconfig(cluster, request, tmp_path)
        async with Client(load_config(kubeconfig)) as agent, cluster.scheduler():
            await agent.request("POST", requests, wanted("full", "2s"))
            await eventually(lambda: lease(cluster, "full"), bool)
            await fill(agent, f"{requests}/full", await cluster.get(f"{requests}/full"))
            filled.set()
            await agent.request("POST", requests, wanted("next", "1h"))
            found = await eventually(
                lambda: lease(cluster, "next"), lambda found: found.get("status", {}).get("state") == "Active"
            )
            assert {one["node"] for one in found["spec"]["devices"]} == {f"{cluster.name}-n"}
            assert "status" not in await cluster.get(f"{requests}/full")
        await cluster.clean_up()


@pytest.mark.plane
async def test_a_lease_whose_end_is_refused_by_admission_is_deleted_and_the_next_one_has_its_devices(
    request: pytest.FixtureRequest,
) -> None:
    plane = request.getfixturevalue("deployed_plane")
    config = load_config(str(plane.kubeconfig))
    scheduler = load_config(str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")))
    async with Client(config) as client:
        cluster = Cluster(client, scheduler, None)
        plane.kubectl("create", "namespace", cluster.namespace)
        await lend(cluster, heartbeat="0s")
        requests = f"{GROUP}/namespaces/{cluster.namespace}/leaserequests"
        plane.kubectl("apply", "-f", "-", input=_NO_END.replace("NAMESPACE", cluster.namespace))
        try:
            async with cluster.scheduler():
                await client.request("POST", requests, wanted("first", "1h"))
                await eventually(lambda: lease(cluster, "first"), lambda found: found.get("status"))
                first = await no_end(scheduler, f"{GROUP}/namespaces/{cluster.namespace}/gpuleases/first")
                await client.request("POST", requests, wanted("next", "1h"))
                returned = {"number": 1, "fence": first["spec"]["fence"], "action": "return"}
                path = f"{GROUP}/namespaces/{cluster.namespace}/gpuleases/first"
                await client.request("PATCH", path, {"spec": {"action": returned}}, content_type=MERGE_PATCH)
                found = await eventually(lambda: lease(cluster, "next"), bool)
                assert {one["node"] for one in found["spec"]["devices"]} == {f"{cluster.name}-n"}
                assert await lease(cluster, "first") == {}
        finally:
            plane.kubectl("delete", "-f", "-", input=_NO_END.replace("NAMESPACE", cluster.namespace))
        await cluster.clean_up()


async def no_end(scheduler: ClusterConfig, path: str) -> dict[str, Any]:
    """Wait until the policy is in force. Returns the lease."""
    async with Client(scheduler) as client:
        for _ in range(600):
            try:
                body = {"status": {"state": "Ended"}}
                await client.request(
                    "PATCH", f"{path}/status", body, content_type=MERGE_PATCH, params={"dryRun": "All"}
                )
            except ApiError as error:
                assert "nothing ever ends here" in error.message
                return await client.request("GET", path, decode=dict[str, Any])
            await asyncio.sleep(0.1)
    raise AssertionError("the policy is not in force")


_NO_END = """\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-end-NAMESPACE}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [dovetail.dev], apiVersions: ["*"], operations: [UPDATE], resources: [gpuleases/status]}
  validations:
    - expression: object.metadata.namespace != 'NAMESPACE' || object.status.state != 'Ended'
      message: nothing ever ends here
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-end-NAMESPACE}
spec: {policyName: no-end-NAMESPACE, validationActions: [Deny]}
"""


@pytest.mark.plane
async def test_jobs_of_an_endpoint_are_carried_with_the_rights_of_its_process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On the real API server alone: the playground allows everything."""
    plane = request.getfixturevalue("deployed_plane")
    config = load_config(str(plane.kubeconfig))
    scheduler = load_config(str(plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")))
    plane.kubectl("apply", "-f", "deploy/agent-planes/rbac.yaml", "-f", "deploy/agent-namespaces/role.yaml")
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
