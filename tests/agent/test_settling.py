# SPDX-License-Identifier: Apache-2.0
"""A kubelet that has begun anew has settled when it shows the pods that work; so long, and no longer, pods wait."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dovetail.agent.config import Config
from dovetail.agent.kubelet import settling as module
from dovetail.agent.kubelet.podresources import PodResources
from dovetail.agent.kubelet.settling import Settling
from tests.agent.agents import GPU, Node, host, mig_uuid, running, until
from tests.agent.fake_kubelet import pod


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_SETTLED_AFTER_S", 0.05), ("_UNSEEN_AFTER_S", 0.05), ("_LOOK_EVERY_S", 0.01)):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def place() -> Iterator[Path]:
    """Of a short name, as paths of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def settling(place: Path) -> AsyncIterator[tuple[Node, Settling]]:
    async with running(place) as node:
        one = Settling(node.chosen, PodResources(node.kubelet.pod_resources), node.plugins)
        task = asyncio.create_task(one.run())
        await node.kubelet.restart()
        await until(lambda: one.settled)
        yield node, one
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def begin_anew(node: Node, one: Settling) -> None:
    turn = one.turn
    await node.kubelet.restart()
    await until(lambda: one.turn > turn and one.awaited)


async def divided(node: Node) -> None:
    """One more resource is offered."""
    node.plugins.configure(Config(mig_strategy="mixed"))
    await node.plugins.update(host(8, mig={1: [("1g.5gb", 0, 1)]}), ())
    mig = "nvidia.com/mig-1g.5gb"
    await node.kubelet.until(lambda: mig_uuid(1, 0) in node.kubelet.listed(mig))
    await until(lambda: mig in node.plugins.registered)


async def test_it_has_settled_when_it_shows_the_pods_that_work_with_our_devices(place: Path) -> None:
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        heard: list[tuple[bool, bool]] = []
        one.on_change(lambda: heard.append((one.settled, one.awaited)))
        await begin_anew(node, one)
        await asyncio.sleep(0.3)
        assert (one.settled, one.awaited) == (False, True)
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)
        assert not one.awaited
        assert heard == [(False, False), (True, False)]


async def test_it_has_not_settled_before_it_shows_any_pod_where_some_work(place: Path) -> None:
    async with settling(place) as (node, one):
        await node.run(pod("daemon", {}))
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        await begin_anew(node, one)
        await asyncio.sleep(0.3)
        assert one.awaited
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)


async def test_nobody_waits_long_for_pods_that_are_never_shown_and_it_is_said_which(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(module, "_LOOK_LATE_S", 0.01)
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        await node.run(pod("daemon", {}))
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        await begin_anew(node, one)
        await until(lambda: not one.awaited, 1.0)
        assert not one.settled
        assert "pods are sent here without fences: the kubelet does not show default/old" in caplog.text
        # A resource that comes later is no reason to wait once more.
        await divided(node)
        assert not one.awaited
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)
        assert not one.awaited


async def test_nobody_waits_while_the_kubelet_is_gone(place: Path) -> None:
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        await node.kubelet.stop()
        await until(lambda: not node.plugins.registered)
        await asyncio.sleep(0.3)
        assert not one.awaited, "that the plugin is not registered says it all"
        node.kubelet.books.pods = {}
        await node.kubelet.start()
        await until(lambda: one.awaited)


async def test_a_kubelet_that_begins_anew_in_between_is_waited_for_from_then_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SETTLED_AFTER_S", 0.5)
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        await begin_anew(node, one)
        await asyncio.sleep(0.3)
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        await begin_anew(node, one)
        await asyncio.sleep(0.7)
        assert one.awaited and not one.settled
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)


async def test_a_resource_that_the_same_kubelet_is_offered_later_unsettles_nothing(place: Path) -> None:
    async with settling(place) as (node, one):
        turn, heard = one.turn, list[bool]()
        one.on_change(lambda: heard.append(one.settled))
        await divided(node)
        assert one.settled and one.turn > turn and all(heard)
