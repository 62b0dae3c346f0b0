# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the fabric: its rules of other schedulers, its oracle, and a small run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks import fabric
from benchmarks.fabric import CONTESTANTS, Dovetail, Job, Kai, KubeScheduler, Slurm, Tree, arrivals, of_oracle, run

PERCENT = (100, 50, 25)


def free(*numbers: int, nodes: int = 12) -> Any:
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[list(numbers)] = True
    return mask


def job(nodes: int) -> Job:
    return Job(0, 0, nodes, 1000)


def tree() -> Tree:
    """Two switches with two leaves of three nodes each."""
    return Tree((2, 2, 3), PERCENT)


def test_slurm_takes_the_lowest_switch_with_the_fewest_free_nodes_and_its_leaves_by_best_fit() -> None:
    slurm = Slurm(tree())
    # Leaves 0 and 3 can hold two nodes, leaf 3 is the fuller one.
    assert slurm.choose(free(0, 1, 2, 10, 11), job(2)) == [10, 11]
    # Four nodes need a switch: the second one has four free, the first one five.
    assert slurm.choose(free(0, 1, 2, 4, 5, 6, 7, 8, 9), job(4)) == [6, 7, 8, 9]
    # Over all: first the leaf with the most free nodes, then one that fits the rest.
    assert slurm.choose(free(0, 3, 4, 5, 6, 9, 10), job(6)) == [0, 3, 4, 5, 9, 10]


def test_kai_fills_the_emptier_leaves_of_the_fullest_domain_first() -> None:
    kai = Kai(tree())
    assert kai.choose(free(0, 1, 2, 10, 11), job(2)) == [10, 11]
    assert kai.choose(free(0, 3, 4, 5, 6, 9, 10), job(4)) == [3, 4, 5, 0]


def test_kube_scheduler_takes_any_free_nodes() -> None:
    chosen = KubeScheduler(tree()).choose(free(*range(12)), job(5))
    assert len(set(chosen)) == 5


def test_the_hops_of_a_ring_are_the_borders_that_it_crosses() -> None:
    assert tree().hops([0, 1]) == 2
    assert tree().hops([0, 1, 3]) == 3 + 2
    assert tree().hops([0, 6, 1, 7]) == 4 + 4 + 4
    assert tree().hops([0, 1, 6, 7]) == 4 + 2 + 2


def test_jobs_ask_for_the_load() -> None:
    jobs = arrivals(4000, 1024, 0.9, 256, 1)
    work = sum(one.nodes * one.work_ms for one in jobs)
    assert 0.8 < work / (1024 * jobs[-1].at_ms) < 1.0
    assert (min(one.nodes for one in jobs), max(one.nodes for one in jobs)) == (2, 256)


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_job_runs_once_on_nodes_that_are_free(name: str) -> None:
    jobs = arrivals(60, 12, 0.9, 8, 2)
    ended = list(run(tree(), CONTESTANTS[name](tree()), jobs, 30))
    assert sorted(one.job.number for one in ended) == list(range(60))
    for one in ended:
        assert one.start_ms >= one.job.at_ms
        assert one.end_ms >= one.start_ms + one.job.work_ms
        beside = [
            other for other in ended if other is not one and other.start_ms < one.end_ms and other.end_ms > one.start_ms
        ]
        assert not set(one.nodes) & {node for other in beside for node in other.nodes}


def test_the_oracle_is_never_worse_and_a_bad_placer_is_far_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    good = of_oracle(3, PERCENT, 1)
    monkeypatch.setattr(fabric, "Dovetail", KubeScheduler)
    assert of_oracle(3, PERCENT, 1) < good <= 1.0


def test_a_small_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(
        "sys.argv",
        [
            "fabric.py",
            "--tree",
            "2x4x4",
            "--jobs",
            "100",
            "--most",
            "16",
            "--small",
            "1",
            "--seeds",
            "1",
            "2",
            "-o",
            "json",
        ],
    )
    fabric.main()
    answer = json.loads(capsys.readouterr().out)
    own, *others = answer["lines"]
    assert [line["nodes_by"] for line in answer["lines"]] == list(CONTESTANTS)
    assert own["hops"] == 1.0
    assert own["bandwidth"] > others[-1]["bandwidth"]


@pytest.mark.parametrize(
    "wrong", [("--jobs", "0"), ("--load", "0"), ("--tree", "4"), ("--tree", "2x0"), ("--most", "99")]
)
def test_a_run_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str]) -> None:
    monkeypatch.setattr("sys.argv", ["fabric.py", "--tree", "2x4", *wrong])
    with pytest.raises(SystemExit, match="2"):
        fabric.main()


def test_the_core_places_what_it_is_asked_for() -> None:
    own = Dovetail(tree())
    chosen = own.choose(free(*range(12)), job(4))
    assert len(set(chosen)) == 4
    own.leave(job(4))
    assert len(own.choose(free(*range(12)), Job(1, 0, 12, 1000))) == 12
