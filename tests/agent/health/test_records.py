# SPDX-License-Identifier: Apache-2.0
"""The life of a remembered event: only the steps of the table, and no device is offered before its exit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.health.health import RECOVERY, Exit, Finding, GpuFault, HealthLedger, HealthReading
from dovetail.agent.health.records import TRANSITIONS, Happening, HealthMemory, HealthRecord, Mark, Phase
from dovetail.agent.health.xids import Action
from tests.core.workloads.test_lifecycle import test_each_state_is_reached_and_leads_to_an_end as follow

CLEAN_MS = 100
GPUS = ("GPU-0", "GPU-1")
CODES = {"xid-94": Action.RESTART_APPLICATION, "xid-95": Action.QUARANTINE_GPU, "xid-79": Action.QUARANTINE_NODE}


def test_each_phase_is_reached_and_ends() -> None:
    follow(TRANSITIONS, None, {Phase.ENDED})


def phases(ledger: HealthLedger) -> dict[tuple[str, str], Phase]:
    return {(one.hit, one.code): one.phase for one in ledger.memory.records}


ALLOWED: dict[str, set[Happening]] = {
    "event": {Happening.ERROR, Happening.FAILED},
    "check": {Happening.REMEDIED, Happening.RELAPSED, Happening.FAILED, Happening.PASSED, Happening.RESTARTED},
    "held": {Happening.RESTARTED},
    "test": {Happening.FAILED, Happening.PASSED},
    "boot": {Happening.REMEDIED, Happening.RESTARTED},
    "drop": {Happening.DROPPED},
    "found": set(),
}
STEPS = st.tuples(
    st.sampled_from([*ALLOWED]),
    st.sampled_from(GPUS),
    st.sampled_from([*CODES]),
    st.sampled_from(["well", "asks", "reset"]),
    st.integers(0, 150),
    st.booleans(),
)


def test_a_fault_that_lasts_changes_a_record_on_probation_once_at_each_end() -> None:
    """Else the file and the GPUNode would be written at every check."""
    ledger = HealthLedger(HealthMemory(), "boot", 0, Exit(CLEAN_MS))
    ledger.checked([HealthReading("GPU-0", None, Mark(1))], 0)
    ledger.event(HealthRecord("GPU-0", "GPU-0", "xid-95", "", 1, Action.QUARANTINE_GPU, ("GPU-0",)))
    ledger.checked([HealthReading("GPU-0", None, Mark(2))], 10)
    lost = [HealthReading("GPU-0", GpuFault("lost", "gone"), Mark(2))]
    ledger.checked(lost, 20)
    first = ledger.unhealthy
    assert {one.next for one in first if one.code == "xid-95"} == {
        "the clean period begins when the other faults of the GPU have ended"
    }
    for now_ms in (30, 200, 400):
        ledger.checked(lost, now_ms)
        assert ledger.unhealthy == first
    well = [HealthReading("GPU-0", None, Mark(2))]
    ledger.found((Finding("GPU-0", "throttling", Action.NOTE, "slow", 400),))
    ledger.checked(well, 500)
    ledger.checked(well, 500 + CLEAN_MS - 1)
    assert len(ledger.unhealthy) == 1
    ledger.checked(well, 500 + CLEAN_MS)
    assert ledger.unhealthy == ()


def test_a_finding_that_lasts_is_reported_once_and_a_new_count_of_gpus_is_a_new_finding() -> None:
    ledger = HealthLedger(HealthMemory(), "boot", 0, Exit(CLEAN_MS))

    def messages(*found: tuple[str, str, int]) -> list[tuple[str, int]]:
        ledger.found(tuple(Finding(uuid, "code", Action.NOTE, message, now_ms) for uuid, message, now_ms in found))
        return [(one.message, one.since_ms) for one in ledger.findings]

    assert messages(("GPU-0", "6 %", 1), ("", "9 fewer", 1)) == [("6 %", 1), ("9 fewer", 1)]
    assert messages(("GPU-0", "7 %", 2), ("", "9 fewer", 2)) == [("6 %", 1), ("9 fewer", 1)]
    assert messages(("GPU-0", "8 %", 3), ("", "1 fewer", 3)) == [("6 %", 1), ("1 fewer", 3)]


@given(st.lists(STEPS, max_size=30), st.booleans())
@pytest.mark.slow
def test_a_record_makes_only_the_steps_of_the_table(steps: list[Any], tests: bool) -> None:
    """And passes only after a clean period since its last error, without a finding, and after the test."""
    leave = Exit(CLEAN_MS, tests)
    now_ms, driver, boot = 1000, 1, 1
    ledger = HealthLedger(HealthMemory(), "boot-1", now_ms, leave)
    errors: dict[str, int] = {}
    passed: dict[str, int] = {}
    finding = False
    for kind, gpu, code, reading, after_ms, flag in steps:
        now_ms += after_ms
        before, unhealthy = phases(ledger), {(one.uuid, one.code) for one in ledger.unhealthy}
        if kind == "event":
            errors[gpu] = now_ms
            ledger.event(HealthRecord(gpu, gpu, code, code, now_ms, CODES[code], (gpu,)))
        elif kind == "check":
            driver += reading == "reset"
            fault = GpuFault(RECOVERY, "reset it") if reading == "asks" else None
            ledger.checked([HealthReading(one, fault if one == gpu else None, Mark(driver)) for one in GPUS], now_ms)
        elif kind == "held":
            ledger.held([gpu] if flag else [])
        elif kind == "test":
            due = ledger.to_test(now_ms)
            assert due is None or tests
            if due is not None:
                if flag:
                    passed[due] = now_ms
                ledger.tested(due, "" if flag else "it fails", now_ms)
        elif kind == "boot":
            boot += 1
            ledger, finding = HealthLedger(ledger.memory, f"boot-{boot}", now_ms, leave), False
        elif kind == "drop":
            ledger.only(lambda record, code=code: record.code != code)
        else:
            finding = flag
            ledger.found((Finding("GPU-0", "row-remap", Action.QUARANTINE_GPU, "a row", now_ms),) if flag else ())
        now = phases(ledger)
        for key in before.keys() | now.keys():
            row, to = TRANSITIONS[before.get(key)], now.get(key, Phase.ENDED)
            if key not in before or to is not before[key]:
                assert any(row.get(happening) is to for happening in ALLOWED[kind])
        for hit, ended in before.keys() - now.keys():
            if kind in ("check", "test") and CODES[ended] >= Action.QUARANTINE_GPU:
                assert (hit, ended) in unhealthy and before[hit, ended] is Phase.PROBATION
                assert now_ms - errors[hit] >= CLEAN_MS
                assert not (finding and hit == "GPU-0")
                assert not tests or passed[hit] >= errors[hit] + CLEAN_MS
        assert {(one.uuid, one.code) for one in ledger.unhealthy} >= now.keys()
