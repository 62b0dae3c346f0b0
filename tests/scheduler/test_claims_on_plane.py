# SPDX-License-Identifier: Apache-2.0
"""Claims whose parameters a patch would write anew, on a real API server, which takes that for a change of the spec."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.core.decisions import Bind
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.errors import AlreadyExists, Invalid
from dovetail.kube.api.resources import NAMESPACES, PODS, RESOURCE_CLAIMS
from dovetail.kube.objects.claims import ResourceClaim
from dovetail.scheduler import wire_claims
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.reservations import DeviceReservations
from dovetail.scheduler.wire_protobuf import with_finalizer
from tests.paths import ROOT
from tests.scheduler.claimed import grant
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane
DEPLOY = ROOT / "deploy"
RAW = '{ "b": 1.50,\n "a": "<&>" }'
CONFIG = f'"config": [{{"opaque": {{"driver": "gpu.example.com", "parameters": {RAW}}}}}]'
SPEC = f'{{"devices": {{"requests": [{{"name": "gpu", "exactly": {{"deviceClassName": "a"}}}}], {CONFIG}}}}}'


class Bench:
    """`client` has all rights, `scheduler` those of the role in deploy/."""

    def __init__(self, client: Client, scheduler: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.known: dict[tuple[str, str], ResourceClaim] = {}
        mirror: Any = SimpleNamespace(
            device_claims=SimpleNamespace(known=self.known),
            device_classes=SimpleNamespace(known={}),
        )
        self.reservations = DeviceReservations(scheduler, Clock(lambda: 1.0, lambda: 0.0), mirror, lambda: None)

    async def claim(self) -> ResourceClaim:
        kind = '"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"'
        body = f'{{{kind}, "metadata": {{"name": "c"}}, "spec": {SPEC}}}'
        path = RESOURCE_CLAIMS.path(self.namespace)
        return await self.client.request("POST", path, body.encode(), decode=ResourceClaim)

    async def pod(self, name: str) -> str:
        spec = {"containers": [{"name": "m", "image": "i"}], "automountServiceAccountToken": False}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        made = await self.client.request("POST", PODS.path(self.namespace), body, decode=dict[str, Any])
        return str(made["metadata"]["uid"])

    async def reserve(self, name: str, *, allocate: bool) -> ResourceClaim:
        path = RESOURCE_CLAIMS.path(self.namespace, "c")
        self.known[self.namespace, "c"] = await self.client.request("GET", path, decode=ResourceClaim)
        granted = grant("c")
        key = f"{self.namespace}/c"
        grants = (type(granted)(key, granted.allocation),) if allocate else ()
        bind = Bind(await self.pod(name), "n", 1, claims=grants, reserve=(key,))
        self.reservations.expect(bind)
        await self.reservations.reserve(bind, name, bind.uid)
        self.reservations.forget(bind)
        return await self.client.request("GET", path, decode=ResourceClaim)


@pytest.fixture
async def bench(plane: Plane) -> AsyncIterator[Bench]:
    namespace = f"written-{uuid.uuid4().hex[:10]}"
    for file in ("namespace.yaml", "rbac.yaml"):
        plane.kubectl("apply", "-f", str(DEPLOY / file))
    role = load_kubeconfig([plane.service_account_kubeconfig("dovetail-system", "dovetail-scheduler")])
    async with Client(load_kubeconfig([plane.kubeconfig])) as client, Client(role) as scheduler:
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await client.request("POST", NAMESPACES.path(), made)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with contextlib.suppress(AlreadyExists):
            await client.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        yield Bench(client, scheduler, namespace)


async def test_it_is_allocated_all_the_same(bench: Bench) -> None:
    made = await bench.claim()
    with pytest.raises(Invalid):
        path = RESOURCE_CLAIMS.path(bench.namespace, "c")
        body = wire_claims.with_finalizer(made.metadata)
        await bench.client.request("PATCH", path, body, content_type="application/merge-patch+json")
    claim = await bench.reserve("p", allocate=True)
    assert claim.metadata.finalizers == (wire_claims.FINALIZER,)
    assert [user.name for user in claim.status.reserved_for] == ["p"]
    assert claim.spec.devices.config[0].opaque.parameters == json.loads(RAW)
    again = await bench.reserve("q", allocate=False)
    assert [user.name for user in again.status.reserved_for] == ["p", "q"]


async def test_what_another_scheduler_has_allocated_is_shared(bench: Bench) -> None:
    await bench.claim()
    result = '{"request": "gpu", "driver": "gpu.example.com", "pool": "n", "device": "gpu-3"}'
    config = CONFIG.replace('[{"opaque"', '[{"source": "FromClaim", "opaque"')
    version = await bench.client.request("GET", RESOURCE_CLAIMS.path(bench.namespace, "c"), decode=ResourceClaim)
    meta = f'{{"name": "c", "resourceVersion": "{version.metadata.resource_version}"}}'
    body = (
        f'{{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {meta}, "spec": {SPEC},'
        f' "status": {{"allocation": {{"devices": {{"results": [{result}], {config}}}}}}}}}'
    )
    await bench.client.request("PUT", RESOURCE_CLAIMS.path(bench.namespace, "c", "status"), body.encode())
    claim = await bench.reserve("p", allocate=False)
    assert [user.name for user in claim.status.reserved_for] == ["p"]
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[0].device == "gpu-3"


@pytest.mark.parametrize("stored", [b"{}", b"k8s\x00\x12\x05ab", b"k8s\x00\x12", b"k8s\x00\x10\x01"])
def test_what_is_no_object_in_protobuf_is_not_sent_back(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"is cut short|is no Kubernetes object"):
        with_finalizer(stored, "f")
