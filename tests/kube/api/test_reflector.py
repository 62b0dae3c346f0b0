# SPDX-License-Identifier: Apache-2.0
"""A followed collection: nothing is missed, reported twice or forgotten, under any fault of server and network."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.decoding import BadObject
from dovetail.kube.api.errors import KubeError
from dovetail.kube.api.reflector import Change, Drift, Reflector, ReflectorHandlers, ReflectorTimes, whole
from dovetail.kube.api.resources import PODS, Resource
from dovetail.kube.api.watch import HEARTBEAT_S
from tests.kube.api.fake_server import Collection, Pod, serve, serve_raw, status
from tests.patience import PATIENCE_S


class Followed:
    """A running reflector, and the changes that it reported."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        params: dict[str, str] | None,
        keep: Callable[[Pod], Pod],
        **times: float,
    ) -> None:
        self.reported: asyncio.Queue[Change[Pod]] = asyncio.Queue()
        self.bad: asyncio.Queue[BadObject] = asyncio.Queue()
        self.errors: asyncio.Queue[KubeError] = asyncio.Queue()
        self.drifts: list[Drift] = []
        self.batches: list[int] = []
        self.reflector = Reflector(
            client,
            resource,
            Pod,
            self._take,
            params=params,
            keep=keep,
            handlers=ReflectorHandlers(self.bad.put_nowait, self.errors.put_nowait, self.drifts.append),
            times=ReflectorTimes(**times),
        )

    def _take(self, batch: list[Change[Pod]]) -> None:
        self.batches.append(len(batch))
        for change in batch:
            self.reported.put_nowait(change)

    async def next(self, count: int = 1) -> list[tuple[str, str]]:
        """The next changes, as (kind, name), sorted."""
        async with asyncio.timeout(PATIENCE_S):
            changes = [await self.reported.get() for _ in range(count)]
        return sorted((change.kind, change.object.metadata.name) for change in changes)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.reflector.known)


@asynccontextmanager
async def follow(
    client: Client,
    resource: Resource = PODS,
    *,
    params: dict[str, str] | None = None,
    keep: Callable[[Pod], Pod] = whole,
    **times: float,
) -> AsyncIterator[Followed]:
    followed = Followed(client, resource, params, keep, **times)
    task = asyncio.create_task(followed.reflector.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await followed.reflector.synced.wait()
        yield followed
        assert followed.reported.empty(), "everything reported was expected"
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(params=["streaming list", "paged list"])
def listed(request: pytest.FixtureRequest, collection: Collection) -> None:
    collection.streaming_lists = request.param == "streaming list"


@pytest.mark.usefixtures("listed")
async def test_list_then_changes(client: Client, collection: Collection) -> None:
    await collection.put("a")
    await collection.put("b")
    async with follow(client) as followed:
        assert await followed.next(2) == [("added", "a"), ("added", "b")]
        await collection.put("b", priority=7)
        change = await followed.reported.get()
        assert (change.kind, change.object.spec.priority) == ("modified", 7)
        await collection.put("c")
        await collection.delete("a")
        assert await followed.next(2) == [("added", "c"), ("deleted", "a")]
        assert followed.names() == ["b", "c"]
        assert followed.reflector.resource_version == "105"
        assert followed.reflector.staleness_s() < 5


async def test_a_server_that_refuses_streaming_lists_gets_one_such_request(
    client: Client, collection: Collection
) -> None:
    collection.streaming_lists = False
    for _ in range(2):
        async with follow(client):
            pass
    assert sum("sendInitialEvents" in request.query for request in collection.requests) == 1


async def test_a_server_that_never_ends_its_streaming_list_is_listed_in_pages(
    client: Client, collection: Collection
) -> None:
    async def watch_of_old(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"ns"}}}\n')
        return await asyncio.Future()

    collection.faults = [watch_of_old]
    await collection.put("b")
    async with follow(client, heartbeat_s=0.1) as followed:
        assert await followed.next() == [("added", "b")]


@pytest.mark.usefixtures("listed")
async def test_a_stream_that_ends_is_resumed_from_the_last_bookmark(client: Client, collection: Collection) -> None:
    await collection.put("a")
    async with follow(client) as followed:
        await followed.next()
        await collection.bookmark()
        await until(lambda: followed.reflector.resource_version == "102")
        await collection.hang_up()
        await collection.put("b")
        assert await followed.next() == [("added", "b")]
        assert collection.requests[-1].query["resourceVersion"] == "102"
        assert followed.errors.empty()


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("reported", ["in the stream", "by status"])
async def test_after_410_only_the_differences_are_reported(
    client: Client, collection: Collection, reported: str
) -> None:
    for name in ("kept", "changed", "deleted", "reborn"):
        await collection.put(name)
    async with follow(client) as followed:
        await followed.next(4)
        # No watch sees these changes, as if they had been compacted away.
        collection._report = nobody
        await collection.delete("deleted")
        await collection.put("changed", priority=1)
        await collection.put("reborn", uid="another")
        await collection.put("new")
        del collection._report
        if reported == "by status":
            collection.faults = [status(410, "Expired")]
            await collection.hang_up()
        else:
            await collection.error(410, "Expired")
        expected = [("added", "new"), ("added", "reborn"), ("deleted", "deleted"), ("deleted", "reborn")]
        assert await followed.next(5) == [*expected, ("modified", "changed")]
        assert followed.names() == ["changed", "kept", "new", "reborn"]
        assert followed.errors.empty()


@pytest.mark.usefixtures("listed")
async def test_less_is_kept_than_is_reported(client: Client, collection: Collection) -> None:
    await collection.put("a", priority=3)
    async with follow(client, keep=lambda pod: Pod(pod.metadata)) as followed:
        change = await followed.reported.get()
        assert (change.kind, change.object.spec.priority) == ("added", 3)
        await collection.put("a", priority=7)
        change = await followed.reported.get()
        assert (change.kind, change.object.spec.priority) == ("modified", 7)
        assert [(key, pod.spec.priority) for key, pod in followed.reflector.known.items()] == [(("ns", "a"), 0)]
        assert not await followed.reflector.audit()
        collection._report = nobody
        await collection.delete("a")
        del collection._report
        await collection.error(410, "Expired")
        change = await followed.reported.get()
        assert (change.kind, change.object.metadata.name) == ("deleted", "a")


async def until(condition: Callable[[], bool]) -> None:
    """For what has no event of its own."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def nobody(kind: str, obj: dict) -> None:
    """Stands in for a broadcast."""


@pytest.mark.parametrize("fault", [status(500, "InternalError"), status(403, "Forbidden")])
async def test_other_failures_are_reported_and_waited_out(
    client: Client, collection: Collection, fault: object
) -> None:
    async with follow(client) as followed:
        collection.faults = [fault]
        await collection.hang_up()
        await collection.put("a")
        assert await followed.next() == [("added", "a")]
        assert followed.errors.qsize() == 1


@pytest.mark.slow
async def test_changes_in_short_succession_are_reported_together_and_a_lone_one_at_once(
    client: Client, collection: Collection
) -> None:
    async with follow(client, apart_s=1.5) as followed:
        await asyncio.sleep(1.6)
        await collection.put("alone")
        async with asyncio.timeout(1.0):
            assert await followed.next() == [("added", "alone")]
        for name in ("a", "b", "c"):
            await collection.put(name)
            await asyncio.sleep(0.02)
        assert followed.reported.empty()
        assert await followed.next(3) == [("added", "a"), ("added", "b"), ("added", "c")]
        assert followed.batches[-2:] == [1, 3]


async def test_a_stream_that_ends_while_it_is_not_read_is_resumed(client: Client, collection: Collection) -> None:
    async with follow(client, apart_s=0.1) as followed:
        await collection.put("a")
        assert await followed.next() == [("added", "a")]
        await collection.put("b")
        await collection.hang_up()
        await collection.put("c")
        assert await followed.next(2) == [("added", "b"), ("added", "c")]
        assert followed.errors.empty()


async def test_silence_is_taken_for_a_dead_connection(client: Client, collection: Collection) -> None:
    async with follow(client, heartbeat_s=0.05) as followed:
        error = await followed.errors.get()
        assert "nothing came for 0.05 s" in str(error)
        await collection.put("a")
        assert await followed.next() == [("added", "a")]
        assert collection.watches > 1


async def test_a_bad_object_keeps_its_last_good_state(client: Client, collection: Collection) -> None:
    await collection.put("a", priority=1)
    await collection.put("never", priority="good")
    async with follow(client) as followed:
        assert await followed.next() == [("added", "a")]
        assert (await followed.bad.get()).key == ("ns", "never")
        await collection.put("a", priority="high")
        await collection.put("b")
        assert await followed.next() == [("added", "b")]
        bad = await followed.bad.get()
        assert (bad.key, bad.problem) == (("ns", "a"), "Expected `int`, got `str` - at `$.spec.priority`")
        assert followed.reflector.known["ns", "a"].spec.priority == 1
        assert followed.reflector.unreadable == {("ns", "a"), ("ns", "never")}
        await collection.error(410, "Expired")
        assert {(await followed.bad.get()).key for _ in range(2)} == {("ns", "a"), ("ns", "never")}
        assert followed.names() == ["a", "b"]
        await collection.delete("a")
        await collection.put("never", priority=5)
        assert await followed.next(2) == [("added", "never"), ("deleted", "a")]
        assert followed.reflector.unreadable == set()


async def test_nonsense_in_a_stream_is_reported_and_the_stream_resumed(client: Client, collection: Collection) -> None:
    async def nonsense(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"type":"ADDED"\n')

    async with follow(client) as followed:
        collection.faults = [nonsense]
        await collection.hang_up()
        await collection.put("a")
        assert await followed.next() == [("added", "a")]
        assert "BadReply" in str(await followed.errors.get())


async def test_a_kind_that_is_not_installed_is_empty_until_it_is(client: Client, collection: Collection) -> None:
    collection.served = False
    async with follow(client, recheck_s=0.02) as followed:
        assert not followed.reflector.served
        await collection.put("a")
        collection.served = True
        assert await followed.next() == [("added", "a")]
        assert followed.reflector.served
        collection.served = False
        await collection.hang_up()
        assert await followed.next() == [("deleted", "a")]
        assert not followed.reflector.served
        assert followed.errors.empty()


async def test_an_audit_of_a_good_copy_finds_nothing(client: Client, collection: Collection) -> None:
    await collection.put("a")
    await collection.put("bad", priority="high")
    async with follow(client, heartbeat_s=0.2) as followed:
        await followed.next()
        audit = asyncio.create_task(followed.reflector.audit())
        # Changes while the audit waits for the watch to catch up are newer than its list.
        await asyncio.sleep(0)
        await collection.put("a", priority=2)
        await collection.put("new")
        await collection.delete("bad")
        assert await followed.next(2) == [("added", "new"), ("modified", "a")]
        assert not await audit


@pytest.mark.usefixtures("listed")
async def test_an_audit_finds_what_was_missed_and_repairs_it(client: Client, collection: Collection) -> None:
    for name in ("kept", "changed", "extra"):
        await collection.put(name)
    async with follow(client, audit_every_s=0.05) as followed:
        await followed.next(3)
        collection._report = nobody
        await collection.put("changed", priority=9)
        await collection.delete("extra")
        await collection.put("missing")
        del collection._report
        await collection.bookmark()
        await until(lambda: followed.drifts != [])
        (drift,) = followed.drifts
        assert (drift.missing, drift.extra) == ((("ns", "missing"),), (("ns", "extra"),))
        assert drift.different == (("ns", "changed"),)
        await collection.bookmark()
        assert await followed.next(3) == [("added", "missing"), ("deleted", "extra"), ("modified", "changed")]


async def test_a_sink_that_fails_ends_the_run(client: Client, collection: Collection) -> None:
    def sink(batch: list[Change[Pod]]) -> None:
        raise ZeroDivisionError

    await collection.put("a")
    with pytest.raises(ExceptionGroup) as caught:
        await Reflector(client, PODS, Pod, sink).run()
    assert caught.group_contains(ZeroDivisionError)


async def test_bad_objects_and_errors_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    collection = Collection()
    await collection.put("a", priority="high")
    collection.faults = [status(500, "InternalError", "etcd is away")]
    with caplog.at_level(logging.WARNING):
        async with serve(collection.handle) as url, Client(ClusterConfig(url), jitter=lambda: 0.0) as client:
            reflector = Reflector(client, PODS, Pod, lambda batch: None)
            task = asyncio.create_task(reflector.run())
            await reflector.synced.wait()
            task.cancel()
            await asyncio.wait([task])
    assert "500 InternalError: etcd is away; trying again" in caplog.text
    assert "pods/v1 ns/a is ignored: Expected `int`, got `str` - at `$.spec.priority`" in caplog.text


class Balancer:
    """Passes bytes on to a server, and back until it is `deaf`: then it keeps the connections, and nothing comes."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self.deaf = False
        self.connections = 0

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        deaf = self.deaf
        inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
        # New connections reach another server: only those that are there already have lost theirs.
        back = asyncio.create_task(self._back(inner, writer, lambda: self.deaf and not deaf))
        try:
            while data := await reader.read(65536):
                outer.write(data)
        finally:
            outer.close()
            back.cancel()

    async def _back(self, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: Callable[[], bool]) -> None:
        while data := await inner.read(65536):
            if not dead():
                writer.write(data)


async def test_a_watch_whose_server_is_gone_behind_a_balancer_is_found_out(collection: Collection) -> None:
    """The connection stands, TCP answers, and nothing comes: no longer than the silence of a sound server."""
    await collection.put("a")
    async with serve(collection.handle) as url:
        balancer = Balancer(url)
        async with (
            serve_raw(balancer.play) as front,
            Client(ClusterConfig(front), jitter=lambda: 0.0) as client,
            follow(client, heartbeat_s=0.3) as followed,
        ):
            assert await followed.next() == [("added", "a")]
            await until(lambda: collection.watches == 2)
            balancer.deaf = True
            await collection.put("b")
            assert await followed.next() == [("added", "b")]


async def test_connections_that_were_idle_meanwhile_are_not_used_again(collection: Collection) -> None:
    """They lead to the server that is gone: each would be another half of a minute without changes."""
    await collection.put("a")
    async with serve(collection.handle) as url:
        balancer = Balancer(url)
        async with (
            serve_raw(balancer.play) as front,
            Client(ClusterConfig(front), jitter=lambda: 0.0) as client,
            follow(client, heartbeat_s=0.3) as followed,
        ):
            assert await followed.next() == [("added", "a")]
            await until(lambda: collection.watches == 2)
            await asyncio.gather(*(client.request("GET", PODS.path(), decode=dict[str, object]) for _ in range(3)))
            balancer.deaf = True
            await collection.put("b")
            async with asyncio.timeout(10.0):
                assert await followed.next() == [("added", "b")]


async def test_a_watch_that_ends_is_renewed_on_the_same_connection(collection: Collection) -> None:
    """A handshake for each of them would cost more than the watch."""
    async with serve(collection.handle) as url:
        balancer = Balancer(url)
        async with (
            serve_raw(balancer.play) as front,
            Client(ClusterConfig(front), jitter=lambda: 0.0) as client,
            follow(client) as followed,
        ):
            await until(lambda: collection.watches == 2)
            before = balancer.connections
            for name in "abc":
                await collection.hang_up()
                await collection.put(name)
                assert await followed.next() == [("added", name)]
            assert balancer.connections == before


def test_a_leader_is_not_blind_for_longer_than_it_takes_others_to_start() -> None:
    """The longest time for which a connection that stays open can hide changes, by docs/reference/environment.md."""
    assert HEARTBEAT_S <= 45.0
