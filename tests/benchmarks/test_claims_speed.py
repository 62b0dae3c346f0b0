# SPDX-License-Identifier: Apache-2.0
"""The benchmark of claims places all its pods, and shows it."""

from __future__ import annotations

import json

import pytest

from benchmarks import claims_speed
from benchmarks.claims_speed import CASES


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.setattr("sys.argv", ["claims_speed.py", "--nodes", "14", "--runs", "1", *options])
    claims_speed.main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_all_claims_of_each_case_are_allocated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(run(monkeypatch, capsys, "-o", "json"))
    assert [(row["claims"], row["pods"]) for row in rows] == [(name, 14 * case[1]) for name, case in CASES.items()]
    assert all(row["claims_per_s"] > 0 and row["first_ms"] > 0 for row in rows)


@pytest.mark.slow
def test_the_table_has_a_row_for_each_case(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(monkeypatch, capsys, "--cases", "8 GPUs", "linked pairs").splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| 8 GPUs", "| linked pairs"]
