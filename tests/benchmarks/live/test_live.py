# SPDX-License-Identifier: Apache-2.0
"""The live benchmark: its scenarios are as described, wrong placements are seen, its tables compare like with like."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.json import encode
from msgspec.structs import replace

from benchmarks.live.contestants import contestants
from benchmarks.live.measure import Heat, Outcome, measure, percentile
from benchmarks.live.report import tables
from benchmarks.live.scenario import (
    GPUS_PER_NODE,
    SCENARIOS,
    UNPLACEABLE,
    Meta,
    Scenario,
    SeenPod,
    SeenSpec,
    SeenStatus,
)
from dovetail.kube.api.resources import PODS

RUN = Outcome(
    round=1, scenario="among", scheduler="dovetail", alone="alone", pods=2_000, first_bind_s=0.5, last_bind_s=2.2,
    p50_ms=1_300.0, p99_ms=2_150.0, last_event_s=3.0, events=2_000, cpu_s=1.0, apiserver_cpu_s=5.0, etcd_cpu_s=1.0,
    observer_cpu_s=1.0, others_cpu_s=0.1, max_rss_mib=90.0, problems=(),
)  # fmt: skip


def documents(scenario: Scenario) -> list[Any]:
    return next(list(found) for resource, found in scenario.kinds("dovetail") if resource == PODS)


def gpus(document: Any) -> int:
    return int(document["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


def seen(number: int, node: str, phase: str = "Pending", suffix: str = "") -> SeenPod:
    return SeenPod(Meta(f"pod-{number:05}{suffix}", "default", str(number)), SeenSpec(node), SeenStatus(phase))


def row(table: str, scheduler: str) -> dict[str, str]:
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return next(dict(zip(heads, cells, strict=True)) for cells in rows if cells[0] == scheduler)


class TestScenarios:
    def test_pods_that_fit_nowhere_are_spread_evenly_among_the_others(self) -> None:
        scenario = SCENARIOS["among"]
        found = documents(scenario)
        at = [number for number, pod in enumerate(found) if pod["metadata"]["name"].endswith(UNPLACEABLE)]
        assert (len(found), len(at), scenario.pod_count) == (2_200, 200, 2_000)
        assert {later - sooner for sooner, later in pairwise(at)} == {11}
        assert {gpus(found[number]) > GPUS_PER_NODE for number in at} == {True}

    def test_the_scenario_without_them_has_the_same_other_pods(self) -> None:
        among = SCENARIOS["among"]
        alone = SCENARIOS[among.alone]
        assert replace(among, unplaceable=0, alone="", title=alone.title) == alone

    def test_a_stream_comes_at_its_rate_and_fits_while_it_runs(self) -> None:
        scenario = SCENARIOS["stream"]
        due_s, pods = zip(*scenario.arrivals("dovetail"), strict=True)
        assert (len(due_s), due_s[0], due_s[200], due_s[-1]) == (24_000, 0.0, 1.0, pytest.approx(120, abs=0.01))
        assert len({pod["metadata"]["name"] for pod in (*pods, *documents(scenario))}) == scenario.pod_count
        assert scenario.per_s * scenario.run_s < 0.8 * scenario.nodes * GPUS_PER_NODE

    def test_a_smaller_stream_is_shorter_and_as_dense(self) -> None:
        whole = SCENARIOS["stream"]
        part = whole.scaled(0.1)
        assert (part.per_s, part.stream, part.run_s, part.nodes) == (200.0, 2_400, 3.0, whole.nodes // 10)

    def test_a_storm_is_a_calm_stream_with_pods_that_hurt(self) -> None:
        storm = SCENARIOS["storm"]
        calm = SCENARIOS[storm.alone]
        assert replace(storm, hostile_per_s=0.0, alone="", title=calm.title) == calm
        some = storm.scaled(0.2)
        due_s, pods = zip(*some.arrivals("dovetail"), strict=True)
        hurt = [pod for pod in pods if pod["metadata"]["name"].endswith(UNPLACEABLE)]
        assert (len(pods) - len(hurt), len(hurt)) == (some.stream, 2 * some.stream / some.per_s)
        assert list(due_s) == sorted(due_s)
        assert sum(len(encode(pod)) > 200_000 for pod in hurt) == sum(n % 7 != 6 for n in range(len(hurt)))


class TestProblems:
    SMALL = Scenario("2 pods, 1 that fits nowhere", nodes=1, pods=2, gpus=8, unplaceable=1)

    def test_a_right_placement_has_none(self) -> None:
        pods = [seen(0, "node-00000", "Succeeded"), seen(1, "node-00000"), seen(2, "", suffix=UNPLACEABLE)]
        assert self.SMALL.problems(pods, ()) == []

    def test_wrong_ones_are_named(self) -> None:
        pods = [seen(0, "node-00000"), seen(1, ""), seen(2, "node-00000", suffix=UNPLACEABLE)]
        assert self.SMALL.problems(pods, ()) == [
            "1 of 2 pods are bound",
            "1 pods are bound that fit nowhere",
            "1 nodes have more pods than GPUs, e.g. ['node-00000']",
        ]


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (99, 4.0), (25, 1.0)])
def test_percentiles_are_values_that_were_seen(percent: int, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value


def test_no_percentile_of_nothing() -> None:
    assert percentile([], 99) == 0.0


class TestTables:
    def test_costs_are_for_a_thousand_pods(self) -> None:
        cells = row(tables([RUN], {"among": "t"}), "dovetail")
        assert [cells[f"{owner} CPU s/1,000"] for owner in ("own", "API server", "etcd")] == ["0.50", "2.50", "0.50"]

    def test_a_run_is_compared_with_others_of_its_round(self) -> None:
        stock = replace(RUN, scheduler="stock", last_bind_s=22.0, cpu_s=8.0)
        null = replace(RUN, scheduler="null", last_bind_s=2.0)
        other_round = replace(stock, round=2, last_bind_s=1.0)
        cells = row(tables([RUN, stock, null, other_round], {"among": "t"}), "dovetail")
        heads = ("x stock", "x stock CPU", "x null s", "x alone s")
        assert [cells[head] for head in heads] == ["10.00", "0.12", "1.10", "-"]

    def test_what_stands_in_the_way_is_compared_with_the_same_scheduler_without_it(self) -> None:
        alone = replace(RUN, scenario="alone", alone="", last_bind_s=2.0)
        found = tables([alone, RUN], {"alone": "t", "among": "t"})
        assert row(found.partition("### among")[2], "dovetail")["x alone s"] == "1.10"

    def test_a_run_with_a_problem_is_compared_with_nothing(self) -> None:
        null = replace(RUN, scheduler="null", problems=("it stalled",))
        found = tables([RUN, null], {"among": "t"})
        assert row(found, "dovetail")["x null s"] == "-"
        assert found.endswith("- round 1, null: it stalled")


@pytest.mark.plane
@pytest.mark.slow
async def test_a_stream_fits_because_its_pods_end() -> None:
    # 48 pods on 16 GPUs: the binder that does not think fills the nodes in turn.
    scenario = replace(SCENARIOS["stream"], nodes=2, stream=40, per_s=20.0, run_s=0.2)
    outcome = await measure(Heat(1, "stream", scenario, "null", contestants()["null"]))
    assert outcome.problems == ()
    assert outcome.pods == 48
    assert 0 < outcome.p50_ms <= outcome.p99_ms
