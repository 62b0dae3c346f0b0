# SPDX-License-Identifier: Apache-2.0
"""The benchmark of spare nodes measures both kinds of steps."""

from __future__ import annotations

import json

import pytest

from benchmarks import spares
from benchmarks.spares import TRAYS, SpareStream


def test_spares_are_held_in_the_stream_with_a_rule_alone() -> None:
    for per_domain in (0, 2):
        stream = SpareStream(3, per_domain, 1)
        stream.turn()
        counts = list(stream.state.cluster.spares.counts())
        assert [(one.size, one.wanted) for one in counts] == (3 * [(TRAYS, 2)] if per_domain else [])
        assert all(len(one.held) <= 2 for one in counts)
        assert stream.settle_s >= 0


def test_a_small_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["spares.py", "--racks", "3", "--steps", "2", "--runs", "1", "-o", "json"])
    spares.main()
    (row,) = json.loads(capsys.readouterr().out)
    assert min(row["median"], row["median_held"], row["mean"], row["mean_held"]) > 0


@pytest.mark.parametrize("wrong", [("--racks", "0"), ("--steps", "0"), ("--per-domain", "3")])
def test_a_run_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str]) -> None:
    monkeypatch.setattr("sys.argv", ["spares.py", *wrong])
    with pytest.raises(SystemExit, match="2"):
        spares.main()
