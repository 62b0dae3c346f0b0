# SPDX-License-Identifier: Apache-2.0
"""The benchmark of headroom, on loads of minutes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import headroom, headroom_speed


def test_an_autoscaler_goes_up_at_once_and_down_to_the_most_of_five_minutes() -> None:
    minute = headroom.MINUTE_MS
    times = [i * 1000 for i in range(60)] + [2 * minute + i * 100 for i in range(600)] + [20 * minute]
    wanted = headroom.replicas(times, 10)
    numbers = [number for _, number in wanted]
    assert max(numbers) == 10
    down = next(at_ms for at_ms, number in wanted if at_ms > 3 * minute and number < 10)
    assert down >= 8 * minute


@pytest.mark.slow
def test_each_contestant_lives_through_the_same_requests(capsys: pytest.CaptureFixture[str]) -> None:
    headroom.main(["--hours", "0.4", "--nodes", "4", "--most", "4", "--headroom", "3", "-o", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert rows.keys() == {"headroom", "reclaim", "kai", "priority", "plain"}
    (ups,) = {row["scale_ups"] for row in rows.values()}
    assert ups > 0
    ours = rows["headroom"]
    assert ours["promised"] == ups
    assert ours["kept_percent"] == 100
    assert ours["p99_s"] <= 2 < rows["kai"]["p99_s"]
    assert ours["lent_percent"] >= 80
    assert rows["reclaim"]["promised"] == 0


def test_the_first_column_of_a_trace_are_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    with gzip.open(path, "wt") as out:
        out.write("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374\n2023-11-16 18:15:47.6805900,1\n")
    assert headroom.read_requests(path) == [0, 1000]


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("TIMESTAMP\n")
    with pytest.raises(ValueError, match="has no requests"):
        headroom.read_requests(path)


@pytest.mark.slow
def test_steps_are_measured_with_headroom_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--nodes", "20", "--workloads", "2", "--instances", "4", "--steps", "2", "-o", "json"]
    headroom_speed.main(arguments)
    rows = json.loads(capsys.readouterr().out)
    assert rows["with headroom"].keys() == {"kept", *headroom_speed.STEPS}
    assert (rows["with headroom"]["kept"], rows["without headroom"]["kept"]) == (8, 0)
    assert all(value > 0 for value in rows["with headroom"].values())
