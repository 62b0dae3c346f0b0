# SPDX-License-Identifier: Apache-2.0
"""Profiling values of a DCGM host engine, as a small C library with DCGM's interface has them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dovetail.agent.exporter import dcgm
from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.dcgm import Dcgm
from dovetail.agent.exporter.readings import DeviceReader
from dovetail.agent.machine.nvml import Nvml
from tools.standin.fixture import MakeStandin

SOURCE = r"""
#include <string.h>
typedef struct { unsigned version; unsigned short field, type; int status; long long at;
                 union { long long i; double d; char text[4096]; } value; } field_value;
int down, connects; char uuid[80];
int dcgmInit(void) { return 0; }
int dcgmConnect_v2(const char *address, unsigned *wanted, void **handle) {
    connects++;
    if (down || strcmp(address, "localhost:5555") || wanted[0] != (16 | 2 << 24)) return -21;
    *handle = (void *)7;
    return 0;
}
int dcgmFieldGroupCreate(void *h, int n, unsigned short *ids, const char *name, void **group) {
    *group = (void *)9;
    return h == (void *)7 && n == 13 && ids[0] == 54 && *name ? 0 : -1;
}
int dcgmWatchFields(void *h, void *gpus, void *group, long long us, double keep, int most) {
    return gpus == (void *)0x7fffffff && group == (void *)9 && us == 1000000 && keep > 1 && !most ? 0 : -1;
}
int dcgmUpdateAllFields(void *h, int wait) { return !wait; }
int dcgmGetAllDevices(void *h, unsigned *list, int *count) { list[0] = 3; *count = 1; return 0; }
int dcgmEntityGetLatestValues(void *h, int group, int id, unsigned short *ids, unsigned n, field_value *out) {
    if (down || group != 1 || id != 3) return -21;
    for (unsigned i = 0; i < n; i++) {
        out[i].field = ids[i];
        out[i].type = 'd';
        if (ids[i] == 54) strcpy(out[i].value.text, uuid);
        else if (ids[i] == 1002) out[i].value.d = 0.75;
        else if (ids[i] == 1009) out[i].type = 'i', out[i].value.i = 1234;
        else if (ids[i] == 1003) out[i].status = -6;
        else out[i].value.d = 140737488355330.0;
    }
    return 0;
}
"""


@pytest.fixture
def library(tmp_path: Path) -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, built = tmp_path / "dcgm.c", tmp_path / "libdcgm.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", built, source], check=True)
    return ctypes.CDLL(str(built))


def knows(library: Any, uuid: str) -> None:
    ctypes.c_char.in_dll(library, "uuid")
    ctypes.memmove(ctypes.addressof(ctypes.c_char.in_dll(library, "uuid")), uuid.encode() + b"\0", len(uuid) + 1)


def set_down(library: Any, down: bool) -> None:
    ctypes.c_int.in_dll(library, "down").value = down


def test_values_are_read_and_blank_ones_left_out(library: Any) -> None:
    knows(library, "GPU-1")
    one = Dcgm("localhost:5555", lambda _: library)
    assert one.read("GPU-1") == {"DCGM_FI_PROF_SM_ACTIVE": 0.75, "DCGM_FI_PROF_PCIE_TX_BYTES": 1234.0}
    assert one.read("GPU-2") == {}
    assert "does not know this GPU" in one.why


def test_a_host_engine_that_ends_is_connected_again_later(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    knows(library, "GPU-1")
    one = Dcgm("localhost:5555", lambda _: library)
    assert one.read("GPU-1")
    set_down(library, True)
    assert one.read("GPU-1") == {}
    assert one.why == "DCGM at localhost:5555: dcgmEntityGetLatestValues failed (-21)"
    set_down(library, False)
    assert one.read("GPU-1") == {}, "not again so soon"
    monkeypatch.setattr(dcgm, "_AGAIN_S", 0.0)
    assert one.read("GPU-1")


def test_without_dcgm_there_is_a_reason() -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    one = Dcgm("localhost:5555", missing)
    assert one.read("GPU-1") == {}
    assert one.why == "DCGM is not installed: libdcgm.so.4 and libdcgm.so.3 are not found"


def test_a_gpu_without_gpm_has_the_values_of_dcgm(library: Any, standin: MakeStandin) -> None:
    machine = standin("dgx1-v100")
    knows(library, machine.description.gpus[0].uuid)
    with Nvml() as nvml:
        reading = DeviceReader(nvml, 0, default().values(), Dcgm("localhost:5555", lambda _: library)).read()
    assert reading.devices[0].values["DCGM_FI_PROF_SM_ACTIVE"] == 0.75
    assert "DCGM_FI_PROF_SM_ACTIVE" not in reading.absent
    assert "DCGM does not measure it" in reading.absent["DCGM_FI_PROF_DRAM_ACTIVE"]


def test_a_gpu_with_gpm_does_not_ask_dcgm(library: Any, standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    knows(library, machine.description.gpus[0].uuid)
    with Nvml() as nvml:
        DeviceReader(nvml, 0, default().values(), Dcgm("localhost:5555", lambda _: library)).read()
    assert ctypes.c_int.in_dll(library, "connects").value == 0
