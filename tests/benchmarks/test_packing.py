# SPDX-License-Identifier: Apache-2.0
"""The runs and the table of the packing benchmark."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import packing

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{i},64000,262144,2,T4\n" for i in range(25))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{i},1000,1024,1,{milli}\n" for i, milli in enumerate([500, 250] * 40)
)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two published lists and one that is none, on 50 GPUs."""
    (tmp_path / "openb_node_list_gpu_node.csv.gz").write_bytes(gzip.compress(NODES.encode()))
    for name in ("multigpu50", "default", "mine"):
        (tmp_path / f"openb_pod_list_{name}.csv.gz").write_bytes(gzip.compress(PODS.encode()))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.setattr("sys.argv", ["packing.py", *options])
    packing.main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_lists_of_the_published_table_are_run_or_those_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], traces: Path
) -> None:
    options = ["--traces", str(traces), "--seeds", "1", "-o", "json"]
    rows: list[dict[str, Any]] = json.loads(run(monkeypatch, capsys, *options))
    assert {row["list"] for row in rows} == {"default", "multigpu50"}
    assert len(rows) == 2 * len(packing.TABLE)
    named = json.loads(run(monkeypatch, capsys, *options, "--lists", "mine", "--policies", "bestfit"))
    assert [(row["list"], row["policy"], row["seed"]) for row in named] == [("mine", "bestfit", 1)]


def test_all_policies_see_the_same_arrivals_and_best_fit_leaves_nothing_of_halves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], traces: Path
) -> None:
    options = ["--lists", "default", "--policies", "random", "bestfit", "-o", "json"]
    rows = json.loads(run(monkeypatch, capsys, "--traces", str(traces), *options))
    best = [row for row in rows if row["policy"] == "bestfit"]
    assert [row["seed"] for row in best] == [42, 43, 44]
    assert all(row["unallocated_130"] == 0 for row in best)
    assert all(row["unallocated_130"] <= row["unallocated_100"] for row in rows)
    assert packing.arrivals(traces, "default", 42) == packing.arrivals(traces, "default", 42)
    assert packing.arrivals(traces, "default", 42).jobs != packing.arrivals(traces, "default", 43).jobs


@pytest.mark.slow
def test_the_table_has_the_means_beside_what_was_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], traces: Path
) -> None:
    options = ["--traces", str(traces), "--lists", "default", "--policies", "fgd", "expected-fill"]
    rows = json.loads(run(monkeypatch, capsys, *options, "-o", "json"))
    mean = sum(row["unallocated_100"] for row in rows if row["policy"] == "fgd") / 3
    lines = [line for line in run(monkeypatch, capsys, *options).splitlines() if line.startswith("| default")]
    assert len(lines) == 2
    assert lines[0].startswith(f"| default | fgd | {mean:.2f} (4.77) | ")
    assert "(" not in lines[1]


def test_lists_that_are_not_in_the_sample_need_traces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, capsys, "--lists", "cpu050")
    assert "need --traces" in capsys.readouterr().err
