# SPDX-License-Identifier: Apache-2.0
"""Owners are read until they can be, and an error of our own ends the mirror instead of a wrong picture."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.core.events import Event, GangChanged, NodeChanged, PodChanged, PodRejected
from dovetail.kube import informers as module
from dovetail.kube.api import resources as kinds
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.discovery import discover
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.informers import Informers
from dovetail.kube.translate.translator import Translator
from dovetail.playground import Playground
from dovetail.playground.faults import Fault
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import until

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "completionMode": "Indexed",
        "parallelism": 2,
        "completions": 2,
        "template": {
            "spec": {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]}
        },
    },
}


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    playground = Playground()
    await playground.start()
    yield playground
    await playground.stop()


@asynccontextmanager
async def mirrored(playground: Playground) -> AsyncIterator[tuple[Informers, asyncio.Task[None]]]:
    async with Client(ClusterConfig(playground.url), retries=0) as client:
        mirror = Informers(client, await discover(client), Translator())
        task = asyncio.create_task(mirror.run())
        try:
            yield mirror, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def gangs(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.gang.name, event.gang.min_count) for event in events if isinstance(event, GangChanged)]


async def test_it_states_when_the_first_picture_is_whole(playground: Playground) -> None:
    for number in range(30):
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}})
    async with mirrored(playground) as (mirror, _):
        await asyncio.wait_for(mirror.synced(), PATIENCE_S)
        assert sum(type(event).__name__ == "NodeChanged" for event in await mirror.events(0)) == 30
        assert len(mirror.nodes.known) == 30
        assert await mirror.events(0) == []


async def test_what_kubelets_rejected_comes_after_the_nodes(playground: Playground) -> None:
    """A node that changes takes back what was rejected there."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "o-1", "controller": True}
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    playground.kubelets.reject("n", "TopologyAffinityError")
    playground.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "ownerReferences": [owner]},
            "spec": {"schedulerName": "dovetail", "nodeName": "n", "containers": [{"name": "m", "image": "i"}]},
        }
    )
    await until(lambda: playground.store.list("pods")[0]["status"]["phase"] == "Failed")
    playground.faults.add(Fault("delay", "WATCH", "nodes", delay_s=0.3))
    async with mirrored(playground) as (mirror, _):
        await until(lambda: bool(mirror.inbox) and isinstance(mirror.inbox[-1], PodRejected))
        assert not any(isinstance(event, NodeChanged) for event in mirror.inbox)
        await asyncio.wait_for(mirror.synced(), PATIENCE_S)
        reported = [event for event in await mirror.events(0) if isinstance(event, NodeChanged | PodRejected)]
        assert reported[1] == PodRejected("default/o-1", "n", "TopologyAffinityError")


@pytest.mark.parametrize("status", [403, 500])
async def test_an_owner_that_cannot_be_read_is_read_again_though_nothing_else_happens(
    playground: Playground, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_OWNER_RETRY_S", 0.05)
    playground.faults.add(Fault("answer", "GET", "jobs", status=status, times=3))
    playground.put(JOB)
    async with mirrored(playground) as (mirror, _):
        await until(lambda: any(gangs([event]) == [("train", 2)] for event in mirror.inbox))
        assert [event.pod.gang for event in mirror.inbox if isinstance(event, PodChanged)][-1].endswith("train")
    complaints = [r.getMessage() for r in caplog.records if "Job default/train" in r.getMessage()]
    assert len(complaints) == 3
    assert f": {status} " in complaints[0]


async def test_an_owner_that_no_pod_waits_for_is_left_alone(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OWNER_RETRY_S", 0.05)
    fault = playground.faults.add(Fault("answer", "GET", "jobs", status=403, times=10_000))
    playground.put(JOB)
    async with mirrored(playground) as (mirror, _):
        await until(lambda: fault.times < 10_000)
        playground.delete("jobs.batch", "default", "train")
        await until(lambda: not playground.store.list("pods"))
        await until(lambda: not mirror._fetching)
        asked = fault.times
        await asyncio.sleep(0.15)
        assert fault.times == asked


async def test_an_error_of_our_own_ends_it(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that has missed a change must not be decided upon."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    async with mirrored(playground) as (mirror, task):
        await asyncio.wait_for(mirror.synced(), PATIENCE_S)
        monkeypatch.setattr(mirror.feed.node_records, "nodes", broken)
        playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        await asyncio.wait([task], timeout=PATIENCE_S)
        error = task.exception()
        assert isinstance(error, BaseExceptionGroup)
        assert error.subgroup(ZeroDivisionError) is not None


async def test_an_owner_that_is_wanted_while_it_ends_is_not_read(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of a reflector end a moment after it, and may take a last batch until then."""
    wanted = OwnerRef(kinds.JOBS, "default", "train")

    async def run(reflector: module.Reflector[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reflector._sink([])

    monkeypatch.setattr(module.Reflector, "run", run)
    async with mirrored(playground) as (mirror, task):
        await asyncio.sleep(0)
        mirror.feed.gangs.stale[wanted] = None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not mirror._fetching
