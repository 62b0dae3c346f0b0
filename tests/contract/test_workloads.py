# SPDX-License-Identifier: Apache-2.0
"""Deployments and DaemonSets: their pods, revisions, statuses, and their end.

Whether pods are bound and run is left open: on the real server they are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.api import Api, Json
from tests.patience import PATIENCE_S

APPS = "apps/v1"
NOT_READY = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in ("not-ready", "unreachable")]


def _workload(api: Api, kind: str, image: str = "registry.example/one", **spec: Any) -> Json:
    labels = {"app": "work"}
    pod = {
        "containers": [{"name": "main", "image": image}],
        "tolerations": NOT_READY,
        "nodeSelector": {"test": api.namespace},
        "terminationGracePeriodSeconds": 0,
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": APPS, "kind": kind, "metadata": {"name": "work"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }  # fmt: skip


async def _nodes(api: Api, *names: str, **spec: Any) -> None:
    for name in names:
        full = f"{api.namespace}-{name}"
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        document = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": full, "labels": {"test": api.namespace}},
            "spec": spec, "status": {"conditions": [ready]},
        }  # fmt: skip
        await api.create("/api/v1/nodes", document)


async def _until(api: Api, path: str, condition: Callable[[Json], bool]) -> Json:
    """The object or list at the path, when it is as it should be."""
    found: Json = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = (await api.get(path)).body
                if condition(found):
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{path} is {found}") from None


async def _pods(api: Api, condition: Callable[[list[Json]], bool]) -> list[Json]:
    """The pods that are not being deleted, when they are as they should be."""

    def alive(found: Json) -> list[Json]:
        return [pod for pod in found.get("items", ()) if "deletionTimestamp" not in pod["metadata"]]

    return alive(await _until(api, api.path("pods"), lambda found: condition(alive(found))))


def _status(**wanted: int) -> Callable[[Json], bool]:
    return lambda found: all(found.get("status", {}).get(name, 0) == value for name, value in wanted.items())


def _images(pods: list[Json]) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


async def test_a_deployment_has_a_replica_set_and_that_has_pods(api: Api) -> None:
    made = await api.create(api.path("deployments", version=APPS), _workload(api, "Deployment", replicas=2))
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
    path = api.path("deployments", "work", APPS)
    one = await _until(api, path, _status(replicas=2, updatedReplicas=2, observedGeneration=1))
    (owned,) = (await api.get(api.path("replicasets", version=APPS))).body["items"]
    (reference,) = owned["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"], reference["controller"]) == (
        "Deployment",
        one["metadata"]["uid"],
        True,
    )
    label = owned["metadata"]["labels"]["pod-template-hash"]
    assert owned["metadata"]["name"] == f"work-{label}"
    assert owned["spec"]["selector"]["matchLabels"] == {"app": "work", "pod-template-hash": label}
    assert owned["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    pods = await _pods(api, lambda pods: len(pods) == 2)
    assert {pod["metadata"]["labels"]["pod-template-hash"] for pod in pods} == {label}
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {owned["metadata"]["uid"]}


async def test_a_pod_that_is_deleted_is_made_again(api: Api) -> None:
    await api.create(api.path("deployments", version=APPS), _workload(api, "Deployment", replicas=1))
    (first,) = await _pods(api, lambda pods: len(pods) == 1)
    await api.delete(api.path("pods", first["metadata"]["name"]))
    (second,) = await _pods(api, lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != first["metadata"]["uid"])
    assert second["metadata"]["labels"] == first["metadata"]["labels"]


async def test_a_deployment_is_scaled_and_recreated(api: Api) -> None:
    strategy = {"type": "Recreate"}
    await api.create(api.path("deployments", version=APPS), _workload(api, "Deployment", replicas=1, strategy=strategy))
    path = api.path("deployments", "work", APPS)
    await _pods(api, lambda pods: len(pods) == 1)
    await api.patch(path, {"spec": {"replicas": 3}})
    await _until(api, path, _status(replicas=3, observedGeneration=2))
    changed = _workload(api, "Deployment", "registry.example/two", replicas=3, strategy=strategy)
    await api.patch(path, {"spec": {"template": changed["spec"]["template"]}})
    await _pods(api, lambda pods: _images(pods) == ["registry.example/two"] * 3)
    sets = (await api.get(api.path("replicasets", version=APPS))).body["items"]
    assert sorted(one["spec"]["replicas"] for one in sets) == [0, 3]
    await api.patch(path, {"spec": {"replicas": 0}})
    await _pods(api, lambda pods: not pods)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_a_deleted_deployment_takes_all_along(api: Api, policy: str) -> None:
    await api.create(api.path("deployments", version=APPS), _workload(api, "Deployment", replicas=2))
    await _pods(api, lambda pods: len(pods) == 2)
    await api.delete(api.path("deployments", "work", APPS), propagationPolicy=policy)
    await _until(api, api.path("pods"), lambda found: not found["items"])
    await _until(api, api.path("replicasets", version=APPS), lambda found: not found["items"])
    await _until(api, api.path("deployments", "work", APPS), lambda found: found.get("code") == 404)


def _node_of(pod: Json) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    return term["matchFields"][0]["values"][0]


async def test_a_daemon_set_has_a_pod_for_each_node_that_it_selects(api: Api) -> None:
    await _nodes(api, "a", "b")
    await _nodes(api, "tainted", taints=[{"key": "example.com/own", "effect": "NoSchedule"}])
    made = await api.create(api.path("daemonsets", version=APPS), _workload(api, "DaemonSet"))
    assert made["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    path = api.path("daemonsets", "work", APPS)
    wanted = {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 2}
    one = await _until(api, path, _status(**wanted, observedGeneration=1, numberMisscheduled=0))
    (revision,) = (await api.get(api.path("controllerrevisions", version=APPS))).body["items"]
    assert revision["revision"] == 1 and revision["metadata"]["ownerReferences"][0]["uid"] == one["metadata"]["uid"]
    assert revision["data"]["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/one"
    label = revision["metadata"]["labels"]["controller-revision-hash"]
    assert revision["metadata"]["name"] == f"work-{label}"
    pods = await _pods(api, lambda pods: len(pods) == 2)
    for pod in pods:
        assert pod["metadata"]["labels"]["controller-revision-hash"] == label
        assert pod["metadata"]["labels"]["pod-template-generation"] == "1"
    assert sorted(map(_node_of, pods)) == [f"{api.namespace}-a", f"{api.namespace}-b"]


async def test_on_delete_a_pod_is_replaced_when_it_is_deleted(api: Api) -> None:
    await _nodes(api, "a")
    await api.create(
        api.path("daemonsets", version=APPS), _workload(api, "DaemonSet", updateStrategy={"type": "OnDelete"})
    )
    path = api.path("daemonsets", "work", APPS)
    (first,) = await _pods(api, lambda pods: len(pods) == 1)
    changed = _workload(api, "DaemonSet", "registry.example/two")
    await api.patch(path, {"spec": {"template": changed["spec"]["template"]}})
    await _until(api, path, _status(observedGeneration=2, updatedNumberScheduled=0, currentNumberScheduled=1))
    await asyncio.sleep(0.2)
    (same,) = await _pods(api, lambda pods: len(pods) == 1)
    assert same["metadata"]["uid"] == first["metadata"]["uid"]
    await api.delete(api.path("pods", first["metadata"]["name"]))
    (second,) = await _pods(api, lambda pods: len(pods) == 1 and pods[0]["metadata"]["uid"] != first["metadata"]["uid"])
    assert _images([second]) == ["registry.example/two"]
    assert second["metadata"]["labels"]["pod-template-generation"] == "2"
    await _until(api, path, _status(updatedNumberScheduled=1))
    revisions = (await api.get(api.path("controllerrevisions", version=APPS))).body["items"]
    assert sorted(one["revision"] for one in revisions) == [1, 2]


async def test_an_older_template_is_the_newest_revision_again(api: Api) -> None:
    path = api.path("daemonsets", "work", APPS)
    await api.create(api.path("daemonsets", version=APPS), _workload(api, "DaemonSet"))
    await _until(api, path, _status(observedGeneration=1))
    for generation, image in ((2, "registry.example/two"), (3, "registry.example/one")):
        template = _workload(api, "DaemonSet", image)["spec"]["template"]
        await api.patch(path, {"spec": {"template": template}})
        await _until(api, path, _status(observedGeneration=generation))
    found = await _until(
        api, api.path("controllerrevisions", version=APPS),
        lambda found: sorted(one["revision"] for one in found["items"]) == [2, 3],
    )  # fmt: skip
    (newest,) = [one for one in found["items"] if one["revision"] == 3]
    assert newest["data"]["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/one"


async def test_a_rolling_update_replaces_pods_by_itself(api: Api) -> None:
    await _nodes(api, "a")
    await api.create(api.path("daemonsets", version=APPS), _workload(api, "DaemonSet"))
    await _pods(api, lambda pods: len(pods) == 1)
    changed = _workload(api, "DaemonSet", "registry.example/two")
    await api.patch(api.path("daemonsets", "work", APPS), {"spec": {"template": changed["spec"]["template"]}})
    await _pods(api, lambda pods: _images(pods) == ["registry.example/two"])


async def test_a_node_that_is_not_selected_any_more_has_no_pod(api: Api) -> None:
    await _nodes(api, "a", "b")
    await api.create(api.path("daemonsets", version=APPS), _workload(api, "DaemonSet"))
    for pod in await _pods(api, lambda pods: len(pods) == 2):
        # On the playground they are bound already.
        await api.bind(pod["metadata"]["name"], _node_of(pod))
    await _until(api, api.path("daemonsets", "work", APPS), _status(currentNumberScheduled=2))
    await api.patch(f"/api/v1/nodes/{api.namespace}-a", {"metadata": {"labels": {"test": "other"}}})
    await _pods(api, lambda pods: len(pods) == 1)
    await _until(api, api.path("daemonsets", "work", APPS), _status(desiredNumberScheduled=1))


async def test_a_deleted_daemon_set_takes_pods_and_revisions_along(api: Api) -> None:
    await _nodes(api, "a")
    await api.create(api.path("daemonsets", version=APPS), _workload(api, "DaemonSet"))
    await _pods(api, lambda pods: len(pods) == 1)
    await api.delete(api.path("daemonsets", "work", APPS), propagationPolicy="Foreground")
    await _until(api, api.path("pods"), lambda found: not found["items"])
    await _until(api, api.path("controllerrevisions", version=APPS), lambda found: not found["items"])
