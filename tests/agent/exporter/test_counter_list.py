# SPDX-License-Identifier: Apache-2.0
"""Counter lists in dcgm-exporter's format, good and bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.agent.exporter.counter_list import CounterListError, default, read_counter_list

GOOD = """\
# Format: FIELD, type, help
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).

DCGM_FI_DEV_XID_ERRORS,            gauge,   Value of the last XID error encountered, or 0.
DCGM_FI_DRIVER_VERSION, label, Driver Version
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3, counter, one link
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "counters.csv"
    path.write_text(text)
    return path


def test_a_list_chooses_kinds_and_their_words(tmp_path: Path) -> None:
    chosen = read_counter_list(written(tmp_path, GOOD))
    theirs = [name for name in chosen if name.startswith("DCGM_")]
    assert theirs == [
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_DRIVER_VERSION",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3",
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
    ]
    assert chosen["DCGM_FI_DEV_XID_ERRORS"].help == "Value of the last XID error encountered, or 0."
    assert chosen["DCGM_FI_DRIVER_VERSION"].type == "label"
    assert "dovetail_gpu_allocated_share" in chosen


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "\nDCGM_FI_DEV_GPU_TMP, gauge, x",
            "line 2: unknown field DCGM_FI_DEV_GPU_TMP; the nearest is DCGM_FI_DEV_GPU_TEMP",
        ),
        ("utilization, gauge, x\n", "line 1: unknown field utilization; the nearest is "),
        ("DCGM_FI_DEV_GPU_TEMP, gauge\n", "line 1: `DCGM_FI_DEV_GPU_TEMP, gauge` is not FIELD, TYPE, HELP"),
        ("DCGM_FI_DEV_GPU_TEMP, timer, x\n", "line 1: `timer` is not a type"),
        ("DCGM_FI_DRIVER_VERSION, gauge, x\n", "line 1: DCGM_FI_DRIVER_VERSION is a label, and cannot be a gauge"),
        ("# nothing\n", "names no field"),
    ],
)
def test_a_bad_list_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CounterListError) as caught:
        read_counter_list(path)
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "counters.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(CounterListError, match="cannot read"):
        read_counter_list(tmp_path / "counters.csv")


def test_without_a_list_all_values_and_the_driver_are_exported() -> None:
    labels = [name for name, kind in default().items() if kind.type == "label"]
    assert labels == ["DCGM_FI_DRIVER_VERSION"]
