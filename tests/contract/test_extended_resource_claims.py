# SPDX-License-Identifier: Apache-2.0
"""The claim that a scheduler makes for a pod's extended resources, and what it reports to the pod's kubelet."""

import asyncio
from typing import Any

from tests.contract.api import STRATEGIC, Api, Json
from tests.contract.test_resource_claims import ALLOCATION, FINALIZER, REQUEST, VERSION, causes, claims

RESOURCE = "gpu.example.com/gpu"
MAPPING = {"containerName": "main", "resourceName": RESOURCE, "requestName": "gpu"}


async def pod(api: Api) -> Json:
    limits = {"resources": {"limits": {RESOURCE: "1"}}}
    spec = {"containers": [{"name": "main", "image": "i"} | limits], "schedulerName": "nobody"}
    metadata = {"name": "p"}
    return await api.create(api.path("pods"), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


async def claim(api: Api, owner: Json) -> Json:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner["metadata"]["uid"], "controller": True}
    metadata: dict[str, Any] = {
        "name": "p-extended-resources-x7k2p", "generateName": "p-extended-resources-", "finalizers": [FINALIZER],
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": [reference],
    }  # fmt: skip
    spec = {"devices": {"requests": [REQUEST]}}
    document = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    return await api.create(claims(api), document)


async def report(api: Api, *mappings: Json, name: str = "p-extended-resources-x7k2p") -> Any:
    reported = {"requestMappings": list(mappings), "resourceClaimName": name}
    return await api.patch(
        api.path("pods", "p/status"), {"status": {"extendedResourceClaimStatus": reported}}, STRATEGIC
    )


async def test_a_claim_keeps_its_name_beside_generate_name(api: Api) -> None:
    made = await claim(api, await pod(api))
    assert (made["metadata"]["name"], made["metadata"]["generateName"]) == (
        "p-extended-resources-x7k2p",
        "p-extended-resources-",
    )
    assert made["metadata"]["finalizers"] == [FINALIZER]


async def test_the_pods_status_has_the_requests_and_the_last_write_counts(api: Api) -> None:
    await pod(api)
    assert (await report(api, MAPPING)).status == 200
    reply = await report(api, MAPPING | {"requestName": "other"})
    (mapping,) = reply.body["status"]["extendedResourceClaimStatus"]["requestMappings"]
    assert mapping == MAPPING | {"requestName": "other"}


async def test_a_status_cannot_be_removed(api: Api) -> None:
    await pod(api)
    await report(api, MAPPING)
    reply = await api.patch(api.path("pods", "p/status"), {"status": {"extendedResourceClaimStatus": None}}, STRATEGIC)
    assert reply.body["status"]["extendedResourceClaimStatus"]["requestMappings"] == [MAPPING]


async def test_it_is_about_containers_and_what_they_request(api: Api) -> None:
    await pod(api)
    path = "status.extendedResourceClaimStatus"
    assert causes(await report(api)) == [("FieldValueRequired", f"{path}.requestMappings")]
    reply = await report(api, MAPPING | {"containerName": "other"}, MAPPING | {"resourceName": "other.example.com/gpu"})
    assert causes(reply) == [
        ("FieldValueInvalid", f"{path}.requestMappings[0].containerName"),
        ("FieldValueInvalid", f"{path}.requestMappings[1].resourceName"),
    ]
    assert causes(await report(api, MAPPING, name="")) == [("FieldValueRequired", f"{path}.resourceClaimName")]


async def test_the_creator_can_delete_an_allocated_claim(api: Api) -> None:
    """As a scheduler does after a failed bind: the finalizer first."""
    owner = await pod(api)
    made = await claim(api, owner)
    path = claims(api, made["metadata"]["name"])
    user = {"resource": "pods", "name": "p", "uid": owner["metadata"]["uid"]}
    await api.patch(f"{path}/status", {"status": {"allocation": ALLOCATION, "reservedFor": [user]}})
    assert (await api.patch(path, {"metadata": {"finalizers": []}})).status == 200
    await api.delete(path)
    assert (await api.get(path)).status == 404


async def test_it_goes_with_its_pod(api: Api) -> None:
    owner = await pod(api)
    made = await claim(api, owner)
    name = made["metadata"]["name"]
    await report(api, MAPPING)
    user = {"resource": "pods", "name": "p", "uid": owner["metadata"]["uid"]}
    await api.patch(f"{claims(api, name)}/status", {"status": {"allocation": ALLOCATION, "reservedFor": [user]}})
    await api.delete(api.path("pods", "p"), {"gracePeriodSeconds": 0})
    for _ in range(200):
        if (reply := await api.get(claims(api, name))).status == 404:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"it is still there: {reply.body}")
