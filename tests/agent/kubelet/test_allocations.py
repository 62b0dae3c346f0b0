# SPDX-License-Identifier: Apache-2.0
"""For which pod the kubelet calls, by what the watch has shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dovetail.agent.kubelet import allocations
from dovetail.agent.kubelet.allocations import Allocations
from dovetail.agent.kubelet.bound_pods import DEVICES, BoundPod, parts_of
from dovetail.agent.kubelet.podresources import ContainerDevices, PodDevices
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Change
from dovetail.kube.nodes import instances
from dovetail.kube.objects.pods_on_node import PodOnNode
from dovetail.kube.translate import annotations
from dovetail.playground import Playground
from tests.agent import fake_kubelet
from tests.agent.agents import until

GPU = "nvidia.com/gpu"


def pod(
    name: str, amount: int = 1, *, version: int = 1, status: dict[str, Any] | None = None, **options: Any
) -> PodOnNode:
    document = fake_kubelet.pod(name, {GPU: amount}, **options)
    document["metadata"]["resourceVersion"] = str(version)
    return msgspec.convert(document | {"status": status or {"phase": "Pending"}}, PodOnNode)


@pytest.fixture
async def chosen() -> AsyncIterator[Allocations]:
    """Without a watch: tests apply the changes."""
    async with Client(ClusterConfig("http://127.0.0.1:1")) as client:
        yield Allocations(client, "n1", wait_s=0.05)


def bind(chosen: Allocations, *pods: PodOnNode) -> None:
    chosen.update([Change("added", one) for one in pods])


def change(chosen: Allocations, one: PodOnNode, kind: Any = "modified") -> None:
    chosen.update([Change(kind, one)])


def has(name: str, **ids: tuple[str, ...]) -> PodDevices:
    return PodDevices("default", name, tuple(ContainerDevices(c, ((GPU, held),)) for c, held in ids.items()))


async def candidate(chosen: Allocations, size: int = 1, fits: Any = lambda pod: True) -> str | None:
    found = await chosen.next(GPU, size, fits)
    return found.name if found is not None else None


async def test_candidates_are_in_the_order_of_the_watch(chosen: Allocations) -> None:
    bind(chosen, pod("b"))
    bind(chosen, pod("a"))
    assert [await candidate(chosen), await candidate(chosen), await candidate(chosen)] == ["b", "a", None]


async def test_a_list_is_sorted_by_binding(chosen: Allocations) -> None:
    bind(chosen, pod("late", version=30), pod("early", version=4))
    assert [await candidate(chosen), await candidate(chosen)] == ["early", "late"]


async def test_only_a_pod_that_requests_this_size_is_a_candidate(chosen: Allocations) -> None:
    bind(chosen, pod("one", 1), pod("four", 4))
    assert (await candidate(chosen, 4), await candidate(chosen, 2), await candidate(chosen, 1)) == ("four", None, "one")
    assert await chosen.next("nvidia.com/mig-1g.5gb", 1, lambda pod: True) is None


async def test_of_several_candidates_the_first_with_available_devices_is_taken(chosen: Allocations) -> None:
    bind(chosen, pod("taken", devices="0"), pod("free", devices="5"))
    assert await candidate(chosen, fits=lambda pod: pod.parts == ("5",)) == "free"
    assert await candidate(chosen, fits=lambda pod: False) == "taken"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"phase": "Pending", "containerStatuses": [{"name": "c0"}]},
        {"phase": "Pending", "initContainerStatuses": [{"name": "init"}]},
        {"phase": "Failed", "reason": "UnexpectedAdmissionError"},
        {"phase": "Succeeded"},
    ],
    ids=lambda status: f"{status['phase']} {' '.join(status.keys() - {'phase'})}",
)
async def test_started_and_ended_pods_are_no_candidates(chosen: Allocations, status: dict[str, Any]) -> None:
    bind(chosen, pod("a"))
    change(chosen, pod("a", version=2, status=status))
    bind(chosen, pod("b"))
    assert await candidate(chosen) == "b"


async def test_a_deleted_pod_is_no_candidate(chosen: Allocations) -> None:
    bind(chosen, pod("a"))
    change(chosen, pod("a"), "deleted")
    assert await candidate(chosen) is None


async def test_a_request_waits_for_the_watch(chosen: Allocations) -> None:
    chosen._wait_s = 20.0
    call = asyncio.create_task(candidate(chosen))
    await asyncio.sleep(0)
    bind(chosen, pod("other", 2))
    await asyncio.sleep(0)
    assert not call.done()
    bind(chosen, pod("late"))
    assert await call == "late"


async def test_a_pod_with_unavailable_devices_is_taken_only_after_waiting_for_the_watch(
    chosen: Allocations,
) -> None:
    """The kubelet reuses the devices of an init container without a second call, so "a" may have started by now."""
    chosen._wait_s = 20.0
    bind(chosen, pod("a", devices="0"))
    call = asyncio.create_task(candidate(chosen, fits=lambda one: one.parts != ("0",)))
    await asyncio.sleep(0)
    assert not call.done()
    bind(chosen, pod("b", devices="1"))
    assert await call == "b"


async def test_a_pod_with_unavailable_devices_is_taken_if_there_is_no_other(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0"))
    assert await candidate(chosen, fits=lambda one: False) == "a"


async def test_what_a_read_shows_before_the_watch_is_forgotten_once_it_has_ended(
    playground: Playground,
) -> None:
    """The pod may end before the watch lists again, which then never shows it."""
    async with Client(ClusterConfig(playground.url)) as client:
        chosen = Allocations(client, "n1")
        playground.store.put_raw("pods", fake_kubelet.pod("read", {GPU: 1}, uid="read"))
        await chosen.asker_known(GPU, ("0",), None)
        ((found, _),) = chosen.askers(GPU, ("0",), None)
        assert (found.name, found.uid) == ("read", "read") and not chosen.synced.is_set()
        playground.delete("pods", "default", "read")
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(chosen.run())
            await chosen.synced.wait()
            playground.store.put_raw("pods", fake_kubelet.pod("next", {GPU: 1}, uid="next"))
            await until(lambda: [one.name for one in chosen.pods] == ["next"])
            watching.cancel()


async def test_calls_for_many_pods_share_a_read_that_began_after_them(
    playground: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet prepares claims of different pods at the same time."""
    reads, gate = 0, asyncio.Event()

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        await gate.wait()
        return await list_all(*given, **more)

    monkeypatch.setattr(allocations, "list_all", counted)
    async with Client(ClusterConfig(playground.url)) as client:
        chosen = Allocations(client, "n1", wait_s=1000.0)
        first = [asyncio.create_task(chosen.pods_known([f"u{at}", f"not-{at}"])) for at in range(30)]
        await until(lambda: reads == 1)
        later = asyncio.create_task(chosen.pods_known(["later"]))
        for at in range(30):
            playground.store.put_raw("pods", fake_kubelet.pod(f"p{at}", {GPU: 1}, uid=f"u{at}"))
        gate.set()
        found = [[one.name for one in pods] for pods in await asyncio.gather(*first)]
        assert (found, reads) == ([[f"p{at}"] for at in range(30)], 1)
        assert (await later, reads) == ([], 2)


async def test_a_read_that_shows_no_pod_ends_the_wait(playground: Playground) -> None:
    async with Client(ClusterConfig(playground.url)) as client:
        chosen = Allocations(client, "n1", wait_s=1000.0)
        assert await chosen.next(GPU, 1, lambda pod: True) is None
        await chosen.asker_known(GPU, ("0",), None)
        assert chosen.askers(GPU, ("0",), None) == []


async def test_a_pod_is_a_candidate_once_per_container_init_containers_first(chosen: Allocations) -> None:
    bind(chosen, pod("a", 2, init={GPU: 1}, containers=[{GPU: 2}]))
    assert [await candidate(chosen, size) for size in (1, 1, 2, 2, 2)] == ["a", None, "a", "a", None]


async def test_devices_allocated_without_a_preference_count_for_the_pod_they_were_chosen_for(
    chosen: Allocations,
) -> None:
    bind(chosen, pod("a", devices="0"), pod("b", devices="1"))
    found = chosen.allocated(GPU, ("1",), None)
    assert found is not None and found.name == "b"
    assert [await candidate(chosen), await candidate(chosen)] == ["a", None]


async def test_after_a_restart_of_the_kubelet_unstarted_pods_are_candidates_again(chosen: Allocations) -> None:
    bind(chosen, pod("a"), pod("held"), pod("working"))
    for _ in range(3):
        await candidate(chosen)
    chosen.confirm([GPU], [has("held", c0=("x",))], first=True)
    change(chosen, pod("working", version=2, status={"phase": "Running"}))
    chosen.kubelet_restarted()
    assert [await candidate(chosen), await candidate(chosen)] == ["a", None]


async def test_started_pods_without_devices_are_the_last_candidates(chosen: Allocations) -> None:
    bind(chosen, pod("rebooted", devices="3", status={"phase": "Running"}), pod("new", devices="4"))
    assert [await candidate(chosen), await candidate(chosen)] == ["new", "rebooted"]
    chosen.confirm([GPU], [has("rebooted", c0=("x",))], first=True)
    assert await candidate(chosen) is None


async def test_devices_chosen_for_other_pods_in_flight_are_promised(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0"), pod("b", 2, devices="1,2"), pod("c", devices="3", status={"phase": "Running"}))
    mine = await chosen.next(GPU, 1, lambda pod: True)
    assert chosen.promised(GPU, mine) == {"1", "2"}


async def test_a_resource_that_a_claim_provides_is_not_requested(chosen: Allocations) -> None:
    mapped = {"requestMappings": [{"containerName": "c0", "resourceName": GPU, "requestName": "r"}]}
    bind(chosen, pod("claimed", status={"phase": "Pending", "extendedResourceClaimStatus": mapped}))
    assert await candidate(chosen) is None


async def test_a_pod_is_confirmed_when_all_its_containers_have_devices(chosen: Allocations) -> None:
    bind(chosen, pod("a", 1, containers=[{GPU: 1}]))
    chosen.allocated(GPU, ("0",), None)
    assert chosen.confirm([GPU], [has("a", c0=("x",))], first=False) == []
    chosen.allocated(GPU, ("1",), None)
    (found,) = chosen.confirm([GPU], [has("a", c0=("x",), c1=("y",))], first=False)
    assert (found.pod.name, found.ids) == ("a", {"x", "y"})
    assert chosen.confirm([GPU], [has("a", c0=("x",), c1=("y",))], first=False) == []


async def test_after_a_restart_of_the_agent_containers_with_devices_are_served(chosen: Allocations) -> None:
    bind(chosen, pod("a", 1, containers=[{GPU: 2}]))
    chosen.confirm([GPU], [has("a", c0=("x",))], first=True)
    assert (await candidate(chosen, 1), await candidate(chosen, 2)) == (None, "a")


async def test_devices_of_an_earlier_pod_of_the_same_name_are_ignored(chosen: Allocations) -> None:
    bind(chosen, pod("a", uid="old"))
    chosen.allocated(GPU, ("0",), None)
    assert chosen.confirm([GPU], [has("a", c0=("x",))], first=False)
    change(chosen, pod("a", uid="old"), "deleted")
    bind(chosen, pod("a", uid="new", devices="1"))
    assert chosen.confirm([GPU], [has("a", c0=("x",))], first=False) == []
    assert await candidate(chosen) == "a"


async def test_the_watch_has_only_pods_of_this_node() -> None:
    plane = Playground(start_delay_s=0.0)
    url = await plane.start()
    plane.put(fake_kubelet.pod("before", {GPU: 1}))
    async with Client(ClusterConfig(url)) as client:
        chosen = Allocations(client, "n1")
        following = asyncio.create_task(chosen.run())
        await chosen.synced.wait()
        plane.put(fake_kubelet.pod("elsewhere", {GPU: 1}, node="n2"))
        plane.put(fake_kubelet.pod("after", {GPU: 1}, devices="7"))
        assert [await candidate(chosen), await candidate(chosen)] == ["before", "after"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await plane.stop()


WRITTEN = ["0", "0,1", "15", "7,0", "0/1g.5gb@6", "0,1/3g.20gb@4", "0/1g.10gb+me@0,0/1g.5gb@6"]
NOT_WRITTEN = ["", "0,0", "00", "a", "-1", "0;1", "0, 1", "0/1g.5gb", "0/1g.5gb@6,0/1g.5gb@6", "100", "0/1g@0"]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_written_list_of_devices_is_parsed(text: str) -> None:
    assert parts_of(text) == tuple(text.split(","))


@pytest.mark.parametrize("text", NOT_WRITTEN)
def test_any_other_text_is_not_parsed(text: str) -> None:
    assert parts_of(text) is None


def test_the_annotation_is_parsed_as_in_the_scheduler() -> None:
    assert DEVICES == annotations.DEVICES
    chance = random.Random(3)
    for _ in range(500):
        text = "".join(chance.choice("01,2/g.5b@") for _ in range(chance.randint(1, 9)))
        parts = text.split(",")
        cards = ",".join(part for part in parts if "/" not in part)
        mig = ",".join(part for part in parts if "/" in part)
        elsewhere = (not cards or annotations.indices_of(cards) is not None) and (
            not mig or instances.written(mig) is not None
        )
        beyond = any(part.isdecimal() and int(part) >= 16 for part in parts)
        assert (parts_of(text) is not None) == elsewhere or beyond, text


async def test_a_bad_annotation_is_a_fault_and_chooses_no_devices(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0,0"))
    found = await chosen.next(GPU, 1, lambda pod: True)
    assert isinstance(found, BoundPod) and found.parts is None and "'0,0' is not a list of devices" in found.fault
