# SPDX-License-Identifier: Apache-2.0
"""Counters over reloads of the driver and restarts of the agent."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.exporter.counters import Counters
from dovetail.agent.exporter.reading import DeviceReading

ENERGY, TEMPERATURE = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_TEMP"
POWER = "DCGM_FI_DEV_POWER_VIOLATION"


def device(**values: float) -> DeviceReading:
    return DeviceReading("GPU-1", 0, "", "", 0, "", None, None, "", values)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), max_size=20))
def test_no_counter_ever_goes_back(steps: list[tuple[int, bool]]) -> None:
    """Oracle: the sum of what the driver counted after each of its starts."""
    with tempfile.TemporaryDirectory() as folder:
        counters = Counters(Path(folder) / "counters.json")
        total = raw = 0
        for grown, reloaded in steps:
            if reloaded and grown < raw:
                raw = 0
            raw, total = raw + grown, total + grown
            one = device(**{ENERGY: raw, TEMPERATURE: 30.0})
            counters.apply(one)
            assert one.values == {ENERGY: total, TEMPERATURE: 30.0}
            if reloaded:
                counters.write(now=True)
                counters = Counters(Path(folder) / "counters.json")


def test_throttling_is_in_seconds(tmp_path: Path) -> None:
    one = device(**{POWER: 2_500_000_000})
    Counters(tmp_path / "counters.json").apply(one)
    assert one.labelled == {"dovetail_gpu_throttle_seconds_total": (("reason", "power", 2.5),)}


def test_a_damaged_file_is_a_fault_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "counters.json"
    path.write_text("{")
    counters = Counters(path)
    assert "set aside as counters.json.damaged" in counters.faults[0]
    counters.apply(device(**{ENERGY: 5}))
    counters.write(now=True)
    assert Counters(path).faults == ()


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counters = Counters(tmp_path / "file/counters.json")
    counters.apply(device(**{ENERGY: 5}))
    counters.write(now=True)
    assert any("counters may go back" in fault for fault in counters.faults)
