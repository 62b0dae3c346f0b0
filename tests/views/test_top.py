# SPDX-License-Identifier: Apache-2.0
"""The rows of GPUs over a window, and the groups, order and filter of `top`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.kube.reading.gpu_samples import DeviceKey, DeviceSample, SampleHolder
from dovetail.views.top import Top, TopQuery, groups_of, top
from dovetail.views.top_rows import TopWindow

BUSY = {names.SM: 0.9, names.TENSOR: 0.7, names.DRAM: 0.4, names.ENGINE: 0.99, names.UTILIZATION: 99.0}
IDLE = {names.SM: 0.0, names.TENSOR: 0.0, names.DRAM: 0.0, names.ENGINE: 0.0, names.UTILIZATION: 0.0}


def device(node: str, index: int, pod: str = "", *, instance: str = "", state: str = "", **more: Any) -> DeviceSample:
    """A GPU; `pod` with its job before the first `-`."""
    values = more.pop("values", BUSY if pod else IDLE)
    job = pod.partition("-")[0]
    holders = (SampleHolder("default", pod, "main", job=job, **more),) if pod else ()
    key = DeviceKey(node, f"GPU-{node}-{index}", instance)
    return DeviceSample(key, index, "H100", "1g.10gb" if instance else "", dict(values), holders, state)


def node(*devices: DeviceSample, at_s: float = 100.0, name: str = "n1", fault: str = "") -> NodeSamples:
    return NodeSamples(devices[0].key.node if devices else name, devices, at_s, fault)


def answer(*nodes: NodeSamples, **query: Any) -> Top:
    window = TopWindow()
    window.add(nodes)
    return top(window.reading(100.0, "test"), TopQuery(**query))


def test_the_summary_counts_states() -> None:
    found = answer(
        node(device("n1", 0, "a-0"), device("n1", 1, "b-0", values=IDLE), device("n1", 2, state="quarantined")),
        node(name="n2", at_s=0.0, fault="no answer yet"),
    ).summary
    assert (found.nodes, found.gpus, found.allocated, found.computing) == (2, 3, 2, 1)
    assert (found.idle_allocated, found.unhealthy, found.unread_nodes) == (1, 1, 1)


def test_a_gpu_with_instances_is_not_listed_beside_them_and_lends_them_its_board() -> None:
    board = IDLE | {names.POWER: 300.0, names.TEMPERATURE: 60.0}
    profiled = {name: value for name, value in BUSY.items() if name != names.UTILIZATION}
    found = answer(
        node(
            device("n1", 0, values=board, state="healthy"),
            device("n1", 0, "a-0", instance="1", values=profiled),
            device("n1", 0, instance="2"),
        )
    )
    assert [(row.instance, row.power_w, row.temperature_c, row.health) for row in found.gpus] == [
        ("1", 300.0, 60.0, "healthy"),
        ("2", 300.0, 60.0, "healthy"),
    ]
    assert (found.summary.gpus, found.summary.devices) == (1, 2)
    assert found.groups[0].power_w == 300.0
    assert found.gpus[0].bottleneck == "tensor-heavy"


def test_values_are_means_over_the_window_and_older_samples_leave_it() -> None:
    window = TopWindow(30.0)
    for at_s, sm in ((10.0, 1.0), (50.0, 0.2), (60.0, 0.4)):
        window.add([node(device("n1", 0, "a-0", values=BUSY | {names.SM: sm}), at_s=at_s)])
    (row,) = window.rows(60.0)
    assert row.sm == pytest.approx(30.0)


def test_a_node_that_was_not_read_again_adds_no_sample() -> None:
    window = TopWindow()
    for _ in range(3):
        window.add([node(device("n1", 0, "a-0"), at_s=50.0)])
    (row,) = window.rows(60.0)
    assert row.age_s == 10.0
    assert len(window._samples[DeviceKey("n1", "GPU-n1-0", "")]) == 1


def test_counters_become_rates_and_may_be_set_back() -> None:
    window = TopWindow()
    for at_s, total in ((10.0, 1000.0), (12.0, 3000.0), (14.0, 500.0)):
        values = {names.UTILIZATION: 5.0, names.PCIE_SENT_TOTAL: total}
        window.add([node(device("n1", 0, "a-0", values=values), at_s=at_s)])
    (row,) = window.rows(14.0)
    assert row.pcie_bytes_s == pytest.approx((1000.0 + 250.0) / 2)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 10**12)), min_size=1, max_size=6))
def test_rates_are_never_negative(steps: list[tuple[float, int]]) -> None:
    window, at_s = TopWindow(1000.0), 0.0
    for passed_s, total in steps:
        at_s += passed_s
        window.add([node(device("n1", 0, values={names.NVLINK_TOTAL_KIB: float(total)}), at_s=at_s)])
    (row,) = window.rows(at_s)
    assert (row.nvlink_bytes_s is None) == (len(steps) == 1)
    assert row.nvlink_bytes_s is None or row.nvlink_bytes_s >= 0


def test_one_sample_with_counters_only_needs_another() -> None:
    window = TopWindow()
    window.add([node(device("n1", 0, values={names.NVLINK_TOTAL_KIB: 5.0}))])
    assert window.needs_rates
    window.add([node(device("n1", 0, values={names.NVLINK_TOTAL_KIB: 6.0}), at_s=101.0)])
    assert not window.needs_rates


def test_a_gpu_that_is_gone_leaves_the_window() -> None:
    window = TopWindow()
    window.add([node(device("n1", 0), device("n1", 1))])
    window.add([node(device("n1", 1), at_s=101.0)])
    assert [row.gpu for row in window.rows(101.0)] == [1]


def test_a_straggler_is_found_among_the_gpus_of_its_job_on_any_node() -> None:
    slow = BUSY | {names.SM: 0.4}
    found = answer(
        node(device("n1", 0, "a-0"), device("n1", 1, "a-1")),
        node(device("n2", 0, "a-2", values=slow), device("n2", 1, "b-0", values=slow)),
    )
    assert [row.bottleneck for row in found.gpus] == ["tensor-heavy", "tensor-heavy", "straggler", "tensor"]


def test_shared_gpus_are_in_each_job_by_the_part_that_it_holds() -> None:
    shared = device("n1", 0, "a-0", share=0.5)
    shared.holders += (SampleHolder("default", "b-0", "main", 0.25, job="b", queue="research"),)
    found = answer(node(shared, device("n1", 1, "a-1")), by="job")
    assert [(one.name, one.gpus, one.queue) for one in found.groups] == [
        ("default/a", 1.5, ""),
        ("default/b", 0.25, "research"),
    ]


def test_a_team_is_a_queue_or_else_a_namespace() -> None:
    found = answer(node(device("n1", 0, "a-0", queue="research"), device("n1", 1, "b-0"), device("n1", 2)), by="team")
    assert [(one.name, one.gpus) for one in found.groups] == [("default", 1.0), ("research", 1.0)]


def test_a_node_that_was_never_read_is_a_group_with_its_fault() -> None:
    found = answer(node(device("n1", 0)), node(name="n0", fault="no answer yet"))
    assert [(one.name, one.gpus, one.fault) for one in found.groups] == [("n0", 0.0, "no answer yet"), ("n1", 1.0, "")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("", [0, 1, 2]), ("a-0", [0]), ("FREE", [2]), ("n1 b", [1]), ("nothing", []), ("tensor", [0, 1]), ("h1 b-", [1])],
)
def test_a_filter_needs_each_word_in_a_name(words: str, expected: list[int]) -> None:
    found = answer(node(device("n1", 0, "a-0"), device("n1", 1, "b-0"), device("n1", 2)), words=words)
    assert [row.gpu for row in found.gpus] == expected
    assert found.summary.devices == len(expected)


@pytest.mark.parametrize("order", ["use", "memory", "power", "temperature"])
def test_numbers_are_sorted_from_high_to_low_and_unknown_ones_are_last(order: Any) -> None:
    metrics = {names.POWER: 100.0, names.TEMPERATURE: 50.0, names.MEMORY_USED: 10.0, names.UTILIZATION: 10.0}
    high = {name: value * 2 for name, value in metrics.items()}
    found = answer(
        node(device("n1", 0, values=metrics), device("n1", 1, values={}), device("n1", 2, values=high)), order=order
    )
    assert [row.gpu for row in found.gpus] == [2, 0, 1]


def test_the_groups_of_nodes_count_all_devices() -> None:
    rows = answer(node(device("n1", 0, "a-0"), device("n1", 1))).gpus
    (group,) = groups_of(rows, "node")
    assert (group.gpus, group.allocated, group.computing, dict(group.classes)) == (
        2.0, 1.0, 1, {"tensor-heavy": 1, "idle": 1},
    )  # fmt: skip
