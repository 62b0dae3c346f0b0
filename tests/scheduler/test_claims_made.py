# SPDX-License-Identifier: Apache-2.0
"""The claim of a pod's extended resources: made before the bind, found after a crash, deleted when the bind fails."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core.decisions import Bind, ClaimGrant, ClaimToMake
from dovetail.core.dra.extended import ExtendedUse, claim_for, claim_key
from dovetail.core.model import Container, Pod, Request
from dovetail.playground.faults import Fault
from tests.scheduler.claimed import CLAIMS, DRIVER, FINALIZER, NOW_MS, Cluster, granted
from tests.scheduler.scripted import until

RESOURCE, REQUEST = "example.com/gpu", "container-0-request-0"
SPEC, USES = claim_for((Container("main", ((RESOURCE, 1),)),), {RESOURCE: DRIVER})


def pod(cluster: Cluster, name: str = "p") -> Pod:
    amounts = {"resources": {"limits": {RESOURCE: "1"}}}
    made = cluster.put(
        "v1", "Pod", name, {"containers": [{"name": "main", "image": "i"} | amounts], "schedulingGates": []}
    )
    return Pod(made["metadata"]["uid"], "default", name, Request())


def made(target: Pod) -> ClaimToMake:
    return ClaimToMake(claim_key(target), SPEC, USES)


def name_of(target: Pod) -> str:
    return made(target).claim.removeprefix("default/")


def put_bind(cluster: Cluster, target: Pod, device: str | None = "gpu-1", **more: Any) -> None:
    grants = (ClaimGrant(made(target).claim, granted(device, request=REQUEST, **more)),) if device else ()
    cluster.binder.put(Bind(target.uid, "n", 1, claims=grants, made=made(target)), target, "{}")


def left(cluster: Cluster, target: Pod, *, count: int = 1, uid: str = "", **status: Any) -> None:
    """What an earlier try has left."""
    request = {"name": REQUEST, "exactly": {"deviceClassName": DRIVER, "count": count}}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": target.name, "uid": uid or target.uid, "controller": True}
    metadata = {"namespace": "default", "ownerReferences": [owner], "finalizers": [FINALIZER]}
    cluster.put(
        "resource.k8s.io/v1", "ResourceClaim", name_of(target), {"devices": {"requests": [request]}}, **metadata
    )
    if status:
        cluster.change(name_of(target), status=status)


def claims(cluster: Cluster) -> list[str]:
    return [claim["metadata"]["name"] for claim in cluster.playground.store.list(CLAIMS)]


def reported(cluster: Cluster, target: Pod) -> Any:
    stored = cluster.playground.store.get("pods", "default", target.name)
    assert stored is not None
    return stored["status"].get("extendedResourceClaimStatus")


async def test_claim_allocation_and_the_pods_status_come_before_the_bind(cluster: Cluster) -> None:
    target = pod(cluster)
    put_bind(cluster, target)
    await cluster.ended()
    assert cluster.bound == [target.uid]
    new, reserved = cluster.history(CLAIMS)
    metadata = new["metadata"]
    assert metadata["name"].startswith("p-extended-resources-") and metadata["generateName"] == "p-extended-resources-"
    assert metadata["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert metadata["finalizers"] == [FINALIZER]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": target.uid, "controller": True}
    assert metadata["ownerReferences"] == [owner]
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    assert new["spec"] == {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}}
    assert cluster.status(name_of(target)) == (["gpu-1"], ["p"])
    mapping = {"containerName": "main", "resourceName": RESOURCE, "requestName": REQUEST}
    assert reported(cluster, target) == {"requestMappings": [mapping], "resourceClaimName": name_of(target)}
    _, noted, bound = cluster.history("pods")
    versions = [int(one["metadata"]["resourceVersion"]) for one in (new, reserved, noted, bound)]
    assert versions == sorted(versions)
    assert "nodeName" not in noted["spec"] and bound["spec"]["nodeName"] == "n"


async def test_long_names_are_cut_as_the_server_cuts_them(cluster: Cluster) -> None:
    target = pod(cluster, "a" * 80)
    put_bind(cluster, target)
    await cluster.ended()
    assert cluster.bound == [target.uid]
    assert len(name_of(target)) == 63


@pytest.mark.parametrize("verb_and_resource", [("POST", "pods/binding"), ("PATCH", "pods/status")])
async def test_a_bind_that_fails_deletes_the_claim(cluster: Cluster, verb_and_resource: tuple[str, str]) -> None:
    target = pod(cluster)
    cluster.playground.faults.add(Fault("answer", *verb_and_resource, status=403))
    put_bind(cluster, target)
    await cluster.ended()
    assert [failed.uid for failed in cluster.failed] == [target.uid]
    assert claims(cluster) == []


async def test_a_claim_that_was_made_but_not_allocated_is_used(cluster: Cluster) -> None:
    target = pod(cluster)
    left(cluster, target)
    put_bind(cluster, target)
    await cluster.ended()
    assert cluster.bound == [target.uid]
    assert cluster.status(name_of(target)) == (["gpu-1"], ["p"])


async def test_a_claim_that_was_allocated_is_used_with_the_devices_that_it_has(cluster: Cluster) -> None:
    target = pod(cluster)
    result = {"request": REQUEST, "driver": DRIVER, "pool": "n", "device": "gpu-3"}
    left(cluster, target, allocation={"devices": {"results": [result]}})
    put_bind(cluster, target, None)
    await cluster.ended()
    assert cluster.bound == [target.uid]
    assert cluster.status(name_of(target)) == (["gpu-3"], ["p"])
    assert reported(cluster, target)["resourceClaimName"] == name_of(target)


async def test_a_claim_for_other_devices_is_deleted_and_made_anew_by_the_next_try(cluster: Cluster) -> None:
    target = pod(cluster)
    left(cluster, target, count=2)
    put_bind(cluster, target)
    await cluster.ended()
    assert cluster.failed[0].retry_at_ms == NOW_MS + 1_000
    assert "was made for other devices" in cluster.failed[0].message
    assert claims(cluster) == []
    put_bind(cluster, target)
    await cluster.ended(2)
    assert cluster.bound == [target.uid]


async def test_a_claim_of_somebody_else_under_that_name_is_left_alone(cluster: Cluster) -> None:
    target = pod(cluster)
    left(cluster, target, uid="another")
    put_bind(cluster, target)
    await cluster.ended()
    assert "is not the pod's" in cluster.failed[0].message
    assert claims(cluster) == [name_of(target)]


async def test_a_claim_that_is_gone_is_not_bound_without_devices(cluster: Cluster) -> None:
    """It was allocated when the bind was decided."""
    target = pod(cluster)
    put_bind(cluster, target, None)
    await cluster.ended()
    assert "nothing is allocated" in cluster.failed[0].message
    assert claims(cluster) == []


async def test_binding_conditions_of_its_devices_are_waited_for(cluster: Cluster) -> None:
    target = pod(cluster)
    cluster.node("n", [{"name": "gpu-1", "bindingConditions": ["Ready"], "bindingFailureConditions": ["Bad"]}])
    put_bind(cluster, target, conditions=("Ready",), failure_conditions=("Bad",))
    await until(lambda: reported(cluster, target) is not None)
    assert cluster.bound == []
    condition = {"type": "Ready", "status": "True", "reason": "Attached", "message": "", "lastTransitionTime": None}
    device = {"driver": DRIVER, "pool": "n", "device": "gpu-1", "conditions": [condition]}
    cluster.change(name_of(target), status={"devices": [device]})
    await cluster.ended()
    assert cluster.bound == [target.uid]


def test_the_name_is_the_same_for_the_same_pod_alone() -> None:
    first, again, other = (Pod(uid, "ns", "p", Request()) for uid in ("u", "u", "v"))
    assert claim_key(first) == claim_key(again) != claim_key(other)
    assert (ExtendedUse("main", RESOURCE, REQUEST),) == USES
