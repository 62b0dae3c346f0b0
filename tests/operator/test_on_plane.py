# SPDX-License-Identifier: Apache-2.0
"""The operator on a real API server with its controllers, under exactly the role that deploy/operator gives it: what it
applies stays as it is, although that server fills in defaults, and goes again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.aggregated.registration import register
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.api.discovery import discover
from dovetail.operator import metrics
from dovetail.operator.kinds import OWNED
from dovetail.operator.rendering.stack_objects import MANAGED_BY
from dovetail.operator.run import OperatorOptions, parts, run
from dovetail.operator.views import state
from dovetail.scheduler.view_process import VIEWS
from tests.patience import PATIENCE_S
from tools.controlplane.credentials import Authority
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane
Document = dict[str, Any]
NAMESPACE = "dovetail-system"
PATH = "/apis/dovetail.dev/v1alpha1/gpustacks/dovetail"
STACK: Document = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "dovetail"}}
REST_S = 3.0
CLAIMS = {"state-dovetail-agent-planes-0", "history-dovetail-collector-0"}
RICH: Document = {
    "image": {"repository": "registry.example/dovetail", "pullSecrets": ["registry"]},
    "scheduler": {
        "fabric": ["example.com/row", "example.com/rack"], "divideMig": True, "replicas": 1,
        "resources": {"requests": {"cpu": "1500m", "memory": "1024Mi"}, "limits": {"memory": "4096Mi"}},
    },
    "history": {"enabled": True, "storage": "1Gi", "storageClass": "none"},
    "dashboard": {"enabled": True},
    "agentPlanes": {"enabled": True, "resources": {"requests": {"cpu": "0.5"}}},
    "agent": {
        "kubeletCertificate": True,
        "pools": [
            {
                "name": "notebooks", "nodeSelector": {"matchLabels": {"example.com/use": "notebooks"}},
                "sharing": {"strategy": "time-slicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
                "processes": True,
            },
            {
                "name": "mps", "nodeSelector": {"matchLabels": {"example.com/use": "mps"}},
                "sharing": {"strategy": "mps", "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
            },
            {
                "name": "mig", "nodeSelector": {"matchLabels": {"example.com/use": "mig"}},
                "mig": {"strategy": "mixed", "repartition": True},
            },
            {"name": "claims", "allocation": "DRA"},
        ],
    },
}  # fmt: skip


class Installed:
    """The admin's view of the plane."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def kubectl(self, *arguments: str, document: Document | None = None) -> str:
        return self.plane.kubectl(*arguments, input=json.dumps(document) if document is not None else None)

    async def ask(self, *arguments: str, document: Document | None = None) -> str:
        return await asyncio.to_thread(self.kubectl, *arguments, document=document)

    async def stack(self, spec: Document) -> None:
        await self.ask("replace" if await self.there() else "create", "-f", "-", document=STACK | {"spec": spec})

    async def get(self, path: str) -> Document | None:
        found: Document | None = await asyncio.to_thread(self.plane.get, path)
        return found

    async def there(self) -> bool:
        return await self.get(PATH) is not None

    async def status(self) -> Document:
        found = await self.get(PATH)
        assert found is not None
        status: Document = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    async def reason(self, kind: str) -> str:
        conditions = {one["type"]: one for one in (await self.status()).get("conditions", ())}
        return str(conditions.get(kind, {}).get("reason", ""))

    async def applied(self) -> None:
        await until(lambda: self.reason("Applied"), "Applied")

    async def claims(self) -> set[str]:
        """The claims of volumes."""
        found = await self.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims")
        return {one["metadata"]["name"] for one in (found or {}).get("items", ())}

    async def objects(self) -> dict[str, str]:
        """Resource version by name, of all that bears the operator's label; without what controllers write."""
        found: dict[str, str] = {}
        for resource in OWNED:
            listed = await self.get(f"{resource.path(None)}?labelSelector={'%3D'.join(MANAGED_BY)}")
            for one in listed["items"] if listed else ():
                mine = [e["time"] for e in one["metadata"]["managedFields"] if e["manager"] == "dovetail-operator"]
                found[f"{resource.kind} {one['metadata']['name']}"] = f"{one['metadata']['uid']} {mine}"
        return found

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[asyncio.Task[None]]:
        config = load_config(str(self.plane.service_account_kubeconfig(NAMESPACE, "dovetail-operator")))
        options = OperatorOptions(listen="", image="dovetail:0.1.0")
        running = asyncio.create_task(run(config, options, parts_of=parts))
        try:
            yield running
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def until(question: Callable[[], Any], wanted: Any) -> None:
    answer = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while (answer := await question()) != wanted:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.3)
            return
    raise AssertionError(f"it is {answer!r}, not {wanted!r}")


def applies() -> float:
    """The requests to apply an object, of this process."""
    return sum(
        sample.value
        for family in metrics.WRITES.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.labels["verb"] == "apply"
    )


async def at_rest(installed: Installed) -> dict[str, str]:
    """The objects, once the operator has written nothing, and asked for nothing to be written, for `REST_S`. What
    becomes due after it has reported Applied, as the revisions of a rollout, comes before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            count, before = applies(), await installed.objects()
            await asyncio.sleep(REST_S)
            if applies() == count and await installed.objects() == before:
                return before


@pytest.fixture(scope="module")
def installed(plane: Plane) -> Installed:
    plane.kubectl("apply", "-k", "deploy/crds")
    plane.kubectl("apply", "-k", "deploy/operator")
    return Installed(plane)


async def test_a_stack_on_a_real_api_server(installed: Installed) -> None:
    await installed.stack({})
    async with installed.operator():
        await installed.applied()
        # It comes to rest although the server has filled in defaults.
        before = await at_rest(installed)
        assert {"Deployment dovetail-scheduler", "DaemonSet dovetail-agent"} <= before.keys()
        await installed.stack(RICH)
        await installed.applied()
        rich = await at_rest(installed)
        assert {f"DaemonSet dovetail-agent-{name}" for name in ("notebooks", "mps", "mig", "claims")} <= rich.keys()
        assert "DaemonSet dovetail-agent" not in rich
        assert {"StatefulSet dovetail-agent-planes", "NetworkPolicy dovetail-agent-planes"} <= rich.keys()
        assert {"Deployment dovetail-dashboard", "ClusterRoleBinding dovetail-dashboard"} <= rich.keys()
        assert {"StatefulSet dovetail-collector", "ClusterRoleBinding dovetail-collector"} <= rich.keys()
        await until(installed.claims, CLAIMS)
    async with installed.operator():
        count = applies()
        await asyncio.sleep(REST_S)
        assert applies() == count and await installed.objects() == rich
        changed = '{"spec":{"template":{"spec":{"containers":[{"name":"agent","image":"evil"}]}}}}'
        await installed.ask("-n", "dovetail-agent", "patch", "daemonset", "dovetail-agent-mig", "-p", changed)

        async def image() -> str:
            found = await installed.get("/apis/apps/v1/namespaces/dovetail-agent/daemonsets/dovetail-agent-mig")
            return str(found and found["spec"]["template"]["spec"]["containers"][0]["image"])

        await until(image, "registry.example/dovetail:0.1.0")
        await installed.stack({})
        await installed.applied()
        again = await at_rest(installed)
        assert again.keys() == before.keys()
        assert await installed.claims() == CLAIMS, "what is in them is there when they are switched on again"
        await installed.ask("-n", NAMESPACE, "delete", "persistentvolumeclaims", "--all", "--wait=false")
        await installed.ask("delete", "gpustack", "dovetail", "--wait=false")
        await until(installed.there, False)
    assert await installed.objects() == {}


API = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.views.dovetail.dev"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/dovetail-views-ipv4"
NOBODY = "192.0.2.7"
"""An address at which nobody answers."""


async def test_views_that_nobody_answers(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are registered once a scheduler has written its address, and what it writes stays. While nobody answers the
    operator works, and no namespace ends, until the API is taken away. It comes back with the next scheduler."""
    certificate = Authority("views").pem.decode()

    async def trusted() -> tuple[Any, ...]:
        api, addresses = await installed.get(API) or {}, await installed.get(SLICE) or {}
        spec = api.get("spec", {})
        found = [one["addresses"] for one in addresses.get("endpoints") or ()]
        return spec.get("groupPriorityMinimum"), base64.b64decode(spec.get("caBundle", "")).decode(), found

    async def registered() -> bool:
        return await installed.get(API) is not None

    async def namespace() -> str:
        found = await installed.get("/api/v1/namespaces/views-end") or {"status": {"phase": "gone"}}
        conditions = {one["type"]: one["status"] for one in found["status"].get("conditions", ())}
        return f"{found['status']['phase']} {conditions.get('NamespaceDeletionDiscoveryFailure', '')}"

    async def views() -> str:
        found = await installed.get(PATH) or {}
        conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", ())}
        one = conditions.get("ViewsAvailable")
        return f"{one['status']} {one['reason']}" if one is not None else ""

    await installed.ask("create", "namespace", "views-end")
    await installed.stack({})
    async with installed.operator():
        await installed.applied()
        await at_rest(installed)
        # With the rights of the scheduler, which the operator has written.
        account = installed.plane.service_account_kubeconfig(NAMESPACE, "dovetail-scheduler")
        async with Client(load_config(str(account)), user_agent="dovetail-scheduler") as scheduler:

            async def lives() -> bool:
                return await register(scheduler, VIEWS, NAMESPACE, NOBODY, 10352, certificate)

            await until(views, "False NotRegistered")
            assert not await registered()
            await until(lives, True)
            before, count = await at_rest(installed), applies()
            for _ in range(3):
                assert await lives()
            await asyncio.sleep(REST_S)
            assert applies() == count and await installed.objects() == before
            patch = ("--type=merge", '-p={"spec":{"groupPriorityMinimum":999}}')
            await installed.ask("patch", "apiservice", "v1alpha1.views.dovetail.dev", *patch)
            await until(trusted, (1000, certificate, [[NOBODY]]))
            served = await discover(scheduler)
            assert served.failed == ("views.dovetail.dev/v1alpha1",)
            assert ("apps/v1", "deployments") in served.kinds
            assert await views() == "False Registering"
        await installed.ask("delete", "namespace", "views-end", "--wait=false")
        await until(namespace, "Terminating True")
    monkeypatch.setattr(state, "UNANSWERED_S", 2.0)
    monkeypatch.setattr(state, "PAUSE_S", 2.0)
    async with installed.operator():
        # It starts, and works, although the API does not answer.
        await until(registered, False)
        await until(views, "False NotAnswered")
        assert await installed.get(SLICE) is not None and (await trusted())[2] == []
        await until(namespace, "gone ")
        await installed.applied()
        monkeypatch.undo()
        async with Client(load_config(str(account)), user_agent="dovetail-scheduler") as scheduler:
            await until(lambda: register(scheduler, VIEWS, NAMESPACE, NOBODY, 10352, certificate), True)
        await installed.stack({"scheduler": {"views": False}})
        await until(registered, False)
        await until(views, "")
        await installed.ask("delete", "gpustack", "dovetail", "--wait=false")
        await until(installed.there, False)
    assert await installed.objects() == {}
    assert not await registered()
