# SPDX-License-Identifier: Apache-2.0
"""What the native parts decide is decided in the same way without them: days that are lived with them are replayed by a
process that may not use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from tests.recording.histories import Recorded, live

DAYS = 40


@pytest.mark.slow
def test_days_lived_with_the_native_parts_replay_equal_without_them(tmp_path: Path) -> None:
    if not dovetail.__runs__().startswith("compiled core"):
        pytest.skip(dovetail.__runs__())
    for seed in range(DAYS):
        recorded = Recorded(tmp_path / f"day-{seed:02}", run=f"run{seed}")
        live(recorded, 1_000 + seed)
        recorded.close()
    main = "from dovetail.cli import main; main()"
    command = [sys.executable, "-c", main, "replay", *map(str, sorted(tmp_path.iterdir())), "-o", "json"]
    environment = os.environ | {"DOVETAIL_NATIVE": "0"}
    replayed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert replayed.returncode == 0, replayed.stdout[-2000:] + replayed.stderr
    answer = json.loads(replayed.stdout)
    assert answer["problems"] == []
    assert [run["verdict"] for run in answer["runs"]] == ["equal"] * DAYS
    assert sum(run["steps"] for run in answer["runs"]) > 20 * DAYS
