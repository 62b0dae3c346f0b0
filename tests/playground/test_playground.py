# SPDX-License-Identifier: Apache-2.0
"""The playground as its users hold it: put, raw objects, left-out groups, namespaces, scale."""

import asyncio

import pytest

from dovetail.playground import Failure, Playground
from tests.contract.api import Api, config_map, pod, summary


async def test_put_creates_then_replaces_and_writes_the_status(playground: Playground, api: Api) -> None:
    running = pod("one") | {"status": {"phase": "Running"}}
    first = playground.put(running)
    assert (first["status"]["phase"], first["metadata"]["namespace"]) == ("Running", "default")
    running["metadata"]["labels"] = {"app": "changed"}
    assert playground.put(running)["metadata"]["uid"] == first["metadata"]["uid"]
    assert (await api.get(api.path("pods", "one"))).body["metadata"]["labels"] == {"app": "changed"}
    with pytest.raises(Failure, match="Nothing is not served here"):
        playground.put({"apiVersion": "example.com/v1", "kind": "Nothing"})
    with pytest.raises(Failure, match="Required value"):
        playground.put(pod("two", containers=[]))


async def test_a_raw_object_is_served_as_it_is(playground: Playground, api: Api) -> None:
    start = playground.store.version
    bad = {"metadata": {"name": "bad", "namespace": "default"}, "spec": {"containers": "nonsense"}, "status": 7}
    playground.store.put_raw("pods", bad)
    listed = await api.get(api.path("pods"))
    assert listed.body["items"][0]["spec"] == {"containers": "nonsense"}
    async with api.watch(api.path("pods"), resourceVersion=str(start)) as events:
        assert summary(await events.next()) == ("ADDED", "bad")
    table = await api.get(api.path("pods"), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert table.body["rows"][0]["cells"][0] == "bad"


async def test_groups_and_versions_can_be_left_out() -> None:
    playground = Playground(without_groups=["resource.k8s.io", "scheduling.k8s.io/v1beta1"])
    with pytest.raises(Failure):
        playground.put({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}})
    playground.put({"apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "Workload", "metadata": {"name": "w"}})
    with pytest.raises(Failure):
        playground.put({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "w"}})


async def test_a_deleted_namespace_takes_its_contents_along(playground: Playground, api: Api) -> None:
    await api.create_namespace("gone")
    held = config_map("held", finalizers=["example.com/hold"])
    await api.create("/api/v1/namespaces/gone/configmaps", held)
    await api.create("/api/v1/namespaces/gone/pods", pod("one"))
    assert (await api.delete("/api/v1/namespaces/gone")).body["status"]["phase"] == "Terminating"
    assert (await api.get("/api/v1/namespaces/gone/pods/one")).status == 404
    late = await api.post("/api/v1/namespaces/gone/configmaps", config_map("late"))
    assert (late.status, late.body["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    await api.patch("/api/v1/namespaces/gone/configmaps/held", {"metadata": {"finalizers": None}})
    assert (await api.get("/api/v1/namespaces/gone")).status == 404


async def test_orphaned_dependents_stay(api: Api) -> None:
    owner = await api.create_map("owner")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await api.create_map("dependent", ownerReferences=[reference])
    await api.delete(api.path("configmaps", "owner"), {"propagationPolicy": "Orphan"})
    assert "ownerReferences" not in (await api.get(api.path("configmaps", "dependent"))).body["metadata"]


async def test_a_dependent_of_two_owners_goes_with_the_last(api: Api) -> None:
    owners = [await api.create_map(name) for name in ("a", "b")]
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        for owner in owners
    ]
    await api.create_map("dependent", ownerReferences=references)
    await api.delete(api.path("configmaps", "a"))
    kept = (await api.get(api.path("configmaps", "dependent"))).body["metadata"]["ownerReferences"]
    assert [reference["name"] for reference in kept] == ["b"]
    await api.delete(api.path("configmaps", "b"))
    assert (await api.get(api.path("configmaps", "dependent"))).status == 404


async def test_scale_is_the_replicas_of_the_specification(api: Api) -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}}
    await api.create(api.path("deployments", version="apps/v1"), deployment)
    path = api.path("deployments", "web/scale", "apps/v1")
    assert (await api.get(path)).body["spec"] == {"replicas": 2}
    assert (await api.patch(path, {"spec": {"replicas": 5}})).body["spec"] == {"replicas": 5}
    assert (await api.get(api.path("deployments", "web", "apps/v1"))).body["spec"]["replicas"] == 5


async def test_bodies_that_are_no_objects_are_bad_requests(api: Api) -> None:
    for body in ([1], "text", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": 3}):
        assert (await api.request("POST", api.path("configmaps"), body)).status == 400
    numbers = config_map("one", labels={"size": 1})
    assert (await api.post(api.path("configmaps"), numbers)).status == 400
    await api.create_map("one")
    assert (await api.patch(api.path("configmaps", "one"), [1])).status == 400


async def test_a_budget_counts_for_the_scale_of_a_controller(playground: Playground, api: Api) -> None:
    scale = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {"replicas": 4}}
    owner = playground.put(scale)["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner["uid"], "controller": True}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("a", "b", "c"):
        member = pod(name, nodeName="nowhere") | {"status": ready}
        member["metadata"] = {"name": name, "labels": {"app": "web"}, "ownerReferences": [reference]}
        playground.put(member)
    spec = {"maxUnavailable": "50%", "selector": {"matchLabels": {"app": "web"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec}
    playground.put(budget)
    evictions = [
        await api.post(
            api.path("pods", f"{name}/eviction"),
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
        )
        for name in ("a", "b")
    ]
    assert [reply.status for reply in evictions] == [201, 429]
    cause = evictions[1].body["details"]["causes"][0]
    assert cause["message"] == "The disruption budget web needs 2 healthy pods and has 2 currently"


async def test_memory_of_changes_is_bounded_while_objects_are_not(playground: Playground) -> None:
    for number in range(200):
        playground.store.put_raw("configmaps", config_map(f"m{number}", namespace="default"))
    collection = playground.store.collection("configmaps")
    assert (len(collection.objects), len(collection.changes)) == (200, 50)


async def test_a_watcher_that_is_too_slow_gets_an_error(playground: Playground, api: Api) -> None:
    async with api.watch(api.path("configmaps"), resourceVersion=str(playground.store.version)) as events:
        playground.faults.watches_flow.clear()
        for number in range(60):
            playground.store.put_raw("configmaps", config_map(f"m{number}", namespace="default"))
        await asyncio.sleep(0)
        playground.faults.watches_flow.set()
        assert (await events.next())["object"]["code"] == 410
