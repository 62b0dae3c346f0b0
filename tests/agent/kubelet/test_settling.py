# SPDX-License-Identifier: Apache-2.0
"""A restarted kubelet has settled when it shows the running pods; pods wait for that, for a bounded time."""

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
    """With a short name: the path of a socket is limited."""
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


async def kubelet_restarted(node: Node, one: Settling) -> None:
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


@pytest.mark.slow
async def test_the_kubelet_settles_when_it_shows_running_pods_with_our_devices(place: Path) -> None:
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        states: list[tuple[bool, bool]] = []
        one.on_change(lambda: states.append((one.settled, one.awaited)))
        await kubelet_restarted(node, one)
        await asyncio.sleep(0.3)
        assert (one.settled, one.awaited) == (False, True)
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)
        assert not one.awaited
        assert states == [(False, False), (True, False)]


async def test_the_kubelet_does_not_settle_before_it_shows_a_running_pod(place: Path) -> None:
    async with settling(place) as (node, one):
        await node.run(pod("daemon", {}))
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        await kubelet_restarted(node, one)
        await asyncio.sleep(0.3)
        assert one.awaited
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)


@pytest.mark.slow
async def test_the_wait_for_pods_that_are_never_shown_ends_and_the_log_names_them(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # So long that the kubelet answers again within it.
    monkeypatch.setattr(module, "_PATIENCE_S", 1.5)
    monkeypatch.setattr(module, "_LOOK_LATE_S", 0.01)
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        await node.run(pod("daemon", {}))
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        await kubelet_restarted(node, one)
        await until(lambda: not one.awaited)
        assert not one.settled
        message = "the kubelet has not settled, so pods come without fences: the kubelet does not show default/old"
        assert message in caplog.text
        # A resource that is registered later does not start the wait again.
        await divided(node)
        assert not one.awaited
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)
        assert not one.awaited


async def test_there_is_no_wait_while_the_kubelet_is_gone(place: Path) -> None:
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        await node.kubelet.stop()
        await until(lambda: not node.plugins.registered)
        await asyncio.sleep(0.3)
        assert not one.awaited, "the unregistered plugin is reported instead"
        node.kubelet.books.pods = {}
        await node.kubelet.start()
        await until(lambda: one.awaited)


@pytest.mark.slow
async def test_a_second_restart_starts_the_wait_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED_AFTER_S", 0.5)
    async with settling(place) as (node, one):
        await node.run(pod("old", {GPU: 1}, devices="3"))
        await kubelet_restarted(node, one)
        await asyncio.sleep(0.3)
        kept, node.kubelet.books.pods = node.kubelet.books.pods, {}
        await kubelet_restarted(node, one)
        await asyncio.sleep(0.7)
        assert one.awaited and not one.settled
        node.kubelet.books.pods = kept
        await until(lambda: one.settled)


async def test_a_resource_registered_later_with_the_same_kubelet_keeps_it_settled(place: Path) -> None:
    async with settling(place) as (node, one):
        turn, states = one.turn, list[bool]()
        one.on_change(lambda: states.append(one.settled))
        await divided(node)
        assert one.settled and one.turn > turn and all(states)
