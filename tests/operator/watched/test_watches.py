# SPDX-License-Identifier: Apache-2.0
"""One list and one watch of each kind, however many parts follow it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.reflector import Change
from dovetail.operator.inventory import OwnedObjects
from dovetail.operator.leader_client import LeaderClient
from dovetail.operator.parts import SharedByParts
from dovetail.operator.run import parts
from dovetail.operator.watched.nodes import WatchedNode, content
from dovetail.operator.watched.watches import SharedWatches, settled
from dovetail.playground import Fault, Playground


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground()
    await playground.start()
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})
    yield playground
    await playground.stop()


@contextlib.asynccontextmanager
async def running(watches: SharedWatches) -> AsyncIterator[None]:
    following = asyncio.create_task(watches.run())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])


async def test_all_parts_follow_nodes_by_one_watch(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, stream = Counter[str](), Client.stream

    def counted(self: Client, path: str, *arguments: object, **more: object) -> object:
        streams[path] += 1
        return stream(self, path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "stream", counted)
    async with LeaderClient(ClusterConfig(server=playground.url)) as client:
        watches = SharedWatches(client)
        assert len(parts(SharedByParts(client, watches, OwnedObjects(client, lambda: None), lambda: None))) == 6
        async with running(watches):
            # A kind that is not served is asked for once, too.
            await settled(*watches.reflectors)
            once = dict(streams)
    assert once["/api/v1/nodes"] == 2, "a list that is streamed, and the watch"
    assert once["/apis/dovetail.dev/v1alpha1/gpunodes"] == 1 and once["/api/v1/pods"] == 4


async def test_a_later_subscriber_gets_what_is_known(playground: Playground) -> None:
    early: list[str] = []
    late: list[str] = []

    def noting(names: list[str]) -> object:
        def note(changes: list[Change[WatchedNode]]) -> None:
            names.extend(f"{one.kind} {one.object.metadata.name}" for one in changes)

        return note

    async with LeaderClient(ClusterConfig(server=playground.url)) as client:
        watches = SharedWatches(client)
        watches.nodes.subscribe(noting(early))  # type: ignore[arg-type]
        async with running(watches):
            await settled(watches.nodes)
            watches.nodes.subscribe(noting(late))  # type: ignore[arg-type]
            playground.delete("nodes", "", "n0")
            async with asyncio.timeout(20):
                while len(late) < 2:  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(0.002)
    assert early == late == ["added n0", "deleted n0"]


async def test_a_kind_that_may_not_be_read_is_reported_with_the_text_of_the_server(playground: Playground) -> None:
    for verb in ("GET", "WATCH"):
        playground.faults.add(Fault("answer", verb, "nodes", times=1000, status=403, message="cannot list nodes"))
    counts: list[int] = []
    async with LeaderClient(ClusterConfig(server=playground.url)) as client:
        watches = SharedWatches(client)
        watches.nodes.subscribe(lambda changes: counts.append(len(changes)))
        async with running(watches), asyncio.timeout(20):
            while not counts:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.002)
            assert "cannot list nodes" in watches.nodes.unread and not watches.nodes.settled
            playground.faults.clear()
            await settled(watches.nodes)
    assert watches.nodes.unread == "" and counts[0] == 0 and counts[-1] == 1


async def test_a_heartbeat_is_no_change_for_what_does_not_read_it(playground: Playground) -> None:
    every: list[str] = []
    some: list[str] = []

    def noting(seen: list[str]) -> object:
        def note(changes: list[Change[WatchedNode]]) -> None:
            seen.extend(f"{one.kind} {one.object.metadata.resource_version}" for one in changes)

        return note

    def put(**labels: str) -> str:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "labels": labels}}
        beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-11-26T12:00:{len(every):02}Z"}
        stored = playground.put(node | {"status": {"conditions": [beat]}})
        return str(stored["metadata"]["resourceVersion"])

    async with LeaderClient(ClusterConfig(server=playground.url)) as client:
        watches = SharedWatches(client)
        watches.nodes.subscribe(noting(every))  # type: ignore[arg-type]
        watches.nodes.subscribe(noting(some), reads=content)  # type: ignore[arg-type]
        async with running(watches):
            await settled(watches.nodes)
            for labels in ({}, {}, {}, {"a": "b"}, {"a": "b"}):
                version = put(**labels)
                async with asyncio.timeout(20):
                    while f"modified {version}" not in every:  # noqa: ASYNC110 - nothing announces it
                        await asyncio.sleep(0.002)
    # The condition comes with the first, the label with the fourth, each in one or two versions.
    assert 3 <= len(some) <= 5 < len(every)
    assert some[0].startswith("added")
