# SPDX-License-Identifier: Apache-2.0
"""Which metrics the GPUs of this machine have, and which they lack, for people: grouped by reason and by GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from dovetail.agent.exporter.accounting import NOT_VISIBLE, sees_host
from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.kinds import OwnSource
from dovetail.agent.exporter.reading import GpuReading
from dovetail.agent.exporter.readings import DeviceReader
from dovetail.agent.machine.nvml import Nvml, NvmlError


class AbsentMetrics(Struct, frozen=True):
    """The metrics `kinds` that the GPUs `gpus` (NVML's indices) lack, and why."""

    why: str
    gpus: tuple[int, ...]
    kinds: tuple[str, ...]


class MetricCoverage(Struct, frozen=True):
    """`read`: how many metrics each GPU (NVML's index) has. `absent` are the others, the largest groups first."""

    read: dict[int, int] = {}
    absent: tuple[AbsentMetrics, ...] = ()


def coverage(nvml: Nvml, proc: Path) -> MetricCoverage:
    """Read each GPU once. A GPU that does not answer lacks all. `proc` is where procfs is mounted: without the
    processes of the host the metrics of processes are absent. Raises NvmlError if NVML does not count the GPUs."""
    kinds = default().values()
    processes = [] if sees_host(proc) else [kind.name for kind in kinds if OwnSource("processes") in kind.sources]
    read: dict[int, int] = {}
    why: dict[int, dict[str, str]] = {}
    for index in range(nvml.call("nvmlDeviceGetCount")):
        try:
            reader = DeviceReader(nvml, index, kinds)
            try:
                reading = reader.read()
            finally:
                reader.close()
        except NvmlError as error:
            read[index], why[index] = 0, {"all": str(error)}
        else:
            read[index] = _count(reading)
            why[index] = {**reading.absent, **dict.fromkeys(processes, NOT_VISIBLE)}
    return MetricCoverage(read, _groups(why))


def _count(reading: GpuReading) -> int:
    gpu = reading.devices[0]
    return len(gpu.values.keys() | gpu.labelled.keys())


def _groups(why: dict[int, dict[str, str]]) -> tuple[AbsentMetrics, ...]:
    by_reason: dict[str, dict[str, list[int]]] = {}
    for index, absent in why.items():
        for kind, reason in absent.items():
            by_reason.setdefault(reason, {}).setdefault(kind, []).append(index)
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for reason, kinds in by_reason.items():
        for kind, gpus in kinds.items():
            groups.setdefault((reason, tuple(gpus)), []).append(kind)
    return _sorted(AbsentMetrics(reason, gpus, tuple(kinds)) for (reason, gpus), kinds in groups.items())


def _sorted(groups: Iterable[AbsentMetrics]) -> tuple[AbsentMetrics, ...]:
    return tuple(sorted(groups, key=lambda group: (-len(group.kinds), group.why, group.gpus)))


def shortened(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
