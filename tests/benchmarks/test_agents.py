# SPDX-License-Identifier: Apache-2.0
"""The benchmark of agents that share GPUs: the same work under each policy, and tables of medians."""

from __future__ import annotations

import pytest

from benchmarks.agents import alone_ms, deceive, lies_table, measure, simulate, table, workload
from dovetail.sim.agents.sharing import SHARING


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policies"), [("bursts-90", list(SHARING)), ("recorded-90", ["static", "fifo"])])
def test_all_policies_do_the_same_work(name: str, policies: list[str]) -> None:
    rows = measure((name, 3), policies, 1, None)
    assert [row["policy"] for row in rows] == policies
    assert {row["tasks"] for row in rows} == {len(workload(name, 3, 1).tasks)}
    assert {row["refused"] for row in rows} == {0}
    for row in rows:
        assert 0 < row["utilisation"] <= 0.91
        assert row["worst_slowdown"] > 0


def test_an_agent_alone_under_its_policy_has_no_slowdown() -> None:
    work = workload("bursts-60", 1, 1)
    own = work.alone(2)
    outcome, _ = simulate(own, "fifo")
    assert outcome.completion_ms(2) == alone_ms(work)[2]


def test_the_large_agent_is_one_of_sixteen() -> None:
    work = workload("large-60", 1, 4)
    assert len(work.agents) == 16
    assert {task.least for task in work.tasks if task.agent == 15} == {60}


@pytest.mark.parametrize("name", ["bursts", "bursts-x", "waves-60"])
def test_an_unknown_workload_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' must be bursts-N, recorded-N or large-N"):
        workload(name, 1, 1)


def test_the_table_has_medians_and_spans() -> None:
    empty = dict.fromkeys(
        ("completion_s", "worst_slowdown", "jain", "lost", "overhead", "idle_leased", "free_while_wanted"), None
    ) | dict.fromkeys(("deadlines_met", "large_wait_s", "large_wait_max_s", "refused", "cpu_s"), None)
    rows = [
        {"workload": "w", "policy": "p", "seed": seed, "tasks": 5, **empty, "utilisation": part, "completion_s": took}
        for seed, part, took in ((0, 0.1, 60), (1, 0.5, None), (2, 0.3, 180))
    ]
    assert [line for line in table(rows, ["p"]) if line.startswith("| p |")] == ["| p | 30.0 % [10.0 %, 50.0 %] | - |"]


def test_lies_are_measured_against_truth() -> None:
    rows = deceive(("static", 1), ["split"], 2, 1)
    assert rows == [{"policy": "static", "seed": 1, "lie": "split", "gain": pytest.approx(0, abs=0.2)}]
    rows = [{"policy": "p", "seed": seed, "lie": "churn", "gain": 0.01 * seed} for seed in (1, 2, 3)]
    assert list(lies_table(rows, ["p"], ["churn"]))[-1] == "| p | +2.0 % [-0.5, +4.5] |"
