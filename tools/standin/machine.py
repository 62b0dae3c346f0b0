# SPDX-License-Identifier: Apache-2.0
"""The files around a stand-in: /sys, /dev, /proc and the driver's libraries, as on a Linux machine with these GPUs.

Rules: only the files that a node agent, the kubelet or a container runtime reads exist, each with the content that the
kernel would report. Device nodes are plain files, so that root is not needed. CPUs with equal content share a folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tools.standin.description import Description, Device, Nic

GPU_CLASS, BRIDGE_CLASS, INFINIBAND_CLASS, ETHERNET_CLASS, SWITCH_CLASS = (
    "0x030200", "0x060400", "0x020700", "0x020000", "0x068000",
)  # fmt: skip
_NVIDIA, _MELLANOX = "0x10de", "0x15b3"
_GIGATRANSFERS = {3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_LIBRARIES = (
    "libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libcudadebugger.so",
    "libnvidia-opencl.so", "libnvidia-allocator.so", "libnvidia-cfg.so", "libnvidia-gpucomp.so",
)  # fmt: skip
_PROGRAMS = (
    "nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-debugdump",
)  # fmt: skip


def pci_config(acs_control: int = 0, device_control: int = 0x2910) -> bytes:
    """The configuration of a PCIe device that has Access Control Services. The default enables relaxed ordering."""
    config = bytearray(4096)
    config[0x34], config[0x40], config[0x60], config[0x41] = 0x40, 0x01, 0x10, 0x60
    config[0x68:0x6A] = device_control.to_bytes(2, "little")
    config[0x100:0x104] = (0x148 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    config[0x148:0x14C] = (1 << 16 | 0x000D).to_bytes(4, "little")
    config[0x14E:0x150] = acs_control.to_bytes(2, "little")
    return bytes(config)


_CONFIG = pci_config()


def written_once(target: Path, write: Callable[[Path], None]) -> Path:
    """The folder `target`, which is written as a whole or not at all if it does not exist."""
    if not target.is_dir():
        unfinished = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
        write(unfinished)
        try:
            unfinished.rename(target)
        except OSError:
            # Another process has written it in the meantime.
            if not target.is_dir():
                raise
            shutil.rmtree(unfinished)
    return target


def write_sysfs(description: Description, sysfs: Path, cpus: Path | None = None) -> None:
    """Write /sys into a folder that must not exist. Below `cpus` machines share the files of equal CPUs, most of all
    files: nothing may change them then."""
    _pci(description, sysfs)
    cpu_root = sysfs / "devices/system/cpu"
    if cpus is None:
        _cpus(description, cpu_root)
    else:
        same = repr((description.threads, [(node.cpus, node.socket) for node in description.numa]))
        shared = cpus / hashlib.sha256(same.encode()).hexdigest()[:16]
        _link(cpu_root, written_once(shared, lambda folder: _cpus(description, folder)))
    _numa(description, sysfs)
    _write(sysfs / "class/dmi/id", {"product_name": description.machine, "sys_vendor": "Dovetail stand-in"})
    _write(sysfs / "module/nvidia", {"version": description.driver})
    _write(sysfs / "module/nvidia_peermem", {"refcnt": 0})


def remove_gpu(description: Description, index: int, sysfs: Path) -> None:
    """Remove a GPU from the bus, as after a hot removal."""
    (sysfs / "bus/pci/devices" / description.gpus[index].device.bdf).unlink(missing_ok=True)


def restore_gpu(description: Description, index: int, sysfs: Path) -> None:
    """Restore a GPU after remove_gpu()."""
    device = description.gpus[index].device
    if not (sysfs / "bus/pci/devices" / device.bdf).is_symlink():
        _link(sysfs / "bus/pci/devices" / device.bdf, sysfs / "devices" / device.path)


def write_module(version: str, sysfs: Path, proc: Path) -> None:
    """Write the version of the kernel module."""
    _write(sysfs / "module/nvidia", {"version": version})
    _write(proc / "driver/nvidia", {"version": _proc_version(version)})


def _proc_version(version: str) -> str:
    return (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Mon Jul  7 02:14:10 UTC 2025\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)"
    )


def _write(folder: Path | str, files: Mapping[str, object]) -> None:
    # A large machine has some thousand files: plain calls take a sixth of the time of Path methods and open().
    base = str(folder)
    try:
        os.mkdir(base)  # noqa: PTH102
    except OSError:
        os.makedirs(base, exist_ok=True)  # noqa: PTH103
    for name, content in files.items():
        file = os.open(f"{base}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.write(file, f"{content}\n".encode())
        os.close(file)


def _link(path: Path, target: Path) -> None:
    folder, _, _ = str(path).rpartition("/")
    here, there = folder.split("/"), str(target).split("/")
    # A link of the kernel has the name of what it leads to, also where that lies above it.
    same = len(os.path.commonprefix([here, there[:-1]]))  # noqa: RUF071 - of parts, not of characters
    relative = "/".join([".."] * (len(here) - same) + there[same:])
    try:
        os.symlink(relative, path)  # noqa: PTH211
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        os.symlink(relative, path)  # noqa: PTH211


def _pci(description: Description, sysfs: Path) -> None:
    generation = {gpu.device.name: gpu.product["pcie_gen"] for gpu in description.gpus}
    newest = max(generation.values(), default=4)
    gpus = {gpu.device.name: gpu for gpu in description.gpus}
    nics = {nic.name: nic for nic in description.nics}
    (sysfs / "bus/pci/devices").mkdir(parents=True)
    cpus = ["" if not node.cpus else ranges(node.cpus) for node in description.numa]
    for path, bdf, numa in description.bridges:
        _pci_device(sysfs, path, bdf, numa, cpus, BRIDGE_CLASS, "0x1000", "0xc030", newest)
    for device in description.devices:
        if gpu := gpus.get(device.name):
            ids = (GPU_CLASS, _NVIDIA, f"0x{gpu.product['device_id'][2:6].lower()}")
        elif nic := nics.get(device.name):
            ids = (ETHERNET_CLASS if nic.ethernet or not nic.rdma else INFINIBAND_CLASS, _MELLANOX, "0x101b")
        else:
            ids = (SWITCH_CLASS, _NVIDIA, "0x1af1")
        _pci_device(sysfs, device.path, device.bdf, device.numa, cpus, *ids, generation.get(device.name, newest))
        if device.name in nics:
            _nic(sysfs, nics[device.name], device)
    for gpu in description.gpus:
        _link(sysfs / "devices" / gpu.device.path / "driver", sysfs / "bus/pci/drivers/nvidia")
    (sysfs / "bus/pci/drivers/nvidia").mkdir(parents=True)
    for kind in ("infiniband", "net"):
        (sysfs / "class" / kind).mkdir(parents=True, exist_ok=True)


def _pci_device(
    sysfs: Path, path: str, bdf: str, numa: int, cpus: list[str], kind: str, vendor: str, device: str, generation: int
) -> None:
    speed = f"{_GIGATRANSFERS[generation]} GT/s PCIe"
    files = {
        "class": kind, "vendor": vendor, "device": device, "numa_node": numa,
        "local_cpulist": cpus[numa] if numa >= 0 else ",".join(filter(None, cpus)),
        "current_link_speed": speed, "current_link_width": 16,
    }  # fmt: skip
    _write(sysfs / "devices" / path, files)
    (sysfs / "devices" / path / "config").write_bytes(_CONFIG)
    _link(sysfs / "bus/pci/devices" / bdf, sysfs / "devices" / path)


def _nic(sysfs: Path, nic: Nic, device: Device) -> None:
    folder = sysfs / "devices" / device.path
    domain, bus, _ = device.bdf.split(":")
    # The name that udev assigns: domain (if not 0), bus and slot.
    place = f"{f'P{int(domain, 16)}' if int(domain, 16) else ''}p{int(bus, 16)}s0"
    interface = f"{'en' if nic.ethernet else 'ib'}{place}" if nic.rdma else nic.name
    up = "down" if nic.down else "up"
    files = {
        "speed": -1 if nic.down else nic.gbps * 1000,
        "operstate": up,
        "carrier": 0 if nic.down else 1,
        "type": 1 if nic.ethernet or not nic.rdma else 32,
        "address": f"02:00:00:00:00:{bus}",
    }
    _write(folder / "net" / interface, files)
    _link(folder / "net" / interface / "device", folder)
    _link(sysfs / "class/net" / interface, folder / "net" / interface)
    if not nic.rdma:
        return
    rdma = folder / "infiniband" / nic.name
    _write(rdma, {"node_type": "1: CA", "node_guid": f"0c42:a103:00{bus}:0000", "fw_ver": "28.39.3560"})
    _link(rdma / "device", folder)
    lanes = {100: "4X EDR", 200: "4X HDR", 400: "4X NDR", 800: "4X XDR"}
    port = {
        "state": "1: DOWN" if nic.down else "4: ACTIVE",
        "phys_state": "3: Disabled" if nic.down else "5: LinkUp",
        "link_layer": "Ethernet" if nic.ethernet else "InfiniBand",
        "rate": f"{nic.gbps} Gb/sec ({lanes.get(nic.gbps, '4X')})",
    }
    _write(rdma / "ports/1", port)
    _link(sysfs / "class/infiniband" / nic.name, rdma)
    verbs, mad = sysfs / "class/infiniband_verbs", sysfs / "class/infiniband_mad"
    number = len(list(verbs.glob("uverbs*")))
    for node in (verbs / f"uverbs{number}", mad / f"umad{number}", mad / f"issm{number}"):
        _write(node, {"ibdev": nic.name})
    _write(sysfs / "class/misc/rdma_cm", {"dev": "10:58"})


def _cpus(description: Description, cpu_root: Path) -> None:
    cpu_root.mkdir(parents=True)
    first_core = 0
    for number, node in enumerate(description.numa):
        # Siblings are the CPUs at the same index of each block: 0-15,128-143 is 16 cores with two threads.
        cores = len(node.cpus) // description.threads
        for place, cpu in enumerate(node.cpus):
            core = place % cores if cores else 0
            siblings = node.cpus[core::cores] if cores else (cpu,)
            own = f"{cpu_root}/cpu{cpu}"
            os.mkdir(own)  # noqa: PTH102
            if cpu == siblings[0]:
                core_id = {"core_id": first_core + core, "physical_package_id": node.socket}
                _write(f"{own}/topology", {**core_id, "thread_siblings_list": ranges(siblings)})
            else:
                os.symlink(f"../cpu{siblings[0]}/topology", f"{own}/topology")  # noqa: PTH211
            if place == 0:
                cache = {"id": number, "level": 3, "type": "Unified", "size": "32768K"}
                _write(f"{own}/cache/index3", {**cache, "shared_cpu_list": ranges(node.cpus)})
            else:
                os.symlink(f"../cpu{node.cpus[0]}/cache", f"{own}/cache")  # noqa: PTH211
        first_core += cores
    everyone = ranges(cpu for node in description.numa for cpu in node.cpus)
    _write(cpu_root, dict.fromkeys(("online", "possible", "present"), everyone))


def _numa(description: Description, sysfs: Path) -> None:
    nodes = sysfs / "devices/system/node"
    for number, node in enumerate(description.numa):
        folder = nodes / f"node{number}"
        distances = [_distance(description, number, other) for other in range(len(description.numa))]
        _write(folder, {"cpulist": ranges(node.cpus), "distance": " ".join(map(str, distances))})
        kib = node.memory_mib * 1024
        used = kib // 16
        meminfo = {"MemTotal": kib, "MemFree": kib - used, "MemUsed": used}
        lines = [f"Node {number} {name + ':':<15}{value:>9} kB" for name, value in meminfo.items()]
        lines.append(f"Node {number} HugePages_Total: {node.hugepages_2mib:>5}")
        lines.append(f"Node {number} HugePages_Free:  {node.hugepages_2mib:>5}")
        _write(folder, {"meminfo": "\n".join(lines)})
        for size_kib, pages in ((2048, node.hugepages_2mib), (1048576, 0)):
            _write(folder / f"hugepages/hugepages-{size_kib}kB", {"nr_hugepages": pages, "free_hugepages": pages})
        for cpu in node.cpus:
            os.symlink(f"../../cpu/cpu{cpu}", f"{folder}/cpu{cpu}")  # noqa: PTH211
    with_cpus = [number for number, node in enumerate(description.numa) if node.cpus]
    with_memory = [number for number, node in enumerate(description.numa) if node.memory_mib]
    all_nodes = ranges(range(len(description.numa)))
    files = {
        "online": all_nodes,
        "possible": all_nodes,
        "has_cpu": ranges(with_cpus),
        "has_memory": ranges(with_memory),
    }
    _write(nodes, files)


def _distance(description: Description, one: int, other: int) -> int:
    """The NUMA distance as in firmware: 10 local, 12 on the same socket, 32 across, 80 to the memory of a GPU."""
    if one == other:
        return 10
    if not (description.numa[one].cpus and description.numa[other].cpus):
        return 80
    return 12 if description.numa[one].socket == description.numa[other].socket else 32


def write_dev(description: Description, dev: Path) -> None:
    """Write /dev: the files of NVIDIA's driver and of the RDMA devices."""
    names = [*(f"nvidia{gpu.minor}" for gpu in description.gpus), "nvidiactl", "nvidia-modeset", "nvidia-uvm"]
    names += ["nvidia-uvm-tools", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"]
    names += [f"nvidia-nvswitch{i}" for i in range(sum("nvswitch" in device.name for device in description.devices))]
    hcas = range(sum(nic.rdma for nic in description.nics))
    names += [f"infiniband/{kind}{i}" for kind in ("uverbs", "umad", "issm") for i in hcas]
    names += ["infiniband/rdma_cm"] if hcas else []
    if description.fabric.get("cluster"):
        names.append("nvidia-caps-imex-channels/channel0")
    for name in names:
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).touch()


def write_proc(description: Description, proc: Path) -> None:
    """Write /proc: the files of NVIDIA's driver."""
    nvidia = proc / "driver/nvidia"
    _write(nvidia, {"version": _proc_version(description.driver)})
    _write(nvidia, {"params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0"})
    _write(proc / "sys/kernel", {"osrelease": "6.8.0-60-generic"})
    _write(proc / "self", {"limits": "Max locked memory         unlimited            unlimited            bytes"})
    _write(proc, {"devices": "Character devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n511 nvidia-uvm"})
    access = "DeviceFileMinor: {}\nDeviceFileMode: {}\nDeviceFileModify: 1"
    for number, name in enumerate(("config", "monitor"), start=1):
        _write(nvidia / "capabilities/mig", {name: access.format(number, 256 if number == 1 else 292)})
    minors = ["config 1", "monitor 2"]
    for gpu in description.gpus:
        facts = {
            "Model": gpu.product["name"], "IRQ": 100 + gpu.index, "GPU UUID": gpu.uuid, "Bus Type": "PCIe",
            "Bus Location": gpu.device.bdf, "Device Minor": gpu.minor, "GPU Excluded": "No",
        }  # fmt: skip
        lines = "\n".join(f"{name + ': ':<17}{value}" for name, value in facts.items())
        _write(nvidia / "gpus" / gpu.device.bdf, {"information": lines})
        (nvidia / f"capabilities/gpu{gpu.minor}/mig").mkdir(parents=True, exist_ok=True)
        first = 3 + gpu.minor * 135
        for gi in range(15):
            minors.append(f"gpu{gpu.minor}/gi{gi}/access {first + gi * 9}")
            minors += [f"gpu{gpu.minor}/gi{gi}/ci{ci}/access {first + gi * 9 + 1 + ci}" for ci in range(8)]
    _write(proc / "driver/nvidia-caps", {"mig-minors": "\n".join(minors)})


def write_driver(description: Description, driver: Path) -> None:
    """Write the driver's libraries, programs and firmware below /."""
    libraries, programs = driver / "usr/lib/x86_64-linux-gnu", driver / "usr/bin"
    libraries.mkdir(parents=True)
    for name in _LIBRARIES:
        (libraries / f"{name}.{description.driver}").write_bytes(b"\x7fELF stand-in\n")
        (libraries / f"{name}.1").symlink_to(f"{name}.{description.driver}")
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")
    programs.mkdir(parents=True)
    for name in _PROGRAMS:
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
        (programs / name).chmod(0o755)
    firmware = driver / f"lib/firmware/nvidia/{description.driver}"
    firmware.mkdir(parents=True)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        (firmware / name).write_bytes(b"stand-in\n")


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in the kernel's list format: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
