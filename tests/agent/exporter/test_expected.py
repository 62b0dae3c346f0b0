# SPDX-License-Identifier: Apache-2.0
"""The number of GPUs that a node should have outlives the agent."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.exporter.expected import AGAIN_S, ExpectedGpus


@given(st.lists(st.lists(st.integers(0, 16), max_size=5), max_size=5))
@pytest.mark.slow
def test_it_is_the_most_that_was_seen_over_all_restarts(processes: list[list[int]]) -> None:
    with TemporaryDirectory() as folder:
        most = 0
        for seen in processes:
            expected = ExpectedGpus(Path(folder) / "expected-gpus.json")
            for number in seen:
                most = max(most, number)
                assert expected.count(number) == most
            assert expected.faults == ()


def test_the_configured_number_counts_also_if_it_is_less(tmp_path: Path) -> None:
    path = tmp_path / "expected-gpus.json"
    assert ExpectedGpus(path).count(8) == 8
    assert ExpectedGpus(path, 7).count(8) == 7
    assert ExpectedGpus(path, 9).count(8) == 9


def test_without_its_file_the_number_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "expected-gpus.json"
    ExpectedGpus(path).count(8)
    path.unlink()
    assert ExpectedGpus(path).count(7) == 7


def test_a_damaged_file_is_a_fault_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "expected-gpus.json"
    path.write_text("{")
    expected = ExpectedGpus(path)
    assert expected.count(4) == 4
    assert "may be too low" in expected.faults[0]
    assert ExpectedGpus(path).count(0) == 4


def test_a_write_that_fails_is_a_fault_until_it_succeeds(tmp_path: Path) -> None:
    now_s = 0.0
    folder = tmp_path / "state"
    folder.write_text("no folder")
    expected = ExpectedGpus(folder / "expected-gpus.json", clock_s=lambda: now_s)
    assert expected.count(4) == 4
    assert "will be forgotten" in expected.faults[-1]
    folder.unlink()
    expected.count(4)
    assert not folder.exists()
    now_s = AGAIN_S
    expected.count(4)
    assert ExpectedGpus(folder / "expected-gpus.json").count(0) == 4
