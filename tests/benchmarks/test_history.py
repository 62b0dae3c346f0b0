# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the history: what it writes is what it reads."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from benchmarks import history


def test_all_of_the_time_is_divided(tmp_path: Path) -> None:
    options = Namespace(nodes=4, days=1, apart=600, sampled_hours=1)
    written = history.write(tmp_path / "history.db", options)
    assert written["holds"] > 20
    # It asserts that the division has all of the time of the GPUs.
    assert history.read(tmp_path / "history.db", options)["read_s"] > 0
