# SPDX-License-Identifier: Apache-2.0
"""Profiling values of a running DCGM host engine, for GPUs that NVML does not measure itself (before Hopper).

Rules
- DCGM's client library is loaded if it is installed; no host engine is started. Without either there are no values, and
  `why` states this.
- The connection is made by the first reading that needs it, and again at most every `_AGAIN_S` after a failure.
  Meanwhile other readings go on without these values.
- The host engine measures every second; a value is the mean of that second. MIG instances have none.
Calls may come from several threads. Source: DCGM API reference; `dcgm_agent.h`, `dcgm_structs.h`, `dcgm_fields.h`.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

LIBRARIES = ("libdcgm.so.4", "libdcgm.so.3")
PERIOD_S = 1.0
_AGAIN_S = 30.0
_CONNECT_MS = 2000
_KEEP_S = 10.0
_MOST_GPUS = 64
_ALL_GPUS = 0x7FFFFFFF
_GPU = 1
_UUID_FIELD = 54
_NO_DATA = 140737488355328.0
"""DCGM_FP64_BLANK: this and larger numbers stand for no data."""
_TEXT_BYTES = 256

FIELDS: Mapping[str, int] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1001,
    "DCGM_FI_PROF_SM_ACTIVE": 1002,
    "DCGM_FI_PROF_SM_OCCUPANCY": 1003,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 1004,
    "DCGM_FI_PROF_DRAM_ACTIVE": 1005,
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 1006,
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": 1007,
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 1008,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 1009,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 1010,
    "DCGM_FI_PROF_NVLINK_TX_BYTES": 1011,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": 1012,
}


class _Value(ctypes.Union):
    _fields_ = [("integer", ctypes.c_int64), ("real", ctypes.c_double), ("text", ctypes.c_char * 4096)]


class _FieldValue(ctypes.Structure):
    """dcgmFieldValue_v1. `type` is "i" or "d" for numbers."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("field", ctypes.c_ushort),
        ("type", ctypes.c_ushort),
        ("status", ctypes.c_int),
        ("at_us", ctypes.c_int64),
        ("value", _Value),
    ]


class _Connecting(ctypes.Structure):
    """dcgmConnectV2Params_v2."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("persist", ctypes.c_uint),
        ("timeout_ms", ctypes.c_uint),
        ("unix", ctypes.c_uint),
    ]


class DcgmError(Exception):
    """A call of DCGM failed; the message names it and DCGM's error number."""


class _Connection(Struct, frozen=True):
    handle: Any
    entities: Mapping[str, int]


class Dcgm:
    """The host engine at `address` (HOST:PORT). `load` loads a library by name, and raises OSError."""

    def __init__(self, address: str, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._address, self._load = address, load
        self._library: Any = None
        self._connection: _Connection | None = None
        self._connecting = threading.Lock()
        self._tried_s = float("-inf")
        self.why = "DCGM was not asked yet"
        """Why there are no values."""

    def read(self, uuid: str) -> dict[str, float]:
        """The profiling values of a GPU by name of kind; empty if there are none."""
        connection = self._connection or self._connect()
        entity = connection.entities.get(uuid) if connection is not None else None
        if connection is None:
            return {}
        if entity is None:
            self.why = f"DCGM at {self._address} does not know this GPU"
            return {}
        try:
            numbers = self._numbers(connection, entity, tuple(FIELDS.values()))
        except DcgmError as error:
            self.why, self._connection = str(error), None
            return {}
        return {name: numbers[field] for name, field in FIELDS.items() if field in numbers}

    def _connect(self) -> _Connection | None:
        if not self._connecting.acquire(blocking=False):
            return None
        try:
            if time.monotonic() - self._tried_s < _AGAIN_S:
                return None
            self._tried_s = time.monotonic()
            self._connection = self._connected()
        except (DcgmError, OSError) as error:
            self.why = str(error)
            return None
        finally:
            self._connecting.release()
        self.why = "DCGM does not measure it"
        return self._connection

    def _connected(self) -> _Connection:
        """Raises DcgmError, and OSError if DCGM is not installed."""
        if self._library is None:
            self._library = self._loaded()
            self._call("dcgmInit")
        handle, group = ctypes.c_void_p(), ctypes.c_void_p()
        wanted = _Connecting(ctypes.sizeof(_Connecting) | 2 << 24, 0, _CONNECT_MS, 0)
        self._call("dcgmConnect_v2", self._address.encode(), ctypes.byref(wanted), ctypes.byref(handle))
        fields = (_UUID_FIELD, *FIELDS.values())
        ids = (ctypes.c_ushort * len(fields))(*fields)
        name = f"dovetail-{time.monotonic_ns()}".encode()
        self._call("dcgmFieldGroupCreate", handle, len(fields), ids, name, ctypes.byref(group))
        every_us, all_gpus = ctypes.c_longlong(int(PERIOD_S * 1e6)), ctypes.c_void_p(_ALL_GPUS)
        self._call("dcgmWatchFields", handle, all_gpus, group, every_us, ctypes.c_double(_KEEP_S), 0)
        self._call("dcgmUpdateAllFields", handle, 1)
        listed, count = (ctypes.c_uint * _MOST_GPUS)(), ctypes.c_int()
        self._call("dcgmGetAllDevices", handle, listed, ctypes.byref(count))
        entities = {self._uuid(handle, entity): int(entity) for entity in listed[: count.value]}
        return _Connection(handle, entities)

    def _loaded(self) -> Any:
        for name in LIBRARIES:
            try:
                return self._load(name)
            except OSError:
                continue
        raise OSError(f"DCGM is not installed: {' and '.join(LIBRARIES)} are not found")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DcgmError(f"DCGM at {self._address}: {name} failed ({ctypes.c_int(code).value})")

    def _latest(self, handle: Any, entity: int, fields: tuple[int, ...]) -> Any:
        values = (_FieldValue * len(fields))()
        ids = (ctypes.c_ushort * len(fields))(*fields)
        self._call("dcgmEntityGetLatestValues", handle, _GPU, entity, ids, len(fields), values)
        return values

    def _uuid(self, handle: Any, entity: int) -> str:
        (value,) = self._latest(handle, entity, (_UUID_FIELD,))
        text: bytes = value.value.text
        return text[:_TEXT_BYTES].decode(errors="replace")

    def _numbers(self, connection: _Connection, entity: int, fields: tuple[int, ...]) -> dict[int, float]:
        found = {}
        for value in self._latest(connection.handle, entity, fields):
            number = value.value.integer if value.type == ord("i") else value.value.real
            if not value.status and math.isfinite(number) and number < _NO_DATA:
                found[int(value.field)] = float(number)
        return found
