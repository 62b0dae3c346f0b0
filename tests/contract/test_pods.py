# SPDX-License-Identifier: Apache-2.0
"""Pods: defaults, validation, binding, status, deletion."""

import asyncio

import pytest

from tests.contract.api import Api, Json, pod


def gpu_pod(name: str, limits: Json, requests: Json | None = None) -> Json:
    resources = {"limits": limits} | ({"requests": requests} if requests else {})
    return pod(name, containers=[{"name": "main", "image": "registry.example/none", "resources": resources}])


async def test_a_new_pod_has_what_a_scheduler_reads(api: Api) -> None:
    made = await api.create(api.path("pods"), gpu_pod("one", {"nvidia.com/gpu": "2", "memory": "1Gi"}))
    spec, status = made["spec"], made["status"]
    assert spec["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2", "memory": "1Gi"}
    assert (spec["schedulerName"], spec["restartPolicy"], spec["priority"]) == ("default-scheduler", "Always", 0)
    assert (spec["terminationGracePeriodSeconds"], spec["preemptionPolicy"]) == (30, "PreemptLowerPriority")
    assert (status["phase"], status["qosClass"]) == ("Pending", "Burstable")
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("limits", "requests", "quality"),
    [
        ({"cpu": "1", "memory": "1Gi"}, None, "Guaranteed"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "500m"}, "Burstable"),
        ({"nvidia.com/gpu": "1"}, None, "BestEffort"),
    ],
)
async def test_the_quality_of_service(api: Api, limits: Json, requests: Json | None, quality: str) -> None:
    made = await api.create(api.path("pods"), gpu_pod("one", limits, requests))
    assert made["status"]["qosClass"] == quality


@pytest.mark.parametrize(
    ("limits", "requests", "field", "words"),
    [
        ({"nvidia.com/gpu": "-1"}, None, "limits[nvidia.com/gpu]", "must be greater than or equal to 0"),
        ({"nvidia.com/gpu": "500m"}, None, "limits[nvidia.com/gpu]", "must be an integer"),
        ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}, "requests", "must be equal to nvidia.com/gpu limit of 2"),
        ({"cpu": "1"}, {"cpu": "2"}, "requests", "must be less than or equal to cpu limit of 1"),
        ({"cpu": "1"}, {"nvidia.com/gpu": "1"}, "limits", "Limit must be set for non overcommitable resources"),
    ],
)
async def test_bad_amounts_are_invalid(api: Api, limits: Json, requests: Json | None, field: str, words: str) -> None:
    reply = await api.post(api.path("pods"), gpu_pod("one", limits, requests))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    causes, path = reply.body["details"]["causes"], f"spec.containers[0].resources.{field}"
    assert any(cause["field"] == path and words in cause["message"] for cause in causes), causes


async def test_an_amount_that_is_none_is_a_bad_request(api: Api) -> None:
    reply = await api.post(api.path("pods"), gpu_pod("one", {"nvidia.com/gpu": "two"}))
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")


async def test_a_pod_needs_containers(api: Api) -> None:
    reply = await api.post(api.path("pods"), pod("one", containers=[]))
    assert (reply.status, reply.body["details"]["causes"][0]["field"]) == (422, "spec.containers")


async def test_priority_comes_from_the_class(api: Api) -> None:
    name = f"{api.namespace}-high"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    high = kind | {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"}
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await api.create(path, high)
    made = await api.create_pod("one", priorityClassName=name)
    await api.delete(f"{path}/{name}")
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "Never")
    unknown = await api.post(api.path("pods"), pod("two", priorityClassName="none-such"))
    assert (unknown.status, unknown.body["reason"]) == (403, "Forbidden")
    assert unknown.body["message"] == 'pods "two" is forbidden: no PriorityClass with name none-such was found'


async def test_a_gated_pod_has_its_condition_and_cannot_be_bound(api: Api) -> None:
    made = await api.create_pod("one", schedulingGates=[{"name": "example.com/wait"}])
    (condition,) = made["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    reply = await api.bind("one")
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert "has non-empty .spec.schedulingGates" in reply.body["message"]
    more = {"spec": {"schedulingGates": [{"name": "example.com/wait"}, {"name": "example.com/more"}]}}
    assert (await api.patch(api.path("pods", "one"), more)).status == 422
    assert (await api.patch(api.path("pods", "one"), {"spec": {"schedulingGates": None}})).status == 200
    assert (await api.bind("one")).status == 201


async def test_the_specification_of_a_pod_is_fixed(api: Api) -> None:
    await api.create_pod("one")
    reply = await api.patch(api.path("pods", "one"), {"spec": {"schedulerName": "other"}})
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    assert reply.body["details"]["causes"][0]["field"] == "spec"
    image = {"spec": {"containers": [{"name": "main", "image": "registry.example/new"}]}}
    strategic = "application/strategic-merge-patch+json"
    changed = await api.patch(api.path("pods", "one"), image, strategic)
    assert (changed.status, changed.body["metadata"]["generation"]) == (200, 2)


async def test_a_binding_places_the_pod_and_brings_annotations_and_labels(api: Api) -> None:
    annotated = pod("one") | {"metadata": {"name": "one", "annotations": {"a": "old", "b": "2"}}}
    await api.create(api.path("pods"), annotated)
    await api.patch(api.path("pods", "one/status"), {"status": {"nominatedNodeName": "elsewhere"}})
    annotations = {"a": "new", "c": "3"}
    reply = await api.bind("one", "node-1", annotations=annotations, labels={"zone": "z"})
    assert (reply.status, reply.body["kind"], reply.body["status"]) == (201, "Status", "Success")
    bound = (await api.get(api.path("pods", "one"))).body
    assert bound["spec"]["nodeName"] == "node-1"
    assert bound["metadata"]["annotations"] == {"a": "new", "b": "2", "c": "3"}
    assert bound["metadata"]["labels"]["zone"] == "z"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    assert bound["status"]["phase"] == "Pending" and "nominatedNodeName" not in bound["status"]


async def test_a_pod_is_bound_once(api: Api) -> None:
    await api.create_pod("one")
    replies = await asyncio.gather(api.bind("one", "node-1"), api.bind("one", "node-2"))
    assert sorted(reply.status for reply in replies) == [201, 409]
    (refused,) = (reply.body for reply in replies if reply.status == 409)
    placed = (await api.get(api.path("pods", "one"))).body["spec"]["nodeName"]
    assert refused["reason"] == "Conflict"
    assert refused["message"] == (
        f'Operation cannot be fulfilled on pods/binding "one": pod one is already assigned to node "{placed}"'
    )


async def test_a_missing_pod_cannot_be_bound(api: Api) -> None:
    reply = await api.bind("one")
    assert (reply.status, reply.body["reason"]) == (404, "NotFound")
    assert reply.body["message"] == 'pods "one" not found'


async def test_a_binding_can_name_the_pod_it_means(api: Api) -> None:
    made = await api.create_pod("one")
    other = await api.bind("one", uid="00000000-0000-0000-0000-000000000000")
    assert (other.status, other.body["reason"]) == (409, "Conflict")
    assert (await api.bind("one", uid=made["metadata"]["uid"])).status == 201


async def test_a_pod_that_is_being_deleted_cannot_be_bound(api: Api) -> None:
    made = pod("one")
    made["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(api.path("pods"), made)
    await api.delete(api.path("pods", "one"))
    reply = await api.bind("one")
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert "pod one is being deleted, cannot be assigned to a host" in reply.body["message"]
    await api.patch(api.path("pods", "one"), {"metadata": {"finalizers": None}})


async def test_status_and_specification_do_not_touch_each_other(api: Api) -> None:
    made = await api.create_pod("one")
    made["status"] = {"phase": "Running"}
    made["metadata"]["labels"]["written"] = "main"
    main = await api.put(api.path("pods", "one"), made)
    assert (main.status, main.body["status"]["phase"]) == (200, "Pending")
    changed = main.body
    changed["status"] = {"phase": "Running", "reason": "Test"}
    changed["spec"]["schedulerName"] = "other"
    status = await api.put(api.path("pods", "one/status"), changed)
    assert status.status == 200, status.body
    assert (status.body["status"]["phase"], status.body["status"]["reason"]) == ("Running", "Test")
    assert status.body["spec"]["schedulerName"] == "default-scheduler"
    assert status.body["metadata"]["generation"] == 1
    labelled = {"metadata": {"labels": {"written": "with-status"}}, "status": {"reason": "Other"}}
    reply = await api.patch(api.path("pods", "one/status"), labelled)
    assert reply.status == 200, reply.body
    assert reply.body["metadata"]["labels"]["written"] == "with-status"
    stale = await api.put(api.path("pods", "one/status"), changed)
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")


async def test_an_unplaced_pod_goes_at_once_and_a_placed_one_after_its_grace(api: Api) -> None:
    await api.create_pod("waiting")
    await api.create_pod("placed", terminationGracePeriodSeconds=20)
    await api.bind("placed")
    assert (await api.delete(api.path("pods", "waiting"))).status == 200
    assert (await api.get(api.path("pods", "waiting"))).status == 404
    first = await api.delete(api.path("pods", "placed"))
    assert first.status == 200 and first.body["metadata"]["deletionTimestamp"]
    assert first.body["metadata"]["deletionGracePeriodSeconds"] == 20
    assert first.body["metadata"]["generation"] == 2
    longer = await api.delete(api.path("pods", "placed"), {"gracePeriodSeconds": 60})
    assert longer.body["metadata"]["deletionGracePeriodSeconds"] == 20
    shorter = await api.delete(api.path("pods", "placed"), {"gracePeriodSeconds": 5})
    assert shorter.body["metadata"]["deletionGracePeriodSeconds"] == 5
    assert (await api.delete(api.path("pods", "placed"), gracePeriodSeconds="0")).status == 200
    assert (await api.get(api.path("pods", "placed"))).status == 404
