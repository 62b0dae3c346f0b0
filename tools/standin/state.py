# SPDX-License-Identifier: Apache-2.0
"""The initial content of the file that the library maps, from a description."""

from __future__ import annotations

import ctypes
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pynvml

from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS
from dovetail.core.devices.mig.products import of_product
from tools.standin import layout
from tools.standin.description import Description, HostError, fabric_state, level

_NVML_LEVEL = {
    BOARD: pynvml.NVML_TOPOLOGY_INTERNAL, PIX: pynvml.NVML_TOPOLOGY_SINGLE, PXB: pynvml.NVML_TOPOLOGY_MULTIPLE,
    PHB: pynvml.NVML_TOPOLOGY_HOSTBRIDGE, NODE: pynvml.NVML_TOPOLOGY_NODE, SYS: pynvml.NVML_TOPOLOGY_SYSTEM,
}  # fmt: skip
# NVML's enumerators of GPU instance profiles, by compute slices, name suffix and index among profiles of equal name:
# the second plain 1g has twice the memory.
_PROFILE_INDEX = {
    (1, "", 0): 0, (2, "", 0): 1, (3, "", 0): 2, (4, "", 0): 3, (7, "", 0): 4, (1, "+me", 0): 7, (2, "+me", 0): 8,
    (1, "", 1): 9, (1, "+gfx", 0): 10, (2, "+gfx", 0): 11, (4, "+gfx", 0): 12, (1, "-me", 0): 13, (2, "-me", 0): 14,
    (1, "+me.all", 0): 15, (2, "+me.all", 0): 16,
}  # fmt: skip
_CPU_MW = 110_000
"""What the rest of a module with a Grace CPU needs."""
_HEALTHY = 0b01_10_10_10_10
"""No degraded bandwidth, no route recovery, no unhealthy route, no access timeout, configured as it should be."""


def state_of(description: Description, proc: Path, dev: Path) -> bytes:
    """The content of the whole file."""
    state = layout.Host(magic=layout.MAGIC, size=ctypes.sizeof(layout.Host), gpu_count=len(description.gpus))
    state.driver, state.nvml = description.driver.encode(), description.nvml.encode()
    state.proc, state.dev = str(proc).encode(), str(dev).encode()
    state.fields, state.metrics = description.fields, description.metrics
    state.cuda = description.cuda[0] * 1000 + description.cuda[1] * 10
    for index in range(len(description.gpus)):
        _fill(state.gpu[index], description, index)
        state.gpu[index].since_ns = time.monotonic_ns()
        if index in description.mig:
            divide(state.gpu[index], description.mig[index])
    return bytes(state)


def _fill(out: layout.Gpu, description: Description, index: int) -> None:
    gpu = description.gpus[index]
    product, numa = gpu.product, description.numa
    out.uuid, out.name, out.serial = gpu.uuid.encode(), product["name"].encode(), gpu.serial.encode()
    out.minor, out.module, out.brand, out.architecture = (
        gpu.minor,
        gpu.module,
        product["brand"],
        product["architecture"],
    )
    out.cc_major, out.cc_minor = product["compute"]
    out.domain, out.bus, out.device = _bdf(gpu.device.bdf)
    out.device_id = int(product["device_id"], 16)
    out.subsystem_id = 0x144E10DE
    out.addressing, out.has_c2c = product["addressing"], product.get("c2c", False)
    out.sm, out.pcie_gen, out.pcie_width = product["sm"], product["pcie_gen"], 16
    out.sm_clock_mhz, out.memory_clock_mhz = product["sm_clock_mhz"], product["memory_clock_mhz"]
    out.power_limit_mw = product["power_w"] * 1000
    _idle(out, product)
    out.memory_mib, out.reserved_mib, out.bar1_mib = product["memory_mib"], product["reserved_mib"], product["bar1_mib"]
    out.numa_node = -1 if gpu.memory_node is None else gpu.memory_node
    out.persistence = 1
    home = [gpu.device.numa] if gpu.device.numa >= 0 else list(range(len(numa)))
    sockets = {numa[node].socket for node in home}
    around = [node for node, each in enumerate(numa) if each.socket in sockets]
    _bits(out.cpus_node, (cpu for node in home for cpu in numa[node].cpus))
    _bits(out.cpus_socket, (cpu for node in around for cpu in numa[node].cpus))
    _bits(out.memory_node, home + [node for node in around if not numa[node].cpus])
    _bits(out.memory_socket, around)
    for other in description.gpus:
        out.level[other.index] = _NVML_LEVEL[level(gpu.device, other.device)]
    out.link_count, out.link_version = product["links"], product["link_version"]
    for link, entry in zip(gpu.links, out.link, strict=False):
        entry.wired, entry.up, entry.kind = 1, link.up, 0 if link.gpu is not None else 2
        if link.gpu is not None:
            remote = description.gpus[link.gpu]
            entry.remote_id = int(remote.product["device_id"], 16)
            entry.domain, entry.bus, entry.device = _bdf(remote.device.bdf)
        elif link.switch:
            entry.domain, entry.bus, entry.device = _bdf(link.switch)
            entry.remote_id = 0x1AF110DE
        else:
            # An external switch.
            entry.domain, entry.bus, entry.device = 0xFFFFFFFF, 0xFF, 0x1F
    out.fabric_state, out.fabric_clique = fabric_state(description.fabric), description.fabric.get("clique", 0)
    out.fabric_health = _HEALTHY if description.fabric.get("state") == "completed" else 0
    cluster = uuid.UUID(description.fabric.get("cluster", "0" * 32)).bytes
    ctypes.memmove(out.cluster_uuid, cluster, len(cluster))
    if platform := description.platform:
        out.chassis = platform["chassis"].encode()
        out.slot, out.tray, out.host_id = platform["slot"], platform["tray"], platform["host"]
    out.placements_need_mode = description.placements_need_mode
    _profiles(out, product["name"])


def _idle(out: layout.Gpu, product: Mapping[str, Any]) -> None:
    """The limits of the product, and the readings of a GPU on which nothing runs."""
    out.application_clock_mhz, out.idle_clock_mhz = product["app_clock"], product["idle_clock"]
    out.idle_memory_clock_mhz, out.idle_state = product["idle_memory_clock"], product["idle_state"]
    out.video_clock_mhz, out.memory_bits = product["video_clock"], product["bits"]
    out.maximum_c, out.slowdown_c, out.shutdown_c, out.memory_maximum_c = product["celsius"]
    out.vbios, out.inforom, out.board_part = (product[name].encode() for name in ("vbios", "inforom", "board"))
    out.banks[0] = product["banks"]
    out.idle_power_mw = round(product["idle_w"] * 1000)
    out.bar1_used_mib = 1
    out.pcie_gen_now, out.pcie_width_now = out.pcie_gen, out.pcie_width
    run(out, {})
    out.clock_reasons = reasons_of(out)


def run(out: layout.Gpu, load: Mapping[str, float]) -> None:
    """Set what follows from a load (rates by their names in layout.RATES): power, clocks, temperatures and so on.

    Between idle and its limits a GPU here is linear; a real one is not, but its order is the same."""
    rate = {name: load.get(name, 0.0) for name in layout.RATES}
    effort = max(0.5 * rate["graphics"], 0.5 * rate["sm"] + 0.3 * rate["tensor"] + 0.2 * rate["dram"])
    busy = rate["graphics"] > 0
    out.utilization, out.memory_utilization = round(100 * rate["graphics"]), round(100 * rate["dram"])
    out.clock_mhz = out.sm_clock_mhz if busy else out.idle_clock_mhz
    out.current_memory_clock_mhz = out.memory_clock_mhz if busy else out.idle_memory_clock_mhz
    out.performance_state = 0 if busy else out.idle_state
    set_power(out, out.idle_power_mw + round((out.power_limit_mw - out.idle_power_mw) * effort))
    out.temperature_c = 31 + round((out.maximum_c - 36) * effort)
    out.memory_temperature_c = out.temperature_c + 6 if out.memory_maximum_c else 0


def set_power(out: layout.Gpu, power_mw: int) -> None:
    """Set the power of the GPU, and of its module if that is another one."""
    out.power_mw = out.power_instant_mw = power_mw
    out.module_power_mw = power_mw + _CPU_MW if out.has_c2c else 0


def reasons_of(gpu: layout.Gpu) -> int:
    """The clock event reasons that follow from the present readings."""
    hot = pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    reasons = 0 if gpu.utilization else pynvml.nvmlClocksEventReasonGpuIdle
    reasons |= pynvml.nvmlClocksEventReasonSwPowerCap if gpu.power_mw >= gpu.power_limit_mw else 0
    reasons |= hot if gpu.temperature_c >= gpu.slowdown_c else 0
    return int(reasons)


def restart(gpu: layout.Gpu) -> None:
    """Set what a load of the driver starts with: no processes, and counters at 0 but for those in the InfoROM."""
    for process in gpu.process:
        process.used = 0
    for instance in gpu.instance:
        instance.load, instance.sram_errors = layout.Load(), 0
    volatile = [i for i in range(len(gpu.ecc)) if i // layout.ECC_LOCATIONS % 2 == pynvml.NVML_VOLATILE_ECC]
    for i in volatile:
        gpu.ecc[i] = 0
    for name in ("reason_ns", "link_error", "link_tx", "link_rx", "pcie_error", "c2c_error"):
        ctypes.memset(ctypes.byref(getattr(gpu, name)), 0, ctypes.sizeof(getattr(gpu, name)))
    gpu.energy_mj = gpu.pcie_replays = gpu.pcie_rollovers = gpu.pcie_recoveries = gpu.used_mib = 0
    gpu.load = layout.Load()
    run(gpu, {})
    gpu.clock_reasons = reasons_of(gpu)


def _profiles(out: layout.Gpu, product: str) -> None:
    geometry = of_product(product)
    if geometry is None:
        return
    out.mig_capable, out.mode_change_resets = 1, geometry.mode_change_resets
    out.memory_slices, out.compute_slices = geometry.memory_slices, geometry.compute_slices
    out.engines[:] = geometry.engines
    out.profile_count = len(geometry.profiles)
    seen: dict[tuple[int, str], int] = {}
    for profile, entry in zip(geometry.profiles, out.profile, strict=False):
        suffix = profile.name[profile.name.index("gb") + 2 :]
        kind = (profile.compute_slices, suffix)
        entry.index = _PROFILE_INDEX[(*kind, seen.setdefault(kind, 0))]
        seen[kind] += 1
        entry.id, entry.compute, entry.size, entry.most = (
            profile.gi_id, profile.compute_slices, profile.memory_slices, profile.most,
        )  # fmt: skip
        entry.sm, entry.memory_mib, entry.name = profile.sm_count, profile.memory_mib, profile.name.encode()
        entry.engines[:] = profile.engines
        entry.starts = sum(1 << start for start in profile.starts)
        # The compute profile of full size: +me profiles of one slice have a separate one.
        entry.ci_index = 7 if kind == (1, "+me") else _PROFILE_INDEX[(profile.compute_slices, "", 0)]


def divide(gpu: layout.Gpu, parts: Iterable[tuple[str, int]]) -> None:
    """Set MIG mode on with these instances, each with one compute instance of full size. Raises HostError."""
    names = [profile.name.decode() for profile in gpu.profile[: gpu.profile_count]]
    chosen = []
    for name, start in parts:
        if name not in names:
            raise HostError(f"{gpu.name.decode()} has no MIG profile {name}: it has {', '.join(names) or 'none'}")
        chosen.append((names.index(name), start))
    gpu.mig_mode = gpu.mig_pending = 1
    for instance in gpu.instance:
        instance.used = 0
    for number, start in chosen:
        profile = gpu.profile[number]
        instance = gpu.instance[gpu.memory_slices // profile.size - 1 + start // profile.size]
        instance.load = layout.Load()
        for compute in instance.compute:
            compute.used = 0
        whole = instance.compute[0]
        whole.index, whole.start, whole.size, whole.used = profile.ci_index, 0, profile.compute, 1
        instance.profile, instance.start, instance.used = number, start, 1


def _bdf(text: str) -> tuple[int, int, int]:
    domain, bus, device = text.partition(".")[0].split(":")
    return int(domain, 16), int(bus, 16), int(device, 16)


def _bits(out: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        out[number // 64] |= 1 << number % 64
