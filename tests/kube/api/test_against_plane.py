# SPDX-License-Identifier: Apache-2.0
"""The transport against a real kube-apiserver: what the fakes of the other tests take for granted."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from dovetail.kube.api import watch
from dovetail.kube.api.client import Attempts, Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.api.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, TooManyRequests, Unreachable
from dovetail.kube.api.http1 import Connection
from dovetail.kube.api.lease import Elector, LeaseLock
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import (
    COMPOSITE_POD_GROUPS,
    CONFIG_MAPS,
    NODES,
    PDBS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    VOLCANO_POD_GROUPS,
    WORKLOADS,
    Resource,
)
from dovetail.kube.gangs.owners import owned_by
from dovetail.kube.objects import pods
from tests.kube.api.fake_server import Pod, serve_raw
from tests.kube.api.test_reflector import Balancer, follow, until
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane

TWICE = Attempts(idempotent=True)
NAMESPACE = "transport"


def pod(name: str, **labels: str) -> dict[str, object]:
    spec = {"containers": [{"name": "main", "image": "none"}], "schedulerName": "dovetail"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


@pytest.fixture(scope="module")
def namespace(plane: Plane) -> str:
    plane.kubectl("create", "namespace", NAMESPACE)
    plane.kubectl("wait", f"--namespace={NAMESPACE}", "--for=create", "serviceaccount/default", "--timeout=60s")
    return NAMESPACE


@pytest.fixture
async def client(plane: Plane, namespace: str) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        yield client


async def test_discovery(client: Client) -> None:
    served = await discover(client)
    assert served.first(POD_GROUPS) == POD_GROUPS[0]
    assert served.first(WORKLOADS) == WORKLOADS[0]
    assert all(map(served.has, (PODS, NODES, RESOURCE_CLAIMS, *COMPOSITE_POD_GROUPS)))
    assert not served.has(VOLCANO_POD_GROUPS)
    assert served.failed == ()


async def test_failures_have_their_types(client: Client, plane: Plane) -> None:
    path = CONFIG_MAPS.path(NAMESPACE)
    thing = {"metadata": {"name": "thing"}}
    await client.request("POST", path, thing)
    with pytest.raises(AlreadyExists):
        await client.request("POST", path, thing)
    with pytest.raises(NotFound):
        await client.request("GET", f"{path}/absent")
    with pytest.raises(Conflict):
        await client.request("PUT", f"{path}/thing", {"metadata": {"name": "thing", "resourceVersion": "1"}})
    with pytest.raises(Invalid) as caught:
        await client.request("POST", path, {"metadata": {"name": "No Name"}})
    assert caught.value.details.causes[0].field == "metadata.name"
    async with Client(load_kubeconfig([plane.kubeconfig_for("nobody")])) as stranger:
        with pytest.raises(Forbidden, match='User "nobody" cannot list resource "configmaps"'):
            await stranger.request("GET", path)


async def test_server_side_apply_and_its_conflicts(client: Client) -> None:
    path = CONFIG_MAPS.path(NAMESPACE, "applied")
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
    await client.apply(path, thing)
    await client.apply(path, thing)
    with pytest.raises(Conflict):
        await client.apply(path, thing | {"data": {"a": "2"}}, field_manager="other")
    await client.apply(path, thing | {"data": {"a": "2"}}, field_manager="other", force=True)


async def test_a_binding_and_an_eviction_that_a_budget_forbids(client: Client) -> None:
    await client.request("POST", NODES.path(), {"metadata": {"name": "transport-node"}})
    await client.request("POST", PODS.path(NAMESPACE), pod("guarded", app="guarded"))
    binding = {"metadata": {"name": "guarded"}, "target": {"kind": "Node", "name": "transport-node"}}
    await client.request("POST", PODS.path(NAMESPACE, "guarded", "binding"), binding, attempts=TWICE)
    with pytest.raises(Conflict, match="already assigned"):
        await client.request("POST", PODS.path(NAMESPACE, "guarded", "binding"), binding, attempts=TWICE)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.request(
        "PATCH",
        PODS.path(NAMESPACE, "guarded", "status"),
        {"status": ready},
        content_type="application/merge-patch+json",
    )
    selector = {"matchLabels": {"app": "guarded"}}
    budget = {"metadata": {"name": "guarded"}, "spec": {"minAvailable": 1, "selector": selector}}
    await client.request("POST", PDBS.path(NAMESPACE), budget)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TooManyRequests) as caught:
        await client.request("POST", PODS.path(NAMESPACE, "guarded", "eviction"), {"metadata": {"name": "guarded"}})
    assert caught.value.details.causes[0].reason == "DisruptionBudget"
    assert asyncio.get_running_loop().time() - began_s < 1, "not waited for"
    await client.request("DELETE", PODS.path(NAMESPACE, "guarded"), params={"gracePeriodSeconds": 0})


FOLLOWED = {"labelSelector": "followed=yes", "fieldSelector": f"metadata.namespace={NAMESPACE}"}


async def create(client: Client, name: str) -> None:
    thing = {"metadata": {"name": name, "labels": {"followed": "yes"}}}
    await client.request("POST", CONFIG_MAPS.path(NAMESPACE), thing, attempts=TWICE)


async def delete(client: Client, name: str) -> None:
    await client.request("DELETE", CONFIG_MAPS.path(NAMESPACE, name))


@pytest.mark.parametrize("streaming", [True, False])
async def test_following(client: Client, streaming: bool) -> None:
    path = CONFIG_MAPS.path()
    if not streaming:
        client.without_streaming_list.add(path)
    for name in ("a", "b", "c"):
        await create(client, name)
    in_pages = await list_all(client, CONFIG_MAPS, Pod, params=FOLLOWED, limit=2)
    assert [name for _, name in in_pages.objects] == ["a", "b", "c"]
    async with follow(client, CONFIG_MAPS, params=FOLLOWED) as followed:
        assert await followed.next(3) == [("added", name) for name in "abc"]
        assert (path in client.without_streaming_list) is not streaming
        await create(client, "d")
        await delete(client, "a")
        assert await followed.next(2) == [("added", "d"), ("deleted", "a")]
        for name in "bcd":
            await delete(client, name)
        assert await followed.next(3) == [("deleted", name) for name in "bcd"]


async def test_a_restart_of_the_server_loses_nothing(client: Client, plane: Plane) -> None:
    async with follow(client, CONFIG_MAPS, params=FOLLOWED) as followed:
        await create(client, "before")
        assert await followed.next() == [("added", "before")]
        await asyncio.to_thread(plane.restart_apiserver)
        await create(client, "after")
        async with asyncio.timeout(PATIENCE_S):
            change = await followed.reported.get()
        assert (change.kind, change.object.metadata.name) == ("added", "after")
        await delete(client, "before")
        await delete(client, "after")
        assert await followed.next(2) == [("deleted", "after"), ("deleted", "before")]
        while not followed.errors.empty():
            assert isinstance(followed.errors.get_nowait(), Unreachable)


async def test_an_audit_agrees_with_the_server(client: Client) -> None:
    async with follow(client, CONFIG_MAPS, heartbeat_s=3.0) as followed:
        known = len(followed.reflector.known)
        await followed.next(known)
        drift = await followed.reflector.audit()
        assert (bool(drift), drift.checked) == (False, known)


async def test_a_custom_resource_that_is_not_installed(client: Client) -> None:
    with pytest.raises(NotFound):
        await list_all(client, Resource("example.com", "v1", "nothings", False, "Nothing"), Pod)


async def test_one_of_two_electors_leads_and_then_the_other(client: Client) -> None:
    def stand(name: str) -> tuple[Elector, asyncio.Event]:
        started = asyncio.Event()
        elector = Elector(
            client,
            LeaseLock(NAMESPACE, "dovetail"),
            name,
            on_started_leading=started.set,
            on_stopped_leading=started.clear,
        )
        return elector, started

    (first, first_started), (second, second_started) = stand("first"), stand("second")
    async with asyncio.timeout(PATIENCE_S):
        running = [asyncio.create_task(first.run())]
        await first_started.wait()
        running.append(asyncio.create_task(second.run()))
        await until(lambda: second.leader == first.identity)
        assert not second_started.is_set()
        running[0].cancel()
        await asyncio.wait(running[:1])
        await first.release()
        await second_started.wait()
    assert second.is_leader
    assert not first.is_leader
    running[1].cancel()
    await asyncio.wait(running[1:])


async def test_a_watch_whose_server_is_gone_behind_a_balancer_is_found_out(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real API server sends something by the end of each watch, so that a quiet one is never taken for dead."""
    monkeypatch.setattr(watch, "_LASTS_S", 1)
    begun, head = asyncio.Event(), Connection.head

    async def of_watch(self: Connection) -> int:
        status = await head(self)
        begun.set()
        return status

    monkeypatch.setattr(Connection, "head", of_watch)
    balancer = Balancer(plane.url)
    async with serve_raw(balancer.play) as front:
        config = replace(load_kubeconfig([plane.kubeconfig]), server=front.replace("http:", "https:"))
        own = {"fieldSelector": f"metadata.namespace={namespace}"}
        async with Client(config) as client, follow(client, CONFIG_MAPS, params=own, heartbeat_s=4.5) as seen:
            await seen.reflector.synced.wait()
            await asyncio.sleep(6.0)
            assert seen.errors.empty(), seen.errors.get_nowait()
            # In the midst of a watch. (Of one that has no head yet that would be waited for half a minute.)
            begun.clear()
            await begun.wait()
            balancer.deaf = True
            plane.kubectl(f"--namespace={namespace}", "create", "configmap", "behind")
            async with asyncio.timeout(PATIENCE_S):
                while "behind" not in seen.names():
                    await seen.reported.get()


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("batch/v1\r\nX: y", "j"),
        ("batch/v1?limit=1", "j"),
        ("batch/..", "j"),
        ("batch/v1", ".."),
        ("batch/v1", "../../../secrets/x"),
    ],
)
async def test_an_owner_with_an_invalid_name_is_never_requested(client: Client, version: str, name: str) -> None:
    """The API server takes all of these. In a path they are another request, with the scheduler's rights: the second is
    the list of kinds of batch/v1, which then counts as the Job."""
    owner = {"apiVersion": version, "kind": "Job", "name": name, "uid": "u", "controller": True}
    made = pod("owned", **{"batch.kubernetes.io/job-completion-index": "0"})
    made["metadata"] = {**made["metadata"], "generateName": "owned-", "ownerReferences": [owner]}
    made["metadata"].pop("name")
    stored = await client.request("POST", PODS.path(NAMESPACE), made, decode=pods.Pod)
    assert stored.metadata.owner_references[0].api_version == version
    assert owned_by(stored) is None
