# SPDX-License-Identifier: Apache-2.0
"""Counts of XIDs over restarts of the agent."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.exporter import xid_counts
from dovetail.agent.exporter.xid_counts import XidCounts
from dovetail.agent.health.gpu_events import DOUBLE_BIT, XID, GpuEvent
from dovetail.agent.health.xids import default

TOTAL, LAST, WINDOW = "dovetail_gpu_xids_total", "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"


def of(counts: XidCounts, name: str) -> dict[tuple[str, str], float]:
    found = (sample for sample in counts.samples() if sample.name == name)
    return {(sample.uuid, dict(sample.labels).get("xid", "")): sample.value for sample in found}


def xid(gpu: str, number: int) -> GpuEvent:
    return GpuEvent(gpu, XID, number)


def test_an_xid_counts_by_code_with_its_action(tmp_path: Path) -> None:
    counts = XidCounts(tmp_path / "xids.json", default())
    for event in (xid("GPU-1", 79), xid("GPU-1", 79), xid("GPU-1", 13), xid("GPU-2", 13)):
        counts.event(event)
    counts.event(GpuEvent("GPU-1", DOUBLE_BIT, 0))
    assert of(counts, TOTAL) == {("GPU-1", "79"): 2, ("GPU-1", "13"): 1, ("GPU-2", "13"): 1}
    assert of(counts, WINDOW) == of(counts, TOTAL)
    assert of(counts, LAST) == {("GPU-1", ""): 13, ("GPU-2", ""): 13}
    actions = {dict(s.labels)["xid"]: dict(s.labels)["action"] for s in counts.samples() if s.name == TOTAL}
    assert actions == {"79": "quarantine-node", "13": "restart-application"}


def test_an_xid_of_a_mig_instance_counts_for_the_instance(tmp_path: Path) -> None:
    counts = XidCounts(tmp_path / "xids.json", default())
    counts.event(GpuEvent("GPU-1", XID, 94, ("MIG-1", "MIG-2"), ("MIG-2",)))
    assert of(counts, TOTAL) == {("MIG-2", "94"): 1}


def test_the_window_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = XidCounts(tmp_path / "xids.json", default())
    counts.event(xid("GPU-1", 79))
    monkeypatch.setattr(xid_counts, "WINDOW_S", -1.0)
    assert of(counts, WINDOW) == {}
    assert of(counts, TOTAL) == {("GPU-1", "79"): 1}


@given(st.lists(st.tuples(st.sampled_from(["GPU-1", "GPU-2"]), st.integers(1, 200), st.booleans()), max_size=15))
@pytest.mark.slow
def test_no_count_goes_back_over_a_restart(steps: list[tuple[str, int, bool]]) -> None:
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "xids.json"
    expected: dict[tuple[str, str], float] = {}
    counts = XidCounts(path, default())
    for gpu, number, restarted in steps:
        counts.event(xid(gpu, number))
        expected[gpu, str(number)] = expected.get((gpu, str(number)), 0) + 1
        if restarted:
            counts.write()
            counts = XidCounts(path, default())
            assert of(counts, LAST) == {}
        assert of(counts, TOTAL) == expected


def test_a_damaged_file_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "xids.json").write_text("{")
    assert "XIDs may have been forgotten" in XidCounts(tmp_path / "xids.json", default()).faults[0]
