# SPDX-License-Identifier: Apache-2.0
"""NVML's field values of one GPU, all in one call.

Rules: the array of a batch is made once and filled again at each reading. A value is None if its field failed, or if it
is one of NVML's values for "no data".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml

from dovetail.agent.machine.nvml import Nvml

_LAYOUT = struct.Struct("=IIqqIiQ")
"""nvmlFieldValue_t: id, scope, time, latency, type of the value, result, the union's eight bytes."""
assert _LAYOUT.size == 40
_DOUBLE, _UINT, _ULONG, _ULONGLONG, _LONGLONG, _INT, _USHORT = range(7)
NO_DATA_32 = 0xFFFFFFFF
_NO_DATA_64 = 0x7FFFFFFFFFFFFFF0
"""The smallest of the 64-bit values for no data: DCGM's blank values, the largest signed and unsigned numbers."""
_NO_DATA_INT = 0x7FFFFFF0


class FieldBatch:
    """The fields (id, scope) in this order."""

    def __init__(self, fields: Sequence[tuple[int, int]]) -> None:
        self._values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, (number, scope) in zip(self._values, fields, strict=True):
            value.fieldId, value.scopeId = number, scope

    def read(self, nvml: Nvml, handle: Any) -> Iterator[tuple[int, float | None]]:
        """NVML's result code and the value of each field. Raises NvmlError if the whole call fails."""
        nvml.fill(handle, self._values)
        for _, _, _, _, kind, code, bits in _LAYOUT.iter_unpack(self._values):
            yield code, None if code else _number(kind, bits)


def _number(kind: int, bits: int) -> float | None:
    if kind in (_ULONGLONG, _ULONG):
        return None if bits >= _NO_DATA_64 else bits
    if kind == _UINT:
        number = bits & 0xFFFFFFFF
        return None if number == NO_DATA_32 else number
    if kind == _DOUBLE:
        real: float = struct.unpack("=d", struct.pack("=Q", bits))[0]
        return real if math.isfinite(real) else None
    if kind == _INT:
        number = bits & 0xFFFFFFFF
        number -= (number >> 31) << 32
        return None if number >= _NO_DATA_INT or number == -0x80000000 else number
    if kind == _LONGLONG:
        number = bits - ((bits >> 63) << 64)
        return None if number >= _NO_DATA_64 or number == -(1 << 63) else number
    return bits & 0xFFFF if kind == _USHORT else None


def plausible(number: Any) -> float | None:
    """The number, None if it is none or stands for no data. For results of calls, whose width is unknown here."""
    if isinstance(number, float):
        return number if math.isfinite(number) else None
    if not isinstance(number, int) or number == NO_DATA_32 or abs(number) >= _NO_DATA_64:
        return None
    return number
