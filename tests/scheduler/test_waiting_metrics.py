# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads of waiting jobs: how many, for which reason, and for how long."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import REGISTRY

from dovetail.core import cycle
from dovetail.core.events import GangChanged, NodeChanged, PodChanged, PodRemoved
from dovetail.core.model import Gang, Node, Pod, Request
from dovetail.core.state import State
from dovetail.scheduler import waiting_metrics

NODE = Node("n", (("cpu", 64_000), ("memory", 2**39), ("nvidia.com/gpu", 8), ("pods", 110)))


def pod(name: str, gpus: int, created_ms: int, **fields: object) -> Pod:
    request = Request((("cpu", 1_000), ("memory", 2**30), ("nvidia.com/gpu", gpus)))
    return Pod(name, str(fields.pop("namespace", "red")), name, request, created_ms=created_ms, **fields)  # type: ignore[arg-type]


def read(name: str) -> dict[tuple[str, str], float]:
    """The values of a gauge after a measurement, by namespace and reason (or queue, where it has no reason)."""
    return {
        (sample.labels["namespace"], sample.labels.get("reason", sample.labels["queue"])): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_waiting_jobs_are_counted_by_reason_with_the_longest_wait() -> None:
    state = State()
    runs = pod("runs", 8, 1_000)
    late = [pod(f"w{n}", 4, 10_000 * (n + 1)) for n in range(2)]
    never = pod("never", 9, 5_000, namespace="blue")
    cycle.step(state, [NodeChanged(NODE), *map(PodChanged, (runs, *late, never))], 60_000)
    waiting_metrics.measure(state)
    assert read("dovetail_waiting_jobs") == {("red", "NoNodeFits"): 2.0, ("blue", "NoNodeFits"): 1.0}
    assert read("dovetail_waiting_age_seconds") == {("red", "NoNodeFits"): 50.0, ("blue", "NoNodeFits"): 55.0}
    verdicts = {
        (sample.labels["namespace"], sample.labels["when"])
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "dovetail_waiting_jobs"
    }
    assert verdicts == {("red", "NotYet"), ("blue", "Never")}
    cycle.step(state, [PodRemoved(one.uid) for one in (*late, never)], 61_000)
    waiting_metrics.measure(state)
    assert read("dovetail_waiting_jobs") == {} == read("dovetail_waiting_age_seconds")


def test_a_gang_that_started_by_half_is_measured_until_it_has_its_minimum() -> None:
    state = State()
    gang = Gang("native/red/g", "red", "g", min_count=2)
    members = [
        pod(f"m{n}", 8, 1_000, gang=gang.id, node="n" if n == 0 else "", bound_ms=20_000 if n == 0 else 0)
        for n in range(2)
    ]
    cycle.step(state, [NodeChanged(NODE), GangChanged(gang), *map(PodChanged, members)], 30_000)
    waiting_metrics.measure(state)
    assert list(read("dovetail_partial_gang_age_seconds").values()) == [10.0]
    second = Node("n2", NODE.allocatable)
    cycle.step(state, [NodeChanged(second)], 40_000)
    cycle.step(state, [PodChanged(replace(members[1], node="n2", bound_ms=41_000))], 42_000)
    waiting_metrics.measure(state)
    assert read("dovetail_partial_gang_age_seconds") == {}
