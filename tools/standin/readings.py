# SPDX-License-Identifier: Apache-2.0
"""What a stand-in machine does: loads, processes, readings, and the time in which its counters grow."""

from __future__ import annotations

import math
from typing import Any, TypedDict, Unpack

import pynvml

from tools.standin import layout
from tools.standin.description import Description, HostError
from tools.standin.mapped import Mapped, or_none
from tools.standin.state import reasons_of, restart, run, set_power


class Load(TypedDict, total=False):
    """Activities are ratios from 0 to 1, and 0 unless named, but `graphics` is `sm`, `occupancy` half of it, `hmma` is
    `tensor`. `..._mbps` are MiB/s, as in NVML's GPM. What follows from these unless named are the last three."""

    sm: float
    graphics: float
    occupancy: float
    tensor: float
    dfma: float
    hmma: float
    imma: float
    integer: float
    dram: float
    fp64: float
    fp32: float
    fp16: float
    decoder: float
    encoder: float
    jpeg: float
    ofa: float
    pcie_tx_mbps: float
    pcie_rx_mbps: float
    nvlink_tx_mbps: float
    nvlink_rx_mbps: float
    c2c_tx_mbps: float
    c2c_rx_mbps: float
    power_w: float
    clock_mhz: int
    temperature_c: int


_RATIOS = layout.RATES.index("ofa") + 1


class Readings(Mapped):
    description: Description

    def set(self, gpu: int, **fields: int) -> None:
        """Set fields of layout.Gpu: temperature_c, power_mw, utilization, used_mib, clock_reasons, rows_pending, ...

        What grows by itself first grows to this moment, so that a new power or reason counts from now on."""
        with self._changing() as state:
            self._settle(gpu)
            for name, value in fields.items():
                getattr(state.gpu[gpu], name)  # raises for an unknown field
                setattr(state.gpu[gpu], name, value)

    def load(self, gpu: int, *, gi: int | None = None, **load: Unpack[Load]) -> None:
        """Set what runs on the GPU, or on one of its GPU instances, from now on; load(gpu) alone makes it idle.

        Of the GPU follow its utilization (`graphics`), memory utilization (`dram`), power, clocks, temperature and
        clock event reasons. Energy, bytes and the integrals of GPM grow at these rates. The load of a divided GPU is
        that of its instances. Raises ValueError for a number out of range, HostError for an instance that is not there
        or not named."""
        rates = _rates(load)
        with self._changing() as state:
            self._settle(gpu)
            mine = state.gpu[gpu]
            for part in _loaded(mine, gi, any(rates)):
                part.load.rate[:] = rates
            self._aggregate(gpu)
            run(mine, dict(zip(layout.RATES, mine.load.rate, strict=True)))
            if "power_w" in load:
                set_power(mine, round(load["power_w"] * 1000))
            mine.clock_mhz = load.get("clock_mhz", mine.clock_mhz)
            mine.temperature_c = load.get("temperature_c", mine.temperature_c)
            mine.clock_reasons = reasons_of(mine)

    def link(self, gpu: int, number: int, up: bool) -> None:
        """Set an NVLink of the GPU and its remote end up or down."""
        with self._changing() as state:
            for each in self.description.gpus:
                self._settle(each.index)
            mine = state.gpu[gpu].link[number]
            mine.up = up
            ends = [one for one in range(state.gpu_count) if _address(state.gpu[one]) == _address(mine)]
            back = [link for one in ends for link in state.gpu[one].link if _address(link) == _address(state.gpu[gpu])]
            ours = [link for link in state.gpu[gpu].link if link.wired and _address(link) == _address(mine)]
            for one, other in zip(ours, back, strict=False):
                other.up = one.up

    def process(
        self,
        gpu: int,
        pid: int = 4242,
        memory_mib: int | None = 0,
        sm: int = 0,
        gi: int | None = None,
        ci: int | None = None,
        *,
        mode: int = pynvml.NVML_PROCESS_MODE_COMPUTE,
        memory: int = 0,
        encoder: int = 0,
        decoder: int = 0,
    ) -> None:
        """Add a process that uses the GPU or a MIG instance, which cannot be reset or destroyed until release(pid); or
        change the one with this pid there.

        Its utilizations (`sm`, `memory`, `encoder`, `decoder`) are in percent, and those of the GPU do not follow.
        `mode` is one of NVML_PROCESS_MODE_*. With None NVML does not know its memory."""
        with self._changing() as state:
            processes = state.gpu[gpu].process
            here = (gi, ci)
            mine = (each for each in processes if each.used and each.pid == pid and _instance(each) == here)
            seat = next(mine, None) or next(each for each in processes if not each.used)
            seat.pid, seat.mode, seat.gi, seat.ci = pid, mode, or_none(gi), or_none(ci)
            seat.memory_mib = layout.NOT_AVAILABLE if memory_mib is None else memory_mib
            seat.sm, seat.memory, seat.encoder, seat.decoder = sm, memory, encoder, decoder
            seat.used = 1

    def release(self, pid: int = 4242) -> None:
        """End the process."""
        with self._changing() as state:
            for gpu in state.gpu:
                for process in gpu.process:
                    if process.pid == pid:
                        process.used = 0

    # Time, on which counters depend and waits do not

    def stop_clock(self) -> None:
        """Let counters grow by advance() alone from now on."""
        with self._changing() as state:
            if not state.clock_stopped:
                state.clock_ns, state.clock_stopped = self._clock(self._address), 1

    def advance(self, seconds: float) -> None:
        """Let counters grow as in this time."""
        with self._changing() as state:
            state.clock_ns += round(seconds * 1e9)

    def reload(self) -> None:
        """Load the driver again: processes end, all counters but those in the InfoROM start again, and a process that
        has the library open gets errors from it until it opens it again."""
        with self._changing() as state:
            state.loads += 1
            for gpu in self.description.gpus:
                self._settle(gpu.index)
                restart(state.gpu[gpu.index])


def _rates(load: Load) -> list[float]:
    """The rates in the order of layout.RATES."""
    if unknown := load.keys() - Load.__annotations__.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: no part of a load")
    sm, tensor = load.get("sm", 0.0), load.get("tensor", 0.0)
    named: dict[str, Any] = {"graphics": sm, "occupancy": sm / 2, "hmma": tensor, **load}
    rates = [float(named.get(name, named.get(f"{name}_mbps", 0.0))) for name in layout.RATES]
    for number, rate in enumerate(rates):
        if not 0 <= rate <= (1 if number < _RATIOS else math.inf):
            raise ValueError(f"{layout.RATES[number]}: {rate} is neither a ratio nor MiB/s")
    return rates


def _loaded(gpu: layout.Gpu, gi: int | None, busy: bool) -> list[Any]:
    """The parts of the GPU that get the load: the GPU, one instance, or all instances that become idle."""
    instances = [instance for instance in gpu.instance if instance.used]
    if gi is not None and not gpu.instance[gi].used:
        raise HostError(f"{gpu.uuid.decode()} has no instance {gi}")
    if gi is None and gpu.mig_mode and busy:
        raise HostError(f"{gpu.uuid.decode()} is divided: a load is on one of its instances")
    return [gpu.instance[gi]] if gi is not None else [gpu, *instances]


def _address(thing: Any) -> tuple[int, int, int]:
    return thing.domain, thing.bus, thing.device


def _instance(process: layout.Process) -> tuple[int | None, int | None]:
    gi, ci = (None if number == layout.NONE else number for number in (process.gi, process.ci))
    return gi, ci
