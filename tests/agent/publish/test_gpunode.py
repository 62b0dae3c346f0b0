# SPDX-License-Identifier: Apache-2.0
"""The GPUNode is written when something changed and every five minutes, whatever becomes of it and of the clocks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dovetail import __version__
from dovetail.agent.exporter.processes import Foreign, OwnProcess
from dovetail.agent.health.states import DeviceHealth, DeviceState, Quarantine
from dovetail.agent.machine.host import Gpu, GpuFabric, GpuInstance, Host, HostNic, Unread
from dovetail.agent.publish.gpunode import RENEW_S, GPUNodeWriter, document
from dovetail.agent.publish.gpunode_status import NodeHealth, PluginState, carried, plugin_condition, status_of
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.errors import NotFound, Unreachable
from dovetail.kube.api.resources import GPU_NODES, NODES
from dovetail.kube.objects.topology import (
    AgentState,
    DeviceDifference,
    GPUNode,
    GPUNodeSpec,
    GPUNodeStatus,
    GpuSharing,
    KubeletState,
    MigState,
    NumaNode,
)
from tests.paths import ROOT
from tools.controlplane.plane import Plane, RequestFailed

START = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
HOST = Host(
    driver="570.148.08",
    nvml="12.570.148.08",
    cuda=(12, 8),
    machine="DGXA100",
    gpus=tuple(
        Gpu(
            i,
            i,
            f"GPU-{i}",
            "NVIDIA A100-SXM4-40GB",
            f"0000:0{i}:00.0",
            40960,
            numa=0,
            fabric=GpuFabric("not-supported"),
        )
        for i in range(2)
    ),
    pcie=((0, 1), (1, 0)),
    nvlinks=((0, 12), (12, 0)),
    nics=(HostNic("mlx5_0", "ib0", "0000:03:00.0", "pci0000:00", None, 25_000, True, (2, 2)),),
)
KUBELET = KubeletState(version="v1.37.1", numa_nodes=(NumaNode(0, (10,)),))
UNHEALTHY = {"GPU-1": "XID 79: GPU has fallen off the bus"}


class Api:
    """What the writer asks of an API server; `calls` are (path, body)."""

    def __init__(self) -> None:
        self.nodes = {"gpu-1": "uid-1"}
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.down = False

    async def request(self, method: str, path: str, body: Any = None, *, decode: type[Any], **options: Any) -> Any:
        if self.down:
            raise Unreachable(0, "NotConnected", "no route", f"{method} {path}")
        parts = path.split("/")
        if "nodes" in parts:
            name = parts[-1]
            if name not in self.nodes:
                raise NotFound(404, "NotFound", name, path)
            return msgspec.convert({"metadata": {"name": name, "uid": self.nodes[name]}}, decode)
        self.calls.append((path, deepcopy(body)))
        assert (method, options["params"]["force"]) == ("PATCH", "true")
        name = body["metadata"]["name"]
        if parts[-1] == "status":
            if name not in self.objects:
                raise NotFound(404, "NotFound", name, path)
            self.objects[name]["status"] = body["status"]
        else:
            self.objects.setdefault(name, {"metadata": {"name": name}})["metadata"].update(body["metadata"])
        return msgspec.convert(json.loads(json.dumps(self.objects[name])), decode)


class Clocks:
    """A steady one and the time of day, which can be set."""

    def __init__(self) -> None:
        self.steady_s = 5_000.0
        self.day = START

    def wait(self, seconds: float) -> None:
        self.steady_s += seconds
        self.day += timedelta(seconds=seconds)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def writer(api: Any, clocks: Clocks) -> GPUNodeWriter:
    return GPUNodeWriter(api, "gpu-1", clock_s=lambda: clocks.steady_s, now=lambda: clocks.day)


def status(**changes: Any) -> GPUNodeStatus:
    return status_of(HOST, **{"kubelet": KUBELET, **changes})


def since(api: Api) -> dict[str, str]:
    return {one["type"]: one["lastTransitionTime"] for one in api.objects["gpu-1"]["status"]["conditions"]}


async def test_the_object_is_owned_by_its_node_and_has_a_status(api: Api, clocks: Clocks) -> None:
    await writer(api, clocks).write(status())
    made = api.objects["gpu-1"]
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "uid-1"}
    ]
    assert made["status"]["observedTime"] == "2026-11-21T12:00:00Z"
    assert [(one["type"], one["status"]) for one in made["status"]["conditions"]] == [
        ("Ready", "True"), ("DriverReady", "True"), ("HealthOk", "True"),
    ]  # fmt: skip


async def test_nothing_is_written_twice_but_the_time_every_five_minutes(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    for seconds, writes in ((0, 2), (1, 2), (298, 2), (1, 3), (299, 3), (2, 4)):
        clocks.wait(seconds)
        await mine.write(status())
        assert len(api.calls) == writes
    assert api.objects["gpu-1"]["status"]["observedTime"] == "2026-11-21T12:10:01Z"


async def test_a_change_is_written_at_once(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    await mine.write(status())
    clocks.wait(3)
    await mine.write(status(unhealthy=UNHEALTHY))
    found = api.objects["gpu-1"]["status"]
    assert [gpu["healthy"] for gpu in found["gpus"]] == [True, False]
    assert since(api) == {
        "Ready": "2026-11-21T12:00:00Z", "DriverReady": "2026-11-21T12:00:00Z", "HealthOk": "2026-11-21T12:00:03Z",
    }  # fmt: skip
    clocks.wait(4)
    await mine.write(status(unhealthy=UNHEALTHY | {"GPU-0": "XID 48"}))
    assert since(api)["HealthOk"] == "2026-11-21T12:00:03Z"
    assert "GPU-0: XID 48; GPU-1: " in api.objects["gpu-1"]["status"]["conditions"][2]["message"]


async def test_a_new_process_keeps_the_times_of_the_old_one(api: Api, clocks: Clocks) -> None:
    await writer(api, clocks).write(status(unhealthy=UNHEALTHY))
    clocks.wait(60)
    again = writer(api, clocks)
    await again.write(status(unhealthy=UNHEALTHY))
    assert set(since(api).values()) == {"2026-11-21T12:00:00Z"}
    clocks.wait(1)
    await again.write(status())
    assert since(api)["HealthOk"] == "2026-11-21T12:01:01Z"


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400)])
async def test_a_clock_that_is_set_changes_no_rhythm(api: Api, clocks: Clocks, jump: timedelta) -> None:
    mine = writer(api, clocks)
    await mine.write(status())
    clocks.day += jump
    await mine.write(status())
    assert len(api.calls) == 2
    clocks.wait(300)
    await mine.write(status())
    assert len(api.calls) == 3
    seen = datetime.fromisoformat(api.objects["gpu-1"]["status"]["observedTime"])
    assert seen == START + jump + timedelta(seconds=300)
    assert set(since(api).values()) == {"2026-11-21T12:00:00Z"}
    clocks.wait(1)
    await mine.write(status(unhealthy=UNHEALTHY))
    assert datetime.fromisoformat(since(api)["HealthOk"]) == START + jump + timedelta(seconds=301)


async def test_a_steady_clock_that_goes_back_does_not_stop_the_writing(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    await mine.write(status())
    clocks.steady_s = 1.0
    await mine.write(status())
    assert len(api.calls) == 3
    clocks.wait(299)
    await mine.write(status())
    assert len(api.calls) == 3


async def test_a_deleted_object_is_created_again(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    await mine.write(status(unhealthy=UNHEALTHY))
    api.objects.clear()
    api.nodes["gpu-1"] = "uid-2"
    clocks.wait(300)
    await mine.write(status(unhealthy=UNHEALTHY))
    assert api.objects["gpu-1"]["metadata"]["ownerReferences"][0]["uid"] == "uid-2"
    assert since(api)["HealthOk"] == "2026-11-21T12:00:00Z"


async def test_what_was_not_written_is_written_at_the_next_call(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    await mine.write(status())
    api.down = True
    with pytest.raises(Unreachable):
        await mine.write(status(unhealthy=UNHEALTHY))
    api.down = False
    await mine.write(status(unhealthy=UNHEALTHY))
    assert [gpu["healthy"] for gpu in api.objects["gpu-1"]["status"]["gpus"]] == [True, False]


async def test_the_health_of_gpus_and_the_quarantine_of_the_node(api: Api, clocks: Clocks) -> None:
    bad = DeviceHealth(DeviceState.DRAINING, "xid-79", "fallen off the bus\n" + "x" * 2000, 1_790_000_000_000, "reboot")
    gpus = {"GPU-0": DeviceHealth(), "GPU-1": bad}
    health = NodeHealth(gpus, ("gpus-missing: 7 of 8",), Quarantine("GPU-1: xid-79", 1_790_000_000_000))
    mine = writer(api, clocks)
    await mine.write(status(unhealthy=UNHEALTHY, health=health))
    found = api.objects["gpu-1"]["status"]
    assert found["gpus"][0]["health"] == {"state": "healthy"}
    shown = found["gpus"][1]["health"]
    assert (shown["state"], shown["code"], shown["since"], shown["next"]) == (
        "draining", "xid-79", "2026-09-21T14:13:20Z", "reboot",
    )  # fmt: skip
    assert len(shown["reason"].encode()) <= 1024
    assert found["quarantine"] == {"reason": "GPU-1: xid-79", "since": "2026-09-21T14:13:20Z"}
    message = next(one["message"] for one in found["conditions"] if one["type"] == "HealthOk")
    assert "the node: gpus-missing: 7 of 8" in message
    # When NVML answers no more, a quarantine keeps its reason, and the other GPUs are quarantined as well.
    silent = carried(status(unhealthy=UNHEALTHY), msgspec.convert(found, GPUNodeStatus, strict=False))
    assert [one.health and one.health.code for one in silent.gpus] == ["nvml", "xid-79"]
    assert silent.quarantine is not None
    await mine.write(status())
    assert "quarantine" not in api.objects["gpu-1"]["status"]
    assert "health" not in api.objects["gpu-1"]["status"]["gpus"][1]


async def test_the_processes_on_gpus_that_their_pods_do_not_hold(api: Api, clocks: Clocks) -> None:
    used = Foreign("GPU-1", 42, "other_pod", 3 << 30, "ml", "x", "u-x")
    mine = writer(api, clocks)
    await mine.write(status(health=NodeHealth(foreign=(used, Foreign("GPU-0", 7, "no_pod", 0)))))
    assert api.objects["gpu-1"]["status"]["foreignProcesses"] == [
        {"gpu": 0, "uuid": "GPU-0", "pid": 7, "holder": "no_pod", "memoryMiB": 0},
        {"gpu": 1, "uuid": "GPU-1", "pid": 42, "holder": "other_pod", "namespace": "ml", "pod": "x", "memoryMiB": 3072},
    ]
    await mine.write(status())
    assert api.objects["gpu-1"]["status"]["foreignProcesses"] == []


async def test_the_processes_of_pods_that_hold_their_gpu_are_written_with_what_is_due(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    await mine.write(status())
    own = status(health=NodeHealth(own=(OwnProcess("GPU-1", 42, 3 << 30, "ml", "x"),)))
    clocks.wait(RENEW_S - 1)
    await mine.write(own)
    assert api.objects["gpu-1"]["status"]["holderProcesses"] == []
    clocks.wait(1)
    await mine.write(own)
    expected = {"gpu": 1, "uuid": "GPU-1", "pid": 42, "namespace": "ml", "pod": "x", "memoryMiB": 3072}
    assert api.objects["gpu-1"]["status"]["holderProcesses"] == [expected]
    many = tuple(OwnProcess("GPU-0", pid, pid << 20, "ml", "x") for pid in range(200))
    assert [one.pid for one in status(health=NodeHealth(own=many)).holder_processes] == [*range(136, 200)]


async def test_idle_pods_are_written_with_what_is_due_anyway_and_used_ones_at_once(api: Api, clocks: Clocks) -> None:
    """Pods may pause again and again: that is no reason to write. What is used must not be taken for idle."""
    mine = writer(api, clocks)
    await mine.write(status())
    idle = status(health=NodeHealth(idle={"u-x": 1_767_268_800_000}))
    for seconds in (10, RENEW_S - 11):
        clocks.wait(seconds)
        await mine.write(idle)
        assert api.objects["gpu-1"]["status"]["idlePods"] == []
    clocks.wait(1)
    await mine.write(idle)
    assert api.objects["gpu-1"]["status"]["idlePods"] == [{"uid": "u-x", "since": "2026-01-01T12:00:00Z"}]
    assert mine.idle == {"u-x"}
    clocks.wait(1)
    await mine.write(status(health=NodeHealth(idle={"u-y": 1_767_268_800_000})))
    assert [one["uid"] for one in api.objects["gpu-1"]["status"]["idlePods"]] == ["u-y"] and mine.idle == {"u-y"}
    clocks.wait(1)
    await mine.write(status())
    assert api.objects["gpu-1"]["status"]["idlePods"] == [] and not mine.idle


def test_of_many_processes_those_with_the_most_memory_are_listed() -> None:
    many = [Foreign("GPU-0", pid, "no_pod", pid << 20) for pid in range(200)]
    listed = status(health=NodeHealth(foreign=tuple(many))).foreign_processes
    assert [one.pid for one in listed] == [*range(136, 200)]


async def test_without_its_node_there_is_no_object(api: Api, clocks: Clocks) -> None:
    api.nodes.clear()
    with pytest.raises(NotFound):
        await writer(api, clocks).write(status())
    assert api.objects == {}


GONE = plugin_condition("KubeletGone", "no process listens")


def conditions(api: Api) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in api.objects["gpu-1"]["status"]["conditions"]}


@pytest.mark.parametrize("process", ["the same", "the next"])
async def test_a_missing_plugin_is_added_to_the_status(api: Api, clocks: Clocks, process: str) -> None:
    mine = writer(api, clocks)
    found = status(
        unhealthy=UNHEALTHY,
        agent=AgentState(__version__, honours_choice=True),
        plugin=PluginState(plugin_condition("", "")),
    )
    await mine.write(found)
    before = deepcopy(api.objects["gpu-1"]["status"])
    assert conditions(api)["PluginRegistered"] == ("True", "Registered")
    api.objects["gpu-1"]["status"]["fence"] = "f-1"
    mine = mine if process == "the same" else writer(api, clocks)
    clocks.wait(3)
    for _ in range(3):
        await mine.amend(GONE)
    after = deepcopy(api.objects["gpu-1"]["status"])
    assert (after | {"conditions": 0, "observedTime": 0}) == (before | {"conditions": 0, "observedTime": 0})
    assert conditions(api) == {
        "Ready": ("False", "PluginNotRegistered"),
        "DriverReady": ("True", "NvmlAnswers"),
        "HealthOk": ("False", "GpuIll"),
        "PluginRegistered": ("False", "KubeletGone"),
    }
    assert since(api)["PluginRegistered"] == "2026-11-21T12:00:03Z"
    assert since(api)["HealthOk"] == "2026-11-21T12:00:00Z"
    assert [path.rpartition("/")[2] for path, _ in api.calls].count("status") == 2
    await mine.write(found)
    assert conditions(api)["PluginRegistered"] == ("True", "Registered")


async def test_what_was_cut_off_while_it_was_sent_is_not_taken_back(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    await mine.write(status())
    answer = api.request

    async def cut_off(*arguments: Any, **options: Any) -> Any:
        await answer(*arguments, **options)
        raise asyncio.CancelledError

    api.request = cut_off  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await mine.write(status(unhealthy=UNHEALTHY))
    api.request = answer  # type: ignore[method-assign]
    await mine.amend(GONE)
    assert conditions(api)["HealthOk"] == ("False", "GpuIll")
    api.down = True
    with pytest.raises(Unreachable):
        await mine.write(status())
    api.down = False
    await mine.amend(plugin_condition("AgentEnds", "it ends"))
    assert conditions(api)["HealthOk"] == ("False", "GpuIll"), "this did not arrive"


async def test_the_readiness_that_the_operator_writes_is_not_sent(api: Api, clocks: Clocks) -> None:
    await writer(api, clocks).write(status())
    api.objects["gpu-1"]["status"]["readiness"] = {"step": "validated"}
    assert await writer(api, clocks).amend(GONE)
    assert "readiness" not in api.calls[-1][1]["status"]


async def test_without_a_status_a_missing_plugin_is_not_reported(api: Api, clocks: Clocks) -> None:
    mine = writer(api, clocks)
    for _ in range(2):
        assert not await mine.amend(GONE)
    assert "status" not in api.objects["gpu-1"] and len(api.calls) == 1


def test_the_registration_is_unknown_if_another_plugin_offers_the_same() -> None:
    assert plugin_condition("OtherPlugin", "theirs").status == "Unknown"


def test_what_is_not_known_is_left_out() -> None:
    found = document(
        status_of(Host(gpus=(Gpu(0, 0, "GPU-0", "", "0000:01:00.0", 0),), pcie=((0,),), nvlinks=None, nics=None))
    )
    assert found["gpus"] == [{"index": 0, "uuid": "GPU-0", "memoryMiB": 0, "pciBusId": "0000:01:00.0", "healthy": True}]
    assert found.keys() & {"nics", "clique", "kubelet", "sharing", "mig", "machine", "cudaVersion"} == set()
    assert found["conditions"][0] == {
        "type": "Ready", "status": "False", "reason": "KubeletUnread",
        "message": "the state of the kubelet is not known",
    }  # fmt: skip
    missed = (Unread("kubelet", "GET /configz: 403 Forbidden"),)
    found = document(status_of(Host(gpus=()), unread=missed))
    assert found["conditions"][0]["message"] == "the state of the kubelet is not known: GET /configz: 403 Forbidden"


def test_an_unhealthy_mig_instance_makes_no_gpu_unhealthy() -> None:
    instance = GpuInstance("MIG-1", "1g.5gb", 7, 0, 0, 1, 4864)
    host = replace(HOST, gpus=(replace(HOST.gpus[0], mig=(instance,)), HOST.gpus[1]))
    found = status_of(host, kubelet=KUBELET, unhealthy={"MIG-1": "XID 31", "MIG-gone": "XID 45"})
    assert all(gpu.healthy for gpu in found.gpus)
    assert found.conditions[2].message == "MIG-1: XID 31"


def test_more_than_can_be_listed_is_counted() -> None:
    many = [Unread(f"gpus[0].mig[{i}]", "x" * 5000) for i in range(300)]
    found = status_of(HOST, kubelet=KUBELET, unread=many)
    assert len(found.unread) == 256
    assert len(found.unread[0].reason) == 1024
    assert found.unread[-1].reason == "45 more are not listed: run dovetail agent inspect"


DEFINITION = ROOT / "deploy/crds/gpunode.yaml"
WHOLE = {
    "unread": [Unread("gpus[1].fabric", "nvmlDeviceGetGpuFabricInfoV: the driver is too old for this call")],
    "agent": AgentState(__version__, honours_choice=True),
    "plugin": PluginState(
        sharing=GpuSharing("time-slicing", 4, False, "nvidia.com/gpu.shared"),
        differences=(DeviceDifference("default", "p", "u-1", "nvidia.com/gpu", "0", "1"),
                     DeviceDifference("default", "q", "u-2", "nvidia.com/gpu", "", "0")),
    ),
    "health": NodeHealth(
        {"GPU-0": DeviceHealth(), "GPU-1": DeviceHealth(DeviceState.QUARANTINED, "xid-79", "lost", 1000, "reboot")},
        quarantine=Quarantine("GPU-1: xid-79", 1000),
        foreign=(Foreign("GPU-1", 42, "other_pod", 3 << 30, "default", "p", "u-1"), Foreign("MIG-x", 43, "no_pod", 0)),
        own=(OwnProcess("GPU-1", 44, 3 << 30, "default", "q"),),
    ),
    "mig": MigState("m-1", "refused", "GPU-0 has no profile 8g.40gb; nearest: 7g.40gb"),
}  # fmt: skip


@pytest.fixture(scope="module")
def defined(plane: Plane) -> Iterator[Plane]:
    plane.kubectl("apply", f"--filename={DEFINITION}")
    plane.kubectl("wait", "--for=condition=Established", "crd/gpunodes.dovetail.dev", "--timeout=60s")
    yield plane
    plane.kubectl("delete", "node", "gpu-w", "--ignore-not-found")


@pytest.mark.plane
async def test_a_real_server_takes_all_of_it_and_the_scheduler_s_part_stays(defined: Plane, clocks: Clocks) -> None:
    spec = {"mig": {"id": "m-1", "gpus": [{"uuid": "GPU-0", "instances": [{"profile": "1g.5gb", "start": 0}]}]}}
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        await client.request("POST", NODES.path(), {"metadata": {"name": "gpu-w"}})
        mine = GPUNodeWriter(client, "gpu-w", clock_s=lambda: clocks.steady_s, now=lambda: clocks.day)
        await mine.write(status())
        path = GPU_NODES.path(name="gpu-w")
        body = {"apiVersion": GPU_NODES.api_version, "kind": "GPUNode", "spec": spec}
        await client.apply(path, body, field_manager="dovetail")
        clocks.wait(5)
        # Another process, with more fields.
        again = GPUNodeWriter(client, "gpu-w", clock_s=lambda: clocks.steady_s, now=lambda: clocks.day)
        await again.write(status(**WHOLE))
        read = await client.request("GET", path, decode=GPUNode)
        assert read.spec == msgspec.convert(spec, GPUNodeSpec)
        assert read.metadata.owner_references[0].kind == "Node"
        assert document(msgspec.structs.replace(read.status, observed_time=None, conditions=())) == document(
            msgspec.structs.replace(status(**WHOLE), conditions=())
        )
        assert {one.last_transition_time for one in read.status.conditions} == {START}
        # A field that the agent no longer publishes is removed.
        await again.write(status())
        read = await client.request("GET", path, decode=GPUNode)
        assert (read.status.unread, read.status.differences, read.status.mig, read.status.sharing) == (
            (),
            (),
            None,
            None,
        )
        assert read.spec.mig is not None
    shown = defined.kubectl("get", "gpunodes", "gpu-w", "--output=wide")
    assert re.search(r"gpu-w +NVIDIA A100-SXM4-40GB +True +570.148.08", shown)


@pytest.mark.plane
async def test_a_real_server_removes_it_with_its_node(defined: Plane, clocks: Clocks) -> None:
    async with Client(load_kubeconfig([defined.kubeconfig])) as client:
        await client.request("POST", NODES.path(), {"metadata": {"name": "gpu-x"}})
        await GPUNodeWriter(client, "gpu-x").write(status())
    defined.kubectl("delete", "node", "gpu-x")
    defined.kubectl("wait", "--for=delete", "gpunodes/gpu-x", "--timeout=60s")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.plane
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda o: o["status"]["conditions"][0].update(type="Fine"), "status.conditions[0].type"),
        (lambda o: o["status"]["conditions"][0].update(status="yes"), "status.conditions[0].status"),
        (lambda o: o["status"]["conditions"][0].pop("lastTransitionTime"), "status.conditions[0].lastTransitionTime"),
        (lambda o: o["status"]["conditions"][0].update(reason="two words"), "status.conditions[0].reason"),
        (lambda o: o["status"]["conditions"].append(o["status"]["conditions"][0]), "status.conditions"),
        (lambda o: o["status"].update(unread=[{"reason": "why"}]), "status.unread[0].field"),
        (lambda o: o["status"].update(agent={"honoursChoice": True}), "status.agent.version"),
        (lambda o: o["status"].update(differences=[{"namespace": "n"}]), "status.differences[0].pod"),
        (lambda o: o["status"].update(mig={"id": "m", "state": "done"}), "status.mig.state"),
        (lambda o: o["status"].update(cudaVersion=12.8), "status.cudaVersion"),
        (lambda o: o.update(spec={"mig": {"gpus": [{"uuid": "GPU-0", "instances": []}]}}), "spec.mig.id"),
        (lambda o: o.update(spec={"mig": {"id": "m", "gpus": []}}), "spec.mig.gpus"),
        (lambda o: o.update(spec={"mig": {"id": "m", "gpus": [{"uuid": "GPU-0"}]}}), "spec.mig.gpus[0].instances"),
        (lambda o: o.update(spec=mig_of({"profile": "1g.5gb", "start": 16})), "spec.mig.gpus[0].instances[0].start"),
        (lambda o: o.update(spec=mig_of({"start": 0})), "spec.mig.gpus[0].instances[0].profile"),
    ],
)
def test_a_real_server_refuses_what_does_not_fit(defined: Plane, change: Change, field: str) -> None:
    found = document(msgspec.structs.replace(status(**WHOLE), observed_time=START))
    for condition in found["conditions"]:
        condition["lastTransitionTime"] = found["observedTime"]
    found["conditions"][0].setdefault("message", "")
    whole = {"apiVersion": GPU_NODES.api_version, "kind": "GPUNode", "metadata": {"name": "gpu-r"}, "status": found}
    change(whole)
    with pytest.raises(RequestFailed, match=re.escape(field)):
        defined.apply(GPU_NODES.path(None, "gpu-r"), whole)
        defined.apply(GPU_NODES.path(None, "gpu-r", "status"), whole)


def mig_of(instance: dict[str, Any]) -> dict[str, Any]:
    return {"mig": {"id": "m", "gpus": [{"uuid": "GPU-0", "instances": [instance]}]}}
