# SPDX-License-Identifier: Apache-2.0
"""Lists that are read as far as they may be, and the reasons for those that are left out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.resources import NODES, PODS, QUEUES
from dovetail.kube.objects.pods import Pod
from dovetail.kube.reading.lists import ListReply, ListRequest, list_permitted, read_lists
from dovetail.playground import Fault, Playground

AS_PODS = ListRequest(PODS, Pod)
AS_DOCUMENTS = ListRequest(PODS, None)


def pod(name: str, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "m", "image": "i"}]}}


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    found = Playground()
    await found.start()
    for name in ("a", "b", "c"):
        found.put(pod(name, team="red" if name == "b" else "blue"))
    try:
        yield found
    finally:
        await found.stop()


async def read(playground: Playground, *requests: ListRequest) -> tuple[ListReply, ...]:
    return await read_lists(ClusterConfig(playground.url), requests)


async def test_objects_come_typed_or_as_documents(playground: Playground) -> None:
    pods, documents = await read(playground, AS_PODS, AS_DOCUMENTS)
    assert [one.metadata.name for one in pods.objects or ()] == ["a", "b", "c"]
    assert {type(one) for one in pods.objects or ()} == {Pod}
    assert [one["metadata"]["name"] for one in documents.objects or ()] == ["a", "b", "c"]
    assert {
        (one["apiVersion"], one["kind"], one["spec"]["containers"][0]["image"]) for one in documents.objects or ()
    } == {("v1", "Pod", "i")}


async def test_documents_are_read_in_pages(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.kube.reading.lists._PAGE", 2)
    (documents,) = await read(playground, AS_DOCUMENTS)
    assert [one["metadata"]["name"] for one in documents.objects or ()] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [Pod, None])
async def test_labels_select(playground: Playground, kind: type[Pod] | None) -> None:
    (red,) = await read(playground, ListRequest(PODS, kind, {"team": "red"}))
    assert len(red.objects or ()) == 1


async def test_a_kind_that_is_not_served_has_no_objects(playground: Playground) -> None:
    assert await read(playground, ListRequest(QUEUES, None)) == (ListReply(()),)


@pytest.mark.parametrize("request_", [AS_PODS, AS_DOCUMENTS])
async def test_a_forbidden_list_is_left_out_with_the_reason(playground: Playground, request_: ListRequest) -> None:
    playground.faults.add(Fault("answer", "GET", "pods", status=403))
    forbidden, nodes = await read(playground, request_, ListRequest(NODES, None))
    assert forbidden.objects is None and "GET /api/v1/pods: 403" in forbidden.unread
    assert nodes == ListReply(())


async def test_the_reason_is_one_sentence_about_the_right(playground: Playground) -> None:
    message = 'pods is forbidden: User "ada" cannot list resource "pods" in API group "" at the cluster scope'
    playground.faults.add(Fault("answer", "GET", "pods", status=403, message=message))
    (forbidden,) = await read(playground, AS_PODS)
    assert forbidden.unread == "user ada has no right to list pods: an admin can grant it"


@pytest.mark.parametrize("request_", [AS_PODS, AS_DOCUMENTS])
async def test_a_kind_that_ends_meanwhile_has_no_objects(playground: Playground, request_: ListRequest) -> None:
    playground.faults.add(Fault("answer", "GET", "pods", status=404))
    assert await read(playground, request_) == (ListReply(()),)


async def test_other_errors_are_raised(playground: Playground) -> None:
    playground.faults.add(Fault("answer", "GET", "pods", status=400))
    with pytest.raises(ApiError):
        await read(playground, AS_PODS)


async def test_an_api_server_that_does_not_answer_takes_only_its_own_kinds(playground: Playground) -> None:
    served = Served(frozenset({("v1", "pods")}), failed=("dovetail.dev/v1alpha1",))
    async with Client(ClusterConfig(playground.url)) as client:
        lost = await list_permitted(client, served, ListRequest(QUEUES, None))
        pods = await list_permitted(client, served, AS_PODS)
    assert lost == ListReply(None, unread="the server of dovetail.dev/v1alpha1 did not answer")
    assert len(pods.objects or ()) == 3


async def test_an_object_that_cannot_be_decoded_is_named(playground: Playground) -> None:
    bad = pod("d")
    bad["spec"]["nodeName"] = 7
    playground.put(bad)
    (pods,) = await read(playground, AS_PODS)
    assert [one.metadata.name for one in pods.objects or ()] == ["a", "b", "c"]
    assert [one.key for one in pods.bad] == [("default", "d")]
