# SPDX-License-Identifier: Apache-2.0
"""Feature labels: those of eight machines, of each MIG strategy and way of sharing; and their field managers."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.agent.config import Config, Shared
from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.host import Gpu, GpuEngines, GpuFabric, GpuInstance, Host
from dovetail.agent.machine.nvml import Nvml
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.mig.node import STATE
from dovetail.agent.publish.field_managers import FieldsWritten, writers
from dovetail.agent.publish.labels import TIMESTAMP, Pci, Vgpu, labels_of, pci_of, vgpu_of
from dovetail.kube.nodes import layouts
from tests.paths import ROOT
from tools.standin import Standin

N = "nvidia.com/"
Make = Callable[[str | Mapping[str, Any]], Standin]


def versions(full: str, cuda: str) -> dict[str, str]:
    major, minor, revision = (*full.split("."), "")[:3]
    cuda_major, cuda_minor = cuda.split(".")
    return {
        "cuda.driver-version.full": full,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime-version.full": cuda,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }


def gpus(product: str, count: int, memory: int, family: str, compute: str, mig: bool) -> dict[str, str]:
    major, minor = compute.split(".")
    return {
        "gpu.product": product,
        "gpu.count": str(count),
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.memory": str(memory),
        "gpu.family": family,
        "gpu.compute.major": major,
        "gpu.compute.minor": minor,
        "gpu.mode": "compute",
        "mig.capable": "true" if mig else "false",
        "mps.capable": "false",
    }


AMPERE, HOPPER = ("ampere", "8.0", True), ("hopper", "9.0", True)
CLIQUE = "f2a8d3b1-5c57-4a0e-9f3c-1d2e6b7a8c90.2"
MACHINES = {
    "dgx1-v100": {
        **versions("570.148.08", "12.8"),
        **gpus("Tesla-V100-SXM2-32GB", 8, 32768, "volta", "7.0", False),
        "gpu.machine": "DGX-1-with-V100",
    },
    "dgx-a100": {
        **versions("570.148.08", "12.8"),
        **gpus("NVIDIA-A100-SXM4-40GB", 8, 40960, *AMPERE),
        "gpu.machine": "DGXA100-920-23687-2530-000",
    },
    "dgx-h100": {
        **versions("580.105.08", "13.0"),
        **gpus("NVIDIA-H100-80GB-HBM3", 8, 81559, *HOPPER),
        # Its fabric is ready and names no cluster.
        "gpu.machine": "DGXH100",
    },
    "pcie-l40s": {
        **versions("595.91.07", "13.2"),
        **gpus("NVIDIA-L40S", 4, 46068, "ada-lovelace", "8.9", False),
        "gpu.machine": "SYS-521GE-TNRT",
    },
    "pcie-a100-bridged": {
        **versions("570.148.08", "12.8"),
        **gpus("NVIDIA-A100-80GB-PCIe", 4, 81920, *AMPERE),
        "gpu.machine": "PowerEdge-R750xa",
    },
    "gh200": {
        **versions("580.105.08", "13.0"),
        **gpus("NVIDIA-GH200-480GB", 1, 97871, *HOPPER),
        "gpu.machine": "Quanta-Cloud-Technology-Inc.-QuantaGrid-S74G-2U",
    },
    "gb200-nvl72": {
        **versions("580.173.02", "13.0"),
        **gpus("NVIDIA-GB200", 4, 189471, "blackwell", "10.0", True),
        "gpu.machine": "GB200-NVL",
        "gpu.clique": CLIQUE,
    },
    "small-2numa": {
        **versions("570.148.08", "12.8"),
        **gpus("NVIDIA-A100-SXM4-40GB", 8, 40960, *AMPERE),
        "gpu.machine": "Stand-in",
    },
}


def prefixed(labels: Mapping[str, str]) -> dict[str, str]:
    return {N + key: value for key, value in labels.items()}


def unprefixed_labels(host: Host, config: Config | None = None, **rest: Any) -> dict[str, str]:
    """Without the prefix."""
    return {key.removeprefix(N): value for key, value in labels_of(host, config or Config(), **rest).items()}


@pytest.mark.parametrize("host", MACHINES)
@pytest.mark.slow
def test_a_machine_has_these_labels_and_the_scheduler_reads_them(host: str, standin: Make) -> None:
    machine = standin(host)
    sysfs = Sysfs(machine.sysfs, machine.proc)
    with Nvml() as nvml:
        found = discover(nvml, sysfs)
    # Only a privileged process may read which GPUs are vGPUs.
    labels = labels_of(found, Config(), Pci(pci_of(sysfs).classes, None))
    assert labels == prefixed(MACHINES[host])
    read = layouts.of_labels(labels)
    assert (read.count, read.unreadable) == (len(found.gpus), "")
    assert layouts.assumed(read.product, read.count, read.host) is not None


A_GPU = Gpu(0, 0, "GPU-0", "NVIDIA A100-SXM4-40GB", "0000:01:00.0", 40960, compute=(8, 0))
SMALL = GpuInstance("MIG-1", "1g.5gb", 7, 0, 0, 1, 4864, GpuEngines(14, 1, 0, 0, 0, 0))
MEDIA = GpuInstance("MIG-2", "1g.5gb+me", 8, 0, 1, 1, 4864, GpuEngines(14, 1, 1, 0, 1, 1))
LARGE = GpuInstance("MIG-3", "3g.20gb", 2, 0, 4, 4, 19968, GpuEngines(42, 3, 2, 0, 0, 0))


def host(*migs: tuple[GpuInstance, ...] | None, **fields: Any) -> Host:
    found = tuple(
        replace(A_GPU, index=i, uuid=f"GPU-{i}", pci_bus_id=f"0000:{i + 1:02x}:00.0", mig=mig)
        for i, mig in enumerate(migs)
    )
    return Host(driver="570.107.02", cuda=(12, 8), machine="DGX A100", gpus=found, **fields)


def sharing(resource: str = "nvidia.com/gpu", strategy: Any = "time-slicing", renamed: bool = False) -> Config:
    name = f"{resource}.shared" if renamed else resource
    return Config(sharing={resource: Shared(strategy, 4, False, name)})


def of(labels: Mapping[str, str], resource: str) -> dict[str, str]:
    return {key.removeprefix(f"{resource}."): value for key, value in labels.items() if key.startswith(f"{resource}.")}


def test_a_node_without_gpus_has_no_labels() -> None:
    assert labels_of(Host(driver="570.107.02", machine="DGX-1"), Config(), timestamp_s=1) == {}


def test_what_cannot_be_read_has_no_label() -> None:
    bare = Host(gpus=(replace(A_GPU, memory_mib=0, compute=None),), driver="R570 (beta)")
    assert unprefixed_labels(bare) == {
        "gpu.machine": "unknown",
        "gpu.mode": "unknown",
        "mig.capable": "false",
        "mps.capable": "false",
        "gpu.product": "NVIDIA-A100-SXM4-40GB",
        "gpu.count": "1",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
    }


def test_the_revision_of_a_driver_may_be_missing() -> None:
    found = unprefixed_labels(replace(host(None), driver="570.107"))
    assert (found["cuda.driver-version.full"], found["cuda.driver-version.revision"]) == ("570.107", "")


@pytest.mark.parametrize(
    ("compute", "family"),
    [
        ((1, 3), "tesla"), ((2, 0), "fermi"), ((3, 7), "kepler"), ((5, 2), "maxwell"), ((6, 1), "pascal"),
        ((7, 0), "volta"), ((7, 4), "volta"), ((7, 5), "turing"), ((8, 0), "ampere"), ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"), ((9, 0), "hopper"), ((10, 3), "blackwell"), ((12, 0), "blackwell"),
        ((13, 0), "rubin"), ((4, 0), "undefined"), ((11, 0), "undefined"), ((99, 0), "undefined"),
    ],
)  # fmt: skip
def test_the_family_follows_from_the_compute_capability(compute: tuple[int, int], family: str) -> None:
    assert unprefixed_labels(Host(gpus=(replace(A_GPU, compute=compute),)))["gpu.family"] == family


@pytest.mark.parametrize(
    ("product", "label"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("  NVIDIA   RTX (A6000) ", "NVIDIA-RTX-A6000"),
        ("Quadro RTX 8000 with Max-Q Design", "Quadro-RTX-8000-with-Max-Q-Design"),
        ("NVIDIA A100_1.5 \N{REGISTERED SIGN}", "NVIDIA-A100_1.5"),
        ("X" * 70, "X" * 63),
    ],
)
def test_a_product_is_written_so_that_it_is_a_label(product: str, label: str) -> None:
    assert unprefixed_labels(Host(gpus=(replace(A_GPU, product=product),)))["gpu.product"] == label


@pytest.mark.parametrize(
    ("machine", "label"),
    [("DGXA100 920-23687-2530-000", "DGXA100-920-23687-2530-000"), ("", "unknown"), ("Z (rev. 2)", "Z-rev.-2")],
)
def test_a_machine_keeps_each_blank(machine: str, label: str) -> None:
    assert unprefixed_labels(replace(host(None), machine=machine))["gpu.machine"] == label


@pytest.mark.parametrize(
    ("classes", "mode"),
    [((0x0302, 0x0302), "compute"), ((0x0300, 0x0300), "graphics"), ((0x0300, 0x0302), "unknown"), ((), "unknown")],
)
def test_the_mode_follows_from_the_pci_class_that_all_have(classes: tuple[int, ...], mode: str) -> None:
    pci = Pci({f"0000:{i + 1:02x}:00.0": kind for i, kind in enumerate(classes)}, None)
    assert unprefixed_labels(host(None, None), pci=pci)["gpu.mode"] == mode


UUID = "7b968a6d-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("fabrics", "clique"),
    [
        ((GpuFabric("completed", UUID, 1), GpuFabric("completed", UUID, 1)), f"{UUID}.1"),
        ((GpuFabric("completed", UUID, 1), GpuFabric("completed", UUID, 2)), None),
        ((GpuFabric("completed", UUID, 1), GpuFabric("not-supported")), f"{UUID}.1"),
        ((GpuFabric("completed", UUID, 1), None), f"{UUID}.1"),
        ((GpuFabric("in-progress", UUID, 1), GpuFabric("in-progress", UUID, 1)), None),
        ((GpuFabric("completed", "00000000-0000-0000-0000-000000000000", 0),) * 2, None),
    ],
)
def test_a_clique_is_one_that_all_gpus_on_the_fabric_agree_on(fabrics: tuple[Any, ...], clique: str | None) -> None:
    found = host(None, None)
    found = replace(found, gpus=tuple(replace(gpu, fabric=one) for gpu, one in zip(found.gpus, fabrics, strict=True)))
    assert unprefixed_labels(found).get("gpu.clique") == clique


def test_the_last_product_counts_and_each_is_counted_alone() -> None:
    found = host(None, None, None)
    other = replace(found.gpus[1], product="NVIDIA A30", memory_mib=24576)
    labels = unprefixed_labels(replace(found, gpus=(found.gpus[0], found.gpus[2], other)))
    assert (labels["gpu.product"], labels["gpu.count"], labels["gpu.memory"]) == ("NVIDIA-A30", "1", "24576")


def test_replicas_have_a_label_and_a_product_suffix_unless_their_resource_is_renamed() -> None:
    same, renamed = unprefixed_labels(host(None), sharing()), unprefixed_labels(host(None), sharing(renamed=True))
    assert (same["gpu.replicas"], same["gpu.sharing-strategy"]) == ("4", "time-slicing")
    assert (renamed["gpu.replicas"], renamed["gpu.sharing-strategy"]) == ("4", "time-slicing")
    assert same["gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
    assert renamed["gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert (same["gpu.count"], same["gpu.memory"]) == ("1", "40960"), "of the card, not of a replica"


def test_mps_needs_a_node_without_mig() -> None:
    assert unprefixed_labels(host(None), sharing(strategy="mps"))["mps.capable"] == "true"
    assert unprefixed_labels(host(None, (SMALL,)), sharing(strategy="mps"))["mps.capable"] == "false"
    assert unprefixed_labels(host(None), sharing())["mps.capable"] == "false"


def test_strategy_none_labels_whole_gpus_and_shares_none_in_mig_mode() -> None:
    found = unprefixed_labels(host((SMALL, LARGE)), sharing())
    assert of(found, "gpu") | {"machine": "", "mode": ""} == {
        "product": "NVIDIA-A100-SXM4-40GB", "count": "1", "replicas": "0", "sharing-strategy": "none",
        "memory": "40960", "family": "ampere", "compute.major": "8", "compute.minor": "0", "machine": "", "mode": "",
    }  # fmt: skip
    assert "mig.strategy" not in found
    beside = unprefixed_labels(host((SMALL,), None), sharing())
    assert (beside["gpu.product"], beside["gpu.count"]) == ("NVIDIA-A100-SXM4-40GB-SHARED", "2")


def test_strategy_single_labels_instances_as_whole_gpus() -> None:
    config = replace(sharing(), mig_strategy="single")
    found = unprefixed_labels(host((SMALL, replace(SMALL, uuid="MIG-4")), (replace(SMALL, uuid="MIG-5"),)), config)
    assert found["mig.strategy"] == "single"
    assert of(found, "gpu") | {"machine": "", "mode": ""} == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "count": "3", "replicas": "4",
        "sharing-strategy": "time-slicing", "memory": "4864", "multiprocessors": "14", "slices.gi": "1",
        "slices.ci": "1", "engines.copy": "1", "engines.decoder": "0", "engines.encoder": "0", "engines.jpeg": "0",
        "engines.ofa": "0", "family": "ampere", "compute.major": "8", "compute.minor": "0", "machine": "", "mode": "",
    }  # fmt: skip


def test_strategy_single_without_mig_is_as_none() -> None:
    none, single = unprefixed_labels(host(None)), unprefixed_labels(host(None), Config(mig_strategy="single"))
    assert single == none | {"mig.strategy": "single"}


@pytest.mark.parametrize(
    "migs",
    [((SMALL,), ()), ((SMALL,), None), ((SMALL, LARGE),)],
    ids=["an empty one", "one without MIG mode", "two profiles"],
)
def test_strategy_single_is_invalid_where_gpus_differ(migs: tuple[Any, ...]) -> None:
    found = unprefixed_labels(host(*migs), replace(sharing(), mig_strategy="single"))
    assert {key: found[f"gpu.{key}"] for key in ("product", "count", "replicas", "memory", "sharing-strategy")} == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID", "count": "0", "replicas": "0", "memory": "0",
        "sharing-strategy": "",
    }  # fmt: skip


def test_strategy_mixed_labels_each_profile_beside_the_whole_gpus() -> None:
    config = Config(
        mig_strategy="mixed", sharing={f"{N}mig-1g.5gb": Shared("time-slicing", 2, False, f"{N}mig-1g.5gb")}
    )
    found = unprefixed_labels(host((SMALL, MEDIA), None, (LARGE, replace(SMALL, uuid="MIG-6")), ()), config)
    assert (found["mig.strategy"], found["gpu.product"], found["gpu.count"]) == ("mixed", "NVIDIA-A100-SXM4-40GB", "4")
    small = {key: value for key, value in of(found, "mig-1g.5gb").items() if not key.startswith("me.")}
    assert small == {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "count": "2", "replicas": "2",
        "sharing-strategy": "time-slicing", "memory": "4864", "multiprocessors": "14", "slices.gi": "1",
        "slices.ci": "1", "engines.copy": "1", "engines.decoder": "0", "engines.encoder": "0", "engines.jpeg": "0",
        "engines.ofa": "0",
    }  # fmt: skip
    assert found["mig-1g.5gb.me.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"
    assert (found["mig-1g.5gb.me.count"], found["mig-1g.5gb.me.engines.ofa"]) == ("1", "1")
    assert (found["mig-3g.20gb.slices.gi"], found["mig-3g.20gb.replicas"]) == ("3", "1")


def test_the_timestamp_is_a_label_if_there_is_one() -> None:
    assert labels_of(host(None), Config(), timestamp_s=1724632719)[TIMESTAMP] == "1724632719"
    assert TIMESTAMP not in labels_of(host(None), Config())


def configuration(capability: bytes = b"") -> bytes:
    """A PCI configuration with a power management capability and, after it, the vendor's own."""
    data = bytearray(256)
    data[0x06], data[0x34] = 0x10, 0x40
    data[0x40:0x43] = bytes((0x01, 0x80 if capability else 0x00, 0x08))
    data[0x80 : 0x80 + len(capability)] = capability
    return bytes(data)


def capability(*records: bytes) -> bytes:
    body = b"VF" + b"".join(records)
    return bytes((0x09, 0x00, len(body) + 3)) + body


def record(version: str, branch: str) -> bytes:
    return bytes((0, 22)) + version.encode().ljust(10, b"\0") + branch.encode().ljust(10, b"\0")


def test_a_vgpu_has_labels_of_the_host_driver() -> None:
    reported_by = capability(bytes((7, 4, 1, 1)), record("550.90.05", "r550_86"))
    assert vgpu_of(configuration(reported_by)) == Vgpu("550.90.05", "r550_86")
    assert vgpu_of(configuration(capability(record("460.16", "r460_00")))) == Vgpu("460.16", "r460_00")


@pytest.mark.parametrize(
    "data",
    [
        configuration(),
        configuration(bytes((0x09, 0x00, 20)) + b"XY" + bytes(15)),
        configuration(capability(bytes((7, 4, 1, 1)))),
        configuration(capability(bytes((7, 0, 0, 0)))),
        bytes(256),
        configuration()[:0x40] + bytes((0x01, 0x40, 0x08)) + bytes(189),
    ],
    ids=["none", "another vendor's", "no version", "a record of no length", "no list", "a list that loops"],
)
def test_what_is_no_vgpu_is_none(data: bytes) -> None:
    assert vgpu_of(data) is None


def test_vgpus_have_labels_if_their_configuration_is_readable(standin: Make) -> None:
    machine = standin("pcie-l40s")
    sysfs = Sysfs(machine.sysfs, machine.proc)
    gpu = next(device for device in sysfs.pci.values() if device.is_gpu)
    for device in sysfs.pci.values():
        if device.vendor == gpu.vendor:
            (machine.sysfs / "bus/pci/devices" / device.bus_id / "config").write_bytes(configuration())
    assert unprefixed_labels(host(None), pci=pci_of(sysfs))["vgpu.present"] == "false"
    config = machine.sysfs / "bus/pci/devices" / gpu.bus_id / "config"
    config.write_bytes(configuration(capability(record("550.90.05", "r550_86"))))
    found = unprefixed_labels(host(None), pci=pci_of(sysfs))
    assert {key: value for key, value in found.items() if key.startswith("vgpu")} == {
        "vgpu.present": "true", "vgpu.host-driver-version": "550.90.05", "vgpu.host-driver-branch": "r550_86",
    }  # fmt: skip
    # Without CAP_SYS_ADMIN the kernel gives 64 bytes.
    config.write_bytes(configuration()[:64])
    assert pci_of(sysfs).vgpus is None
    assert "vgpu.present" not in unprefixed_labels(host(None), pci=pci_of(sysfs))


def test_the_reference_has_every_label_and_no_other() -> None:
    small = host((SMALL,))
    fabric = replace(small.gpus[0], fabric=GpuFabric("completed", UUID, 1))
    full = replace(small, gpus=(fabric,))
    written = {STATE}
    for strategy in ("none", "single", "mixed"):
        pci = Pci({}, (Vgpu("550.90.05", "r550_86"),))
        written |= labels_of(full, Config(mig_strategy=strategy), pci, timestamp_s=1).keys()
    page = (ROOT / "docs/reference/labels.md").read_text()
    documented = {key.replace("PROFILE", "1g.5gb") for key in re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)}
    assert documented == written


def test_writers_are_found_by_their_managed_fields() -> None:
    def entry(manager: str, *labels: str) -> dict[str, Any]:
        return {
            "manager": manager,
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}, **{f"f:{k}": {} for k in labels}}}},
        }

    fields = [entry("nfd-master", "b", "a"), entry("kubelet"), {"manager": "x", "fieldsV1": {"f:status": {"f:a": {}}}}]
    obj = msgspec.json.decode(json.dumps({"metadata": {"managedFields": fields}}), type=FieldsWritten)
    assert writers(obj, "metadata", "labels") == {"nfd-master": ("a", "b")}
    assert writers(obj) == {"nfd-master": ("metadata",), "kubelet": ("metadata",), "x": ("status",)}
