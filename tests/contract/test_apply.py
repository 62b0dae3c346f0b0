# SPDX-License-Identifier: Apache-2.0
"""Server-side apply: the owner of a field decides what an apply does with it."""

from __future__ import annotations

from typing import Any

from tests.contract.api import APPLY, STRATEGIC, Api, Json, config_map


async def _apply(api: Api, data: Json, manager: str, *, force: bool = False, **metadata: Any) -> Any:
    path = api.path("configmaps", "one")
    document = config_map("one", **metadata) | {"data": data}
    return await api.patch(path, document, APPLY, fieldManager=manager, force=str(force).lower())


async def test_a_field_that_is_not_applied_any_more_is_removed(api: Api) -> None:
    await _apply(api, {"a": "1", "b": "2"}, "first", labels={"x": "1", "y": "2"})
    reply = await _apply(api, {"a": "1"}, "first", labels={"x": "1"})
    assert reply.body["data"] == {"a": "1"} and reply.body["metadata"]["labels"] == {"x": "1"}


async def test_a_field_that_another_manager_owns_too_stays(api: Api) -> None:
    await _apply(api, {"a": "1", "b": "2"}, "first")
    assert (await _apply(api, {"b": "2"}, "second")).status == 200
    assert (await _apply(api, {"a": "1"}, "first")).body["data"] == {"a": "1", "b": "2"}
    assert (await _apply(api, {"c": "3"}, "second")).body["data"] == {"a": "1", "c": "3"}


async def test_another_value_of_a_field_of_others_is_a_conflict(api: Api) -> None:
    await _apply(api, {"a": "1"}, "first")
    refused = await _apply(api, {"a": "2"}, "second")
    assert (refused.status, refused.body["reason"]) == (409, "Conflict")
    assert [(c["reason"], c["field"]) for c in refused.body["details"]["causes"]] == [
        ("FieldManagerConflict", ".data.a")
    ]
    forced = await _apply(api, {"a": "2"}, "second", force=True)
    assert forced.body["data"] == {"a": "2"}
    assert (await _apply(api, {"a": "1"}, "first")).status == 409


async def test_a_patch_takes_fields_over(api: Api) -> None:
    await _apply(api, {"a": "1", "b": "2"}, "first")
    await api.patch(api.path("configmaps", "one"), {"data": {"a": "changed"}}, fieldManager="hand")
    assert (await _apply(api, {"a": "1", "b": "2"}, "first")).status == 409
    left = await _apply(api, {"b": "2"}, "first")
    assert left.body["data"] == {"a": "changed", "b": "2"}
    managers = {(e["manager"], e["operation"]): e["fieldsV1"] for e in left.body["metadata"]["managedFields"]}
    assert managers["first", "Apply"] == {"f:data": {"f:b": {}}}
    assert managers["hand", "Update"] == {"f:data": {"f:a": {}}}
    forced = await _apply(api, {"a": "1", "b": "2"}, "first", force=True)
    assert forced.body["data"] == {"a": "1", "b": "2"}


async def test_a_field_that_a_patch_removed_has_no_owner(api: Api) -> None:
    await _apply(api, {"a": "1", "b": "2"}, "first")
    await api.patch(api.path("configmaps", "one"), {"data": {"a": None}}, fieldManager="hand")
    reply = await _apply(api, {"a": "3", "b": "2"}, "second")
    assert (reply.status, reply.body["data"]) == (200, {"a": "3", "b": "2"})


async def test_elements_of_lists_with_keys_have_owners(api: Api) -> None:
    def deployment(*names: str, image: str = "registry.example/none") -> Json:
        labels = {"app": "one"}
        containers = [{"name": name, "image": image} for name in names]
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "one"}, "spec": spec}

    path = api.path("deployments", "one", "apps/v1")
    assert (await api.patch(path, deployment("a", "b"), APPLY, fieldManager="first")).status == 201
    sidecar = {"spec": {"template": {"spec": {"containers": [{"name": "s", "image": "registry.example/side"}]}}}}
    await api.patch(path, sidecar, STRATEGIC, fieldManager="hand")
    left = await api.patch(path, deployment("b"), APPLY, fieldManager="first")
    assert sorted(c["name"] for c in left.body["spec"]["template"]["spec"]["containers"]) == ["b", "s"]


async def test_an_apply_of_a_status_makes_no_object(api: Api) -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "one"}}
    path = api.path("poddisruptionbudgets", "one/status", "policy/v1")
    reply = await api.patch(path, budget | {"status": {"disruptionsAllowed": 1}}, APPLY, fieldManager="first")
    assert reply.status == 404
