# SPDX-License-Identifier: Apache-2.0
"""What the scheduler writes into ResourceClaims is what it means, and API servers take it."""

import json
from typing import Any

import msgspec
import pytest

from dovetail.core.dra.types import Allocation, Grant
from dovetail.core.model import NodeTerm, Requirement
from dovetail.kube.objects.claims import DeviceClass, ResourceClaim
from dovetail.kube.translate.claims import claim as record_of
from dovetail.scheduler import wire_claims
from tests.contract.api import Api, Json

VERSION = "resource.k8s.io/v1"
DRIVER = "gpu.example.com"
NOW_MS = 1_750_000_000_000
UID = "11111111-2222-3333-4444-555555555555"
SHARE = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


def opaque(value: object) -> Json:
    return {"opaque": {"driver": DRIVER, "parameters": {"kind": "Config", "value": value}}}


def config(source: str, value: object, *requests: str) -> Json:
    return {"source": source} | ({"requests": list(requests)} if requests else {}) | opaque(value)


CLASSES = {
    "a": msgspec.convert({"spec": {"config": [opaque("a1"), opaque("a2")]}}, DeviceClass),
    "b": msgspec.convert({"spec": {"config": [opaque("b")]}}, DeviceClass),
}
TOLERATION = {"key": "old", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
REQUESTS: list[Json] = [
    {"name": "one", "exactly": {"deviceClassName": "a", "tolerations": [TOLERATION]}},
    {"name": "any", "firstAvailable": [{"name": "x", "deviceClassName": "b"}, {"name": "y", "deviceClassName": "a"}]},
]
CONSUMED = (("example.com/cores", 1500), ("memory", 2**30 * 1000))


async def written(api: Api, allocation: Allocation, requests: list[Json], *configs: Json) -> tuple[Json, Any]:
    """The allocation of a new claim, as the server has it, and as the core reads it."""
    metadata = {"name": "c", "finalizers": [wire_claims.FINALIZER]}
    spec = {"devices": {"requests": requests, "config": list(configs)}}
    made = await api.create(
        api.path("resourceclaims", version=VERSION),
        {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": spec},
    )
    path = api.path("resourceclaims", "c", VERSION)
    claim = msgspec.convert(made, ResourceClaim)
    found = wire_claims.allocation(claim, allocation, CLASSES.get, NOW_MS)
    reply = await api.patch(f"{path}/status", json.loads(wire_claims.reserved(claim, "p", UID, found)))
    assert reply.status == 200, reply.body
    assert reply.body["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": UID}]
    stored = reply.body["status"]["allocation"]
    assert stored.pop("allocationTimestamp") == "2025-06-15T15:06:40Z"
    return stored, record_of(msgspec.convert(reply.body, ResourceClaim))


async def test_a_finalizer_is_added_to_those_of_others(api: Api) -> None:
    made = await api.create(
        api.path("resourceclaims", version=VERSION),
        {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": "c", "finalizers": ["example.com/mine"]},
         "spec": {"devices": {"requests": REQUESTS}}},
    )  # fmt: skip
    body = json.loads(wire_claims.with_finalizer(msgspec.convert(made, ResourceClaim).metadata))
    reply = await api.patch(api.path("resourceclaims", "c", VERSION), body)
    assert reply.body["metadata"]["finalizers"] == ["example.com/mine", wire_claims.FINALIZER]


async def test_all_of_an_allocation(api: Api) -> None:
    grants = (
        Grant("one", DRIVER, "p", "gpu-0", conditions=("Ready",), failure_conditions=("Broken",)),
        Grant("any/y", DRIVER, "p", "gpu-1", share=SHARE, consumed=CONSUMED),
    )
    stored, record = await written(
        api, Allocation(grants, "n"), REQUESTS,
        opaque("all"), opaque("y") | {"requests": ["any/y"]}, opaque("x") | {"requests": ["any/x"]},
        opaque("both") | {"requests": ["one", "any"]},
    )  # fmt: skip
    ids = {"driver": DRIVER, "pool": "p"}
    assert stored["devices"]["results"] == [
        ids | {
            "request": "one", "device": "gpu-0", "tolerations": [TOLERATION],
            "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"],
        },
        ids | {
            "request": "any/y", "device": "gpu-1", "shareID": SHARE,
            "consumedCapacity": {"memory": "1073741824", "example.com/cores": "1500m"},
        },
    ]  # fmt: skip
    assert stored["devices"]["config"] == [
        config("FromClass", "a1"), config("FromClass", "a2"),
        config("FromClaim", "all"), config("FromClaim", "y", "any/y"), config("FromClaim", "both"),
    ]  # fmt: skip
    here = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert stored["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [here]}]}
    assert record.problem is None
    assert (record.allocation.node, record.allocation.grants[1]) == ("n", grants[1])


async def test_each_class_once_with_the_requests_that_it_is_about(api: Api) -> None:
    exact = {"name": "two", "exactly": {"deviceClassName": "a"}}
    grants = tuple(Grant(name, DRIVER, "p", f"gpu-{i}") for i, name in enumerate(("one", "any/x", "two"), 5))
    stored, _ = await written(api, Allocation(grants), [*REQUESTS, exact])
    assert stored["devices"]["config"] == [
        config("FromClass", "a1", "one", "two"), config("FromClass", "a2", "one", "two"),
        config("FromClass", "b", "any/x"),
    ]  # fmt: skip
    assert "nodeSelector" not in stored


@pytest.mark.parametrize("more", [(), (Requirement("disk", "Exists"),)])
async def test_an_allocation_for_some_nodes(api: Api, more: tuple[Requirement, ...]) -> None:
    term = NodeTerm((Requirement("zone", "In", ("a", "b")), *more), (Requirement("metadata.name", "NotIn", ("n",)),))
    allocation = Allocation((Grant("one", DRIVER, "p", "gpu-5"),), node_terms=(term,))
    _, record = await written(api, allocation, REQUESTS[:1])
    assert record.allocation.node_terms == (term,)


async def test_the_last_reservation_that_is_removed_frees_the_devices(api: Api) -> None:
    await written(api, Allocation((Grant("one", DRIVER, "p", "gpu-5"),), "n"), REQUESTS[:1])
    path = api.path("resourceclaims", "c", VERSION)
    # Pods that do not exist would be taken out by the claim controller of a real server.
    other = {"apiGroup": "example.com", "resource": "others", "name": "o", "uid": "o"}
    mine = {"apiGroup": "example.com", "resource": "others", "name": "p", "uid": UID}
    for users, left in (([other, mine], [other]), ([mine], [])):
        claim = (await api.get(path)).body
        status = claim.get("status", {})
        if not status.get("allocation"):
            results = [{"request": "one", "driver": DRIVER, "pool": "p", "device": "gpu-5"}]
            status = {"allocation": {"devices": {"results": results}}}
        claim = (await api.patch(f"{path}/status", {"status": status | {"reservedFor": users}})).body
        body = json.loads(wire_claims.released(msgspec.convert(claim, ResourceClaim), UID))
        reply = await api.patch(f"{path}/status", body)
        assert reply.body.get("status", {}).get("reservedFor", []) == left
        assert bool(reply.body.get("status", {}).get("allocation")) is bool(left)
