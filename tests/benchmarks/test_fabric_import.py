# SPDX-License-Identifier: Apache-2.0
"""The benchmark of imports finds the network that it makes."""

from __future__ import annotations

import json

import pytest

from benchmarks import fabric_import


def test_the_units_that_were_made_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fabric_import.py", "--pods", "2", "-o", "json"])
    fabric_import.main()
    found = json.loads(capsys.readouterr().out)
    assert found.pop("cpu_s") >= 0
    assert found == {"switches": 160, "nodes": 128, "lines": found["lines"], "levels": [1, 2, 8], "findings": 0}
