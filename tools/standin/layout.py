# SPDX-License-Identifier: Apache-2.0
"""The file that a stand-in library maps: the description of the machine and its run-time state.

Rules: this module defines the structures, and the C header is generated from them. The file is shared: a test changes
it while an agent in another process reads it, and changes by an agent (a MIG layout) outlive the agent. A process that
changes more than one word holds the lock of the file (flock, which the kernel releases when the process dies). An entry
is valid only if its `used` is set, which is the last write: if a process is killed, the change is complete or has no
effect. The value 0 means none, off or absent.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_char, c_double, c_int32, c_int64, c_uint32, c_uint64
from typing import Any

MOST_GPUS, MOST_LINKS, MOST_PROFILES, MOST_INSTANCES, MOST_COMPUTE = 16, 36, 18, 15, 8
MOST_PROCESSES, MOST_FAULTS, EVENTS, MOST_OVERRIDES = 64, 64, 256, 64
ECC_LOCATIONS, LINK_COUNTERS, REASONS, PCIE_ERRORS, BANKS = 8, 5, 11, 11, 5
NONE = 0xFFFFFFFF
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE: NVML's value for a number that it does not know, such as the memory of a process."""
RATES = (
    "graphics", "sm", "occupancy", "tensor", "dfma", "hmma", "imma", "integer", "dram", "fp64", "fp32", "fp16",
    "decoder", "encoder", "jpeg", "ofa", "pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx", "c2c_tx", "c2c_rx",
)  # fmt: skip
"""What a load consists of: ratios from 0 to 1 up to `ofa`, then MiB/s."""
FIELD, METRIC, DCGM = range(3)
"""The spaces of ids of overrides."""
MAGIC = 0x444F5645
_CONSTANTS = (
    "MOST_GPUS", "MOST_LINKS", "MOST_PROFILES", "MOST_INSTANCES", "MOST_COMPUTE", "MOST_PROCESSES", "MOST_FAULTS",
    "EVENTS", "NONE", "MAGIC", "MOST_OVERRIDES", "ECC_LOCATIONS", "LINK_COUNTERS", "REASONS", "PCIE_ERRORS", "BANKS",
)  # fmt: skip


def _words(names: str) -> list[tuple[str, Any]]:
    return [(name, c_uint32) for name in names.split()]


class Link(Structure):
    """An NVLink of a GPU. `wired`: it has a remote end, whose `kind` is 0 for a GPU and 2 for a switch."""

    _fields_ = _words("wired up kind domain bus device remote_id")


class Profile(Structure):
    """A MIG profile. `starts` has one bit per memory slice. `engines` counts copy, decoder, encoder, JPEG and OFA."""

    _fields_ = [
        *_words("index id compute size most sm"),
        ("engines", c_uint32 * 5),
        ("ci_index", c_uint32),
        ("memory_mib", c_uint64),
        ("starts", c_uint64),
        ("name", c_char * 32),
    ]


class Compute(Structure):
    """A compute instance. Its id is its index in the GPU instance."""

    _fields_ = _words("used index start size")


class Load(Structure):
    """What runs: a rate for each of RATES, and its integral over the seconds up to `since_ns` of the GPU."""

    _fields_ = [("rate", c_double * len(RATES)), ("sum", c_double * len(RATES))]


class Instance(Structure):
    """A GPU instance. Its id is its index. `profile` is an index into the profiles of the GPU. `sram_errors` are the
    uncorrected ones since the driver was loaded."""

    _fields_ = [
        *_words("used profile start sram_errors"),
        ("compute", Compute * MOST_COMPUTE),
        ("load", Load),
    ]


class Process(Structure):
    """A process that uses a GPU or a part of it. `gi` and `ci` are NONE for the whole GPU. `mode` is NVML's process
    mode: 0 compute, 1 graphics, 2 MPS. The utilizations are in percent. `memory_mib` may be NOT_AVAILABLE."""

    _fields_ = [
        *_words("used pid mode gi ci sm memory encoder decoder _"),
        ("memory_mib", c_uint64),
    ]


class Gpu(Structure):
    """One GPU. `lost`: it has fallen off the bus. `gone`: nvmlInit no longer finds it.

    All counters that grow by themselves (energy, integrals of the load, times of clock event reasons) are those of
    `since_ns` on the clock of the file; what was added since then follows from the power, the rates and the reasons.
    `energy_mj` and the counters of errors start again with each load of the driver, aggregate ECC errors do not. `ecc`
    is indexed by error type, counter type and location, `link_error` by link and counter, `pcie_error` by field id from
    173 on. Temperatures of 0 do not exist on this product."""

    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("chassis", c_char * 16),
        ("vbios", c_char * 32),
        ("inforom", c_char * 16),
        ("board_part", c_char * 80),
        *_words(
            "minor brand architecture cc_major cc_minor module domain bus device device_id subsystem_id "
            "addressing has_c2c sm pcie_gen pcie_width sm_clock_mhz memory_clock_mhz "
            "application_clock_mhz idle_clock_mhz idle_memory_clock_mhz idle_state video_clock_mhz memory_bits "
            "power_limit_mw idle_power_mw host_id "
            "slot tray link_count link_version fabric_state fabric_clique fabric_error fabric_health "
            "mig_capable mode_change_resets placements_need_mode memory_slices compute_slices "
            "maximum_c slowdown_c shutdown_c memory_maximum_c"
        ),
        ("numa_node", c_int32),
        ("engines", c_uint32 * 5),
        ("profile_count", c_uint32),
        ("cluster_uuid", c_uint32 * 4),
        ("memory_mib", c_uint64),
        ("reserved_mib", c_uint64),
        ("bar1_mib", c_uint64),
        ("cpus_node", c_uint64 * 16),
        ("cpus_socket", c_uint64 * 16),
        ("memory_node", c_uint64 * 16),
        ("memory_socket", c_uint64 * 16),
        ("level", c_uint32 * MOST_GPUS),
        ("link", Link * MOST_LINKS),
        ("profile", Profile * MOST_PROFILES),
        # Run-time state.
        *_words(
            "lost gone mig_mode mig_pending compute_mode persistence temperature_c memory_temperature_c power_mw "
            "power_instant_mw module_power_mw utilization memory_utilization clock_mhz current_memory_clock_mhz "
            "performance_state fans fan_percent fan_rpm rows_corrected rows_uncorrected rows_pending rows_failed "
            "retired_single retired_double retired_pending pcie_gen_now pcie_width_now recovery_action "
            "repair_pending bar1_used_mib encoder_sessions encoder_fps encoder_latency_us capture_sessions"
        ),
        ("since_ns", c_int64),
        ("clock_reasons", c_uint64),
        ("reason_ns", c_uint64 * REASONS),
        ("energy_mj", c_uint64),
        ("used_mib", c_uint64),
        ("ecc", c_uint64 * (4 * ECC_LOCATIONS)),
        ("banks", c_uint32 * BANKS),
        ("link_error", c_uint64 * (MOST_LINKS * LINK_COUNTERS)),
        ("link_tx", c_double * MOST_LINKS),
        ("link_rx", c_double * MOST_LINKS),
        ("pcie_replays", c_uint64),
        ("pcie_rollovers", c_uint64),
        ("pcie_recoveries", c_uint64),
        ("pcie_error", c_uint64 * PCIE_ERRORS),
        ("c2c_error", c_uint64 * 3),
        ("load", Load),
        ("instance", Instance * MOST_INSTANCES),
        ("process", Process * MOST_PROCESSES),
    ]


class Fault(Structure):
    """A fault: `call` waits `ms` and, with a `code`, then fails on GPU `gpu` (NONE: all). `left` is the number of
    remaining faults; 0 means unlimited."""

    _fields_ = [("call", c_char * 64), *_words("used gpu code ms left _")]


class Override(Structure):
    """A value that the library returns instead of its own: of a field value, a GPM metric or a DCGM field (`space` 0,
    1, 2) with this id. `scope` NONE: of any scope. With a `code` the value fails. `type` is NVML's value type."""

    _fields_ = [*_words("used space gpu id scope type code _"), ("bits", c_uint64)]


class Event(Structure):
    _fields_ = [*_words("gpu gi ci _"), ("type", c_uint64), ("data", c_uint64)]


class Host(Structure):
    """The file. `events_reported` counts all events; the last EVENTS of them are stored. `changes` is the futex
    word of waiters. The clock of the file is the monotonic clock and `clock_ns`, or with `clock_stopped` only that.
    `loads` counts the loads of the driver: a process that opened the library before the last one cannot use it.
    `fields` and `metrics`: the first ids of field values and GPM metrics that the driver does not know."""

    _fields_ = [
        ("magic", c_uint32),
        ("size", c_uint32),
        ("driver", c_char * 80),
        ("nvml", c_char * 80),
        ("proc", c_char * 512),
        ("dev", c_char * 512),
        ("cuda", c_uint32),
        ("gpu_count", c_uint32),
        ("mismatch", c_uint32),
        ("changes", c_uint32),
        ("events_reported", c_uint32),
        *_words("loads clock_stopped fields metrics engine_running engine_starts engine_port engine_unprivileged"),
        ("clock_ns", c_int64),
        ("override", Override * MOST_OVERRIDES),
        ("event", Event * EVENTS),
        ("fault", Fault * MOST_FAULTS),
        ("gpu", Gpu * MOST_GPUS),
    ]


_IN_C = {
    c_uint32: "uint32_t", c_uint64: "uint64_t", c_int32: "int32_t", c_int64: "int64_t", c_char: "char",
    c_double: "double",
}  # fmt: skip


def header() -> str:
    """The C header with the same structures, named `struct host` and so on."""
    lines = ["#include <stdint.h>"]
    lines += [f"#define {name} {globals()[name]}u" for name in _CONSTANTS]
    lines.append(f"#define NOT_AVAILABLE {NOT_AVAILABLE}ull")
    lines.append(f"enum rate {{ {', '.join(f'RATE_{rate.upper()}' for rate in RATES)}, RATES }};")
    for structure in (Link, Profile, Compute, Load, Instance, Process, Gpu, Fault, Override, Event, Host):
        fields = "".join(f"    {_field(*each)};\n" for each in structure._fields_)
        name = structure.__name__.lower()
        lines.append(f"struct {name} {{\n{fields}}};")
        lines.append(f'_Static_assert(sizeof(struct {name}) == {ctypes.sizeof(structure)}, "{name}");')
    return "\n".join(lines) + "\n"


def _field(name: str, kind: Any) -> str:
    count = ""
    if issubclass(kind, ctypes.Array):
        kind, count = kind._type_, f"[{kind._length_}]"
    return f"{_IN_C[kind] if kind in _IN_C else 'struct ' + kind.__name__.lower()} {name}{count}"
