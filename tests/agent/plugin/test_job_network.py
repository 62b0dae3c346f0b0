# SPDX-License-Identifier: Apache-2.0
"""What Allocate adds for the network of a distributed job, and to which container."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.agent.config import Config, Shared
from dovetail.agent.config_values import RdmaResource
from dovetail.agent.machine.host import Host
from dovetail.agent.plugin.job_network import EXPLANATION, LACKING_REASON, REASON, WRONG_REASON, JobNetwork
from dovetail.agent.plugin.nccl_conf import CONF, NcclFiles
from dovetail.agent.publish.pod_events import PodEvent
from tests.agent import fake_kubelet
from tests.agent.agents import NVIDIAS_BUT_CDI, Node, running, uuid
from tests.agent.plugin.nics import FOUR, machine

GPU = "nvidia.com/gpu"
ON = msgspec.structs.replace(
    NVIDIAS_BUT_CDI, network_environment=True, rdma=(RdmaResource("rdma/hca", 8, {"vendors": ("15b3",)}),)
)


def pod(name: str, gpus: int = 1, env: dict[str, str] | None = None, rdma: bool = False, **options: str) -> Any:
    annotations = options.pop("annotations", {})
    made = fake_kubelet.pod(name, {GPU: gpus} | ({"rdma/hca": 1} if rdma else {}), **options)
    made["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    made["metadata"]["annotations"] |= annotations
    return made


def join(node: Node, place: Path, events: list[PodEvent]) -> None:
    node.plugins.join(JobNetwork(NcclFiles(place / "nccl"), lambda: node.host, lambda: node.config, events.append))


async def admitted(node: Node, one: dict[str, Any]) -> dict[str, str]:
    """The variables of its container. With all of the NUMA nodes the kubelet has no choice for a pod with all GPUs, as
    for each pod behind a fence, and asks for no preference."""
    ((_, resources), *_) = (await node.kubelet.admit(one, frozenset({0, 1}))).items()
    return dict(resources[GPU].answer.envs)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, since the paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        yield Path(name)


async def asked(
    place: Path, config: Config, *pods: dict[str, Any], found: Host | None = None
) -> tuple[dict[str, str], list[str], list[PodEvent]]:
    """The variables and mounts that the first of the pods gets while all of them wait; and the Events."""
    events: list[PodEvent] = []
    async with running(place, config, found or machine(*FOUR)) as node:
        files = NcclFiles(place / "nccl")
        node.plugins.join(JobNetwork(files, lambda: node.host, lambda: config, events.append))
        for one in pods:
            node.api.store.put_raw("pods", one)
            await node.settled(lambda: one["metadata"]["uid"] in {known.uid for known in node.chosen.pods})  # noqa: B023
        ((_, resources), *_) = (await node.kubelet.admit(pods[0])).items()
        answer = resources[GPU].answer
    variables = {name: value for name, value in answer.envs.items() if name != "NVIDIA_VISIBLE_DEVICES"}
    return variables, [mount.container_path for mount in answer.mounts], events


async def test_a_container_has_the_variables_the_explanation_and_its_pod_an_event(place: Path) -> None:
    variables, mounts, (event,) = await asked(place, ON, pod("a", 2, rdma=True))
    assert variables.pop(EXPLANATION) == event.note
    assert variables.keys() == {
        "NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"
    }  # fmt: skip
    assert len(variables["UCX_NET_DEVICES"].split(",")) == 3 and not mounts
    assert (event.pod, event.pod_uid, event.reason, event.warns) == ("a", "uid-a", REASON, False)
    assert "NCCL_SOCKET_IFNAME==eth0" in event.note and "(the pod network)" in event.note


async def test_nothing_without_the_configuration(place: Path) -> None:
    assert await asked(place, NVIDIAS_BUT_CDI, pod("a", env={"NCCL_IB_HCA": "x"})) == ({}, [], [])


@pytest.mark.parametrize("out", [False, True])
async def test_a_pod_can_opt_out_of_variables_and_file(place: Path, out: bool) -> None:
    both = msgspec.structs.replace(ON, nccl_conf=True)
    choice = {"dovetail.dev/network-environment": "false"} if out else {}
    variables, mounts, events = await asked(place, both, pod("a", annotations=choice))
    assert (bool(variables), mounts, len(events)) == ((False, [], 0) if out else (True, [CONF], 1))


async def test_replicas_of_shared_gpus_get_none(place: Path) -> None:
    shared = msgspec.structs.replace(ON, sharing={GPU: Shared("time-slicing", 2, False, GPU)}, nccl_conf=True)
    assert await asked(place, shared, pod("a")) == ({}, [], [])


async def test_where_several_pods_wait_only_what_is_right_for_all_is_set(place: Path) -> None:
    own = pod("b", env={"NCCL_SOCKET_IFNAME": "eth0"}, rdma=True)
    variables, _, _ = await asked(place, ON, pod("a", rdma=True), own)
    # UCX lists the interface behind the NICs for one of them alone.
    assert variables.keys() == {"NCCL_IB_HCA", EXPLANATION}


async def test_an_opt_out_of_one_of_several_counts_for_all(place: Path) -> None:
    out = pod("b", annotations={"dovetail.dev/network-environment": "false"})
    variables, mounts, _ = await asked(place, ON, pod("a"), out)
    assert not variables and not mounts


async def test_a_pod_with_chosen_devices_is_certain(place: Path) -> None:
    out = pod("b", devices="1", annotations={"dovetail.dev/network-environment": "false"})
    variables, _, (event,) = await asked(place, ON, pod("a", devices="2", rdma=True), out)
    assert variables["NCCL_IB_HCA"] == "=mlx5_2" and event.pod == "a"


async def test_a_wrong_value_is_kept_and_the_event_warns(place: Path) -> None:
    variables, _, (event,) = await asked(place, ON, pod("a", env={"NCCL_SOCKET_IFNAME": "ib0"}))
    assert "NCCL_SOCKET_IFNAME" not in variables
    assert (event.reason, event.warns) == (WRONG_REASON, True) and "names no interface" in event.note


async def test_a_value_that_refers_to_another_variable_is_not_judged(place: Path) -> None:
    own = {"IFACE": "eth0", "NCCL_SOCKET_IFNAME": "$(IFACE)", "UCX_NET_DEVICES": "$(NIC):1"}
    variables, _, (event,) = await asked(place, ON, pod("a", env=own))
    assert (variables, event.reason) == ({}, REASON) and "kept NCCL_SOCKET_IFNAME, UCX_NET_DEVICES" in event.note


async def test_so_it_is_where_the_kubelet_has_no_choice_left(place: Path) -> None:
    out = pod("b", 4, devices="0,1,2,3", annotations={"dovetail.dev/network-environment": "false"})
    variables, _, _ = await asked(place, ON, out, pod("a", 4))
    assert not variables
    variables, _, (event,) = await asked(place, ON, pod("a", 4, devices="0,1,2,3"), pod("b", 4))
    assert variables and event.pod == "a"


async def test_a_pod_that_takes_the_gpus_of_one_that_has_ended_gets_its_own(place: Path) -> None:
    events: list[PodEvent] = []
    first = pod("first", 2, devices="0,1", rdma=True)
    keeps = pod("keeps", 2, devices="2,3", annotations={"dovetail.dev/network-environment": "false"})
    then = pod("then", 2, devices="0,1", annotations={"dovetail.dev/network-environment": "false"})
    async with running(place, ON, machine(*FOUR)) as node:
        node.plugins.join(JobNetwork(NcclFiles(place / "nccl"), lambda: node.host, lambda: ON, events.append))
        answers = []
        for one in (first, keeps, then):
            node.api.store.put_raw("pods", one)
            await node.settled(lambda: one["metadata"]["uid"] in {known.uid for known in node.chosen.pods})  # noqa: B023
            # With all of the NUMA nodes the kubelet has no choice left for the last one, and asks for no preference.
            ((_, resources), *_) = (await node.kubelet.admit(one, frozenset({0, 1}))).items()
            answers.append(resources[GPU].answer.envs)
            if one is keeps:
                node.kubelet.remove("uid-first")
                node.api.delete("pods", "default", "first")
                await node.settled(lambda: "uid-first" not in {known.uid for known in node.chosen.pods})
    assert [EXPLANATION in one for one in answers] == [True, False, False]
    assert [one.pod for one in events] == ["first"]


async def test_a_pod_that_the_watch_shows_later_than_the_kubelets_own_gets_its_variables(place: Path) -> None:
    events: list[PodEvent] = []
    async with running(place, ON, machine(*FOUR)) as node:
        join(node, place, events)
        late = pod("late", 4, devices="0,1,2,3", rdma=True)
        admitting = asyncio.create_task(admitted(node, late))
        await asyncio.sleep(0.02)
        node.api.store.put_raw("pods", late)
        assert "NCCL_SOCKET_IFNAME" in await admitting
    assert [one.pod for one in events] == ["late"]


async def test_a_pod_that_the_watch_does_not_show_is_read(place: Path) -> None:
    events: list[PodEvent] = []
    async with running(place, ON, machine(*FOUR)) as node:
        join(node, place, events)
        node.stop_watching()
        unseen = pod("unseen", 4, devices="0,1,2,3", rdma=True)
        node.api.store.put_raw("pods", unseen)
        assert "NCCL_SOCKET_IFNAME" in await admitted(node, unseen)
        # So it is with a choice of the kubelet left, which asks for a preference then.
        node.kubelet.remove("uid-unseen")
        node.api.delete("pods", "default", "unseen")
        other = pod("other", 1, devices="2", rdma=True)
        node.api.store.put_raw("pods", other)
        assert (await admitted(node, other))["NCCL_IB_HCA"] == "=mlx5_2"
    assert [one.pod for one in events] == ["unseen", "other"]


async def test_a_container_whose_pod_is_known_too_late_gets_nothing_and_its_pod_an_event(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[PodEvent] = []
    async with running(place, ON, machine(*FOUR)) as node:
        join(node, place, events)
        static = pod("static", 4)
        assert EXPLANATION not in await admitted(node, static)
        assert "its pod is not known" in caplog.text
        node.works(static)
        await node.settled(lambda: bool(events))
    (event,) = events
    assert (event.pod, event.reason, event.warns) == ("static", LACKING_REASON, True)
    assert "did not know the pod" in event.note


@pytest.mark.parametrize("out", [False, True])
async def test_the_event_of_a_pod_that_was_not_certain_comes_when_the_kubelet_lists_its_gpus(
    place: Path, out: bool
) -> None:
    events: list[PodEvent] = []
    async with running(place, ON, machine(*FOUR)) as node:
        join(node, place, events)
        choice = {"dovetail.dev/network-environment": "false"} if out else {"b": "c"}
        one, other = pod("one", 4, rdma=True), pod("other", 4, env={"NCCL_IB_HCA": "mlx5_0"}, annotations=choice)
        for each in (one, other):
            node.api.store.put_raw("pods", each)
        await node.settled(lambda: len([*node.chosen.pods]) == 2)
        assert ("NCCL_SOCKET_IFNAME" in await admitted(node, one)) is not out
        node.api.store.put_raw("pods", one | {"status": {"phase": "Running"}})
        await node.settled(lambda: bool(events))
    (event,) = events
    assert (event.pod, event.reason) == ("one", LACKING_REASON)
    assert ("another container" if out else "set NCCL_SOCKET_IFNAME") in event.note
    assert ("has opted out" if out else "left out what is not right for each of the 2 containers") in event.note


async def test_a_preference_for_a_pod_that_has_ended_gives_its_network_to_no_other(place: Path) -> None:
    async with running(place, ON, machine(*FOUR)) as node:
        join(node, place, [])
        out = pod("out", 1, devices="2", annotations={"dovetail.dev/network-environment": "false"})
        node.api.store.put_raw("pods", out)
        await node.settled(lambda: len([*node.chosen.pods]) == 1)
        offer = node.plugins.offered[GPU]
        assert [*await node.plugins._prefer(offer, [*offer.devices], [], 1)] == [uuid(2)]
        node.api.delete("pods", "default", "out")
        then = pod("then", 1, devices="2", rdma=True)
        node.api.store.put_raw("pods", then)
        await node.settled(lambda: [known.name for known in node.chosen.pods] == ["then"])
        assert (await node.plugins._answers.network(offer, [uuid(2)])).env
