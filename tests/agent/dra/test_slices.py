# SPDX-License-Identifier: Apache-2.0
"""What a node offers to claims, read and allocated as the scheduler does it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from dovetail.agent.dra.offer import Offered, offered
from dovetail.agent.dra.slices import contents, taint
from dovetail.agent.health.health import Unhealthy
from dovetail.agent.health.xids import Action
from dovetail.agent.machine.host import GpuFabric, GpuInstance, Host
from dovetail.core.dra.types import Constraint, Slice, Version
from dovetail.kube.objects.claims import DeviceClass as WireClass
from dovetail.kube.objects.claims import ResourceSlice
from dovetail.kube.translate.claims import device_class
from dovetail.kube.translate.slices import resource_slice
from kubecel import compile
from tests.agent.dra.device_node import gpu, host
from tests.core.dra.device_worlds import World, ask, claim, world
from tests.docs.pages import page

DRIVER = "gpu.nvidia.com"
SMALL = GpuInstance("MIG-1", "1g.5gb", 7, 0, 6, 1, 4864)
SINCE_MS = 1_790_000_000_000


def slices(found: Host, partitionable: bool = False, unhealthy: Sequence[Unhealthy] = ()) -> list[Slice]:
    """As the scheduler reads them."""
    return read(contents(found, offered(found, partitionable), DRIVER, unhealthy))


def read(parts: list[dict[str, object]]) -> list[Slice]:
    documents = [
        {
            "metadata": {"name": f"{i:05}-s"},
            "spec": {
                "driver": DRIVER,
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": len(parts)},
                **part,
            },
        }
        for i, part in enumerate(parts)
    ]
    found = [resource_slice(msgspec.convert(document, ResourceSlice)) for document in documents]
    assert [each.problem for each in found] == [None] * len(found)
    return found


def names(found: Sequence[Offered]) -> list[str]:
    return [device.name for device in found]


def allocated(made: World, *selectors: str, count: int = 1, constraints: Sequence[Constraint] = ()) -> list[str] | None:
    """The devices that a claim gets, or None."""
    grants = made.hold("n1", made.pod(claim(ask(count, *selectors), constraints=constraints)))
    return [one.device for one in grants[0].allocation.grants] if grants else None


def test_a_gpu_has_the_attributes_of_nvidias_driver_and_ours() -> None:
    (one,) = slices(host(replace(gpu(0), fabric=GpuFabric("completed", "c0ffee", 3))))
    (device,) = one.devices
    assert device.name == "gpu-0"
    assert dict(device.attributes) == {
        "gpu.nvidia.com/type": "gpu",
        "gpu.nvidia.com/uuid": "GPU-0",
        "gpu.nvidia.com/productName": "NVIDIA A100-SXM4-40GB",
        "gpu.nvidia.com/brand": "Nvidia",
        "gpu.nvidia.com/architecture": "Ampere",
        "gpu.nvidia.com/addressingMode": "None",
        "gpu.nvidia.com/cudaComputeCapability": Version("8.0.0"),
        "gpu.nvidia.com/driverVersion": Version("535.129.3"),
        "gpu.nvidia.com/cudaDriverVersion": Version("12.2.0"),
        "resource.kubernetes.io/pciBusID": "0000:07:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 0,
        "dovetail.dev/nvlinkDomain": "c0ffee.3",
    }
    assert {name: each.milli for name, each in device.capacity} == {"gpu.nvidia.com/memory": 40960 * 2**20 * 1000}


def test_what_is_not_known_is_no_attribute() -> None:
    bare = replace(gpu(0), brand="", compute=None, numa=None, pcie_root="", fabric=None, addressing="")
    (one,) = slices(Host(gpus=(bare,), nvlinks=None, driver="R535"))
    found = {name.partition("/")[2] for name, _ in one.devices[0].attributes}
    assert found == {"type", "uuid", "productName", "architecture", "pciBusID"}


def test_gpus_that_nvlinks_join_are_of_one_group() -> None:
    links = ((0, 4, 0, 0, 0), (4, 0, 0, 0, 0), (0, 0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 2, 0, 0))
    (one,) = slices(replace(host(*map(gpu, range(5))), nvlinks=links))
    groups = [dict(device.attributes).get("dovetail.dev/nvlinkGroup") for device in one.devices]
    assert groups == [0, 0, 2, None, 2]
    made = world(one)
    pair = [Constraint(match="dovetail.dev/nvlinkGroup")]
    assert allocated(made, "gpu.nvidia.com/uuid~GPU-3", constraints=pair) is None
    assert allocated(made, count=2, constraints=pair) == ["gpu-0", "gpu-1"]
    assert allocated(made, count=2, constraints=pair) == ["gpu-2", "gpu-4"]


def test_a_chain_of_nvlinks_is_one_group() -> None:
    links = ((0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 1), (1, 0, 1, 0))
    (one,) = slices(replace(host(*map(gpu, range(4))), nvlinks=links))
    assert {dict(device.attributes)["dovetail.dev/nvlinkGroup"] for device in one.devices} == {0}


def test_existing_instances_are_devices_and_their_gpu_is_none() -> None:
    (one,) = slices(host(gpu(0, (SMALL,)), gpu(1, ()), gpu(2)))
    small, whole = one.devices
    assert (small.name, whole.name) == ("gpu-0-mig-1g5gb-19-6", "gpu-2")
    attributes = {name.removeprefix("gpu.nvidia.com/"): value for name, value in small.attributes}
    assert attributes["type"] == "mig"
    assert attributes["uuid"] == "MIG-1"
    assert attributes["parentUUID"] == "GPU-0"
    assert attributes["profile"] == "1g.5gb"
    assert attributes["resource.kubernetes.io/pciBusID"] == "0000:07:00.0"
    capacity = {name.removeprefix("gpu.nvidia.com/"): each.milli // 1000 for name, each in small.capacity}
    assert capacity["memory"] == 4864 * 2**20
    assert capacity["memorySlice6"] == 1
    assert small.consumes == () and one.counter_sets == ()


def test_every_place_of_every_profile_is_a_partition() -> None:
    found = offered(host(gpu(0, ())), True)
    assert len(found) == 7 + 7 + 4 + 3 + 2 + 1 + 1
    assert names(found)[:2] == ["gpu-0-mig-1g5gb-19-0", "gpu-0-mig-1g5gb-19-1"]
    assert "gpu-0-mig-1g5gb-me-20-3" in names(found)
    assert names(found)[-1] == "gpu-0-mig-7g40gb-0-0"
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names(found))


def test_partitions_are_allocated_as_the_gpu_can_be_divided() -> None:
    made = world(*slices(host(gpu(0, ())), True))
    large = "gpu.nvidia.com/profile=3g.20gb"
    both = [allocated(made, large), allocated(made, large)]
    assert sorted(both) == [["gpu-0-mig-3g20gb-9-0"], ["gpu-0-mig-3g20gb-9-4"]]
    assert allocated(made) is None


@pytest.mark.parametrize(
    "profile, most", [("1g.5gb", 7), ("1g.5gb+me", 1), ("1g.10gb", 4), ("2g.10gb", 3), ("7g.40gb", 1)]
)
def test_no_more_of_a_profile_than_the_driver_makes(profile: str, most: int) -> None:
    made = world(*slices(host(gpu(0, ())), True))
    selector = f"gpu.nvidia.com/profile={profile}"
    assert [allocated(made, selector) is not None for _ in range(most + 1)] == [True] * most + [False]


def test_partitions_of_two_gpus_do_not_meet() -> None:
    made = world(*slices(host(gpu(0, ()), gpu(1, ()), gpu(2)), True))
    whole = "gpu.nvidia.com/profile~7g.40gb"
    assert allocated(made, whole) == ["gpu-0-mig-7g40gb-0-0"]
    assert allocated(made, whole) == ["gpu-1-mig-7g40gb-0-0"]
    assert allocated(made, whole) is None
    assert allocated(made, "gpu.nvidia.com/type=gpu") == ["gpu-2"]


def test_instances_of_other_programs_are_offered_and_nothing_overlaps_them() -> None:
    found = offered(host(gpu(0, (SMALL,))), True)
    assert found[0].instance == SMALL
    over = [each.name for each in found if each.partition.overlaps(6, 1)]
    assert over == ["gpu-0-mig-1g5gb-19-6"]
    made = world(*slices(host(gpu(0, (SMALL,))), True))
    fives = "gpu.nvidia.com/profile=1g.5gb"
    assert sorted(allocated(made, fives, count=7) or ()) == [f"gpu-0-mig-1g5gb-19-{i}" for i in range(7)]
    assert allocated(made, fives) is None


def test_media_engines_of_other_instances_are_not_offered() -> None:
    theirs = replace(SMALL, profile="1g.5gb+me", engines=gpu(0).profiles[1].engines)
    made = world(*slices(host(gpu(0, (theirs,))), True))
    media = "gpu.nvidia.com/profile=1g.5gb+me"
    assert allocated(made, media) == ["gpu-0-mig-1g5gb-me-20-6"]
    assert allocated(made, media) is None


def test_what_was_made_for_a_claim_is_still_a_partition() -> None:
    found = offered(host(gpu(0, (SMALL,))), True, {("GPU-0", "1g.5gb", 6): "MIG-1"})
    assert [(each.name, each.uuid) for each in found if each.uuid] == [("gpu-0-mig-1g5gb-19-6", "MIG-1")]
    assert len(found) == 25


def test_slices_are_no_larger_than_the_api_allows() -> None:
    parts = contents(
        host(*(gpu(i, ()) for i in range(12))), offered(host(*(gpu(i, ()) for i in range(12))), True), DRIVER, ()
    )
    sizes = [(len(part.get("sharedCounters", ())), len(part.get("devices", ()))) for part in parts]
    assert sizes == [(8, 0), (4, 0), (0, 64), (0, 64), (0, 64), (0, 64), (0, 44)]
    assert all(len(each["counters"]) <= 32 for part in parts for each in part.get("sharedCounters", ()))
    assert all(
        len(each["attributes"]) + len(each["capacity"]) <= 32 for part in parts for each in part.get("devices", ())
    )
    made = world(*read(parts))
    assert allocated(made, "gpu.nvidia.com/profile~7g.40gb", count=12) is not None


@pytest.mark.parametrize(
    "code, action, expected",
    [
        ("xid-48", Action.QUARANTINE_GPU, ("gpu.nvidia.com/xid", "48", "NoSchedule")),
        ("xid-79", Action.QUARANTINE_NODE, ("gpu.nvidia.com/xid", "79", "NoExecute")),
        ("lost", Action.QUARANTINE_NODE, ("gpu.nvidia.com/gpu-lost", None, "NoExecute")),
        ("ecc-double-bit", Action.QUARANTINE_GPU, ("dovetail.dev/ecc-double-bit", None, "NoSchedule")),
        ("nvml", Action.QUARANTINE_GPU, ("dovetail.dev/nvml", None, "NoSchedule")),
    ],
)
def test_only_what_a_reboot_heals_ends_pods(code: str, action: Action, expected: tuple[str, str | None, str]) -> None:
    found = taint(Unhealthy("GPU-0", code, "", SINCE_MS, action), DRIVER)
    assert (found["key"], found.get("value"), found["effect"]) == expected
    assert found["timeAdded"] == "2026-09-21T14:13:20Z"


def test_an_unhealthy_gpu_is_tainted_with_all_its_devices() -> None:
    unhealthy = [Unhealthy("GPU-0", "xid-48", "double-bit ECC error", SINCE_MS)]
    found = slices(host(gpu(0, ()), gpu(1, (SMALL,))), True, unhealthy)
    devices = [device for one in found for device in one.devices]
    assert {bool(d.taints) for d in devices if d.name.startswith("gpu-0-")} == {True}
    assert {bool(d.taints) for d in devices if d.name.startswith("gpu-1-")} == {False}
    assert (allocated(world(*found), "gpu.nvidia.com/profile=1g.5gb") or [""])[0].startswith("gpu-1-")


def test_only_the_unhealthy_instance_is_tainted() -> None:
    unhealthy = [Unhealthy("MIG-1", "xid-48", "", SINCE_MS)]
    for found in (offered(host(gpu(0, (SMALL,))), True), offered(host(gpu(0)), True)):
        wired = [device for part in contents(host(), found, DRIVER, unhealthy) for device in part.get("devices", ())]
        assert [d["name"] for d in wired if "taints" in d] == [d.name for d in found if d.uuid == "MIG-1"]


def test_the_classes_of_the_page_select_gpus_and_instances() -> None:
    blocks = page("docs/how-to/dra-driver.md").blocks
    documents = [d for block in blocks if block.language == "yaml" for d in yaml.safe_load_all(block.text)]
    classes = [device_class(msgspec.convert(d, WireClass)) for d in documents if d["kind"] == "DeviceClass"]
    (one,) = slices(host(gpu(0, (SMALL,)), gpu(2)))
    assert {
        each.name: [d.name for d in one.devices if all(compile(text).matches(d, DRIVER) for text in each.selectors)]
        for each in classes
    } == {"gpu.nvidia.com": ["gpu-2"], "mig.nvidia.com": ["gpu-0-mig-1g5gb-19-6"]}
