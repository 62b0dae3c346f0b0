# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims: what a scheduler may write into them, and what the claim controller does with them."""

from typing import Any

import pytest

from tests.contract.api import STRATEGIC, Api, Json, Reply

VERSION = "resource.k8s.io/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "nowhere", "device": "gpu-0"}
HERE = {"key": "metadata.name", "operator": "In", "values": ["nowhere"]}
ALLOCATION = {"devices": {"results": [RESULT]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [HERE]}]}}
USER = {"resource": "pods", "name": "p", "uid": "11111111-2222-3333-4444-555555555555"}


def claims(api: Api, name: str = "") -> str:
    return api.path("resourceclaims", name, VERSION)


async def create(api: Api, name: str = "c", **devices: object) -> Json:
    spec = {"devices": {"requests": [REQUEST]} | devices}
    claim = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    return await api.create(claims(api), claim)


async def write(api: Api, *, type: str = "", **status: object) -> Reply:
    return await api.patch(claims(api, "c/status"), {"status": status}, *([type] if type else []))


def causes(reply: Reply) -> list[tuple[str, str]]:
    return [(cause["reason"], cause["field"]) for cause in reply.body["details"]["causes"]]


async def becomes(api: Api, path: str, name: str, wanted: Any) -> Json:
    """Waits until an object is as wanted; None: until it is gone."""
    async with api.watch(path, fieldSelector=f"metadata.name={name}") as events:
        while True:
            event = await events.next()
            if wanted is None and event["type"] == "DELETED":
                return event["object"]
            if wanted is not None and event["type"] != "DELETED" and wanted(event["object"]):
                return event["object"]


async def test_a_request_without_mode_is_for_one_device(api: Api) -> None:
    several = {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "a"}]}
    all_of = {"name": "all", "exactly": {"deviceClassName": "a", "allocationMode": "All"}}
    exact, first, every = (await create(api, requests=[REQUEST, several, all_of]))["spec"]["devices"]["requests"]
    assert exact["exactly"] | {"allocationMode": "ExactCount", "count": 1} == exact["exactly"]
    assert [(one["allocationMode"], one["count"]) for one in first["firstAvailable"]] == [("ExactCount", 1)]
    assert "count" not in every["exactly"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"name": "a"}, "spec.devices.requests[0]"),
        ({"name": "a", "exactly": {}}, "spec.devices.requests[0].exactly.deviceClassName"),
        (
            {"name": "a", "exactly": {"deviceClassName": "a", "count": -1}},
            "spec.devices.requests[0].exactly.count",
        ),
        (
            {"name": "a", "exactly": {"deviceClassName": "a", "allocationMode": "Some"}},
            "spec.devices.requests[0].exactly.allocationMode",
        ),
    ],
)
async def test_a_request_that_cannot_be_meant_is_refused(api: Api, request_: Json, field: str) -> None:
    claim = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": "c"}}
    refused = await api.post(claims(api), claim | {"spec": {"devices": {"requests": [request_]}}})
    assert refused.status == 422 and field in [path for _, path in causes(refused)]


async def test_the_spec_never_changes(api: Api) -> None:
    await create(api)
    refused = await api.patch(claims(api, "c"), {"spec": {"devices": {"requests": []}}})
    assert refused.status == 422 and ("FieldValueInvalid", "spec") in causes(refused)


async def test_a_status_is_written_apart_from_the_metadata(api: Api) -> None:
    """So the finalizer, which has to be there first, needs a write of its own."""
    made = await create(api)
    body = {"metadata": {"finalizers": [FINALIZER]}, "status": {"allocation": ALLOCATION, "reservedFor": [USER]}}
    alone = await api.patch(claims(api, "c"), body)
    assert alone.body["metadata"]["finalizers"] == [FINALIZER] and not alone.body.get("status")
    body["metadata"] = {"finalizers": [], "resourceVersion": alone.version, "uid": made["metadata"]["uid"]}
    status = await api.patch(claims(api, "c/status"), body)
    assert status.body["metadata"]["finalizers"] == [FINALIZER]
    assert status.body["status"] == {"allocation": ALLOCATION, "reservedFor": [USER]}


@pytest.mark.parametrize("stale", [{"resourceVersion": "1"}, {"resourceVersion": "1", "uid": USER["uid"]}])
async def test_what_is_not_as_it_was_read_is_a_conflict(api: Api, stale: Json) -> None:
    await create(api)
    for path, change in (("c", {}), ("c/status", {"status": {"allocation": ALLOCATION}})):
        refused = await api.patch(claims(api, path), {"metadata": stale | {"finalizers": [FINALIZER]}} | change)
        assert (refused.status, refused.body["reason"]) == (409, "Conflict")


async def test_nothing_is_reserved_that_is_not_allocated(api: Api) -> None:
    await create(api)
    refused = await write(api, reservedFor=[USER])
    assert refused.status == 422 and ("FieldValueForbidden", "status.reservedFor") in causes(refused)


async def test_an_allocation_is_taken_back_before_another_is_made(api: Api) -> None:
    await create(api)
    assert (await write(api, allocation=ALLOCATION)).status == 200
    other = {"devices": {"results": [RESULT | {"device": "gpu-1"}]}}
    refused = await write(api, allocation=other)
    assert refused.status == 422 and {path for _, path in causes(refused)} == {"status.allocation"}
    assert (await write(api, allocation=None)).status == 200
    assert (await write(api, allocation=other)).status == 200


async def test_a_result_belongs_to_a_request_of_the_claim(api: Api) -> None:
    await create(api)
    refused = await write(api, allocation={"devices": {"results": [RESULT | {"request": "other"}]}})
    assert ("FieldValueInvalid", "status.allocation.devices.results[0].request") in causes(refused)


async def test_consumers_come_and_go_by_uid(api: Api) -> None:
    await create(api)
    # Nobody looks whether these exist: only the controller does, and only at pods.
    users = [USER | {"resource": "others", "apiGroup": "example.com", "uid": uid} for uid in "abc"]
    await write(api, allocation=ALLOCATION, reservedFor=users[:2])
    await write(api, reservedFor=[users[2]], type=STRATEGIC)
    left = await write(api, reservedFor=[{"$patch": "delete", "uid": "a"}], type=STRATEGIC)
    assert [user["uid"] for user in left.body["status"]["reservedFor"]] in (["b", "c"], ["c", "b"])
    twice = await write(api, reservedFor=[users[1], users[1]])
    assert ("FieldValueDuplicate", "status.reservedFor[1]") in causes(twice)


async def test_a_claim_that_is_being_deleted_takes_no_more_consumers(api: Api) -> None:
    await create(api)
    await api.patch(claims(api, "c"), {"metadata": {"finalizers": ["example.com/stays"]}})
    user = USER | {"resource": "others", "apiGroup": "example.com"}
    await write(api, allocation=ALLOCATION, reservedFor=[user])
    await api.delete(claims(api, "c"))
    refused = await write(api, reservedFor=[user, user | {"uid": "b"}])
    assert refused.status == 422 and ("FieldValueForbidden", "status.reservedFor") in causes(refused)
    await api.patch(claims(api, "c"), {"metadata": {"finalizers": None}})


async def test_a_pod_gets_a_claim_of_its_own_from_a_template(api: Api) -> None:
    template = {
        "apiVersion": VERSION, "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
        "spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {"requests": [REQUEST]}}},
    }  # fmt: skip
    await api.create(api.path("resourceclaimtemplates", version=VERSION), template)
    pod = await api.create_pod("p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}])
    reported = await becomes(api, api.path("pods"), "p", lambda pod: pod["status"].get("resourceClaimStatuses"))
    ((status),) = reported["status"]["resourceClaimStatuses"]
    assert status["name"] == "gpu" and status["resourceClaimName"].startswith("p-gpu-")
    claim = (await api.get(claims(api, status["resourceClaimName"]))).body
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", pod["metadata"]["uid"], True)
    assert claim["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"] == "gpu"
    assert claim["metadata"]["labels"] == {"a": "b"}
    assert claim["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


async def test_the_last_consumer_takes_the_allocation_along(api: Api) -> None:
    await create(api)
    pods = [await api.create_pod(name, resourceClaims=[{"name": "g", "resourceClaimName": "c"}]) for name in "pq"]
    users = [USER | {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
    await api.patch(claims(api, "c"), {"metadata": {"finalizers": [FINALIZER]}})
    await write(api, allocation=ALLOCATION, reservedFor=users)
    await api.delete(api.path("pods", "p"))
    left = await becomes(api, claims(api), "c", lambda claim: len(claim["status"]["reservedFor"]) == 1)
    assert left["status"] == {"allocation": ALLOCATION, "reservedFor": users[1:]}
    await api.delete(api.path("pods", "q"))
    free = await becomes(api, claims(api), "c", lambda claim: not claim["metadata"].get("finalizers"))
    assert not free.get("status")


async def test_a_claim_in_use_goes_with_its_last_consumer(api: Api) -> None:
    await create(api)
    pod = await api.create_pod("p", resourceClaims=[{"name": "g", "resourceClaimName": "c"}])
    await api.patch(claims(api, "c"), {"metadata": {"finalizers": [FINALIZER]}})
    await write(api, allocation=ALLOCATION, reservedFor=[USER | {"uid": pod["metadata"]["uid"]}])
    deleted = await api.delete(claims(api, "c"))
    assert deleted.body["metadata"]["deletionTimestamp"]
    async with api.watch(claims(api), fieldSelector="metadata.name=c") as events:
        await api.delete(api.path("pods", "p"))
        while (await events.next())["type"] != "DELETED":
            pass
