# SPDX-License-Identifier: Apache-2.0
"""Whole collections: pages, an expired list, objects that do not decode, and what a server serves."""

import gc
from typing import Any

import pytest
from aiohttp import web

from dovetail.kube.api import listing as listing_module
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.decoding import Reader
from dovetail.kube.api.discovery import discover
from dovetail.kube.api.errors import BadReply, Gone
from dovetail.kube.api.listing import gc_paused, list_all
from dovetail.kube.api.resources import POD_GROUPS, PODS, RESOURCE_CLAIMS, VOLCANO_POD_GROUPS
from tests.kube.api.fake_server import Collection, Pod, serve, status


async def test_pages_make_one_list(client: Client, collection: Collection) -> None:
    for number in range(5):
        await collection.put(f"p{number}")
    listing = await list_all(client, PODS, Pod, params={"labelSelector": "a=b"}, limit=2)
    assert [name for _, name in sorted(listing.objects)] == ["p0", "p1", "p2", "p3", "p4"]
    assert listing.resource_version == "105"
    assert [request.query.get("continue") for request in collection.requests] == [None, "2.105", "4.105"]
    assert {request.query["labelSelector"] for request in collection.requests} == {"a=b"}


async def test_a_list_that_expires_half_way_begins_again_and_ends_in_one_page(
    client: Client, collection: Collection
) -> None:
    for number in range(3):
        await collection.put(f"p{number}")
    pass_on = collection._list

    async def page(request: web.Request) -> web.Response:
        return pass_on(request)

    expired = status(410, "Expired")
    collection.faults = [page, expired, page]
    listing = await list_all(client, PODS, Pod, limit=2)
    assert (len(listing.objects), len(collection.requests)) == (3, 4)
    collection.requests.clear()
    collection.faults = [page, expired, page, expired]
    assert len((await list_all(client, PODS, Pod, limit=2)).objects) == 3
    assert "limit" not in collection.requests[-1].query
    collection.faults = [expired] * 3
    with pytest.raises(Gone):
        await list_all(client, PODS, Pod, limit=2)


async def test_a_bad_object_is_left_out_and_named(client: Client, collection: Collection) -> None:
    await collection.put("good")
    await collection.put("bad", priority="high")
    listing = await list_all(client, PODS, Pod)
    assert list(listing.objects) == [("ns", "good")]
    (bad,) = listing.bad
    assert bad.key == ("ns", "bad")
    assert bad.problem == "Expected `int`, got `str` - at `$.spec.priority`"


async def test_pages_become_shorter_where_objects_are_long(
    client: Client, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 64 * 1024
    monkeypatch.setattr(listing_module, "MOST_PAGE_BYTES", most)
    read: list[int] = []
    page = Reader.page

    def counted(self: Reader[Pod], body: bytes) -> Any:
        read.append(len(body))
        return page(self, body)

    monkeypatch.setattr(Reader, "page", counted)
    for number in range(300):
        # Short ones, long ones, one that is longer than a page may be, and short ones again.
        long = 3 * most if number == 150 else 8 * 1024 if 100 <= number < 200 else 10
        await collection.put(f"p{number:03}", padding="x" * long)
    listing = await list_all(client, PODS, Pod, limit=100)
    assert [name for _, name in listing.objects] == [f"p{number:03}" for number in range(300)]
    assert sorted(read)[-2] <= most < sorted(read)[-1]
    assert len(collection.requests) < 60
    assert int(collection.requests[-1].query["limit"]) > 20, "short pages have become longer again"


async def test_what_is_no_list_is_a_bad_reply(client: Client, collection: Collection) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    collection.faults = [page]
    with pytest.raises(BadReply):
        await list_all(client, PODS, Pod)


def test_the_garbage_collector_comes_back_after_the_last_of_several_pauses() -> None:
    first, second = gc_paused(), gc_paused()
    with first:
        second.__enter__()
        assert not gc.isenabled()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled(), "it was off before and stays off"
    finally:
        gc.enable()


def test_what_is_kept_is_left_out_before_the_collector_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with gc_paused():
        pass
    assert not frozen
    with gc_paused(kept=True):
        pass
    assert frozen == [False]


AGGREGATED = {
    "/api": {"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [{"resource": "pods"}]}]}]},
    "/apis": {
        "items": [
            {
                "metadata": {"name": "scheduling.k8s.io"},
                "versions": [
                    {"version": "v1", "resources": [{"resource": "priorityclasses"}], "freshness": "Current"},
                    {"version": "v1alpha3", "resources": [{"resource": "podgroups"}, {"resource": "workloads"}]},
                ],
            },
            {
                "metadata": {"name": "scheduling.volcano.sh"},
                "versions": [{"version": "v1beta1", "resources": [{"resource": "podgroups"}], "freshness": "Stale"}],
            },
        ]
    },
}
ONE_BY_ONE = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [{"name": "pods"}, {"name": "pods/binding"}]},
    "/apis": {
        "groups": [
            {
                "name": "scheduling.k8s.io",
                "versions": [
                    {"groupVersion": "scheduling.k8s.io/v1", "version": "v1"},
                    {"groupVersion": "scheduling.k8s.io/v1alpha3", "version": "v1alpha3"},
                ],
            },
            {"name": "scheduling.volcano.sh", "versions": [{"groupVersion": "scheduling.volcano.sh/v1beta1"}]},
        ]
    },
    "/apis/scheduling.k8s.io/v1": {"resources": [{"name": "priorityclasses"}]},
    "/apis/scheduling.k8s.io/v1alpha3": {"resources": [{"name": "podgroups"}, {"name": "workloads"}]},
}


@pytest.mark.parametrize("documents", [AGGREGATED, ONE_BY_ONE], ids=["aggregated", "one by one"])
async def test_discovery_survives_a_group_that_is_down(documents: dict) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path in ("/api", "/apis"):
            assert "APIGroupDiscoveryList" in request.headers["Accept"]
        if request.path in documents:
            return web.json_response(documents[request.path])
        return await status(503, "ServiceUnavailable")(request)

    async with serve(handler) as url, Client(ClusterConfig(url), jitter=lambda: 0.0) as client:
        served = await discover(client)
    assert served.has(PODS)
    assert not served.has(RESOURCE_CLAIMS)
    assert served.first(POD_GROUPS) == POD_GROUPS[1]
    assert served.first([VOLCANO_POD_GROUPS, RESOURCE_CLAIMS]) is None
    assert served.failed == ("scheduling.volcano.sh/v1beta1",)
