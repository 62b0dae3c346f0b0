# SPDX-License-Identifier: Apache-2.0
"""Each device is reported with the containers that hold it by PodResources, with their shares, and with no other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.apis.serving import SocketError
from dovetail.agent.exporter.owners import KEPT_S, PAUSE_S, Devices, NodePod, OwnerReader, node_pod, owners_of
from dovetail.agent.exporter.reading import Owner
from dovetail.agent.kubelet.podresources import ClaimedDevice, ContainerDevices, PodDevices
from dovetail.agent.machine.host import Gpu, GpuInstance, Host
from dovetail.kube.objects.base import ObjectMeta, OwnerReference
from dovetail.kube.objects.pods import Pod, PodStatus

GPU = "nvidia.com/gpu"
SMALL = GpuInstance("MIG-1", "1g.10gb", 7, 0, 0, 1, 9856)
HOST = Host(
    gpus=(
        Gpu(0, 0, "GPU-a", "H100", "0000:01:00.0", 80_000),
        Gpu(1, 1, "GPU-b", "H100", "0000:02:00.0", 80_000),
        Gpu(2, 2, "GPU-c", "H100", "0000:03:00.0", 80_000, mig=(SMALL,)),
    )
)
DEVICES = Devices(HOST)
PODS = {("ns", name): NodePod("ns", name, (f"uid-{name}",)) for name in ("p", "q", "r")}


def _held(pod: str, *ids: str, resource: str = GPU, container: str = "main") -> PodDevices:
    return PodDevices("ns", pod, (ContainerDevices(container, ((resource, ids),)),))


def _claims(pod: str, claim: str, device: str) -> PodDevices:
    claimed = ClaimedDevice("ns", claim, "gpu.nvidia.com", "node", device)
    return PodDevices("ns", pod, (ContainerDevices("main", (), (claimed,)),))


def _owner(pod: str, share: float = 1.0, vgpu: str = "") -> Owner:
    return Owner("ns", pod, f"uid-{pod}", "main", share, vgpu)


def test_a_whole_gpu_and_an_instance_have_one_owner() -> None:
    listed = (_held("p", "GPU-a"), _held("q", "MIG-1", resource="nvidia.com/mig-1g.10gb"), _held("r", "mlx5_0"))
    assert owners_of(listed, PODS, DEVICES, {}) == {"GPU-a": (_owner("p"),), "MIG-1": (_owner("q"),)}


def test_each_replica_is_an_equal_part_unless_the_pod_requests_another() -> None:
    pods = PODS | {
        ("ns", "q"): NodePod("ns", "q", ("uid-q",), milli=500),
        ("ns", "r"): NodePod("ns", "r", ("uid-r",), memory_mib=8_000),
    }
    listed = (_held("p", "GPU-a::0"), _held("q", "GPU-a::3"), _held("r", "GPU-a::1"))
    found = owners_of(listed, pods, DEVICES, {"GPU-a": 4})
    assert found == {"GPU-a": (_owner("p", 0.25, "0"), _owner("q", 0.5, "3"), _owner("r", 0.1, "1"))}
    # MPS gives each client an equal part, whatever its pod requests.
    by_mps = owners_of(listed, pods, DEVICES, {"GPU-a": 4}, by_mps={GPU})
    assert {one.share for one in by_mps["GPU-a"]} == {0.25}


def test_pods_that_take_turns_hold_together_what_one_of_them_needs_awake_and_the_others_asleep() -> None:
    needs = {"p": (72_000, 8_000), "q": (40_000, 8_000)}
    pods = {("ns", name): NodePod("ns", name, (f"uid-{name}",), "", "", "", 0, *need) for name, need in needs.items()}
    listed = (_held("p", "GPU-a::0"), _held("q", "GPU-a::1"), _held("p", "GPU-b::0"))
    found = owners_of(listed, pods, DEVICES, {"GPU-a": 4, "GPU-b": 4})
    # 8 GB each, and two thirds and one third of a room of 64 GB.
    assert [round(one.share * 80_000) for one in found["GPU-a"]] == [50_667, 29_333]
    assert [one.share for one in found["GPU-b"]] == [0.9]
    by_mps = owners_of(listed, pods, DEVICES, {"GPU-a": 4, "GPU-b": 4}, by_mps={GPU})
    assert {one.share for one in by_mps["GPU-a"]} == {0.25}


def test_what_a_pod_needs_while_it_sleeps_is_read() -> None:
    memory = {"dovetail.dev/gpu-memory": "60Gi", "dovetail.dev/gpu-memory-asleep": "2Gi"}
    assert node_pod(_pod("p", **memory)).asleep_mib == 2048
    assert node_pod(_pod("p", **memory | {"dovetail.dev/gpu-memory-asleep": "60Gi"})).asleep_mib == 0


@pytest.mark.parametrize(
    ("id", "uuid", "replica"),
    [
        ("GPU-a", "GPU-a", ""), ("GPU-a::12", "GPU-a", "12"), ("nvidia1", "GPU-b", ""),
        ("nvidia1/vgpu3", "GPU-b", "3"), ("nvidia2/gi7", "MIG-1", ""), ("nvidia2/gi7/vgpu0", "MIG-1", "0"),
    ],
)  # fmt: skip
def test_ids_of_each_plugin_are_read(id: str, uuid: str, replica: str) -> None:
    assert DEVICES.uuid(id) == (uuid, replica)


@pytest.mark.parametrize(
    "id", ["GPU-z", "nvidia9", "nvidia2/gi8", "nvidia1x", "", "::1", "mlx5_0", "nvidia" + "9" * 99]
)
def test_other_ids_are_no_gpu(id: str) -> None:
    assert DEVICES.uuid(id) is None


def test_the_holders_of_one_claim_share_its_device() -> None:
    listed = (_claims("p", "one", "gpu-0"), _claims("q", "one", "gpu-0"))
    found = owners_of(listed, PODS, DEVICES, {})
    assert found == {"GPU-a": (_owner("p", 0.5, "0"), _owner("q", 0.5, "1"))}


def test_the_books_of_the_agent_name_the_device_of_a_claim() -> None:
    listed = (_claims("p", "one", "gpu-2-mig-1g.10gb-0"), _claims("q", "admin", "gpu-1"), _claims("r", "r", "gpu-1"))
    known = {("ns", "one"): "MIG-1", ("ns", "admin"): ""}
    found = owners_of(listed, PODS, DEVICES, {}, claim_uuid=lambda claim, device: known.get(claim))
    assert found == {"MIG-1": (_owner("p"),), "GPU-b": (_owner("r"),)}


def test_a_pod_that_the_watch_has_not_shown_has_no_uid() -> None:
    found = owners_of((_held("new", "GPU-a"),), PODS, DEVICES, {})
    assert found["GPU-a"] == (Owner("ns", "new", "", "main", 1.0),)


_IDS = st.sampled_from(["GPU-a", "GPU-b", "MIG-1", "GPU-a::0", "GPU-a::1", "GPU-b::0", "nic", "nvidia1/vgpu1"])


@given(st.lists(st.tuples(st.sampled_from("pqrs"), st.lists(_IDS, max_size=3, unique=True)), max_size=6))
def test_a_pod_owns_a_device_exactly_if_it_is_listed_with_it(entries: list[tuple[str, list[str]]]) -> None:
    found = owners_of([_held(pod, *ids) for pod, ids in entries], PODS, DEVICES, {"GPU-a": 2, "GPU-b": 2})
    oracle = {(pod, named[0]) for pod, ids in entries for id in ids if (named := DEVICES.uuid(id)) is not None}
    assert {(one.pod, uuid) for uuid, each in found.items() for one in each} == oracle
    assert all(0 < one.share <= 1 for each in found.values() for one in each)


def _pod(name: str, phase: str = "Running", **annotations: str) -> Pod:
    meta = ObjectMeta(
        name=name, namespace="ns", uid=f"uid-{name}", annotations=annotations,
        labels={"dovetail.dev/queue": "research"},
        owner_references=(OwnerReference("batch/v1", "Job", "train", controller=True),),
    )  # fmt: skip
    return Pod(metadata=meta, status=PodStatus(phase=phase))


def test_queue_and_job_come_from_the_pods_object() -> None:
    found = node_pod(_pod("p", **{"dovetail.dev/gpu-fraction": "0.25", "kubernetes.io/config.hash": "abc"}))
    assert found == NodePod("ns", "p", ("uid-p", "abc"), "research", "train", "", 250, 0)


class _Kubelet:
    """PodResources that answers, refuses, or does not answer in time."""

    def __init__(self) -> None:
        self.listed: tuple[PodDevices, ...] = (_held("p", "GPU-a::0"),)
        self.error: SocketError | None = None
        self.calls = self.counted = 0

    async def list(self) -> tuple[PodDevices, ...]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.listed

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        self.counted += 1
        return {GPU: frozenset(f"GPU-a::{n}" for n in range(4))}


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _reader(kubelet: _Kubelet, clock: _Clock, objects: Mapping[tuple[str, str], Pod]) -> OwnerReader:
    return OwnerReader(
        kubelet,  # type: ignore[arg-type]
        lambda: objects, lambda: HOST, lambda: (), lambda claim, device: None, clock,
    )  # fmt: skip


async def test_owners_are_read_with_replicas_counted_once_a_minute() -> None:
    kubelet, clock = _Kubelet(), _Clock()
    reader = _reader(kubelet, clock, {("ns", "p"): _pod("p")})
    for second in (0, 15, 30, 61):
        clock.now_s = second
        owners = await reader()
        assert owners is not None
        assert owners.by_device == {"GPU-a": (Owner("ns", "p", "uid-p", "main", 0.25, "0", "research", "train"),)}
    assert kubelet.counted == 2


async def test_owners_stay_while_the_kubelet_restarts_but_not_for_long() -> None:
    kubelet, clock = _Kubelet(), _Clock()
    reader = _reader(kubelet, clock, {})
    first = await reader()
    kubelet.error = SocketError("refused", refused=True)
    clock.now_s = KEPT_S - 1
    assert await reader() == first
    clock.now_s = KEPT_S
    assert await reader() is None
    kubelet.error = None
    assert await reader() is not None


async def test_a_kubelet_that_hangs_is_not_asked_at_every_scrape() -> None:
    kubelet, clock = _Kubelet(), _Clock()
    reader = _reader(kubelet, clock, {})
    assert await reader() is not None
    kubelet.error = SocketError("DEADLINE_EXCEEDED")
    assert await reader() is None
    assert reader.error == "DEADLINE_EXCEEDED"
    calls = kubelet.calls
    clock.now_s = PAUSE_S - 0.1
    assert await reader() is None and kubelet.calls == calls
    kubelet.error, clock.now_s = None, PAUSE_S
    assert await reader() is not None
    assert reader.error == ""


def test_pods_that_have_ended_are_left_out_and_changes_are_seen() -> None:
    objects = {("ns", "p"): _pod("p"), ("ns", "q"): _pod("q", "Succeeded")}
    reader = _reader(_Kubelet(), _Clock(), objects)
    assert set(reader.pods) == {("ns", "p")}
    objects["ns", "p"] = _pod("p", **{"dovetail.dev/gpu-fraction": "0.5"})
    assert reader.pods["ns", "p"].milli == 500
    del objects["ns", "p"]
    assert not reader.pods
