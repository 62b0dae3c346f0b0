# SPDX-License-Identifier: Apache-2.0
"""Deployments and DaemonSets whose pods run: what the contract tests cannot see without kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dovetail.playground import Playground
from tests.contract.api import Json
from tests.patience import PATIENCE_S


def _workload(kind: str, image: str, **spec: object) -> Json:
    labels = {"app": "work"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}]}}
    return {
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "work", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }  # fmt: skip


def _nodes(playground: Playground, count: int) -> None:
    for number in range(count):
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}})


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)


def _status(playground: Playground, collection: str) -> Json:
    found = playground.store.get(collection, "default", "work")
    return found.get("status", {}) if found else {}


def _images(playground: Playground) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in playground.store.list("pods"))


async def test_pods_of_both_run_on_nodes(playground: Playground) -> None:
    _nodes(playground, 2)
    playground.put(_workload("DaemonSet", "one"))
    await _until(lambda: _status(playground, "daemonsets.apps").get("numberReady") == 2)
    assert sorted(pod["spec"]["nodeName"] for pod in playground.store.list("pods")) == ["n0", "n1"]
    playground.delete("daemonsets.apps", "default", "work")
    playground.put(_workload("Deployment", "one", replicas=2))
    await _until(lambda: _status(playground, "deployments.apps").get("readyReplicas") == 2)
    conditions = {c["type"]: c["status"] for c in _status(playground, "deployments.apps")["conditions"]}
    assert conditions["Available"] == "True"


async def test_a_rolling_update_never_takes_more_than_allowed(playground: Playground) -> None:
    _nodes(playground, 4)
    for kind, collection, field in (
        ("DaemonSet", "daemonsets.apps", "numberReady"),
        ("Deployment", "deployments.apps", "readyReplicas"),
    ):
        replicas = {"replicas": 4} if kind == "Deployment" else {}
        playground.put(_workload(kind, "one", **replicas))
        await _until(lambda: _status(playground, collection).get(field) == 4)  # noqa: B023 - awaited in the loop
        least = 4
        playground.put(_workload(kind, "two", **replicas))
        while _images(playground) != ["two"] * 4 or _status(playground, collection).get(field) != 4:
            ready = sum(
                pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
                for pod in playground.store.list("pods")
            )
            least = min(least, ready)
            await asyncio.sleep(0.001)
        assert least >= 3
        playground.delete(collection, "default", "work")
        await _until(lambda: not playground.store.list("pods"))


async def test_a_new_node_gets_a_pod_and_a_failed_pod_is_replaced(playground: Playground) -> None:
    _nodes(playground, 1)
    playground.put(_workload("DaemonSet", "one"))
    await _until(lambda: _status(playground, "daemonsets.apps").get("numberReady") == 1)
    _nodes(playground, 2)
    await _until(lambda: _status(playground, "daemonsets.apps").get("numberReady") == 2)
    first = playground.store.list("pods")[0]
    playground.store.put_raw("pods", first | {"status": first["status"] | {"phase": "Failed"}})
    await _until(
        lambda: first["metadata"]["name"] not in {p["metadata"]["name"] for p in playground.store.list("pods")}
    )
    await _until(lambda: _status(playground, "daemonsets.apps").get("numberReady") == 2)


async def test_a_workload_that_cannot_make_pods_reports_it(playground: Playground) -> None:
    broken = _workload("Deployment", "", replicas=1)
    playground.put(broken)
    await _until(lambda: bool(_status(playground, "deployments.apps").get("conditions")))
    conditions = {c["type"]: c for c in _status(playground, "deployments.apps")["conditions"]}
    assert "image: Required value" in conditions["ReplicaFailure"]["message"]
