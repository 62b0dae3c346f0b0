# SPDX-License-Identifier: Apache-2.0
"""The scenarios of KAI Scheduler's tests, lived through by our core: the same pods run, or the reason is stated.

What differs is written down here, scenario by scenario, and counted in docs/explanation/kai-scenarios.md.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from msgspec import Struct

from dovetail.core.policy import Policy
from tests.core.preemption.scenarios import Outcome, Scenario, milli_gpus, read, run
from tests.paths import ROOT

TABLES = ("consolidation", "reclaim", "preempt")
DOC = ROOT / "docs/explanation/kai-scenarios.md"
SCENARIOS = {(table, scenario.name): scenario for table in TABLES for scenario in read(table)}
QUICK = {*list(SCENARIOS)[::12]}
"""An hour or two of each scenario together take ten seconds; quick runs live through these."""


class Other(Struct, frozen=True):
    """The pods that run there and not here, those that run here and not there, and how many are evicted here. `why`:
    see the table in the docs."""

    theirs: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    evicted: int = 0
    why: str = ""


OTHERS = {
    ("consolidation", "a whole gang moves"): Other(evicted=3, why="gang"),
    ("consolidation", "one pod of a gang with sub-gangs moves"): Other(evicted=2, why="gang"),
    ("consolidation", "nodes that are full are passed over"): Other(evicted=1, why="needless"),
    ("consolidation", "consolidation, then reclaim"): Other(("r0",), ("r2",), 1, "loss"),
    ("consolidation", "for one that is not preemptible nobody moves"): Other((), ("p0",), 0, "alone"),
    ("consolidation", "all is in use, two queues"): Other(("r1",), ("p0",), 1, "alone"),
    ("reclaim", "beyond its guarantee for a weight of three"): Other(("a2",), ("b1",), 0, "half"),
    ("reclaim", "the larger of two jobs"): Other(("r0",), ("r1",), 1, "loss"),
    ("reclaim", "the head of the line does not fit"): Other(("r1",), ("p1",), 1, "head"),
    ("reclaim", "the rest that does not divide evenly"): Other(("p0",), ("r1",), 0, "half"),
    ("reclaim", "a department takes back what is due to it"): Other(("p0",), ("r1",), 0, "half"),
    ("reclaim", "by the priority of queues"): Other(("b1",), ("a3",), 3, "parent"),
    ("reclaim", "CPU and memory that are guaranteed to both, and a GPU"): Other(("p0",), ("p1",), 1, "head"),
    ("reclaim", "both jobs of a queue that is due no GPU"): Other(("p1",), ("r3",), 1, "named"),
    ("reclaim", "memory from a queue that is due a GPU alone"): Other(("p2",), ("r2",), 1, "named"),
    ("reclaim", "no job can move"): Other(("r0",), ("r1",), 1, "either"),
    ("reclaim", "from the department that has more than is guaranteed to it"): Other(("a-3",), ("b-7",), 1, "parent"),
    ("reclaim", "a job for the least of an elastic gang"): Other((), ("p0-1",), 1, "alone"),
    ("reclaim", "a share beyond the guarantee"): Other(("r0",), ("p0",), 1, "cheap"),
    ("reclaim", "a queue that could have more"): Other(("r0",), ("r5",), 1, "either"),
    ("reclaim", "of two queues for a gang"): Other(("r1",), ("r3",), 3, "either"),
    ("reclaim", "a large job for a small one"): Other((), ("p1",), 1, "alone"),
    ("reclaim", "a large job for the higher priority of two"): Other((), ("p0",), 1, "alone"),
    ("preempt", "for the least of an elastic gang"): Other((), ("p0-1",), 1, "alone"),
}


@cache
def lived(table: str, name: str, moves_per_hour: int = 20) -> Outcome:
    policy = Policy(fabric=("zone",), moves_per_hour=moves_per_hour, history_milli=0)
    return run(SCENARIOS[table, name], policy)


def gpus_milli(scenario: Scenario, running: set[str]) -> int:
    return sum(milli_gpus(task.size) for job in scenario.jobs for task in job.tasks if task.name in running)


def test_the_tables_are_read() -> None:
    assert len(SCENARIOS) == sum(len(read(table)) for table in TABLES)
    assert all(scenario.nodes and scenario.queues and scenario.jobs for scenario in SCENARIOS.values())
    assert OTHERS.keys() <= SCENARIOS.keys()


@pytest.mark.parametrize(
    ("table", "name"), [pytest.param(*key, marks=[] if key in QUICK else pytest.mark.slow) for key in SCENARIOS]
)
def test_what_runs(table: str, name: str) -> None:
    """Also how many were evicted; nothing happens any more in the last hour."""
    scenario, outcome = SCENARIOS[table, name], lived(table, name)
    other = OTHERS.get((table, name), Other(evicted=scenario.evicted))
    assert scenario.running - outcome.running.keys() == set(other.theirs)
    assert outcome.running.keys() - scenario.running == set(other.ours)
    assert outcome.evicted.total() == other.evicted
    assert outcome.calm_ms >= 3_600_000


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for table, name in SCENARIOS if table == "consolidation"])
def test_moves_never_leave_less_running(name: str) -> None:
    still = lived("consolidation", name, moves_per_hour=0)
    assert still.evicted["move"] == 0
    assert lived("consolidation", name).gpus_milli >= still.gpus_milli


@pytest.mark.slow
def test_what_moves_bring_is_reported() -> None:
    gains = []
    for name in (name for table, name in SCENARIOS if table == "consolidation"):
        still = lived("consolidation", name, moves_per_hour=0).gpus_milli
        if (moved := lived("consolidation", name).gpus_milli) > still:
            gains.append(moved / still)
    least, most = min(gains), max(gains)
    assert f"In {len(gains)} scenarios more GPUs run with it than without, {least:.1f} to {most:.2f} times" in words()


def words() -> str:
    return " ".join(DOC.read_text().split())


@pytest.mark.parametrize("table", TABLES)
def test_the_docs_count_them(table: str) -> None:
    """By OTHERS, which `test_what_runs` holds to."""
    counts = dict.fromkeys(("all", "same", "more", "as many", "fewer"), 0)
    for (of, name), scenario in SCENARIOS.items():
        if of == table:
            other = OTHERS.get((of, name), Other())
            ours = gpus_milli(scenario, scenario.running - set(other.theirs) | set(other.ours))
            theirs = gpus_milli(scenario, scenario.running)
            same = not other.theirs and not other.ours
            more = "more" if ours > theirs else "fewer" if ours < theirs else "as many"
            counts["all"] += 1
            counts["same" if same else more] += 1
    row = re.search(rf"^\| {table} \|(.*)\|$", DOC.read_text(), re.M)
    assert row is not None
    assert [int(cell) for cell in row[1].split("|")] == list(counts.values())


def test_the_docs_have_the_reason() -> None:
    reported = dict(re.findall(r"^\| (\w+: [^|]+?) \| (\w+) \|", DOC.read_text(), re.M))
    assert reported == {f"{table}: {name}": other.why for (table, name), other in OTHERS.items()}
