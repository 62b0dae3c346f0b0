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
from ctypes import Structure, c_char, c_int32, c_uint32, c_uint64
from typing import Any

MOST_GPUS, MOST_LINKS, MOST_PROFILES, MOST_INSTANCES, MOST_COMPUTE = 16, 36, 18, 15, 8
MOST_PROCESSES, MOST_FAULTS, EVENTS = 64, 64, 256
NONE = 0xFFFFFFFF
MAGIC = 0x444F5645
_CONSTANTS = (
    "MOST_GPUS", "MOST_LINKS", "MOST_PROFILES", "MOST_INSTANCES", "MOST_COMPUTE", "MOST_PROCESSES", "MOST_FAULTS",
    "EVENTS", "NONE", "MAGIC",
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


class Instance(Structure):
    """A GPU instance. Its id is its index. `profile` is an index into the profiles of the GPU."""

    _fields_ = [("used", c_uint32), ("profile", c_uint32), ("start", c_uint32), ("compute", Compute * MOST_COMPUTE)]


class Process(Structure):
    """A process that uses a GPU or a part of it. `gi` and `ci` are NONE for the whole GPU."""

    _fields_ = [
        *_words("used pid mps gi ci _"),
        ("memory_mib", c_uint64),
    ]


class Gpu(Structure):
    """One GPU. `lost`: it has fallen off the bus. `gone`: nvmlInit no longer finds it."""

    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("chassis", c_char * 16),
        *_words(
            "minor brand architecture cc_major cc_minor module domain bus device device_id subsystem_id "
            "addressing has_c2c sm pcie_gen pcie_width sm_clock_mhz memory_clock_mhz power_limit_mw host_id "
            "slot tray link_count link_version fabric_state fabric_clique fabric_error fabric_health "
            "mig_capable mode_change_resets placements_need_mode memory_slices compute_slices"
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
            "lost gone mig_mode mig_pending compute_mode persistence temperature_c power_mw utilization "
            "memory_utilization rows_corrected rows_uncorrected rows_pending rows_failed"
        ),
        ("clock_reasons", c_uint64),
        ("energy_mj", c_uint64),
        ("used_mib", c_uint64),
        ("ecc", c_uint64 * 4),
        ("link_errors", c_uint64 * MOST_LINKS),
        ("pcie_replays", c_uint64),
        ("instance", Instance * MOST_INSTANCES),
        ("process", Process * MOST_PROCESSES),
    ]


class Fault(Structure):
    """A fault: `call` waits `ms` and, with a `code`, then fails on GPU `gpu` (NONE: all). `left` is the number of
    remaining faults; 0 means unlimited."""

    _fields_ = [("call", c_char * 64), *_words("used gpu code ms left _")]


class Event(Structure):
    _fields_ = [*_words("gpu gi ci _"), ("type", c_uint64), ("data", c_uint64)]


class Host(Structure):
    """The file. `events_told` counts all reported events; the last EVENTS of them are stored. `changes` is the futex
    word of waiters."""

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
        ("events_told", c_uint32),
        ("_", c_uint32),
        ("event", Event * EVENTS),
        ("fault", Fault * MOST_FAULTS),
        ("gpu", Gpu * MOST_GPUS),
    ]


_IN_C = {c_uint32: "uint32_t", c_uint64: "uint64_t", c_int32: "int32_t", c_char: "char"}


def header() -> str:
    """The C header with the same structures, named `struct host` and so on."""
    lines = ["#include <stdint.h>"]
    lines += [f"#define {name} {globals()[name]}u" for name in _CONSTANTS]
    for structure in (Link, Profile, Compute, Instance, Process, Gpu, Fault, Event, Host):
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
