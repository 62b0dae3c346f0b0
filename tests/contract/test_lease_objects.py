# SPDX-License-Identifier: Apache-2.0
"""The objects of leases: scheduler and agent write each their own half, on every server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import yaml

from dovetail.core.bargaining.types import EndCause, GpuLease, Holding, LeaseAlternative, Revocation
from dovetail.kube.objects import leases as wire
from dovetail.kube.translate import lease_documents, leases
from tests.contract.api import JSON_PATCH, MERGE, Api
from tests.paths import ROOT

NAMES = ("leaserequest", "gpulease")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
START_MS = 1_769_860_800_250


@pytest.fixture
async def where(api: Api) -> AsyncIterator[str]:
    """The path of the namespace, on a server with the definitions."""
    path = f"/apis/dovetail.dev/v1alpha1/namespaces/{api.namespace}"
    for name in NAMES:
        made = await api.post(DEFINITIONS, yaml.safe_load((ROOT / f"deploy/crds/{name}.yaml").read_text()))
        assert made.status in (201, 409), made.body
        # A real server serves the resource some moments after it was defined.
        while (await api.get(f"{path}/{name}s")).status != 200:
            pass
    yield path


def one(namespace: str) -> GpuLease:
    held = (Holding(f"lease/{namespace}/one/0.0/0", "n", (3,)), Holding(f"lease/{namespace}/one/0.0/1", "m", (0,)))
    end_ms = START_MS + 600_000
    return GpuLease(
        f"{namespace}/one", f"{namespace}/p", "one", LeaseAlternative(2), held, START_MS, end_ms, START_MS, 60_000
    )


async def test_a_lease_is_read_as_it_was_written_and_an_action_leaves_its_status(api: Api, where: str) -> None:
    lease, path = one(api.namespace), f"{where}/gpuleases/one"
    await api.create(f"{where}/gpuleases", lease_documents.lease_object(lease))
    for status in (lease_documents.lease_status(lease, refused="too early"), lease_documents.lease_status(lease)):
        reply = await api.patch(f"{path}/status", [{"op": "add", "path": "/status", "value": status}], JSON_PATCH)
        assert (reply.status, reply.body["status"]) == (200, status)
    action = {"number": 1, "fence": START_MS, "action": "return"}
    reply = await api.patch(path, {"spec": {"action": action}, "status": {"state": "Ended"}}, MERGE)
    found = msgspec.convert(reply.body, wire.GPULease)
    assert leases.lease(found) == (lease, None)
    acted = leases.action(found)
    assert acted is not None and (acted.lease, acted.action) == (lease.id, "return")
    assert found.status is not None
    revocation = Revocation(EndCause.IDLE, START_MS + 60_000, "idle")
    status = lease_documents.lease_status(msgspec.structs.replace(lease, revocation=revocation), "Revoking")
    reply = await api.patch(f"{path}/status", [{"op": "add", "path": "/status", "value": status}], JSON_PATCH)
    assert reply.body["spec"]["action"] == action
    read, _ = leases.lease(msgspec.convert(reply.body, wire.GPULease))
    assert read is not None and read.revocation == revocation


async def test_a_table_shows_what_a_request_waits_for(api: Api, where: str) -> None:
    spec = {"plane": "p", "alternatives": [{"count": 2, "duration": "10m"}]}
    head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "LeaseRequest", "metadata": {"name": "one"}}
    made = await api.create(f"{where}/leaserequests", head | {"spec": spec})
    assert "status" not in made
    status = {"state": "Pending", "reason": "LeaseLimit", "observedGeneration": 1}
    await api.patch(f"{where}/leaserequests/one/status", {"status": status}, MERGE)
    table = (await api.get(f"{where}/leaserequests", accept=TABLE)).body
    columns = [column["name"] for column in table["columnDefinitions"]]
    shown = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert (shown["Plane"], shown["State"], shown["Reason"]) == ("p", "Pending", "LeaseLimit")
