# SPDX-License-Identifier: Apache-2.0
"""Create, read, update, patch and delete."""

import asyncio

import pytest

from tests.contract.api import APPLY, JSON_PATCH, STRATEGIC, Api, Json, config_map, pod


async def test_a_created_object_has_the_fields_that_the_server_fills_in(api: Api) -> None:
    made = await api.create_map("one")
    metadata = made["metadata"]
    assert metadata["namespace"] == api.namespace
    assert metadata["uid"] and metadata["resourceVersion"] and metadata["creationTimestamp"].endswith("Z")
    reply = await api.get(api.path("configmaps", "one"))
    assert (reply.status, reply.body) == (200, made)


async def test_generate_name_makes_a_name(api: Api) -> None:
    made = await api.create(api.path("configmaps"), config_map("", generateName="run-"))
    name = made["metadata"]["name"]
    assert name.startswith("run-") and len(name) == len("run-") + 5


async def test_a_name_is_taken_once(api: Api) -> None:
    await api.create_map("one")
    reply = await api.post(api.path("configmaps"), config_map("one"))
    assert (reply.status, reply.body["reason"]) == (409, "AlreadyExists")
    assert reply.body["message"] == 'configmaps "one" already exists'
    assert reply.body["details"] == {"name": "one", "kind": "configmaps"}


async def test_an_object_without_a_name_is_invalid(api: Api) -> None:
    reply = await api.post(api.path("configmaps"), config_map(""))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    cause = reply.body["details"]["causes"][0]
    assert cause["field"] == "metadata.name" and cause["reason"] == "FieldValueRequired"
    assert "name or generateName is required" in cause["message"]


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "Not_A_Subdomain"}, "metadata.name"),
        ({"name": "one", "labels": {"colour": "light blue"}}, "metadata.labels"),
        ({"name": "one", "labels": {"colour": "x" * 64}}, "metadata.labels"),
        ({"name": "one", "labels": {"-colour": "blue"}}, "metadata.labels"),
        ({"name": "one", "annotations": {"a/b/c": ""}}, "metadata.annotations"),
    ],
)
async def test_names_and_labels_have_rules(api: Api, metadata: Json, field: str) -> None:
    reply = await api.post(api.path("configmaps"), config_map("") | {"metadata": metadata})
    assert (reply.status, [cause["field"] for cause in reply.body["details"]["causes"]]) == (422, [field])


async def test_the_namespace_has_to_exist(api: Api) -> None:
    reply = await api.post("/api/v1/namespaces/no-such-place/configmaps", config_map("one"))
    assert (reply.status, reply.body["reason"]) == (404, "NotFound")
    assert reply.body["message"] == 'namespaces "no-such-place" not found'


async def test_the_namespace_of_the_object_and_of_the_path_have_to_agree(api: Api) -> None:
    reply = await api.post(api.path("configmaps"), config_map("one", namespace="default"))
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")


async def test_an_object_of_another_kind_is_refused(api: Api) -> None:
    reply = await api.post(api.path("configmaps"), pod("one"))
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")


async def test_a_missing_object_is_not_found(api: Api) -> None:
    for method in ("GET", "DELETE"):
        reply = await api.request(method, api.path("pods", "none"))
        assert (reply.status, reply.body["reason"], reply.body["code"]) == (404, "NotFound", 404)
        assert reply.body["message"] == 'pods "none" not found'
    assert (await api.patch(api.path("pods", "none"), {})).status == 404


async def test_a_missing_group_is_a_page_not_found(api: Api) -> None:
    for path in (api.path("widgets", "w", "example.invalid/v1"), "/apis/example.invalid/v1", "/nonsense"):
        reply = await api.get(path)
        assert (reply.status, reply.body) == (404, {"text": "404 page not found\n"})


async def test_a_missing_resource_of_a_served_group_is_a_status(api: Api) -> None:
    for path in (api.path("widgets"), api.path("widgets", "w", "apps/v1"), "/apis/apps/v9", api.path("pods", "p/none")):
        reply = await api.get(path)
        assert (reply.status, reply.body["reason"]) == (404, "NotFound")
        assert reply.body["message"] == "the server could not find the requested resource"


async def test_an_update_of_an_old_version_is_a_conflict(api: Api) -> None:
    first = await api.create_map("one")
    second = await api.put(api.path("configmaps", "one"), first | {"data": {"key": "second"}})
    assert second.status == 200 and second.version != first["metadata"]["resourceVersion"]
    stale = await api.put(api.path("configmaps", "one"), first | {"data": {"key": "third"}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")
    assert stale.body["message"] == (
        'Operation cannot be fulfilled on configmaps "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert (await api.get(api.path("configmaps", "one"))).body["data"] == {"key": "second"}


async def test_an_update_that_changes_nothing_makes_no_version(api: Api) -> None:
    made = await api.create_map("one")
    assert (await api.put(api.path("configmaps", "one"), made)).version == made["metadata"]["resourceVersion"]
    assert (await api.patch(api.path("configmaps", "one"), {})).version == made["metadata"]["resourceVersion"]


async def test_an_update_of_another_object_of_the_same_name_is_a_conflict(api: Api) -> None:
    made = await api.create_map("one")
    await api.delete(api.path("configmaps", "one"))
    await api.create_map("one")
    made["metadata"].pop("resourceVersion")
    reply = await api.put(api.path("configmaps", "one"), made | {"data": {"key": "old"}})
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")


async def test_the_first_writer_holds_a_lease(api: Api) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "leader"}, "spec": {}}
    path = api.path("leases", "leader", "coordination.k8s.io/v1")
    made = await api.create(api.path("leases", version="coordination.k8s.io/v1"), lease)
    taken = [
        api.put(path, made | {"spec": {"holderIdentity": name, "leaseDurationSeconds": 15, "leaseTransitions": 1}})
        for name in ("a", "b")
    ]
    assert sorted(reply.status for reply in await asyncio.gather(*taken)) == [200, 409]
    made["metadata"].pop("resourceVersion")
    unconditional = await api.put(path, made)
    assert (unconditional.status, unconditional.body["reason"]) == (422, "Invalid")
    assert unconditional.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


async def test_an_update_creates_a_lease_but_no_config_map(api: Api) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "new"}}
    assert (await api.put(api.path("leases", "new", "coordination.k8s.io/v1"), lease)).status == 201
    reply = await api.put(api.path("configmaps", "new"), config_map("new"))
    assert (reply.status, reply.body["message"]) == (404, 'configmaps "new" not found')


async def test_merge_patch(api: Api) -> None:
    await api.create_map("one", labels={"keep": "1", "drop": "1"})
    patch = {"metadata": {"labels": {"drop": None, "add": "1"}}, "data": {"other": "x"}}
    reply = await api.patch(api.path("configmaps", "one"), patch)
    assert reply.status == 200
    assert reply.body["metadata"]["labels"] == {"keep": "1", "add": "1"}
    assert reply.body["data"] == {"key": "value", "other": "x"}


async def test_a_patch_can_ask_for_a_version(api: Api) -> None:
    made = await api.create_map("one")
    await api.patch(api.path("configmaps", "one"), {"data": {"key": "second"}})
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"key": "third"}}
    assert (await api.patch(api.path("configmaps", "one"), patch)).status == 409


async def test_json_patch(api: Api) -> None:
    await api.create_map("one", annotations={"example.com/a": "1"})
    path = api.path("configmaps", "one")
    operations = [
        {"op": "test", "path": "/data/key", "value": "value"},
        {"op": "add", "path": "/data/other", "value": "w"},
        {"op": "replace", "path": "/data/other", "value": "x"},
        {"op": "remove", "path": "/metadata/annotations/example.com~1a"},
    ]
    reply = await api.patch(path, operations, JSON_PATCH)
    assert reply.status == 200 and reply.body["data"] == {"key": "value", "other": "x"}
    assert "annotations" not in reply.body["metadata"] or not reply.body["metadata"]["annotations"]
    failed = await api.patch(path, [{"op": "test", "path": "/data/key", "value": "else"}], JSON_PATCH)
    assert (failed.status, failed.body["reason"]) == (422, "Invalid")


async def test_strategic_patch_merges_conditions_by_type(api: Api) -> None:
    await api.create_pod("one")
    path = api.path("pods", "one/status")
    for kind, status in (("PodScheduled", "False"), ("Other", "True"), ("PodScheduled", "True")):
        reply = await api.patch(path, {"status": {"conditions": [{"type": kind, "status": status}]}}, STRATEGIC)
        assert reply.status == 200, reply.body
    conditions = {c["type"]: c["status"] for c in reply.body["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True", "Other": "True"}


async def test_strategic_patch_merges_owners_finalizers_and_containers(api: Api) -> None:
    await api.create_pod("one")
    path = api.path("pods", "one")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "00000000-0000-0000-0000-000000000001"}
    for finalizer in ("example.com/a", "example.com/b"):
        await api.patch(path, {"metadata": {"finalizers": [finalizer]}}, STRATEGIC)
    image = {"spec": {"containers": [{"name": "main", "image": "registry.example/two"}]}}
    reply = await api.patch(path, image, STRATEGIC)
    assert reply.status == 200, reply.body
    assert sorted(reply.body["metadata"]["finalizers"]) == ["example.com/a", "example.com/b"]
    assert [c["image"] for c in reply.body["spec"]["containers"]] == ["registry.example/two"]
    second = owner | {"uid": "00000000-0000-0000-0000-000000000002", "name": "other"}
    for reference in (owner, second):
        await api.patch(path, {"metadata": {"ownerReferences": [reference]}}, STRATEGIC)
    removed = {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owner["uid"]}], "finalizers": None}}
    reply = await api.patch(path, removed, STRATEGIC)
    assert [reference["name"] for reference in reply.body["metadata"]["ownerReferences"]] == ["other"]


async def test_apply_creates_then_merges_and_names_its_manager(api: Api) -> None:
    path, applied = api.path("configmaps", "one"), config_map("one")
    created = await api.patch(path, applied, APPLY, fieldManager="tester")
    assert created.status == 201, created.body
    await api.patch(path, {"data": {"theirs": "1"}})
    merged = await api.patch(path, applied | {"data": {"key": "new"}}, APPLY, fieldManager="tester")
    assert merged.status == 200 and merged.body["data"] == {"key": "new", "theirs": "1"}
    managers = {entry["manager"]: entry["operation"] for entry in merged.body["metadata"]["managedFields"]}
    assert managers["tester"] == "Apply"
    again = await api.patch(path, applied | {"data": {"key": "new"}}, APPLY, fieldManager="tester")
    assert again.version == merged.version
    assert (await api.patch(path, applied, APPLY)).status in (400, 422)


async def test_a_patch_of_unknown_type_is_refused(api: Api) -> None:
    await api.create_map("one")
    reply = await api.patch(api.path("configmaps", "one"), {}, "application/json")
    assert (reply.status, reply.body["reason"]) == (415, "UnsupportedMediaType")


async def test_finalizers_hold_a_deleted_object(api: Api) -> None:
    await api.create_map("one", finalizers=["example.com/hold"])
    path = api.path("configmaps", "one")
    reply = await api.delete(path)
    assert reply.status == 200 and reply.body["metadata"]["deletionTimestamp"]
    added = await api.patch(path, {"metadata": {"finalizers": ["example.com/hold", "example.com/late"]}})
    assert (added.status, added.body["reason"]) == (422, "Invalid")
    assert (await api.patch(path, {"data": {"key": "still here"}})).status == 200
    assert (await api.patch(path, {"metadata": {"finalizers": None}})).status == 200
    assert (await api.get(path)).status == 404


async def test_a_deletion_can_ask_for_a_version_and_a_uid(api: Api) -> None:
    made = await api.create_map("one")
    path = api.path("configmaps", "one")
    for precondition in ({"uid": "00000000-0000-0000-0000-000000000000"}, {"resourceVersion": "1"}):
        reply = await api.delete(path, {"preconditions": precondition})
        assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    uid = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    assert (await api.delete(path, {"preconditions": uid})).status == 200
    assert (await api.get(path)).status == 404


async def test_deleting_a_collection_takes_what_is_selected(api: Api) -> None:
    for name, colour in (("a", "red"), ("b", "red"), ("c", "blue")):
        await api.create_map(name, labels={"colour": colour})
    assert (await api.delete(api.path("configmaps"), labelSelector="colour=red")).status == 200
    left = await api.get(api.path("configmaps"), labelSelector="colour")
    assert left.names == ["c"]


async def test_a_deletion_replies_with_the_object_or_with_a_status(api: Api) -> None:
    made = await api.create_map("one")
    await api.create_pod("one")
    status = (await api.delete(api.path("configmaps", "one"))).body
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"] == {"name": "one", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await api.delete(api.path("pods", "one"))).body["kind"] == "Pod"


async def test_versions_of_a_group_show_the_same_object(api: Api) -> None:
    group: Json = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "one"}}
    group["spec"] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    made = await api.create(api.path("podgroups", version="scheduling.k8s.io/v1beta1"), group)
    old = (await api.get(api.path("podgroups", "one", "scheduling.k8s.io/v1alpha3"))).body
    assert old["apiVersion"] == "scheduling.k8s.io/v1alpha3"
    assert (old["metadata"]["uid"], old["spec"]) == (made["metadata"]["uid"], made["spec"])
    assert (made["spec"]["priority"], made["spec"]["disruptionMode"]) == (0, {"single": {}})
    conditions = [{"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled", "message": "",
                   "lastTransitionTime": "2026-01-01T00:00:00Z"}]  # fmt: skip
    patch = {"status": {"conditions": conditions}, "metadata": {"labels": {"not": "taken"}}}
    reply = await api.patch(api.path("podgroups", "one/status", "scheduling.k8s.io/v1beta1"), patch)
    assert reply.status == 200 and "labels" not in reply.body["metadata"]
    assert reply.body["status"]["conditions"][0]["reason"] == "Scheduled"


async def test_dependents_go_with_their_owner(api: Api) -> None:
    owner = await api.create_map("owner")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    made = await api.create_map("dependent", ownerReferences=[reference])
    async with api.watch(
        api.path("configmaps"),
        fieldSelector="metadata.name=dependent",
        resourceVersion=made["metadata"]["resourceVersion"],
    ) as events:
        await api.delete(api.path("configmaps", "owner"), {"propagationPolicy": "Background"})
        assert (await events.next())["type"] == "DELETED"


async def test_dry_run_writes_nothing(api: Api) -> None:
    assert (await api.post(api.path("configmaps"), config_map("one"), dryRun="All")).status == 201
    assert (await api.get(api.path("configmaps", "one"))).status == 404


async def test_an_event_is_one_object_in_both_of_its_apis(api: Api) -> None:
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "regarding": {"kind": "Pod", "namespace": api.namespace, "name": "one"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/scheduler",
        "reportingInstance": "here",
        "action": "Scheduling",
        "reason": "FailedScheduling",
        "type": "Warning",
        "note": "no node fits",
    }
    await api.create(api.path("events", version="events.k8s.io/v1"), event)
    old = await api.get(api.path("events"), fieldSelector="involvedObject.name=one,reason=FailedScheduling")
    (item,) = old.body["items"]
    assert (item["message"], item["involvedObject"]["name"]) == ("no node fits", "one")
    incomplete = {field: value for field, value in event.items() if field != "reportingInstance"}
    reply = await api.post(api.path("events", version="events.k8s.io/v1"), incomplete | {"metadata": {"name": "one.2"}})
    assert (reply.status, reply.body["details"]["causes"][0]["field"]) == (422, "reportingInstance")


async def test_an_old_style_event_has_to_be_where_its_object_is(api: Api) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "involvedObject": {"kind": "Pod", "namespace": api.namespace, "name": "one"},
        "reason": "FailedScheduling",
        "message": "no node fits",
    }
    await api.create(api.path("events"), event)
    elsewhere = event | {"metadata": {"name": "one.2"}, "involvedObject": {"namespace": "default", "name": "one"}}
    assert (await api.post(api.path("events"), elsewhere)).status == 422
