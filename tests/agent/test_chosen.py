# SPDX-License-Identifier: Apache-2.0
"""For which pod the kubelet asks, by what the watch has shown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dovetail.agent.kubelet.allocations import DEVICES, Allocations, BoundPod, parts_of
from dovetail.agent.kubelet.podresources import ContainerDevices, PodDevices
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.reflector import Change
from dovetail.kube.nodes import instances
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import annotations
from dovetail.playground import Playground
from tests.agent import fake_kubelet

GPU = "nvidia.com/gpu"


def pod(name: str, amount: int = 1, *, version: int = 1, status: dict[str, Any] | None = None, **options: Any) -> Pod:
    document = fake_kubelet.pod(name, {GPU: amount}, **options)
    document["metadata"]["resourceVersion"] = str(version)
    return msgspec.convert(document | {"status": status or {"phase": "Pending"}}, Pod)


@pytest.fixture
async def chosen() -> AsyncIterator[Allocations]:
    """Follows nobody: tests tell it."""
    async with Client(ClusterConfig("http://127.0.0.1:1")) as client:
        yield Allocations(client, "n1", wait_s=0.05)


def bind(chosen: Allocations, *pods: Pod) -> None:
    chosen.tell([Change("added", one) for one in pods])


def change(chosen: Allocations, one: Pod, kind: Any = "modified") -> None:
    chosen.tell([Change(kind, one)])


def has(name: str, **ids: tuple[str, ...]) -> PodDevices:
    return PodDevices("default", name, tuple(ContainerDevices(c, ((GPU, held),)) for c, held in ids.items()))


async def named(chosen: Allocations, size: int = 1, fits: Any = lambda pod: True) -> str | None:
    found = await chosen.next(GPU, size, fits)
    return found.name if found is not None else None


async def test_pods_are_named_in_the_order_in_which_the_watch_showed_them(chosen: Allocations) -> None:
    bind(chosen, pod("b"))
    bind(chosen, pod("a"))
    assert [await named(chosen), await named(chosen), await named(chosen)] == ["b", "a", None]


async def test_a_list_is_put_into_the_order_of_the_bindings(chosen: Allocations) -> None:
    bind(chosen, pod("late", version=30), pod("early", version=4))
    assert [await named(chosen), await named(chosen)] == ["early", "late"]


async def test_only_a_pod_that_asks_for_so_many_is_named(chosen: Allocations) -> None:
    bind(chosen, pod("one", 1), pod("four", 4))
    assert (await named(chosen, 4), await named(chosen, 2), await named(chosen, 1)) == ("four", None, "one")
    assert await chosen.next("nvidia.com/mig-1g.5gb", 1, lambda pod: True) is None


async def test_of_several_the_first_counts_whose_choice_can_be_had(chosen: Allocations) -> None:
    bind(chosen, pod("taken", devices="0"), pod("free", devices="5"))
    assert await named(chosen, fits=lambda pod: pod.parts == ("5",)) == "free"
    assert await named(chosen, fits=lambda pod: False) == "taken"


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
async def test_pods_at_work_and_ended_ones_wait_for_nothing(chosen: Allocations, status: dict[str, Any]) -> None:
    bind(chosen, pod("a"))
    change(chosen, pod("a", version=2, status=status))
    bind(chosen, pod("b"))
    assert await named(chosen) == "b"


async def test_a_deleted_pod_waits_for_nothing(chosen: Allocations) -> None:
    bind(chosen, pod("a"))
    change(chosen, pod("a"), "deleted")
    assert await named(chosen) is None


async def test_a_request_waits_for_the_watch(chosen: Allocations) -> None:
    chosen._wait_s = 20.0
    asking = asyncio.create_task(named(chosen))
    await asyncio.sleep(0)
    bind(chosen, pod("other", 2))
    await asyncio.sleep(0)
    assert not asking.done()
    bind(chosen, pod("late"))
    assert await asking == "late"


async def test_a_request_is_not_taken_for_that_of_a_pod_whose_choice_cannot_be_had_before_the_watch_was_waited_for(
    chosen: Allocations,
) -> None:
    """The kubelet has reused the devices of an init container, so nobody asked for "a" again: it is at work by now."""
    chosen._wait_s = 20.0
    bind(chosen, pod("a", devices="0"))
    asking = asyncio.create_task(named(chosen, fits=lambda one: one.parts != ("0",)))
    await asyncio.sleep(0)
    assert not asking.done()
    bind(chosen, pod("b", devices="1"))
    assert await asking == "b"


async def test_whose_choice_cannot_be_had_is_named_where_nobody_else_comes(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0"))
    assert await named(chosen, fits=lambda one: False) == "a"


async def test_a_pod_is_asked_for_once_per_container_init_containers_first(chosen: Allocations) -> None:
    bind(chosen, pod("a", 2, init={GPU: 1}, containers=[{GPU: 2}]))
    assert [await named(chosen, size) for size in (1, 1, 2, 2, 2)] == ["a", None, "a", "a", None]


async def test_what_is_handed_over_unasked_counts_for_the_pod_that_it_was_chosen_for(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0"), pod("b", devices="1"))
    given = chosen.gave(GPU, ("1",), None)
    assert given is not None and given.name == "b"
    assert [await named(chosen), await named(chosen)] == ["a", None]


async def test_after_a_restart_of_the_kubelet_pods_are_asked_for_again(chosen: Allocations) -> None:
    bind(chosen, pod("a"), pod("held"), pod("working"))
    for _ in range(3):
        await named(chosen)
    chosen.confirm([GPU], [has("held", c0=("x",))], first=True)
    change(chosen, pod("working", version=2, status={"phase": "Running"}))
    chosen.begin_anew()
    assert [await named(chosen), await named(chosen)] == ["a", None]


async def test_pods_at_work_that_hold_nothing_come_last(chosen: Allocations) -> None:
    bind(chosen, pod("rebooted", devices="3", status={"phase": "Running"}), pod("new", devices="4"))
    assert [await named(chosen), await named(chosen)] == ["new", "rebooted"]
    chosen.confirm([GPU], [has("rebooted", c0=("x",))], first=True)
    assert await named(chosen) is None


async def test_the_choices_of_others_in_flight_are_promised(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0"), pod("b", 2, devices="1,2"), pod("c", devices="3", status={"phase": "Running"}))
    mine = await chosen.next(GPU, 1, lambda pod: True)
    assert chosen.promised(GPU, mine) == {"1", "2"}


async def test_a_resource_that_a_claim_provides_is_not_asked_for(chosen: Allocations) -> None:
    mapped = {"requestMappings": [{"containerName": "c0", "resourceName": GPU, "requestName": "r"}]}
    bind(chosen, pod("claimed", status={"phase": "Pending", "extendedResourceClaimStatus": mapped}))
    assert await named(chosen) is None


async def test_a_pod_is_confirmed_when_all_its_containers_are(chosen: Allocations) -> None:
    bind(chosen, pod("a", 1, containers=[{GPU: 1}]))
    chosen.gave(GPU, ("0",), None)
    assert chosen.confirm([GPU], [has("a", c0=("x",))], first=False) == []
    chosen.gave(GPU, ("1",), None)
    (found,) = chosen.confirm([GPU], [has("a", c0=("x",), c1=("y",))], first=False)
    assert (found.pod.name, found.ids) == ("a", {"x", "y"})
    assert chosen.confirm([GPU], [has("a", c0=("x",), c1=("y",))], first=False) == []


async def test_after_a_restart_of_the_agent_containers_that_have_theirs_do_not_wait(chosen: Allocations) -> None:
    bind(chosen, pod("a", 1, containers=[{GPU: 2}]))
    chosen.confirm([GPU], [has("a", c0=("x",))], first=True)
    assert (await named(chosen, 1), await named(chosen, 2)) == (None, "a")


async def test_the_devices_of_an_earlier_pod_of_the_name_are_not_its_successor_s(chosen: Allocations) -> None:
    bind(chosen, pod("a", uid="old"))
    chosen.gave(GPU, ("0",), None)
    assert chosen.confirm([GPU], [has("a", c0=("x",))], first=False)
    change(chosen, pod("a", uid="old"), "deleted")
    bind(chosen, pod("a", uid="new", devices="1"))
    assert chosen.confirm([GPU], [has("a", c0=("x",))], first=False) == []
    assert await named(chosen) == "a"


async def test_the_watch_follows_this_node_alone() -> None:
    plane = Playground(start_delay_s=0.0)
    url = await plane.start()
    plane.put(fake_kubelet.pod("before", {GPU: 1}))
    async with Client(ClusterConfig(url)) as client:
        chosen = Allocations(client, "n1")
        following = asyncio.create_task(chosen.run())
        await chosen.synced.wait()
        plane.put(fake_kubelet.pod("elsewhere", {GPU: 1}, node="n2"))
        plane.put(fake_kubelet.pod("after", {GPU: 1}, devices="7"))
        assert [await named(chosen), await named(chosen)] == ["before", "after"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await plane.stop()


WRITTEN = ["0", "0,1", "15", "7,0", "0/1g.5gb@6", "0,1/3g.20gb@4", "0/1g.10gb+me@0,0/1g.5gb@6"]
NOT_WRITTEN = ["", "0,0", "00", "a", "-1", "0;1", "0, 1", "0/1g.5gb", "0/1g.5gb@6,0/1g.5gb@6", "100", "0/1g@0"]


@pytest.mark.parametrize("text", WRITTEN)
def test_what_the_scheduler_writes_is_read(text: str) -> None:
    assert parts_of(text) == tuple(text.split(","))


@pytest.mark.parametrize("text", NOT_WRITTEN)
def test_what_is_no_list_of_devices_is_not(text: str) -> None:
    assert parts_of(text) is None


def test_the_annotation_is_read_as_everywhere_else() -> None:
    assert DEVICES == annotations.DEVICES
    chance = random.Random(3)
    for _ in range(500):
        text = "".join(chance.choice("01,2/g.5b@") for _ in range(chance.randint(1, 9)))
        parts = text.split(",")
        cards = ",".join(part for part in parts if "/" not in part)
        named = ",".join(part for part in parts if "/" in part)
        elsewhere = (not cards or annotations.indices_of(cards) is not None) and (
            not named or instances.written(named) is not None
        )
        beyond = any(part.isdecimal() and int(part) >= 16 for part in parts)
        assert (parts_of(text) is not None) == elsewhere or beyond, text


async def test_a_bad_annotation_is_a_fault_and_no_choice(chosen: Allocations) -> None:
    bind(chosen, pod("a", devices="0,0"))
    found = await chosen.next(GPU, 1, lambda pod: True)
    assert isinstance(found, BoundPod) and found.parts is None and "'0,0' is no list of devices" in found.fault
