# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the linter runs the real command over what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import lint_speed
from dovetail.cli import cli


def test_every_tenth_file_has_a_fault_that_is_mended(tmp_path: Path) -> None:
    lint_speed.write(tmp_path, 40)
    run = ["lint", str(tmp_path), "--only", "G01,G02", "-o", "json"]
    found = json.loads(CliRunner().invoke(cli, run).stdout)
    assert {Path(one["file"]).stem for one in found} == {"00000", "00010", "00020", "00030"}
    assert json.loads(CliRunner().invoke(cli, [*run, "--fix"]).stdout) == []


@pytest.mark.slow
def test_each_kind_of_run_is_measured() -> None:
    taken = lint_speed.measured(12, 1)
    assert list(taken) == ["folder", "folder, --fix", "one file", "--help"]
    assert all(len(runs) == 1 and runs[0] > 0 for runs in taken.values())
