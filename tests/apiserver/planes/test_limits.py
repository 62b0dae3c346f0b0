# SPDX-License-Identifier: Apache-2.0
"""What a plane may use, and the answers that it gets beyond that."""

import asyncio
import contextlib

import aiohttp
import pytest

from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from dovetail.apiserver.planes.limits import COMPUTING_S, PlaneLimits, RequestBudget
from tests.apiserver.planes.conftest import Client
from tests.contract.api import APPLY, JSON_PATCH, MERGE, config_map
from tests.patience import PATIENCE_S


def limited(**limits: float) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("host", [HostOptions(limits=PlaneLimits(**limits))], indirect=True)


@limited(objects=4)
async def test_the_number_of_objects_is_limited(client: Client) -> None:
    api = await client()
    for name in ("a", "b", "c"):
        await api.create_map(name)
    refused = await api.post(api.path("configmaps"), config_map("d"))
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    assert refused.body["message"] == (
        'configmaps "d" is forbidden: exceeded quota: requested: 1 object, used: 4, limited: 4'
    )
    assert (await api.patch(api.path("configmaps", "a"), {"data": {"key": "other"}})).status == 200
    await api.delete(api.path("configmaps", "a"))
    await api.create_map("d")


@limited(size=3000, object_size=2000)
async def test_bytes_are_limited_and_deletions_always_have_room(client: Client) -> None:
    api = await client()
    held = config_map("held", finalizers=["example.com/hold"]) | {"data": {"key": "x" * 1500}}
    await api.create(api.path("configmaps"), held)
    large = await api.post(api.path("configmaps"), config_map("large") | {"data": {"key": "x" * 2500}})
    assert (large.status, large.body["reason"]) == (413, "RequestEntityTooLarge")
    assert "at most 2000 are stored" in large.body["message"]
    await api.create(api.path("configmaps"), config_map("fill") | {"data": {"key": "x" * 600}})
    more = await api.post(api.path("configmaps"), config_map("more") | {"data": {"key": "x" * 900}})
    assert more.status == 403 and "limited: 3000" in more.body["message"]
    grown = await api.patch(api.path("configmaps", "fill"), {"data": {"more": "x" * 900}})
    assert grown.status == 403
    assert (await api.delete(api.path("configmaps", "held"))).status == 200
    assert (await api.patch(api.path("configmaps", "held"), {"metadata": {"finalizers": None}})).status == 200
    assert (await api.get(api.path("configmaps"))).names == ["fill"]


@limited(objects=4)
async def test_a_job_without_room_for_its_pods_waits_until_something_is_deleted(client: Client) -> None:
    api = await client()
    await api.create_map("in-the-way")
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"template": template}}
    job["spec"] |= {"parallelism": 2, "completions": 2}
    jobs = api.path("jobs", version="batch/v1")
    await api.create(jobs, job)

    async def condition(status: str) -> dict[str, str]:
        """The first condition of the job, once it has this status."""
        while True:
            found = (await api.get(f"{jobs}/train")).body.get("status", {}).get("conditions")
            if found and found[0]["status"] == status:
                return dict(found[0])
            await asyncio.sleep(0.01)

    refused = await condition("True")
    assert refused["type"] == "dovetail.dev/PodsRefused"
    assert "exceeded quota: requested: 1 object, used: 4, limited: 4" in refused["message"]
    assert len((await api.get(api.path("pods"))).names) == 1
    await api.delete(api.path("configmaps", "in-the-way"))
    await condition("False")
    assert len((await api.get(api.path("pods"))).names) == 2


@limited(objects=50)
async def test_a_job_of_very_many_pods_is_bounded_by_the_plane(client: Client) -> None:
    api = await client()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"template": template}}
    jobs = api.path("jobs", version="batch/v1")
    for field in ("parallelism", "completions"):
        for value in (10**12, -1, "many"):
            refused = await api.post(jobs, job | {"spec": job["spec"] | {field: value}})
            assert refused.status == 422 and f"spec.{field}" in refused.body["message"]
    many = {"parallelism": 100_000, "completions": 100_000, "completionMode": "Indexed"}
    await api.create(jobs, job | {"spec": job["spec"] | many})
    async with api.watch(jobs) as events:
        while not (await events.next())["object"]["status"].get("conditions"):
            pass
    assert len((await api.get(api.path("pods"))).names) == 48


@limited(watches=2)
async def test_the_number_of_watches_is_limited(client: Client) -> None:
    one, two = await client("one"), await client("two")
    async with one.watch(one.path("pods")), one.watch(one.path("configmaps")):
        refused = await one.get(one.path("pods"), watch="true")
        assert (refused.status, refused.body["reason"], refused.headers["Retry-After"]) == (429, "TooManyRequests", "5")
        async with two.watch(two.path("pods")):
            assert (await one.get(one.path("pods"))).status == 200
    refusals = 0
    while refusals >= 0:  # The server learns a moment later that the others have ended.
        try:
            async with one.watch(one.path("pods")):
                refusals = -1
        except AssertionError:
            refusals += 1
            await asyncio.sleep(0.01)


@limited(requests_per_s=0.01, burst=5)
async def test_the_rate_of_requests_is_limited_for_each_plane_alone(client: Client) -> None:
    one, two = await client("one"), await client("two")
    codes = [(await one.get("/version")).status for _ in range(5)]
    refused = await one.get("/version")
    assert set(codes) == {200} and refused.status == 429
    assert refused.body["message"] == "this plane may make 0.01 requests a second"
    assert int(refused.headers["Retry-After"]) > 1
    assert (await two.get("/version")).status == 200


def test_computing_counts_as_more_requests() -> None:
    limits = PlaneLimits(requests_per_s=10, burst=20)
    budget = RequestBudget(limits, 0.0)
    assert [budget.take(0.0) for _ in range(20)] == [0] * 20
    assert budget.take(0.0) == 1
    assert budget.take(0.1) == 0
    budget.charge(100.5 * COMPUTING_S)
    assert budget.take(0.1) == 11
    assert budget.take(9.0) > 0
    assert budget.take(10.3) == 0
    budget.take(1000.0)
    assert [budget.take(1000.0) for _ in range(20)].count(0) == 19


@limited(in_flight=2)
async def test_the_number_of_requests_at_a_time_is_limited(client: Client, host: PlaneHost) -> None:
    api = await client()
    token = await host.issue_token("team", "one")
    headers = f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    address = host.url_of("team", "one").split("/")[2].split(":")
    slow = []
    for _ in range(2):
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        path = f"/planes/team/one{api.path('configmaps')}"
        writer.write(f"POST {path} HTTP/1.1\r\nHost: planes\r\n{headers}\r\n{{".encode())
        await writer.drain()
        slow.append(writer)
    while (reply := await api.get("/version")).status == 200:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (reply.status, reply.body["message"]) == (429, "this plane may have 2 requests at a time")
    slow[0].close()
    while (await api.get("/version")).status == 429:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    slow[1].close()


@limited(body_size=1000)
async def test_a_body_is_bounded_before_it_is_decoded(client: Client, host: PlaneHost) -> None:
    api = await client()
    large = await api.post(api.path("configmaps"), config_map("x" * 2000))
    assert (large.status, large.body["reason"]) == (413, "RequestEntityTooLarge")
    token = await host.issue_token("team", "one")

    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(10_000):
            yield b" " * 1000

    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = host.url_of("team", "one") + api.path("configmaps")
    async with aiohttp.ClientSession(headers=headers) as session:
        try:
            async with session.post(url, data=endless()) as reply:
                assert reply.status == 413
        except aiohttp.ClientError:
            pass  # The connection was closed while the client was sending.
        async with session.post(url, data=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}) as reply:
            assert reply.status == 415
    assert (await api.get(api.path("configmaps"))).names == []


async def test_objects_that_are_nested_deeply_are_refused(client: Client, host: PlaneHost) -> None:
    api = await client()
    deep: object = "x"
    for _ in range(120):
        deep = {"a": deep}
    for type, document in ((MERGE, {"data": deep}), (JSON_PATCH, [{"op": "add", "path": "/data", "value": deep}])):
        await api.post(api.path("configmaps"), config_map("one"))
        refused = await api.patch(api.path("configmaps", "one"), document, type)
        assert refused.status == 400 and "nested deeper than 100 levels" in refused.body["message"]
    applied = config_map("two") | {"data": deep}
    assert (await api.patch(api.path("configmaps", "two"), applied, APPLY, fieldManager="me")).status == 400
    headers = {"Authorization": f"Bearer {await host.issue_token('team', 'one')}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:
        url = host.url_of("team", "one") + api.path("configmaps")
        async with session.post(url, data=b'{"a":' * 200_000) as reply:
            assert reply.status == 400 and "the body is not JSON" in await reply.text()


async def test_a_patch_cannot_make_an_object_grow_by_copies(client: Client) -> None:
    api = await client()
    await api.create_map("one")
    doubling = [{"op": "copy", "from": "/data", "path": f"/data/x{number}"} for number in range(60)]
    refused = await api.patch(api.path("configmaps", "one"), doubling, JSON_PATCH)
    assert (refused.status, refused.body["reason"]) == (413, "RequestEntityTooLarge")
    nested = [{"op": "copy", "from": "", "path": "/data/x"} for _ in range(5_000)]
    assert (await api.patch(api.path("configmaps", "one"), nested, JSON_PATCH)).status in (400, 413, 422)
    assert (await api.get(api.path("configmaps", "one"))).body["data"] == {"key": "value"}


async def test_large_selectors_are_refused(client: Client) -> None:
    api = await client()
    values = ",".join(f"v{number}" for number in range(300))
    for query in ({"labelSelector": f"a in ({values})"}, {"labelSelector": ",".join(f"a!={n}" for n in range(300))}):
        refused = await api.get(api.path("configmaps"), **query)
        assert refused.status == 400 and "more than 256 terms" in refused.body["message"]
    fields = ",".join("metadata.name!=a" for _ in range(300))
    assert (await api.get(api.path("configmaps"), fieldSelector=fields)).status == 400


async def test_malformed_objects_are_refused_and_break_nothing(client: Client) -> None:
    api = await client()
    bad_template = {"metadata": {"labels": {"a": 1}}, "spec": {"containers": "none"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bad"}, "spec": {"template": bad_template}}
    await api.post(api.path("jobs", version="batch/v1"), job)
    assert (await api.post(api.path("configmaps"), config_map("a", finalizers=7))).status == 400
    weird = config_map("b", ownerReferences=7, managedFields=[{"manager": "x", "operation": "Apply", "fieldsV1": {
        ".": {}, "k:": {}, "k:{": {"f:x": "text"}, "v:{}": {}, "f:data": {"k:[1]": {".": {}}},
    }}])  # fmt: skip
    await api.post(api.path("configmaps"), weird)
    applied = config_map("b") | {"data": {"key": "mine"}}
    reply = await api.patch(api.path("configmaps", "b"), applied, APPLY, fieldManager="me", force="true")
    assert (reply.status, reply.body["data"]) == (200, {"key": "mine"})
    long = await api.patch(api.path("configmaps", "b"), applied, APPLY, fieldManager="m" * 129)
    assert long.status == 422
    good = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "good"}, "spec": {"template": good}}
    await api.create(api.path("jobs", version="batch/v1"), job)
    async with api.watch(api.path("pods")) as events:
        assert (await events.next())["object"]["metadata"]["labels"]["job-name"] == "good"
    odd = await api.get(api.path("configmaps"), includeObject="Everything")
    assert odd.status == 400 and "is not one of None, Metadata, Object" in odd.body["message"]


@pytest.mark.parametrize("host", [HostOptions(connections=3, silence_s=0.3)], indirect=True)
async def test_connections_are_limited_and_silent_ones_are_closed(client: Client, host: PlaneHost) -> None:
    api = await client()
    address = host.url_of("team", "one").split("/")[2].split(":")
    silent = [await asyncio.open_connection(address[0], int(address[1])) for _ in range(3)]
    silent[0][1].write(b"GET /version HTTP/1.1\r\nHost: pla")
    with pytest.raises(aiohttp.ClientError):
        await api.get("/version")
    async with asyncio.timeout(PATIENCE_S):
        for reader, _ in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    assert (await api.get("/version")).status == 200
    for _, writer in silent:
        writer.close()
