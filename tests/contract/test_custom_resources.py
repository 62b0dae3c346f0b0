# SPDX-License-Identifier: Apache-2.0
"""Custom resources: served as soon as they are defined, with status and watch."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.api import STRATEGIC, Api, Json, summary


@pytest.fixture
async def widgets(api: Api) -> AsyncIterator[str]:
    """The path of a resource that was defined a moment ago."""
    group = f"{api.namespace}.example.com"
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }  # fmt: skip
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }  # fmt: skip
    await api.create(definitions, definition)
    async with api.watch(definitions, fieldSelector=f"metadata.name=widgets.{group}") as events:
        while not _established((await events.next())["object"]):
            pass
    path = api.path("widgets", version=f"{group}/v1alpha1")
    # A real server serves the resource some moments after it reports it: first 404, then 429.
    while (await api.get(path)).status != 200:
        pass
    yield path
    await api.delete(f"{definitions}/widgets.{group}")


def _established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def widget(path: str, name: str, size: int = 1) -> Json:
    group, version = path.split("/")[2:4]
    kind = {"apiVersion": f"{group}/{version}", "kind": "Widget"}
    return kind | {"metadata": {"name": name}, "spec": {"size": size}, "status": {"state": "set by its creator"}}


async def test_a_custom_resource_is_listed_and_watched(api: Api, widgets: str) -> None:
    async with api.watch(widgets, resourceVersion=(await api.get(widgets)).version) as events:
        made = await api.create(widgets, widget(widgets, "one"))
        await api.patch(f"{widgets}/one", {"spec": {"size": 2}})
        await api.delete(f"{widgets}/one")
        seen = [await events.next() for _ in range(3)]
    assert [summary(event) for event in seen] == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    assert made["spec"] == {"size": 1} and seen[1]["object"]["spec"] == {"size": 2}
    listed = await api.get(widgets)
    assert (listed.body["kind"], listed.body["items"]) == ("WidgetList", [])


async def test_status_has_its_own_path_and_generation_counts_the_rest(api: Api, widgets: str) -> None:
    made = await api.create(widgets, widget(widgets, "one"))
    assert "status" not in made and made["metadata"]["generation"] == 1
    status = await api.patch(f"{widgets}/one/status", {"status": {"state": "ready"}, "spec": {"size": 9}})
    assert (status.body["status"], status.body["spec"]) == ({"state": "ready"}, {"size": 1})
    assert status.body["metadata"]["generation"] == 1
    main = await api.patch(f"{widgets}/one", {"status": {"state": "lost"}, "spec": {"size": 2}})
    assert (main.body["status"], main.body["spec"]) == ({"state": "ready"}, {"size": 2})
    assert main.body["metadata"]["generation"] == 2
    labelled = await api.patch(f"{widgets}/one", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.body["metadata"]["generation"] == 2


async def test_a_custom_resource_takes_no_strategic_patch_and_no_update_without_version(api: Api, widgets: str) -> None:
    await api.create(widgets, widget(widgets, "one"))
    assert (await api.patch(f"{widgets}/one", {"spec": {"size": 2}}, STRATEGIC)).status == 415
    reply = await api.put(f"{widgets}/one", widget(widgets, "one", 2))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")


async def test_an_undefined_resource_is_gone_with_its_objects(api: Api, widgets: str) -> None:
    await api.create(widgets, widget(widgets, "one"))
    group = widgets.split("/")[2]
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with api.watch(definitions, fieldSelector=f"metadata.name=widgets.{group}") as events:
        await api.delete(f"{definitions}/widgets.{group}")
        while (await events.next())["type"] != "DELETED":
            pass
    while (await api.get(widgets)).status != 404:
        pass
    assert (await api.get(f"{widgets}/one")).status == 404
