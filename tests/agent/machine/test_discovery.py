# SPDX-License-Identifier: Apache-2.0
"""Discovery of each machine, and the scheduler's reading of the GPUNode that it becomes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.advice.doctor import gpu_direct
from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.gpu_direct import (
    ACS_REDIRECTS,
    IOMMU_TRANSLATES,
    MEMORY_LOCK,
    NO_ADDRESS,
    NO_PEER_MEMORY,
    NOT_RELAXED,
)
from dovetail.agent.machine.host import GpuFabric, Host
from dovetail.agent.machine.nvml import Nvml
from dovetail.agent.machine.sysfs import Sysfs
from dovetail.agent.publish.gpunode import document
from dovetail.agent.publish.gpunode_status import status_of
from dovetail.core.devices import products
from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, SYS, UNKNOWN, Layout
from dovetail.kube.nodes.layouts import Description, layout_of, of_gpu_node
from dovetail.kube.objects.topology import GPUNode
from dovetail.topology import nvidia_smi
from tests.paths import ROOT, WIRINGS
from tools.standin import HOSTS, Standin

Machine = Callable[[Any], Standin]
SAMPLE_OF = {
    "dgx1-v100": "dgx1-v100.txt",
    "dgx-a100": "dgx-a100-12nic.txt",
    "dgx-h100": "dgx-h100-h200-8gpu-12nic.txt",
    "pcie-l40s": "l40s-4gpu-two-numa.txt",
    "pcie-a100-bridged": "a100-pcie-4gpu-one-bridge.txt",
    "gb200-nvl72": "gb200-4gpu-8nic.txt",
}


def look(machine: Standin) -> Host:
    with Nvml() as nvml:
        return discover(nvml, Sysfs(machine.sysfs, machine.proc))


def description(host: Host) -> Description:
    """The scheduler's reading of the GPUNode, after encoding and decoding."""
    status = document(status_of(host)) | {"observedTime": datetime.now(UTC).isoformat()}
    for condition in status["conditions"]:
        condition["lastTransitionTime"] = status["observedTime"]
    node = msgspec.json.decode(json.dumps({"metadata": {"name": "n1"}, "status": status}), type=GPUNode)
    found, findings = of_gpu_node(node)
    assert found is not None
    assert findings == ()
    return found


@pytest.mark.parametrize("name", sorted(HOSTS))
@pytest.mark.slow
def test_the_scheduler_reads_the_discovered_wiring(standin: Machine, name: str) -> None:
    host = look(standin(name))
    found = description(host)
    layout = layout_of(found)
    assert found.uuids == tuple(gpu.uuid for gpu in host.gpus)
    assert found.product == host.gpus[0].product
    assert found.clique == host.clique
    assert layout.numa == tuple(gpu.numa for gpu in host.gpus)
    assert (layout.pcie, layout.nvlinks) == (host.pcie, host.nvlinks)
    assert host.nics is not None
    assert [(nic.levels, nic.numa, nic.speed_mbps, nic.rdma) for nic in layout.nics] == [
        (nic.levels, UNKNOWN if nic.numa is None else nic.numa, nic.speed_mbps, nic.rdma) for nic in host.nics
    ]
    assert not layout.assumed


@pytest.mark.parametrize(("name", "sample"), SAMPLE_OF.items())
@pytest.mark.slow
def test_the_wiring_equals_that_of_nvidia_smi(standin: Machine, name: str, sample: str) -> None:
    host = look(standin(name))
    shown = nvidia_smi.parse((WIRINGS / sample).read_text())
    assert tuple(gpu.numa for gpu in host.gpus) == shown.numa
    assert host.nvlinks == shown.nvlinks
    # nvidia-smi shows no PCIe where there are NVLinks.
    known = [(i, j) for i, row in enumerate(shown.pcie) for j, level in enumerate(row) if level != UNKNOWN]
    assert [host.pcie[i][j] for i, j in known] == [shown.pcie[i][j] for i, j in known]
    assert host.nics is not None
    placed = [nic for nic in host.nics if nic.rdma and nic.numa is not None]
    # The firmware of a GB200 sets no NUMA node of its NICs, and nvidia-smi assumes SYS.
    # Some samples list NICs in the order in which they came up.
    assert sorted(nic.levels for nic in placed) == sorted(nic.levels for nic in shown.nics)[: len(placed)]
    assert len(placed) == (0 if name == "gb200-nvl72" else len(shown.nics))


@pytest.mark.parametrize(
    ("name", "product", "machine"),
    [
        ("dgx1-v100", "Tesla-V100-SXM2-32GB", "DGX-1 with V100"),
        ("dgx-a100", "NVIDIA-A100-SXM4-40GB", "DGXA100 920-23687-2530-000"),
        ("dgx-h100", "NVIDIA-H100-80GB-HBM3", "DGXH100"),
        ("gb200-nvl72", "NVIDIA-GB200", "GB200 NVL"),
    ],
)
@pytest.mark.slow
def test_the_assumed_layout_of_a_product_equals_the_discovered_one(
    standin: Machine, name: str, product: str, machine: str
) -> None:
    host = look(standin(name))
    assert host.machine == machine
    assumed = products.assumed_layout(product, len(host.gpus))
    assert assumed is not None
    found = layout_of(description(host))
    assert found.nvlinks == assumed.nvlinks
    assert (found.nvlink_mbps, found.pcie_mbps) == (assumed.nvlink_mbps, assumed.pcie_mbps)


def test_all_fields_of_a_dgx_a100(standin: Machine) -> None:
    host = look(standin("dgx-a100"))
    assert (host.driver, host.cuda, host.unread) == ("570.148.08", (12, 8), ())
    assert host.nvml.startswith("12.")
    gpu = host.gpus[2]
    assert (gpu.index, gpu.product, gpu.memory_mib) == (2, "NVIDIA A100-SXM4-40GB", 40960)
    assert (gpu.brand, gpu.architecture, gpu.compute, gpu.addressing) == ("Nvidia", "Ampere", (8, 0), "HMM")
    assert (gpu.pci_bus_id, gpu.pcie_root, gpu.numa) == ("0000:47:00.0", "pci0000:40", 1)
    assert (gpu.mig, gpu.mig_pending, gpu.fabric) == (None, None, GpuFabric("not-supported"))
    assert gpu.mig_capable
    assert [gpu.numa for gpu in host.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert host.nics is not None
    assert [nic.name for nic in host.nics] == [f"mlx5_{i}" for i in range(12)]
    assert [nic.speed_mbps for nic in host.nics if nic.name in ("mlx5_4", "mlx5_5")] == [25_000, 0]
    assert host.clique == ""


def test_minor_numbers_and_modules_may_differ_from_the_order_of_indices(standin: Machine) -> None:
    host = look(standin("gb200-nvl72"))
    assert [gpu.minor for gpu in host.gpus] == [1, 0, 3, 2]
    assert [gpu.module for gpu in host.gpus] == [2, 1, 4, 3]


def test_a_rack_has_a_clique_and_a_single_board_has_none(standin: Machine) -> None:
    rack = look(standin("gb200-nvl72"))
    assert rack.clique == "f2a8d3b1-5c57-4a0e-9f3c-1d2e6b7a8c90.2"
    board = look(standin("dgx-h100"))
    assert [gpu.fabric.state for gpu in board.gpus if gpu.fabric] == ["completed"] * 8
    assert board.clique == ""


def test_numa_nodes_of_a_grace_without_cpus_are_no_zones(standin: Machine) -> None:
    machine = standin("gh200")
    sysfs = Sysfs(machine.sysfs, machine.proc)
    assert [node.id for node in sysfs.numa_nodes] == list(range(9))
    assert [node.id for node in sysfs.zones] == [0]
    assert look(machine).gpus[0].numa == 0


def test_gpus_and_nics_on_one_switch_are_closer_than_on_two(standin: Machine) -> None:
    host = look(standin("small-2numa"))
    assert host.pcie[0] == (BOARD, PIX, PHB, PHB, SYS, SYS, SYS, SYS)
    assert host.nics is not None
    ethernet = host.nics[-1]
    assert (ethernet.name, ethernet.rdma, ethernet.levels[:5]) == ("eth0", False, (PHB, PHB, PHB, PHB, SYS))
    assert look(standin("pcie-l40s")).pcie[0] == (BOARD, NODE, SYS, SYS)


def test_mig_instances_have_their_placements(standin: Machine) -> None:
    machine = standin("dgx-a100")
    machine.divide(1, [("3g.20gb", 4), ("1g.5gb", 0), ("2g.10gb", 2)])
    host = look(machine)
    mig = host.gpus[1].mig
    assert mig is not None
    assert [(one.profile, one.start, one.size, one.memory_mib) for one in mig] == [
        ("1g.5gb", 0, 1, 4864), ("2g.10gb", 2, 2, 9856), ("3g.20gb", 4, 4, 19968),
    ]  # fmt: skip
    assert all(one.uuid.startswith("MIG-") for one in mig)
    assert len({(one.gi, one.ci) for one in mig}) == 3
    assert [one.engines.multiprocessors for one in mig] == [14, 28, 42]
    status = status_of(host).gpus
    assert status[0].mig is None
    assert [(one.profile, one.start) for one in status[1].mig or ()] == [("1g.5gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)]


def test_profiles_come_from_the_driver(standin: Machine) -> None:
    machine = standin("dgx-h100")
    machine.divide(0, [])
    gpu = look(machine).gpus[0]
    assert gpu.mig == ()
    profiles = {profile.name: profile for profile in gpu.profiles}
    assert {name: (p.id, p.starts, p.size, p.most) for name, p in profiles.items()} == {
        "1g.10gb": (19, (0, 1, 2, 3, 4, 5, 6), 1, 7),
        "1g.10gb+me": (20, (0, 1, 2, 3, 4, 5, 6), 1, 1),
        "1g.20gb": (15, (0, 2, 4, 6), 2, 4),
        "2g.20gb": (14, (0, 2, 4), 2, 3),
        "3g.40gb": (9, (0, 4), 4, 2),
        "4g.40gb": (5, (0,), 4, 1),
        "7g.80gb": (0, (0,), 8, 1),
    }
    assert {name: p.compute for name, p in profiles.items() if name.startswith("3g")} == {"3g.40gb": 3}
    assert (profiles["2g.20gb"].index, profiles["2g.20gb"].engines.multiprocessors) == (1, 32)


def test_links_that_are_down_are_not_counted(standin: Machine) -> None:
    machine = standin("dgx-h100")
    machine.link(3, 0, up=False)
    machine.link(3, 7, up=False)
    host = look(machine)
    assert host.nvlinks is not None
    assert host.nvlinks[3] == (16, 16, 16, 0, 16, 16, 16, 16)
    assert host.nvlinks[0] == (0, 18, 18, 16, 18, 18, 18, 18)
    direct = standin("dgx1-v100")
    before = look(direct).nvlinks
    assert before is not None
    direct.link(0, 0, up=False)
    after = look(direct).nvlinks
    assert after is not None
    lost = [(i, j) for i, row in enumerate(after) for j, count in enumerate(row) if count != before[i][j]]
    assert len(lost) == 2
    assert {after[i][j] - before[i][j] for i, j in lost} == {-1}


def test_layouts_of_equal_machines_are_equal(standin: Machine) -> None:
    one, two = (layout_of(description(look(standin("dgx-h100")))) for _ in range(2))
    assert isinstance(one, Layout)
    assert one == two


def test_every_field_of_a_status_is_in_the_crd(standin: Machine) -> None:
    definition = yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status = document(status_of(look(standin("gb200-nvl72"))))
    assert status.keys() <= schema.keys()
    assert all(gpu.keys() <= schema["gpus"]["items"]["properties"].keys() for gpu in status["gpus"])


def test_hcas_have_their_character_devices_and_the_state_of_their_ports(standin: Machine) -> None:
    machine = standin("dgx-h100")
    hcas = {hca.name: hca for hca in look(machine).hcas}
    for hca in hcas.values():
        (verbs,) = (node for node in hca.device_nodes if "uverbs" in node)
        number = verbs.rpartition("uverbs")[2]
        assert (machine.sysfs / "class/infiniband_verbs" / f"uverbs{number}" / "ibdev").read_text().strip() == hca.name
        names = {f"/dev/infiniband/{kind}{number}" for kind in ("uverbs", "umad", "issm")}
        assert {*hca.device_nodes} == names | {"/dev/infiniband/rdma_cm"}
        state = (machine.sysfs / "class/infiniband" / hca.name / "ports/1/state").read_text()
        assert hca.active == state.startswith("4:") and hca.vendor == "15b3" and hca.interfaces
    assert len(hcas) > 8


def test_a_gpu_node_has_what_gpudirect_rdma_lacks_as_the_crd_allows_it(standin: Machine) -> None:
    machine = standin("dgx-h100")
    assert document(status_of(look(machine)))["gpuDirect"] == []
    (machine.proc / "self/limits").write_text("Max locked memory 65536 65536 bytes\n")
    [found] = document(status_of(look(machine)))["gpuDirect"]
    assert found == {"code": "MemoryLockLimited", "file": "/proc/self/limits", "value": "Max locked memory 65536 bytes"}
    definition = yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    codes = schema["gpuDirect"]["items"]["properties"]["code"]["enum"]
    assert {*codes} == {NO_PEER_MEMORY, ACS_REDIRECTS, IOMMU_TRANSLATES, NOT_RELAXED, MEMORY_LOCK, NO_ADDRESS}
    assert {check.args[0] for one in gpu_direct.CHECKS if isinstance(check := one.look, partial)} == {*codes}
    assert "gpuDirect" not in document(status_of(Host()))


def test_interfaces_of_the_host_with_bonds_and_vlans(standin: Machine) -> None:
    made = standin("dgx-a100")
    net = made.sysfs / "class/net"
    bond = net / "bond0"
    (bond / "upper_bond0.7").mkdir(parents=True)
    (bond / "operstate").write_text("up\n")
    part = next(path for path in sorted(net.iterdir()) if path.name != "bond0")
    (part.resolve() / "master").symlink_to(bond)
    found = {one.name: one for one in look(made).interfaces}
    assert (found["bond0"].bus_id, found["bond0"].up, found["bond0"].above) == ("", True, ("bond0.7",))
    assert found[part.name].master == "bond0" and found[part.name].bus_id
    assert {one.name for one in look(made).interfaces} == {path.name for path in net.iterdir()}
    for hca in look(made).hcas:
        assert hca.active_ports == (("1",) if hca.active else ())


def test_the_topology_of_cpus_is_read_again_only_when_other_cpus_are_online(standin: Machine, tmp_path: Path) -> None:
    machine = standin("pcie-l40s")
    first = Sysfs(machine.sysfs)
    *others, last = before = first.cpus()
    cpus = machine.sysfs / "devices/system/cpu"
    own = shutil.copytree(cpus, tmp_path / "cpus", symlinks=True)
    cpus.unlink()
    own.rename(cpus)
    topology = machine.sysfs / f"devices/system/cpu/cpu{others[0].id}/topology"
    (topology / "physical_package_id").write_text("9\n")
    again = first.renewed()
    assert again.cpus() == before
    listed = machine.sysfs / f"devices/system/node/node{last.numa}/cpulist"
    online = [str(cpu.id) for cpu in others if cpu.numa == last.numa]
    listed.write_text(",".join(online) + "\n")
    assert again.cpus() == before
    found = {cpu.id: cpu.socket for cpu in again.renewed().cpus()}
    assert found.keys() == {cpu.id for cpu in others} and found[others[0].id] == 9
