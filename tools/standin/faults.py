# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a stand-in machine: XIDs, ECC and link errors, failing, slow and hanging calls, wrong values."""

from __future__ import annotations

import math
import struct

import pynvml

from tools.standin import layout, library
from tools.standin.description import HostError
from tools.standin.mapped import Mapped, or_none

# The values of NVML's union, by their types.
_BITS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: struct.Struct("<d"), pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: struct.Struct("<I"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: struct.Struct("<Q"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: struct.Struct("<Q"),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: struct.Struct("<q"),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: struct.Struct("<i"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: struct.Struct("<H"),
}  # fmt: skip


class Faults(Mapped):
    def xid(self, gpu: int, code: int, gi: int | None = None, ci: int | None = None) -> None:
        """Report an XID for the whole GPU or one of its MIG instances."""
        self._post_event(gpu, pynvml.nvmlEventTypeXidCriticalError, code, gi, ci)

    def ecc(
        self,
        gpu: int,
        corrected: int = 0,
        uncorrected: int = 0,
        location: int = pynvml.NVML_MEMORY_LOCATION_DRAM,
        gi: int | None = None,
    ) -> None:
        """Add ECC errors and report their events. `location` is NVML's number; `gi` also counts uncorrected ones for a
        GPU instance."""
        with self._changing() as state:
            for error, count in enumerate((corrected, uncorrected)):
                for counter in range(2):
                    state.gpu[gpu].ecc[(error * 2 + counter) * layout.ECC_LOCATIONS + location] += count
            if gi is not None:
                state.gpu[gpu].instance[gi].sram_errors += uncorrected
        if corrected:
            self._post_event(gpu, pynvml.nvmlEventTypeSingleBitEccError, 0)
        if uncorrected:
            self._post_event(gpu, pynvml.nvmlEventTypeDoubleBitEccError, 0)

    def link_errors(
        self,
        gpu: int,
        number: int,
        *,
        replay: int = 0,
        recovery: int = 0,
        crc_flit: int = 0,
        crc_data: int = 0,
        ecc_data: int = 0,
    ) -> None:
        """Add errors of an NVLink of the GPU."""
        with self._changing() as state:
            for counter, count in enumerate((replay, recovery, crc_flit, crc_data, ecc_data)):
                state.gpu[gpu].link_error[number * layout.LINK_COUNTERS + counter] += count

    def fail(self, call: str, code: int, gpu: int | None = None, times: int = 0) -> None:
        """Let `call` fail with NVML's error `code` for one GPU or all, `times` times or (0) until clear()."""
        self._fault(call, gpu, code=code, times=times)

    def slow(self, call: str, ms: int, gpu: int | None = None, times: int = 0) -> None:
        """Delay `call` by `ms`."""
        self._fault(call, gpu, ms=ms, times=times)

    def hang(self, call: str, gpu: int | None = None) -> None:
        """Let `call` wait until clear()."""
        self._fault(call, gpu, ms=layout.NONE)

    def field(
        self,
        gpu: int,
        number: int,
        value: float = 0,
        *,
        code: int = 0,
        value_type: int = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
        scope: int | None = None,
    ) -> None:
        """Let nvmlDeviceGetFieldValues return this value of NVML's type, or fail with `code`, for the field `number`
        until clear()."""
        bits = _BITS[value_type].pack(value if value_type == pynvml.NVML_VALUE_TYPE_DOUBLE else int(value))
        self._override(layout.FIELD, gpu, number, bits, code, scope, value_type)

    def metric(self, gpu: int, number: int, value: float = math.nan, *, code: int = 0, gi: int | None = None) -> None:
        """Let nvmlGpmMetricsGet return this value, or fail with `code`, for the metric `number` until clear()."""
        self._override(layout.METRIC, gpu, number, struct.pack("<d", value), code, gi)

    def _override(
        self, space: int, gpu: int, number: int, bits: bytes, code: int, scope: int | None, value_type: int = 0
    ) -> None:
        with self._changing() as state:
            same = (each for each in state.override if each.used and _same(each, space, gpu, number, scope))
            free = (each for each in state.override if not each.used)
            entry = next(same, None) or next(free, None)
            if entry is None:
                raise HostError(f"more than {layout.MOST_OVERRIDES} overrides: clear() some")
            entry.space, entry.gpu, entry.id, entry.scope = space, gpu, number, or_none(scope)
            entry.type, entry.code, entry.bits = value_type, code, int.from_bytes(bits.ljust(8, b"\0"), "little")
            entry.used = 1

    def _post_event(self, gpu: int, kind: int, data: int, gi: int | None = None, ci: int | None = None) -> None:
        with self._changing() as state:
            event = state.event[state.events_reported % layout.EVENTS]
            event.gpu, event.type, event.data, event.gi, event.ci = gpu, kind, data, or_none(gi), or_none(ci)
            state.events_reported = (state.events_reported + 1) % 2**32

    def _fault(self, call: str, gpu: int | None, code: int = 0, ms: int = 0, times: int = 0) -> None:
        with self._changing() as state:
            for symbol in library.symbols_of(call):
                fault = next((fault for fault in state.fault if not fault.used), None)
                if fault is None:
                    raise HostError(f"more than {layout.MOST_FAULTS} faults: clear() some")
                fault.call, fault.code, fault.ms, fault.left = symbol.encode(), code, ms, times
                fault.gpu = or_none(gpu)
                fault.used = 1


def _same(entry: layout.Override, space: int, gpu: int, number: int, scope: int | None) -> bool:
    return (entry.space, entry.gpu, entry.id, entry.scope) == (space, gpu, number, or_none(scope))
