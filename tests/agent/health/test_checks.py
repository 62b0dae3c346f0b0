# SPDX-License-Identifier: Apache-2.0
"""The checks of values: each finds its fault, at its limit and not before, and only while it lasts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.exporter.kinds import table
from dovetail.agent.exporter.reading import DeviceReading, GpuReading, Process
from dovetail.agent.health.checks import CHECKS, KINDS, Checks
from dovetail.agent.health.health import Finding
from dovetail.agent.health.xids import Action
from tests.docs.pages import page

STEP_S = 15.0
DBE, PENDING, FAILED = (
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
)  # fmt: skip
REPLAY, FABRIC, UTIL = (
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "dovetail_gpu_fabric_ready", "DCGM_FI_DEV_GPU_UTIL",
)  # fmt: skip
THROTTLED = {
    "hw_thermal": "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
    "hw_power_brake": "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
    "power": "DCGM_FI_DEV_POWER_VIOLATION",
}


def reading(at_s: float, processes: int = 0, **values: float) -> GpuReading:
    device = DeviceReading("GPU-0", 0, "", "", 0, "", None, None, "", dict(values))
    return GpuReading((device,), tuple(Process(pid, "GPU-0", 1, 1) for pid in range(processes)), at_s, {})


class Bench:
    def __init__(self, expected: int = 0) -> None:
        self.checks = Checks(expected)
        self.now_s = 1000.0

    def look(self, processes: int = 0, sees: bool = True, **values: float) -> set[str]:
        """The codes that are found at the next reading."""
        self.now_s += STEP_S
        one = reading(self.now_s, processes, **values)
        return {found.code for found in self.checks.look([one], 1, int(self.now_s * 1000), sees_processes=sees)}

    def steps(self, seconds: float) -> Iterator[int]:
        yield from range(int(seconds / STEP_S))


def test_uncorrected_errors_that_were_there_before_are_no_finding_and_new_ones_are_for_an_hour() -> None:
    bench = Bench()
    assert bench.look(**{DBE: 5}) == set()
    assert bench.look(**{DBE: 6}) == {"ecc-uncorrected"}
    assert all(bench.look(**{DBE: 6}) for _ in bench.steps(3500))
    for _ in bench.steps(200):
        last = bench.look(**{DBE: 6})
    assert last == set()


def test_a_counter_that_starts_again_is_no_error() -> None:
    bench = Bench()
    bench.look(**{DBE: 5})
    assert bench.look(**{DBE: 0}) == set()
    assert bench.look(**{DBE: 1}) == {"ecc-uncorrected"}


def test_row_remapping() -> None:
    bench = Bench()
    assert bench.look(**{PENDING: 0, FAILED: 0}) == set()
    assert bench.look(**{PENDING: 1, FAILED: 0}) == {"row-remap-pending"}
    assert bench.look(**{PENDING: 0, FAILED: 1}) == {"row-remap-failed"}
    assert bench.look(**{PENDING: 0, FAILED: 0}) == set()
    found = Checks().look([reading(1, **{FAILED: 1})], 1, 5000)
    (message,) = (one.message for one in found)
    assert found == (Finding("GPU-0", "row-remap-failed", Action.QUARANTINE_GPU, message, 5000),)


@pytest.mark.parametrize(("part", "finds"), [(0.04, False), (0.06, True)])
@pytest.mark.parametrize("reason", ["hw_thermal", "hw_power_brake", "power"])
def test_throttling_by_the_hardware_for_a_part_of_15_minutes(part: float, finds: bool, reason: str) -> None:
    bench, total = Bench(), 0.0
    for _ in bench.steps(700):
        total += part * STEP_S * 1e9
        assert bench.look(**{THROTTLED[reason]: total}) == set()
    for _ in bench.steps(400):
        total += part * STEP_S * 1e9
        found = bench.look(**{THROTTLED[reason]: total})
    assert found == ({"throttling"} if finds and reason != "power" else set())
    for _ in bench.steps(1200):
        found = bench.look(**{THROTTLED[reason]: total})
    assert found == set()


def test_nvlink_errors_that_rise() -> None:
    bench, total = Bench(), 0.0
    for _ in bench.steps(1800):
        total += 0.1
        assert bench.look(**{REPLAY: total}) == set(), "fewer than ten in 15 minutes"
    for _ in bench.steps(900):
        total += 1
        found = bench.look(**{REPLAY: total})
    assert found == {"nvlink-errors"}
    for _ in bench.steps(2000):
        total += 1
        found = bench.look(**{REPLAY: total})
    assert bench.look(**{REPLAY: total}) == set(), "many, but not more than before"


def test_a_fabric_that_is_not_ready_for_long() -> None:
    bench = Bench()
    assert not any(bench.look(**{FABRIC: 0}) for _ in bench.steps(225))
    for _ in bench.steps(150):
        found = bench.look(**{FABRIC: 0})
    assert found == {"fabric-not-ready"}
    assert bench.look(**{FABRIC: 1}) == set()
    assert bench.look(**{FABRIC: 0}) == set()
    assert bench.look() == set()


@pytest.mark.parametrize(
    ("util", "processes", "sees", "finds"),
    [(90, 0, True, True), (49, 0, True, False), (90, 1, True, False), (90, 0, False, False)],
)
def test_a_busy_gpu_without_a_process(util: float, processes: int, sees: bool, finds: bool) -> None:
    bench = Bench()
    for _ in bench.steps(700):
        found = bench.look(processes, sees, **{UTIL: util})
    assert found == ({"busy-without-process"} if finds else set())


def test_gpus_that_are_missing_are_a_finding_about_the_node() -> None:
    assert Checks(8).look([], 8, 1) == () and Checks(0).look([], 0, 1) == ()
    assert Checks(8).look([], None, 1) == (), "NVML has not answered yet"
    (found,) = Checks(8).look([], 6, 7)
    assert (found.uuid, found.code, found.since_ms) == ("", "gpus-missing", 7)
    assert found.message == "2 GPUs fewer than expected are there"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=40))
@pytest.mark.slow
def test_history_stays_bounded_and_no_reading_is_too_odd(steps: list[tuple[int, int]]) -> None:
    """Readings may repeat, and counters go back."""
    checks, now_s = Checks(), 0.0
    for after_s, value in steps * 20:
        now_s += after_s
        one = reading(now_s, value % 2, **{DBE: value, REPLAY: value, FABRIC: value % 2, UTIL: 99})
        checks.look([one], 1, 1)
    for (_, code), history in checks._histories.items():
        window_s = next(check.window_s for check in CHECKS if check.code == code)
        times = [read_s for read_s, _, _ in history._values]
        assert times == sorted(set(times))
        assert len([one for one in times if one < now_s - 2 * window_s - 15]) <= 1


def test_the_checks_read_kinds_of_the_exporter_and_the_page_has_them() -> None:
    assert table().keys() >= KINDS
    rows = page("docs/reference/health.md").section("Checks").rows("check")
    written = [(r.code[0][0], *(cell.split()[0] for cell in r.cells[1:3]), r.code[3][0]) for r in rows]
    assert written == [(c.code, f"{c.limit:g}", f"{c.window_s:g}", c.action.word) for c in CHECKS]
