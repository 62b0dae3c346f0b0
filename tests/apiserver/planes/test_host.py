# SPDX-License-Identifier: Apache-2.0
"""Many planes in one process: routes, tokens, opening and closing, jobs, and what ends with a plane."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dovetail.apiserver.failures import Failure
from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from dovetail.apiserver.planes.plane import SERVED, opened_store
from dovetail.apiserver.planes.registry import PlaneName, PlaneRegistry
from dovetail.apiserver.sqlite_log import StoreUnreadable
from dovetail.apiserver.store import Store
from tests.apiserver.planes.conftest import Client
from tests.contract.api import Api, config_map, summary
from tests.patience import PATIENCE_S

IDLE = pytest.mark.parametrize("host", [HostOptions(idle_s=0.02)], indirect=True)


async def until_closed(host: PlaneHost) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while host.open_planes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_each_plane_has_its_own_objects_and_namespaces(client: Client) -> None:
    one, two = await client("one"), await client("two")
    await one.create_map("mine")
    await one.create_namespace("more")
    assert (await one.get(one.path("configmaps"))).names == ["mine"]
    assert (await two.get(two.path("configmaps"))).names == []
    assert (await two.get("/api/v1/namespaces")).names == ["default"]


async def test_requests_without_a_good_token_are_refused_before_a_plane_is_opened(
    client: Client, host: PlaneHost
) -> None:
    await host.create("team", "one")
    good = await host.issue_token("team", "one")
    for token in ("", "nonsense", "dovetail.nobody.secret", good[:-1], f"{good}x", good.replace("dovetail", "other")):
        reply = await (await client("one", token=token)).get("/api/v1/namespaces")
        assert (reply.status, reply.body["reason"], reply.body["message"]) == (401, "Unauthorized", "Unauthorized")
    two = await client("two", token=good)
    for reply in (
        await two.get("/api/v1/namespaces"),
        await (await client("absent", namespace="other", token=good)).get("/version"),
    ):
        assert (reply.status, reply.body["reason"]) == (403, "Forbidden")
        assert 'User "dovetail:plane:team/one" cannot get path' in reply.body["message"]
    assert host.open_planes == 0
    async with aiohttp.ClientSession(headers={"Authorization": f"Basic {good}"}) as basic:
        assert (await basic.get(f"{host.url_of('team', 'one')}/version")).status == 401
    assert (await (await client("one", token=good)).get("/api/v1/namespaces")).status == 200


async def test_tokens_can_be_replaced_and_ended(client: Client, host: PlaneHost) -> None:
    first = await client()
    token = await host.issue_token("team", "one", only=True)
    assert (await first.get("/version")).status == 401
    second = await client(token=token)
    assert (await second.get("/version")).status == 200
    await host.revoke_tokens("team", "one")
    assert (await second.get("/version")).status == 401


def test_no_secret_is_in_a_file(tmp_path: Path) -> None:
    async def live() -> None:
        host = PlaneHost(tmp_path)
        await host.create("team", "one")
        token = await host.issue_token("team", "one")
        await host.stop()
        secrets.append(token.split(".")[2].encode())

    secrets: list[bytes] = []
    asyncio.run(live())
    assert all(secrets[0] not in path.read_bytes() for path in tmp_path.iterdir())
    assert (tmp_path / "planes.sqlite").stat().st_mode & 0o077 == 0


async def test_paths_outside_of_planes_have_nothing(client: Client, host: PlaneHost) -> None:
    url = host.url_of("team", "one").partition("/planes")[0]
    async with aiohttp.ClientSession() as session:
        assert await (await session.get(f"{url}/healthz")).text() == "ok"
        assert (await session.get(f"{url}/api/v1/namespaces")).status == 404
        assert (await session.get(f"{url}/planes/../planes.sqlite")).status == 404


@IDLE
async def test_an_idle_plane_is_closed_and_goes_on_at_its_next_request(client: Client, host: PlaneHost) -> None:
    api = await client()
    created = await api.create_map("kept")
    await until_closed(host)
    reply = await api.get(api.path("configmaps"))
    assert reply.names == ["kept"]
    assert reply.version == created["metadata"]["resourceVersion"]
    await until_closed(host)
    start = created["metadata"]["resourceVersion"]
    async with api.watch(api.path("configmaps"), resourceVersion=start) as events:
        await asyncio.sleep(0.1)
        assert host.open_planes == 1
        await api.create_map("late")
        assert summary(await events.next()) == ("ADDED", "late")
    await until_closed(host)


async def test_a_restart_keeps_planes_tokens_and_objects(tmp_path: Path) -> None:
    host = PlaneHost(tmp_path)
    await host.start()
    await host.create("team", "one")
    token = await host.issue_token("team", "one")
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        await Api(session, "default", host.url_of("team", "one")).create_map("kept")
    with pytest.raises(StoreUnreadable, match="locked"):
        PlaneHost(tmp_path)
    await host.stop()
    (tmp_path / "0123456789abcdef.sqlite").write_text("of a plane that was removed in the middle")
    host = PlaneHost(tmp_path)
    await host.start()
    assert not (tmp_path / "0123456789abcdef.sqlite").exists()
    async with aiohttp.ClientSession(headers=headers) as session:
        api = Api(session, "default", host.url_of("team", "one"))
        assert (await api.get(api.path("configmaps"))).names == ["kept"]
    await host.stop()


async def test_a_deleted_plane_takes_watches_tokens_and_file_along(
    client: Client, host: PlaneHost, tmp_path: Path
) -> None:
    api = await client()
    await api.create_map("lost")
    async with api.watch(api.path("configmaps")) as events:
        assert summary(await events.next()) == ("ADDED", "lost")
        await host.delete("team", "one")
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            await events.next()
    assert [path.name for path in (tmp_path / "planes").iterdir() if not path.name.startswith("planes.")] == []
    await host.delete("team", "one")
    again = await client()
    assert (await api.get("/version")).status == 401
    assert (await again.get(again.path("configmaps"))).names == []


@pytest.mark.parametrize(
    ("namespace", "name"), [("../etc", "one"), ("team", "../../x"), ("", "a"), ("a", ""), ("a.b", "c")]
)
async def test_a_name_that_is_no_name_is_refused(host: PlaneHost, namespace: str, name: str) -> None:
    with pytest.raises(ValueError, match="a DNS label and a DNS subdomain are needed"):
        await host.create(namespace, name)


async def test_a_damaged_file_is_that_planes_problem_alone(client: Client, host: PlaneHost, tmp_path: Path) -> None:
    one, two = await client("one"), await client("two")
    await one.create_map("kept")
    await host.stop()
    damaged = [path for path in (tmp_path / "planes").iterdir() if path.name not in ("planes.sqlite",)]
    for path in damaged:
        path.write_bytes(b"no database at all" * 100)
    fresh = PlaneHost(tmp_path / "planes", HostOptions(port=int(host.url_of("a", "b").split(":")[2].split("/")[0])))
    await fresh.start()
    reply = await one.get("/api/v1/namespaces")
    assert (reply.status, reply.body["reason"]) == (503, "ServiceUnavailable")
    assert "file is not a database" in reply.body["message"]
    assert (await two.get("/api/v1/namespaces")).status == 200
    await fresh.stop()


async def test_what_is_served_is_what_is_listed(client: Client) -> None:
    api = await client()
    groups = [group["preferredVersion"]["groupVersion"] for group in (await api.get("/apis")).body["groups"]]
    paths = ["/api/v1", *(f"/apis/{group}" for group in groups)]
    served = set()
    for path in paths:
        group = path.removeprefix("/apis/").partition("/")[0] if path != "/api/v1" else ""
        resources = (await api.get(path)).body["resources"]
        names = [one["name"] for one in resources if "/" not in one["name"]]
        served |= {f"{name}.{group}" if group not in ("", "events.k8s.io") else name for name in names}
    assert served == SERVED
    assert (await api.get("/api/v1/nodes")).status == 404


async def test_a_job_runs_by_its_pods(client: Client, host: PlaneHost) -> None:
    api = await client()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}
    jobs = api.path("jobs", version="batch/v1")
    await api.create(jobs, job | {"spec": {"completions": 3, "parallelism": 2, "template": template}})
    async with api.watch(api.path("pods"), labelSelector="job-name=train") as events:
        ended = 0
        while ended < 3:
            event = await events.next()
            if event["type"] == "ADDED":
                status = api.path("pods", f"{event['object']['metadata']['name']}/status")
                await api.patch(status, {"status": {"phase": "Succeeded"}})
            ended += event["type"] == "MODIFIED"
    async with api.watch(jobs, fieldSelector="metadata.name=train") as events:
        while not (status := (await events.next())["object"]["status"]).get("completionTime"):
            pass
    assert (status["succeeded"], status["conditions"][0]["type"]) == (3, "Complete")
    await api.delete(f"{jobs}/train", {"propagationPolicy": "Background"})
    assert (await api.get(api.path("pods"))).names == []


@IDLE
async def test_a_job_goes_on_after_its_plane_was_closed(client: Client, host: PlaneHost) -> None:
    api = await client()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}
    await api.create(api.path("jobs", version="batch/v1"), job | {"spec": {"template": template}})
    await until_closed(host)
    (name,) = (await api.get(api.path("pods"))).names
    await until_closed(host)
    await api.delete(api.path("pods", name))
    await until_closed(host)
    (other,) = (await api.get(api.path("pods"))).names
    assert other != name


async def test_a_disk_that_fails_is_reported_and_the_plane_goes_on_from_its_file(
    client: Client, host: PlaneHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await client()
    await api.create_map("before")
    with monkeypatch.context() as broken:

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        broken.setattr("dovetail.apiserver.sqlite_log.SqliteLog._commit", full)
        lost = await api.post(api.path("configmaps"), config_map("lost"))
        assert (lost.status, lost.body["reason"]) == (503, "ServiceUnavailable")
        assert "disk is full" in lost.body["message"] and lost.headers["Retry-After"] == "1"
    assert (await api.get(api.path("configmaps"))).names == ["before"]
    await api.create_map("after")


async def test_logs_of_a_pod_are_refused_with_the_reason(client: Client) -> None:
    api = await client()
    await api.create_pod("one")
    for subresource in ("log", "exec", "attach", "portforward"):
        reply = await api.get(api.path("pods", f"one/{subresource}"))
        assert (reply.status, reply.body["reason"]) == (501, "NotImplemented")
        assert f"pods/{subresource} is not served here" in reply.body["message"]


@IDLE
async def test_a_plane_is_opened_once_for_clients_that_go_and_is_closed_when_idle(
    host: PlaneHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.create("team", "one")
    begun, go, opened = threading.Event(), threading.Event(), list[Store]()

    def held(*arguments: Any) -> Store:
        begun.set()
        assert go.wait(PATIENCE_S)
        opened.append(opened_store(*arguments))
        return opened[-1]

    async def use() -> None:
        async with host.plane("team", "one") as plane:
            used.append(plane.store)

    used: list[Store] = []
    monkeypatch.setattr("dovetail.apiserver.planes.host.opened_store", held)
    try:
        for _ in range(3):
            gone = asyncio.create_task(use())
            await asyncio.to_thread(begun.wait, PATIENCE_S)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        stays = asyncio.create_task(use())
    finally:
        go.set()
    await stays
    assert used == opened and len(opened) == 1
    await until_closed(host)
    last = asyncio.create_task(use())
    await asyncio.sleep(0)
    last.cancel()
    async with asyncio.timeout(PATIENCE_S):
        while len(opened) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await until_closed(host)
    assert len(used) == 1, "what nobody waits for is closed, too"


async def test_the_registry_is_closed_after_a_write_whose_caller_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = PlaneHost(tmp_path)
    await host.create("team", "one")
    remove, add, close = PlaneRegistry.remove, PlaneRegistry.add, PlaneRegistry.close
    begun, go, order = threading.Event(), threading.Event(), list[str]()

    def held(self: PlaneRegistry, name: PlaneName) -> str | None:
        begun.set()
        assert go.wait(PATIENCE_S)
        found = remove(self, name)
        order.append("removed")
        return found

    def added(self: PlaneRegistry, name: PlaneName, origin: str = "") -> str:
        order.append("adds")
        return add(self, name, origin)

    def closed(self: PlaneRegistry) -> None:
        order.append("closed")
        close(self)

    monkeypatch.setattr(PlaneRegistry, "remove", held)
    monkeypatch.setattr(PlaneRegistry, "add", added)
    monkeypatch.setattr(PlaneRegistry, "close", closed)
    deleting = asyncio.create_task(host.delete("team", "one"))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    other = asyncio.create_task(host.create("team", "two"))
    deleting.cancel()
    stopping = asyncio.create_task(host.stop())
    try:
        await asyncio.sleep(0.05)
        assert order == []
    finally:
        go.set()
    await asyncio.gather(other, stopping)
    assert order == ["removed", "adds", "closed"]
    with pytest.raises(asyncio.CancelledError):
        await deleting
    again = PlaneHost(tmp_path)
    assert again.names == [PlaneName("team", "two")]
    await again.stop()


def test_a_removal_that_fails_is_taken_back(tmp_path: Path) -> None:
    """Else all that is written after it would be in its transaction, and lost with the process."""
    registry = PlaneRegistry(tmp_path)
    one, two = PlaneName("team", "one"), PlaneName("team", "two")
    registry.add(one)
    registry._file.execute(
        "CREATE TRIGGER full BEFORE DELETE ON planes BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    )
    with pytest.raises(sqlite3.Error, match="disk is full"):
        registry.remove(one)
    registry.add(two)
    registry.close()
    again = PlaneRegistry(tmp_path)
    assert again.names == [one, two]
    again.close()


async def test_a_request_for_a_plane_that_is_removed_while_it_is_opened_gets_no_closed_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = PlaneHost(tmp_path)
    await host.create("team", "one")
    begun, go, used = threading.Event(), threading.Event(), list[Store]()

    def held(*arguments: Any) -> Store:
        begun.set()
        assert go.wait(PATIENCE_S)
        return opened_store(*arguments)

    async def use() -> None:
        async with host.plane("team", "one") as plane:
            used.append(plane.store)

    monkeypatch.setattr("dovetail.apiserver.planes.host.opened_store", held)
    using = asyncio.create_task(use())
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        removing = asyncio.create_task(host.delete("team", "one"))
        await asyncio.sleep(0.1)
    finally:
        go.set()
    with pytest.raises(Failure, match="the plane was removed"):
        await using
    await removing
    assert used == []
    await host.stop()


async def test_a_removal_whose_caller_is_cancelled_removes_the_file_and_ends_the_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = PlaneHost(tmp_path)
    await host.create("team", "one")
    remove, begun, go = PlaneRegistry.remove, threading.Event(), threading.Event()

    def held(self: PlaneRegistry, name: PlaneName) -> str | None:
        begun.set()
        assert go.wait(PATIENCE_S)
        return remove(self, name)

    async with host.plane("team", "one"):
        pass
    monkeypatch.setattr(PlaneRegistry, "remove", held)
    removing = asyncio.create_task(host.delete("team", "one"))
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        removing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await removing
    finally:
        go.set()
    await until_closed(host)
    await host.stop()
    left = await asyncio.to_thread(lambda: list(tmp_path.glob("*.sqlite*")))
    assert {path.name.partition(".")[0] for path in left} == {"planes"}
