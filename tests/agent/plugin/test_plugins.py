# SPDX-License-Identifier: Apache-2.0
"""Device plugins beside a kubelet: registered, asked, restarted, and in each other's way."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dovetail.agent.apis.serving import answers
from dovetail.agent.config import Config, Shared
from dovetail.agent.kubelet import allocations, podresources
from dovetail.agent.plugin import (
    DeviceDifference,
    folder,
    plugins,
    preferred_allocation,
    readback,
    registration,
    server,
)
from dovetail.agent.plugin.folder import PluginFolder
from tests.agent.agents import GPU, Node, host, mig_uuid, running, unhealthy, until, uuid, without
from tests.agent.fake_kubelet import Rejected, left_behind, pod
from tests.patience import PATIENCE_S

SHARED = f"{GPU}.shared"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, since the paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        yield Path(name)


def uuids(*cards: int) -> set[str]:
    return {uuid(card) for card in cards}


def sockets(node: Node) -> list[Path]:
    return sorted(node.kubelet.plugins.glob("dovetail-*.sock"))


async def test_the_kubelet_lists_what_is_offered_with_numa_nodes_and_health(place: Path) -> None:
    async with running(place, of=host(4, numa=[0, 1, 1, None])) as node:
        await node.kubelet.devices(GPU, 4)
        listed = node.kubelet.listed(GPU)
        assert [[n.ID for n in listed[uuid(i)].topology.nodes] for i in range(4)] == [[0], [1], [1], []]
        assert not listed[uuid(3)].HasField("topology")
        (registered,) = node.kubelet.registrations
        assert registered.resource_name == GPU and registered.options.get_preferred_allocation_available


async def test_a_pod_gets_the_devices_that_were_chosen_for_it(place: Path) -> None:
    async with running(place) as node:
        assert await node.run(pod("a", {GPU: 2}, devices="6,3")) == {GPU: uuids(3, 6)}
        assert await node.run(pod("b", {GPU: 4}, devices="0,1,2,7")) == {GPU: uuids(0, 1, 2, 7)}
        await node.settled(lambda: not any(p.unconfirmed(GPU) for p in node.chosen.pods))
        assert node.plugins.differences == () and node.plugins.counts.chosen == 2


async def test_the_pods_of_the_node_are_read_where_they_change(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread a pod that comes meanwhile would end the read with an error, and with it the admission."""
    async with running(place) as node:
        promised, threads = node.chosen.promised, set[threading.Thread]()

        def noted(resource: str, besides: allocations.BoundPod | None) -> frozenset[str]:
            threads.add(threading.current_thread())
            return promised(resource, besides)

        monkeypatch.setattr(node.chosen, "promised", noted)
        await node.run(pod("a", {GPU: 2}))
        assert threads == {threading.current_thread()}


async def test_an_allocation_that_the_scheduler_has_not_recorded_is_reported(place: Path) -> None:
    """Its books have it by no other way: another scheduler chose the devices, or the annotation was changed."""
    async with running(place) as node:
        await node.run(pod("a", {GPU: 2}, devices="3,6", recorded=False))
        await node.run(pod("b", {GPU: 1}, devices="1"))
        await node.settled(lambda: not any(p.unconfirmed(GPU) for p in node.chosen.pods))
        assert [(d.pod, d.chosen, d.given) for d in node.plugins.differences] == [("a", "", "3,6")]


async def test_an_aligning_kubelet_allocates_the_chosen_devices(place: Path) -> None:
    async with running(place) as node:
        assert await node.run(pod("a", {GPU: 2}, devices="5,7"), mask=frozenset({1})) == {GPU: uuids(5, 7)}
        assert await node.run(pod("b", {GPU: 2}, devices="4,6"), mask=frozenset({1})) == {GPU: uuids(4, 6)}


async def test_containers_share_what_was_chosen_for_their_pod(place: Path) -> None:
    async with running(place) as node:
        several = pod("a", {GPU: 2}, devices="1,2,4,7", init={GPU: 3}, containers=[{GPU: 2}])
        assert await node.run(several) == {GPU: uuids(1, 2, 4, 7)}
        await node.settled(lambda: all(p.held for p in node.chosen.pods))
        assert node.plugins.differences == ()


async def test_replicas_are_of_the_chosen_cards(place: Path) -> None:
    shared = Config(sharing={GPU: Shared("time-slicing", 4, False, SHARED)})
    async with running(place, shared, host(4)) as node:
        for i in range(4):
            (one,) = (await node.run(pod(f"p{i}", {SHARED: 1}, devices="2")))[SHARED]
            assert one.startswith(f"{uuid(2)}::")
        allocated = await node.run(pod("two", {SHARED: 2}, devices="0,3"))
        assert {one.partition("::")[0] for one in allocated[SHARED]} == uuids(0, 3)
        await node.settled(lambda: all(p.held for p in node.chosen.pods))
        assert node.plugins.differences == ()


async def test_instances_are_the_chosen_ones_beside_whole_gpus(place: Path) -> None:
    mig = {1: [("1g.5gb", start, 1) for start in range(4)], 2: [("1g.5gb", 0, 1), ("3g.20gb", 4, 4)]}
    async with running(place, Config(mig_strategy="mixed"), host(3, mig=mig)) as node:
        small, big = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
        mixed = pod("a", {GPU: 1, small: 2, big: 1}, devices="0,1/1g.5gb@3,2/1g.5gb@0,2/3g.20gb@4")
        assert await node.run(mixed) == {GPU: uuids(0), small: {mig_uuid(1, 3), mig_uuid(2, 0)}, big: {mig_uuid(2, 4)}}
        await node.settled(lambda: all(len(p.held) == 3 for p in node.chosen.pods))
        assert node.plugins.differences == ()


async def test_an_unhealthy_gpu_leaves_the_list_and_comes_back(place: Path) -> None:
    async with running(place) as node:
        await node.kubelet.devices(GPU, 8)
        await node.plugins.update(host(), unhealthy(2, 3))
        await node.kubelet.devices(GPU, 6)
        assert node.kubelet.capacity(GPU) == (8, 6)
        await node.plugins.update(host(), ())
        await node.kubelet.devices(GPU, 8)


async def test_a_gpu_that_vanishes_while_it_is_held_stays_known(place: Path) -> None:
    async with running(place, of=host(4)) as node:
        held, other = pod("a", {GPU: 1}, devices="1"), pod("b", {GPU: 1}, devices="3")
        await node.run(held)
        await node.run(other)
        await node.settled(lambda: all(p.held for p in node.chosen.pods))
        await node.plugins.update(without(host(4), 1), unhealthy(1))
        await node.kubelet.devices(GPU, 3)
        assert node.kubelet.capacity(GPU) == (4, 3) and node.holds(held) == {GPU: uuids(1)}
        # The numbers of the others have changed, which the scheduler has to know.
        reported = {(d.pod, d.chosen, d.given) for d in node.plugins.differences}
        assert reported == {("a", "1", ""), ("b", "3", "2")}
        with pytest.raises(Rejected):
            await node.run(pod("c", {GPU: 4}, devices="0,1,2,3"))


async def test_a_resource_that_is_no_longer_offered_is_withdrawn(place: Path) -> None:
    mig = {1: [("1g.5gb", 0, 1)]}
    async with running(place, Config(mig_strategy="mixed"), host(2, mig=mig)) as node:
        await node.kubelet.devices("nvidia.com/mig-1g.5gb", 1)
        await node.plugins.update(host(2, mig={1: [("2g.10gb", 0, 2)]}), ())
        await node.kubelet.devices("nvidia.com/mig-2g.10gb", 1)
        await node.kubelet.until(lambda: node.kubelet.capacity("nvidia.com/mig-1g.5gb") == (0, 0))
        await until(lambda: node.plugins.registered == {GPU, "nvidia.com/mig-2g.10gb"})


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_after_a_restart_of_the_kubelet_everything_is_registered_again(place: Path, kill: bool) -> None:
    async with running(place) as node:
        held = pod("a", {GPU: 2}, devices="6,7")
        await node.run(held)
        for _ in range(3):
            await node.kubelet.restart(kill=kill)
            await node.kubelet.devices(GPU, 8)
        assert await node.run(pod("b", {GPU: 2}, devices="4,5")) == {GPU: uuids(4, 5)}
        assert node.holds(held) == {GPU: uuids(6, 7)} and len(sockets(node)) == 1


async def test_the_kubelet_may_come_later_and_its_folders_too(place: Path) -> None:
    async with Node(place) as node:
        await node.kubelet.stop()
        shutil.rmtree(node.kubelet.plugins)
        await node.begin_agent()
        await node.settled(lambda: any("kubelet.sock is not there" in fault for fault in node.plugins.faults))
        await node.kubelet.start()
        await node.kubelet.devices(GPU, 8)
        await node.settled(lambda: node.plugins.faults == ())


async def test_a_stale_socket_of_the_kubelet_is_reported_and_waited_for(place: Path) -> None:
    async with Node(place) as node:
        await node.kubelet.stop(kill=True)
        await node.begin_agent()
        await node.settled(lambda: any("is not registered" in fault for fault in node.plugins.faults))
        await node.kubelet.start()
        await node.kubelet.devices(GPU, 8)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_stopped_kubelet_is_reported_at_once_and_has_the_plugin_when_it_is_back(
    place: Path, kill: bool
) -> None:
    clock = asyncio.get_running_loop().time
    changed = asyncio.Event()
    async with running(place, changed=changed.set) as node:
        assert node.plugins.unregistered == ("", "")
        changed.clear()
        await node.kubelet.stop(kill=kill)
        await asyncio.wait_for(changed.wait(), 0.5)
        assert node.plugins.unregistered[0]
        # So long that it is asked for ever more rarely.
        await asyncio.sleep(4)
        reason, words = node.plugins.unregistered
        assert reason == "KubeletGone" and str(node.kubelet.socket) in words
        await node.kubelet.start()
        began_s = clock()
        await node.kubelet.devices(GPU, 8)
        assert clock() - began_s < 1
        await node.settled(lambda: node.plugins.unregistered == ("", ""))


async def test_a_folder_with_too_long_a_path_for_sockets_is_reported(place: Path) -> None:
    async with Node(place) as node:
        node.kubelet.plugins = place / ("x" * 70)
        node.kubelet.plugins.mkdir()
        left_behind(node.kubelet.plugins / "kubelet.sock")
        await node.begin_agent()
        await node.settled(lambda: any("longer than 107 bytes" in fault for fault in node.plugins.faults))
        # Tried again, and not reported again.
        (fault,) = node.plugins.faults
        await asyncio.sleep(0.5)
        assert node.plugins.faults == (fault,)
        node.kubelet.plugins = place / "device-plugins"


async def test_a_removed_socket_of_the_plugin_is_served_again(place: Path) -> None:
    async with running(place) as node:
        (before,) = sockets(node)
        before.unlink()
        await node.settled(lambda: node.plugins.counts.registrations == 2)
        await node.kubelet.until(lambda: node.kubelet.connected(GPU) == 1 and node.kubelet.capacity(GPU) == (8, 8))
        assert sockets(node) != [before]
        assert await node.run(pod("a", {GPU: 1}, devices="5")) == {GPU: uuids(5)}


async def test_stale_sockets_of_ours_are_cleared_and_those_of_others_are_not(place: Path) -> None:
    async with Node(place) as node:
        ours, theirs = node.kubelet.plugins / "dovetail-gpu-0.sock", node.kubelet.plugins / "nvidia-gpu.sock"
        left_behind(ours)
        left_behind(theirs)
        await node.begin_agent()
        await node.kubelet.devices(GPU, 8)
        assert not ours.exists() and theirs.exists()


@pytest.mark.slow
async def test_a_second_plugin_for_a_resource_reports_it_and_waits_for_the_first_to_end(place: Path) -> None:
    async with running(place) as first, Node(place / "other") as second:
        await first.kubelet.devices(GPU, 8)
        # The second agent is on the same node.
        second.kubelet.plugins, second.kubelet.pod_resources = first.kubelet.plugins, first.kubelet.pod_resources
        (theirs,) = sockets(first)
        theirs_named = theirs.rename(theirs.with_name("nvidia-gpu.sock"))
        theirs.symlink_to(theirs_named)
        await second.begin_agent()
        await until(lambda: bool(second.plugins.faults), 60)
        (fault,) = second.plugins.faults
        assert f"another device plugin offers {uuid(0)} as {GPU}" in fault and "nvidia-gpu.sock" in fault
        assert len(first.kubelet.registrations) == 1 and second.plugins.registered == frozenset()
        await first.end_agent()
        await until(lambda: second.plugins.registered == {GPU}, 60)
        assert second.plugins.faults == ()
        del first.plugins


@pytest.mark.slow
async def test_the_same_gpus_under_another_name_are_a_second_plugin_too(place: Path) -> None:
    shared = Config(sharing={GPU: Shared("time-slicing", 2, False, SHARED)})
    async with running(place, shared) as first, Node(place / "other") as second:
        await first.kubelet.devices(SHARED, 16)
        second.kubelet.plugins, second.kubelet.pod_resources = first.kubelet.plugins, first.kubelet.pod_resources
        await second.begin_agent()
        await until(lambda: any(f"as {SHARED}" in fault for fault in second.plugins.faults), 60)
        assert first.kubelet.capacity(GPU) == (0, 0)


async def test_pods_that_another_plugin_served_later_are_noticed(place: Path) -> None:
    async with running(place) as node, Node(place / "other") as rival:
        # It cannot read PodResources, and registers: the kubelet now calls it.
        rival.kubelet.plugins, rival.kubelet.pod_resources = node.kubelet.plugins, place / "absent.sock"
        await rival.begin_agent(wait_s=0.01)
        await node.kubelet.until(lambda: node.kubelet.connected(GPU) == 2)
        await node.run(pod("a", {GPU: 1}, devices="5"))
        await node.settled(
            lambda: any("has nvidia.com/gpu from another device plugin" in f for f in node.plugins.faults)
        )


BAD_CHOICES = {
    "of another node": ("11,12", "names 11, 12, which this node does not offer"),
    "not free": ("0,7", "of which 0 cannot be had"),
    "instances of a whole card": ("1/1g.5gb@0", f"names no device of {GPU}"),
    "too few": ("7", "it has 1 for 2"),
    "no list": ("7;6", "is not a list of devices"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_CHOICES)
async def test_an_impossible_choice_is_reported_and_the_pod_gets_other_devices(
    place: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    written, why = BAD_CHOICES[case]
    async with running(place) as node:
        await node.run(pod("holder", {GPU: 1}, devices="0"))
        bad = pod("bad", {GPU: 2}, devices=written)
        allocated = (await node.run(bad))[GPU]
        assert len(allocated) == 2 and uuid(0) not in allocated
        assert why in caplog.text and "pod default/bad" in caplog.text and node.plugins.counts.unmet == 1
        shown = ",".join(str(i) for i in range(8) if uuid(i) in allocated)
        expected = DeviceDifference("default", "bad", bad["metadata"]["uid"], GPU, written, shown)
        await node.settled(lambda: node.reported != [] and node.reported[-1] == (expected,))
        assert node.plugins.differed == 1
        node.end(bad)
        await node.settled(lambda: node.reported[-1] == ())


async def test_pods_without_chosen_devices_get_none_that_are_chosen_for_others(place: Path) -> None:
    async with running(place) as node:
        node.api.put(pod("waiting", {GPU: 3}, devices="0,1,2"))
        await node.settled(lambda: any(p.name == "waiting" for p in node.chosen.pods))
        free = pod("free", {GPU: 2})
        allocated = (await node.run(free))[GPU]
        assert not allocated & uuids(0, 1, 2)
        await node.settled(lambda: node.reported != [])
        (reported,) = node.reported[-1]
        assert (reported.pod, reported.chosen) == ("free", "") and node.plugins.differed == 0


async def test_a_pod_that_the_watch_does_not_show_gets_the_devices_that_were_chosen_for_it(place: Path) -> None:
    async with running(place) as node:
        node.stop_watching()
        late = pod("late", {GPU: 1}, devices="4")
        node.api.put(late)
        (held,) = (await node.kubelet.admit(late)).values()
        assert held[GPU].ids == uuids(4)


@pytest.mark.parametrize(
    "module", [allocations, podresources, folder, plugins, preferred_allocation, readback, registration, server]
)
def test_the_wall_clock_is_not_read(module: ModuleType) -> None:
    assert not {"time", "datetime"} & {name for name, value in vars(module).items() if isinstance(value, ModuleType)}


async def test_an_unknown_pod_is_served_after_a_while(place: Path) -> None:
    async with Node(place) as node:
        await node.begin_agent(wait_s=0.05)
        await node.kubelet.devices(GPU, 8)
        ghost = pod("static", {GPU: 1})
        assert len((await node.kubelet.admit(ghost))["c0"][GPU].ids) == 1


@pytest.mark.slow
async def test_a_difference_is_found_again_by_the_next_agent(place: Path) -> None:
    async with running(place) as node:
        await node.run(pod("busy", {GPU: 1}, devices="0"))
        await node.run(pod("bad", {GPU: 1}, devices="0"))
        await node.settled(lambda: node.reported != [])
        before = node.reported[-1]
        assert [d.pod for d in before] == ["bad"]
        await node.end_agent()
        node.reported.clear()
        await node.begin_agent()
        await node.settled(lambda: node.reported != [] and node.reported[-1] == before)


async def test_a_refusal_reaches_the_kubelet_with_its_reason(place: Path) -> None:
    one_only = Config(sharing={GPU: Shared("time-slicing", 2, True, SHARED)})
    async with running(place, one_only) as node:
        await node.run(pod("a", {SHARED: 1}, devices="3"))
        with pytest.raises(Rejected, match=r"2 replicas of nvidia\.com/gpu\.shared were requested"):
            await node.run(pod("b", {SHARED: 2}, devices="1,2"))


async def test_without_pod_resources_pods_are_served_and_this_is_reported(place: Path) -> None:
    async with Node(place) as node:
        await node.kubelet.stop()
        node.kubelet.pod_resources.unlink(missing_ok=True)
        node.kubelet.without_pod_resources = True
        await node.kubelet.start()
        await node.begin_agent()
        await node.kubelet.devices(GPU, 8)
        assert await node.run(pod("a", {GPU: 1}, devices="5")) == {GPU: uuids(5)}
        await node.settled(lambda: any("cannot be read back" in fault for fault in node.plugins.faults))


async def test_what_is_closed_leaves_no_socket_and_no_device(place: Path) -> None:
    async with running(place) as node:
        await node.kubelet.devices(GPU, 8)
        await node.plugins.close()
        await node.kubelet.until(lambda: node.kubelet.capacity(GPU)[1] == 0)
        assert sockets(node) == [] and answers(node.kubelet.socket)


async def test_a_folder_that_comes_and_goes_wakes_its_waiters(place: Path) -> None:
    watched = PluginFolder(place / "a" / "b")
    watched.open()
    steps = [
        lambda: (place / "a").mkdir(),
        lambda: (place / "a" / "b").mkdir(),
        lambda: (place / "a" / "b" / "file").touch(),
        lambda: (place / "a" / "b" / "file").rename(place / "a" / "b" / "other"),
        lambda: shutil.rmtree(place / "a"),
        lambda: (place / "a" / "b").mkdir(parents=True),
        lambda: (place / "a" / "b" / "again").touch(),
    ]
    for step in steps:
        waiting = asyncio.create_task(watched.changed(watched.turn, 60))
        await asyncio.sleep(0.01)
        step()
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert watched.fault == ""
    watched.close()


async def test_a_kernel_without_inotify_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = PluginFolder(place)
    monkeypatch.setattr(watched, "_libc", type("Libc", (), {"inotify_init1": staticmethod(lambda flags: -1)}))
    monkeypatch.setattr("dovetail.agent.plugin.folder.BLIND_S", 0.01)
    watched.open()
    assert watched.fault.startswith("inotify_init1")
    await asyncio.wait_for(watched.changed(watched.turn, 3600), PATIENCE_S)
    watched.close()
